//! A pass: the convolution, or its derivative by the image, over a whole batch.
//!
//! Weights are packed once, in the order in which the inner loop reads them. A task then takes some images (or, when
//! there are few, some channels of one image): it copies blocks of the source into planes, adds up tiles of channels in
//! scratch, and writes the rows of each tile to their place.

use pulp::{Simd, WithSimd};

use super::ConvDims;
use super::axis::{Axis, ConvAxis};
use super::fill::{Fill, Images};
use super::planes::{Limits, Planes};
use super::rows::TileRows;
use super::tile::Tile;
use crate::element::Real;
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// Multiply-adds that make a task worth handing out: some ten microseconds.
const TASK_WORK: usize = 1 << 20;

/// A block stays in the second-level cache.
const LIMITS: Limits = Limits { block_len: 48 << 10, plane_vectors: 64, prefers_large: false };

/// What is added up where; see `axis.rs`.
pub(super) struct Pass {
    rows: Axis,
    columns: Axis,
    batch: usize,
    groups: usize,
    /// Channels per group.
    source_channels: usize,
    target_channels: usize,
    weights: WeightStrides,
    work_per_image: usize,
}

/// Distances in the weight tensor between neighbors.
struct WeightStrides {
    group: usize,
    source: usize,
    target: usize,
    row: usize,
}

pub(super) fn axes(d: &ConvDims) -> [ConvAxis; 2] {
    [0, 1].map(|axis| ConvAxis {
        in_size: d.in_size[axis],
        out_size: d.out_size[axis],
        kernel: d.kernel[axis],
        stride: d.stride[axis],
        padding: d.padding[axis],
        dilation: d.dilation[axis],
    })
}

impl Pass {
    pub(super) fn forward(d: &ConvDims) -> Pass {
        let [rows, columns] = axes(d).map(Axis::forward);
        let (inputs, outputs) = (d.in_channels / d.groups, d.out_channels / d.groups);
        let taps = d.kernel[0] * d.kernel[1];
        let weights =
            WeightStrides { group: outputs * inputs * taps, source: taps, target: inputs * taps, row: d.kernel[1] };
        let (batch, groups, work_per_image) = (d.batch, d.groups, d.work_per_image());
        Pass {
            rows,
            columns,
            batch,
            groups,
            source_channels: inputs,
            target_channels: outputs,
            weights,
            work_per_image,
        }
    }

    pub(super) fn input_grad(d: &ConvDims) -> Pass {
        let Pass { batch, groups, source_channels, target_channels, weights, work_per_image, .. } = Pass::forward(d);
        let [rows, columns] = axes(d).map(Axis::input_grad);
        Pass {
            rows,
            columns,
            batch,
            groups,
            source_channels: target_channels,
            target_channels: source_channels,
            weights: WeightStrides { source: weights.target, target: weights.source, ..weights },
            work_per_image,
        }
    }

    /// `target = Σ weight · source + bias`
    pub(super) fn run<R: Real>(&self, source: &[R], weight: &[R], bias: Option<&[R]>, target: &mut [R]) {
        if !target.is_empty() {
            crate::lanes::dispatch(Run { pass: self, source, weight, bias, target });
        }
    }

    /// Pairs of phases of target rows and columns.
    fn phases(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = self.columns.target_phases();
        (0..self.rows.target_phases()).flat_map(move |row| (0..columns).map(move |column| (row, column)))
    }

    /// Products that each target of a pair of phases adds up.
    fn n_taps(&self, (row, column): (usize, usize)) -> usize {
        self.source_channels * self.rows.taps(row).count() * self.columns.taps(column).count()
    }

    /// Pixels of a target plane.
    fn target_plane(&self) -> usize {
        self.rows.target_size * self.columns.target_size
    }

    fn source_plane(&self) -> usize {
        self.rows.source_size * self.columns.source_size
    }

    /// Calls `each(tap, source channel, row shift and phase.., weight)` in the order of the sums.
    fn for_each_tap(&self, (row, column): (usize, usize), planes: &Planes, mut each: impl FnMut(usize, usize)) {
        for channel in 0..self.source_channels {
            for y in self.rows.taps(row) {
                for x in self.columns.taps(column) {
                    let entry = planes.plane(channel, y.phase, x.phase) + planes.distance(y.shift, x.shift);
                    each(entry, channel * self.weights.source + y.index * self.weights.row + x.index);
                }
            }
        }
    }
}

/// A pass on its data.
struct Run<'a, R> {
    pass: &'a Pass,
    source: &'a [R],
    weight: &'a [R],
    bias: Option<&'a [R]>,
    target: &'a mut [R],
}

