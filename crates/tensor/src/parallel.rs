//! Threads: how kernels share the cores.
//!
//! A kernel cuts its work into tasks by the size of the problem, so that results have the same bits for any number of
//! threads; [`run`] hands the tasks out. (The number of threads may decide only between cuts that give the same
//! bits.) The calling thread always works too, so a call never waits for a thread to wake: it runs all tasks that
//! nobody else has taken by then.
//!
//! The helpers are this module's own, not rayon's. Between two operations of a training step a helper is idle for
//! some ten microseconds, and waking a rayon worker after such a gap takes longer than the operation: forking and
//! joining two tasks of 20 µs after a gap of 20 to 1000 µs took 65 to 100 µs, while one after the other takes 40.
//!
//! Read `gate.rs` next, the protocol by which helpers enter and leave a job, then `pool.rs`.
//! Unsafe: one dereference in `pool.rs`, the slices of [`for_each_chunk_mut`] and the elements of [`Columns`].

mod gate;
mod pool;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result};

/// 0 until it is set, or first needed.
static NUM_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads kernels use, the calling one included; 0 means 1. Results do not depend on it.
///
/// # Examples
/// ```
/// pagelock_tensor::set_num_threads(1);
/// assert_eq!(pagelock_tensor::num_threads(), 1);
/// ```
pub fn set_num_threads(n: usize) {
    NUM_THREADS.store(n.clamp(1, pool::MAX_THREADS), Ordering::Relaxed);
}

/// How many threads kernels use: the number given to [`set_num_threads`], else `$PAGELOCK_NUM_THREADS`, else the
/// number of cores that this process may run on. If the variable is no number of threads, making the first tensor
/// returns an [`Error::Variable`].
pub fn num_threads() -> usize {
    // Relaxed: the number guards no other memory.
    match NUM_THREADS.load(Ordering::Relaxed) {
        0 => match threads_of_environment() {
            Ok(n) => {
                set_num_threads(n);
                NUM_THREADS.load(Ordering::Relaxed)
            }
            Err(_) => cores(), // not kept: `check` reports it
        },
        n => n,
    }
}

/// Returns an error if the variable is no number of threads, unless the program has set the number itself.
#[inline]
pub(crate) fn check() -> Result<()> {
    // Relaxed: the number guards no other memory.
    if NUM_THREADS.load(Ordering::Relaxed) != 0 { Ok(()) } else { threads_of_environment().map(set_num_threads) }
}

#[cold]
fn threads_of_environment() -> Result<usize> {
    let wanted = std::env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
    default_threads(wanted.as_deref())
}

const VARIABLE: &str = "PAGELOCK_NUM_THREADS";

/// The number in the variable; all cores if it is not set, or empty.
fn default_threads(wanted: Option<&str>) -> Result<usize> {
    let Some(text) = wanted.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(cores()) };
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::Variable {
            variable: VARIABLE,
            value: text.to_owned(),
            expected: "it must be 1 or more; unset it to use all cores",
        }),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `task(0)`, `task(1)`, … `task(n_tasks - 1)`, each once, on up to [`num_threads`] threads, and returns when all
/// are done.
///
/// Runs everything on the calling thread if there is one task or one thread, inside another task, and while another
/// thread is using the helpers. If a task panics, no new ones start, and the panic resumes in the caller once the
/// tasks that had started are done.
pub(crate) fn run(n_tasks: usize, task: impl Fn(usize) + Sync) {
    run_all(n_tasks, &task);
}

fn run_all(n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    let helpers = num_threads().min(n_tasks).saturating_sub(1);
    if helpers == 0 || !pool::run(n_tasks, helpers, task) {
        (0..n_tasks).for_each(task);
    }
}

/// Calls `f(i, chunk)` for every chunk of `chunk_len` elements of `out` (the last may be shorter); see [`run`].
pub(crate) fn for_each_chunk_mut<T: Send>(out: &mut [T], chunk_len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    each_chunk(out, chunk_len, &f);
}

/// [`for_each_chunk_mut`], compiled once for each type of elements.
fn each_chunk<T: Send>(out: &mut [T], chunk_len: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let whole = Shared { start: out.as_mut_ptr(), len: out.len() };
    run_all(whole.len.div_ceil(chunk_len.max(1)), &|i| {
        // SAFETY: `run` hands out each index once, so no other task has this chunk, and `out` is borrowed mutably
        // until `run` has returned. `T: Send`, so another thread may have it.
        let chunk = unsafe { whole.chunk(i * chunk_len, chunk_len) };
        f(i, chunk);
    });
}

