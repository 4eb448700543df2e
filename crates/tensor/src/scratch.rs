//! Scratch: buffers that kernels need while they run, kept per thread from call to call.
//!
//! A training step needs the same sizes again and again, so nothing is allocated after the first step, and threads of
//! one kernel do not contend for the lock of the pool. Like those of tensors, the bytes count in the host's budget,
//! which may refuse them. The ledger shows them under the holder `scratch`.

use std::cell::RefCell;
use std::sync::LazyLock;

use bytemuck::Pod;
use pagelock_memory::{Holder, HostBuffer, Result, default_host};

use crate::cpu::{Stored, StoredMut};
use crate::element::{Num, Real};
use crate::inlined::{Slice, zip};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};

/// A thread keeps at most this many bytes; other buffers go back to the pool after use.
const KEEP_BYTES: usize = 1 << 20;

/// Numbers that a thread converts at a time.
const CHUNK: usize = 32 << 10;

thread_local! {
    static IDLE: RefCell<Vec<HostBuffer>> = const { RefCell::new(Vec::new()) };
}

/// Calls `body` with `len` elements of unspecified value, aligned to 64 bytes. Calls may be nested.
///
/// # Errors
/// The budget's refusal, before `body` is called; or what `body` returns.
pub(crate) fn with<T: Pod, R>(len: usize, body: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
    let mut lent = Lent::new(len * size_of::<T>())?;
    body(lent.of())
}

/// A buffer in use, which returns to its thread when dropped. (Its functions are not compiled into each function that
/// uses one.)
struct Lent {
    buffer: Option<HostBuffer>,
    len_bytes: usize,
}

impl Lent {
    #[inline(never)]
    fn new(len_bytes: usize) -> Result<Lent> {
        Ok(Lent { buffer: Some(take(len_bytes)?), len_bytes })
    }

    #[inline(never)]
    fn bytes(&mut self) -> &mut [u8] {
        let Some(buffer) = &mut self.buffer else { unreachable!("it is taken when this is dropped") };
        let bytes = buffer.bytes_mut().unwrap_or_else(|error| unreachable!("host memory is writable: {error}"));
        &mut bytes[..self.len_bytes]
    }

    #[inline(never)]
    fn of<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes())
    }
}

impl Drop for Lent {
    #[inline(never)]
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(give_back);
    }
}

/// Calls `body` with the numbers in their computing type: the numbers themselves, or a copy.
pub(crate) fn reals<C: Num, R>(numbers: Stored<'_, C>, body: impl FnOnce(&[C]) -> Result<R>) -> Result<R> {
    match numbers {
        Stored::Plain(numbers) => body(numbers),
        Stored::Halves(bits, half) => with(bits.len(), |buffer: &mut [C]| {
            for_each_chunk_mut(buffer, CHUNK, |i, buffer| half.widen(&bits[i * CHUNK..], C::f32s(buffer)));
            body(buffer)
        }),
    }
}

/// Calls `body` with a slice of the same length in the computing type. If the numbers are halves, rounds that slice
/// to them.
pub(crate) fn reals_mut<C: Num, R>(numbers: StoredMut<'_, C>, body: impl FnOnce(&mut [C]) -> Result<R>) -> Result<R> {
    match numbers {
        StoredMut::Plain(numbers) => body(numbers),
        StoredMut::Halves(bits, half) => with(bits.len(), |reals: &mut [C]| {
            let result = body(reals)?;
            let reals = &*C::f32s(reals);
            for_each_chunk_mut(bits, CHUNK, |i, bits| half.narrow(&reals[i * CHUNK..], bits));
            Ok(result)
        }),
    }
}

/// Sets `total` to the sum of the tasks' results, in the order of tasks. Each task gets its number and a slice to
/// write to.
pub(crate) fn sum_of_tasks<R: Real>(
    tasks: usize,
    total: &mut [R],
    task: impl Fn(usize, &mut [R]) -> Result<()> + Sync,
) -> Result<()> {
    let len = total.len();
    if tasks <= 1 {
        return task(0, total);
    }
    with(tasks * len, |sums: &mut [R]| {
        try_for_each_chunk_mut(sums, len, task)?;
        let (first, others) = sums.split_at(len);
        total.copy_from(first);
        others.chunks_exact(len).for_each(|sums| add(total, sums));
        Ok(())
    })
}

