//! The source of a direct pass: the images themselves, or copies padded with zeros.

use pulp::{Simd, WithSimd};

use super::super::axis::Axis;
use super::super::pass::Pass;
use crate::inlined::{Slice, zip};
use crate::lanes::Lanes;

/// The layout of a block of the source, `[images, channels, rows, pitch]` of one group. `image_len` and `plane_len`
/// are the distances between images and planes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Source {
    pub(in super::super) rows: Axis,
    pub(in super::super) columns: Axis,
    pub(in super::super) channels: usize,
    groups: usize,
    /// Whether pixels are read from the images themselves, since there is no padding.
    reads_images: bool,
    /// Where copies begin, so that rows of pixels are aligned to vectors if the pitch is a multiple of a vector.
    shift: usize,
    /// Target rows (of a target phase) for which a block has the source.
    pub(in super::super) block_rows: usize,
    pub(in super::super) pitch: usize,
    pub(in super::super) plane_len: usize,
    pub(in super::super) image_len: usize,
}

/// The part of the batch that a block has.
#[derive(Clone, Copy)]
pub(in super::super) struct Part {
    pub(in super::super) image: usize,
    pub(in super::super) n_images: usize,
    pub(in super::super) group: usize,
    /// The first target row of each target phase.
    pub(in super::super) first_row: usize,
}

impl Source {
    /// A layout for as many target rows as fit in a block of `block_len` entries, all of them if possible.
    pub(in super::super) fn new<S: Simd, R: Lanes>(pass: &Pass, max_rows: usize, block_len: usize) -> Source {
        let Pass { rows, columns, groups, source_channels: channels, .. } = *pass;
        let all_rows = rows.targets(0);
        if rows.is_inside() && columns.is_inside() {
            let (pitch, plane_len) = (columns.source_size, pass.source_plane());
            let image_len = groups * channels * plane_len;
            let block_rows = max_rows.clamp(1, all_rows);
            return Source {
                rows,
                columns,
                channels,
                groups,
                reads_images: true,
                shift: 0,
                block_rows,
                pitch,
                plane_len,
                image_len,
            };
        }
        let lanes = R::lanes::<S>();
        let n_entries = columns.entries(columns.targets(0));
        let rounded = n_entries.next_multiple_of(lanes);
        let pitch = if rounded - n_entries <= n_entries / 8 { rounded } else { n_entries };
        let shift = columns.origin.min(0).unsigned_abs().wrapping_neg() % lanes;
        let fitting = (block_len / (channels * pitch).max(1)).saturating_sub(rows.reach + 1) / rows.advance + 1;
        // Blocks of about the same size.
        let blocks = all_rows.div_ceil(fitting.min(max_rows).max(1));
        let block_rows = all_rows.div_ceil(blocks);
        let plane_len = rows.entries(block_rows) * pitch;
        let image_len = channels * plane_len;
        Source { rows, columns, channels, groups, reads_images: false, shift, block_rows, pitch, plane_len, image_len }
    }

    /// Whether a block has all rows of an image.
    pub(in super::super) fn has_all_rows(&self) -> bool {
        self.block_rows == self.rows.targets(0)
    }

    /// The length of the scratch for copies of `n_images` images.
    pub(in super::super) fn scratch_len<R: Lanes, S: Simd>(&self, n_images: usize) -> usize {
        if self.reads_images { 0 } else { n_images * self.image_len + 2 * R::lanes::<S>() }
    }

    /// The distance from a target's entry to that of the target in the next row.
    pub(in super::super) fn row_len(&self) -> usize {
        self.rows.advance * self.pitch
    }

    /// The source of the part, from its first entry on. Before the call, `copies` is zero or holds another part.
    pub(in super::super) fn read<'a, S: Simd, R: Lanes>(
        &self,
        simd: S,
        pixels: &'a [R],
        part: Part,
        copies: &'a mut [R],
    ) -> &'a [R] {
        let plane = self.rows.source_size * self.columns.source_size;
        let first = (part.image * self.groups + part.group) * self.channels * plane;
        if self.reads_images {
            return &pixels[first + part.first_row * self.row_len()..];
        }
        let copies = &mut copies[self.shift..];
        // Without groups, the channels of an image follow those of the image before.
        let at_a_time = if self.groups == 1 { part.n_images } else { 1 };
        for image in (0..part.n_images).step_by(at_a_time) {
            let from = &pixels[first + image * self.groups * self.channels * plane..];
            let to = &mut copies[image * self.image_len..];
            let n_planes = at_a_time * self.channels;
            simd.vectorize(CopyPlanes { source: self, from, n_planes, first_row: part.first_row, to });
        }
        copies
    }
}

