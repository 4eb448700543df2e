//! Pooling kernels over `[planes, height, width]`; plain loops until faster ones replace them.

use crate::element::Float;

pub(crate) struct PoolDims {
    pub(crate) planes: usize,
    pub(crate) in_size: [usize; 2],
    pub(crate) out_size: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
}

/// The pixels of window `i` of an axis that lie inside the image.
fn window(d: &PoolDims, axis: usize, i: usize) -> std::ops::Range<usize> {
    let start = i * d.stride[axis];
    let end = (start + d.kernel[axis]).min(d.in_size[axis] + d.padding[axis]);
    start.saturating_sub(d.padding[axis])..end.saturating_sub(d.padding[axis])
}

pub(crate) fn max_positions<T: Float>(d: &PoolDims, x: &[T], out: &mut [i64]) {
    let (in_len, out_len) = (d.in_size[0] * d.in_size[1], d.out_size[0] * d.out_size[1]);
    for plane in 0..d.planes {
        for i in 0..d.out_size[0] {
            for j in 0..d.out_size[1] {
                let (mut best, mut at) = (T::LOWEST, usize::MAX);
                for y in window(d, 0, i) {
                    for z in window(d, 1, j) {
                        let value = x[plane * in_len + y * d.in_size[1] + z];
                        if at == usize::MAX || value > best || (value.is_nan() && !best.is_nan()) {
                            (best, at) = (value, y * d.in_size[1] + z);
                        }
                    }
                }
                out[plane * out_len + i * d.out_size[1] + j] = at as i64;
            }
        }
    }
}

pub(crate) fn max<T: Float>(d: &PoolDims, x: &[T], out: &mut [T]) {
    let mut positions = vec![0; out.len()];
    max_positions(d, x, &mut positions);
    let (in_len, out_len) = (d.in_size[0] * d.in_size[1], d.out_size[0] * d.out_size[1]);
    for (i, (out, at)) in out.iter_mut().zip(positions).enumerate() {
        *out = x[i / out_len * in_len + at as usize];
    }
}

fn averages<T: Float>(
    planes: usize,
    [in_h, in_w]: [usize; 2],
    [out_h, out_w]: [usize; 2],
    mut each: impl FnMut(usize, usize, std::ops::Range<usize>, std::ops::Range<usize>),
    rows: impl Fn(usize) -> std::ops::Range<usize>,
    columns: impl Fn(usize) -> std::ops::Range<usize>,
) {
    let _ = std::marker::PhantomData::<T>;
    for plane in 0..planes {
        for i in 0..out_h {
            for j in 0..out_w {
                each(plane * in_h * in_w, plane * out_h * out_w + i * out_w + j, rows(i), columns(j));
            }
        }
    }
}

pub(crate) fn avg<T: Float>(d: &PoolDims, x: &[T], out: &mut [T]) {
    let scale = T::Real::ONE / <T::Real as crate::element::Element>::from_f64((d.kernel[0] * d.kernel[1]) as f64);
    averages::<T>(
        d.planes,
        d.in_size,
        d.out_size,
        |base, to, rows, columns| {
            let mut sum = T::Real::ZERO;
            rows.for_each(|y| columns.clone().for_each(|z| sum = sum + x[base + y * d.in_size[1] + z].to_real()));
            out[to] = T::from_real(sum * scale);
        },
        |i| window(d, 0, i),
        |j| window(d, 1, j),
    );
}

pub(crate) fn avg_grad<T: Float>(d: &PoolDims, grad: &[T], out: &mut [T]) {
    let scale = T::Real::ONE / <T::Real as crate::element::Element>::from_f64((d.kernel[0] * d.kernel[1]) as f64);
    out.fill(T::ZERO);
    averages::<T>(
        d.planes,
        d.in_size,
        d.out_size,
        |base, from, rows, columns| {
            rows.for_each(|y| {
                columns.clone().for_each(|z| {
                    let to = &mut out[base + y * d.in_size[1] + z];
                    *to = T::from_real(to.to_real() + grad[from].to_real() * scale);
                })
            });
        },
        |i| window(d, 0, i),
        |j| window(d, 1, j),
    );
}

fn adaptive(i: usize, size: usize, windows: usize) -> std::ops::Range<usize> {
    i * size / windows..((i + 1) * size).div_ceil(windows)
}

pub(crate) fn adaptive_avg<T: Float>(planes: usize, from: [usize; 2], to: [usize; 2], x: &[T], out: &mut [T]) {
    averages::<T>(
        planes,
        from,
        to,
        |base, at, rows, columns| {
            let count = <T::Real as crate::element::Element>::from_f64((rows.len() * columns.len()) as f64);
            let mut sum = T::Real::ZERO;
            rows.for_each(|y| columns.clone().for_each(|z| sum = sum + x[base + y * from[1] + z].to_real()));
            out[at] = T::from_real(sum / count);
        },
        |i| adaptive(i, from[0], to[0]),
        |j| adaptive(j, from[1], to[1]),
    );
}

pub(crate) fn adaptive_avg_grad<T: Float>(planes: usize, from: [usize; 2], to: [usize; 2], grad: &[T], out: &mut [T]) {
    out.fill(T::ZERO);
    averages::<T>(
        planes,
        from,
        to,
        |base, at, rows, columns| {
            let count = <T::Real as crate::element::Element>::from_f64((rows.len() * columns.len()) as f64);
            rows.for_each(|y| {
                columns.clone().for_each(|z| {
                    let to = &mut out[base + y * from[1] + z];
                    *to = T::from_real(to.to_real() + grad[at].to_real() / count);
                })
            });
        },
        |i| adaptive(i, from[0], to[0]),
        |j| adaptive(j, from[1], to[1]),
    );
}
use crate::element::Element;
