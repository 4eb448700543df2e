//! Writing sums to the rows of the target. Sums are stored phase by phase, with unused ones behind each row.

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::fill::{piece, piece_mut};
use super::pass::Pass;
use super::planes::Planes;
use crate::inlined::from_fn;

/// The sums of a tile of channels for the rows of a block, and the part of the target that they are written to.
pub(super) struct TileRows<'a, T> {
    pub(super) pass: &'a Pass,
    pub(super) planes: &'a Planes,
    /// The block's first target row of each phase.
    pub(super) first_row: usize,
    /// The tile's channels that are written.
    pub(super) channels: usize,
    /// `[row phases, column phases, channels, rows, images, pitch]`
    pub(super) sums: &'a [T],
    /// Begins with the first plane of the tile in its first image.
    pub(super) target: &'a mut [T],
    pub(super) image_len: usize,
    pub(super) n_images: usize,
}

impl<T: Pod> WithSimd for TileRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let phases = self.pass.columns.target_phases();
        let phase_len = self.pass.tiles.rows * self.channel_len();
        match (phases, self.pass.columns.target_size) {
            (1, 16..) => self.write(&Whole::<16>),
            (1, 8..) => self.write(&Whole::<8>),
            (1, 4..) => self.write(&Whole::<4>),
            (2, 16..) => self.write(&Zipped::<8> { phase_len }),
            (2, 8..) => self.write(&Zipped::<4> { phase_len }),
            _ => self.write(&Steps { phases, phase_len }),
        }
    }
}

impl<T: Pod> TileRows<'_, T> {
    /// Sums per channel and pair of phases.
    fn channel_len(&self) -> usize {
        self.planes.covered(self.planes.rows_from(self.first_row))
    }

    #[inline(always)]
    fn write(self, kind: &impl WriteRow) {
        let Pass { rows, columns, .. } = self.pass;
        let (width, plane, row_phases) = (columns.target_size, self.pass.target_plane(), rows.target_phases());
        let (pitch, channel_len) = (self.planes.sums_pitch(), self.channel_len());
        let (row_len, next_phase) =
            (self.planes.images * pitch, self.pass.tiles.rows * channel_len * columns.target_phases());
        let end = (self.first_row + self.planes.block_rows) * rows.target_step;
        let pixels = self.first_row * rows.target_step * width..end.min(rows.target_size) * width;
        for image in 0..self.n_images {
            for channel in 0..self.channels {
                let sums = &self.sums[channel * channel_len + image * pitch..];
                let plane = &mut self.target[image * self.image_len + channel * plane..];
                let (mut phase, mut start) = (0, 0);
                for to in plane[pixels.clone()].chunks_exact_mut(width) {
                    kind.write(&sums[start + phase..], to);
                    phase += next_phase;
                    if phase == row_phases * next_phase {
                        (phase, start) = (0, start + row_len);
                    }
                }
            }
        }
    }
}

/// How one row is written: the counterpart of `CopyRow` in `fill.rs`.
trait WriteRow {
    fn write<T: Pod>(&self, from: &[T], to: &mut [T]);
}

/// Rows of at least `W` pixels, from adjacent sums.
struct Whole<const W: usize>;

impl<const W: usize> WriteRow for Whole<W> {
    #[inline(always)]
    fn write<T: Pod>(&self, from: &[T], to: &mut [T]) {
        let (n, from) = (to.len(), &from[..to.len()]);
        for at in (0..n).step_by(W) {
            let at = at.min(n - W);
            *piece_mut::<_, W>(to, at) = *piece(from, at);
        }
    }
}

/// Rows of at least `W` pairs of pixels, the even ones from one phase and the odd ones from the next.
struct Zipped<const W: usize> {
    phase_len: usize,
}

impl<const W: usize> WriteRow for Zipped<W> {
    #[inline(always)]
    fn write<T: Pod>(&self, from: &[T], to: &mut [T]) {
        let (even, odd, n) = (from, &from[self.phase_len..], to.len() / 2);
        if to.len() % 2 == 1 {
            to[2 * n] = even[n];
        }
        let to = to.as_chunks_mut().0;
        for at in (0..n).step_by(W) {
            let at = at.min(n - W);
            let (even, odd): (&[T; W], &[T; W]) = (piece(even, at), piece(odd, at));
            *piece_mut::<_, W>(to, at) = from_fn(|i| [even[i], odd[i]]);
        }
    }
}

/// Any other number of phases, and short rows: pixel `i` is in phase `i mod phases`.
struct Steps {
    phases: usize,
    phase_len: usize,
}

impl WriteRow for Steps {
    #[inline(always)]
    fn write<T: Pod>(&self, from: &[T], to: &mut [T]) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = from[i % self.phases * self.phase_len + i / self.phases];
        }
    }
}
