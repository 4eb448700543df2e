//! Reading and adding at places that an index tensor names.
//!
//! Indices were checked against the dimension's size by the caller; one that was not makes these loops panic, or touch
//! another element of the same view. Where several sources add to one place they do so in row-major order of the source.

use pagelock_memory::Result;

use super::math::half::{Half, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::sides::Sides;
use super::walk::{Dims, Walk, contiguous_strides};
use super::{CHUNK, CpuView, MAX_RANK, PIECE, Stored, StoredMut, Value, fill, simd};
use crate::element::Num;
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// `out[…, j, …] = x[…, index[j], …]`, with `j` at dimension `dim`; `out` is contiguous.
pub(crate) fn index_select<T: Value>(x: CpuView<'_, T>, dim: usize, index: &[i64], out: &mut [T]) {
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

/// What an index names along one dimension, for every place outside of it.
struct Rows<'a, T> {
    data: &'a [T],
    outside: Dims,
    stride: usize,
    inside: Dims,
    index: &'a [i64],
}

impl<T: Value> Rows<'_, T> {
    /// Copies whole rows, from number `start` on.
    fn copy(&self, start: usize, out: &mut [T]) {
        let row_len = self.inside.len();
        let (mut place, mut first, mut rest) = (start / self.index.len(), start % self.index.len(), out);
        while !rest.is_empty() {
            let n = (self.index.len() - first).min(rest.len() / row_len);
            let (some, others) = rest.split_at_mut(n * row_len);
            let rows = self.index[first..][..n].iter().map(|&index| index as usize * self.stride);
            self.copy_some(&self.data[self.outside.offset(place)..], rows, some);
            (place, first, rest) = (place + 1, 0, others);
        }
    }

    /// Copies the rows that begin at these offsets.
    #[inline]
    fn copy_some(&self, data: &[T], offsets: impl Iterator<Item = usize>, out: &mut [T]) {
        let row_len = self.inside.len();
        if row_len == 1 {
            out.iter_mut().zip(offsets).for_each(|(out, offset)| *out = data[offset]);
        } else if self.inside.is_contiguous() {
            let rows = out.chunks_exact_mut(row_len).zip(offsets);
            rows.for_each(|(row, offset)| row.copy_from_slice(&data[offset..][..row_len]));
        } else {
            let rows = out.chunks_exact_mut(row_len).zip(offsets);
            rows.for_each(|(row, offset)| Walk::starting_at(self.inside, 0).read(&data[offset..], row));
        }
    }
}

/// `out[i, …, k, …] = x[i, …, index[i, …, k, …], …]`: each element of `index` says where along `dim` to read.
///
/// `out` is contiguous and has the shape of `index`, which may be smaller than that of `x` in every dimension.
pub(crate) fn gather<T: Value>(x: CpuView<'_, T>, dim: usize, index: CpuView<'_, i64>, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    let (data, numbers) = (x.data.plain(), index.data.plain());
    let Some(&stride) = x.strides.get(dim) else {
        out[0] = data[0]; // a single number has no dimension
        return;
    };
    let (contiguous, base) = (contiguous_strides(index.shape), without(dim, x.strides));
    Sides::of(index.shape, [&contiguous, index.strides, &base]).in_parts(out, move |out, [_, index, base], sides| {
        // As locals, so that no store to `out` makes the loop read them again.
        let (data, numbers, stride) = (data, numbers, stride);
        sides.each(|lines| {
            for line in 0..lines.count {
                let [to, index_start, base_start] = lines.beginnings(line);
                let (out, [_, index_step, step]) = (&mut out[to..][..lines.len], lines.steps);
                let (numbers, mut base) = (&numbers[index + index_start..], base + base_start);
                let mut read = |out: &mut T, number: i64| {
                    *out = data[base + number as usize * stride];
                    base += step;
                };
                match index_step {
                    1 => out.iter_mut().zip(numbers).for_each(|(out, &j)| read(out, j)),
                    _ => out.iter_mut().enumerate().for_each(|(i, out)| read(out, numbers[i * index_step])),
                }
            }
        });
    });
}

