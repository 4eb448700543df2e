//! The passes and the gradient of the weight with vectors over images, for small images.
//!
//! A block has as many images as a vector has lanes, and each of its entries is a vector with one pixel of every image.
//! So rows may be of any length, a stride needs no rearranging, and nothing beyond a row is computed. Images are
//! transposed to vectors, and sums back to images, in registers.

use std::ops::Range;

use pagelock_memory::Result;
use pulp::Simd;

use super::Gradient;
use super::axis::{Axis, Tap};
use super::correlate::{Operands, Packed, with_packed};
use super::entries::TileSizes;
use super::fill::Images;
use super::pass::{Pass, Span};
use super::weight_grad::{in_tasks, total};
use crate::element::Real;
use crate::inlined::{Array, Slice};
use crate::lanes::{Dots, FromPlanes, Numbers, StridedRows, ToPlanes, tile_rows};
use crate::scratch;

/// The size of the largest block, which fits in the second-level cache.
const BLOCK_BYTES: usize = 512 << 10;

/// A block of the source, padded with zeros: `[channels, rows, pitch, lanes]`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    rows: Axis,
    columns: Axis,
    channels: usize,
    lanes: usize,
    /// Entries per row.
    pitch: usize,
    /// Entries per channel.
    plane_len: usize,
}

impl Block {
    /// The layout for a pass in `R`, or `None` if images are few, large or empty.
    fn new<S: Simd, R: Real>(pass: &Pass) -> Option<Block> {
        let Pass { rows, columns, source_channels: channels, .. } = *pass;
        if [channels, pass.target_channels, pass.source_plane()].contains(&0) {
            return None;
        }
        let lanes = R::lanes::<S>();
        let pitch = columns.entries(columns.targets(0));
        let plane_len = rows.entries(rows.targets(0)).checked_mul(pitch)?;
        let block = Block { rows, columns, channels, lanes, pitch, plane_len };
        let fills_lanes = 2 * pass.batch > pass.batch.next_multiple_of(lanes);
        let is_small = block.fit::<R>(channels, plane_len) && block.fit::<R>(1, pass.source_plane());
        (fills_lanes && is_small).then_some(block)
    }

    /// The layout for a pass whose rows of targets are shorter than a vector, and whose tiles of sums are small.
    pub(super) fn for_pass<S: Simd, R: Real>(pass: &Pass) -> Option<Block> {
        let block = Block::new::<S, R>(pass)?;
        let is_short = pass.columns.targets(0) < block.lanes;
        (is_short && block.fit::<R>(tile_rows::<S>(pass.target_channels), pass.target_plane())).then_some(block)
    }

    /// The layout for the gradient of the weight of a convolution whose results are small.
    pub(super) fn for_weight_grad<S: Simd, R: Real>(pass: &Pass) -> Option<Block> {
        Block::new::<S, R>(pass).filter(|block| block.fit::<R>(pass.target_channels, pass.target_plane()))
    }

    /// Whether vectors of all entries of these planes take no more than the largest block.
    fn fit<R>(&self, planes: usize, plane_len: usize) -> bool {
        planes.saturating_mul(plane_len).saturating_mul(self.lanes * size_of::<R>()) <= BLOCK_BYTES
    }

    /// The numbers of a block, and of one more vector.
    fn len(&self) -> usize {
        (self.channels * self.plane_len + 1) * self.lanes
    }

    /// The index of the first number of an entry.
    fn entry(&self, channel: usize, row: usize, column: usize) -> usize {
        (channel * self.plane_len + row * self.pitch + column) * self.lanes
    }

    /// For each target of a pair of phases: the index of the entry that a tap without a shift reads, and the index of
    /// the sum in a plane of sums.
    fn targets(&self, (row_phase, column_phase): (usize, usize)) -> impl Iterator<Item = [usize; 2]> {
        let Block { rows, columns, lanes, .. } = *self;
        let row_starts = (0..rows.targets(row_phase)).map(move |row| {
            let target_row = row * rows.target_step + row_phase;
            [self.entry(0, row * rows.advance, 0), target_row * columns.target_size + column_phase]
        });
        row_starts.flat_map(move |[entry, sum]| {
            let of_column = move |i| [entry + i * columns.advance * lanes, (sum + i * columns.target_step) * lanes];
            (0..columns.targets(column_phase)).map(of_column)
        })
    }

