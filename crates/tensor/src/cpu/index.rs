//! Reading and adding elements at the positions in an index tensor.
//!
//! [`gather`] and [`scatter_add`] check their indices. For the other functions, the caller has checked them; an index
//! out of range makes these loops panic or use another element of the same view. Sources that add to the same element
//! do so in row-major order.

mod adding;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use ::half::{bf16, f16};
use bytemuck::Pod;
use pagelock_memory::Result;

use super::math::half::{Half, Registers, Wide, bf16_to_f32, f16_to_f32, f32_to_f16};
use super::strided_zip::StridedZip;
use super::walk::{Dims, Walk, contiguous_strides};
use super::{CHUNK, CpuView, MAX_RANK, PIECE, Stored, StoredMut, Value, fill, simd};
use crate::element::Num;
use crate::inlined::{Slice, zip};
use crate::parallel::{self, for_each_chunk_mut};
use crate::scratch;

/// `out[…, j, …] = x[…, index[j], …]`, with `j` at dimension `dim`; `out` is contiguous.
pub(crate) fn index_select<T: Value + Pod>(x: CpuView<'_, T>, dim: usize, index: &[i64], out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    let rows = Rows {
        data: x.data.plain(),
        outside: Dims::of(&x.shape[..dim], &x.strides[..dim]),
        stride: x.strides[dim],
        inside: Dims::of(&x.shape[dim + 1..], &x.strides[dim + 1..]),
        index,
    };
    let row_len = rows.inside.len();
    let chunk_rows = (CHUNK / row_len).max(1);
    for_each_chunk_mut(out, chunk_rows * row_len, |i, out| rows.copy(i * chunk_rows, out));
}

/// The rows that an index selects along one dimension, for each index of the dimensions outside of it.
struct Rows<'a, T> {
    data: &'a [T],
    outside: Dims,
    stride: usize,
    inside: Dims,
    index: &'a [i64],
}

impl<T: Value + Pod> Rows<'_, T> {
    /// Copies whole rows, from number `start` on.
    fn copy(&self, start: usize, out: &mut [T]) {
        let row_len = self.inside.len();
        let (mut outer, mut first, mut rest) = (start / self.index.len(), start % self.index.len(), out);
        while !rest.is_empty() {
            let n = (self.index.len() - first).min(rest.len() / row_len);
            let (some, others) = rest.split_at_mut(n * row_len);
            let rows = self.index[first..][..n].iter().map(|&index| index as usize * self.stride);
            self.copy_some(&self.data[self.outside.offset(outer)..], rows, some);
            (outer, first, rest) = (outer + 1, 0, others);
        }
    }

    /// Copies the rows that begin at these offsets.
    #[inline]
    fn copy_some(&self, data: &[T], offsets: impl Iterator<Item = usize>, out: &mut [T]) {
        let row_len = self.inside.len();
        if row_len == 1 {
            std::iter::zip(out.iter_mut(), offsets).for_each(|(out, offset)| *out = data[offset]);
        } else if self.inside.is_contiguous() {
            let rows = std::iter::zip(out.chunks_exact_mut(row_len), offsets);
            rows.for_each(|(row, offset)| row.copy_from(&data[offset..][..row_len]));
        } else {
            let rows = std::iter::zip(out.chunks_exact_mut(row_len), offsets);
            rows.for_each(|(row, offset)| Walk::starting_at(self.inside, 0).read(&data[offset..], row));
        }
    }
}

