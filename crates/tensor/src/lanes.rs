//! Vectors of `f32` or `f64` as wide as the machine has them, for kernels whose inner loop is written by hand.
//!
//! [`dispatch`] picks the instruction set at run time (AVX-512, AVX2 with FMA, or NEON); a kernel is then
//! generic over `S: Simd` and over its element type through [`Lanes`]. Plain loops need none of this: see `cpu/simd.rs`.
//! No `unsafe` here: all of it is in `pulp`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod dots;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod multiplier;
mod transpose;

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
pub(crate) use dots::{Dots, StridedRows};
#[cfg(target_arch = "x86_64")]
pub(crate) use f16c::F16c;
#[cfg(target_arch = "x86_64")]
pub(crate) use multiplier::{Bf16, PairsOfBf16};
pub(crate) use multiplier::{Multiplier, Numbers, SumsOf};
use pulp::{Simd, WithSimd};
pub(crate) use transpose::{FromPlanes, ToPlanes, Transpose, transposed_16};

use crate::inlined::Slice;
use crate::processor;

/// Runs `kernel` compiled for the widest vectors of this machine.
pub(crate) fn dispatch<K: WithSimd>(kernel: K) -> K::Output {
    #[cfg(test)]
    if let Some(level) = testing::FORCED.get() {
        return level.run(kernel);
    }
    vectorize(kernel)
}

fn vectorize<K: WithSimd>(kernel: K) -> K::Output {
    // Not `Arch::dispatch`, which also compiles a scalar version of each kernel.
    match processor::wide_vectors() {
        Some(simd) => Simd::vectorize(simd, kernel),
        None => Simd::vectorize(processor::vectors(), kernel),
    }
}

/// Facts about the registers of an instruction set, as constants: only the side of a branch that is taken gets
/// compiled.
pub(crate) struct Registers<S>(PhantomData<S>);

impl<S: Simd> Registers<S> {
    /// Whether there are at least 32 vector registers, rather than 16.
    pub(crate) const ARE_MANY: bool = S::REGISTER_COUNT >= 32;
}

/// Whether `M · P` sums and their operands fit the registers of an instruction set, as a constant.
pub(crate) struct Tiled<S, const M: usize, const P: usize>(PhantomData<S>);

impl<S: Simd, const M: usize, const P: usize> Tiled<S, M, P> {
    /// The operands are a row of `P` vectors and a factor. If no register were left over, a sum would be spilled in
    /// each step.
    pub(crate) const FITS: bool = (M + 1) * P + 1 < S::REGISTER_COUNT;
}

/// The number of rows of a register tile for a matrix of `n_rows`: large, but with few empty rows in the last tile.
///
/// One of 8, 6, 5, 4, 2 and 1.
pub(crate) fn tile_rows<S: Simd>(n_rows: usize) -> usize {
    // Pairs of rows and relative time of a row. With 16 registers, 8 rows leave only a single column of vectors.
    // Smaller tiles load more for each sum, and expose the latency of additions.
    let sizes: &[(usize, usize)] = match Registers::<S>::ARE_MANY {
        true => &[(8, 1), (6, 1), (5, 1), (4, 1), (2, 1), (1, 1)],
        false => &[(6, 20), (5, 21), (4, 22), (2, 28), (1, 40)],
    };
    let time = |&&(rows, time_of_row): &&(usize, usize)| n_rows.next_multiple_of(rows) * time_of_row;
    sizes.iter().min_by_key(time).map_or(1, |&(rows, _)| rows)
}

/// `f32` and `f64` in vectors. `S` is an instruction set; a vector of it holds [`Lanes::lanes`] numbers.
pub(crate) trait Lanes: Pod + Zeroable + Send + Sync + PartialOrd + std::ops::Add<Output = Self> {
    /// The vector.
    type Vector<S: Simd>: Pod;

