//! [`Parts`]: the product of a step, cut by columns of the weight, so that each core keeps its part in its cache from
//! step to step.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::{MIN_ROWS, WIDTH};
use crate::cpu::Stored;
use crate::cpu::math::half::Half;
use crate::element::Real;
use crate::error::Result as TensorResult;
use crate::inlined::{Slice, zip};
use crate::lanes::StridedRows;
use crate::ops::{Packed, chained, gemm};
use crate::parallel::{num_threads, try_for_each_chunk_mut};
use crate::scratch;
use crate::tensor::Tensor;

/// The most bytes of a part of a weight: a core reads it from its L2 cache for each group of rows.
const MAX_BYTES: usize = 128 << 10;
/// The most bytes of a weight that is not cut, if each core has sequences of its own. A core then reads the whole
/// weight in each step from its L2 cache, and neither waits for the products of other cores nor reads their states.
const MAX_BYTES_OF_ALL: usize = 1 << 20;

/// The most pieces of a product. A piece is a part of a weight times a group of rows.
const MAX_PIECES: usize = 256;
/// The most rows of a group, unless that makes more than `MAX_PIECES`.
const ROWS: usize = 4 * MIN_ROWS;

/// How a product `[rows, inner] · [inner, hidden · gates]` is cut: each part has the columns of `units` numbers of a
/// state, gate by gate. Sums do not depend on the cut ([`product`](Self::product)), so the cut may depend on the number
/// of threads.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops::recurrent) struct Parts {
    inner: usize,
    gates: usize,
    units: usize,
    count: usize,
    /// Whether products are computed in `bf16`, which only some processors can.
    is_bf16: bool,
    /// Whether the left side is a state; else it is gradients of gates.
    is_of_state: bool,
}

