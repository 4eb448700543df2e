//! A pass: the convolution, or the gradient of the image, over a whole batch. Defines its sums and its division into
//! tasks; `correlate.rs` and `images.rs` are two ways of running one.

use std::ops::Range;

use pagelock_memory::Result;

use super::ConvDims;
use super::axis::{Axis, ConvAxis, Tap};
use super::entries::TileSizes;
use crate::inlined::Array;
use crate::parallel::try_for_each_chunk_mut;

/// The fewest multiply-adds that make a task worth starting: about ten microseconds.
const TASK_WORK: usize = 1 << 20;

/// The sizes and strides of a pass; see `axis.rs`.
pub(super) struct Pass {
    pub(super) rows: Axis,
    pub(super) columns: Axis,
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels per group.
    pub(super) source_channels: usize,
    pub(super) target_channels: usize,
    /// Source channels per entry, which one product adds up (`entries.rs`).
    pub(super) entry_channels: usize,
    /// The sizes of tiles. Taps of `tiles.depth` entries, which divides the number of entries, at one position of the
    /// kernel are consecutive.
    pub(super) tiles: TileSizes,
    /// Whether sums below zero become zero.
    pub(super) relu: bool,
    weights: WeightStrides,
    work_per_image: usize,
}

/// Distances in the weight tensor between neighbors.
#[derive(Clone, Copy)]
struct WeightStrides {
    group: usize,
    source: usize,
    target: usize,
    row: usize,
}

