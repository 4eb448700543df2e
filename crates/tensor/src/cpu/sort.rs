//! Sorts lines: numbers become integer keys that have the same order.
//!
//! A [`Word`] is a key followed by the index of its number, which makes every sort stable. Long lines are sorted by
//! the bytes of their keys (radix sort). Bytes that are the same everywhere are skipped.

use std::ops::Range;

use bytemuck::Pod;
use pagelock_memory::Result;

use super::{Value, simd};
use crate::element::Num;
use crate::inlined::{Slice, zip};
use crate::scratch;

/// A number that has an integer key.
pub(crate) trait Key: Num {
    /// How many bits keys have.
    const BITS: u32;
    /// An integer that is as wide as the number.
    type Rank: Value + Ord;

    /// Larger for larger numbers (`MAX`) or for smaller ones, and the same for equal ones. NaN has the largest rank.
    fn rank<const MAX: bool>(self) -> Self::Rank;
    /// `rank::<true>()` as an unsigned number, counted from 0.
    fn key(self) -> u64;
}

macro_rules! whole_keys {
    ($($type:ty),*) => {$(
        impl Key for $type {
            const BITS: u32 = <$type>::BITS;
            type Rank = $type;
            #[inline(always)]
            fn rank<const MAX: bool>(self) -> $type {
                if MAX { self } else { !self }
            }
            #[inline(always)]
            fn key(self) -> u64 {
                (self as u64).wrapping_sub(<$type>::MIN as u64)
            }
        }
    )*};
}
whole_keys! { u8, i32, i64 }

macro_rules! real_keys {
    ($($type:ty, $rank:ty, $bits:ty);*) => {$(
        impl Key for $type {
            const BITS: u32 = <$bits>::BITS;
            type Rank = $rank;
            #[inline(always)]
            fn rank<const MAX: bool>(self) -> $rank {
                let bits = (self + 0.0).to_bits() as $rank; // of −0 and 0, that of 0
                let rank = bits ^ (bits >> (<$bits>::BITS - 1) & <$rank>::MAX);
                let rank = if MAX { rank } else { !rank };
                if self.is_nan() { <$rank>::MAX } else { rank }
            }
            #[inline(always)]
            fn key(self) -> u64 {
                u64::from(self.rank::<true>() as $bits ^ 1 << (<$bits>::BITS - 1))
            }
        }
    )*};
}
real_keys! { f32, i32, u32; f64, i64, u64 }

/// `with_narrow_keys!(T, |key| …)`: the expression for the function that gives the keys of numbers, `u32` if they fit.
macro_rules! with_narrow_keys {
    ($T:ident, |$key:ident| $result:expr) => {
        match $T::BITS <= u32::BITS {
            true => {
                let $key = |x: $T| x.key() as u32;
                $result
            }
            false => {
                let $key = $T::key;
                $result
            }
        }
    };
}

/// A key, and in the bits below it the index of its number in the line.
trait Word: Pod + Ord {
    const LARGEST: Self;
    /// The number of bits for the key.
    const KEY_BITS: u32;

    fn of(key: u64, index: usize) -> Self;
    fn index(self) -> i64;
    fn byte_of_key(self, i: usize) -> usize;
}

macro_rules! words {
    ($($word:ty, $index:ty);*) => {$(
        impl Word for $word {
            const LARGEST: $word = <$word>::MAX;
            const KEY_BITS: u32 = <$index>::BITS;
            #[inline(always)]
            fn of(key: u64, index: usize) -> $word {
                <$word>::from(key) << <$index>::BITS | index as $word
            }
            #[inline(always)]
            fn index(self) -> i64 {
                self as $index as i64
            }
            #[inline(always)]
            fn byte_of_key(self, i: usize) -> usize {
                (self >> (<$index>::BITS as usize + 8 * i) & 0xff) as usize
            }
        }
    )*};
}
words! { u64, u32; u128, u64 }

/// For each line of `n` numbers: the indices of the numbers whose positions in sorted order are `wanted`. The largest
/// number comes first if `descending`.
///
/// # Errors
/// The budget's error if it refuses memory for keys.
pub(crate) fn order<T: Key>(x: &[T], n: usize, wanted: Range<usize>, descending: bool, out: &mut [i64]) -> Result<()> {
    if wanted.len() == 1 && wanted.end > FEW && !descending {
        return with_narrow_keys!(T, |key| indices_of_nth(x, n, wanted.start, key, out));
    }
    let are_near = || wanted.end > FEW && x.chunks_exact(n).all(|line| span(line) <= u64::from(u32::MAX));
    if u32::try_from(n).is_ok() && (T::BITS <= u64::KEY_BITS || are_near()) {
        order_words::<T, u64>(x, n, wanted, descending, out)
    } else {
        order_words::<T, u128>(x, n, wanted, descending, out)
    }
}

