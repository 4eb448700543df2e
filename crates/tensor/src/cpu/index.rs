//! Reading and adding at places that an index tensor names.
//!
//! Indices were checked against the dimension's size by the caller; one that was not makes these loops panic, or touch
//! another element of the same view. Where several sources add to one place they do so in row-major order of the source.

use super::walk::{Dims, Walk};
use super::{CHUNK, CpuView, Stored, StoredMut, Value, in_chunks};
use crate::element::Computing;
use crate::parallel::for_each_chunk_mut;

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
    if index.shape.is_empty() {
        out[0] = x.data.plain()[0];
        return;
    }
    let (data, places) = (x.data.plain(), Places::new(x.strides, dim, index));
    in_chunks(out, |start, chunk| {
        let mut rest = chunk.iter_mut();
        places.visit(start, rest.len(), |offset| {
            if let Some(out) = rest.next() {
                *out = data[offset];
            }
        });
    });
}

/// `dst[i, …, index[i, …, k, …], …] += src[i, …, k, …]`; halves are rounded after each addition, as in PyTorch.
///
/// `dst` is contiguous with shape `dst_shape`. `src` and `index` have the same shape, at most `dst_shape` in every
/// dimension but `dim`.
pub(crate) fn scatter_add<C: Computing>(
    dst: StoredMut<'_, C>,
    dst_shape: &[usize],
    dim: usize,
    index: CpuView<'_, i64>,
    src: CpuView<'_, C>,
) {
    match (dst, src.data) {
        (StoredMut::Halves(dst, half), Stored::Halves(bits, _)) => {
            let src = CpuView { data: bits.into(), shape: src.shape, strides: src.strides };
            scatter(dst, dst_shape, dim, index, src, |a, b| half.plus(a, b));
        }
        (dst, _) => scatter(dst.plain(), dst_shape, dim, index, src, C::plus),
    }
}

fn scatter<T: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dim: usize,
    index: CpuView<'_, i64>,
    src: CpuView<'_, T>,
    add: impl Fn(T, T) -> T + Sync + Copy,
) {
    let src_data = src.data.plain();
    if index.shape.contains(&0) {
        return;
    }
    if index.shape.is_empty() {
        dst[0] = add(dst[0], src_data[0]);
        return;
    }
    let strides = contiguous_strides(dst_shape);
    let strides = &strides[..dst_shape.len()];
    let places = Places::new(strides, dim, index);
    let src_dims = Dims::of(src.shape, src.strides);
    let add_part = |start: usize, len: usize, first_row: usize, dst: &mut [T]| {
        if src_dims.is_contiguous() {
            let mut values = src_data[start..].iter();
            return places.visit(start, len, |offset| {
                let dst = &mut dst[offset - first_row * strides[0]];
                values.next().into_iter().for_each(|&x| *dst = add(*dst, x));
            });
        }
        let mut values = Walk::starting_at(src_dims, start);
        places.visit(start, len, |offset| {
            let dst = &mut dst[offset - first_row * strides[0]];
            *dst = add(*dst, src_data[values.offset()]);
            values.advance(1);
        });
    };
    let len = index.shape.iter().product::<usize>();
    if dim == 0 || len <= CHUNK {
        return add_part(0, len, 0, dst);
    }
    // The outermost dimension cuts source and destination alike, so its rows are independent.
    let row_len = len / index.shape[0];
    let chunk_rows = (CHUNK / row_len).max(1);
    for_each_chunk_mut(&mut dst[..index.shape[0] * strides[0]], chunk_rows * strides[0], |i, dst| {
        let first_row = i * chunk_rows;
        add_part(first_row * row_len, dst.len() / strides[0] * row_len, first_row, dst);
    });
}

/// `dst[…, index[j], …] += src[…, j, …]`, with `j` at dimension `dim`; halves are rounded after each addition.
///
/// `dst` is contiguous with shape `dst_shape`; `src` has the same shape but for `dim`.
pub(crate) fn index_add<C: Computing>(
    dst: StoredMut<'_, C>,
    dst_shape: &[usize],
    dim: usize,
    index: &[i64],
    src: CpuView<'_, C>,
) {
    match (dst, src.data) {
        (StoredMut::Halves(dst, half), Stored::Halves(bits, _)) => {
            let src = CpuView { data: bits.into(), shape: src.shape, strides: src.strides };
            add_rows(dst, dst_shape, dim, index, src, |a, b| half.plus(a, b));
        }
        (dst, _) => add_rows(dst.plain(), dst_shape, dim, index, src, C::plus),
    }
}