/// Copies planes and pads them with zeros.
struct CopyPlanes<'a, R> {
    source: &'a Source,
    from: &'a [R],
    n_planes: usize,
    first_row: usize,
    to: &'a mut [R],
}

impl<R: Lanes> WithSimd for CopyPlanes<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Source { rows, columns, pitch, plane_len, .. } = *self.source;
        let CopyPlanes { from, n_planes, first_row, to, .. } = self;
        let first_entry = first_row * rows.advance;
        let n_entries = rows.entries(self.source.block_rows);
        let is_pixel = |entry: usize| rows.source_pixel(0, first_entry + entry) < rows.source_size;
        let start = (0..n_entries).find(|&entry| is_pixel(entry)).unwrap_or(n_entries);
        let end = (start..n_entries).find(|&entry| !is_pixel(entry)).unwrap_or(n_entries);
        if !self.source.has_all_rows() {
            // The rows of zeros differ from those of the previous block.
            for plane in to.chunks_mut(plane_len).take(n_planes) {
                plane[..start * pitch].set_to(R::zeroed());
                plane[end * pitch..n_entries * pitch].set_to(R::zeroed());
            }
        }
        let Some(pieces) = Pieces::new::<S, R>(simd, &columns, pitch).filter(|_| start < end) else { return };
        let planes = Planes {
            from: &from[rows.source_pixel(0, first_entry + start) * columns.source_size..],
            to: &mut to[start * pitch + columns.origin.min(0).unsigned_abs()..],
            n: n_planes,
            distances: (rows.source_size * columns.source_size, plane_len),
            n_rows: end - start,
            row_distances: (columns.source_size, pitch),
        };
        if pieces.before > 0 { planes.copy_wide(simd, &pieces) } else { planes.copy_narrow(simd, &pieces) }
    }
}

/// How a row is divided into vectors.
struct Pieces<V> {
    /// The first pixel that is read.
    from: usize,
    /// The number of vectors before the last one.
    before: usize,
    /// The number of pixels in the last vector, and the mask for them.
    last: usize,
    mask: V,
    all: V,
}

impl<V: Copy> Pieces<V> {
    /// `None` if only padding of a row is read.
    #[inline(always)]
    fn new<S: Simd, R: Lanes<Vector<S> = V>>(simd: S, axis: &Axis, pitch: usize) -> Option<Pieces<V>> {
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

    /// Copies a row.
    #[inline(always)]
    fn copy<S: Simd, R: Lanes<Vector<S> = V>>(&self, simd: S, pixels: &[R], to: &mut [R]) {
        let Pieces { from, before, all, .. } = *self;
        let to = R::vectors_mut::<S>(to);
        if before > 0 {
            for (to, &vector) in zip(&mut to[..], &R::vectors::<S>(&pixels[from..])[..before]) {
                *to = R::keep(simd, vector, all); // changes nothing, but keeps the compiler from calling memcpy
            }
        }
        to[before] = self.last(simd, pixels);
    }
}

/// Rows of planes to be copied; distances are those in the image and in the copy.
struct Planes<'a, R> {
    from: &'a [R],
    to: &'a mut [R],
    n: usize,
    distances: (usize, usize),
    n_rows: usize,
    row_distances: (usize, usize),
}

impl<R: Lanes> Planes<'_, R> {
    #[inline(always)]
    fn copy_wide<S: Simd>(self, simd: S, pieces: &Pieces<R::Vector<S>>) {
        for plane in 0..self.n {
            let (from, to) = (&self.from[plane * self.distances.0..], &mut self.to[plane * self.distances.1..]);
            for i in 0..self.n_rows {
                pieces.copy::<S, R>(simd, &from[i * self.row_distances.0..], &mut to[i * self.row_distances.1..]);
            }
        }
    }

    /// For rows of one vector, whose end overlaps the next row.
    #[inline(always)]
    fn copy_narrow<S: Simd>(self, simd: S, pieces: &Pieces<R::Vector<S>>) {
        let Planes { from, to, n, distances, n_rows, row_distances } = self;
        let (lanes, mask) = (R::lanes::<S>(), pieces.mask);
        let (mut start, mut to_start) = (pieces.from, 0);
        for _ in 0..n {
            for _ in 0..n_rows {
                let vector = match from.get(start..start + lanes) {
                    Some(pixels) => R::keep(simd, R::vectors::<S>(pixels)[0], mask),
                    None => R::load(simd, &from[start..start + pieces.last]),
                };
                R::vectors_mut::<S>(&mut to[to_start..to_start + lanes])[0] = vector;
                start += row_distances.0;
                to_start += row_distances.1;
            }
            start += distances.0 - n_rows * row_distances.0;
            to_start += distances.1 - n_rows * row_distances.1;
        }
    }
}
