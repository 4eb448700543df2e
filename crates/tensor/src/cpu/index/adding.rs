//! The loops of [`scatter_add`](super::scatter_add).

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use pagelock_memory::Result;

use super::super::column_blocks::{entries_of, for_each_block};
use super::super::strided_zip::StridedZip;
use super::super::walk::Dims;
use super::super::{CHUNK, MAX_RANK, Value};
use super::{Scatter, Source};
use crate::element::Num;
use crate::inlined::{Slice, zip};
use crate::parallel::Columns;

/// Lines of halves that are added to side by side: within one line, an addition may have to wait until the sum before
/// it is rounded.
const TOGETHER: usize = 2;

impl Scatter<'_> {
    /// Whether each row of the destination belongs to one row of the index, whose elements are contiguous.
    pub(super) fn visits_rows(&self) -> bool {
        let last = self.dim + 1 == self.dst_shape.len();
        let (shape, strides) = (self.index.shape, self.index.strides);
        // `StridedZip` leaves out a dimension of size 1, so that lines run along another one.
        let has_lines = shape.get(self.dim).is_some_and(|&n| n > 1) && strides[self.dim] == 1;
        last && has_lines && self.dst_shape[..self.dim] == shape[..self.dim]
    }

    /// Adds `values` to rows of the destination, the first of which belongs to row `first` of the index. `rounds`
    /// says whether each sum is rounded to a half type. `begin(row, start)`, if given, initializes a row, whose
    /// elements begin at number `start`, before anything is added to it. It may be given only if
    /// [`visits_rows`](Self::visits_rows).
    pub(super) fn add<D, C: Num>(
        &self,
        dst: &mut [D],
        (first, rounds): (usize, bool),
        values: &[C],
        begin: Option<&dyn Fn(&mut [D], usize)>,
        add_one: impl Fn(&mut D, C) + Copy,
    ) {
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..self.index.shape.len()];
        shape.copy_from(self.index.shape);
        if let [rows, others @ ..] = shape {
            *rows = values.len() / others.iter().product::<usize>();
        }
        let (stride, size) = (self.stride, self.dst_shape.get(self.dim).copied().unwrap_or(1));
        let index = &self.index.data.plain()[first * self.index.strides.first().unwrap_or(&0)..];
        let (mut rest, mut are_inside) = (values, true);
        StridedZip::of(shape, [self.index.strides, &self.base]).each(|lines| {
            let mut done = 0;
            let are_apart = rounds && lines.distances[1] >= size;
            if let ([1, 0], 1, true) = (lines.steps, stride, are_apart) {
                while done + TOGETHER <= lines.count {
                    let ([index_start, base], [index_distance, distance]) = (lines.beginnings(done), lines.distances);
                    let (values, others) = rest.split_at(TOGETHER * lines.len);
                    are_inside &= add_lines(
                        (&mut dst[base..], distance, size),
                        (&index[index_start..], index_distance),
                        values,
                        add_one,
                    );
                    (rest, done) = (others, done + TOGETHER);
                }
            }
            for line in done..lines.count {
                let [index_start, mut base] = lines.beginnings(line);
                let (index, [index_step, step]) = (&index[index_start..], lines.steps);
                let (values, others) = rest.split_at(lines.len);
                rest = others;
                if let (1, 0, 1) = (index_step, step, stride) {
                    let dst = &mut dst[base..][..size];
                    if let Some(begin) = begin {
                        begin(dst, base);
                    }
                    for (&value, &j) in zip(values, index) {
                        match dst.get_mut(j as usize) {
                            Some(element) => add_one(element, value),
                            None => are_inside = false,
                        }
                    }
                    continue;
                }
                let mut add = |value: C, number: i64| {
                    match (number as usize) < size {
                        true => add_one(&mut dst[base + number as usize * stride], value),
                        false => are_inside = false,
                    }
                    base += step;
                };
                match index_step {
                    1 => zip(values, index).for_each(|(&value, &j)| add(value, j)),
                    _ => values.iter().enumerate().for_each(|(i, &value)| add(value, index[i * index_step])),
                }
            }
        });
        self.any_outside.fetch_or(!are_inside, Ordering::Relaxed);
    }
}

