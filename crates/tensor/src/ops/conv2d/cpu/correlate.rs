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
use super::pass::{Pass, Span, Tiling};
use super::planes::{Limits, Planes};
use super::rows::TileRows;
use super::tile::Tile;
use crate::inlined::{Slice, zip};
use crate::lanes::Lanes;
use crate::scratch;

/// A block fits in the second-level cache.
const LIMITS: Limits = Limits { block_bytes: 192 << 10, plane_vectors: 64, prefers_large: false };

/// The tensors of a pass: `target = Σ weight · source + bias`.
pub(super) struct Operands<'a, E: Entries> {
    pub(super) source: &'a [E::Element],
    pub(super) weight: &'a [E::Element],
    pub(super) bias: Option<&'a [E::Sum]>,
    pub(super) target: &'a mut [E::Element],
}

pub(super) fn run<E: Entries>(entries: E, pass: &Pass, operands: Operands<'_, E>) -> Result<()> {
    let Operands { source, weight, bias, target } = operands;
    let mut pass = pass.split(E::CHANNELS);
    let TileSizes { rows: tile_rows, depth, lanes } = E::tiling(pass.source_entries(), pass.target_channels);
    pass.entry_depth = depth;
    let pass = &pass;
    let planes =
        Planes::choose::<E::Factor>((pass.rows, pass.columns), (pass.source_entries(), lanes), pass.batch, LIMITS);
    let planes = if depth == 1 { planes.with_rows_as_vectors() } else { planes };
    let offset = |entry, y: Tap, x: Tap| planes.plane(entry, y.phase, x.phase) + planes.distance(y.shift, x.shift);
    with_packed(entries, pass, tile_rows, (weight, bias), offset, |packed| {
        scratch::with(2 * planes.vectors(planes.block_rows), |vectors: &mut [usize]| {
            let vectors = vectors.as_chunks_mut().0;
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = [v * planes.vector_stride(), v * lanes];
            }
            let shared = Shared { planes, vectors, packed };
            let tiling = Tiling { channels: tile_rows, tiles: packed.tiles, images: planes.images };
            pass.for_each_task(tiling, target, |span, target| run_task(pass, &shared, source, span, target))
        })
    })
}

/// The weights and biases of a pass in the order in which tiles read them.
pub(super) struct Packed<'a, E: Entries> {
    entries: E,
    /// Channels per tile.
    pub(super) tile_rows: usize,
    /// Tiles per group.
    pub(super) tiles: usize,
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
    tile_rows: usize,
    (weight, bias): (&[E::Element], Option<&[E::Sum]>),
    offset: impl Fn(usize, Tap, Tap) -> usize,
    body: impl FnOnce(&Packed<'_, E>) -> Result<()>,
) -> Result<()> {
    let tiles = pass.target_channels.div_ceil(tile_rows);
    let n_taps = pass.n_all_taps();
    scratch::with(n_taps, |offsets: &mut [usize]| {
        scratch::with(pass.groups * n_taps * tiles * tile_rows, |weights| {
            scratch::with(pass.groups * tiles * tile_rows, |starts| {
                pass.find_offsets(offsets, offset);
                pack::<E>(pass, tile_rows, weight, weights);
                pack_bias(pass, tile_rows, bias, starts);
                body(&Packed { entries, tile_rows, tiles, offsets, weights, starts })
            })
        })
    })
}

/// Packs the weights; rows of a tile without a channel are zero.
fn pack<E: Entries>(pass: &Pass, tile_rows: usize, weight: &[E::Element], weights: &mut [E::Factor]) {
    let depth = pass.entry_depth;
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

fn pack_bias<R: Lanes>(pass: &Pass, tile_rows: usize, bias: Option<&[R]>, starts: &mut [R]) {
    starts.set_to(R::zeroed());
    let Some(bias) = bias else { return };
    let padded = pass.target_channels.next_multiple_of(tile_rows);
    for (to, from) in zip(starts.chunks_exact_mut(padded), bias.chunks_exact(pass.target_channels)) {
        to[..from.len()].copy_from(from);
    }
}

/// The data that all tasks share.
struct Shared<'a, E: Entries> {
    planes: Planes,
    /// Where the pixels and the sums of each vector begin.
    vectors: &'a [[usize; 2]],
    packed: &'a Packed<'a, E>,
}

fn run_task<E: Entries>(
    pass: &Pass,
    shared: &Shared<'_, E>,
    source: &[E::Element],
    span: Span,
    target: &mut [E::Element],
) -> Result<()> {
    let planes = &shared.planes;
    let n_sums = pass.phases().count() * shared.packed.tile_rows * planes.covered(planes.block_rows);
    scratch::with(planes.block_len(pass.source_entries()), |block| {
        scratch::with(n_sums, |sums| {
            scratch::with(E::scratch_len(n_sums), |rounded| {
                Task { pass, shared, source, span, target, block, sums, rounded }.run();
                Ok(())
            })
        })
    })
}

