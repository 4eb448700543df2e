//! Races of exponential variables whose rates are weights: the first one is each with the probability of its weight. Numbers are
//! drawn and compared piece by piece, and none of them is stored.

use super::Draw;
use super::fill::{CHUNK, LANES, fill_uniform};
use crate::cpu::math::f64::ln_1p;
use crate::cpu::{PIECE, Stored, StoredMut, vectorized_widely};
use crate::element::Real;
use crate::inlined::{Flat, Slice};
use crate::parallel::for_each_chunk_mut;

/// Numbers of the counters that are computed together.
const BLOCK: usize = 2 * LANES;
/// Numbers that are drawn together: any [`PIECE`] of them, from the beginning of a block.
const DRAWN: usize = 2 * PIECE;

/// `out[i]` is the place that wins among the `classes` weights of row `i / samples`: the first with the largest number that
/// [`Tensor::race`](crate::Tensor::race) makes of the weights and of what is drawn, `classes` numbers for each `i`.
pub(crate) fn winners<R: Real>(draw: Draw, weights: Stored<'_, R>, [classes, samples]: [usize; 2], out: &mut [i64]) {
    let rows = (CHUNK / classes).max(1);
    for_each_chunk_mut(out, rows, |i, out| {
        let (first, mut room, mut most) = (i * rows, [R::ZERO; PIECE], [[0.0; WIDTH]; PIECE / WIDTH]);
        let mut numbers = Numbers { draw, end: (first + out.len()) * classes, start: 0, len: 0, room: [0.0; DRAWN] };
        for (row, out) in (first..).zip(out) {
            let mut best = None;
            for start in (0..classes).step_by(PIECE) {
                let len = PIECE.min(classes - start);
                let weights = weights.part(row / samples * classes + start, len).widened(&mut room);
                let drawn = numbers.part(row * classes + start, len);
                let most = &mut most[..len.div_ceil(WIDTH)];
                let Candidates { least, count, sum } = vectorized_widely(
                    #[inline(always)]
                    || candidates(weights, drawn, most),
                );
                match len == classes && count == 1 {
                    true => best = Some((least, sum as usize)),
                    false => race((weights, drawn, start), (most.flattened(), least), &mut best),
                }
            }
            *out = best.map_or(0, |(_, place)| place as i64);
        }
    });
}

/// Uniform numbers of a tensor, of which some are there.
struct Numbers {
    draw: Draw,
    /// How many are wanted.
    end: usize,
    start: usize,
    len: usize,
    room: [f64; DRAWN],
}

impl Numbers {
    /// At most [`PIECE`] numbers from number `first` on.
    fn part(&mut self, first: usize, len: usize) -> &[f64] {
        if first < self.start || first + len > self.start + self.len {
            self.start = first / BLOCK * BLOCK;
            self.len = DRAWN.min(self.end - self.start);
            let position = self.draw.position.wrapping_add((self.start / 2) as u64);
            fill_uniform(Draw { position, ..self.draw }, StoredMut::Plain(&mut self.room[..self.len]));
        }
        &self.room[first - self.start..][..len]
    }
}

/// Numbers that are computed together.
const WIDTH: usize = 16;

/// Weights of which one is the best.
struct Candidates {
    /// Below what the best weight makes: those that make less cannot win. −∞ if nothing is known.
    least: f64,
    /// How many may win, and the sum of their places.
    count: u64,
    sum: u64,
}

