//! Where the largest element of each window is.

use pagelock_memory::Result;

use super::axis::Axis;
use super::task_planes;
use crate::cpu::Stored;
use crate::element::Real;
use crate::inlined::zip;
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
                scratch::with(columns.out_size(), |places: &mut [u32]| {
                    lanes::dispatch(|| {
                        for (x, out) in zip(x.chunks_exact(in_len), out.chunks_exact_mut(out_len)) {
                            plane(axes, x, (&mut *best, &mut *places), out);
                        }
                    });
                    Ok(())
                })
            })
        })
    })
}

/// Reads windows row by row. `best` has the largest elements so far, `places` how far they are from the start of the
/// windows' first row.
#[inline(always)]
fn plane<R: Real>([rows, columns]: [Axis; 2], x: &[R], (best, places): (&mut [R], &mut [u32]), out: &mut [i64]) {
    let Axis::Sliding { stride, .. } = columns else { unreachable!("only sliding windows have a largest") };
    let width = columns.in_size();
    for (i, out) in out.chunks_exact_mut(columns.out_size()).enumerate() {
        let (window, x) = (rows.window(i), &x[rows.window(i).start * width..]);
        for (j, (best, place)) in zip(&mut best[..], &mut *places).enumerate() {
            let at = columns.window(j).start;
            (*best, *place) = (x[at], at as u32);
        }
        for (y, tap) in (0..window.len()).flat_map(|y| columns.taps().map(move |tap| (y, tap))) {
            let (windows, first) = columns.tap(tap);
            let (best, places, at) = (&mut best[windows.clone()], &mut places[windows], y * width + first);
            match stride {
                1 => larger::<R, 1>(&x[at..], at as u32, best, places),
                2 => larger::<R, 2>(&x[at..], at as u32, best, places),
                _ => zip(&mut best[..], places).enumerate().for_each(|(j, (best, place))| {
                    let x = x[at + j * stride];
                    (*best, *place) =
                        if x > *best || x.is_nan() { (x, (at + j * stride) as u32) } else { (*best, *place) };
                }),
            }
        }
        zip(&mut out[..], &*places).for_each(|(out, &place)| *out = (window.start * width) as i64 + i64::from(place));
    }
}

/// Updates `best` and `places` by numbers that are `STEP` apart, the first of which is at place `at`.
#[inline(always)]
fn larger<R: Real, const STEP: usize>(x: &[R], at: u32, best: &mut [R], places: &mut [u32]) {
    let n = best.len();
    let (places, x) = (&mut places[..n], &x[..n.saturating_sub(1) * STEP + usize::from(n > 0)]);
    for j in 0..n {
        let number = x[j * STEP];
        let is_better = number > best[j] || number.is_nan();
        best[j] = if is_better { number } else { best[j] };
        places[j] = if is_better { at + (j * STEP) as u32 } else { places[j] };
    }
}
