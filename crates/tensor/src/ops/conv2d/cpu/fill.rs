//! Filling planes: copying rows of images to their entries.

use pulp::{Simd, WithSimd};

use super::entries::Entries;
use super::planes::Planes;

/// Copies the source rows that the target rows from `first_row` on read. Before that, the block is zero or holds the
/// same rows of other images or groups.
pub(super) struct Fill<'a, E: Entries> {
    pub(super) planes: &'a Planes,
    pub(super) from: Images<'a, E::Element>,
    pub(super) first_row: usize,
    pub(super) block: &'a mut [E::Factor],
}

/// Where the pixels of a block come from: channels of one group, of consecutive images.
pub(super) struct Images<'a, T> {
    /// Begins with the first pixel of the group.
    pub(super) pixels: &'a [T],
    pub(super) n_images: usize,
    pub(super) image_len: usize,
    pub(super) channels: usize,
}

impl<'a, T> Images<'a, T> {
    /// `n_images` images from number `first` on, of a tensor with those groups, channels per group and pixels per
    /// channel.
    pub(super) fn of_group(
        tensor: &'a [T],
        [groups, channels, plane]: [usize; 3],
        (first, n_images): (usize, usize),
        group: usize,
    ) -> Self {
        let pixels = &tensor[(first * groups + group) * channels * plane..];
        Images { pixels, n_images, image_len: groups * channels * plane, channels }
    }
}

/// A row of one channel, and that of the next one if entries have both.
type Row<'a, T> = (&'a [T], Option<&'a [T]>);

impl<E: Entries> WithSimd for Fill<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Planes { columns, pitch, plane_len, .. } = *self.planes;
        let pixels = columns.pixels(pitch);
        // The distance in pixels from the first entry to the first pixel.
        let pixel_offset = pixels.start.wrapping_sub(columns.origin as usize);
        match (columns.source_step, columns.source_phases, pixels.len()) {
            (1, 1, 16..) => self.rows(&Whole::<16> { pixel_offset }),
            (1, 1, 8..) => self.rows(&Whole::<8> { pixel_offset }),
            (1, 1, 4..) => self.rows(&Whole::<4> { pixel_offset }),
            (2, 2, 16..) => self.rows(&Halves::<8> { pixel_offset, plane_len }),
            (2, 2, 8..) => self.rows(&Halves::<4> { pixel_offset, plane_len }),
            (step, phases, _) => self.rows(&Steps { pixel_offset, step, phases, plane_len }),
        }
    }
}

impl<E: Entries> Fill<'_, E> {
    /// Not inlined, so that it is compiled once for both of its callers: it is the longest function of all kernels.
    #[inline(never)]
    pub(super) fn run(self, entries: E) {
        entries.vectorize(self);
    }

    /// Copies every row that is not padding.
    #[inline(always)]
    fn rows(self, kind: &impl CopyRow) {
        let Fill { planes: &Planes { rows, columns, images, block_rows, pitch, .. }, from, first_row, block } = self;
        let (plane, read) = (rows.source_size * columns.source_size, columns.pixels(pitch));
        for channel in (0..from.channels).step_by(E::CHANNELS) {
            let first = &from.pixels[channel * plane..];
            let second = (E::CHANNELS == 2 && channel + 1 < from.channels).then(|| &first[plane..]);
            for phase in 0..rows.source_phases {
                let to = &mut block[self.planes.plane(channel / E::CHANNELS, phase, 0)..];
                for entry in 0..block_rows + rows.reach {
                    let y = rows.source_pixel(phase, first_row + entry);
                    if y < rows.source_size {
                        let (mut start, mut to) = (y * columns.source_size, &mut to[entry * images * pitch..]);
                        for _ in 0..from.n_images {
                            let pixels = start + read.start..start + read.end;
                            kind.copy::<E>((&first[pixels.clone()], second.map(|row| &row[pixels])), to);
                            start += from.image_len;
                            to = &mut to[pitch..];
                        }
                    }
                }
            }
        }
    }
}

/// How one row is copied. (Not a closure: those need not be inlined, and would then lack the vector instructions.)
///
/// Rows are copied in pieces of `W` pixels, which the compiler moves in registers; the last piece overlaps the one before, so
/// that nothing outside of the row is touched.
trait CopyRow {
    /// `to` begins with the row's entries in the plane of column phase 0.
    fn copy<E: Entries>(&self, row: Row<'_, E::Element>, to: &mut [E::Factor]);
}

/// The `W` elements from `at` on.
#[inline(always)]
pub(super) fn piece<T, const W: usize>(row: &[T], at: usize) -> &[T; W] {
    row[at..].first_chunk().expect("a piece is inside its row")
}

/// The same, to be written.
#[inline(always)]
pub(super) fn piece_mut<T, const W: usize>(row: &mut [T], at: usize) -> &mut [T; W] {
    row[at..].first_chunk_mut().expect("a piece is inside its row")
}

/// Rows of at least `W` pixels, copied to adjacent entries.
struct Whole<const W: usize> {
    pixel_offset: usize,
}

impl<const W: usize> CopyRow for Whole<W> {
    #[inline(always)]
    fn copy<E: Entries>(&self, (first, second): Row<'_, E::Element>, to: &mut [E::Factor]) {
        let (n, to, mut next) = (first.len(), &mut to[self.pixel_offset..][..first.len()], 0);
        while next < n {
            let at = next.min(n - W);
            *piece_mut(to, at) = E::join::<W>(piece(first, at), second.map(|second| piece(second, at)));
            next += W;
        }
    }
}

/// Rows of at least `W` pairs of pixels, copied to two phases: even pixels to one, odd pixels to the other.
struct Halves<const W: usize> {
    pixel_offset: usize,
    plane_len: usize,
}

impl<const W: usize> CopyRow for Halves<W> {
    #[inline(always)]
    fn copy<E: Entries>(&self, (first, second): Row<'_, E::Element>, to: &mut [E::Factor]) {
        let ((one, other), pixel_offset) = (to.split_at_mut(self.plane_len), self.pixel_offset);
        let (even, odd) = if pixel_offset.is_multiple_of(2) { (one, other) } else { (other, one) };
        let (even, odd, n) = (&mut even[pixel_offset / 2..], &mut odd[pixel_offset.div_ceil(2)..], first.len() / 2);
        if first.len() % 2 == 1 {
            [even[n]] = E::join(piece(first, 2 * n), second.map(|second| piece(second, 2 * n)));
        }
        let (first, second) = (first.as_chunks().0, second.map(|second| second.as_chunks().0));
        let mut next = 0;
        while next < n {
            let at = next.min(n - W);
            let halves = E::join_halves::<W>(piece(first, at), second.map(|second| piece(second, at)));
            [*piece_mut(even, at), *piece_mut(odd, at)] = halves;
            next += W;
        }
    }
}

/// Pixel by pixel, for short rows and other strides.
struct Steps {
    pixel_offset: usize,
    step: usize,
    phases: usize,
    plane_len: usize,
}

impl CopyRow for Steps {
    #[inline(always)]
    fn copy<E: Entries>(&self, (first, second): Row<'_, E::Element>, to: &mut [E::Factor]) {
        for i in 0..first.len() {
            let (phase, entry) = ((self.pixel_offset + i) % self.step, (self.pixel_offset + i) / self.step);
            if phase < self.phases {
                [to[phase * self.plane_len + entry]] = E::join(piece(first, i), second.map(|second| piece(second, i)));
            }
        }
    }
}
