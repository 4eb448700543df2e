//! Races of exponential variables whose rates are weights: the first one is each with the probability of its weight. Numbers are
//! drawn and compared piece by piece, and none of them is stored.

use super::Draw;
use super::fill::{CHUNK, LANES, fill_uniform};
use crate::cpu::{PIECE, Stored, StoredMut, vectorized_widely};
use crate::element::Real;
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
        let (first, mut room, mut most) = (i * rows, [R::ZERO; PIECE], [0.0; PIECE]);
        let mut numbers = Numbers { draw, end: (first + out.len()) * classes, start: 0, len: 0, room: [0.0; DRAWN] };
        for (row, out) in (first..).zip(out) {
            let mut best = None;
            for start in (0..classes).step_by(PIECE) {
                let len = PIECE.min(classes - start);
                let weights = weights.part(row / samples * classes + start, len).widened(&mut room);
                let drawn = numbers.part(row * classes + start, len);
                let (most, best) = (&mut most[..len], &mut best);
                vectorized_widely(
                    #[inline(always)]
                    || race(weights, drawn, start, most, best),
                );
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

/// Lets some weights race against the best of those before them; the first of them has number `start`.
///
/// Of a number u that was drawn, −ln(1 − u) is at least u and at most u / (1 − u). So a weight w makes at most w / u and at least
/// w / u − w of it: few have to be computed exactly. `most` is room for as many numbers.
#[inline(always)]
fn race<R: Real>(weights: &[R], drawn: &[f64], start: usize, most: &mut [f64], best: &mut Option<(f64, usize)>) {
    const WIDTH: usize = 16;
    const ROUNDING: f64 = 1e-12; // more than that of any of this
    let mut least = [0.0; WIDTH];
    for ((most, weights), drawn) in most.chunks_mut(WIDTH).zip(weights.chunks(WIDTH)).zip(drawn.chunks(WIDTH)) {
        for (((most, least), &weight), &drawn) in most.iter_mut().zip(&mut least).zip(weights).zip(drawn) {
            let weight: f64 = weight.cast();
            *most = weight / drawn;
            let bound = *most * (1.0 - ROUNDING) - weight;
            *least = if bound > *least { bound } else { *least };
        }
    }
    let least = least.iter().fold(0.0, |least, &bound| if bound > least { bound } else { least });
    // Without a positive weight nothing is known.
    let least = if least > 0.0 { least } else { f64::NEG_INFINITY };
    for (i, most) in most.chunks(WIDTH).enumerate() {
        if !most.iter().fold(false, |any, &most| any | !(most < least)) {
            continue;
        }
        for (i, _) in (i * WIDTH..).zip(most).filter(|&(_, &most)| !(most < least)) {
            let number = weights[i].cast::<f64>() / -(-drawn[i]).ln_1p();
            if best.is_none_or(|(best, _)| number > best || number.is_nan() && !best.is_nan()) {
                *best = Some((number, start + i));
            }
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
            let numbers: Vec<f64> = weights.iter().zip(drawn).map(|(w, &u)| w / -(-u).ln_1p()).collect();
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
