//! Products of `bf16` by the instruction that x86 processors have for them since 2020, twice as fast as products in `f32`.
//!
//! It adds two products to a sum in `f32`, and takes subnormal numbers for zero, as PyTorch's products of `bf16` do. Both
//! sides are packed so that pairs of numbers that meet in one sum lie next to each other.

use std::arch::x86_64::{__m256i, __m512bh, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps};

use pagelock_memory::Result;
use pulp::x86::V3;

use super::{Matrix, Sizes};
use crate::cpu::math::half::Half;
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// Rows and columns of a tile, whose sums stay in registers.
const ROWS: usize = 8;
const COLUMNS: usize = 32;
/// Panels of the right side that a task packs.
const PANELS: usize = 8;
/// Multiply-adds that are worth packing.
const MIN_WORK: usize = 1 << 15;
/// The fewest columns: fewer leave most of a tile empty.
const MIN_COLUMNS: usize = 8;
/// How many tasks there should be at least, if there are enough rows.
const ENOUGH_TASKS: usize = 16;
/// The fewest rows of a task that has not all: each reads the packed right side once.
const MIN_TASK_ROWS: usize = 2 * ROWS;
/// Numbers of the left side that a task packs; they stay in the second-level cache.
const TASK_LEN: usize = 256 << 10;

/// Two numbers that follow each other along the inner dimension, the first in the lower half.
type Pair = u32;

