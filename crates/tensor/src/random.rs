//! Random numbers that depend on (seed, stream, position) alone: any part of a sequence can be computed by any thread.
//!
//! Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
//! <https://doi.org/10.1145/2063384.2063405>. Each counter gives four 32-bit numbers.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cpu::vectorized_widely;
use crate::element::DType;
use crate::error::Result;
use crate::parallel::for_each_chunk_mut;
use crate::thread_value::with_value;

mod cuda;
mod fill;

pub(crate) use fill::{CHUNK, fill_normal, fill_uniform};

/// A sequence of random numbers, and a position in it that moves with every draw.
///
/// Two generators with the same seed and stream give the same numbers, on any number of threads.
///
/// ```
/// # use pagelock_tensor::Generator;
/// let (a, b) = (Generator::new(7), Generator::new(7));
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert_ne!(a.stream(1).next_u64(), a.stream(2).next_u64());
/// ```
#[derive(Debug)]
pub struct Generator {
    seed: AtomicU64,
    stream: u64,
    position: AtomicU64, // in counters, each of four 32-bit numbers
}

impl Generator {
    /// Stream 0 of a seed, at its start.
    pub const fn new(seed: u64) -> Generator {
        Generator { seed: AtomicU64::new(seed), stream: 0, position: AtomicU64::new(0) }
    }

    /// Another sequence of the same seed, at its start: for an epoch, a worker or a layer of its own.
    ///
    /// ```
    /// # use pagelock_tensor::Generator;
    /// let root = Generator::new(7);
    /// let (data, weights) = (root.stream(1), root.stream(2));
    /// assert_ne!(data.next_u64(), weights.next_u64());
    /// ```
    pub fn stream(&self, stream: u64) -> Generator {
        Generator { seed: AtomicU64::new(self.seed()), stream, position: AtomicU64::new(0) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.in_scope().map_or_else(|| self.seed.load(Ordering::Relaxed), |state| state.seed)
    }

    /// How many counters have been drawn; [`Generator::set_position`] goes back to it.
    pub fn position(&self) -> u64 {
        self.in_scope().map_or_else(|| self.position.load(Ordering::Relaxed), |state| state.position)
    }

    /// Goes to a position of the sequence.
    ///
    /// ```
    /// # use pagelock_tensor::Generator;
    /// let generator = Generator::new(7);
    /// let start = generator.position();
    /// let first = generator.next_f64();
    /// generator.set_position(start);
    /// assert_eq!(generator.next_f64(), first);
    /// ```
    pub fn set_position(&self, position: u64) {
        match self.in_scope() {
            Some(state) => OF_SCOPE.set(Some(GeneratorState { position, ..state })),
            None => self.position.store(position, Ordering::Relaxed),
        }
    }

    /// The seed and the position, for a checkpoint.
    pub fn state(&self) -> GeneratorState {
        GeneratorState { seed: self.seed(), position: self.position() }
    }

    /// Continues from the [`state`](Self::state) of a generator of the same stream: draws the numbers that came next
    /// there, on the CPU and on GPUs.
    ///
    /// ```
    /// # use pagelock_tensor::{Tensor, default_generator};
    /// let saved = default_generator().state();
    /// let first = Tensor::randn([3])?.to_vec::<f32>()?;
    /// default_generator().set_state(saved);
    /// assert_eq!(Tensor::randn([3])?.to_vec::<f32>()?, first);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn set_state(&self, state: GeneratorState) {
        if self.in_scope().is_some() {
            return OF_SCOPE.set(Some(state));
        }
        self.seed.store(state.seed, Ordering::Relaxed);
        self.set_position(state.position);
    }

    /// Takes `counters` positions and returns the first.
    pub(crate) fn take(&self, counters: u64) -> u64 {
        if let Some(GeneratorState { position, .. }) = self.in_scope() {
            self.set_position(position.wrapping_add(counters));
            return position;
        }
        // Relaxed: the position guards no other memory.
        self.position.fetch_add(counters, Ordering::Relaxed)
    }

    /// The state in this thread's scope of [`with_seed`], if this is the default generator.
    fn in_scope(&self) -> Option<GeneratorState> {
        OF_SCOPE.get().filter(|_| std::ptr::eq(self, default_generator()))
    }