pub(super) fn axes(d: &ConvDims) -> [ConvAxis; 2] {
    [0, 1].mapped(|axis| ConvAxis {
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
        let [rows, columns] = axes(d).mapped(Axis::forward);
        let (inputs, outputs) = (d.in_channels / d.groups, d.out_channels / d.groups);
        let taps = d.kernel[0] * d.kernel[1];
        Pass {
            rows,
            columns,
            batch: d.batch,
            groups: d.groups,
            source_channels: inputs,
            target_channels: outputs,
            entry_channels: 1,
            tiles: TileSizes { rows: 1, depth: 1, lanes: 1 },
            relu: false,
            weights: WeightStrides {
                group: outputs * inputs * taps,
                source: taps,
                target: inputs * taps,
                row: d.kernel[1],
            },
            work_per_image: d.work_per_image(),
        }
    }

    pub(super) fn input_grad(d: &ConvDims) -> Pass {
        let pass = Pass::forward(d);
        let [rows, columns] = axes(d).mapped(Axis::input_grad);
        Pass {
            rows,
            columns,
            source_channels: pass.target_channels,
            target_channels: pass.source_channels,
            weights: WeightStrides { source: pass.weights.target, target: pass.weights.source, ..pass.weights },
            ..pass
        }
    }

    /// The same, followed by ReLU if `relu`.
    pub(super) fn then_relu(self, relu: bool) -> Pass {
        Pass { relu, ..self }
    }

    /// The same with its source split into phases, and `entry_channels` channels in each entry.
    pub(super) fn split(&self, entry_channels: usize) -> Pass {
        Pass { rows: self.rows.split(), columns: self.columns.split(), entry_channels, ..*self }
    }

    /// The same in tiles of these sizes.
    pub(super) fn in_tiles(&self, tiles: TileSizes) -> Pass {
        Pass { tiles, ..*self }
    }

    /// Tiles for the target channels of a group.
    pub(super) fn n_tiles(&self) -> usize {
        self.target_channels.div_ceil(self.tiles.rows)
    }

    /// Entries for the channels of a group.
    pub(super) fn source_entries(&self) -> usize {
        self.source_channels.div_ceil(self.entry_channels)
    }

    /// Pairs of phases of target rows and columns.
    pub(super) fn phases(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = self.columns.target_phases();
        (0..self.rows.target_phases()).flat_map(move |row| (0..columns).map(move |column| (row, column)))
    }

    /// Products that each target of a pair of phases adds up.
    pub(super) fn n_taps(&self, (row, column): (usize, usize)) -> usize {
        self.source_entries() * self.rows.taps(row).count() * self.columns.taps(column).count()
    }

    /// Targets of a pair of phases in each plane.
    pub(super) fn n_targets(&self, (row, column): (usize, usize)) -> usize {
        self.rows.targets(row) * self.columns.targets(column)
    }

    /// Products of all pairs of phases.
    pub(super) fn n_all_taps(&self) -> usize {
        self.phases().map(|phases| self.n_taps(phases)).sum()
    }

    /// Pixels of a target plane.
    pub(super) fn target_plane(&self) -> usize {
        self.rows.target_size * self.columns.target_size
    }

    /// Groups of the source, channels per group and pixels per channel.
    pub(super) fn source_sizes(&self) -> [usize; 3] {
        [self.groups, self.source_channels, self.source_plane()]
    }

    /// Groups of the target, channels per group and pixels per channel.
    pub(super) fn target_sizes(&self) -> [usize; 3] {
        [self.groups, self.target_channels, self.target_plane()]
    }

    pub(super) fn source_plane(&self) -> usize {
        self.rows.source_size * self.columns.source_size
    }

    /// Calls `each(entry, row, column, weights)` for every tap, in the order of the sums. `weights` are the indices of
    /// the weights of the entry's channels, for the first target channel of the first group.
    pub(super) fn for_each_tap(
        &self,
        (row, column): (usize, usize),
        mut each: impl FnMut(usize, Tap, Tap, (usize, Option<usize>)),
    ) {
        for first_entry in (0..self.source_entries()).step_by(self.tiles.depth) {
            for y in self.rows.taps(row) {
                for x in self.columns.taps(column) {
                    for entry in first_entry..first_entry + self.tiles.depth {
                        let first = entry * self.entry_channels;
                        let has_second = self.entry_channels == 2 && first + 1 < self.source_channels;
                        let weight = first * self.weights.source + y.index * self.weights.row + x.index;
                        each(entry, y, x, (weight, has_second.then_some(weight + self.weights.source)));
                    }
                }
            }
        }
    }

    /// Fills `offsets` with `offset(entry, row, column)` of every tap of all pairs of phases, in the order of the sums.
    pub(super) fn find_offsets(&self, offsets: &mut [usize], offset: impl Fn(usize, Tap, Tap) -> usize) {
        let mut to = offsets.iter_mut();
        for phases in self.phases() {
            self.for_each_tap(phases, |entry, y, x, _| *to.next().expect("one per tap") = offset(entry, y, x));
        }
    }

    /// The index of the first weight of a target channel of a group.
    pub(super) fn first_weight(&self, group: usize, channel: usize) -> usize {
        group * self.weights.group + channel * self.weights.target
    }

    /// Divides the target into tasks, by sizes alone, and runs them. Blocks have `block_images` images.
    pub(super) fn for_each_task<T: Send>(
        &self,
        block_images: usize,
        target: &mut [T],
        task: impl Fn(Span, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let tiles_per_task = self.tiles_per_task(block_images);
        if tiles_per_task == self.n_tiles() {
            let image_len = self.groups * self.target_channels * self.target_plane();
            let images = self.images_per_task().next_multiple_of(block_images);
            return try_for_each_chunk_mut(target, images * image_len, |i, target| {
                let (groups, tiles) = (0..self.groups, 0..self.n_tiles());
                task(Span { first_image: i * images, groups, tiles, image_len }, target)
            });
        }
        let tasks_per_group = self.n_tiles() / tiles_per_task;
        let image_len = tiles_per_task * self.tiles.rows * self.target_plane();
        try_for_each_chunk_mut(target, image_len, |i, target| {
            let (first_image, task_of_image) =
                (i / (self.groups * tasks_per_group), i % (self.groups * tasks_per_group));
            let group = task_of_image / tasks_per_group;
            let tile = task_of_image % tasks_per_group * tiles_per_task;
            task(Span { first_image, groups: group..group + 1, tiles: tile..tile + tiles_per_task, image_len }, target)
        })
    }

    /// The number of images per task, such that a task has about `TASK_WORK` and the number of tasks is a power of two:
    /// then two or four threads get equally many tasks of equal length.
    pub(super) fn images_per_task(&self) -> usize {
        let tasks = self.batch.saturating_mul(self.work_per_image).div_ceil(TASK_WORK).next_power_of_two();
        self.batch.div_ceil(tasks).max(1)
    }

    /// All tiles, or fewer when there are few images with much work in each.
    fn tiles_per_task(&self, block_images: usize) -> usize {
        const FEW_IMAGES: usize = 8;
        let tiles = self.n_tiles();
        let whole = self.target_channels.is_multiple_of(self.tiles.rows) && block_images == 1;
        if self.batch >= FEW_IMAGES || !whole || self.work_per_image < 2 * TASK_WORK {
            return tiles;
        }
        // At least two tiles per task, since each task copies the source.
        let enough = (TASK_WORK * tiles * self.groups).div_ceil(self.work_per_image).max(2);
        (enough..tiles).find(|&n| tiles.is_multiple_of(n)).unwrap_or(tiles)
    }
}

/// The part of a pass that a task computes: the images of its target, which begin at image `first_image` of the batch,
/// and ranges of groups and tiles.
pub(super) struct Span {
    pub(super) first_image: usize,
    pub(super) groups: Range<usize>,
    pub(super) tiles: Range<usize>,
    /// Elements of the task's target per image.
    pub(super) image_len: usize,
}