/// Computes `c = a · b`, for numbers given as their bits, if the processor has the instruction and the product is large
/// enough; else none.
pub(super) fn product(sizes: Sizes, sides: [Matrix<'_, u16>; 2], c: &mut [u16]) -> Option<Result<()>> {
    let Sizes { m, k, n } = sizes;
    let is_large = n >= MIN_COLUMNS && m.saturating_mul(k).saturating_mul(n) >= MIN_WORK;
    instructions().filter(|_| is_large).map(|instructions| packed_product(sizes, sides, c, instructions))
}

fn packed_product(sizes: Sizes, [a, b]: [Matrix<'_, u16>; 2], c: &mut [u16], instructions: Instructions) -> Result<()> {
    let Sizes { m, k, n } = sizes;
    let pairs = k.div_ceil(2);
    let rows = m.div_ceil(ENOUGH_TASKS).max(MIN_TASK_ROWS).min(TASK_LEN / k).max(1).next_multiple_of(ROWS);
    scratch::with(pairs * n.div_ceil(COLUMNS), |right: &mut [[Pair; COLUMNS]]| {
        for_each_chunk_mut(right, PANELS * pairs, |task, to| {
            let first = task * PANELS * COLUMNS;
            let from = Matrix { numbers: &b.numbers[first * b.strides[1]..], strides: [b.strides[1], b.strides[0]] };
            pack(instructions.simd, from, [(PANELS * COLUMNS).min(n - first), k], to);
        });
        try_for_each_chunk_mut(c, rows * n, |task, c| {
            let a = Matrix { numbers: &a.numbers[task * rows * a.strides[0]..], ..a };
            task_product(Sizes { m: c.len() / n, ..sizes }, (a, right), c, instructions)
        })
    })
}

/// The product of some rows with the packed right side.
fn task_product(
    Sizes { m, k, n }: Sizes,
    (a, right): (Matrix<'_, u16>, &[[Pair; COLUMNS]]),
    c: &mut [u16],
    instructions: Instructions,
) -> Result<()> {
    let pairs = k.div_ceil(2);
    scratch::with(pairs * m.div_ceil(ROWS), |left: &mut [[Pair; ROWS]]| {
        pack(instructions.simd, a, [m, k], left);
        for (j, right) in right.chunks_exact(pairs).enumerate() {
            for (i, left) in left.chunks_exact(pairs).enumerate() {
                let sums = (instructions.tile)(left, right);
                for (row, sums) in (i * ROWS..m).zip(&sums) {
                    let width = COLUMNS.min(n - j * COLUMNS);
                    Half::BF16.narrow(&sums[..width], &mut c[row * n + j * COLUMNS..][..width]);
                }
            }
        }
        Ok(())
    })
}

/// Packs `lines` lines of `len` numbers, which are `strides` apart from line to line and from number to number, in panels of
/// `W` lines: the pairs with one place in all lines of a panel lie side by side, with zeros for lines that there are not.
fn pack<const W: usize>(
    simd: V3,
    Matrix { numbers, strides }: Matrix<'_, u16>,
    [lines, len]: [usize; 2],
    to: &mut [[Pair; W]],
) {
    if !lines.is_multiple_of(W) {
        to.fill([0; W]);
    }
    simd.vectorize(
        #[inline(always)]
        || match strides {
            [1, step] => pack_across((numbers, step), [lines, len], to),
            [step, 1] => pack_along(simd, (numbers, step), [lines, len], to),
            [line_step, step] => {
                let places = (0..lines).flat_map(|line| (0..len).step_by(2).map(move |place| (line, place)));
                for (line, place) in places {
                    let at = line * line_step + place * step;
                    let second = if place + 1 < len { numbers[at + step] } else { 0 };
                    to[line / W * len.div_ceil(2) + place / 2][line % W] = pair(numbers[at], second);
                }
            }
        },
    );
}

#[inline(always)]
fn pair(first: u16, second: u16) -> Pair {
    Pair::from(first) | Pair::from(second) << 16
}

/// [`pack`] of lines that lie side by side.
#[inline(always)]
fn pack_across<const W: usize>((numbers, step): (&[u16], usize), [lines, len]: [usize; 2], to: &mut [[Pair; W]]) {
    let pairs = len.div_ceil(2);
    for p in 0..pairs {
        let first = &numbers[2 * p * step..][..lines];
        let second = numbers.get((2 * p + 1) * step..).filter(|_| 2 * p + 1 < len);
        for (panel, to) in to[p..].iter_mut().step_by(pairs).enumerate() {
            let places = panel * W..(panel * W + W).min(lines);
            match second {
                Some(second) => {
                    let both = first[places.clone()].iter().zip(&second[places]);
                    to.iter_mut().zip(both).for_each(|(to, (&first, &second))| *to = pair(first, second));
                }
                None => to.iter_mut().zip(&first[places]).for_each(|(to, &first)| *to = pair(first, 0)),
            }
        }
    }
}

/// Lines and pairs that are transposed in registers.
const SQUARE: usize = 8;

/// [`pack`] of lines whose numbers lie side by side.
#[inline(always)]
fn pack_along<const W: usize>(
    simd: V3,
    (numbers, step): (&[u16], usize),
    [lines, len]: [usize; 2],
    to: &mut [[Pair; W]],
) {
    let pairs = len.div_ceil(2);
    for first in (0..lines).step_by(SQUARE) {
        let panel = &mut to[first / W * pairs..][..pairs];
        for (block, to) in panel.chunks_mut(SQUARE).enumerate() {
            let mut square = [[0; 2 * SQUARE]; SQUARE];
            for (part, line) in square.iter_mut().zip(first..lines) {
                let from = &numbers[line * step..][..len][2 * SQUARE * block..];
                match from.first_chunk() {
                    Some(whole) => *part = *whole,
                    None => part[..from.len()].copy_from_slice(from),
                }
            }
            for (to, pairs) in to.iter_mut().zip(transposed(simd, square)) {
                to[first % W..][..SQUARE].copy_from_slice(&pairs);
            }
        }
    }
}

/// The pairs of a square's lines, by place.
#[inline(always)]
fn transposed(simd: V3, lines: [[u16; 2 * SQUARE]; SQUARE]) -> [[Pair; SQUARE]; SQUARE] {
    let (avx, avx2) = (simd.avx, simd.avx2);
    let [a, b, c, d, e, f, g, h]: [__m256i; SQUARE] = bytemuck::cast(lines);
    // Within each half of the registers: pairs of two lines, then of four.
    let twos = |a, b| [avx2._mm256_unpacklo_epi32(a, b), avx2._mm256_unpackhi_epi32(a, b)];
    let fours = |[a_low, a_high]: [__m256i; 2], [b_low, b_high]: [__m256i; 2]| {
        let of = |a, b| [avx2._mm256_unpacklo_epi64(a, b), avx2._mm256_unpackhi_epi64(a, b)];
        let ([p, q], [r, s]) = (of(a_low, b_low), of(a_high, b_high));
        [p, q, r, s]
    };
    let ([p, q, r, s], [t, u, v, w]) = (fours(twos(a, b), twos(c, d)), fours(twos(e, f), twos(g, h)));
    let low = |a, b| avx._mm256_permute2f128_si256::<0x20>(a, b);
    let high = |a, b| avx._mm256_permute2f128_si256::<0x31>(a, b);
    bytemuck::cast([low(p, t), low(q, u), low(r, v), low(s, w), high(p, t), high(q, u), high(r, v), high(s, w)])
}

/// The sums of products of pairs, of up to [`ROWS`] rows with up to [`COLUMNS`] columns.
type Tile = [[f32; COLUMNS]; ROWS];

/// What this processor needs.
#[derive(Clone, Copy)]
struct Instructions {
    simd: V3,
    tile: fn(&[[Pair; ROWS]], &[[Pair; COLUMNS]]) -> Tile,
}

/// None on processors without.
fn instructions() -> Option<Instructions> {
    let simd = V3::try_new()?;
    if !(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")) {
        return None;
    }
    // SAFETY: the processor has both instruction sets.
    Some(Instructions { simd, tile: |left, right| unsafe { tile(left, right) } })
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn tile(left: &[[Pair; ROWS]], right: &[[Pair; COLUMNS]]) -> Tile {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (left, right) in left.iter().zip(right) {
        let right: [__m512bh; 2] = bytemuck::cast(*right);
        for (sums, &pair) in sums.iter_mut().zip(left) {
            let left: __m512bh = bytemuck::cast(_mm512_set1_epi32(pair.cast_signed()));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_dpbf16_ps(*sum, left, right);
            }
        }
    }
    bytemuck::cast(sums)
}