impl<R: Real> WithSimd for Run<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let pass = self.pass;
        let tile_rows = crate::lanes::tile_rows::<S>(pass.target_channels);
        let axes = (pass.rows, pass.columns);
        let planes = Planes::choose(axes, pass.source_channels, pass.batch, R::lanes::<S>(), LIMITS);
        let tiles = pass.target_channels.div_ceil(tile_rows);
        let n_taps: usize = pass.phases().map(|phases| pass.n_taps(phases)).sum();
        let group_len = n_taps * tiles * tile_rows;
        scratch::with(n_taps, |offsets| {
            scratch::with(pass.groups * group_len, |weights| {
                scratch::with(pass.groups * tiles * tile_rows, |starts| {
                    pack(pass, &planes, tile_rows, self.weight, offsets, weights);
                    pack_bias(pass, tile_rows, self.bias, starts);
                    let packed = Packed { planes, tile_rows, tiles, offsets, weights, starts };
                    run_tasks(simd, pass, &packed, self.source, self.target);
                });
            });
        });
    }
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
        pass.for_each_tap(phases, planes, |entry, _| *offset.next().expect("one per tap") = entry);
    }
    let mut rows = weights.chunks_exact_mut(tile_rows);
    for group in 0..pass.groups {
        for phases in pass.phases() {
            for first in (0..pass.target_channels).step_by(tile_rows) {
                let channels = first..(first + tile_rows).min(pass.target_channels);
                pass.for_each_tap(phases, planes, |_, tap| {
                    let row = rows.next().expect("one per tap and tile");
                    row[channels.len()..].fill(R::ZERO);
                    for (to, channel) in row.iter_mut().zip(channels.clone()) {
                        *to = weight[group * pass.weights.group + channel * pass.weights.target + tap];
                    }
                });
            }
        }
    }
}

fn pack_bias<R: Real>(pass: &Pass, tile_rows: usize, bias: Option<&[R]>, starts: &mut [R]) {
    starts.fill(R::ZERO);
    let Some(bias) = bias else { return };
    let padded = pass.target_channels.next_multiple_of(tile_rows);
    for (to, from) in starts.chunks_exact_mut(padded).zip(bias.chunks_exact(pass.target_channels)) {
        to[..from.len()].copy_from_slice(from);
    }
}

/// Cuts the target into tasks, by sizes only, and runs them.
fn run_tasks<S: Simd, R: Real>(simd: S, pass: &Pass, packed: &Packed<'_, R>, source: &[R], target: &mut [R]) {
    let image_len = pass.groups * pass.target_channels * pass.target_plane();
    let images = TASK_WORK.div_ceil(pass.work_per_image.max(1)).next_multiple_of(packed.planes.images);
    let tiles_per_task = tiles_per_task(pass, packed);
    if tiles_per_task == packed.tiles {
        for_each_chunk_mut(target, images * image_len, |task, target| {
            let span = Span { first_image: task * images, groups: (0, pass.groups), tiles: (0, packed.tiles) };
            run_task(simd, pass, packed, source, span, target);
        });
    } else {
        let tasks_per_group = packed.tiles / tiles_per_task;
        let channels = tiles_per_task * packed.tile_rows;
        for_each_chunk_mut(target, channels * pass.target_plane(), |task, target| {
            let (image, part) = (task / (pass.groups * tasks_per_group), task % (pass.groups * tasks_per_group));
            let group = part / tasks_per_group;
            let tile = part % tasks_per_group * tiles_per_task;
            let span = Span { first_image: image, groups: (group, group + 1), tiles: (tile, tile + tiles_per_task) };
            run_task(simd, pass, packed, source, span, target);
        });
    }
}

fn run_task<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    packed: &Packed<'_, R>,
    source: &[R],
    span: Span,
    target: &mut [R],
) {
    let planes = &packed.planes;
    let n_sums = pass.phases().count() * packed.tile_rows * planes.vectors(planes.block_rows) * R::lanes::<S>();
    scratch::with(planes.block_len(pass.source_channels), |block| {
        scratch::with(n_sums + TileRows::<R>::SLACK, |sums| {
            Task { pass, packed, source, span, target, block, sums }.run(simd);
        });
    });
}

/// All tiles, or fewer when there are few images with much work in each.
fn tiles_per_task<R>(pass: &Pass, packed: &Packed<'_, R>) -> usize {
    const FEW_IMAGES: usize = 8;
    let whole = pass.target_channels.is_multiple_of(packed.tile_rows) && packed.planes.images == 1;
    if pass.batch >= FEW_IMAGES || !whole || pass.work_per_image < 2 * TASK_WORK {
        return packed.tiles;
    }
    // Copying the source once per task should cost little beside the sums: at least two tiles per task.
    let enough = (TASK_WORK * packed.tiles * pass.groups).div_ceil(pass.work_per_image).max(2);
    (enough..packed.tiles).find(|&tiles| packed.tiles.is_multiple_of(tiles)).unwrap_or(packed.tiles)
}

/// What a task works on: images from `first_image` on, as many as its target has, and ranges of groups and tiles.
struct Span {
    first_image: usize,
    groups: (usize, usize),
    tiles: (usize, usize),
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
        let Span { groups, tiles, .. } = self.span;
        let channels = ((tiles.1 - tiles.0) * self.packed.tile_rows).min(self.pass.target_channels);
        (groups.1 - groups.0) * channels * self.pass.target_plane()
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
            simd.vectorize(self.rows(part, group, tile, phase_len));
        }
    }

    /// The places of a tile's sums.
    fn rows(&mut self, part: &Part, group: usize, tile: usize, phase_len: usize) -> TileRows<'_, R> {
        let (pass, packed, span) = (self.pass, self.packed, &self.span);
        let first_channel = tile * packed.tile_rows;
        let first_plane =
            (group - span.groups.0) * pass.target_channels + first_channel - span.tiles.0 * packed.tile_rows;
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