/// For each line: the index of the number at position `before` in sorted order. Only keys are moved, half as many
/// bytes as words.
fn indices_of_nth<T: Key, K: Pod + Ord>(
    x: &[T],
    n: usize,
    before: usize,
    key: impl Fn(T) -> K + Copy,
    out: &mut [i64],
) -> Result<()> {
    for_each_line(x, n, key, out, |keys, moved, _| {
        let (_, &mut wanted, _) = moved.select_nth_unstable(before);
        index_of(keys, wanted, before - count_below(keys, wanted))
    })
}

/// Sets each element of `out` to the result of `find`, which gets the keys of a line, a copy of them to be sorted,
/// and how many numbers are not NaN.
fn for_each_line<T: Key, K: Pod, O>(
    x: &[T],
    n: usize,
    key: impl Fn(T) -> K + Copy,
    out: &mut [O],
    find: impl Fn(&[K], &mut [K], usize) -> O,
) -> Result<()> {
    scratch::with(2 * n, |buffer: &mut [K]| {
        let (keys, moved) = buffer.split_at_mut(n);
        for (line, out) in zip(x.chunks_exact(n), out) {
            let numbers = fill(keys, line, key);
            moved.copy_from(keys);
            *out = find(keys, moved, numbers);
        }
        Ok(())
    })
}

/// How many keys are less than this one.
fn count_below<K: Pod + Ord>(keys: &[K], key: K) -> usize {
    simd::vectorized(inlined!(|| {
        let mut n = 0;
        for &other in keys {
            n += usize::from(other < key);
        }
        n
    }))
}

/// The index of the key that has `before` equal ones before it.
fn index_of<K: Pod + Ord>(keys: &[K], key: K, mut before: usize) -> i64 {
    for (index, &other) in keys.iter().enumerate() {
        if other == key {
            if before == 0 {
                return index as i64;
            }
            before -= 1;
        }
    }
    0
}

/// The difference between the largest and the smallest key of a line.
fn span<T: Key>(line: &[T]) -> u64 {
    let (mut least, mut most) = (u64::MAX, 0);
    simd::vectorized_widely(inlined!(|| {
        for x in line {
            (least, most) = (least.min(x.key()), most.max(x.key()));
        }
    }));
    most.saturating_sub(least)
}

/// Up to this many numbers are found by reading every number once.
const FEW: usize = 8;
/// Lines of at least this many numbers are sorted by bytes.
const LONG: usize = 512;

fn order_words<T: Key, W: Word>(
    x: &[T],
    n: usize,
    wanted: Range<usize>,
    descending: bool,
    out: &mut [i64],
) -> Result<()> {
    let flip = if descending { u64::MAX >> (64 - T::BITS) } else { 0 };
    let key = |x: T| x.key() ^ flip;
    let lines = zip(x.chunks_exact(n), out.chunks_exact_mut(wanted.len()));
    if wanted.end <= FEW && wanted.end < n {
        let mut found = [W::LARGEST; FEW];
        for (line, out) in lines {
            least(line, descending, key, &mut found[..wanted.end]);
            zip(&mut out[..], &found[wanted.clone()]).for_each(|(out, word)| *out = word.index());
        }
        return Ok(());
    }
    let is_long = n >= LONG && wanted.len() > n / 8;
    scratch::with(if is_long { 2 * n } else { n }, |buffer: &mut [W]| {
        for (line, out) in lines {
            let (words, buffer) = buffer.split_at_mut(n);
            let lowest =
                if is_long || T::BITS > W::KEY_BITS { line.iter().map(|&x| key(x)).min().unwrap_or(0) } else { 0 };
            zip(&mut words[..], line).enumerate().for_each(|(i, (word, &x))| *word = W::of(key(x) - lowest, i));
            match is_long {
                true => sort_by_bytes(words, buffer, T::BITS.min(W::KEY_BITS).div_ceil(8) as usize),
                false => sort_wanted(words, &wanted),
            }
            zip(&mut out[..], &words[wanted.clone()]).for_each(|(out, word)| *out = word.index());
        }
        Ok(())
    })
}