/// `out[i, …, k, …] = x[i, …, index[i, …, k, …], …]`: each element of `index` is a position along `dim`.
///
/// `out` is contiguous and has the shape of `index`, which may be smaller than that of `x` in every dimension. Returns
/// whether all indices were in range; if not, `out` is unspecified.
#[must_use]
pub(crate) fn gather<T: Value>(x: CpuView<'_, T>, dim: usize, index: CpuView<'_, i64>, out: &mut [T]) -> bool {
    if out.is_empty() {
        return true;
    }
    let (data, numbers) = (x.data.plain(), index.data.plain());
    let (stride, size) = match x.strides.get(dim) {
        Some(&stride) => (stride, x.shape[dim] as u64),
        None => (0, 1), // a single number has no dimension
    };
    let (contiguous, base) = (contiguous_strides(index.shape), without(dim, x.strides));
    let any_outside = &AtomicBool::new(false);
    let sides = StridedZip::of(index.shape, [&contiguous, index.strides, &base]);
    sides.in_parts(out, CHUNK, move |out, [_, index, base], sides| {
        // Local copies, so that the loop does not reload them after each store to `out`.
        let (data, numbers, stride, size) = (data, numbers, stride, size);
        let mut outside = false;
        sides.each(|lines| {
            for line in 0..lines.count {
                let [to, index_start, base_start] = lines.beginnings(line);
                let (out, [_, index_step, step]) = (&mut out[to..][..lines.len], lines.steps);
                let (numbers, mut base) = (&numbers[index + index_start..], base + base_start);
                let mut read = |out: &mut T, number: i64| {
                    let is_outside = number as u64 >= size; // negative indices are above all sizes
                    outside |= is_outside;
                    *out = data[base + if is_outside { 0 } else { number as usize * stride }];
                    base += step;
                };
                match (index_step, step, stride) {
                    (1, 0, 1) => {
                        let row = &data[base..][..size as usize];
                        for (out, &j) in zip(&mut out[..], numbers) {
                            match row.get(j as usize) {
                                Some(&x) => *out = x,
                                None => outside = true,
                            }
                        }
                    }
                    (1, ..) => zip(&mut out[..], numbers).for_each(|(out, &j)| read(out, j)),
                    _ => out.iter_mut().enumerate().for_each(|(i, out)| read(out, numbers[i * index_step])),
                }
            }
        });
        any_outside.fetch_or(outside, Ordering::Relaxed);
    });
    !any_outside.load(Ordering::Relaxed)
}

/// Indices that a thread checks at a time.
const CHECKED: usize = 64 << 10;

/// Whether all indices are below `size`, and none is negative.
pub(crate) fn all_below(index: &[i64], size: usize) -> bool {
    let any_outside = AtomicBool::new(false);
    parallel::run(index.len().div_ceil(CHECKED), |i| {
        let index = &index[i * CHECKED..][..CHECKED.min(index.len() - i * CHECKED)];
        // Without an early exit, which would prevent vectorization. Negative indices are above all sizes.
        let any =
            simd::vectorized(inlined!(|| index.iter().fold(false, |any, &index| any | (index as u64 >= size as u64))));
        any_outside.fetch_or(any, Ordering::Relaxed); // Relaxed: `run` waits for all
    });
    !any_outside.into_inner()
}

/// `dst[i, …, index[i, …, k, …], …] += src[i, …, k, …]`, where `dst` begins as `base`, which is contiguous, or as
/// zeros. Halves are rounded after each addition, as in PyTorch.
///
/// `dst` is contiguous with shape `dst_shape`. `src` and `index` have the same shape, at most `dst_shape` in every
/// dimension but `dim`. Returns whether all indices were in range; if not, `dst` is unspecified.
///
/// # Errors
/// The budget's error if it refuses memory.
pub(crate) fn scatter_add<C: Num>(
    dst: StoredMut<'_, C>,
    (dst_shape, dim): (&[usize], usize),
    index: CpuView<'_, i64>,
    src: CpuView<'_, C>,
    base: Option<Stored<'_, C>>,
) -> Result<bool> {
    let strides = contiguous_strides(dst_shape);
    let (base_strides, stride) = (without(dim, &strides), strides[dim]);
    let any_outside = AtomicBool::new(dst.len() == 0 && !index.shape.contains(&0));
    let scatter = Scatter { dst_shape, dim, index, base: base_strides, stride, any_outside: &any_outside };
    summing(dst, src, base, scatter)?;
    Ok(!any_outside.into_inner())
}

/// `dst[…, index[j], …] += src[…, j, …]`, with `j` at dimension `dim`, where `dst` begins as `base` or as zeros.
/// Halves are rounded after each addition.
///
/// `dst` is contiguous with shape `dst_shape`; `src` has the same shape except along `dim`.
///
/// # Errors
/// The budget's error if it refuses memory.
pub(crate) fn index_add<C: Num>(
    dst: StoredMut<'_, C>,
    dst_shape: &[usize],
    dim: usize,
    index: &[i64],
    src: CpuView<'_, C>,
    base: Option<Stored<'_, C>>,
) -> Result<()> {
    let row_len = dst_shape[dim + 1..].iter().product();
    summing(dst, src, base, AddRows { row_len, slab_len: row_len * dst_shape[dim], index })
}

