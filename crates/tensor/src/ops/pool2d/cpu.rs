//! Pooling kernels over contiguous `[planes, height, width]`.
//!
//! Windows are separable: the rows of a window are first combined into one line of pixels, in vectors, then the
//! columns of the line, tap by tap. Gradients go the other way. The pixels of a tap or a window are computed per axis
//! and line, never per element. The half types are computed in `f32`.

mod axis;
mod positions;
#[cfg(test)]
mod tests;

use axis::{Axis, for_each_stepped};
use bytemuck::Pod;
use pagelock_memory::Result;

use crate::cpu::{self, CpuView, Stored, StoredMut};
use crate::element::Real;
use crate::inlined::{Array, Slice, zip};
use crate::lanes;
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// Pixels that make a task worth handing out: some ten microseconds.
const TASK_PIXELS: usize = 16 << 10;

/// The sizes of a pooling. The caller that makes one has checked that they fit each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolDims {
    pub(crate) planes: usize,
    pub(crate) in_size: [usize; 2],
    pub(crate) out_size: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
}

impl PoolDims {
    fn axes(&self) -> [Axis; 2] {
        Windows::Sliding(*self).axes()
    }
}

/// Sliding windows, or adaptive ones: as many as the second size says, which cover planes of the first size.
#[derive(Clone, Copy)]
pub(crate) enum Windows {
    Sliding(PoolDims),
    Adaptive([usize; 2], [usize; 2]),
}

impl Windows {
    fn axes(&self) -> [Axis; 2] {
        [0, 1].mapped(|axis| match self {
            Windows::Sliding(d) => Axis::Sliding {
                in_size: d.in_size[axis],
                out_size: d.out_size[axis],
                kernel: d.kernel[axis],
                stride: d.stride[axis],
                padding: d.padding[axis],
            },
            Windows::Adaptive(from, to) => Axis::Adaptive { in_size: from[axis], out_size: to[axis] },
        })
    }

    /// Pixels per window, those in the padding included, if it is the same for all windows.
    pub(super) fn area(&self) -> Option<usize> {
        match self {
            Windows::Sliding(d) => Some(d.kernel[0].saturating_mul(d.kernel[1])),
            Windows::Adaptive(..) => None,
        }
    }
}

/// The largest element of each window; NaN if there is one.
pub(crate) fn max<R: Real>(d: &PoolDims, x: Stored<'_, R>, out: StoredMut<'_, R>) -> Result<()> {
    debug_assert_eq!(out.len(), d.planes * d.out_size[0] * d.out_size[1]);
    pool(d.axes(), Max, x, out)
}

/// Where in its plane the largest element of each window is: the first of equals, the last NaN if there is one.
pub(crate) fn max_positions<R: Real>(d: &PoolDims, x: Stored<'_, R>, out: &mut [i64]) -> Result<()> {
    positions::run(d.axes(), x, out)
}

/// Fills `out` with zeros, and writes the number of each window at its place in its plane. A plane has `bands` of
/// `pixels`; a band has the pixels of a row of `windows`.
pub(crate) fn place_largest<B: Pod + Send + Sync>(
    [bands, pixels]: [usize; 2],
    windows: usize,
    numbers: &[B],
    places: &[i64],
    out: &mut [B],
) {
    let per_task = TASK_PIXELS.div_ceil(pixels);
    for_each_chunk_mut(out, per_task * pixels, |task, out| {
        out.set_to(B::zeroed());
        for (i, out) in out.chunks_exact_mut(pixels).enumerate() {
            let band = task * per_task + i;
            let (first, of_band) = (band % bands * pixels, band * windows..(band + 1) * windows);
            for (&number, &place) in zip(&numbers[of_band.clone()], &places[of_band]) {
                out[place as usize - first] = number;
            }
        }
    });
}

/// The average of each window; padding counts as zeros. A whole plane is averaged as `mean` does, which adds many
/// pixels precisely.
pub(crate) fn average<R: Real>(windows: &Windows, x: Stored<'_, R>, out: StoredMut<'_, R>) -> Result<()> {
    let (axes, area) = (windows.axes(), windows.area());
    if let Some(pixels) = whole_plane(axes) {
        debug_assert_eq!(x.len(), out.len() * pixels);
        let planes = CpuView { data: x, shape: &[out.len(), pixels], strides: &[pixels, 1] };
        cpu::mean(planes, 0b10, area.unwrap_or(pixels) as f64, out);
        return Ok(());
    }
    pool(axes, Mean { area }, x, out)
}

