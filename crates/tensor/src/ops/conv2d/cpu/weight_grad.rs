//! The gradient of the weight: for each pair of an output channel and a tap, the product of two images, summed.
//!
//! Both images are laid out in planes of the same shape (`planes.rs`): the source's entries for a tap are those of
//! its plane, shifted, and the gradient has zeros where the source has unrelated entries. So each weight's gradient
//! is the dot product of two long vectors; tiles of channels × taps keep their sums in registers for a whole block of
//! images. A task computes the sums over some images, and these are added up in the order of the tasks.

use std::ops::Range;

use bytemuck::Zeroable;
use pagelock_memory::Result;

use super::entries::Entries;
use super::fill::{Fill, Images};
use super::pass::{Pass, images_per_task};
use super::planes::{Limits, Planes};
use super::{ConvDims, Gradient};
use crate::element::Real;
use crate::inlined::{Slice, zip};
use crate::lanes::{Dots, StridedRows};
use crate::scratch;

/// With more tasks, adding up their sums would take too much of the time.
const MAX_TASKS: usize = 16;

/// A block fits in the second-level cache, and a tile of channels in the first-level one. Both are so long that the
/// final sum over the lanes of a vector costs little.
const LIMITS: Limits = Limits { block_bytes: 256 << 10, plane_vectors: 40, prefers_large: true };

/// `grads = Σ gradient · x`, followed by `Σ gradient` for each channel if `grads` is longer than that.
pub(super) fn run<E: Entries>(
    entries: E,
    d: &ConvDims,
    x: &[E::Element],
    gradient: Gradient<&[E::Element]>,
    grads: &mut [E::Sum],
) -> Result<()> {
    if d.batch == 0 || grads.is_empty() {
        grads.set_to(E::Sum::zeroed());
        return Ok(());
    }
    let pass = Pass::forward(d).split(1);
    masked::<E>(gradient, |grad_out| {
        let source = Planes::choose::<E::Factor>(&pass, E::lanes(), LIMITS);
        scratch::with(pass.source_channels * d.kernel[0] * d.kernel[1], |offsets: &mut [usize]| {
            pass.find_offsets(offsets, |entry, y, x| source.offset(entry, y, x));
            let task = Task { entries, d, source, gradient: source.identity(), offsets, x, grad_out };
            in_tasks(d, source.images, grads, |images, sums| task.run(images, sums))
        })
    })
}

/// Calls `body` with the gradient's numbers, or zero where `positive` is at most zero.
fn masked<E: Entries>(gradient: Gradient<&[E::Element]>, body: impl FnOnce(&[E::Element]) -> Result<()>) -> Result<()> {
    let Some(positive) = gradient.positive else { return body(gradient.numbers) };
    scratch::with(gradient.numbers.len(), |masked: &mut [E::Element]| {
        for ((masked, &number), &of) in zip(zip(&mut masked[..], gradient.numbers), positive) {
            *masked = if E::number(of) <= E::Sum::zeroed() { E::Element::zeroed() } else { number };
        }
        body(masked)
    })
}

/// Calls `task` with ranges of images, multiples of `at_a_time` but for the last, and a slice for their sums; adds
/// these up.
pub(super) fn in_tasks<R: Real>(
    d: &ConvDims,
    at_a_time: usize,
    grads: &mut [R],
    task: impl Fn(Range<usize>, &mut [R]) -> Result<()> + Sync,
) -> Result<()> {
    let images = images_per_task(d.batch, d.work_per_image()).max(d.batch.div_ceil(MAX_TASKS));
    let images = images.next_multiple_of(at_a_time);
    scratch::sum_of_tasks(d.batch.div_ceil(images), grads, |i, sums| {
        task(i * images..((i + 1) * images).min(d.batch), sums)
    })
}

/// The sum of the elements. Eight independent partial sums hide the latency of additions.
pub(super) fn total<E: Entries>(elements: &[E::Element]) -> E::Sum {
    let (eights, rest) = elements.as_chunks::<8>();
    let mut sums = [E::Sum::zeroed(); 8];
    for eight in eights {
        zip(&mut sums[..], eight).for_each(|(sum, &element)| *sum = *sum + E::number(element));
    }
    sums.into_iter().chain(rest.iter().map(|&element| E::number(element))).fold(E::Sum::zeroed(), |sum, x| sum + x)
}