fn add_rows<T: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dim: usize,
    index: &[i64],
    src: CpuView<'_, T>,
    add: impl Fn(T, T) -> T + Sync + Copy,
) {
    let src_data = src.data.plain();
    let slab_len: usize = dst_shape[dim..].iter().product();
    if slab_len == 0 || index.is_empty() {
        return;
    }
    let row_len = slab_len / dst_shape[dim];
    let outside = Dims::of(&src.shape[..dim], &src.strides[..dim]);
    let inside = Dims::of(&src.shape[dim + 1..], &src.strides[dim + 1..]);
    let add_slab = |number: usize, slab: &mut [T]| {
        let data = &src_data[outside.offset(number)..];
        for (j, &row) in index.iter().enumerate() {
            let row = &mut slab[row as usize * row_len..][..row_len];
            add_row(row, &data[j * src.strides[dim]..], inside, add);
        }
    };
    let chunk_slabs = (CHUNK / (index.len() * row_len)).max(1);
    for_each_chunk_mut(dst, chunk_slabs * slab_len, |i, slabs| {
        for (k, slab) in slabs.chunks_exact_mut(slab_len).enumerate() {
            add_slab(i * chunk_slabs + k, slab);
        }
    });
}

/// Adds the elements of `dims` to a contiguous row.
#[inline]
fn add_row<T: Value>(row: &mut [T], data: &[T], dims: Dims, add: impl Fn(T, T) -> T) {
    if let [dst] = row {
        *dst = add(*dst, data[0]);
        return;
    }
    if dims.is_contiguous() {
        return row.iter_mut().zip(data).for_each(|(dst, &x)| *dst = add(*dst, x));
    }
    let (line_len, stride) = dims.inner();
    let mut walk = Walk::starting_at(dims, 0);
    for line in row.chunks_exact_mut(line_len) {
        let data = &data[walk.offset()..];
        match stride {
            1 => line.iter_mut().zip(&data[..line_len]).for_each(|(dst, &x)| *dst = add(*dst, x)),
            _ => line.iter_mut().enumerate().for_each(|(i, dst)| *dst = add(*dst, data[i * stride])),
        }
        walk.advance(line_len);
    }
}

/// The strides of a contiguous tensor.
fn contiguous_strides(shape: &[usize]) -> [usize; super::MAX_RANK] {
    let mut strides = [1; super::MAX_RANK];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// The places that the elements of an index tensor name, in row-major order.
struct Places<'a> {
    index: &'a [i64],
    index_dims: Dims,
    /// The other side's distances for the index tensor's dimensions, without what the index says.
    base_dims: Dims,
    /// The other side's distance along the indexed dimension.
    stride: usize,
}

impl<'a> Places<'a> {
    fn new(strides: &[usize], dim: usize, index: CpuView<'a, i64>) -> Self {
        let base = strides.iter().enumerate().map(|(i, &stride)| if i == dim { 0 } else { stride });
        Places {
            index: index.data.plain(),
            index_dims: Dims::of(index.shape, index.strides),
            base_dims: Dims::merged(index.shape.iter().copied().zip(base)),
            stride: strides[dim],
        }
    }

    /// Calls `visit(offset)` for `len` elements from number `start` on.
    #[inline]
    fn visit(&self, start: usize, len: usize, mut visit: impl FnMut(usize)) {
        let mut index = Walk::starting_at(self.index_dims, start);
        let mut base = Walk::starting_at(self.base_dims, start);
        let (_, index_step) = self.index_dims.inner();
        let (_, base_step) = self.base_dims.inner();
        let mut left = len;
        while left > 0 {
            let run = index.run().min(base.run()).min(left);
            let line = &self.index[index.offset()..];
            for i in 0..run {
                visit(base.offset() + i * base_step + line[i * index_step] as usize * self.stride);
            }
            index.advance(run);
            base.advance(run);
            left -= run;
        }
    }
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
        let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
        let index_view = CpuView { data: index[..].into(), ..view(places) };
        scatter(&mut data, dst_shape, dim, index_view, places.view(), |a, b| 3 * (a % 1_000) + b);
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
        let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
        add_rows(&mut data, &dst_shape, dim, &index, src.view(), |a, b| 3 * (a % 1_000) + b);
        for (place, value) in src.indices().iter().zip(src.values()) {
            let target = &mut expected[dst.offset(&at(place, dim, index[place[dim]]))];
            *target = 3 * (*target % 1_000) + value;
        }
        assert_eq!(data, expected, "{dst_shape:?}, dim {dim}, {src:?}");
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
    #[should_panic(expected = "out of range")]
    fn an_index_that_was_not_checked_panics() {
        let x = Strided::contiguous(vec![4, 3]);
        index_select(x.view(), 0, &[4], &mut [0; 3]);
    }
}