/// The weight of all steps, part by part.
#[derive(Clone, Copy)]
pub(super) enum Weight<'a, R> {
    Numbers(&'a [R]),
    Packed(Packed<'a>),
}

impl Parts {
    /// The cut of the product with the state.
    pub(in crate::ops::recurrent) fn forward(batch: usize, hidden: usize, gates: usize, is_bf16: bool) -> Parts {
        Parts { is_of_state: true, ..Parts::new(batch, [hidden, hidden, gates], is_bf16) }
    }

    /// The cut of the product with the gradients of gates.
    pub(in crate::ops::recurrent) fn backward(batch: usize, hidden: usize, gates: usize, is_bf16: bool) -> Parts {
        Parts::new(batch, [gates * hidden, hidden, 1], is_bf16)
    }

    /// One part, if there are sequences for all threads and the weight is small. Otherwise the fewest parts that are
    /// small enough and consist of whole vectors; if there is no such cut, one part.
    fn new(batch: usize, [inner, hidden, gates]: [usize; 3], is_bf16: bool) -> Parts {
        let is_bf16 = is_bf16 && Packed::can_multiply(inner);
        let number_bytes = if is_bf16 { size_of::<u16>() } else { size_of::<f32>() };
        let bytes = |units: usize| units * gates * inner * number_bytes;
        let cuts_sequences = batch >= MIN_ROWS * num_threads() && bytes(hidden) <= MAX_BYTES_OF_ALL;
        let mut counts = (1..=hidden / WIDTH).filter(|count| hidden.is_multiple_of(count * WIDTH));
        let count = counts.find(|count| cuts_sequences || bytes(hidden / count) <= MAX_BYTES).unwrap_or(1);
        Parts { inner, gates, units: hidden / count, count, is_bf16, is_of_state: false }
    }

    /// The weight `[gates · hidden, inner]` of a product with the state, part by part: `[parts, inner, gates, units]`,
    /// or `[parts, gates, units, inner]` for products in `bf16`.
    pub(in crate::ops::recurrent) fn of_state(&self, weight: &Tensor) -> TensorResult<Tensor> {
        let Parts { inner, gates, units, count, .. } = *self;
        let weight = self.factor(weight)?.reshape([gates, count, units, inner])?;
        if self.is_bf16 { weight.transpose(0, 1)?.contiguous() } else { weight.permute([1, 3, 0, 2])?.contiguous() }
    }

    /// The weight `[inner, hidden]` of a product with gradients of gates, part by part: `[parts, inner, units]`.
    pub(in crate::ops::recurrent) fn of_gates(&self, weight: &Tensor) -> TensorResult<Tensor> {
        let Parts { inner, units, count, .. } = *self;
        self.factor(weight)?.reshape([inner, count, units])?.transpose(0, 1)?.contiguous()
    }

    /// A weight in the precision of products.
    fn factor(&self, weight: &Tensor) -> TensorResult<Tensor> {
        if self.is_bf16 { Ok(weight.clone()) } else { weight.to_dtype(weight.dtype().computing()) }
    }

    /// Calls `body` with the weight in the form that products take.
    pub(super) fn with_weight<R: Real>(
        &self,
        weight: Stored<'_, R>,
        body: impl FnOnce(Weight<'_, R>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_bf16 {
            return body(Weight::Numbers(weight.plain()));
        }
        let sizes @ [inner, columns] = [self.inner, self.columns()];
        let strides = if self.is_of_state { [1, inner] } else { [columns, 1] };
        scratch::with(self.count * Packed::packed_len(sizes), |pairs| {
            body(Weight::Packed(Packed::new(sizes, weight.halves(), strides, pairs)))
        })
    }

    /// Calls `body` with rows in the form that products take.
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

    /// Whether the weight is cut. Then each core multiplies all rows by its parts, and each part is read once per step.
    pub(super) fn are_many(&self) -> bool {
        (2..=MAX_PIECES).contains(&self.count)
    }

    /// Multiplies rows, `[rows, inner]`, by the weight, part by part. `buffer` has the size of all products.
    pub(super) fn products<'a, R: Real>(
        &self,
        left: &[R],
        weight: Weight<'_, R>,
        buffer: &'a mut [R],
    ) -> Result<Products<'a, R>> {
        let rows = left.len() / self.inner;
        self.with_left(left, |left| {
            let mut parts = buffer.chunks_mut((rows * self.columns()).max(1)).enumerate();
            parts.try_for_each(|(part, sums)| self.product(left, (weight, part), sums))
        })?;
        Ok(Products { parts: *self, first: 0, rows, numbers: buffer })
    }

    /// [`products`](Self::products) on all threads.
    pub(super) fn products_at_once<'a, R: Real>(
        &self,
        left: &[R],
        weight: Weight<'_, R>,
        buffer: &'a mut [R],
    ) -> Result<Products<'a, R>> {
        let (inner, columns, rows) = (self.inner, self.columns(), left.len() / self.inner);
        let groups = (MAX_PIECES / self.count).min(rows.div_ceil(ROWS)).max(1);
        let of_group = rows.div_ceil(groups);
        self.with_left(left, |left| {
            let mut pieces = ArrayVec::<_, MAX_PIECES>::new();
            for (part, sums) in buffer.chunks_mut((rows * columns).max(1)).enumerate() {
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
        Ok(Products { parts: *self, first: 0, rows, numbers: buffer })
    }

    /// The product of rows with one part.
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
                if size_of::<f32>() * weight.len() <= MAX_BYTES_OF_ALL {
                    chained([inner, columns], left.plain(), weight, sums); // `gemm` may cut the sums of a few rows
                    return Ok(());
                }
                let rows = left.len() / inner;
                gemm(rows, inner, columns, left, [inner, 1], weight.into(), [columns, 1], sums.into())
            }
            Weight::Packed(weight) => {
                let left = StridedRows { numbers: left.halves(), distance: self.inner };
                weight.multiply(left, part, R::f32s(sums));
                Ok(())
            }
        }
    }
}

/// Products of rows with all parts of a weight.
#[derive(Clone, Copy)]
pub(super) struct Products<'a, R> {
    pub(super) parts: Parts,
    first: usize, // index among all rows
    rows: usize,
    numbers: &'a [R],
}

