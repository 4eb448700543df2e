//! Whole tensors of random numbers, [`LANES`] counters at a time.
//!
//! Every element is a function of seed, stream and position alone, and all operations are the same for every
//! instruction set, so tensors are the same on any machine and for any number of threads. The first elements of a
//! longer tensor are those of a shorter one.

use super::{Draw, philox};
use crate::cpu::{StoredMut, math, vectorized_widely};
use crate::element::Real;
use crate::inlined::{Array, Flat, Slice, zip};

/// Counters computed together: with 32 bits each they fill the widest vector registers.
pub(super) const LANES: usize = 16;

/// The random bits of [`LANES`] counters, four words for each.
type Words = [[u32; LANES]; 4];

/// Elements per task: a whole number of blocks.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Uniform in [0, 1).
pub(crate) fn fill_uniform<R: Units<ROWS>, const ROWS: usize>(draw: Draw, mut out: StoredMut<'_, R>) {
    fill(draw, out.all(), inlined!(|words| R::units(words)));
    if let StoredMut::Halves(bits, half) = out {
        // Numbers near 1 were rounded up to 1, which is outside the range.
        let [one, below] = half.bits_of([1.0, 1.0 - 1.0 / 256.0]);
        bits.iter_mut().filter(|bits| **bits == one).for_each(|bits| *bits = below);
    }
}

/// From the normal distribution with mean 0 and variance 1.
pub(crate) fn fill_normal<R: Units<ROWS>, const ROWS: usize>(draw: Draw, out: StoredMut<'_, R>) {
    fill(draw, out, inlined!(|words| normals::<R, ROWS>(words)));
}

/// Fills `out` with `numbers` of consecutive blocks of counters, row after row.
fn fill<R: Units<ROWS>, const ROWS: usize>(
    draw: Draw,
    out: StoredMut<'_, R>,
    numbers: impl Fn(Words) -> [[R; LANES]; ROWS] + Sync,
) {
    let Draw { seed, stream, position: start, .. } = draw;
    out.for_each_chunk(CHUNK, &|chunk, mut out| {
        let first = start.wrapping_add(counters_of_chunks(chunk, ROWS));
        out.each_piece(|at, out| {
            let first = first.wrapping_add((at / ROWS) as u64);
            vectorized_widely(inlined!(|| {
                for (block, out) in out.chunks_mut(ROWS * LANES).enumerate() {
                    let position = first.wrapping_add((block * LANES) as u64);
                    let numbers = numbers(philox(seed, position, stream));
                    out.copy_from(&numbers.flattened()[..out.len()]);
                }
            }));
        });
    });
}

/// The number of counters that the first `chunks` chunks take.
fn counters_of_chunks(chunks: usize, rows: usize) -> u64 {
    (chunks * CHUNK / rows) as u64
}

impl Draw {
    /// The draw of the numbers after the first `chunks` chunks of [`CHUNK`] numbers of `f32`.
    pub(crate) fn after_chunks_of_f32(self, chunks: usize) -> Draw {
        Draw { position: self.position.wrapping_add(counters_of_chunks(chunks, 4)), ..self }
    }
}

/// Floats that are made of random words. An `f32` takes one word, so a block gives four rows; an `f64` takes two
/// words.
pub(crate) trait Units<const ROWS: usize>: Real {
    /// How many terms of the series of sine and cosine up to π/2 reach the precision of the type.
    const TERMS: usize;
    /// Uniform in [0, 1), with as many bits as fit.
    fn units(words: Words) -> [[Self; LANES]; ROWS];
    /// The natural logarithm.
    fn log(self) -> Self;
}

impl Units<4> for f32 {
    const TERMS: usize = 6;

    #[inline(always)]
    fn units(words: Words) -> [[f32; LANES]; 4] {
        words.mapped(|row| row.mapped(|word| (word >> 8) as f32 / (1u32 << 24) as f32))
    }

    #[inline(always)]
    fn log(self) -> f32 {
        math::f32::ln(self)
    }
}

