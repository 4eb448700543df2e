//! The direct pass: a vector has the sums of several target channels, so there must be enough channels to fill vectors.
//!
//! A vector of weights is multiplied by one pixel at a time, so pixels need not be adjacent: strides need no
//! rearranging, and only padding needs a copy of the image (`source.rs`). Sums of a band of rows are added up in
//! scratch as `[pixel, lanes]` (`tile.rs`), and written to their planes in squares that are transposed in registers.

mod products;
mod source;
mod tile;
mod weight_grad;

use std::ops::Range;

use pagelock_memory::Result;
use pulp::Simd;

use self::source::{Part, Source};
use self::tile::{Sums, Targets};
pub(super) use self::weight_grad::WeightGrad;
use super::correlate::pack_bias;
use super::pass::{Pass, Span, Tiling};
use crate::element::Real;
use crate::inlined::{Array, Slice, zip};
use crate::lanes::{Lanes, ToPlanes};
use crate::scratch;

/// Entries of a block of the source, which fits in the second-level cache together with the weights.
const BLOCK_LEN: usize = 32 << 10;

/// Several images are processed together while they have fewer entries than this, so that they fit in the first-level
/// cache.
const SMALL_LEN: usize = 6 << 10;

/// Target pixels per block, whose sums all fit in the cache.
const BLOCK_PIXELS: usize = 512;

/// Whether there are direct passes for `R`. Those for `f64` gained nothing, and took long to compile.
pub(super) const fn are_for<R>() -> bool {
    size_of::<R>() == size_of::<f32>()
}

/// Whether the direct pass is the faster one: rows of targets do not fill vectors of pixels, but channels fill
/// vectors.
pub(super) fn suits<S: Simd, R: Lanes>(pass: &Pass) -> bool {
    pass.columns.targets(0) < R::lanes::<S>() && fills_lanes::<S, R>(pass)
}

/// Whether more than half of the lanes have a channel, and there are tiles for this column step.
pub(super) fn fills_lanes<S: Simd, R: Lanes>(pass: &Pass) -> bool {
    let channels = pass.target_channels;
    pass.columns.advance <= 2 && 2 * channels > channels.next_multiple_of(R::lanes::<S>())
}

/// `target = Σ weight · source + bias`
pub(super) fn run<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    source: &[R],
    weight: &[R],
    bias: Option<&[R]>,
    target: &mut [R],
) -> Result<()> {
    let lanes = R::lanes::<S>();
    let band_rows = (BLOCK_PIXELS / (pass.columns.target_size * pass.rows.target_step)).max(1);
    let layout = Source::new::<S, R>(pass, band_rows, BLOCK_LEN);
    let n_vectors = pass.target_channels.div_ceil(lanes);
    let n_taps = pass.n_all_taps();
    let images = images_at_a_time::<S>(pass, &layout, n_vectors);
    scratch::with(3 * pass.phases().count(), |phases: &mut [usize]| {
        let phases: &mut [Phase] = phases.as_chunks_mut().0;
        std::iter::zip(pass.phases(), &mut *phases)
            .for_each(|(at, phase)| *phase = phase_of::<S>(pass, images, n_vectors, at));
        scratch::with(2 * n_taps, |taps: &mut [usize]| {
            let (offsets, weight_starts) = taps.split_at_mut(n_taps);
            find_taps(pass, &layout, offsets, weight_starts);
            scratch::with(pass.groups * n_vectors * n_taps * lanes, |weights| {
                scratch::with(pass.groups * n_vectors * lanes, |starts| {
                    pack(pass, lanes, weight, weight_starts, weights);
                    pack_bias(pass, lanes, bias, starts);
                    let packed = Packed { layout, images, n_vectors, lanes, phases, offsets, weights, starts };
                    run_tasks(simd, pass, &packed, source, target)
                })
            })
        })
    })
}

fn run_tasks<S: Simd, R: Real>(
    simd: S,
    pass: &Pass,
    packed: &Packed<'_, R>,
    source: &[R],
    target: &mut [R],
) -> Result<()> {
    let Packed { images, n_vectors, lanes, .. } = *packed;
    let band_len = packed.band_len(pass);
    pass.for_each_task(Tiling { channels: lanes, tiles: n_vectors, images }, target, |span, target| {
        scratch::with(packed.layout.scratch_len::<R, S>(images), |block| {
            scratch::with(2 * band_len + lanes * lanes, |sums| {
                Task { pass, packed, span, band_len }.run(simd, source, target, block, sums);
                Ok(())
            })
        })
    })
}