struct Task<'a, E: Entries> {
    pass: &'a Pass,
    shared: &'a Shared<'a, E>,
    source: &'a [E::Element],
    span: Span,
    target: &'a mut [E::Element],
    /// Scratch for a block of the source.
    block: &'a mut [E::Factor],
    /// Scratch for the sums of a tile.
    sums: &'a mut [E::Sum],
    /// Scratch for these sums rounded to elements.
    rounded: &'a mut [E::Element],
}

/// A block of a task: images, counted from the task's first, and target rows of a phase.
struct Part {
    image: usize,
    n_images: usize,
    first_row: usize,
}

impl<E: Entries> Task<'_, E> {
    fn run(&mut self) {
        let planes = &self.shared.planes;
        let n_images = self.target.len() / self.image_len();
        self.block.set_to(E::Factor::zeroed());
        for image in (0..n_images).step_by(planes.images) {
            for first_row in (0..planes.rows.targets(0)).step_by(planes.block_rows) {
                self.part(&Part { image, n_images: planes.images.min(n_images - image), first_row });
            }
        }
    }

    /// Elements of the target per image.
    fn image_len(&self) -> usize {
        self.span.image_len(self.pass, self.shared.packed.tile_rows)
    }

    fn part(&mut self, part: &Part) {
        let (pass, planes) = (self.pass, &self.shared.planes);
        for group in self.span.groups.0..self.span.groups.1 {
            if !planes.has_all_rows() {
                self.block.set_to(E::Factor::zeroed());
            }
            let images = (self.span.first_image + part.image, part.n_images);
            let from = Images::of_group(self.source, pass.source_sizes(), images, group);
            let fill = Fill { planes, from, first_row: part.first_row, block: self.block };
            fill.run(self.shared.packed.entries);
            self.tiles(part, group);
        }
    }

    /// Adds up and writes all tiles of a group.
    fn tiles(&mut self, part: &Part, group: usize) {
        let (pass, &Shared { planes, vectors, packed }) = (self.pass, self.shared);
        let n_rows = pass.rows.targets(0).saturating_sub(part.first_row).min(planes.block_rows);
        let vectors = &vectors[..planes.vectors(n_rows)];
        let phase_len = packed.tile_rows * planes.covered(n_rows);
        for tile in self.span.tiles.0..self.span.tiles.1 {
            let (mut first_tap, mut n_sums) = (0, 0);
            for (phases, sums) in std::iter::zip(pass.phases(), self.sums.chunks_exact_mut(phase_len)) {
                let taps = first_tap..first_tap + pass.n_taps(phases);
                (first_tap, n_sums) = (taps.end, n_sums + phase_len);
                let tile = packed.tile(pass, (group, tile), taps, self.block, vectors, sums);
                E::add_up(Tile { distance: planes.plane(1, 0, 0), ..tile });
            }
            if pass.relu {
                packed.entries.vectorize(
                    #[inline(always)]
                    || relu(&mut self.sums[..n_sums]),
                );
            }
            packed.entries.vectorize(self.rows(part, (group, tile), phase_len, n_sums));
        }
    }

    /// A tile's sums, and the rows of the target to which they are written.
    fn rows(
        &mut self,
        part: &Part,
        (group, tile): (usize, usize),
        phase_len: usize,
        n_sums: usize,
    ) -> TileRows<'_, E::Element> {
        let (pass, Shared { planes, packed, .. }) = (self.pass, self.shared);
        let first_channel = tile * packed.tile_rows;
        let first_plane = self.span.first_plane(pass, packed.tile_rows, group, tile);
        let image_len = self.image_len();
        let end = (part.first_row + planes.block_rows) * pass.rows.target_step;
        TileRows {
            sums: E::rounded(&self.sums[..n_sums], self.rounded),
            phase_len,
            channel_len: phase_len / packed.tile_rows,
            row_len: planes.images * planes.sums_pitch(),
            pitch: planes.sums_pitch(),
            target: &mut self.target[part.image * image_len + first_plane * pass.target_plane()..],
            image_len,
            n_images: part.n_images,
            channels: packed.tile_rows.min(pass.target_channels - first_channel),
            size: [pass.rows.target_size, pass.columns.target_size],
            steps: [pass.rows.target_step, pass.columns.target_step],
            rows: part.first_row * pass.rows.target_step..end.min(pass.rows.target_size),
        }
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
        let n_weights = taps.len() * self.tile_rows;
        let group_start = group * self.offsets.len() * self.tiles * self.tile_rows;
        let first_weight = group_start + taps.start * self.tiles * self.tile_rows + tile * n_weights;
        Tile {
            multiplier: self.entries,
            start: &self.starts[(group * self.tiles + tile) * self.tile_rows..][..self.tile_rows],
            offsets: &self.offsets[taps],
            weights: &self.weights[first_weight..][..n_weights],
            depth: pass.entry_depth,
            distance: 0,
            source: block,
            vectors,
            sums,
        }
    }
}
