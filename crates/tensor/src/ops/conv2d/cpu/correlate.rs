//! A pass with vectors over pixels: for `bf16`, long rows, and images that are too few or too large for `images.rs`.
//!
//! Weights are packed once, in the order in which the inner loop reads them. A task then takes some images (or, when
//! there are few, some channels of one image): it copies blocks of the source into planes, adds up tiles of channels in
//! scratch, and writes the rows of each tile to their place.

use std::ops::Range;

use bytemuck::Zeroable;
use pagelock_memory::Result;

use super::axis::Tap;
use super::entries::{Entries, TileSizes};
use super::fill::{Fill, Images};
use super::pass::{Pass, Span};
use super::planes::{Limits, Planes};
use super::rows::TileRows;
use super::tile::Tile;
use crate::inlined::{Slice, zip};
use crate::lanes::Lanes;
use crate::scratch;

/// A block fits in the second-level cache.
const LIMITS: Limits = Limits { block_bytes: 192 << 10, plane_vectors: 64, prefers_large: false };

/// The tensors of a pass, `target = Σ weight · source + bias`: elements `T`, and sums `R`.
pub(super) struct Operands<'a, T, R> {
    pub(super) source: &'a [T],
    pub(super) weight: &'a [T],
    pub(super) bias: Option<&'a [R]>,
    pub(super) target: &'a mut [T],
}

pub(super) fn run<E: Entries>(entries: E, pass: &Pass, operands: Operands<'_, E::Element, E::Sum>) -> Result<()> {
    let Operands { source, weight, bias, target } = operands;
    let pass = pass.split(E::CHANNELS);
    let tiles = E::tiling(pass.source_entries(), pass.target_channels);
    let pass = &pass.in_tiles(tiles);
    let planes = Planes::choose::<E::Factor>(pass, tiles.lanes, LIMITS);
    let planes = if tiles.depth == 1 { planes.with_rows_as_vectors() } else { planes };
    let offset = |entry, y, x| planes.offset(entry, y, x);
    with_packed(entries, pass, (weight, bias), offset, |packed| {
        scratch::with(2 * planes.vectors(planes.block_rows), |vectors: &mut [usize]| {
            let vectors = vectors.as_chunks_mut().0;
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = [v * planes.vector_stride(), v * tiles.lanes];
            }
            let shared = Shared { pass, planes, vectors, packed, source };
            pass.for_each_task(planes.images, target, |span, target| shared.run(&span, target))
        })
    })
}

/// The weights and biases of a pass in the order in which tiles read them.
pub(super) struct Packed<'a, E: Entries> {
    entries: E,
    /// Where each tap's pixels begin in a block: `[phases, taps]`.
    offsets: &'a [usize],
    /// `[groups, phases, tiles, taps / depth, tile_rows, depth]`
    weights: &'a [E::Factor],
    /// What each sum starts with: `[groups, tiles · tile_rows]`.
    starts: &'a [E::Sum],
}

/// Calls `body` with packed weights and biases. `offset(entry, y, x)` is the index in a block at which a tap's pixels
/// begin.
pub(super) fn with_packed<E: Entries>(
    entries: E,
    pass: &Pass,
    (weight, bias): (&[E::Element], Option<&[E::Sum]>),
    offset: impl Fn(usize, Tap, Tap) -> usize,
    body: impl FnOnce(&Packed<'_, E>) -> Result<()>,
) -> Result<()> {
    let (n_taps, n_starts) = (pass.n_all_taps(), pass.groups * pass.n_tiles() * pass.tiles.rows);
    scratch::with(n_taps, |offsets: &mut [usize]| {
        scratch::with(n_taps * n_starts, |weights| {
            scratch::with(n_starts, |starts| {
                pass.find_offsets(offsets, offset);
                pack::<E>(pass, weight, weights);
                pack_bias(pass, bias, starts);
                body(&Packed { entries, offsets, weights, starts })
            })
        })
    })
}

/// Packs the weights; rows of a tile without a channel are zero.
fn pack<E: Entries>(pass: &Pass, weight: &[E::Element], weights: &mut [E::Factor]) {
    let TileSizes { rows: tile_rows, depth, .. } = pass.tiles;
    let mut blocks = weights.chunks_exact_mut(tile_rows * depth);
    for group in 0..pass.groups {
        for phases in pass.phases() {
            for first in (0..pass.target_channels).step_by(tile_rows) {
                let channels = first..(first + tile_rows).min(pass.target_channels);
                let mut block = &mut [][..];
                pass.for_each_tap(phases, |entry, _, _, (tap, second)| {
                    if entry % depth == 0 {
                        block = blocks.next().expect("there is a block of `depth` entries per tap and tile");
                        block.set_to(E::Factor::zeroed());
                    }
                    for (to, channel) in zip(block[entry % depth..].chunks_mut(depth), channels.clone()) {
                        let weight = &weight[pass.first_weight(group, channel)..];
                        [to[0]] = E::join(&[weight[tap]], second.map(|second| [weight[second]]).as_ref());
                    }
                });
            }
        }
    }
}

fn pack_bias<R: Lanes>(pass: &Pass, bias: Option<&[R]>, starts: &mut [R]) {
    starts.set_to(R::zeroed());
    let Some(bias) = bias else { return };
    let padded = pass.n_tiles() * pass.tiles.rows;
    for (to, from) in zip(starts.chunks_exact_mut(padded), bias.chunks_exact(pass.target_channels)) {
        to[..from.len()].copy_from(from);
    }
}

/// The data that all tasks share.
struct Shared<'a, E: Entries> {
    pass: &'a Pass,
    planes: Planes,
    /// Where the pixels and the sums of each vector begin.
    vectors: &'a [[usize; 2]],
    packed: &'a Packed<'a, E>,
    source: &'a [E::Element],
}