/// Adds the elements of a source to a contiguous destination that begins as `base` or zeros, in row-major order of
/// the source.
trait Summing {
    fn sum<C: Num>(
        self,
        dst: StoredMut<'_, C>,
        src: Source<'_, C>,
        base: Option<Stored<'_, C>>,
        adding: impl Adding<C>,
    ) -> Result<()>;
}

/// How elements are added.
trait Adding<C>: Sync + Copy {
    /// `a + b`, rounded to the type of the elements, for vectorized loops.
    fn plus(self, a: C, b: C) -> C;
    /// `a + b`, rounded in the same way, for loops over single elements.
    #[inline(always)]
    fn plus_one(self, a: C, b: C) -> C {
        self.plus(a, b)
    }
    /// Adds to an element that is stored as the bits of a half.
    fn add_to_bits(self, bits: &mut u16, b: C);
}

#[derive(Clone, Copy)]
struct AddNumbers;

impl<C: Num> Adding<C> for AddNumbers {
    #[inline(always)]
    fn plus(self, a: C, b: C) -> C {
        a.plus(b)
    }
    fn add_to_bits(self, _: &mut u16, _: C) {
        unreachable!("only halves are stored as their bits")
    }
}

#[derive(Clone, Copy)]
struct AddF16;

impl Adding<f32> for AddF16 {
    #[inline(always)]
    fn plus(self, a: f32, b: f32) -> f32 {
        rounded_to_f16(a + b)
    }
    #[inline(always)]
    fn add_to_bits(self, bits: &mut u16, b: f32) {
        *bits = f32_to_f16(f16_to_f32(f16::from_bits(*bits)) + b).to_bits();
    }
}

/// The sum of two halves, rounded to the nearest half, ties to even. Small sums and NaN have no bits below those of
/// their terms, so they are exact.
#[inline(always)]
fn rounded_to_f16(sum: f32) -> f32 {
    let bits = sum.to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    let is_too_large = (0x4780_0000..0x7f80_0000).contains(&(rounded & 0x7fff_ffff));
    let rounded = f32::from_bits(rounded);
    if is_too_large { f32::INFINITY.copysign(rounded) } else { rounded }
}

/// [`AddF16`] where the processor has instructions that round a single sum.
#[derive(Clone, Copy)]
struct AddInRegisters<R>(R);

impl<R: Registers + Sync> Adding<f32> for AddInRegisters<R> {
    #[inline(always)]
    fn plus(self, a: f32, b: f32) -> f32 {
        AddF16.plus(a, b)
    }
    #[inline(always)]
    fn plus_one(self, a: f32, b: f32) -> f32 {
        self.0.rounded(a + b)
    }
    #[inline(always)]
    fn add_to_bits(self, bits: &mut u16, b: f32) {
        AddF16.add_to_bits(bits, b);
    }
}

#[derive(Clone, Copy)]
struct AddBf16;

impl Adding<f32> for AddBf16 {
    #[inline(always)]
    fn plus(self, a: f32, b: f32) -> f32 {
        f32::from_bits(rounded_to_bf16(a + b) & 0xffff_0000)
    }
    #[inline(always)]
    fn add_to_bits(self, bits: &mut u16, b: f32) {
        *bits = (rounded_to_bf16(bf16_to_f32(bf16::from_bits(*bits)) + b) >> 16) as u16;
    }
}

/// Bits whose upper half is the `bf16` nearest to the sum of two `bf16` numbers, ties to even. A sum that is NaN is
/// the default NaN or an operand, whose lower bits are zero, so nothing is carried into the upper half.
#[inline(always)]
fn rounded_to_bf16(sum: f32) -> u32 {
    sum.to_bits().wrapping_add(0x7fff + ((sum.to_bits() >> 16) & 1))
}

