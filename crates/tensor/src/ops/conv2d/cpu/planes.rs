//! Planes: a block of source images, padded with zeros and split by phases, laid out for vectors of pixels.
//!
//! A plane belongs to one channel and one phase of rows and columns. Its entry for row `r`, image `g` and column `c`
//! is number `(r · images + g) · pitch + c`. Rows of different images are adjacent, so a tap `s` rows down has the
//! same offset in all of them, and short rows fill vectors. Columns beyond the end of a target row are computed and
//! discarded, unless each target row is exactly one vector.
//!
//! Invariant: once the block is cleared, entries without a source pixel stay zero.

use super::axis::{Axis, Tap};
use super::pass::Pass;
use crate::inlined::Array;

/// The layout of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    pub(super) rows: Axis,
    pub(super) columns: Axis,
    /// Images per block.
    pub(super) images: usize,
    /// Target rows (of one target phase) for which a block has the source.
    pub(super) block_rows: usize,
    pub(super) pitch: usize,
    pub(super) plane_len: usize,
    /// Entries that are added up at once.
    lanes: usize,
    /// Whether each row of targets is exactly one vector, so that no columns beyond it are computed.
    rows_are_vectors: bool,
}

impl Planes {
    /// The layout for blocks of `images` images and `block_rows` target rows.
    fn new(rows: Axis, columns: Axis, images: usize, block_rows: usize, lanes: usize) -> Planes {
        let (pitch, rows_are_vectors) = (columns.pitch(), false);
        Planes { rows, columns, images, block_rows, pitch, plane_len: 0, lanes, rows_are_vectors }.with_plane_len()
    }

    /// The same with `plane_len` set to the length that the other sizes need.
    fn with_plane_len(self) -> Planes {
        Planes { plane_len: (self.block_rows + self.rows.reach) * self.images * self.pitch + self.lanes, ..self }
    }

    /// The layout that wastes the least: several images if they are small, some rows of an image if it is large.
    /// Factors are `F`, of which `lanes` are added up at once.
    pub(super) fn choose<F>(pass: &Pass, lanes: usize, limits: Limits) -> Planes {
        let all_rows = pass.rows.targets(0);
        let layout = |images, block_rows| Planes::new(pass.rows, pass.columns, images, block_rows, lanes);
        let fits = |planes: &Planes| planes.block_len(pass.source_entries()) * size_of::<F>() <= limits.block_bytes;
        if !fits(&layout(1, all_rows)) {
            let block_rows = (1..all_rows).rev().find(|&n| fits(&layout(1, n))).unwrap_or(1);
            return layout(1, block_rows);
        }
        let small = |planes: &Planes| fits(planes) && planes.vectors(all_rows) <= limits.plane_vectors;
        let several = (2..=pass.batch).map(|images| layout(images, all_rows)).take_while(small);
        // Vectors per image, compared without division.
        several.fold(layout(1, all_rows), |best, planes| {
            let waste = |a: &Planes, b: &Planes| a.vectors(all_rows) * b.images;
            if limits.prefers_large || waste(&planes, &best) < waste(&best, &planes) { planes } else { best }
        })
    }

    /// Planes for images of the target itself, with entries at the same offsets.
    pub(super) fn identity(&self) -> Planes {
        let [rows, columns] = [self.rows, self.columns].mapped(|axis| Axis::identity(axis.target_size));
        Planes { rows, columns, ..*self }.with_plane_len()
    }

    /// Entries of a block with that many channels, including the slack behind the last plane.
    pub(super) fn block_len(&self, channels: usize) -> usize {
        let planes = channels * self.rows.source_phases * self.columns.source_phases;
        planes * self.plane_len + self.columns.reach + self.lanes
    }

    /// Entries of the vectors that cover `n_rows` target rows of all images.
    pub(super) fn covered(&self, n_rows: usize) -> usize {
        self.vectors(n_rows) * self.lanes
    }

    /// Vectors that cover `n_rows` target rows of all images.
    pub(super) fn vectors(&self, n_rows: usize) -> usize {
        (n_rows * self.images * self.sums_pitch()).div_ceil(self.lanes)
    }

    /// The same layout, with one vector for each row of targets if the row is as long as a vector.
    pub(super) fn with_rows_as_vectors(self) -> Planes {
        let rows_are_vectors = self.columns.target_step == 1 && self.columns.targets(0) == self.lanes;
        Planes { rows_are_vectors, ..self }
    }

    /// The distance from the entries of a vector to those of the next one.
    pub(super) fn vector_stride(&self) -> usize {
        if self.rows_are_vectors { self.pitch } else { self.lanes }
    }

    /// The distance from the sums of an image's row to those of the next image's row.
    pub(super) fn sums_pitch(&self) -> usize {
        if self.rows_are_vectors { self.lanes } else { self.pitch }
    }

    /// Whether one block has all rows; blocks of different images then have their zeros in the same places.
    pub(super) fn has_all_rows(&self) -> bool {
        self.block_rows == self.rows.targets(0)
    }

    /// The index of a plane's first entry.
    pub(super) fn plane(&self, channel: usize, row_phase: usize, column_phase: usize) -> usize {
        let phases = (self.rows.source_phases, self.columns.source_phases);
        ((channel * phases.0 + row_phase) * phases.1 + column_phase) * self.plane_len
    }

    /// The index at which the pixels of a tap begin, in the plane of that channel that it reads.
    pub(super) fn offset(&self, channel: usize, y: Tap, x: Tap) -> usize {
        self.plane(channel, y.phase, x.phase) + y.shift * self.images * self.pitch + x.shift
    }

    /// Target rows of a block whose first one is `first_row`.
    pub(super) fn rows_from(&self, first_row: usize) -> usize {
        self.block_rows.min(self.rows.targets(0) - first_row)
    }
}

/// Limits for the size of a block.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The size of the whole block, unless one row of one image is larger.
    pub(super) block_bytes: usize,
    /// The most vectors of a plane with several images.
    pub(super) plane_vectors: usize,
    /// Take as many images as the limits allow, not the number that wastes the least.
    pub(super) prefers_large: bool,
}