    /// The index of the vector of each pixel of the source. Pixels that no tap reads share the last vector.
    fn find_pixels(&self, indices: &mut [usize]) {
        let Block { rows, columns, pitch, plane_len, .. } = *self;
        let (ys, xs) = (rows.pixels(plane_len / pitch), columns.pixels(pitch));
        let [y_offset, x_offset] = [rows, columns].mapped(|axis| axis.origin.min(0).unsigned_abs());
        indices.set_to(self.channels * plane_len);
        for (channel, plane) in indices.chunks_exact_mut(rows.source_size * columns.source_size).enumerate() {
            for (y, row) in plane.chunks_exact_mut(columns.source_size).enumerate().take(ys.end).skip(ys.start) {
                let first = channel * plane_len + (y - ys.start + y_offset) * pitch + x_offset;
                row[xs.clone()].iter_mut().enumerate().for_each(|(x, index)| *index = first + x);
            }
        }
    }

    /// Copies images to a block, whose padding must be zero.
    fn fill<S: Simd, R: Real>(&self, simd: S, images: &Images<'_, R>, pixels: &[usize], entries: &mut [R]) {
        simd.vectorize(FromPlanes {
            planes: images.pixels,
            positive: None,
            distance: images.image_len,
            n_planes: images.n_images,
            len: pixels.len(),
            indices: Some(pixels),
            vectors: entries,
        });
    }
}

/// `target = Σ weight · source + bias`
pub(super) fn run<S: Simd, R: Real>(simd: S, pass: &Pass, block: Block, operands: Operands<'_, R, R>) -> Result<()> {
    let Operands { source, weight, bias, target } = operands;
    let pass = &pass.in_tiles(TileSizes::of_vectors::<Numbers<S, R>>(pass.target_channels));
    let offset = |channel, y: Tap, x: Tap| block.entry(channel, y.shift, x.shift);
    with_packed(Numbers::new(simd), pass, (weight, bias), offset, |packed| {
        scratch::with(2 * pass.target_plane(), |targets: &mut [usize]| {
            scratch::with(block.channels * pass.source_plane(), |pixels: &mut [usize]| {
                let targets = targets.as_chunks_mut().0;
                std::iter::zip(&mut *targets, pass.phases().flat_map(|phases| block.targets(phases)))
                    .for_each(|(to, target)| *to = target);
                block.find_pixels(pixels);
                let shared = Shared { simd, pass, block, packed, targets, pixels, source };
                pass.for_each_task(block.lanes, target, |span, target| shared.run(&span, target))
            })
        })
    })
}

/// The data that all tasks share.
struct Shared<'a, S: Simd, R: Real> {
    simd: S,
    pass: &'a Pass,
    block: Block,
    packed: &'a Packed<'a, Numbers<S, R>>,
    /// [`Block::targets`] of all phases.
    targets: &'a [[usize; 2]],
    /// [`Block::find_pixels`]
    pixels: &'a [usize],
    source: &'a [R],
}

impl<S: Simd, R: Real> Shared<'_, S, R> {
    /// Runs a task, which has all channels of some images.
    fn run(&self, &Span { first_image, image_len, .. }: &Span, target: &mut [R]) -> Result<()> {
        let Shared { simd, pass, block, pixels, source, .. } = *self;
        let (lanes, plane, tile_rows) = (block.lanes, pass.target_plane(), pass.tiles.rows);
        let group_len = pass.target_channels * plane;
        let n_sums = tile_rows * plane * lanes;
        scratch::with(block.len(), |entries: &mut [R]| {
            scratch::with(n_sums.max(lanes * lanes), |sums: &mut [R]| {
                entries.set_to(R::ZERO);
                for (i, target) in target.chunks_mut(lanes * image_len).enumerate() {
                    let n_images = target.len() / image_len;
                    for group in 0..pass.groups {
                        let images = (first_image + i * lanes, n_images);
                        let from = Images::of_group(source, pass.source_sizes(), images, group);
                        block.fill(simd, &from, pixels, entries);
                        for tile in 0..pass.n_tiles() {
                            self.add_up((group, tile), entries, &mut sums[..n_sums]);
                            let channel = tile * tile_rows;
                            simd.vectorize(ToPlanes {
                                planes: &mut target[group * group_len + channel * plane..],
                                distance: image_len,
                                n_planes: n_images,
                                len: tile_rows.min(pass.target_channels - channel) * plane,
                                vectors: &*sums,
                                relu: pass.relu,
                            });
                        }
                    }
                }
                Ok(())
            })
        })
    }

    /// Computes the sums of a tile, `[channels, height, width, lanes]`.
    fn add_up(&self, (group, tile): (usize, usize), entries: &[R], sums: &mut [R]) {
        let Shared { pass, packed, mut targets, .. } = *self;
        let mut taps = 0..0;
        for phases in pass.phases() {
            taps = taps.end..taps.end + pass.n_taps(phases);
            let (of_phases, others) = targets.split_at(pass.n_targets(phases));
            targets = others;
            packed.tile(pass, (group, tile), taps.clone(), entries, of_phases, &mut *sums).run();
        }
    }
}