fn summing<C: Num>(
    dst: StoredMut<'_, C>,
    src: CpuView<'_, C>,
    base: Option<Stored<'_, C>>,
    work: impl Summing,
) -> Result<()> {
    if dst.len() == 0 || src.shape.contains(&0) {
        match (base, dst) {
            (None, mut dst) => dst.fill(C::ZERO),
            (Some(base), StoredMut::Plain(dst)) => dst.copy_from(base.plain()),
            (Some(base), StoredMut::Halves(dst, _)) => dst.copy_from(base.halves()),
        }
        return Ok(());
    }
    let (strides, dims) = (src.strides, Dims::of(src.shape, src.strides));
    match (dst, src.data) {
        (StoredMut::Halves(dst, Half::F16), Stored::Halves(bits, half)) => {
            let src = Source { data: Stored::Halves(bits, half), strides, dims };
            let (dst, base) = (StoredMut::Halves(dst, half), base.map(|base| Stored::Halves(base.halves(), half)));
            match Wide::new(half) {
                Some(Wide::F16(registers)) => work.sum(dst, src, base, AddInRegisters(registers)),
                _ => work.sum(dst, src, base, AddF16),
            }
        }
        (StoredMut::Halves(dst, Half::BF16), Stored::Halves(bits, half)) => {
            let src = Source { data: Stored::Halves(bits, half), strides, dims };
            work.sum(StoredMut::Halves(dst, half), src, base.map(|base| Stored::Halves(base.halves(), half)), AddBf16)
        }
        (dst, data) => work.sum(dst, Source { data, strides, dims }, base, AddNumbers),
    }
}

/// Elements that a thread adds to at a time. Widened halves fit in the L1 cache.
fn chunk_len<C: Num>(dst: &StoredMut<'_, C>) -> usize {
    match dst {
        StoredMut::Plain(_) => CHUNK,
        StoredMut::Halves(..) => CHUNK / 4,
    }
}

/// Initializes a part of the destination, from number `start` on, before anything is added to it.
fn begin<C: Num>(dst: &mut [C], base: Option<Stored<'_, C>>, start: usize) {
    match base {
        None => fill(dst, C::ZERO),
        Some(base) => base.part(start, dst.len()).copy_to(dst),
    }
}

/// `begin` for halves, as their bits.
fn begin_bits<C: Num>(dst: &mut [u16], base: Option<Stored<'_, C>>, start: usize) {
    match base {
        None => fill(dst, 0),
        Some(base) => dst.copy_from(base.part(start, dst.len()).halves()),
    }
}

/// The elements that are added, in row-major order.
struct Source<'a, C> {
    data: Stored<'a, C>,
    strides: &'a [usize],
    dims: Dims,
}

impl<C: Num> Source<'_, C> {
    /// `len` elements from number `start` on: in place, or in `buffer`, which is at least as long.
    #[inline(always)]
    fn part<'r>(&'r self, start: usize, len: usize, buffer: &'r mut [C]) -> &'r [C] {
        if self.dims.is_contiguous() {
            return self.data.part(start, len).widened(buffer);
        }
        let buffer = &mut buffer[..len];
        Walk::starting_at(self.dims, start).read_widened(self.data, buffer);
        buffer
    }

    /// Calls `body` with `len` elements from number `start` on, of which there may be any number.
    fn with(&self, start: usize, len: usize, body: impl FnOnce(&[C])) -> Result<()> {
        match self.data {
            Stored::Plain(data) if self.dims.is_contiguous() => body(&data[start..][..len]),
            _ => scratch::with(len, |buffer| {
                body(self.part(start, len, buffer));
                Ok(())
            })?,
        }
        Ok(())
    }
}

/// The work of [`scatter_add`].
struct Scatter<'a> {
    dst_shape: &'a [usize],
    dim: usize,
    index: CpuView<'a, i64>,
    /// The destination's strides, but 0 along `dim`.
    base: [usize; MAX_RANK],
    /// The destination's stride along `dim`.
    stride: usize,
    any_outside: &'a AtomicBool,
}

/// If the destination has at least this many elements for each element that is added, halves are not widened.
const SPARSE: usize = 10;

