//! [`Parts`]: the product of a step, cut by columns of the weight, so that a core has its part in its cache from step to step.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::{LEAST_ROWS, WIDTH};
use crate::cpu::Stored;
use crate::cpu::math::half::Half;
use crate::element::Real;
use crate::error::Result as Made;
use crate::inlined::{Slice, zip};
use crate::ops::{Packed, gemm};
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;
use crate::tensor::Tensor;

/// Bytes of a part of a weight, with four for each number: half of a core's second cache in `f32`.
const MOST_BYTES: usize = 256 << 10;

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
    /// Whether products are those of `bf16`, if the processor multiplies such.
    is_bf16: bool,
}

/// The weight of all steps, part by part.
#[derive(Clone, Copy)]
pub(super) enum Weight<'a, R> {
    Numbers(&'a [R]),
    Packed(Packed<'a>),
}

impl Parts {
    /// Of the product with the state.
    pub(in crate::ops::recurrent) fn forward(hidden: usize, gates: usize, is_bf16: bool) -> Parts {
        Parts::new([hidden, hidden, gates], is_bf16)
    }

    /// Of the product with the gradients of gates.
    pub(in crate::ops::recurrent) fn backward(hidden: usize, gates: usize, is_bf16: bool) -> Parts {
        Parts::new([gates * hidden, hidden, 1], is_bf16)
    }

    /// The fewest parts that are small enough and of whole vectors; one, if there is no such way to cut.
    fn new([inner, hidden, gates]: [usize; 3], is_bf16: bool) -> Parts {
        let is_bf16 = is_bf16 && Packed::can_multiply(inner);
        let number_bytes = if is_bf16 { size_of::<u16>() } else { size_of::<f32>() };
        let is_small = |units: usize| units * gates * inner * number_bytes <= MOST_BYTES;
        let mut counts = (1..=hidden / WIDTH).filter(|count| hidden.is_multiple_of(count * WIDTH));
        let count = counts.find(|count| is_small(hidden / count)).unwrap_or(1);
        Parts { inner, gates, units: hidden / count, count, is_bf16 }
    }

    /// The weight `[gates · hidden, inner]` of a product with the state, part by part.
    pub(in crate::ops::recurrent) fn of_state(&self, weight: &Tensor) -> Made<Tensor> {
        let Parts { inner, gates, units, count, .. } = *self;
        weight.reshape([gates, count, units, inner])?.permute([1, 3, 0, 2])?.contiguous()
    }

    /// The weight `[inner, hidden]` of a product with gradients of gates, part by part.
    pub(in crate::ops::recurrent) fn of_gates(&self, weight: &Tensor) -> Made<Tensor> {
        let Parts { inner, units, count, .. } = *self;
        weight.reshape([inner, count, units])?.transpose(0, 1)?.contiguous()
    }

    /// Calls `body` with the weight as products take it.
    pub(super) fn with_weight<R: Real>(
        &self,
        weight: &[R],
        body: impl FnOnce(Weight<'_, R>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_bf16 {
            return body(Weight::Numbers(weight));
        }
        let sizes = [self.inner, self.columns()];
        scratch::with(self.count * Packed::room(sizes), |pairs| {
            body(Weight::Packed(Packed::new(sizes, R::as_f32s(weight), pairs)))
        })
    }

    /// Calls `body` with rows as products take them.
    fn with_left<R: Real>(&self, left: &[R], body: impl FnOnce(Stored<'_, R>) -> Result<()>) -> Result<()> {
        if !self.is_bf16 {
            return body(left.into());
        }
        scratch::with(left.len(), |bits: &mut [u16]| {
            Half::BF16.narrow(R::as_f32s(left), bits);
            body(Stored::Halves(bits, Half::BF16))
        })
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
    pub(super) fn products<'a, R: Real>(
        &self,
        left: &[R],
        weight: Weight<'_, R>,
        room: &'a mut [R],
    ) -> Result<Products<'a, R>> {
        let rows = left.len() / self.inner;
        self.with_left(left, |left| {
            let mut parts = room.chunks_mut(rows * self.columns()).enumerate();
            parts.try_for_each(|(part, sums)| self.product(left, (weight, part), sums))
        })?;
        Ok(Products { parts: *self, first: 0, rows, numbers: room })
    }

    /// The same on all threads.
    pub(super) fn products_at_once<'a, R: Real>(
        &self,
        left: &[R],
        weight: Weight<'_, R>,
        room: &'a mut [R],
    ) -> Result<Products<'a, R>> {
        let (inner, columns, rows) = (self.inner, self.columns(), left.len() / self.inner);
        let groups = (MOST_PIECES / self.count).min(rows.div_ceil(ROWS)).max(1);
        let of_group = rows.div_ceil(groups);
        self.with_left(left, |left| {
            let mut pieces = ArrayVec::<_, MOST_PIECES>::new();
            for (part, sums) in room.chunks_mut(rows * columns).enumerate() {
                let groups = sums.chunks_mut(of_group * columns).enumerate();
                pieces.extend(groups.map(|(group, sums)| {
                    let left = left.part(group * of_group * inner, sums.len() / columns * inner);
                    (left, part, sums)
                }));
            }
            try_for_each_chunk_mut(&mut pieces, 1, |_, piece| {
                let (left, part, sums) = &mut piece[0];
                self.product(*left, (weight, *part), sums)
            })
        })?;
        Ok(Products { parts: *self, first: 0, rows, numbers: room })
    }

    /// Of rows with one part.
    fn product<R: Real>(
        &self,
        left: Stored<'_, R>,
        (weight, part): (Weight<'_, R>, usize),
        sums: &mut [R],
    ) -> Result<()> {
        let (inner, columns) = (self.inner, self.columns());
        match weight {
            Weight::Numbers(weight) => {
                let weight = &weight[part * inner * columns..][..inner * columns];
                let rows = left.len() / inner;
                gemm(rows, inner, columns, left, [inner, 1], weight.into(), [columns, 1], sums.into())
            }
            Weight::Packed(weight) => {
                weight.multiply(left.halves(), part, R::f32s(sums));
                Ok(())
            }
        }
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
                Some(direct) => zip(zip(&mut to[..], products), direct).for_each(|((to, x), y)| *to = *x + *y),
                None => to.copy_from(products),
            }
        }
    }
}