/// How the pixels of a window are combined.
trait Combine: Copy + Sync {
    /// The result of no pixels.
    fn identity<R: Real>(self) -> R;
    fn apply<R: Real>(self, a: R, b: R) -> R;
    /// The result, from the combined pixels and their number.
    fn finish<R: Real>(self, all: R, pixels: usize) -> R;
}

#[derive(Clone, Copy)]
struct Max;

impl Combine for Max {
    fn identity<R: Real>(self) -> R {
        R::LOWEST
    }
    #[inline(always)]
    fn apply<R: Real>(self, a: R, b: R) -> R {
        if b > a || b.is_nan() { b } else { a }
    }
    #[inline(always)]
    fn finish<R: Real>(self, all: R, _: usize) -> R {
        all
    }
}

/// The sum over `area`, or over the number of pixels.
#[derive(Clone, Copy)]
struct Mean {
    area: Option<usize>,
}

impl Combine for Mean {
    fn identity<R: Real>(self) -> R {
        R::ZERO
    }
    #[inline(always)]
    fn apply<R: Real>(self, a: R, b: R) -> R {
        a + b
    }
    #[inline(always)]
    fn finish<R: Real>(self, all: R, pixels: usize) -> R {
        all / R::from_f64(self.area.unwrap_or(pixels) as f64)
    }
}

/// The pixels of a plane that is a single window.
fn whole_plane(axes: [Axis; 2]) -> Option<usize> {
    let is_whole = axes.iter().all(|axis| axis.out_size() == 1 && axis.window(0) == (0..axis.in_size()));
    is_whole.then(|| axes[0].in_size() * axes[1].in_size())
}

/// A plane that is a single window becomes one line, which takes fewer steps. Other windows stay as they are.
fn merged(axes: [Axis; 2]) -> [Axis; 2] {
    whole_plane(axes).map_or(axes, |pixels| [1, pixels].mapped(|in_size| Axis::Adaptive { in_size, out_size: 1 }))
}

/// The number of planes per task.
fn task_planes(in_len: usize) -> usize {
    TASK_PIXELS.div_ceil(in_len.max(1))
}

/// Combines the pixels of each window.
fn pool<R: Real>(axes: [Axis; 2], combine: impl Combine, x: Stored<'_, R>, out: StoredMut<'_, R>) -> Result<()> {
    let axes = merged(axes);
    let (in_len, out_len) = (axes[0].in_size() * axes[1].in_size(), axes[0].out_size() * axes[1].out_size());
    let planes = task_planes(in_len);
    in_tasks(planes, (x, in_len), (out, out_len), |x, out| {
        scratch::with(axes[1].in_size(), |line| {
            lanes::dispatch(|| {
                for (x, out) in zip(x.chunks_exact(in_len), out.chunks_exact_mut(out_len)) {
                    pool_plane(axes, combine, x, line, out);
                }
            });
            Ok(())
        })
    })
}