impl Summing for Scatter<'_> {
    fn sum<C: Num>(
        self,
        dst: StoredMut<'_, C>,
        src: Source<'_, C>,
        base: Option<Stored<'_, C>>,
        adding: impl Adding<C>,
    ) -> Result<()> {
        let is_sparse = SPARSE * src.dims.len() <= dst.len();
        let add_to_bits = |dst: &mut u16, value| adding.add_to_bits(dst, value);
        let add_to = |dst: &mut C, value| *dst = adding.plus_one(*dst, value);
        if self.dim == 0 {
            return match dst {
                StoredMut::Halves(dst, _) if is_sparse => {
                    for_each_chunk_mut(dst, CHUNK, |i, dst| begin_bits(dst, base, i * CHUNK));
                    self.add_to_columns(dst, &src, add_to_bits)
                }
                dst => scratch::reals_mut(dst, |dst| {
                    for_each_chunk_mut(dst, CHUNK, |i, dst| begin(dst, base, i * CHUNK));
                    self.add_to_columns(dst, &src, add_to)
                }),
            };
        }
        // The outermost dimension splits source and destination alike.
        let (rows, src_rows) = (self.dst_shape[0], self.index.shape[0]);
        let (row_len, src_row_len) = (dst.len() / rows, src.dims.len() / src_rows);
        let chunk_rows = (chunk_len(&dst) / row_len.max(src_row_len)).max(1);
        dst.try_for_each_chunk(chunk_rows * row_len, &|i, dst| {
            let first = i * chunk_rows;
            let n = (dst.len() / row_len).min(src_rows.saturating_sub(first));
            let with_values = |add: &mut dyn FnMut(&[C])| match n {
                0 => Ok(()),
                _ => src.with(first * src_row_len, n * src_row_len, add),
            };
            let (start, rounds) = (first * row_len, matches!(dst, StoredMut::Halves(..)));
            match dst {
                StoredMut::Halves(dst, _) if is_sparse => {
                    begin_bits(dst, base, start);
                    with_values(&mut |values| self.add(dst, (first, true), values, None, add_to_bits))
                }
                // While a row is loaded from memory, the row before it is added to: up to a fourth less time.
                StoredMut::Plain(dst) if base.is_some() && self.visits_rows() => {
                    let begin = |row: &mut [C], at: usize| begin(row, base, start + at);
                    with_values(&mut |values| self.add(dst, (first, false), values, Some(&begin), add_to))
                }
                dst => scratch::reals_mut(dst, |dst| {
                    begin(dst, base, start);
                    with_values(&mut |values| self.add(dst, (first, rounds), values, None, add_to))
                }),
            }
        })
    }
}

/// The work of [`index_add`].
struct AddRows<'a> {
    row_len: usize,
    /// Elements of the destination for each index of the dimensions outside.
    slab_len: usize,
    index: &'a [i64],
}

/// The shortest rows, in elements, that are sorted by their destination and read one by one.
const LONG_ROW: usize = 16;

impl Summing for AddRows<'_> {
    fn sum<C: Num>(
        self,
        dst: StoredMut<'_, C>,
        src: Source<'_, C>,
        base: Option<Stored<'_, C>>,
        adding: impl Adding<C>,
    ) -> Result<()> {
        let added = self.index.len() * self.row_len; // elements per slab
        if dst.len() == self.slab_len && self.row_len >= LONG_ROW && added.max(self.slab_len) > 2 * CHUNK {
            return self.sum_in_bands(dst, &src, base, adding);
        }
        let chunk_slabs = (chunk_len(&dst) / self.slab_len.max(added)).max(1);
        dst.try_for_each_chunk(chunk_slabs * self.slab_len, &|i, dst| {
            scratch::reals_mut(dst, |dst| {
                let mut buffer = [C::ZERO; PIECE];
                begin(dst, base, i * chunk_slabs * self.slab_len);
                for (k, slab) in dst.chunks_exact_mut(self.slab_len).enumerate() {
                    self.add_slab(slab, &src, (i * chunk_slabs + k) * added, &mut buffer, adding);
                }
                Ok(())
            })
        })
    }
}

