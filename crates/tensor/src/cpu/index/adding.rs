//! The loops of [`scatter_add`](super::scatter_add).

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use pagelock_memory::Result;

use super::super::column_blocks::{entries_of, for_each_block};
use super::super::sides::Sides;
use super::super::walk::Dims;
use super::super::{CHUNK, MAX_RANK, Value};
use super::{Scatter, Source};
use crate::element::Num;
use crate::inlined::{Slice, zip};
use crate::parallel::Columns;

impl Scatter<'_> {
    /// Adds the values that belong to these rows of the destination, of which the first is that of row `first` of the index.
    pub(super) fn add<D, C: Num>(&self, dst: &mut [D], first: usize, values: &[C], add_one: impl Fn(&mut D, C) + Copy) {
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..self.index.shape.len()];
        shape.copy_from(self.index.shape);
        if let [rows, others @ ..] = shape {
            *rows = values.len() / others.iter().product::<usize>();
        }
        let (stride, size) = (self.stride, self.dst_shape.get(self.dim).copied().unwrap_or(1));
        let index = &self.index.data.plain()[first * self.index.strides.first().unwrap_or(&0)..];
        let (mut rest, mut are_inside) = (values, true);
        Sides::of(shape, [self.index.strides, &self.base]).each(|lines| {
            for line in 0..lines.count {
                let [index_start, mut base] = lines.beginnings(line);
                let (index, [index_step, step]) = (&index[index_start..], lines.steps);
                let (values, others) = rest.split_at(lines.len);
                rest = others;
                if let (1, 0, 1) = (index_step, step, stride) {
                    let dst = &mut dst[base..][..size];
                    for (&value, &j) in zip(values, index) {
                        match dst.get_mut(j as usize) {
                            Some(place) => add_one(place, value),
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
    /// Adds all values to a destination of which the index names places along the first dimension.
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
                let sides = Sides::of(shape, [self.index.strides, &self.base]);
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
    sides: &Sides<2>,
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
                    Some(place) => add_one(place, value),
                    None => are_inside = false,
                }
                column += step;
            }
        }
    });
    are_inside
}