/// The least words of a line, in order.
fn least<T: Key, W: Word>(line: &[T], descending: bool, key: impl Fn(T) -> u64, found: &mut [W]) {
    /// Numbers that are compared at a time: in a long line, few blocks contain one of the least.
    const BLOCK: usize = 64;
    found.set_to(W::LARGEST);
    let last = found.len() - 1;
    for (i, block) in line.chunks(BLOCK).enumerate() {
        if i > 0 {
            let bound = line[found[last].index() as usize].rank::<true>();
            let has_any = simd::vectorized_widely(inlined!(|| match descending {
                false => block.iter().fold(false, |any, x| any | (x.rank::<true>() < bound)),
                true => block.iter().fold(false, |any, x| any | (x.rank::<true>() > bound)),
            }));
            if !has_any {
                continue;
            }
        }
        for (index, &x) in zip(i * BLOCK.., block) {
            let word = W::of(key(x), index);
            if word < found[last] {
                let mut at = last;
                while at > 0 && word < found[at - 1] {
                    found[at] = found[at - 1];
                    at -= 1;
                }
                found[at] = word;
            }
        }
    }
}

/// Moves the wanted words to their positions.
fn sort_wanted<W: Word>(words: &mut [W], wanted: &Range<usize>) {
    if wanted.end < words.len() {
        words.select_nth_unstable(wanted.end - 1);
    }
    if wanted.len() > 1 || wanted.end == words.len() {
        if wanted.start > 0 {
            words[..wanted.end].select_nth_unstable(wanted.start);
        }
        words[wanted.clone()].sort_unstable();
    }
}

/// The quantile that [`neighbors`] looks for.
#[derive(Clone, Copy)]
pub(crate) struct Quantile {
    pub(crate) q: f64,
    pub(crate) ignores_nan: bool,
    /// Whether only the lower number is needed.
    pub(crate) is_lower: bool,
}

/// For each line of `n` numbers, three integers: the indices of the two numbers between which the `q`-quantile is,
/// which may be the same, and how many numbers are not NaN. If a number is NaN, both indices are that of a NaN,
/// unless NaN is ignored.
///
/// # Errors
/// The budget's error if it refuses memory for keys.
pub(crate) fn neighbors<T: Key>(x: &[T], n: usize, quantile: Quantile, out: &mut [[i64; 3]]) -> Result<()> {
    with_narrow_keys!(T, |key| neighboring_keys(x, n, quantile, key, out))
}

fn neighboring_keys<T: Key, K: Pod + Ord>(
    x: &[T],
    n: usize,
    Quantile { q, ignores_nan, is_lower }: Quantile,
    key: impl Fn(T) -> K + Copy,
    out: &mut [[i64; 3]],
) -> Result<()> {
    for_each_line(x, n, key, out, |keys, moved, numbers| {
        let position = if numbers == n || ignores_nan { q * numbers.saturating_sub(1) as f64 } else { (n - 1) as f64 };
        let low = position as usize;
        let high = if is_lower || position == low as f64 { low } else { low + 1 };
        let (_, &mut lower, above) = moved.select_nth_unstable(low);
        let below = count_below(keys, lower);
        let lower_index = index_of(keys, lower, low - below);
        let upper = if high > low { above.iter().copied().min() } else { None };
        let upper_index = match upper {
            Some(upper) if upper == lower => index_of(keys, upper, high - below),
            Some(upper) => index_of(keys, upper, 0),
            None => lower_index,
        };
        [lower_index, upper_index, numbers as i64]
    })
}

/// For each line of `n` numbers: the index of the most frequent number. Of several numbers that are most frequent, it
/// is the least, and of equal numbers the last. NaN equals nothing. In a line that is all NaN, it is the first.
///
/// # Errors
/// The budget's error if it refuses memory for keys.
pub(crate) fn modes<T: Key>(x: &[T], n: usize, out: &mut [i64]) -> Result<()> {
    with_narrow_keys!(T, |key| most_frequent_keys(x, n, key, out))
}