impl Scatter<'_> {
    /// Adds all values to the destination, if the index selects along the first dimension.
    pub(super) fn add_to_columns<D: Value, C: Num>(
        &self,
        dst: &mut [D],
        src: &Source<'_, C>,
        add_one: impl Fn(&mut D, C) + Sync + Copy,
    ) -> Result<()> {
        let failure = Mutex::new(Ok(()));
        let are_inside = for_each_block(dst, self.dst_shape, src.dims.len(), |dst, entries| {
            let Some((start, mut shape)) = entries_of(self.index, &entries) else { return true };
            let mut are_inside = true;
            let rank = self.dst_shape.len();
            let shape = &mut shape[..rank];
            let block = Source {
                data: src.data.from(entries.start * src.strides.get(1).unwrap_or(&0)),
                strides: src.strides,
                dims: Dims::of(shape, src.strides),
            };
            let n = shape[0];
            let (row_len, rows) = (block.dims.len() / n, (CHUNK * n / block.dims.len()).max(1));
            for first in (0..n).step_by(rows) {
                shape[0] = rows.min(n - first);
                let sides = StridedZip::of(shape, [self.index.strides, &self.base]);
                let index = &self.index.data.plain()[start + first * self.index.strides[0]..];
                let add = |values: &[C]| are_inside &= add_sides(dst, &sides, index, values, add_one);
                if let Err(error) = block.with(first * row_len, shape[0] * row_len, add) {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                    break;
                }
            }
            are_inside
        });
        self.any_outside.fetch_or(!are_inside, Ordering::Relaxed);
        failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the values, which are in row-major order, to columns. Returns whether all indices were in range.
fn add_sides<D, C: Num>(
    dst: &mut Columns<'_, D>,
    sides: &StridedZip<2>,
    index: &[i64],
    values: &[C],
    add_one: impl Fn(&mut D, C) + Copy,
) -> bool {
    let (mut rest, mut are_inside) = (values, true);
    sides.each(|lines| {
        for line in 0..lines.count {
            let ([index_start, mut column], [index_step, step]) = (lines.beginnings(line), lines.steps);
            let (values, others) = rest.split_at(lines.len);
            rest = others;
            for (i, &value) in values.iter().enumerate() {
                match dst.get_mut(index[index_start + i * index_step] as usize, column) {
                    Some(element) => add_one(element, value),
                    None => are_inside = false,
                }
                column += step;
            }
        }
    });
    are_inside
}

/// Adds [`TOGETHER`] lines of values to as many lines of the destination. The lines have `size` elements and begin at
/// these distances. Returns whether all indices were in range.
#[inline(never)] // inlined, it slows down the loop over single lines
fn add_lines<D, C: Num>(
    (dst, distance, size): (&mut [D], usize, usize),
    (index, index_distance): (&[i64], usize),
    values: &[C],
    add_one: impl Fn(&mut D, C),
) -> bool {
    let (len, (to_a, to_b)) = (values.len() / TOGETHER, dst.split_at_mut(distance));
    let (to_a, to_b) = (&mut to_a[..size], &mut to_b[..size]);
    let (index_a, index_b) = (&index[..len], &index[index_distance..][..len]);
    let ((a, b), mut are_inside) = (values.split_at(len), true);
    for ((a, i), (b, j)) in zip(zip(a, index_a), zip(b, index_b)) {
        match (to_a.get_mut(*i as usize), to_b.get_mut(*j as usize)) {
            (Some(to_a), Some(to_b)) => {
                add_one(to_a, *a);
                add_one(to_b, *b);
            }
            _ => are_inside = false,
        }
    }
    are_inside
}
