//! Writing at places that an index tensor names, over what is there.

use super::index::without;
use super::sides::{Lines, Sides};
use super::walk::contiguous_strides;
use super::{CHUNK, CpuView, MAX_RANK, Value};
use crate::parallel::for_each_chunk_mut;

/// `dst[i, …, index[i, …, k, …], …] = combine(that, src[i, …, k, …])`, in row-major order of the source along each line.
///
/// `dst` is contiguous with shape `dst_shape`. `src` and `index` have the same shape, at most `dst_shape` in every dimension
/// but `dim`. The caller checked the index; one that is out of range panics, or touches another element of `dst`.
pub(crate) fn scatter<T: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dim: usize,
    index: CpuView<'_, i64>,
    src: CpuView<'_, T>,
    combine: impl Fn(T, T) -> T + Sync,
) {
    if dst.is_empty() || index.shape.contains(&0) {
        return;
    }
    let strides = contiguous_strides(dst_shape);
    let (base, stride) = (without(dim, &strides), strides.get(dim).copied().unwrap_or(0));
    // The outermost dimension cuts all tensors alike, unless it is the one that the index names.
    let (rows, src_rows) = if dim == 0 { (1, 1) } else { (dst_shape[0], index.shape[0]) };
    let row_len = dst.len() / rows;
    let chunk_rows = (CHUNK / row_len).max(1);
    let (numbers, values) = (index.data.plain(), src.data.plain());
    for_each_chunk_mut(dst, chunk_rows * row_len, |i, dst| {
        let first = i * chunk_rows;
        let n = (dst.len() / row_len).min(src_rows.saturating_sub(first));
        if n == 0 {
            return;
        }
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..index.shape.len()];
        shape.copy_from_slice(index.shape);
        let from = |strides: &[usize]| if dim == 0 { 0 } else { first * strides[0] };
        if dim != 0 {
            shape[0] = n;
        }
        let (numbers, values) = (&numbers[from(index.strides)..], &values[from(src.strides)..]);
        let sides = Sides::of(shape, [index.strides, src.strides, &base]);
        sides.each(|lines| write(lines, dst, (numbers, stride), values, &combine));
    });
}

/// Lines of the index, of the source, and of where they go without what the index says.
#[inline]
fn write<T: Value>(
    lines: Lines<3>,
    dst: &mut [T],
    (numbers, stride): (&[i64], usize),
    values: &[T],
    combine: impl Fn(T, T) -> T,
) {
    for line in 0..lines.count {
        let [mut at, mut value, mut to] = lines.beginnings(line);
        let [index_step, value_step, step] = lines.steps;
        for _ in 0..lines.len {
            let place = &mut dst[to + numbers[at] as usize * stride];
            *place = combine(*place, values[value]);
            (at, value, to) = (at + index_step, value + value_step, to + step);
        }
    }
}