impl AddRows<'_> {
    /// Adds the elements from number `first` on to a slab.
    #[inline]
    fn add_slab<C: Num>(
        &self,
        slab: &mut [C],
        src: &Source<'_, C>,
        first: usize,
        buffer: &mut [C],
        adding: impl Adding<C>,
    ) {
        if self.row_len >= LONG_ROW {
            for (j, &row) in self.index.iter().enumerate() {
                let row = &mut slab[row as usize * self.row_len..][..self.row_len];
                add_row(row, src, first + j * self.row_len, buffer, adding);
            }
            return;
        }
        let rows = PIECE / self.row_len;
        if self.row_len == 1 {
            for (n, index) in self.index.chunks(rows).enumerate() {
                let values = src.part(first + n * rows, index.len(), buffer);
                for (&j, &value) in zip(index, values) {
                    let dst = &mut slab[j as usize];
                    *dst = adding.plus_one(*dst, value);
                }
            }
            return;
        }
        for (n, index) in self.index.chunks(rows).enumerate() {
            let values = src.part(first + n * rows * self.row_len, index.len() * self.row_len, buffer);
            for (&j, values) in zip(index, values.chunks_exact(self.row_len)) {
                let row = &mut slab[j as usize * self.row_len..][..self.row_len];
                zip(&mut row[..], values).for_each(|(dst, &value)| *dst = adding.plus(*dst, value));
            }
        }
    }

    /// Adds to a single slab of long rows. Bands of its rows are independent once the sources are sorted by band.
    fn sum_in_bands<C: Num>(
        &self,
        dst: StoredMut<'_, C>,
        src: &Source<'_, C>,
        base: Option<Stored<'_, C>>,
        adding: impl Adding<C>,
    ) -> Result<()> {
        let band = (CHUNK / self.row_len).max(1);
        let n_bands = (dst.len() / self.row_len).div_ceil(band);
        scratch::with(n_bands + 1 + self.index.len(), |buffer: &mut [usize]| {
            let (ends, order) = buffer.split_at_mut(n_bands + 1);
            self.sort_by_band(band, ends, order);
            dst.try_for_each_chunk(band * self.row_len, &|i, dst| {
                scratch::reals_mut(dst, |dst| {
                    let mut buffer = [C::ZERO; PIECE];
                    begin(dst, base, i * band * self.row_len);
                    for &j in &order[ends[i]..ends[i + 1]] {
                        let row = self.index[j] as usize - i * band;
                        let row = &mut dst[row * self.row_len..][..self.row_len];
                        add_row(row, src, j * self.row_len, &mut buffer, adding);
                    }
                    Ok(())
                })
            })
        })
    }

    /// Sorts the numbers of the sources by band, and keeps their order within a band. Those of band number `i` are at
    /// `ends[i]..ends[i + 1]` of `order`.
    fn sort_by_band(&self, band: usize, ends: &mut [usize], order: &mut [usize]) {
        ends.set_to(0);
        self.index.iter().for_each(|&row| ends[row as usize / band] += 1);
        let mut start = 0;
        for end in &mut *ends {
            (*end, start) = (start, start + *end);
        }
        for (j, &row) in self.index.iter().enumerate() {
            let next = &mut ends[row as usize / band];
            order[*next] = j;
            *next += 1;
        }
        ends.rotate_right(1); // each band ends where the next begins
        ends[0] = 0;
    }
}

/// Adds elements of the source, from number `start` on, to all elements of the row.
#[inline]
fn add_row<C: Num>(row: &mut [C], src: &Source<'_, C>, start: usize, buffer: &mut [C], adding: impl Adding<C>) {
    for (n, row) in row.chunks_mut(PIECE).enumerate() {
        let values = src.part(start + n * PIECE, row.len(), buffer);
        simd::vectorized(inlined!(
            || zip(&mut row[..], values).for_each(|(dst, &value)| *dst = adding.plus(*dst, value))
        ));
    }
}

/// The strides, but 0 along `dim`.
pub(super) fn without(dim: usize, strides: &[usize]) -> [usize; MAX_RANK] {
    let mut others = [0; MAX_RANK];
    others[..strides.len()].copy_from(strides);
    if let Some(stride) = others.get_mut(dim) {
        *stride = 0;
    }
    others
}