/// The number of taps of a pair of phases, then rows and columns of its tiles.
type Phase = [usize; 3];

/// The number of images processed together: enough for their rows to make whole tiles, and a multiple of that if they
/// are small.
fn images_at_a_time<S: Simd>(pass: &Pass, layout: &Source, n_vectors: usize) -> usize {
    if !layout.has_all_rows() {
        return 1;
    }
    let n_rows = pass.rows.targets(0);
    let [tile_rows, _] = tile::shape::<S>(n_rows * pass.batch, pass.columns.targets(0), n_vectors.min(2));
    let images = (1..tile_rows).find(|n| (n * n_rows).is_multiple_of(tile_rows)).unwrap_or(tile_rows);
    let several = SMALL_LEN / (images * layout.image_len).max(1);
    (images * several.max(1)).min(pass.batch)
}

fn phase_of<S: Simd>(pass: &Pass, images: usize, n_vectors: usize, (row, column): (usize, usize)) -> Phase {
    let (n_rows, width) = (images * pass.rows.targets(row), pass.columns.targets(column));
    let [tile_rows, tile_columns] = tile::shape::<S>(n_rows, width, n_vectors.min(2));
    [pass.n_taps((row, column)), tile_rows, tile_columns]
}

/// The data that all tasks share.
struct Packed<'a, R> {
    layout: Source,
    images: usize,
    /// Vectors of target channels per group.
    n_vectors: usize,
    lanes: usize,
    phases: &'a [Phase],
    /// The offset of each tap's entry from that of a target: `[phases, taps]`.
    offsets: &'a [usize],
    /// `[groups, vectors, phases, taps, lanes]`
    weights: &'a [R],
    /// What each sum starts with: `[groups, vectors, lanes]`.
    starts: &'a [R],
}

impl<R> Packed<'_, R> {
    /// Target rows, of all phases, for which a block has the source.
    fn band_rows(&self, pass: &Pass) -> usize {
        (self.layout.block_rows * pass.rows.target_step).min(pass.rows.target_size)
    }

    /// Numbers per vector of channels: the sums of a band of rows of each image.
    fn band_len(&self, pass: &Pass) -> usize {
        self.images * self.band_rows(pass) * pass.columns.target_size * self.lanes
    }
}

/// Finds the offset of each tap's entry from that of a target, and the offset of its weight from the first weight of
/// a target channel.
fn find_taps(pass: &Pass, layout: &Source, offsets: &mut [usize], weight_starts: &mut [usize]) {
    let mut taps = zip(&mut offsets[..], weight_starts);
    for phases in pass.phases() {
        pass.for_each_tap(phases, |channel, y, x, (weight, _)| {
            let (offset, start) = taps.next().expect("one per tap");
            *offset = channel * layout.plane_len + y.shift * layout.pitch + x.shift;
            *start = weight;
        });
    }
}

/// Fills the weights; lanes without a channel get zeros.
fn pack<R: Real>(pass: &Pass, lanes: usize, weight: &[R], weight_starts: &[usize], weights: &mut [R]) {
    let mut vectors = weights.chunks_exact_mut(lanes);
    let distance = pass.first_weight(0, 1);
    for group in 0..pass.groups {
        for first in (0..pass.target_channels).step_by(lanes) {
            let n_channels = lanes.min(pass.target_channels - first);
            let weight = &weight[pass.first_weight(group, first)..];
            for (&start, vector) in std::iter::zip(weight_starts.iter(), &mut vectors) {
                vector[n_channels..].set_to(R::ZERO);
                for (to, weight) in zip(&mut vector[..n_channels], weight[start..].iter().step_by(distance)) {
                    *to = *weight;
                }
            }
        }
    }
}

struct Task<'a, R> {
    pass: &'a Pass,
    packed: &'a Packed<'a, R>,
    span: Span,
    /// Numbers per vector of channels among the sums.
    band_len: usize,
}