    /// 64 random bits.
    pub fn next_u64(&self) -> u64 {
        let [[low], [high], ..] = philox(self.seed(), self.take(1), self.stream);
        of_words(low, high)
    }

    /// Uniform in [0, 1), with 53 random bits.
    pub fn next_f64(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`, without bias (D. Lemire, 2019, <https://doi.org/10.1145/3230636>); 0 for `n` = 0.
    ///
    /// ```
    /// # use pagelock_tensor::Generator;
    /// let dice = Generator::new(7);
    /// assert!((0..100).all(|_| dice.below(6) < 6));
    /// ```
    pub fn below(&self, n: u64) -> u64 {
        below(n, || self.next_u64())
    }

    /// Puts a slice in random order (Fisher and Yates).
    ///
    /// ```
    /// # use pagelock_tensor::Generator;
    /// let mut cards = [1, 2, 3, 4, 5];
    /// Generator::new(7).shuffle(&mut cards);
    /// cards.sort();
    /// assert_eq!(cards, [1, 2, 3, 4, 5]);
    /// ```
    pub fn shuffle<T>(&self, slice: &mut [T]) {
        const AT_ONCE: usize = 256;
        let mut end = slice.len(); // what is behind it is done
        while end > 1 {
            let count = (end - 1).min(AT_ONCE);
            let mut drawn = [0; AT_ONCE];
            self.draw_u64s(&mut drawn[..count]);
            for &bits in &drawn[..count] {
                let mut bits = Some(bits);
                let other = below(end as u64, || bits.take().unwrap_or_else(|| self.next_u64()));
                end -= 1;
                slice.swap(end, other as usize);
            }
        }
    }

    /// Fills a slice with the numbers that calls of [`next_u64`](Self::next_u64) would give.
    fn draw_u64s(&self, out: &mut [u64]) {
        let (seed, stream, position) = (self.seed(), self.stream, self.take(out.len() as u64));
        u64s(seed, stream, position, out);
    }

    /// Fills a slice with `f` of the numbers that calls of [`below`](Self::below) would give, for `n` above 0.
    pub(crate) fn fill_below(&self, n: u64, out: &mut [i64], f: impl Fn(u64) -> i64 + Sync) {
        const REFUSED: u64 = u64::MAX; // no number below `n` is equal to this
        let (seed, stream, least) = (self.seed(), self.stream, n.wrapping_neg() % n);
        let all: &mut [u64] = bytemuck::cast_slice_mut(out);
        let mut filled = 0;
        while filled < all.len() {
            let (rest, any_refused) = (&mut all[filled..], AtomicBool::new(false));
            let position = self.take(rest.len() as u64);
            for_each_chunk_mut(rest, CHUNK, |i, chunk| {
                u64s(seed, stream, position.wrapping_add((i * CHUNK) as u64), chunk);
                let mut is_refused = false;
                for bits in chunk {
                    let wide = u128::from(*bits) * u128::from(n);
                    is_refused |= (wide as u64) < least;
                    *bits = if (wide as u64) < least { REFUSED } else { (wide >> 64) as u64 };
                }
                any_refused.fetch_or(is_refused, Ordering::Relaxed); // read after all chunks
            });
            filled += if any_refused.into_inner() { kept(rest, REFUSED) } else { rest.len() };
        }
        for_each_chunk_mut(out, CHUNK, |_, chunk| chunk.iter_mut().for_each(|number| *number = f(*number as u64)));
    }
}

/// Moves the numbers that are not `refused` to the front, in order. Returns how many there are.
fn kept(numbers: &mut [u64], refused: u64) -> usize {
    let mut kept = 0;
    for i in 0..numbers.len() {
        numbers[kept] = numbers[i];
        kept += usize::from(numbers[i] != refused);
    }
    kept
}

/// 64 random bits of each counter from `position` on.
fn u64s(seed: u64, stream: u64, position: u64, out: &mut [u64]) {
    vectorized_widely(inlined!(|| {
        for (i, out) in out.chunks_mut(fill::LANES).enumerate() {
            let words = philox::<{ fill::LANES }>(seed, position.wrapping_add((i * fill::LANES) as u64), stream);
            let pairs = words[0].iter().zip(&words[1]);
            out.iter_mut().zip(pairs).for_each(|(out, (&low, &high))| *out = of_words(low, high));
        }
    }));
}

/// The state of a [`Generator`] in its stream: all that is needed to draw the same numbers again, on the CPU and on
/// GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratorState {
    /// The seed that [`manual_seed`] or [`Generator::new`] got.
    pub seed: u64,
    /// How many counters have been drawn.
    pub position: u64,
}

