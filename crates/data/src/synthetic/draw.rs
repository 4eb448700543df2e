//! From strokes to pixels: bend and place the strokes of one glyph, then put ink around them.
//!
//! Only additions, multiplications, divisions and square roots of `f32` are used (no sine, no logarithm), which
//! IEEE 754 defines to the last bit: the same seed gives the same image on every machine.

use pagelock_tensor::Generator;

use super::glyphs::{GLYPHS, Glyph, Line, Stroke};
use crate::digits::{PIXELS, SIDE};

/// Straight pieces per span of a curve: short enough that 28 × 28 pixels show no corner.
const PIECES: usize = 4;

/// Draws `digit` into `image` (row-major, 0 is paper, 255 is ink). The same dice give the same bytes.
pub(super) fn draw_digit(digit: usize, dice: &Dice, image: &mut [u8]) {
    let ways = GLYPHS[digit];
    let glyph = ways[dice.below(ways.len())];
    let hand = Hand::new(dice);
    let mut ink = Ink::new();
    draw_glyph(glyph, &hand, dice, &mut ink);
    ink.develop(&hand, dice, image);
}

/// Random numbers in the forms that drawing needs.
pub(super) struct Dice(pub(super) Generator);

impl Dice {
    pub(super) fn below(&self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// Uniform in `low..high`.
    fn between(&self, low: f32, high: f32) -> f32 {
        let unit = (self.0.next_u64() >> 40) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// A bell-shaped number with mean 0 and standard deviation `sd`: the sum of four uniform ones, so never
    /// beyond 3.5 `sd`.
    fn around_zero(&self, sd: f32) -> f32 {
        let bits = self.0.next_u64();
        let sum: f32 = (0..4).map(|part| (bits >> (16 * part) & 0xFFFF) as f32).sum();
        (sum / 65_536.0 - 2.0) * 1.732_050_8 * sd
    }
}

/// How this one image was written: slant, size, place, pen.
struct Hand {
    /// Unit box to pixels: `[x, y] = matrix · ([u, v] − 0.5) + center`.
    matrix: [[f32; 2]; 2],
    center: [f32; 2],
    /// Standard deviation of each point's own error, as a fraction of the unit box.
    wobble: f32,
    /// Half the pen's width in pixels.
    radius: f32,
    /// How far the edge of a stroke fades, in pixels.
    softness: f32,
    /// Darkness of full ink, 0 to 255.
    darkness: f32,
    /// Standard deviation of the paper's grain, 0 to 255.
    grain: f32,
}

impl Hand {
    fn new(dice: &Dice) -> Self {
        let height = dice.between(16.0, 21.5);
        let width = height * dice.between(0.55, 0.95);
        // tan(angle / 2) gives sine and cosine without a library's sine.
        let half_tangent = dice.around_zero(0.07);
        let norm = 1.0 + half_tangent * half_tangent;
        let (cos, sin) = ((1.0 - half_tangent * half_tangent) / norm, 2.0 * half_tangent / norm);
        let slant = dice.around_zero(0.18) - 0.12;
        // rotate · shear · scale
        let matrix = [[cos * width, (cos * slant - sin) * height], [sin * width, (sin * slant + cos) * height]];
        Self {
            matrix,
            center: [13.5 + dice.around_zero(1.1), 13.5 + dice.around_zero(1.1)],
            wobble: dice.between(0.015, 0.05),
            radius: dice.between(0.8, 1.7),
            softness: dice.between(0.8, 1.6),
            darkness: dice.between(200.0, 255.0),
            grain: dice.between(0.0, 20.0),
        }
    }

    /// Maps `point` of the unit box to pixels, with a random error.
    fn place(&self, point: [f32; 2], dice: &Dice) -> [f32; 2] {
        let u = point[0] - 0.5 + dice.around_zero(self.wobble);
        let v = point[1] - 0.5 + dice.around_zero(self.wobble);
        let [[a, b], [c, d]] = self.matrix;
        [a * u + b * v + self.center[0], c * u + d * v + self.center[1]]
    }
}

fn draw_glyph(glyph: Glyph, hand: &Hand, dice: &Dice, ink: &mut Ink) {
    let reach = hand.radius + hand.softness;
    for Stroke { line, points } in glyph {
        let mut placed = [[0.0; 2]; 16];
        for (slot, &point) in placed.iter_mut().zip(*points) {
            *slot = hand.place(point, dice);
        }
        let placed = &placed[..points.len()];
        match line {
            Line::Straight => placed.windows(2).for_each(|ends| ink.segment(ends[0], ends[1], reach)),
            Line::Smooth | Line::Closed => draw_curve(placed, *line == Line::Closed, reach, ink),
        }
    }
}

/// A Catmull-Rom curve through `points`.
fn draw_curve(points: &[[f32; 2]], closed: bool, reach: f32, ink: &mut Ink) {
    let n = points.len();
    let at = |index: isize| match closed {
        true => points[index.rem_euclid(n as isize) as usize],
        false => points[index.clamp(0, n as isize - 1) as usize],
    };
    let n_spans = if closed { n } else { n - 1 };
    let mut from = points[0];
    for span in 0..n_spans as isize {
        let corners = [at(span - 1), at(span), at(span + 1), at(span + 2)];
        for piece in 1..=PIECES {
            let to = catmull_rom(corners, piece as f32 / PIECES as f32);
            ink.segment(from, to, reach);
            from = to;
        }
    }
}

fn catmull_rom([before, from, to, after]: [[f32; 2]; 4], t: f32) -> [f32; 2] {
    std::array::from_fn(|axis| {
        let (p0, p1, p2, p3) = (before[axis], from[axis], to[axis], after[axis]);
        let linear = p2 - p0;
        let square = 2.0 * p0 - 5.0 * p1 + 4.0 * p2 - p3;
        let cubic = 3.0 * (p1 - p2) + p3 - p0;
        0.5 * (2.0 * p1 + t * (linear + t * (square + t * cubic)))
    })
}

/// For every pixel the squared distance to the nearest stroke so far, in pixels².
struct Ink {
    distance2: [f32; PIXELS],
}

impl Ink {
    fn new() -> Self {
        Self { distance2: [1e6; PIXELS] }
    }

    /// Adds the straight line between `from` and `to`; pixels further than `reach` from it are left alone.
    fn segment(&mut self, from: [f32; 2], to: [f32; 2], reach: f32) {
        let [dx, dy] = [to[0] - from[0], to[1] - from[1]];
        let scale = 1.0 / (dx * dx + dy * dy).max(1e-6);
        let columns = pixel_range(from[0], to[0], reach);
        for row in pixel_range(from[1], to[1], reach) {
            let y = row as f32 - from[1];
            let pixels = &mut self.distance2[row * SIDE..][columns.clone()];
            for (column, nearest) in columns.clone().zip(pixels) {
                let x = column as f32 - from[0];
                let along = ((x * dx + y * dy) * scale).clamp(0.0, 1.0);
                let (ex, ey) = (x - along * dx, y - along * dy);
                *nearest = nearest.min(ex * ex + ey * ey);
            }
        }
    }

    /// Distances to darkness, plus the grain of the paper.
    fn develop(&self, hand: &Hand, dice: &Dice, image: &mut [u8]) {
        let outer = hand.radius + hand.softness / 2.0;
        let slope = hand.darkness / hand.softness;
        for (row, distances) in image.chunks_exact_mut(8).zip(self.distance2.chunks_exact(8)) {
            let grains = dice.0.next_u64().to_le_bytes();
            for ((pixel, distance2), grain) in row.iter_mut().zip(distances).zip(grains) {
                let ink = ((outer - distance2.sqrt()) * slope).clamp(0.0, hand.darkness);
                let grain = (grain as f32 - 127.5) * (hand.grain / 73.9);
                *pixel = (ink + grain) as u8;
            }
        }
    }
}

/// The pixels that lie within `reach` of the interval between `a` and `b`.
fn pixel_range(a: f32, b: f32, reach: f32) -> std::ops::Range<usize> {
    let first = (a.min(b) - reach).max(0.0) as usize;
    let last = (a.max(b) + reach + 1.0).clamp(0.0, SIDE as f32) as usize;
    first.min(last)..last
}
