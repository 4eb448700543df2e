//! Where the largest element of each window is.

use pagelock_memory::Result;

use super::axis::Axis;
use super::task_planes;
use crate::cpu::Stored;
use crate::element::Real;
use crate::lanes;
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;

/// Writes the place in its plane of each (sliding) window's largest element.
pub(super) fn run<R: Real>(axes: [Axis; 2], x: Stored<'_, R>, out: &mut [i64]) -> Result<()> {
    let [rows, columns] = axes;
    let (in_len, out_len) = (rows.in_size() * columns.in_size(), rows.out_size() * columns.out_size());
    let planes = task_planes(in_len);
    try_for_each_chunk_mut(out, planes * out_len, |task, out| {
        let x = x.part(task * planes * in_len, out.len() / out_len * in_len);
        scratch::reals(x, |x| {
            scratch::with(columns.out_size(), |best| {
                lanes::dispatch(|| {
                    for (x, out) in x.chunks_exact(in_len).zip(out.chunks_exact_mut(out_len)) {
                        plane(axes, x, best, out);
                    }
                });
                Ok(())
            })
        })
    })
}

/// Row by row of windows: `best` has the largest elements so far, `out` their places.
#[inline(always)]
fn plane<R: Real>([rows, columns]: [Axis; 2], x: &[R], best: &mut [R], out: &mut [i64]) {
    let Axis::Sliding { kernel, stride, .. } = columns else { unreachable!("only sliding windows have a largest") };
    let width = columns.in_size();
    for (i, out) in out.chunks_exact_mut(columns.out_size()).enumerate() {
        let window = rows.window(i);
        for (j, (best, out)) in best.iter_mut().zip(&mut *out).enumerate() {
            let at = window.start * width + columns.window(j).start;
            (*best, *out) = (x[at], at as i64);
        }
        for (y, tap) in window.flat_map(|y| (0..kernel).map(move |tap| (y, tap))) {
            let (windows, first) = columns.tap(tap);
            let places = (y * width + first..).step_by(stride);
            for ((best, out), at) in best[windows.clone()].iter_mut().zip(&mut out[windows]).zip(places) {
                let better = x[at] > *best || x[at].is_nan();
                *best = if better { x[at] } else { *best };
                *out = if better { at as i64 } else { *out };
            }
        }
    }
}
