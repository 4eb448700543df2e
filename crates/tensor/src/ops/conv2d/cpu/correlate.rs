//! A pass with vectors over pixels, for few target channels.
//!
//! Weights are packed once, in the order in which the inner loop reads them. A task then takes some images (or, when
//! there are few, some channels of one image): it copies blocks of the source into planes, adds up tiles of channels in
//! scratch, and writes the rows of each tile to their place.

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use super::fill::{Fill, Images};
use super::pass::{Pass, Span, Tiling};
use super::planes::{Limits, Planes};
use super::rows::TileRows;
use super::tile::Tile;
use crate::element::Real;
use crate::scratch;

/// A block stays in the second-level cache.
const LIMITS: Limits = Limits { block_len: 48 << 10, plane_vectors: 64, prefers_large: false };

/// `target = Σ weight · source + bias`
pub(super) fn run<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    source: &[R],
    weight: &[R],
    bias: Option<&[R]>,
    target: &mut [R],
) -> Result<()> {
    let pass = &pass.split();
    let tile_rows = crate::lanes::tile_rows::<S>(pass.target_channels);
    let axes = (pass.rows, pass.columns);
    let planes = Planes::choose(axes, pass.source_channels, pass.batch, R::lanes::<S>(), LIMITS);
    let tiles = pass.target_channels.div_ceil(tile_rows);
    let n_taps = pass.n_all_taps();
    scratch::with(n_taps, |offsets| {
        scratch::with(pass.groups * n_taps * tiles * tile_rows, |weights| {
            scratch::with(pass.groups * tiles * tile_rows, |starts| {
                pack(pass, &planes, tile_rows, weight, offsets, weights);
                pack_bias(pass, tile_rows, bias, starts);
                let packed = Packed { planes, tile_rows, tiles, offsets, weights, starts };
                let tiling = Tiling { channels: tile_rows, tiles, images: planes.images };
                pass.for_each_task(tiling, target, |span, target| run_task(simd, pass, &packed, source, span, target))
            })
        })
    })
}

/// What all tasks share.
struct Packed<'a, R> {
    planes: Planes,
    /// Channels per tile.
    tile_rows: usize,
    /// Tiles per group.
    tiles: usize,
    /// Where each tap's pixels begin in a block: `[phases, taps]`.
    offsets: &'a [usize],
    /// `[groups, phases, tiles, taps, tile_rows]`
    weights: &'a [R],
    /// What each sum starts with: `[groups, tiles · tile_rows]`.
    starts: &'a [R],
}

/// Fills offsets and weights; the rows of a tile without a channel get zeros.
fn pack<R: Real>(
    pass: &Pass,
    planes: &Planes,
    tile_rows: usize,
    weight: &[R],
    offsets: &mut [usize],
    weights: &mut [R],
) {
    let mut offset = offsets.iter_mut();
    for phases in pass.phases() {
        pass.for_each_tap(phases, |channel, y, x, _| {
            let entry = planes.plane(channel, y.phase, x.phase) + planes.distance(y.shift, x.shift);
            *offset.next().expect("one per tap") = entry;
        });
    }
    let mut rows = weights.chunks_exact_mut(tile_rows);
    for group in 0..pass.groups {
        for phases in pass.phases() {
            for first in (0..pass.target_channels).step_by(tile_rows) {
                let channels = first..(first + tile_rows).min(pass.target_channels);
                pass.for_each_tap(phases, |_, _, _, tap| {
                    let row = rows.next().expect("one per tap and tile");
                    row[channels.len()..].fill(R::ZERO);
                    for (to, channel) in row.iter_mut().zip(channels.clone()) {
                        *to = weight[pass.first_weight(group, channel) + tap];
                    }
                });
            }
        }
    }
}

pub(super) fn pack_bias<R: Real>(pass: &Pass, tile_rows: usize, bias: Option<&[R]>, starts: &mut [R]) {
    starts.fill(R::ZERO);
    let Some(bias) = bias else { return };
    let padded = pass.target_channels.next_multiple_of(tile_rows);
    for (to, from) in starts.chunks_exact_mut(padded).zip(bias.chunks_exact(pass.target_channels)) {
        to[..from.len()].copy_from_slice(from);
    }
}

fn run_task<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    packed: &Packed<'_, R>,
    source: &[R],
    span: Span,
    target: &mut [R],
) -> Result<()> {
    let planes = &packed.planes;
    let n_sums = pass.phases().count() * packed.tile_rows * planes.vectors(planes.block_rows) * R::lanes::<S>();
    scratch::with(planes.block_len(pass.source_channels), |block| {
        scratch::with(n_sums + TileRows::<R>::SLACK, |sums| {
            Task { pass, packed, source, span, target, block, sums }.run(simd);
            Ok(())
        })
    })
}