impl<'a, R: Real> Products<'a, R> {
    /// The products of a row with a part: the units of each gate.
    pub(super) fn of(&self, row: usize, part: usize) -> &'a [R] {
        let columns = self.parts.columns();
        &self.numbers[(part * self.rows + self.first + row) * columns..][..columns]
    }

    /// The products of the rows from this one on.
    pub(super) fn from(self, row: usize) -> Self {
        Self { first: self.first + row, ..self }
    }

    /// Writes products to `rows`, plus `direct` if that is not empty.
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

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::DType;
    use crate::cpu::testing::Stores;
    use crate::element::Element;
    use crate::kind::Float;
    use crate::lanes::testing::{levels, with_level};

    const GATES: usize = 4;
    const ROWS: usize = 20;

    /// The products of all rows, `[rows, gates, hidden]`: `group` rows at a time, by a weight in `count` parts.
    fn products<T: Stores + Element<Kind = Float>>(parts: Parts, group: usize, count: usize) -> Vec<T::C>
    where
        T::C: Real + Element<Kind = Float>,
    {
        let (hidden, gates, inner) = (parts.units * parts.count, parts.gates, parts.inner);
        let parts = Parts { count, units: hidden / count, ..parts };
        let number = |i: usize| ((i * 7919) % 1000) as f64 / 1000.0 - 0.5;
        let weight: Vec<T> = (0..inner * gates * hidden).map(|i| T::from_f64(number(i))).collect();
        let weight = match parts.is_of_state {
            true => parts.of_state(&Tensor::from_slice(&weight, [gates * hidden, inner]).unwrap()).unwrap(),
            false => parts.of_gates(&Tensor::from_slice(&weight, [inner, hidden]).unwrap()).unwrap(),
        };
        let left: Vec<T::C> = (0..ROWS * inner).map(|i| T::C::from_f64(number(i + 5))).collect();
        let mut found = Vec::new();
        let width = gates * hidden;
        let buffer = &mut vec![T::C::ZERO; ROWS * width];
        let (halves, numbers): (Vec<T>, Vec<T::C>) = match parts.is_bf16 {
            true => (weight.to_vec().unwrap(), Vec::new()),
            false => (Vec::new(), weight.to_vec().unwrap()),
        };
        let weight = if parts.is_bf16 { T::stored(&halves) } else { numbers[..].into() };
        parts
            .with_weight(weight, |weight| {
                for left in left.chunks(group * inner) {
                    let products = parts.products(left, weight, &mut buffer[..left.len() / inner * width])?;
                    for row in 0..left.len() / inner {
                        let of_gate = |gate: usize| (0..count).map(move |part| (gate, part));
                        for (gate, part) in (0..gates).flat_map(of_gate) {
                            found.extend(&products.of(row, part)[gate * parts.units..][..parts.units]);
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
        found
    }

    fn sums_are_the_same_in_any_part<T: Stores + Element<Kind = Float>>()
    where
        T::C: Real + Element<Kind = Float>,
    {
        let is_bf16 = T::DTYPE == DType::BF16;
        for level in levels() {
            with_level(level, || {
                let cuts = [Parts::forward, Parts::backward]
                    .map(|cut| [96, 160, 256].map(|hidden| cut(1, hidden, GATES, is_bf16)));
                for &parts in cuts.as_flattened() {
                    let whole = products::<T>(parts, ROWS, 1);
                    let most = parts.units * parts.count / WIDTH;
                    for (group, count) in [(ROWS, 2), (8, 1), (8, most), (7, 2), (3, 1), (2, 1), (1, 1), (1, most)] {
                        assert!(
                            products::<T>(parts, group, count) == whole,
                            "{group} rows, {count} parts, {parts:?}, {level:?}, {}",
                            T::DTYPE
                        );
                    }
                }
            });
        }
    }

    #[test]
    fn a_sum_does_not_depend_on_the_cut() {
        sums_are_the_same_in_any_part::<f32>();
        sums_are_the_same_in_any_part::<f64>();
        sums_are_the_same_in_any_part::<bf16>();
    }
}
