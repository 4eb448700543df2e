//! Writing sums to the rows of the target.
//!
//! Sums lie in rows with junk behind them, phase by phase. Rows are written from first to last in pieces of a fixed
//! size, each of which may run over into what is written after it: that is several times faster than copying exactly
//! as many elements as a row has. Only where there is no room behind the last rows of a tile is it done exactly.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::lanes::Lanes;

/// Elements that are moved at once where rows are wide, or where two phases make one row.
const PIECE: usize = 16;
const HALF: usize = PIECE / 2;

/// The sums of a tile of channels, and where they belong.
pub(super) struct TileRows<'a, R> {
    /// `[row phases, column phases, channels, rows, images, pitch]`, and slack
    pub(super) sums: &'a [R],
    /// Sums per pair of phases.
    pub(super) phase_len: usize,
    /// Sums per channel.
    pub(super) channel_len: usize,
    /// From a row of sums to the next one.
    pub(super) row_len: usize,
    /// From an image's row to the next image's.
    pub(super) pitch: usize,
    /// From the first plane of the tile in its first image on.
    pub(super) target: &'a mut [R],
    pub(super) image_len: usize,
    pub(super) n_images: usize,
    pub(super) channels: usize,
    /// Of a target plane, `[height, width]`.
    pub(super) size: [usize; 2],
    /// Phases of rows and columns.
    pub(super) steps: [usize; 2],
    /// The target rows that are written.
    pub(super) rows: Range<usize>,
}

impl<R> TileRows<'_, R> {
    /// How many elements behind the sums are read.
    pub(super) const SLACK: usize = PIECE;

    /// Phases of rows and columns that are not empty.
    fn phases(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.steps[axis].min(self.size[axis]))
    }
}

impl<R: Lanes> WithSimd for TileRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let phase_len = self.phase_len;
        match (self.phases()[1], self.size[1]) {
            (1, ..=HALF) => self.write(Narrow::<HALF>),
            (1, ..=PIECE) => self.write(Narrow::<PIECE>),
            (1, _) => self.write(Wide),
            (2, ..=PIECE) => self.write(NarrowPairs { phase_len }),
            (2, _) => self.write(Pairs { phase_len }),
            (step, _) => self.write(Steps { step, phase_len }),
        }
    }
}

impl<R: Lanes> TileRows<'_, R> {
    #[inline(always)]
    fn write(self, kind: impl Row) {
        let [height, width] = self.size;
        let [row_phases, column_phases] = self.phases();
        let plane_len = height * width;
        for image in 0..self.n_images {
            let planes = &mut self.target[image * self.image_len..][..self.channels * plane_len];
            for channel in 0..self.channels {
                let sums = &self.sums[channel * self.channel_len + image * self.pitch..];
                // Behind the last rows comes the next channel, of which earlier rows are written already.
                let end = if self.rows.start == 0 { planes.len() } else { channel * plane_len + self.rows.end * width };
                let to = &mut planes[channel * plane_len + self.rows.start * width..end];
                let next_phase = self.phase_len * column_phases;
                write_rows(&kind, sums, (next_phase, self.row_len, row_phases), to, width, self.rows.len());
            }
        }
    }
}

/// Writes the rows of one channel and image; what follows the plane in `to` may be overwritten.
#[inline(always)]
fn write_rows<R: Lanes>(
    kind: &impl Row,
    sums: &[R],
    (next_phase, next_row, phases): (usize, usize, usize),
    mut to: &mut [R],
    width: usize,
    n_rows: usize,
) {
    let (mut start, mut phase) = (0, 0);
    for _ in 0..n_rows {
        kind.write(&sums[start + phase..], width, to);
        to = &mut to[width..];
        phase += next_phase;
        if phase == phases * next_phase {
            phase = 0;
            start += next_row;
        }
    }
}

/// How one row is written. (Not a closure: those need not be inlined, and would then lack the vector instructions.)
trait Row {
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]);
}

/// One piece holds the whole row.
struct Narrow<const N: usize>;

impl<const N: usize> Row for Narrow<N> {
    #[inline(always)]
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]) {
        put::<R, N>(from.first_chunk().expect("slack behind the sums"), width, to);
    }
}

struct Wide;

impl Row for Wide {
    #[inline(always)]
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]) {
        for (at, from) in (0..width).step_by(PIECE).zip(from.as_chunks::<PIECE>().0) {
            put(from, width - at, &mut to[at..]);
        }
    }
}

/// Even elements are in one phase, odd ones in the next; one piece holds the whole row.
struct NarrowPairs {
    phase_len: usize,
}

impl Row for NarrowPairs {
    #[inline(always)]
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]) {
        let (Some(even), Some(odd)) = (from.first_chunk(), from[self.phase_len..].first_chunk()) else {
            unreachable!("slack behind the sums");
        };
        put_pairs(even, odd, width, to);
    }
}

struct Pairs {
    phase_len: usize,
}

impl Row for Pairs {
    #[inline(always)]
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]) {
        let (even, odd) = (from.as_chunks::<HALF>().0, from[self.phase_len..].as_chunks::<HALF>().0);
        for (at, (even, odd)) in (0..width).step_by(PIECE).zip(even.iter().zip(odd)) {
            put_pairs(even, odd, width - at, &mut to[at..]);
        }
    }
}

/// Any other number of phases.
struct Steps {
    step: usize,
    phase_len: usize,
}

impl Row for Steps {
    #[inline(always)]
    fn write<R: Lanes>(&self, from: &[R], width: usize, to: &mut [R]) {
        for (i, to) in to[..width].iter_mut().enumerate() {
            *to = from[i % self.step * self.phase_len + i / self.step];
        }
    }
}

/// Writes the whole piece if there is room, else its first `len` elements.
#[inline(always)]
fn put<R: Lanes, const N: usize>(from: &[R; N], len: usize, to: &mut [R]) {
    match to.first_chunk_mut::<N>() {
        Some(to) => *to = *from,
        None => put_exactly(&from[..len.min(N)], to),
    }
}

/// As [`put`], of elements that alternate.
#[inline(always)]
fn put_pairs<R: Lanes>(even: &[R; HALF], odd: &[R; HALF], len: usize, to: &mut [R]) {
    // As pairs in one value: the compiler makes two loads, a shuffle and a store of that.
    match to.first_chunk_mut::<PIECE>() {
        Some(to) => *to = bytemuck::cast::<[[R; 2]; HALF], _>(std::array::from_fn(|i| [even[i], odd[i]])),
        None => put_pairs_exactly(even, odd, &mut to[..len]),
    }
}

#[cold]
#[inline(never)]
fn put_exactly<R: Lanes>(from: &[R], to: &mut [R]) {
    to[..from.len()].copy_from_slice(from);
}

#[cold]
#[inline(never)]
fn put_pairs_exactly<R: Lanes>(even: &[R], odd: &[R], to: &mut [R]) {
    for (i, to) in to.iter_mut().enumerate() {
        *to = if i % 2 == 0 { even[i / 2] } else { odd[i / 2] };
    }
}
