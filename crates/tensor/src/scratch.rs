//! Scratch: buffers that kernels need while they run, kept per thread from call to call.
//!
//! A steady training step asks for the same sizes again and again, so nothing is allocated after the first one.

use std::cell::RefCell;

use bytemuck::Pod;

use crate::element::Float;

/// Vectors of 64 bytes are loaded fastest from addresses that are multiples of it.
const ALIGN_BYTES: usize = 64;

/// Buffers above this size are freed after use.
const KEEP_BYTES: usize = 8 << 20;

thread_local! {
    static IDLE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `body` with `len` elements of unspecified value, aligned to 64 bytes. Calls may be nested.
pub(crate) fn with<T: Pod, R>(len: usize, body: impl FnOnce(&mut [T]) -> R) -> R {
    let words = (len * size_of::<T>() + ALIGN_BYTES).div_ceil(size_of::<u64>());
    let mut buffer = take(words);
    let misaligned = buffer.as_ptr().addr() % ALIGN_BYTES;
    let start = (ALIGN_BYTES - misaligned) % ALIGN_BYTES / size_of::<u64>();
    let whole: &mut [T] = bytemuck::cast_slice_mut(&mut buffer[start..words - 1]);
    let result = body(&mut whole[..len]);
    give_back(buffer);
    result
}

/// Calls `body` with the numbers in the type that they compute in: themselves, or a copy.
pub(crate) fn reals<T: Float, R>(numbers: &[T], body: impl FnOnce(&[T::Real]) -> R) -> R {
    match T::as_reals(numbers) {
        Some(reals) => body(reals),
        None => with(numbers.len(), |reals: &mut [T::Real]| {
            reals.iter_mut().zip(numbers).for_each(|(real, number)| *real = number.to_real());
            body(reals)
        }),
    }
}

/// Calls `body` with room for as many numbers in the type that they compute in, and rounds them if it is another one.
pub(crate) fn reals_mut<T: Float, R>(numbers: &mut [T], body: impl FnOnce(&mut [T::Real]) -> R) -> R {
    if let Some(reals) = T::as_reals_mut(numbers) {
        return body(reals);
    }
    with(numbers.len(), |reals: &mut [T::Real]| {
        let result = body(reals);
        numbers.iter_mut().zip(reals).for_each(|(number, real)| *number = T::from_real(*real));
        result
    })
}

/// The smallest idle buffer of that many words, or the largest one, grown.
fn take(words: usize) -> Vec<u64> {
    IDLE.with_borrow_mut(|idle| {
        let fits = |buffer: &Vec<u64>| (buffer.len() < words, buffer.len().abs_diff(words));
        let best = (0..idle.len()).min_by_key(|&i| fits(&idle[i]));
        let mut buffer = best.map_or_else(Vec::new, |i| idle.swap_remove(i));
        if buffer.len() < words {
            buffer = vec![0; words];
        }
        buffer
    })
}

fn give_back(buffer: Vec<u64>) {
    if buffer.len() * size_of::<u64>() <= KEEP_BYTES {
        IDLE.with_borrow_mut(|idle| idle.push(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_length_and_alignment_asked_for() {
        for len in [0, 1, 7, 1000] {
            with::<f32, _>(len, |numbers| {
                assert_eq!(numbers.len(), len);
                assert_eq!(numbers.as_ptr().addr() % ALIGN_BYTES, 0);
            });
        }
    }

    #[test]
    fn nested_buffers_do_not_overlap() {
        with::<u64, _>(100, |outer| {
            outer.fill(1);
            with::<u64, _>(100, |inner| inner.fill(2));
            assert!(outer.iter().all(|&word| word == 1));
        });
    }

    #[test]
    fn the_same_sizes_use_the_same_buffers_again() {
        let addresses = || with::<f32, _>(5000, |a| with::<f64, _>(30, |b| (a.as_ptr().addr(), b.as_ptr().addr())));
        let first = addresses();
        assert_eq!(addresses(), first);
        assert_eq!(addresses(), first);
    }
}