fn most_frequent_keys<T: Key, K: Pod + Ord>(
    x: &[T],
    n: usize,
    key: impl Fn(T) -> K + Copy,
    out: &mut [i64],
) -> Result<()> {
    for_each_line(x, n, key, out, |keys, moved, numbers| {
        moved.sort_unstable();
        let (mut found, mut most, mut start) = (moved[0], 0, 0);
        for i in 1..=numbers {
            if i == numbers || moved[i] != moved[start] {
                (found, most) = if i - start > most { (moved[start], i - start) } else { (found, most) };
                start = i;
            }
        }
        let index = if most > 0 { keys.iter().rposition(|&key| key == found) } else { None };
        index.unwrap_or(0) as i64
    })
}

/// Fills `keys` with the keys of a line, and returns how many numbers are not NaN.
#[inline(always)]
fn fill<T: Key, K: Pod>(keys: &mut [K], line: &[T], key: impl Fn(T) -> K + Copy) -> usize {
    simd::vectorized_widely(inlined!(|| {
        // A loop: the compiler may not inline the closures of iterators, and then does not vectorize them.
        let mut numbers = 0;
        for (to, &x) in zip(&mut keys[..], line) {
            *to = key(x);
            numbers += usize::from(!x.is_nan());
        }
        numbers
    }))
}

/// Sorts by the bytes of keys, from the lowest on. The words must be in the order of their indices.
fn sort_by_bytes<W: Word>(words: &mut [W], buffer: &mut [W], n_bytes: usize) {
    let mut counts = [[0_usize; 256]; 8];
    for &word in &*words {
        for (i, counts) in counts[..n_bytes].iter_mut().enumerate() {
            counts[word.byte_of_key(i)] += 1;
        }
    }
    let mut is_in_buffer = false;
    for (i, counts) in counts[..n_bytes].iter_mut().enumerate() {
        if counts.contains(&words.len()) {
            continue;
        }
        let mut start = 0;
        for count in &mut *counts {
            (*count, start) = (start, start + *count);
        }
        let (from, to) = if is_in_buffer { (&*buffer, &mut *words) } else { (&*words, &mut *buffer) };
        for &word in from {
            let next = &mut counts[word.byte_of_key(i)];
            to[*next] = word;
            *next += 1;
        }
        is_in_buffer = !is_in_buffer;
    }
    if is_in_buffer {
        words.copy_from(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered<T: Key>(x: &[T], wanted: Range<usize>, descending: bool) -> Vec<i64> {
        let mut out = vec![0; wanted.len()];
        order(x, x.len(), wanted, descending, &mut out).unwrap();
        out
    }

    fn check<T: Key>(x: &[T]) {
        for descending in [false, true] {
            let mut all: Vec<i64> = (0..x.len() as i64).collect();
            let is_before = |a: T, b: T| if descending { b.key() < a.key() } else { a.key() < b.key() };
            all.sort_by(|&a, &b| {
                let (a, b) = (x[a as usize], x[b as usize]);
                is_before(b, a).cmp(&is_before(a, b))
            });
            for end in [1, 2, x.len() / 3, x.len()] {
                assert_eq!(ordered(x, 0..end, descending), all[..end], "{} of {}", end, x.len());
                assert_eq!(ordered(x, end - 1..end, descending), all[end - 1..end], "{} of {}", end, x.len());
            }
        }
    }

    #[test]
    fn indices_are_those_of_a_stable_sort() {
        for n in [7, 40, 3000] {
            let numbers: Vec<i64> = (0..n).map(|i| i * 7919 % 131 - 60).collect();
            check(&numbers);
            check(&numbers.iter().map(|&x| x << 40).collect::<Vec<_>>());
            check(&numbers.iter().map(|&x| x as i32).collect::<Vec<_>>());
            check(&numbers.iter().map(|&x| x as u8).collect::<Vec<_>>());
            check(&numbers.iter().map(|&x| x as f32 / 3.0).collect::<Vec<_>>());
            check(&numbers.iter().map(|&x| x as f64 / 3.0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn zeros_are_equal_and_nan_is_last() {
        let x = [f32::NAN, 1.0, 0.0, -0.0, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 4.0];
        assert_eq!(ordered(&x, 0..8, false), [4, 2, 3, 7, 1, 6, 0, 5]);
        assert_eq!(ordered(&x, 0..8, true), [0, 5, 6, 1, 7, 2, 3, 4]);
        assert!((-1.0_f64).key() < (-0.5_f64).key() && i64::MIN.key() < i64::MAX.key());
    }
}
