//! Filling planes: copying rows of images to their entries.

use pulp::{Simd, WithSimd};

use super::axis::Axis;
use super::planes::Planes;
use crate::lanes::Lanes;

/// Copies what the target rows from `first_row` on read. The block was cleared, or last held the same rows.
pub(super) struct Fill<'a, R> {
    pub(super) planes: &'a Planes,
    pub(super) from: Images<'a, R>,
    pub(super) first_row: usize,
    pub(super) block: &'a mut [R],
}

/// Where the pixels of a block come from: channels of one group, of consecutive images.
pub(super) struct Images<'a, R> {
    /// From the first pixel that is read on.
    pub(super) pixels: &'a [R],
    pub(super) n_images: usize,
    pub(super) image_len: usize,
    pub(super) channels: usize,
}

impl<R: Lanes> WithSimd for Fill<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Planes { columns, pitch, plane_len, .. } = *self.planes;
        let Some(pieces) = Pieces::new::<S, R>(simd, &columns, pitch) else { return };
        match (columns.source_step, columns.source_phases, columns.origin) {
            (1, 1, origin) => self.rows(simd, Whole { pieces: &pieces, entry: origin.min(0).unsigned_abs() }),
            (2, 2, ..=0) => {
                let first = columns.origin.unsigned_abs();
                let [even, odd] = [first, first + 1].map(|at| at % 2 * plane_len + at / 2);
                self.rows(simd, Halves { pieces, even, odd });
            }
            _ => self.rows(simd, Steps { columns, pitch, plane_len }),
        }
    }
}

impl<R: Lanes> Fill<'_, R> {
    /// Copies every row that is not padding.
    #[inline(always)]
    fn rows<S: Simd>(self, simd: S, kind: impl Row<S, R>) {
        let Planes { rows, columns, images, block_rows, pitch, .. } = *self.planes;
        for channel in 0..self.from.channels {
            let pixels = &self.from.pixels[channel * rows.source_size * columns.source_size..];
            for phase in 0..rows.source_phases {
                let planes = &mut self.block[self.planes.plane(channel, phase, 0)..];
                for entry in 0..block_rows + rows.reach {
                    let y = rows.source_pixel(phase, self.first_row + entry);
                    if y < rows.source_size {
                        let (mut start, mut to) = (y * columns.source_size, entry * images * pitch);
                        for _ in 0..self.from.n_images {
                            kind.copy(simd, &pixels[start..], &mut planes[to..]);
                            start += self.from.image_len;
                            to += pitch;
                        }
                    }
                }
            }
        }
    }
}

/// How one row is copied. (Not a closure: those need not be inlined, and would then lack the vector instructions.)
pub(super) trait Row<S, R> {
    /// `pixels` begins with the row, `to` with the row's entries in the plane of column phase 0.
    fn copy(&self, simd: S, pixels: &[R], to: &mut [R]);
}

/// A row in vectors.
pub(super) struct Pieces<V> {
    /// The first pixel that is read.
    pub(super) from: usize,
    /// How many vectors come before the last one.
    pub(super) before: usize,
    /// How many pixels the last one has, and the mask for these.
    pub(super) last: usize,
    pub(super) mask: V,
    all: V,
}

impl<V: Copy> Pieces<V> {
    /// `None` if all that is read of a row is padding.
    #[inline(always)]
    pub(super) fn new<S: Simd, R: Lanes<Vector<S> = V>>(simd: S, axis: &Axis, pitch: usize) -> Option<Pieces<V>> {
        let lanes = R::lanes::<S>();
        // Pixels before the origin are not read, nor those behind the last entry.
        let end = axis.origin + (pitch * axis.source_step) as isize;
        let end = axis.source_size.min(end.max(0) as usize);
        let from = end.min(axis.origin.max(0) as usize);
        let before = (end - from).checked_sub(1)? / lanes;
        let last = end - from - before * lanes;
        Some(Pieces { from, before, last, mask: R::first(simd, last), all: R::first(simd, lanes) })
    }

    /// The last vector, with zeros behind the row's pixels. Pixels of the next row are read if there are any.
    #[inline(always)]
    fn last<S: Simd, R: Lanes<Vector<S> = V>>(&self, simd: S, pixels: &[R]) -> V {
        let start = self.from + self.before * R::lanes::<S>();
        match R::vectors::<S>(&pixels[start..]).first() {
            Some(&vector) => R::keep(simd, vector, self.mask),
            None => R::load(simd, &pixels[start..start + self.last]),
        }
    }
}

/// One phase of every pixel, from this entry on.
pub(super) struct Whole<'a, V> {
    pub(super) pieces: &'a Pieces<V>,
    pub(super) entry: usize,
}

impl<V: Copy, S: Simd, R: Lanes<Vector<S> = V>> Row<S, R> for Whole<'_, V> {
    #[inline(always)]
    fn copy(&self, simd: S, pixels: &[R], to: &mut [R]) {
        let Pieces { from, before, all, .. } = *self.pieces;
        let to = R::vectors_mut::<S>(&mut to[self.entry..]);
        if before > 0 {
            for (to, &vector) in to.iter_mut().zip(&R::vectors::<S>(&pixels[from..])[..before]) {
                *to = R::keep(simd, vector, all); // changes nothing, but keeps the compiler from calling memcpy
            }
        }
        to[before] = self.pieces.last(simd, pixels);
    }
}

/// Two phases of every other pixel: where the first even and the first odd one go.
struct Halves<V> {
    pieces: Pieces<V>,
    even: usize,
    odd: usize,
}

impl<V: Copy, S: Simd, R: Lanes<Vector<S> = V>> Row<S, R> for Halves<V> {
    #[inline(always)]
    fn copy(&self, simd: S, pixels: &[R], to: &mut [R]) {
        let half = R::lanes::<S>() / 2;
        let Pieces { from, before, .. } = self.pieces;
        if before > 0 {
            for (i, &vector) in R::vectors::<S>(&pixels[from..])[..before].iter().enumerate() {
                R::store_even::<S>(&mut to[self.even + i * half..], vector);
                R::store_odd::<S>(&mut to[self.odd + i * half..], vector);
            }
        }
        let vector = self.pieces.last(simd, pixels);
        R::store_even::<S>(&mut to[self.even + before * half..], vector);
        R::store_odd::<S>(&mut to[self.odd + before * half..], vector);
    }
}

/// Pixel by pixel, for strides of which nothing special is known.
struct Steps {
    columns: Axis,
    pitch: usize,
    plane_len: usize,
}

impl<S: Simd, R: Lanes> Row<S, R> for Steps {
    #[inline(always)]
    fn copy(&self, _: S, pixels: &[R], to: &mut [R]) {
        let row = &pixels[..self.columns.source_size];
        for phase in 0..self.columns.source_phases {
            for (entry, to) in to[phase * self.plane_len..][..self.pitch].iter_mut().enumerate() {
                if let Some(&pixel) = row.get(self.columns.source_pixel(phase, entry)) {
                    *to = pixel;
                }
            }
        }
    }
}