/// The data that all tasks share.
struct Task<'a, E: Entries> {
    entries: E,
    d: &'a ConvDims,
    source: Planes,
    gradient: Planes,
    offsets: &'a [usize],
    x: &'a [E::Element],
    grad_out: &'a [E::Element],
}

impl<E: Entries> Task<'_, E> {
    /// The sums over some images: those of the weights, followed by those of the biases if `sums` is longer than
    /// that.
    fn run(&self, images: Range<usize>, sums: &mut [E::Sum]) -> Result<()> {
        let d = self.d;
        let (n_sources, n_gradients) = (d.in_channels / d.groups, d.out_channels / d.groups);
        sums.set_to(E::Sum::zeroed());
        let (sums, biases) = sums.split_at_mut(d.out_channels * n_sources * d.kernel[0] * d.kernel[1]);
        self.biases(images.clone(), biases);
        if sums.is_empty() {
            return Ok(()); // there are no input channels
        }
        scratch::with(self.source.block_len(n_sources), |source: &mut [E::Factor]| {
            scratch::with(self.gradient.block_len(n_gradients), |gradient: &mut [E::Factor]| {
                for first in images.clone().step_by(self.source.images) {
                    let n_images = self.source.images.min(images.end - first);
                    // The padding is still zero from the previous block, unless that had other rows or more images.
                    if first == images.start || n_images < self.source.images {
                        source.set_to(E::Factor::zeroed());
                        gradient.set_to(E::Factor::zeroed());
                    }
                    self.images((first, n_images), (source, gradient), sums)?;
                }
                Ok(())
            })
        })
    }

    /// Adds the gradients of each channel, image by image.
    fn biases(&self, images: Range<usize>, biases: &mut [E::Sum]) {
        let (channels, plane) = (self.d.out_channels, self.d.out_size[0] * self.d.out_size[1]);
        for image in images {
            let planes = self.grad_out[image * channels * plane..].chunks_exact(plane);
            zip(&mut biases[..], planes).for_each(|(bias, plane)| *bias = *bias + total::<E>(plane));
        }
    }

    /// Adds the products of some images.
    fn images(
        &self,
        (first, n_images): (usize, usize),
        (source, gradient): (&mut [E::Factor], &mut [E::Factor]),
        sums: &mut [E::Sum],
    ) -> Result<()> {
        let group_len = sums.len() / self.d.groups;
        for first_row in (0..self.source.rows.targets(0)).step_by(self.source.block_rows) {
            for (group, sums) in sums.chunks_exact_mut(group_len).enumerate() {
                if !self.source.has_all_rows() {
                    source.set_to(E::Factor::zeroed());
                    gradient.set_to(E::Factor::zeroed());
                }
                let fill = |planes: &Planes, pixels, channels, block| {
                    let plane = planes.rows.source_size * planes.columns.source_size;
                    let sizes = [self.d.groups, channels / self.d.groups, plane];
                    let from = Images::of_group(pixels, sizes, (first, n_images), group);
                    Fill { planes, from, first_row, block }.run(self.entries);
                };
                fill(&self.source, self.x, self.d.in_channels, &mut *source);
                fill(&self.gradient, self.grad_out, self.d.out_channels, &mut *gradient);
                self.products(source, gradient, sums)?;
            }
        }
        Ok(())
    }

    /// Adds the dot products of a block: each channel's gradient plane with the source's entries for each tap.
    fn products(&self, right: &[E::Factor], gradient: &[E::Factor], sums: &mut [E::Sum]) -> Result<()> {
        let len = self.source.covered(self.source.block_rows);
        let left = StridedRows { numbers: gradient, distance: self.gradient.plane_len };
        let taps = self.d.kernel[0] * self.d.kernel[1];
        E::add_dots(Dots { multiplier: self.entries, left, right, starts: self.offsets, len, sums }, taps)
    }
}