/// [`weight_and_bias_grad`](super::weight_and_bias_grad) with vectors over images.
pub(super) fn weight_and_bias_grad<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    block: Block,
    (x, gradient): (&[R], Gradient<&[R]>),
    grads: &mut [R],
) -> Result<()> {
    let (lanes, plane) = (block.lanes, pass.target_plane());
    scratch::with(pass.n_all_taps(), |starts: &mut [usize]| {
        scratch::with(plane + block.channels * pass.source_plane(), |indices: &mut [usize]| {
            let (indices, pixels) = indices.split_at_mut(plane);
            block.find_pixels(pixels);
            pass.find_offsets(starts, |channel, y, x| block.entry(channel, y.shift, x.shift));
            std::iter::zip(&mut *indices, block.targets((0, 0))).for_each(|(to, [entry, _])| *to = entry / lanes);
            let gradients = WeightGrad { simd, pass, block, starts, indices, pixels, x, gradient };
            in_tasks(pass, lanes, grads, |images, sums| {
                let len = pass.target_channels * plane;
                scratch::with(block.len(), |entries: &mut [R]| {
                    scratch::with((len + lanes) * lanes, |vectors: &mut [R]| {
                        entries.set_to(R::ZERO);
                        sums.set_to(R::ZERO);
                        gradients.add(images, (entries, vectors), sums)
                    })
                })
            })
        })
    })
}

/// The data that all tasks of the gradient of the weight share.
struct WeightGrad<'a, S, R> {
    simd: S,
    pass: &'a Pass,
    block: Block,
    /// Where the entries of each tap begin.
    starts: &'a [usize],
    /// The vector that each target reads, counted from the start of a tap.
    indices: &'a [usize],
    /// [`Block::find_pixels`]
    pixels: &'a [usize],
    x: &'a [R],
    gradient: Gradient<&'a [R]>,
}

impl<S: Simd, R: Real> WeightGrad<'_, S, R> {
    /// Adds the gradients of the weights over some images, followed by the biases' gradients if `sums` is longer.
    fn add(&self, images: Range<usize>, (entries, vectors): (&mut [R], &mut [R]), sums: &mut [R]) -> Result<()> {
        let WeightGrad { simd, pass, block, starts, indices, pixels, x, gradient } = *self;
        let (lanes, plane, channels) = (block.lanes, pass.target_plane(), pass.target_channels);
        let (sums, biases) = sums.split_at_mut(pass.groups * channels * starts.len());
        for first in images.clone().step_by(lanes) {
            let n_images = lanes.min(images.end - first);
            for (group, sums) in sums.chunks_exact_mut(channels * starts.len()).enumerate() {
                let images = |tensor, sizes| Images::of_group(tensor, sizes, (first, n_images), group);
                block.fill(simd, &images(x, pass.source_sizes()), pixels, entries);
                let numbers = images(gradient.numbers, pass.target_sizes());
                simd.vectorize(FromPlanes {
                    planes: numbers.pixels,
                    positive: gradient.positive.map(|positive| images(positive, pass.target_sizes()).pixels),
                    distance: numbers.image_len,
                    n_planes: n_images,
                    len: channels * plane,
                    indices: None,
                    vectors: &mut *vectors,
                });
                let of_biases = biases.iter_mut().skip(group * channels).take(channels);
                std::iter::zip(of_biases, vectors.chunks_exact(plane * lanes))
                    .for_each(|(bias, vectors)| *bias = *bias + total::<Numbers<S, R>>(vectors));
                let left = StridedRows { numbers: &*vectors, distance: plane * lanes };
                let (multiplier, right) = (Numbers::new(simd), &*entries);
                Dots { multiplier, left, right, starts, len: plane * lanes, sums }.run_indexed(indices);
            }
        }
        Ok(())
    }
}