/// `dst[i, …, index[i, …, k, …], …] += src[i, …, k, …]`, from zeros; halves are rounded after each addition, as in PyTorch.
///
/// `dst` is contiguous with shape `dst_shape`. `src` and `index` have the same shape, at most `dst_shape` in every
/// dimension but `dim`.
///
/// # Errors
/// The budget's refusal.
pub(crate) fn scatter_add<C: Num>(
    dst: StoredMut<'_, C>,
    dst_shape: &[usize],
    dim: usize,
    index: CpuView<'_, i64>,
    src: CpuView<'_, C>,
) -> Result<()> {
    let strides = contiguous_strides(dst_shape);
    let scatter = Scatter { dst_shape, dim, index, base: without(dim, &strides), stride: strides[dim] };
    summing(dst, src, scatter)
}

/// `dst[…, index[j], …] += src[…, j, …]`, with `j` at dimension `dim`, from zeros; halves are rounded after each addition.
///
/// `dst` is contiguous with shape `dst_shape`; `src` has the same shape but for `dim`.
///
/// # Errors
/// The budget's refusal.
pub(crate) fn index_add<C: Num>(
    dst: StoredMut<'_, C>,
    dst_shape: &[usize],
    dim: usize,
    index: &[i64],
    src: CpuView<'_, C>,
) -> Result<()> {
    let row_len = dst_shape[dim + 1..].iter().product();
    summing(dst, src, AddRows { row_len, slab_len: row_len * dst_shape[dim], index })
}

/// Adds the elements of a source to those of a contiguous destination, from zeros, in row-major order of the source.
trait Summing {
    fn sum<C: Num>(self, dst: StoredMut<'_, C>, src: Source<'_, C>, plus: impl Plus<C>) -> Result<()>;
}

/// `a + b`, as the elements are rounded.
trait Plus<C>: Fn(C, C) -> C + Sync + Copy {}

impl<C, F: Fn(C, C) -> C + Sync + Copy> Plus<C> for F {}

fn summing<C: Num>(mut dst: StoredMut<'_, C>, src: CpuView<'_, C>, how: impl Summing) -> Result<()> {
    if dst.len() == 0 || src.shape.contains(&0) {
        dst.fill(C::ZERO);
        return Ok(());
    }
    let dims = Dims::of(src.shape, src.strides);
    match (dst, src.data) {
        (StoredMut::Halves(dst, Half::F16), Stored::Halves(bits, half)) => {
            let src = Source { data: Stored::Halves(bits, half), dims };
            how.sum(StoredMut::Halves(dst, half), src, |a: f32, b: f32| rounded_to_f16(a + b))
        }
        (StoredMut::Halves(dst, Half::BF16), Stored::Halves(bits, half)) => {
            let src = Source { data: Stored::Halves(bits, half), dims };
            how.sum(StoredMut::Halves(dst, half), src, |a: f32, b: f32| bf16_to_f32(f32_to_bf16(a + b)))
        }
        (dst, data) => how.sum(dst, Source { data, dims }, C::plus),
    }
}

/// The nearest number that `f16` has.
#[inline(always)]
fn rounded_to_f16(x: f32) -> f32 {
    let bits = x.to_bits();
    let is_normal = (0x3880_0000..0x477f_e000).contains(&(bits & 0x7fff_ffff));
    let normal = f32::from_bits(bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff);
    if is_normal { normal } else { f16_to_f32(f32_to_f16(x)) }
}

/// What is added, in row-major order.
struct Source<'a, C> {
    data: Stored<'a, C>,
    dims: Dims,
}

impl<C: Num> Source<'_, C> {
    /// `len` elements from number `start` on: where they lie, or in `room`, which has at least as many.
    #[inline(always)]
    fn part<'r>(&'r self, start: usize, len: usize, room: &'r mut [C]) -> &'r [C] {
        if self.dims.is_contiguous() {
            return self.data.part(start, len).widened(room);
        }
        let room = &mut room[..len];
        Walk::starting_at(self.dims, start).read_widened(self.data, room);
        room
    }

    /// Calls `body` with any number of elements.
    fn with(&self, start: usize, len: usize, body: impl FnOnce(&[C])) -> Result<()> {
        match self.data {
            Stored::Plain(data) if self.dims.is_contiguous() => body(&data[start..][..len]),
            _ => scratch::with(len, |room| {
                body(self.part(start, len, room));
                Ok(())
            })?,
        }
        Ok(())
    }
}

/// [`scatter_add`].
struct Scatter<'a> {
    dst_shape: &'a [usize],
    dim: usize,
    index: CpuView<'a, i64>,
    /// The destination's distances, but 0 along `dim`.
    base: [usize; MAX_RANK],
    /// The destination's distance along `dim`.
    stride: usize,
}