struct Task<'a, R> {
    pass: &'a Pass,
    packed: &'a Packed<'a, R>,
    source: &'a [R],
    span: Span,
    target: &'a mut [R],
    /// Room for a block of the source.
    block: &'a mut [R],
    /// Room for the sums of a tile.
    sums: &'a mut [R],
}

/// A block of a task: images, counted from the task's first, and target rows of a phase.
struct Part {
    image: usize,
    n_images: usize,
    first_row: usize,
}

impl<R: Real> Task<'_, R> {
    fn run<S: Simd>(&mut self, simd: S) {
        let planes = &self.packed.planes;
        let n_images = self.target.len() / self.image_len();
        self.block.fill(R::ZERO);
        for image in (0..n_images).step_by(planes.images) {
            for first_row in (0..planes.rows.targets(0)).step_by(planes.block_rows) {
                let part = Part { image, n_images: planes.images.min(n_images - image), first_row };
                self.part(simd, &part);
            }
        }
    }

    /// Elements of the target per image.
    fn image_len(&self) -> usize {
        self.span.image_len(self.pass, self.packed.tile_rows)
    }

    fn part<S: Simd>(&mut self, simd: S, part: &Part) {
        let (pass, planes) = (self.pass, &self.packed.planes);
        let group_len = pass.source_channels * pass.source_plane();
        for group in self.span.groups.0..self.span.groups.1 {
            if !planes.has_all_rows() {
                self.block.fill(R::ZERO);
            }
            let first = ((self.span.first_image + part.image) * pass.groups + group) * group_len;
            let images = Images {
                pixels: &self.source[first..],
                n_images: part.n_images,
                image_len: pass.groups * group_len,
                channels: pass.source_channels,
            };
            simd.vectorize(Fill { planes, from: images, first_row: part.first_row, block: self.block });
            self.tiles(simd, part, group);
        }
    }

    /// Adds up and writes all tiles of a group.
    fn tiles<S: Simd>(&mut self, simd: S, part: &Part, group: usize) {
        let (pass, packed) = (self.pass, self.packed);
        let n_rows = pass.rows.targets(0).saturating_sub(part.first_row).min(packed.planes.block_rows);
        let phase_len = packed.tile_rows * packed.planes.vectors(n_rows) * R::lanes::<S>();
        for tile in self.span.tiles.0..self.span.tiles.1 {
            let mut first_tap = 0;
            for (phases, sums) in pass.phases().zip(self.sums.chunks_exact_mut(phase_len)) {
                let taps = first_tap..first_tap + pass.n_taps(phases);
                first_tap = taps.end;
                packed.tile(group, tile, taps, self.block, sums).run(simd);
            }
            if pass.relu {
                simd.vectorize(Relu(self.sums));
            }
            simd.vectorize(self.rows(part, group, tile, phase_len));
        }
    }

    /// The places of a tile's sums.
    fn rows(&mut self, part: &Part, group: usize, tile: usize, phase_len: usize) -> TileRows<'_, R> {
        let (pass, packed) = (self.pass, self.packed);
        let first_channel = tile * packed.tile_rows;
        let first_plane = self.span.first_plane(pass, packed.tile_rows, group, tile);
        let image_len = self.image_len();
        let end = (part.first_row + packed.planes.block_rows) * pass.rows.target_step;
        TileRows {
            sums: self.sums,
            phase_len,
            channel_len: phase_len / packed.tile_rows,
            row_len: packed.planes.distance(1, 0),
            pitch: packed.planes.pitch,
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

/// Zero for what is below zero.
struct Relu<'a, R>(&'a mut [R]);

impl<R: Real> WithSimd for Relu<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.0.iter_mut().for_each(|sum| *sum = if *sum < R::ZERO { R::ZERO } else { *sum });
    }
}

impl<R: Real> Packed<'_, R> {
    fn tile<'a>(
        &'a self,
        group: usize,
        tile: usize,
        taps: std::ops::Range<usize>,
        block: &'a [R],
        sums: &'a mut [R],
    ) -> Tile<'a, R> {
        let n_weights = taps.len() * self.tile_rows;
        let group_start = group * self.offsets.len() * self.tiles * self.tile_rows;
        let first_weight = group_start + taps.start * self.tiles * self.tile_rows + tile * n_weights;
        Tile {
            start: &self.starts[(group * self.tiles + tile) * self.tile_rows..][..self.tile_rows],
            offsets: &self.offsets[taps],
            weights: &self.weights[first_weight..][..n_weights],
            source: block,
            sums,
        }
    }
}