/// 64 bits of two words.
fn of_words(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Uniform in `0..n`, from 64 random bits at a time.
#[inline]
fn below(n: u64, mut next: impl FnMut() -> u64) -> u64 {
    loop {
        let wide = u128::from(next()) * u128::from(n);
        let (whole, part) = ((wide >> 64) as u64, wide as u64);
        // The threshold is less than `n`. It is computed only if needed, since the division takes longer than all
        // else.
        if part >= n || part >= n.wrapping_neg().checked_rem(n).unwrap_or(0) {
            return whole;
        }
    }
}

/// The position of a tensor's numbers in a sequence, from which any device can compute them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    seed: u64,
    stream: u64,
    position: u64,
    /// The number of elements that a counter gives.
    rows: usize,
    /// Whether it is from the default generator, from which a captured step draws again in each launch.
    is_default: bool,
}

impl Draw {
    /// Calls `f` with the next `elements` numbers that become a tensor of `dtype`. If `f` fails, the generator goes
    /// back to them, unless another thread has drawn numbers since.
    pub(crate) fn make<R>(
        generator: &Generator,
        elements: usize,
        dtype: DType,
        f: impl FnOnce(Draw) -> Result<R>,
    ) -> Result<R> {
        let draw = Draw::new(generator, elements, dtype);
        f(draw).inspect_err(|_| {
            let end = draw.position.wrapping_add(counters(elements, draw.rows));
            if generator.in_scope().is_some() {
                return generator.set_position(draw.position);
            }
            // Relaxed: as in `take`.
            let _ = generator.position.compare_exchange(end, draw.position, Ordering::Relaxed, Ordering::Relaxed);
        })
    }

    /// The next `elements` numbers that become a tensor of `dtype`.
    pub(crate) fn new(generator: &Generator, elements: usize, dtype: DType) -> Draw {
        let rows = if dtype == DType::F64 { 2 } else { 4 };
        let position = generator.take(counters(elements, rows));
        let is_default = std::ptr::eq(generator, default_generator()) && generator.in_scope().is_none();
        Draw { seed: generator.seed(), stream: generator.stream, position, rows, is_default }
    }
}

/// The number of counters for `elements` numbers, `rows` each, in whole blocks.
fn counters(elements: usize, rows: usize) -> u64 {
    (elements.div_ceil(rows * fill::LANES) * fill::LANES) as u64
}