impl Summing for Scatter<'_> {
    fn sum<C: Num>(self, dst: StoredMut<'_, C>, src: Source<'_, C>, plus: impl Plus<C>) -> Result<()> {
        // The outermost dimension cuts source and destination alike, unless it is the one that the index names.
        let (rows, src_rows) = match self.dim {
            0 => (1, 1),
            _ => (self.dst_shape[0], self.index.shape[0]),
        };
        let (row_len, src_row_len) = (dst.len() / rows, src.dims.len() / src_rows);
        let chunk_rows = (CHUNK / row_len.max(src_row_len)).max(1);
        dst.try_for_each_chunk(chunk_rows * row_len, &|i, dst| {
            scratch::reals_mut(dst, |dst| {
                fill(dst, C::ZERO);
                let first = i * chunk_rows;
                let n = (dst.len() / row_len).min(src_rows.saturating_sub(first));
                match n {
                    0 => Ok(()),
                    _ => src.with(first * src_row_len, n * src_row_len, |values| self.add(dst, first, values, plus)),
                }
            })
        })
    }
}

impl Scatter<'_> {
    /// Adds the values that belong to these rows of the destination, of which the first is that of row `first` of the index.
    fn add<C: Num>(&self, dst: &mut [C], first: usize, values: &[C], plus: impl Plus<C>) {
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..self.index.shape.len()];
        shape.copy_from_slice(self.index.shape);
        if let [rows, others @ ..] = shape {
            *rows = values.len() / others.iter().product::<usize>();
        }
        let stride = self.stride;
        let index = &self.index.data.plain()[first * self.index.strides.first().unwrap_or(&0)..];
        let mut rest = values;
        Sides::of(shape, [self.index.strides, &self.base]).each(|lines| {
            for line in 0..lines.count {
                let [index_start, mut base] = lines.beginnings(line);
                let (index, [index_step, step]) = (&index[index_start..], lines.steps);
                let (values, others) = rest.split_at(lines.len);
                rest = others;
                let mut add = |value: C, number: i64| {
                    let dst = &mut dst[base + number as usize * stride];
                    *dst = plus(*dst, value);
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

/// [`index_add`].
struct AddRows<'a> {
    row_len: usize,
    /// Elements of the destination per place of the dimensions outside.
    slab_len: usize,
    index: &'a [i64],
}

/// The shortest rows, in elements, that are sorted by their destination first.
const LONG_ROW: usize = 16;

impl Summing for AddRows<'_> {
    fn sum<C: Num>(self, dst: StoredMut<'_, C>, src: Source<'_, C>, plus: impl Plus<C>) -> Result<()> {
        let added = self.index.len() * self.row_len; // elements per slab
        if dst.len() == self.slab_len && self.row_len >= LONG_ROW && added.max(self.slab_len) > 2 * CHUNK {
            return self.sum_in_bands(dst, &src, plus);
        }
        let chunk_slabs = (CHUNK / self.slab_len.max(added)).max(1);
        dst.try_for_each_chunk(chunk_slabs * self.slab_len, &|i, dst| {
            scratch::reals_mut(dst, |dst| {
                let mut room = [C::ZERO; PIECE];
                fill(dst, C::ZERO);
                for (k, slab) in dst.chunks_exact_mut(self.slab_len).enumerate() {
                    self.add_slab(slab, &src, (i * chunk_slabs + k) * added, &mut room, plus);
                }
                Ok(())
            })
        })
    }
}

impl AddRows<'_> {
    /// Adds the elements from number `first` on to a slab.
    #[inline]
    fn add_slab<C: Num>(&self, slab: &mut [C], src: &Source<'_, C>, first: usize, room: &mut [C], plus: impl Plus<C>) {
        if self.row_len > 1 {
            for (j, &row) in self.index.iter().enumerate() {
                let row = &mut slab[row as usize * self.row_len..][..self.row_len];
                add_row(row, src, first + j * self.row_len, room, plus);
            }
            return;
        }
        for (n, index) in self.index.chunks(PIECE).enumerate() {
            let values = src.part(first + n * PIECE, index.len(), room);
            for (&j, &value) in index.iter().zip(values) {
                let dst = &mut slab[j as usize];
                *dst = plus(*dst, value);
            }
        }
    }

    /// A single slab of long rows: bands of its rows are independent, once it is known which sources belong to which.
    fn sum_in_bands<C: Num>(&self, dst: StoredMut<'_, C>, src: &Source<'_, C>, plus: impl Plus<C>) -> Result<()> {
        let band = (CHUNK / self.row_len).max(1);
        let n_bands = (dst.len() / self.row_len).div_ceil(band);
        scratch::with(n_bands + 1 + self.index.len(), |room: &mut [usize]| {
            let (ends, order) = room.split_at_mut(n_bands + 1);
            self.sort_by_band(band, ends, order);
            dst.try_for_each_chunk(band * self.row_len, &|i, dst| {
                scratch::reals_mut(dst, |dst| {
                    let mut room = [C::ZERO; PIECE];
                    fill(dst, C::ZERO);
                    for &j in &order[ends[i]..ends[i + 1]] {
                        let row = self.index[j] as usize - i * band;
                        let row = &mut dst[row * self.row_len..][..self.row_len];
                        add_row(row, src, j * self.row_len, &mut room, plus);
                    }
                    Ok(())
                })
            })
        })
    }

    /// Puts the numbers of the sources in the order of their bands, and in their own order within a band; those of band
    /// number `i` are `ends[i] .. ends[i + 1]`.
    fn sort_by_band(&self, band: usize, ends: &mut [usize], order: &mut [usize]) {
        ends.fill(0);
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
        ends.rotate_right(1); // each is where the next begins
        ends[0] = 0;
    }
}

/// Adds as many elements of the source as the row has, from number `start` on.
#[inline]
fn add_row<C: Num>(row: &mut [C], src: &Source<'_, C>, start: usize, room: &mut [C], plus: impl Plus<C>) {
    for (n, row) in row.chunks_mut(PIECE).enumerate() {
        let values = src.part(start + n * PIECE, row.len(), room);
        simd::vectorized(
            #[inline(always)]
            || row.iter_mut().zip(values).for_each(|(dst, &value)| *dst = plus(*dst, value)),
        );
    }
}

/// The strides, but 0 along `dim`.
fn without(dim: usize, strides: &[usize]) -> [usize; MAX_RANK] {
    let mut others = [0; MAX_RANK];
    others[..strides.len()].copy_from_slice(strides);
    if let Some(stride) = others.get_mut(dim) {
        *stride = 0;
    }
    others
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Strided, shape, strided};
    use super::*;

    /// A tensor of rank 1 to 5, a dimension, and another shape that is at most as large but for that dimension.
    fn indexed() -> impl Strategy<Value = (Strided, usize, Strided)> {
        let cases = (shape(), 0..5_usize, 1..40_usize, any::<u32>());
        let cases = cases.prop_filter("needs a dimension", |(shape, ..)| !shape.is_empty() && !shape.contains(&0));
        cases.prop_flat_map(|(shape, dim, count, seed)| {
            let dim = dim % shape.len();
            let smaller = |(i, &size): (usize, &usize)| 1 + (seed >> (4 * i)) as usize % size;
            let mut other: Vec<usize> = shape.iter().enumerate().map(smaller).collect();
            other[dim] = count;
            (strided(shape), Just(dim), strided(other))
        })
    }

    /// Values of `x` as indices below `size`.
    fn to_indices(x: &Strided, size: usize) -> Vec<i64> {
        x.data.iter().map(|&value| i64::from(value).rem_euclid(size as i64)).collect()
    }

    /// `index` with the entry at `dim` replaced.
    fn at(index: &[usize], dim: usize, value: i64) -> Vec<usize> {
        let mut index = index.to_vec();
        index[dim] = value as usize;
        index
    }

    fn check_select(x: &Strided, dim: usize, count: usize) {
        let index: Vec<i64> = (0..count).map(|j| (j * 7 % x.shape[dim]) as i64).collect();
        let mut shape = x.shape.clone();
        shape[dim] = count;
        let places = Strided::contiguous(shape);
        let mut out = vec![0; places.len()];
        index_select(x.view(), dim, &index, &mut out);
        for (place, out) in places.indices().iter().zip(out) {
            assert_eq!(out, x.data[x.offset(&at(place, dim, index[place[dim]]))], "{place:?} of {:?}", x.shape);
        }
    }

    fn check_gather(x: &Strided, dim: usize, places: &Strided) {
        let index = to_indices(places, x.shape[dim]);
        let mut out = vec![0; places.len()];
        gather(x.view(), dim, CpuView { data: index[..].into(), ..view(places) }, &mut out);
        for ((place, offset), out) in places.indices().iter().zip(places.offsets()).zip(out) {
            assert_eq!(out, x.data[x.offset(&at(place, dim, index[offset]))], "{place:?} of {:?}", x.shape);
        }
    }

    fn check_scatter(dst_shape: &[usize], dim: usize, places: &Strided) {
        let dst = Strided::contiguous(dst_shape.to_vec());
        let index = to_indices(places, dst_shape[dim]);
        let (mut data, mut expected) = (dst.data.clone(), vec![0; dst.len()]);
        let (index_view, strides) = (CpuView { data: index[..].into(), ..view(places) }, contiguous_strides(dst_shape));
        let scatter = Scatter { dst_shape, dim, index: index_view, base: without(dim, &strides), stride: strides[dim] };
        scatter.sum((&mut data[..]).into(), source(places), |a, b| 3 * (a % 1_000) + b).unwrap();
        for (place, offset) in places.indices().iter().zip(places.offsets()) {
            let target = &mut expected[dst.offset(&at(place, dim, index[offset]))];
            *target = 3 * (*target % 1_000) + places.data[offset];
        }
        assert_eq!(data, expected, "{dst_shape:?}, dim {dim}, {places:?}");
    }

    fn check_index_add(src: &Strided, dim: usize, size: usize) {
        let index: Vec<i64> = (0..src.shape[dim]).map(|j| (j * 7 % size) as i64).collect();
        let mut dst_shape = src.shape.clone();
        dst_shape[dim] = size;
        let dst = Strided::contiguous(dst_shape.clone());
        let (mut data, mut expected) = (dst.data.clone(), vec![0; dst.len()]);
        let row_len = dst_shape[dim + 1..].iter().product();
        let rows = AddRows { row_len, slab_len: row_len * size, index: &index };
        rows.sum((&mut data[..]).into(), source(src), |a, b| 3 * (a % 1_000) + b).unwrap();
        for (place, value) in src.indices().iter().zip(src.values()) {
            let target = &mut expected[dst.offset(&at(place, dim, index[place[dim]]))];
            *target = 3 * (*target % 1_000) + value;
        }
        assert_eq!(data, expected, "{dst_shape:?}, dim {dim}, {src:?}");
    }

    fn source(x: &Strided) -> Source<'_, i32> {
        Source { data: x.data[..].into(), dims: Dims::of(&x.shape, &x.strides) }
    }

    fn view(places: &Strided) -> CpuView<'_, i64> {
        CpuView { data: [][..].into(), shape: &places.shape, strides: &places.strides }
    }

    proptest! {
        #[test]
        fn index_select_matches_index_arithmetic((x, dim, other) in indexed()) {
            check_select(&x, dim, other.shape[dim]);
        }

        #[test]
        fn gather_matches_index_arithmetic((x, dim, places) in indexed()) {
            check_gather(&x, dim, &places);
        }

        #[test]
        fn scatter_add_matches_index_arithmetic_in_row_major_order((x, dim, places) in indexed()) {
            check_scatter(&x.shape, dim, &places);
        }

        #[test]
        fn index_add_matches_index_arithmetic_in_row_major_order((x, dim, other) in indexed()) {
            check_index_add(&x, dim, other.shape[dim]);
        }
    }

    #[test]
    fn all_match_index_arithmetic_beyond_one_chunk() {
        let x = Strided::contiguous(vec![300, 200]);
        let places = Strided::new(vec![300, 190], vec![1, 300]);
        for dim in 0..2 {
            check_select(&x, dim, 250);
            check_gather(&Strided::contiguous(vec![300, 300]), dim, &places);
            check_scatter(&[300, 200], dim, &places);
            check_index_add(&x, dim, 50);
        }
    }

    #[test]
    fn long_rows_are_added_in_several_bands() {
        check_index_add(&Strided::contiguous(vec![300, 200]), 0, 500);
        check_index_add(&Strided::new(vec![300, 200], vec![1, 300]), 0, 500);
    }

    #[test]
    fn numbers_are_rounded_to_f16_as_its_conversions_do() {
        for bits in (0..=u32::MAX).step_by(1_021) {
            let x = f32::from_bits(bits);
            let (rounded, expected) = (rounded_to_f16(x), f16_to_f32(f32_to_f16(x)));
            assert!(rounded.to_bits() == expected.to_bits() || x.is_nan() && rounded.is_nan(), "{x}");
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn an_index_that_was_not_checked_panics() {
        let x = Strided::contiguous(vec![4, 3]);
        index_select(x.view(), 0, &[4], &mut [0; 3]);
    }
}