impl<R: Real> Task<'_, R> {
    /// `block` is scratch for copies of the source, `sums` for the sums of two vectors of channels.
    fn run<S: Simd>(&self, simd: S, source: &[R], target: &mut [R], block: &mut [R], sums: &mut [R]) {
        let Task { pass, packed, span, .. } = *self;
        block.set_to(R::ZERO);
        let image_len = span.image_len(pass, packed.lanes);
        let n_images = target.len() / image_len;
        for image in (0..n_images).step_by(packed.images) {
            let target = &mut target[image * image_len..];
            for first_row in (0..pass.rows.targets(0)).step_by(packed.layout.block_rows) {
                for group in span.groups.0..span.groups.1 {
                    let images = packed.images.min(n_images - image);
                    let part = Part { image: span.first_image + image, n_images: images, group, first_row };
                    let source = packed.layout.read(simd, source, part, block);
                    self.part(simd, part, source, target, sums);
                }
            }
        }
    }

    /// Computes all channels of a part of the images.
    fn part<S: Simd>(&self, simd: S, part: Part, source: &[R], target: &mut [R], sums: &mut [R]) {
        let (first, end) = self.span.tiles;
        for first in (first..end).step_by(2) {
            let n = (end - first).min(2);
            self.add_up(simd, part, first..first + n, source, sums);
            for i in 0..n {
                self.write(simd, part, first + i, target, &sums[i * self.band_len..]);
            }
        }
    }

    fn add_up<S: Simd>(&self, simd: S, part: Part, vectors: Range<usize>, source: &[R], sums: &mut [R]) {
        let Packed { n_vectors, lanes, offsets, weights, starts, .. } = *self.packed;
        let first = part.group * n_vectors + vectors.start;
        let starts = [0, 1].mapped(|v| starts.get((first + v) * lanes..).unwrap_or_default());
        let weights = [0, 1].mapped(|v| weights.get((first + v) * offsets.len() * lanes..).unwrap_or_default());
        let mut taps = 0..0;
        for (at, &[n_taps, tile_rows, tile_columns]) in std::iter::zip(self.pass.phases(), self.packed.phases) {
            taps = taps.end..taps.end + n_taps;
            let targets = self.targets(part, at);
            if targets.rows.n * targets.columns.n > 0 {
                let sums = Sums {
                    source,
                    offsets: &offsets[taps.clone()],
                    weights: &weights.mapped(|weights| weights.get(taps.start * lanes..).unwrap_or_default())
                        [..vectors.len()],
                    starts: &starts[..vectors.len()],
                    targets,
                    shape: [tile_rows, tile_columns],
                    sums: &mut *sums,
                    vector_len: self.band_len,
                };
                sums.run(simd);
            }
        }
    }

    fn targets(&self, part: Part, phases: (usize, usize)) -> Targets {
        let Pass { rows, columns, .. } = self.pass;
        let Packed { layout, .. } = self.packed;
        let width = columns.target_size;
        let n_rows = rows.targets(phases.0).saturating_sub(part.first_row).min(layout.block_rows);
        Targets {
            images: tile::Span {
                n: part.n_images,
                source: layout.image_len,
                target: self.band_len / self.packed.images / self.packed.lanes,
            },
            rows: tile::Span { n: n_rows, source: layout.row_len(), target: rows.target_step * width },
            columns: tile::Span { n: columns.targets(phases.1), source: columns.advance, target: columns.target_step },
            first: phases.0 * width + phases.1,
        }
    }

    /// Writes the sums of a vector of channels to their planes.
    fn write<S: Simd>(&self, simd: S, part: Part, vector: usize, target: &mut [R], sums: &[R]) {
        let Task { pass, packed, span, band_len } = *self;
        let Packed { lanes, images, .. } = *packed;
        let (width, step) = (pass.columns.target_size, pass.rows.target_step);
        let first_row = part.first_row * step;
        let n_rows = packed.band_rows(pass).min(pass.rows.target_size - first_row);
        let plane = pass.target_plane();
        let first_plane = span.first_plane(pass, lanes, part.group, vector);
        let first = first_plane * plane + first_row * width;
        for image in 0..part.n_images {
            simd.vectorize(ToPlanes {
                planes: &mut target[image * span.image_len(pass, lanes) + first..],
                distance: plane,
                n_planes: lanes.min(pass.target_channels - vector * lanes),
                len: n_rows * width,
                vectors: &sums[image * band_len / images..],
                relu: pass.relu,
            });
        }
    }
}