/// Finds the weights that may win, and the `most` that each makes.
///
/// Of a number u that was drawn, −ln(1 − u) is at least u and at most u / (1 − u). So a weight w makes at most w / u and at least
/// w / u − w of it: few have to be computed exactly. Behind the last weight are zeros.
#[inline(always)]
fn candidates<R: Real>(weights: &[R], drawn: &[f64], most: &mut [[f64; WIDTH]]) -> Candidates {
    const ROUNDING: f64 = 1e-12; // more than that of any of this
    let mut bounds = [0.0; WIDTH];
    for (i, most) in most.iter_mut().enumerate() {
        let (weights, drawn) = (block(weights, i, R::ZERO), block(drawn, i, 1.0));
        for lane in 0..WIDTH {
            let weight: f64 = weights[lane].cast();
            most[lane] = weight / drawn[lane];
            let bound = most[lane] * (1.0 - ROUNDING) - weight;
            bounds[lane] = if bound > bounds[lane] { bound } else { bounds[lane] };
        }
    }
    let least = bounds.iter().fold(0.0, |least, &bound| if bound > least { bound } else { least });
    // Without a positive weight nothing is known.
    let least = if least > 0.0 { least } else { f64::NEG_INFINITY };
    let (mut counts, mut sums) = ([0; WIDTH], [0; WIDTH]);
    for (i, most) in most.iter().enumerate() {
        for lane in 0..WIDTH {
            let may_win = is_candidate(most[lane], least);
            counts[lane] += u64::from(may_win);
            sums[lane] += if may_win { (i * WIDTH + lane) as u64 } else { 0 };
        }
    }
    Candidates { least, count: counts.iter().sum(), sum: sums.iter().sum() }
}

/// NaN may win.
#[inline(always)]
fn is_candidate(most: f64, least: f64) -> bool {
    !matches!(most.partial_cmp(&least), Some(std::cmp::Ordering::Less))
}

/// Block number `i` of some numbers, with `padding` behind the last.
#[inline(always)]
fn block<T: Copy>(numbers: &[T], i: usize, padding: T) -> [T; WIDTH] {
    let numbers = &numbers[i * WIDTH..];
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [padding; WIDTH];
            whole[..numbers.len()].copy_from(numbers);
            whole
        }
    }
}

/// Lets the candidates among some weights race against the best of those before them; the first weight has number `start`.
fn race<R: Real>(
    (weights, drawn, start): (&[R], &[f64], usize),
    (most, least): (&[f64], f64),
    best: &mut Option<(f64, usize)>,
) {
    for (i, (weight, drawn)) in weights.iter().zip(drawn).enumerate().filter(|&(i, _)| is_candidate(most[i], least)) {
        let number = weight.cast::<f64>() / -ln_1p(-drawn);
        if best.is_none_or(|(best, _)| number > best || number.is_nan() && !best.is_nan()) {
            *best = Some((number, start + i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Generator;
    use super::*;
    use crate::element::DType;

    /// As the numbers computed one by one say.
    fn check(rows: usize, classes: usize, samples: usize, weight: impl Fn(usize) -> f64) {
        let weights: Vec<f64> = (0..rows * classes).map(weight).collect();
        let (mut drawn, mut out) = (vec![0.0; rows * samples * classes], vec![0; rows * samples]);
        let draw = Draw::new(&Generator::new(7), drawn.len(), DType::F64);
        fill_uniform(draw, StoredMut::Plain(&mut drawn[..]));

        winners(draw, Stored::Plain(&weights), [classes, samples], &mut out);

        for (i, drawn) in drawn.chunks(classes).enumerate() {
            let weights = &weights[i / samples * classes..][..classes];
            let numbers: Vec<f64> = weights.iter().zip(drawn).map(|(w, &u)| w / -ln_1p(-u)).collect();
            let beats = |a: f64, b: f64| a > b || a.is_nan() && !b.is_nan();
            let best = (0..classes).fold(0, |best, i| if beats(numbers[i], numbers[best]) { i } else { best });
            assert_eq!(out[i], best as i64, "{rows} rows of {classes}, sample {i}");
        }
    }

    #[test]
    fn winners_are_those_of_numbers_computed_one_by_one() {
        for (rows, classes, samples) in
            [(1, 1, 5), (700, 3, 2), (500, 64, 2), (30, 77, 3), (7, 1_500, 2), (2, 40_000, 1)]
        {
            check(rows, classes, samples, |i| (i * 37 % 101) as f64);
            check(rows, classes, samples, |i| if i % 50 == 3 { 1e-300 } else { 0.0 });
            check(rows, classes, samples, |_| 0.0);
            check(rows, classes, samples, |i| if i % 3 == 1 { -2.0 } else { i as f64 * 1e300 });
            check(rows, classes, samples, |i| if i % 91 == 60 { f64::NAN } else { f64::INFINITY });
        }
    }
}