/// Calls `task` with the numbers of `planes` planes at a time, for all of `x` and `out`; a plane has `x_len` and
/// `out_len` numbers.
fn in_tasks<R: Real>(
    planes: usize,
    (x, x_len): (Stored<'_, R>, usize),
    (out, out_len): (StoredMut<'_, R>, usize),
    task: impl Fn(&[R], &mut [R]) -> Result<()> + Sync,
) -> Result<()> {
    debug_assert_eq!(x.len() * out_len, out.len() * x_len);
    out.try_for_each_chunk(planes * out_len, &|i, out| {
        let x = x.part(i * planes * x_len, out.len() / out_len.max(1) * x_len);
        scratch::reals(x, |x| scratch::reals_mut(out, |out| task(x, out)))
    })
}

#[inline(always)]
fn pool_plane<R: Real>([rows, columns]: [Axis; 2], combine: impl Combine, x: &[R], line: &mut [R], out: &mut [R]) {
    let width = columns.in_size();
    for (i, out) in out.chunks_exact_mut(columns.out_size()).enumerate() {
        let window = rows.window(i);
        let (first, height) = (&x[window.start * width..][..width], window.len());
        if height == 1 {
            pool_line(columns, combine, first, out, 1);
            continue;
        }
        line.copy_from(first);
        for y in window.skip(1) {
            zip(&mut line[..], &x[y * width..]).for_each(|(line, &x)| *line = combine.apply(*line, x));
        }
        pool_line(columns, combine, line, out, height);
    }
}

/// Combines the columns of a line, in which `height` rows are combined already.
#[inline(always)]
fn pool_line<R: Real>(columns: Axis, combine: impl Combine, line: &[R], out: &mut [R], height: usize) {
    if let Axis::Sliding { stride, .. } = columns {
        out.set_to(combine.identity());
        for tap in columns.taps() {
            let (windows, first) = columns.tap(tap);
            for_each_stepped(stride, &mut out[windows], &line[first..], |out, &x| *out = combine.apply(*out, x));
        }
        out.iter_mut().for_each(|out| *out = combine.finish(*out, 0));
        return;
    }
    for (j, out) in out.iter_mut().enumerate() {
        let window = columns.window(j);
        let pixels = height * window.len();
        *out = combine.finish(fold(combine, &line[window]), pixels);
    }
}

/// Combines numbers in eight lanes, and the lanes in pairs.
#[inline(always)]
fn fold<R: Real>(combine: impl Combine, numbers: &[R]) -> R {
    let mut lanes = [combine.identity(); 8];
    let (chunks, rest) = numbers.as_chunks::<8>();
    for chunk in chunks {
        zip(&mut lanes[..], chunk).for_each(|(lane, &x)| *lane = combine.apply(*lane, x));
    }
    zip(&mut lanes[..], rest).for_each(|(lane, &x)| *lane = combine.apply(*lane, x));
    let half = |i: usize| combine.apply(lanes[i], lanes[i + 4]);
    combine.apply(combine.apply(half(0), half(2)), combine.apply(half(1), half(3)))
}

/// Adds to each pixel of a window its share of the window's gradient: the derivative of [`average`] by its input.
pub(crate) fn spread<R: Real>(windows: &Windows, grad: Stored<'_, R>, out: StoredMut<'_, R>) -> Result<()> {
    let (axes, area) = (merged(windows.axes()), windows.area());
    let (in_len, out_len) = (axes[0].in_size() * axes[1].in_size(), axes[0].out_size() * axes[1].out_size());
    let planes = task_planes(in_len);
    in_tasks(planes, (grad, out_len), (out, in_len), |grad, out| {
        scratch::with(axes[1].in_size(), |line| {
            lanes::dispatch(|| {
                for (grad, out) in zip(grad.chunks_exact(out_len), out.chunks_exact_mut(in_len)) {
                    spread_plane(axes, area, grad, line, out);
                }
            });
            Ok(())
        })
    })
}

#[inline(always)]
fn spread_plane<R: Real>(axes: [Axis; 2], area: Option<usize>, grad: &[R], line: &mut [R], out: &mut [R]) {
    let [rows, columns] = axes;
    let width = columns.in_size();
    if let &[grad] = grad
        && rows.window(0).len() * columns.window(0).len() == out.len()
    {
        let part = grad / R::from_f64(area.unwrap_or(out.len()) as f64);
        return out.iter_mut().for_each(|out| *out = part);
    }
    out.set_to(R::ZERO);
    for (i, grad) in grad.chunks_exact(columns.out_size()).enumerate() {
        let window = rows.window(i);
        line.set_to(R::ZERO);
        for (j, &grad) in grad.iter().enumerate() {
            let columns = columns.window(j);
            let part = grad / R::from_f64(area.unwrap_or(window.len() * columns.len()) as f64);
            line[columns].iter_mut().for_each(|line| *line = *line + part);
        }
        for y in window {
            zip(&mut out[y * width..][..width], &*line).for_each(|(out, &line)| *out = *out + line);
        }
    }
}
