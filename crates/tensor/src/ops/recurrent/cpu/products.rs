//! [`Parts`]: the product of a step, cut by columns of the weight, so that a core has its part in its cache from step to step.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::{LEAST_ROWS, WIDTH};
use crate::element::Real;
use crate::error::Result as Made;
use crate::ops::gemm;
use crate::parallel::try_for_each_chunk_mut;
use crate::tensor::Tensor;

/// Numbers of a part of a weight: half of a core's second cache in `f32`.
const MOST_NUMBERS: usize = 64 << 10;

/// Parts of a weight and groups of rows that are multiplied apart, at most.
const MOST_PIECES: usize = 256;
/// Rows of a group, at most, while there are few.
const ROWS: usize = 4 * LEAST_ROWS;

/// How a product `[rows, inner] · [inner, hidden · gates]` is cut: each part has the columns of `units` numbers of a state, those of
/// one gate behind those of the one before it.
#[derive(Clone, Copy)]
pub(in crate::ops::recurrent) struct Parts {
    inner: usize,
    gates: usize,
    units: usize,
    count: usize,
}

impl Parts {
    /// Of the product with the state.
    pub(in crate::ops::recurrent) fn forward(hidden: usize, gates: usize) -> Parts {
        Parts::new(hidden, hidden, gates)
    }

    /// Of the product with the gradients of gates.
    pub(in crate::ops::recurrent) fn backward(hidden: usize, gates: usize) -> Parts {
        Parts::new(gates * hidden, hidden, 1)
    }

    /// The fewest parts that are small enough and of whole vectors; one, if there is no such way to cut.
    fn new(inner: usize, hidden: usize, gates: usize) -> Parts {
        let is_small = |units: usize| units * gates * inner <= MOST_NUMBERS;
        let mut counts = (1..=hidden / WIDTH).filter(|count| hidden.is_multiple_of(count * WIDTH));
        let count = counts.find(|count| is_small(hidden / count)).unwrap_or(1);
        Parts { inner, gates, units: hidden / count, count }
    }

    /// The weight `[gates · hidden, inner]` of a product with the state, part by part.
    pub(in crate::ops::recurrent) fn of_state(&self, weight: &Tensor) -> Made<Tensor> {
        let Parts { inner, gates, units, count } = *self;
        weight.reshape([gates, count, units, inner])?.permute([1, 3, 0, 2])?.contiguous()
    }

    /// The weight `[inner, hidden]` of a product with gradients of gates, part by part.
    pub(in crate::ops::recurrent) fn of_gates(&self, weight: &Tensor) -> Made<Tensor> {
        let Parts { inner, units, count, .. } = *self;
        weight.reshape([inner, count, units])?.transpose(0, 1)?.contiguous()
    }

    pub(super) fn units(&self) -> usize {
        self.units
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn columns(&self) -> usize {
        self.gates * self.units
    }

    /// Whether the weight is larger than a core keeps: then each core multiplies all rows by its parts, and each part is read once in a step.
    pub(super) fn are_many(&self) -> bool {
        (2..=MOST_PIECES).contains(&self.count)
    }

    /// The products of rows, `[rows, inner]`, with the weight, part by part, into `room`, which has a place for each.
    pub(super) fn products<'a, R: Real>(&self, left: &[R], weight: &[R], room: &'a mut [R]) -> Result<Products<'a, R>> {
        let (inner, columns, rows) = (self.inner, self.columns(), left.len() / self.inner);
        for (sums, weight) in room.chunks_mut(rows * columns).zip(weight.chunks(inner * columns)) {
            self.product(left, weight, sums)?;
        }
        Ok(Products { parts: *self, first: 0, rows, numbers: room })
    }

    /// The same on all threads.
    pub(super) fn products_at_once<'a, R: Real>(
        &self,
        left: &[R],
        weight: &[R],
        room: &'a mut [R],
    ) -> Result<Products<'a, R>> {
        let (inner, columns, rows) = (self.inner, self.columns(), left.len() / self.inner);
        let groups = (MOST_PIECES / self.count).min(rows.div_ceil(ROWS)).max(1);
        let of_group = rows.div_ceil(groups);
        let mut pieces = ArrayVec::<_, MOST_PIECES>::new();
        for (sums, weight) in room.chunks_mut(rows * columns).zip(weight.chunks(inner * columns)) {
            let groups = left.chunks(of_group * inner).zip(sums.chunks_mut(of_group * columns));
            pieces.extend(groups.map(|(left, sums)| (left, weight, sums)));
        }
        try_for_each_chunk_mut(&mut pieces, 1, |_, piece| {
            let (left, weight, sums) = &mut piece[0];
            self.product(left, weight, sums)
        })?;
        drop(pieces); // they borrow `room`
        Ok(Products { parts: *self, first: 0, rows, numbers: room })
    }

    /// Of rows with one part.
    fn product<R: Real>(&self, left: &[R], weight: &[R], sums: &mut [R]) -> Result<()> {
        let (inner, columns) = (self.inner, self.columns());
        gemm(left.len() / inner, inner, columns, left.into(), [inner, 1], weight.into(), [columns, 1], sums.into())
    }
}

/// Products of rows with all parts of a weight.
#[derive(Clone, Copy)]
pub(super) struct Products<'a, R> {
    pub(super) parts: Parts,
    first: usize, // row of all
    rows: usize,
    numbers: &'a [R],
}

impl<'a, R: Real> Products<'a, R> {
    /// Those of a row with a part: the units of each gate.
    pub(super) fn of(&self, row: usize, part: usize) -> &'a [R] {
        let columns = self.parts.columns();
        &self.numbers[(part * self.rows + self.first + row) * columns..][..columns]
    }

    /// Those of the rows from this one on.
    pub(super) fn from(self, row: usize) -> Self {
        Self { first: self.first + row, ..self }
    }

    /// Rows of products and, if there are such, of `direct`, added up.
    pub(super) fn add_to(&self, direct: &[R], rows: &mut [R]) {
        let units = self.parts.units;
        for (i, to) in rows.chunks_mut(units).enumerate() {
            let (row, part) = (i / self.parts.count, i % self.parts.count);
            let products = self.of(row, part);
            match direct.get(i * units..(i + 1) * units) {
                Some(direct) => to.iter_mut().zip(products).zip(direct).for_each(|((to, x), y)| *to = *x + *y),
                None => to.copy_from_slice(products),
            }
        }
    }
}
