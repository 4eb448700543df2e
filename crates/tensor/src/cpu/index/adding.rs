//! The loops of [`scatter_add`](super::scatter_add).

use super::super::MAX_RANK;
use super::super::sides::Sides;
use super::Scatter;
use crate::element::Num;

/// Lines of halves that are added to side by side: in one line, each addition may have to wait for the one before to be rounded.
const TOGETHER: usize = 4;

impl Scatter<'_> {
    /// Adds the values that belong to these rows of the destination, of which the first is that of row `first` of the index.
    pub(super) fn add<D, C: Num>(&self, dst: &mut [D], first: usize, values: &[C], add_one: impl Fn(&mut D, C)) {
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..self.index.shape.len()];
        shape.copy_from_slice(self.index.shape);
        if let [rows, others @ ..] = shape {
            *rows = values.len() / others.iter().product::<usize>();
        }
        let (stride, size) = (self.stride, self.dst_shape.get(self.dim).copied().unwrap_or(1));
        let index = &self.index.data.plain()[first * self.index.strides.first().unwrap_or(&0)..];
        let mut rest = values;
        Sides::of(shape, [self.index.strides, &self.base]).each(|lines| {
            let mut done = 0;
            let are_apart = size_of::<D>() == size_of::<u16>() && lines.distances[1] >= size;
            if let ([1, 0], 1, true) = (lines.steps, stride, are_apart) {
                while done + TOGETHER <= lines.count {
                    let ([index_start, base], [index_distance, distance]) = (lines.beginnings(done), lines.distances);
                    let (values, others) = rest.split_at(TOGETHER * lines.len);
                    add_lines((&mut dst[base..], distance), (&index[index_start..], index_distance), values, &add_one);
                    (rest, done) = (others, done + TOGETHER);
                }
            }
            for line in done..lines.count {
                let [index_start, mut base] = lines.beginnings(line);
                let (index, [index_step, step]) = (&index[index_start..], lines.steps);
                let (values, others) = rest.split_at(lines.len);
                rest = others;
                if let (1, 0, 1) = (index_step, step, stride) {
                    let dst = &mut dst[base..];
                    values.iter().zip(index).for_each(|(&value, &j)| add_one(&mut dst[j as usize], value));
                    continue;
                }
                let mut add = |value: C, number: i64| {
                    add_one(&mut dst[base + number as usize * stride], value);
                    base += step;
                };
                match index_step {
                    1 => values.iter().zip(index).for_each(|(&value, &j)| add(value, j)),
                    _ => values.iter().enumerate().for_each(|(i, &value)| add(value, index[i * index_step])),
                }
            }
        });
    }
}

/// Adds [`TOGETHER`] lines of values to as many lines of the destination, which begin at these distances.
fn add_lines<D, C: Num>(
    (dst, distance): (&mut [D], usize),
    (index, index_distance): (&[i64], usize),
    values: &[C],
    add_one: impl Fn(&mut D, C),
) {
    let (len, mut lines) = (values.len() / TOGETHER, dst.chunks_mut(distance));
    let mut lines: [&mut [D]; TOGETHER] =
        std::array::from_fn(|_| lines.next().unwrap_or_else(|| unreachable!("there is a line for each")));
    let index: [&[i64]; TOGETHER] = std::array::from_fn(|line| &index[line * index_distance..][..len]);
    let values: [&[C]; TOGETHER] = std::array::from_fn(|line| &values[line * len..][..len]);
    for i in 0..len {
        for ((dst, index), values) in lines.iter_mut().zip(index).zip(values) {
            add_one(&mut dst[index[i] as usize], values[i]);
        }
    }
}