/// `to += numbers`
pub(crate) fn add<R: Real>(to: &mut [R], numbers: &[R]) {
    zip(to, numbers).for_each(|(to, &number)| *to = *to + number);
}

/// The shortest idle buffer that is long enough. Otherwise allocates one, which replaces the longest idle buffer.
fn take(len_bytes: usize) -> Result<HostBuffer> {
    let idle = with_idle(|idle| {
        let fits = |buffer: &HostBuffer| (buffer.len_bytes() < len_bytes, buffer.len_bytes().abs_diff(len_bytes));
        let best = (0..idle.len()).min_by_key(|&i| fits(&idle[i]))?;
        Some(idle.swap_remove(best))
    });
    let long_enough = idle.flatten().filter(|buffer| buffer.len_bytes() >= len_bytes);
    long_enough.map_or_else(|| allocate(len_bytes), Ok)
}

fn give_back(buffer: HostBuffer) {
    let mut buffer = Some(buffer); // dropped out here, where `IDLE` is not borrowed
    with_idle(|idle| {
        let kept_bytes: usize = idle.iter().chain(&buffer).map(HostBuffer::len_bytes).sum();
        if kept_bytes <= KEEP_BYTES {
            idle.extend(buffer.take());
        }
    });
}

/// Calls `f` with the buffers that this thread keeps, unless the thread is ending.
fn with_idle<R>(f: impl FnOnce(&mut Vec<HostBuffer>) -> R) -> Option<R> {
    IDLE.try_with(|idle| f(&mut idle.borrow_mut())).ok()
}

fn allocate(len_bytes: usize) -> Result<HostBuffer> {
    static SCRATCH: LazyLock<Holder> = LazyLock::new(|| Holder::named("scratch"));
    let _charged = SCRATCH.enter();
    HostBuffer::allocate(default_host(), len_bytes)
}

#[cfg(test)]
mod tests {
    use pagelock_memory::ALIGN;

    use super::*;

    #[test]
    fn buffers_have_the_length_and_alignment_asked_for() {
        for len in [0, 1, 7, 1000] {
            with::<f32, _>(len, |numbers| {
                assert_eq!(numbers.len(), len);
                assert_eq!(numbers.as_ptr().addr() % ALIGN, 0);
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn nested_buffers_do_not_overlap() {
        with::<u64, _>(100, |outer| {
            outer.fill(1);
            with::<u64, _>(100, |inner| {
                inner.fill(2);
                Ok(())
            })?;
            assert!(outer.iter().all(|&word| word == 1));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_thread_keeps_no_more_than_the_limit() {
        let more_than_half = || with::<u8, _>(KEEP_BYTES / 2 + 1, |_| Ok(()));
        with::<u8, _>(KEEP_BYTES / 2, |_| with::<u8, _>(KEEP_BYTES, |_| more_than_half())).unwrap();
        let kept_bytes: usize = with_idle(|idle| idle.iter().map(HostBuffer::len_bytes).sum()).unwrap();
        assert!((1..=KEEP_BYTES).contains(&kept_bytes), "{kept_bytes}");
    }

    #[test]
    fn the_ledger_shows_what_a_kernel_uses() {
        with::<u8, _>(123_456, |_| {
            let holders = default_host().holders();
            let scratch = holders.iter().find(|held| held.name == "scratch").map_or(0, |held| held.bytes.0);
            assert!(scratch >= 123_456, "{scratch}");
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn the_same_sizes_use_the_same_buffers_again() {
        let addresses = || {
            let of = |a: &[f32], b: &[f64]| Ok((a.as_ptr().addr(), b.as_ptr().addr()));
            with::<f32, _>(5000, |a| with::<f64, _>(30, |b| of(a, b))).unwrap()
        };
        let first = addresses();
        assert_eq!(addresses(), first);
        assert_eq!(addresses(), first);
    }
}