/// As [`for_each_chunk_mut`], for chunks that may fail: returns one of the failures, after which no more chunks begin.
pub(crate) fn try_for_each_chunk_mut<T: Send, E: Send>(
    out: &mut [T],
    chunk_len: usize,
    f: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let has_failed = AtomicBool::new(false); // Relaxed: a hint
    let failure = Mutex::new(None);
    for_each_chunk_mut(out, chunk_len, |i, chunk| {
        if has_failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = f(i, chunk) {
            has_failed.store(true, Ordering::Relaxed);
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Calls `f(i, columns)` for every `width` columns (the last may be fewer) of the matrix with rows of `row_len`
/// elements; see [`run`].
pub(crate) fn for_each_columns_mut<T: Send>(
    matrix: &mut [T],
    row_len: usize,
    width: usize,
    f: impl Fn(usize, &mut Columns<'_, T>) + Sync,
) {
    let Some(rows) = matrix.len().checked_div(row_len) else { return };
    let (whole, width) = (Shared { start: matrix.as_mut_ptr(), len: matrix.len() }, width.max(1));
    run_all(row_len.div_ceil(width), &|i| {
        let first = i * width;
        let width = width.min(row_len - first);
        // The parts are disjoint: `run` hands out each index once.
        f(i, &mut Columns { whole: &whole, first, rows, row_len, width });
    });
}

/// Neighboring columns of a matrix, which no other task accesses.
pub(crate) struct Columns<'a, T> {
    whole: &'a Shared<T>,
    first: usize,
    rows: usize,
    row_len: usize,
    width: usize,
}

impl<T> Columns<'_, T> {
    /// How many columns there are.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// An element, if there is one.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, row: usize, column: usize) -> Option<&mut T> {
        if row >= self.rows || column >= self.width {
            return None;
        }
        // SAFETY: the row and the column are inside of the slice, which has `rows * row_len` elements and is borrowed until all
        // tasks are done.
        let element = unsafe { self.whole.start.add(row * self.row_len + self.first + column) };
        // SAFETY: no other task has these columns, and `self` is borrowed mutably for as long as the element is used.
        Some(unsafe { &mut *element })
    }

    /// These columns of a row, if the row exists.
    pub(crate) fn row_mut(&mut self, row: usize) -> Option<&mut [T]> {
        if row >= self.rows {
            return None;
        }
        // SAFETY: `width` columns from `first` on are inside of the row, which is inside of the slice; no other task has these
        // columns, and `self` is borrowed mutably for as long as the elements are used.
        Some(unsafe { self.whole.chunk(row * self.row_len + self.first, self.width) })
    }
}

/// A mutable slice whose disjoint parts go to different tasks.
struct Shared<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: all access is through `chunk`, whose caller promises that the parts are disjoint, and through `Columns`,
// which are disjoint. Parts move to other threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// At most `len` elements from `start` on.
    ///
    /// # Safety
    /// `start` is inside the slice, and no other part that is in use overlaps this one.
    #[allow(clippy::mut_from_ref)] // the caller answers for it
    unsafe fn chunk(&self, start: usize, len: usize) -> &mut [T] {
        let len = len.min(self.len - start);
        // SAFETY: `start` is inside the slice that `self` was made of (the caller's promise).
        let first = unsafe { self.start.add(start) };
        // SAFETY: `len` elements fit behind `start` (the line above), they are initialized and aligned, as they were a
        // slice, and nobody else uses them (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Tests share the thread count of the process; a lock keeps them from changing it under each other.
    pub(super) fn with_threads<R>(n: usize, body: impl FnOnce() -> R) -> R {
        static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one_at_a_time = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        set_num_threads(n);
        body()
    }

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 8] {
            with_threads(threads, || {
                for n_tasks in [0, 1, 2, 7, 1000] {
                    let calls: Vec<_> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();

                    run(n_tasks, |i| {
                        calls[i].fetch_add(1, Ordering::Relaxed);
                    });

                    assert!(calls.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{threads} threads, {n_tasks} tasks");
                }
            });
        }
    }

    #[test]
    fn many_short_calls_lose_no_task() {
        with_threads(4, || {
            let sum = AtomicUsize::new(0);
            for _ in 0..20_000 {
                run(3, |i| {
                    sum.fetch_add(i, Ordering::Relaxed);
                });
            }
            assert_eq!(sum.into_inner(), 60_000);
        });
    }

    #[test]
    fn chunks_cover_the_slice_in_order() {
        with_threads(2, || {
            let mut numbers = vec![0; 1003];

            for_each_chunk_mut(&mut numbers, 100, |i, chunk| chunk.fill(i));

            assert!(numbers.iter().enumerate().all(|(at, &i)| i == at / 100));
        });
    }

    #[test]
    fn columns_cover_the_matrix() {
        with_threads(2, || {
            for (rows, row_len, width) in [(7, 10, 3), (1, 5, 5), (4, 1, 1), (3, 8, 100)] {
                let mut numbers = vec![0; rows * row_len];
                for_each_columns_mut(&mut numbers, row_len, width, |i, columns| {
                    let width_here = columns.width();
                    for (row, column) in (0..rows).flat_map(|row| (0..width_here).map(move |column| (row, column))) {
                        *columns.get_mut(row, column).unwrap() += i * width + column + 1;
                    }
                });
                assert!(numbers.iter().enumerate().all(|(at, &number)| number == at % row_len + 1), "{numbers:?}");
            }
            for_each_columns_mut(&mut [0_u8; 0], 0, 1, |_, _| unreachable!("no columns"));
        });
    }

    #[test]
    fn other_columns_are_out_of_reach() {
        for_each_columns_mut(&mut [0; 12], 4, 2, |_, columns| {
            assert!(columns.get_mut(2, 1).is_some());
            assert!(columns.get_mut(2, 2).is_none() && columns.get_mut(3, 0).is_none());
            assert!(columns.row_mut(2).is_some_and(|row| row.len() == 2));
            assert!(columns.row_mut(3).is_none());
        });
    }

    #[test]
    fn a_chunk_that_fails_is_reported_and_ends_the_rest() {
        with_threads(1, || {
            let begun = AtomicUsize::new(0);
            let result = try_for_each_chunk_mut(&mut [0; 100], 10, |i, _| {
                begun.fetch_add(1, Ordering::Relaxed);
                if i == 3 { Err("the fourth") } else { Ok(()) }
            });
            assert_eq!((result, begun.into_inner()), (Err("the fourth"), 4));
        });
        with_threads(2, || {
            for failing in 0..10 {
                let of = |i| if i == failing { Err(i) } else { Ok(()) };
                assert_eq!(try_for_each_chunk_mut(&mut [0; 100], 10, |i, _| of(i)), Err(failing));
            }
            assert_eq!(try_for_each_chunk_mut(&mut [0; 100], 10, |_, _| Ok::<_, ()>(())), Ok(()));
        });
    }

    #[test]
    fn an_empty_slice_has_no_chunks() {
        for_each_chunk_mut(&mut [0u8; 0], 0, |_, _| unreachable!("no chunk"));
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_after_the_started_tasks_are_done() {
        with_threads(2, || {
            let (started, done) = (AtomicUsize::new(0), AtomicUsize::new(0));

            let result = std::panic::catch_unwind(|| {
                run(100, |i| {
                    started.fetch_add(1, Ordering::SeqCst);
                    assert_ne!(i, 10, "task 10");
                    done.fetch_add(1, Ordering::SeqCst);
                });
            });

            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains("task 10"), "{message}");
            assert_eq!(started.into_inner(), done.into_inner() + 1);
            run(4, |_| {}); // the helpers still work
        });
    }

    #[test]
    fn tasks_may_run_tasks() {
        with_threads(2, || {
            let sum = AtomicUsize::new(0);
            run(8, |i| {
                run(8, |j| {
                    sum.fetch_add(i * j, Ordering::Relaxed);
                });
            });
            assert_eq!(sum.into_inner(), 28 * 28);
        });
    }

    #[test]
    fn threads_that_call_at_the_same_time_all_get_their_results() {
        with_threads(2, || {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut numbers = [0; 64];
                        for round in 0..500 {
                            for_each_chunk_mut(&mut numbers, 16, |_, chunk| chunk.fill(round));
                            assert_eq!(numbers, [round; 64]);
                        }
                    });
                }
            });
        });
    }

    #[test]
    fn the_default_is_the_variable_if_it_is_set() {
        assert!(cores() >= 1);
        for (text, n) in [(None, cores()), (Some(" "), cores()), (Some("3"), 3), (Some(" 4\n"), 4)] {
            assert_eq!(default_threads(text).unwrap(), n, "{text:?}");
        }
    }

    #[test]
    fn a_variable_that_is_no_number_of_threads_is_an_error_that_says_what_is() {
        for text in ["many", "0", "-1", "1.5", "99999999999999999999"] {
            assert_eq!(
                default_threads(Some(text)).unwrap_err().to_string(),
                format!("PAGELOCK_NUM_THREADS is `{text}`, but it must be 1 or more; unset it to use all cores")
            );
        }
    }
}