/// The numbers of `N` counters from `position` on: number `w` of counter `i` is `[w][i]`. The key is the seed.
///
/// Lanes are side by side, so that the compiler vectorizes the loops. A word is the lower half of 64 bits. The
/// instructions multiply lower halves only, so the upper half need not be cleared.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "lanes in step become vector instructions")]
fn philox<const N: usize>(seed: u64, position: u64, stream: u64) -> [[u32; N]; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    const LOWER: u64 = u32::MAX as u64;
    let mut key = [seed as u32, (seed >> 32) as u32];
    let mut x = [[0; N], [0; N], [stream; N], [stream >> 32; N]];
    for i in 0..N {
        x[0][i] = position.wrapping_add(i as u64);
        x[1][i] = x[0][i] >> 32;
    }
    for _ in 0..10 {
        for i in 0..N {
            let a = MULTIPLIERS[0] * (x[0][i] & LOWER);
            let b = MULTIPLIERS[1] * (x[2][i] & LOWER);
            x[0][i] = (b >> 32) ^ x[1][i] ^ u64::from(key[0]);
            x[1][i] = b;
            x[2][i] = (a >> 32) ^ x[3][i] ^ u64::from(key[1]);
            x[3][i] = a;
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    let mut words = [[0; N]; 4];
    for (words, x) in words.iter_mut().zip(x) {
        for (word, x) in words.iter_mut().zip(x) {
            *word = x as u32;
        }
    }
    words
}

static DEFAULT: OnceLock<Generator> = OnceLock::new();

thread_local! {
    /// The default generator's state in this thread's scope of [`with_seed`].
    static OF_SCOPE: Cell<Option<GeneratorState>> = const { Cell::new(None) };
}

/// The generator that `rand` and `randn` draw from. Its seed is 0 until [`manual_seed`] sets another, so that runs
/// can be reproduced.
///
/// ```
/// # use pagelock_tensor::{default_generator, manual_seed};
/// manual_seed(7);
/// assert_eq!(default_generator().seed(), 7);
/// ```
pub fn default_generator() -> &'static Generator {
    DEFAULT.get_or_init(|| Generator::new(0))
}

/// Seeds the default generator and puts it at its start.
///
/// Without this, its seed is 0, so that runs can be reproduced. Threads that draw from it at the same time get
/// different numbers from run to run; give each thread a [`Generator`] of its own, or use [`with_seed`].
///
/// ```
/// # use pagelock_tensor::{Tensor, manual_seed};
/// manual_seed(42);
/// let first = Tensor::randn([3])?.to_vec::<f32>()?;
/// manual_seed(42);
/// assert_eq!(Tensor::randn([3])?.to_vec::<f32>()?, first);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn manual_seed(seed: u64) {
    default_generator().set_state(GeneratorState { seed, position: 0 });
}

/// Runs `f`. On this thread, the default generator begins with this seed, and afterwards continues where it was before.
///
/// A `DataLoader` calls datasets and collations this way, with a seed for each batch.
///
/// ```
/// # use pagelock_tensor::{Tensor, with_seed};
/// let noise = || with_seed(7, || Tensor::randn([3])?.to_vec::<f32>());
/// assert_eq!(noise()?, noise()?);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn with_seed<R>(seed: u64, f: impl FnOnce() -> R) -> R {
    with_value(&OF_SCOPE, Some(GeneratorState { seed, position: 0 }), f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the Random123 library, file `kat_vectors`.
    #[test]
    fn philox_gives_the_published_numbers() {
        let zeros = [[0x6627_e8d5], [0xe169_c58d], [0xbc57_ac4c], [0x9b00_dbd8]];
        let ones = [[0x408f_276d], [0x41c8_3b0e], [0xa20b_c7c6], [0x6d54_51fd]];
        assert_eq!(philox(0, 0, 0), zeros);
        assert_eq!(philox(u64::MAX, u64::MAX, u64::MAX), ones);
    }

    #[test]
    fn a_shuffle_swaps_as_numbers_drawn_one_by_one_say() {
        for len in [0, 1, 2, 64, 65, 1_000] {
            let (shuffling, drawing) = (Generator::new(3), Generator::new(3));
            let mut shuffled: Vec<usize> = (0..len).collect();
            let mut swapped = shuffled.clone();

            shuffling.shuffle(&mut shuffled);

            (1..len).rev().for_each(|i| swapped.swap(i, drawing.below(i as u64 + 1) as usize));
            assert_eq!((shuffled, shuffling.position()), (swapped, drawing.position()));
        }
    }

    /// A quarter of the numbers is refused for the third bound.
    #[test]
    fn numbers_below_a_bound_are_those_that_are_drawn_one_by_one() {
        for n in [1, 7, 3 << 62, u64::MAX] {
            let (filling, drawing) = (Generator::new(3), Generator::new(3));
            let mut filled = vec![0; 20_000];
            filling.fill_below(n, &mut filled, |number| number as i64);
            assert!(filled.iter().all(|&number| number as u64 == drawing.below(n)), "{n}");
            assert_eq!(filling.position(), drawing.position(), "{n}");
        }
    }

    #[test]
    fn numbers_below_a_bound_reach_every_value_and_no_other() {
        let generator = Generator::new(1);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[generator.below(7) as usize] = true);
        assert_eq!(seen, [true; 7]);
    }
}