impl Units<2> for f64 {
    const TERMS: usize = 11;

    #[inline(always)]
    fn units([a, b, c, d]: Words) -> [[f64; LANES]; 2] {
        // Not `from_fn`, which would be compiled for the baseline.
        let mut units = [[0.0; LANES]; 2];
        for (row, [low, high]) in zip(&mut units[..], [[a, b], [c, d]]) {
            for ((unit, low), high) in zip(zip(&mut row[..], low), high) {
                *unit = ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64 / (1u64 << 53) as f64;
            }
        }
        units
    }

    #[inline(always)]
    fn log(self) -> f64 {
        math::f64::ln(self)
    }
}

/// Two uniform numbers make two normal ones: G. Box and M. Muller, 1958, <https://doi.org/10.1214/aoms/1177706645>.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "lanes in step become vector instructions")]
fn normals<R: Units<ROWS>, const ROWS: usize>(words: Words) -> [[R; LANES]; ROWS] {
    let mut rows = R::units(words);
    for pair in 0..ROWS / 2 {
        for i in 0..LANES {
            let (a, b) = (rows[2 * pair][i], rows[2 * pair + 1][i]);
            let radius = (R::from_f64(-2.0) * (R::ONE - a).log()).sqrt();
            let (sin, cos) = sin_cos_turns(b - R::from_f64(0.5));
            (rows[2 * pair][i], rows[2 * pair + 1][i]) = (radius * cos, radius * sin);
        }
    }
    rows
}

/// sin(2πt) and cos(2πt) for t from −½ to ½.
#[inline(always)]
fn sin_cos_turns<R: Units<ROWS>, const ROWS: usize>(t: R) -> (R, R) {
    let (half, quarter) = (R::from_f64(0.5), R::from_f64(0.25));
    let is_left = t.magnitude() > quarter; // in the left half plane: mirrored to the right, where |t| ≤ ¼
    let mirrored = if t > R::ZERO { half - t } else { -half - t };
    let x = (if is_left { mirrored } else { t }) * R::from_f64(std::f64::consts::TAU);
    let (mut sin, mut cos) = (R::ONE, R::ONE);
    for k in 0..R::TERMS {
        let even = (2 * (R::TERMS - k)) as f64;
        sin = R::ONE - x * x * R::from_f64(1.0 / (even * (even + 1.0))) * sin;
        cos = R::ONE - x * x * R::from_f64(1.0 / (even * (even - 1.0))) * cos;
    }
    (x * sin, if is_left { -cos } else { cos })
}

#[cfg(test)]
mod tests {
    use super::super::Generator;
    use super::*;
    use crate::element::DType;

    #[test]
    fn rows_of_a_block_are_the_words_of_its_counters() {
        let mut out = [0.0f32; 80];
        fill_uniform(Draw::new(&Generator::new(5), out.len(), DType::F32), (&mut out[..]).into());

        for (i, &x) in out.iter().enumerate() {
            let counter = (i / 64 * 16 + i % 16) as u64;
            let [word] = philox::<1>(5, counter, 0)[i % 64 / 16];
            assert_eq!(x, (word >> 8) as f32 / 16_777_216.0, "element {i}");
        }
    }

    #[test]
    fn sine_and_cosine_reach_the_precision_of_the_type() {
        for i in -1000..=1000 {
            let turns = f64::from(i) / 2000.0;
            let (sin, cos) = (turns * std::f64::consts::TAU).sin_cos();
            let double = sin_cos_turns(turns);
            assert!((double.0 - sin).abs() < 5e-16 && (double.1 - cos).abs() < 5e-16, "{turns}: {double:?}");

            let turns = turns as f32;
            let (sin, cos) = (f64::from(turns) * std::f64::consts::TAU).sin_cos();
            let single = sin_cos_turns(turns);
            let errors = (f64::from(single.0) - sin, f64::from(single.1) - cos);
            assert!(errors.0.abs() < 2e-7 && errors.1.abs() < 2e-7, "{turns}: {errors:?}");
        }
    }
}