impl<E: Entries> Shared<'_, E> {
    /// Runs a task, block by block: some images, and some rows of each of their phases.
    fn run(&self, span: &Span, target: &mut [E::Element]) -> Result<()> {
        let Shared { pass, planes, .. } = self;
        let n_sums = pass.phases().count() * pass.tiles.rows * planes.covered(planes.block_rows);
        let n_images = target.len() / span.image_len;
        scratch::with(planes.block_len(pass.source_entries()), |block: &mut [E::Factor]| {
            scratch::with(n_sums, |sums: &mut [E::Sum]| {
                block.set_to(E::Factor::zeroed());
                for image in (0..n_images).step_by(planes.images) {
                    let images = (span.first_image + image, planes.images.min(n_images - image));
                    for first_row in (0..planes.rows.targets(0)).step_by(planes.block_rows) {
                        self.run_block(span, images, first_row, block, sums, &mut target[image * span.image_len..])?;
                    }
                }
                Ok(())
            })
        })
    }

    /// Adds up and writes the rows from `first_row` on of some images. `block` and `sums` are scratch, and `target`
    /// begins with the first of the images.
    fn run_block(
        &self,
        span: &Span,
        images: (usize, usize),
        first_row: usize,
        block: &mut [E::Factor],
        sums: &mut [E::Sum],
        target: &mut [E::Element],
    ) -> Result<()> {
        let Shared { pass, planes, packed, .. } = self;
        for group in span.groups.clone() {
            if !planes.has_all_rows() {
                block.set_to(E::Factor::zeroed());
            }
            let from = Images::of_group(self.source, pass.source_sizes(), images, group);
            Fill { planes, from, first_row, block: &mut *block }.run(packed.entries);
            for tile in span.tiles.clone() {
                let sums = self.add_up((group, tile), first_row, block, sums);
                let first_plane =
                    (group - span.groups.start) * pass.target_channels + (tile - span.tiles.start) * pass.tiles.rows;
                E::with_elements(sums, |sums| {
                    packed.entries.vectorize(TileRows {
                        pass,
                        planes,
                        first_row,
                        channels: pass.tiles.rows.min(pass.target_channels - tile * pass.tiles.rows),
                        sums,
                        target: &mut target[first_plane * pass.target_plane()..],
                        image_len: span.image_len,
                        n_images: images.1,
                    });
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The sums of a tile for the rows of a block.
    fn add_up<'a>(
        &self,
        (group, tile): (usize, usize),
        first_row: usize,
        block: &[E::Factor],
        sums: &'a mut [E::Sum],
    ) -> &'a [E::Sum] {
        let (pass, &Shared { planes, vectors, packed, .. }) = (self.pass, self);
        let n_rows = planes.rows_from(first_row);
        let vectors = &vectors[..planes.vectors(n_rows)];
        let phase_len = pass.tiles.rows * planes.covered(n_rows);
        let (mut first_tap, mut n_sums) = (0, 0);
        for (phases, sums) in std::iter::zip(pass.phases(), sums.chunks_exact_mut(phase_len)) {
            let taps = first_tap..first_tap + pass.n_taps(phases);
            (first_tap, n_sums) = (taps.end, n_sums + phase_len);
            let tile = packed.tile(pass, (group, tile), taps, block, vectors, sums);
            E::add_up(Tile { distance: planes.plane(1, 0, 0), ..tile });
        }
        let sums = &mut sums[..n_sums];
        if pass.relu {
            packed.entries.vectorize(inlined!(|| relu(sums)));
        }
        sums
    }
}

/// Negative sums become zero.
#[inline(always)]
fn relu<R: Lanes>(sums: &mut [R]) {
    sums.iter_mut().for_each(|sum| *sum = if *sum < R::zeroed() { R::zeroed() } else { *sum });
}

impl<E: Entries> Packed<'_, E> {
    /// A tile of a block, with the vectors of a pair of phases.
    pub(super) fn tile<'a>(
        &'a self,
        pass: &Pass,
        (group, tile): (usize, usize),
        taps: Range<usize>,
        block: &'a [E::Factor],
        vectors: &'a [[usize; 2]],
        sums: &'a mut [E::Sum],
    ) -> Tile<'a, E> {
        let (tiles, tile_rows) = (pass.n_tiles(), pass.tiles.rows);
        let n_weights = taps.len() * tile_rows;
        let first_weight = (group * self.offsets.len() + taps.start) * tiles * tile_rows + tile * n_weights;
        Tile {
            multiplier: self.entries,
            start: &self.starts[(group * tiles + tile) * tile_rows..][..tile_rows],
            offsets: &self.offsets[taps],
            weights: &self.weights[first_weight..][..n_weights],
            depth: pass.tiles.depth,
            distance: 0,
            source: block,
            vectors,
            sums,
        }
    }
}