    /// Numbers per vector.
    fn lanes<S: Simd>() -> usize {
        size_of::<Self::Vector<S>>() / size_of::<Self>()
    }
    /// The same number in all lanes.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// `a + b`
    fn add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a · b + c`, rounded once.
    fn mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of the lanes, in an order that depends on `S` only.
    fn sum<S: Simd>(simd: S, vector: Self::Vector<S>) -> Self;
    /// The first numbers of the slice, as many as fit; zeros where it is too short.
    fn load<S: Simd>(simd: S, from: &[Self]) -> Self::Vector<S>;
    /// The first vectors of the slice; zeros where it is too short.
    #[inline(always)]
    fn first_vectors<S: Simd, const N: usize>(simd: S, from: &[Self]) -> [Self::Vector<S>; N] {
        let lanes = Self::lanes::<S>();
        let mut vectors = [Self::splat(simd, Self::zeroed()); N];
        match from.get(..N * lanes) {
            Some(whole) => vectors.copy_from(Self::vectors::<S>(whole)),
            None => {
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = Self::load(simd, &from[(v * lanes).min(from.len())..]);
                }
            }
        }
        vectors
    }
    /// Writes the first lanes, as many as the slice has room for.
    fn store<S: Simd>(simd: S, to: &mut [Self], vector: Self::Vector<S>);
    /// The slice as whole vectors, without the numbers that are left over.
    fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vector<S>];
    /// As [`Lanes::vectors`], but mutable.
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vector<S>];
    /// Zero in lanes below zero; -0 and NaN stay what they are.
    fn relu<S: Simd>(simd: S, vector: Self::Vector<S>) -> Self::Vector<S>;
    /// Zero in lanes where `of` is at most zero; the others stay what they are, also where `of` is NaN.
    fn where_positive<S: Simd>(simd: S, vector: Self::Vector<S>, of: Self::Vector<S>) -> Self::Vector<S>;
    /// Splits pairs of neighbors into the first ones and the second ones.
    fn unzipped<const W: usize>(pairs: &[[Self; 2]; W]) -> [[Self; W]; 2];
}

macro_rules! lanes {
    ($type:ty, $vector:ident, $splat:ident, $add:ident, $mul_add:ident, $sum:ident, $load:ident,
     $store:ident, $vectors:ident, $vectors_mut:ident, $less:ident, $at_most:ident,
     $select:ident, $unzipped:ident) => {
        impl Lanes for $type {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }
            #[inline(always)]
            fn add<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn mul_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }
            #[inline(always)]
            fn sum<S: Simd>(simd: S, vector: S::$vector) -> Self {
                simd.$sum(vector)
            }
            #[inline(always)]
            fn load<S: Simd>(simd: S, from: &[Self]) -> S::$vector {
                simd.$load(from)
            }
            #[inline(always)]
            fn store<S: Simd>(simd: S, to: &mut [Self], vector: S::$vector) {
                simd.$store(to, vector)
            }
            #[inline(always)]
            fn vectors<S: Simd>(slice: &[Self]) -> &[S::$vector] {
                S::$vectors(slice).0
            }
            #[inline(always)]
            fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::$vector] {
                S::$vectors_mut(slice).0
            }
            #[inline(always)]
            fn relu<S: Simd>(simd: S, vector: S::$vector) -> S::$vector {
                let zero = simd.$splat(0.0);
                simd.$select(simd.$less(vector, zero), zero, vector)
            }
            #[inline(always)]
            fn where_positive<S: Simd>(simd: S, vector: S::$vector, of: S::$vector) -> S::$vector {
                let zero = simd.$splat(0.0);
                simd.$select(simd.$at_most(of, zero), zero, vector)
            }
            #[inline(always)]
            fn unzipped<const W: usize>(pairs: &[[Self; 2]; W]) -> [[Self; W]; 2] {
                $unzipped(pairs)
            }
        }
    };
}

lanes!(
    f32,
    f32s,
    splat_f32s,
    add_f32s,
    mul_add_e_f32s,
    reduce_sum_f32s,
    partial_load_f32s,
    partial_store_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    less_than_f32s,
    less_than_or_equal_f32s,
    select_f32s,
    unzipped_f32
);
lanes!(
    f64,
    f64s,
    splat_f64s,
    add_f64s,
    mul_add_e_f64s,
    reduce_sum_f64s,
    partial_load_f64s,
    partial_store_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    less_than_f64s,
    less_than_or_equal_f64s,
    select_f64s,
    unzipped_f64
);

/// Reads pairs as integers and stores their halves, which the compiler turns into narrowing stores. The same code
/// with floats becomes a shuffle and a store for each pair.
#[inline(always)]
fn unzipped_f32<const W: usize>(pairs: &[[f32; 2]; W]) -> [[f32; W]; 2] {
    let mut halves = [[0.0; W]; 2];
    for (i, &pair) in pairs.iter().enumerate() {
        let pair: u64 = bytemuck::cast(pair);
        (halves[0][i], halves[1][i]) = (f32::from_bits(pair as u32), f32::from_bits((pair >> 32) as u32));
    }
    halves
}

#[inline(always)]
fn unzipped_f64<const W: usize>(pairs: &[[f64; 2]; W]) -> [[f64; W]; 2] {
    let mut halves = [[0.0; W]; 2];
    for (i, &[even, odd]) in pairs.iter().enumerate() {
        (halves[0][i], halves[1][i]) = (even, odd);
    }
    halves
}

/// Tests run every kernel on every instruction set that the machine has.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
    }

    /// Whether a test requests an instruction set that is not this machine's best.
    pub(super) fn is_forced() -> bool {
        matches!(FORCED.get(), Some(level) if !matches!(level, Level::Best))
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Level {
        #[cfg(target_arch = "x86_64")]
        Avx2(pulp::x86::V3),
        Best,
    }

    impl Level {
        pub(super) fn run<K: WithSimd>(self, kernel: K) -> K::Output {
            match self {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(simd) => Simd::vectorize(simd, kernel),
                Level::Best => vectorize(kernel),
            }
        }
    }

    /// The instruction sets that can be tested here.
    pub(crate) fn levels() -> Vec<Level> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        levels.extend(pulp::x86::V3::try_new().map(Level::Avx2));
        levels.push(Level::Best);
        levels
    }

    /// Runs `body` with [`dispatch`] on this thread bound to `level`.
    pub(crate) fn with_level<R>(level: Level, body: impl FnOnce() -> R) -> R {
        FORCED.set(Some(level));
        let result = body();
        FORCED.set(None);
        result
    }
}
