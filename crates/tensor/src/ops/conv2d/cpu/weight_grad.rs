//! The gradient of the weight: for each pair of an output channel and a tap, the product of two images, summed.
//!
//! Both images are laid out in planes of the same shape (`planes.rs`): the source's entries for a tap are those of
//! its plane, shifted, and the gradient has zeros where the source has unrelated entries. So each weight's gradient
//! is the dot product of two long vectors; tiles of channels × taps keep their sums in registers for a whole block of
//! images. A task computes the sums over some images, and these are added up in the order of the tasks.

use std::ops::Range;

use bytemuck::Zeroable;
use pagelock_memory::Result;

use super::Gradient;
use super::entries::Entries;
use super::fill::{Fill, Images};
use super::pass::Pass;
use super::planes::{Limits, Planes};
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
    pass: &Pass,
    x: &[E::Element],
    gradient: Gradient<&[E::Element]>,
    grads: &mut [E::Sum],
) -> Result<()> {
    if pass.batch == 0 || grads.is_empty() {
        grads.set_to(E::Sum::zeroed());
        return Ok(());
    }
    let pass = &pass.split(1);
    masked::<E>(gradient, |grad_out| {
        let source = Planes::choose::<E::Factor>(pass, E::lanes(), LIMITS);
        scratch::with(pass.n_all_taps(), |offsets: &mut [usize]| {
            pass.find_offsets(offsets, |entry, y, x| source.offset(entry, y, x));
            let shared = Shared { entries, pass, source, gradient: source.identity(), offsets, x, grad_out };
            in_tasks(pass, source.images, grads, |images, sums| shared.run(images, sums))
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
    pass: &Pass,
    at_a_time: usize,
    grads: &mut [R],
    task: impl Fn(Range<usize>, &mut [R]) -> Result<()> + Sync,
) -> Result<()> {
    let images = pass.images_per_task().max(pass.batch.div_ceil(MAX_TASKS)).next_multiple_of(at_a_time);
    scratch::sum_of_tasks(pass.batch.div_ceil(images), grads, |i, sums| {
        task(i * images..((i + 1) * images).min(pass.batch), sums)
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
struct Shared<'a, E: Entries> {
    entries: E,
    pass: &'a Pass,
    source: Planes,
    gradient: Planes,
    offsets: &'a [usize],
    x: &'a [E::Element],
    grad_out: &'a [E::Element],
}

impl<E: Entries> Shared<'_, E> {
    /// The sums over some images: those of the weights, followed by those of the biases if `sums` is longer than
    /// that.
    fn run(&self, images: Range<usize>, sums: &mut [E::Sum]) -> Result<()> {
        let Pass { groups, source_channels, target_channels, .. } = *self.pass;
        sums.set_to(E::Sum::zeroed());
        let (sums, biases) = sums.split_at_mut(groups * target_channels * self.offsets.len());
        self.biases(images.clone(), biases);
        if sums.is_empty() {
            return Ok(()); // there are no input channels
        }
        scratch::with(self.source.block_len(source_channels), |source: &mut [E::Factor]| {
            scratch::with(self.gradient.block_len(target_channels), |gradient: &mut [E::Factor]| {
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
        let [groups, channels, plane] = self.pass.target_sizes();
        for image in images {
            let planes = self.grad_out[image * groups * channels * plane..].chunks_exact(plane);
            zip(&mut biases[..], planes).for_each(|(bias, plane)| *bias = *bias + total::<E>(plane));
        }
    }

    /// Adds the products of some images.
    fn images(
        &self,
        images: (usize, usize),
        (source, gradient): (&mut [E::Factor], &mut [E::Factor]),
        sums: &mut [E::Sum],
    ) -> Result<()> {
        let pass = self.pass;
        let group_len = sums.len() / pass.groups;
        for first_row in (0..self.source.rows.targets(0)).step_by(self.source.block_rows) {
            for (group, sums) in sums.chunks_exact_mut(group_len).enumerate() {
                if !self.source.has_all_rows() {
                    source.set_to(E::Factor::zeroed());
                    gradient.set_to(E::Factor::zeroed());
                }
                let fill = |planes, pixels, sizes, block| {
                    let from = Images::of_group(pixels, sizes, images, group);
                    Fill { planes, from, first_row, block }.run(self.entries);
                };
                fill(&self.source, self.x, pass.source_sizes(), &mut *source);
                fill(&self.gradient, self.grad_out, pass.target_sizes(), &mut *gradient);
                self.products(source, gradient, sums)?;
            }
        }
        Ok(())
    }

    /// Adds the dot products of a block: each channel's gradient plane with the source's entries for each tap.
    fn products(&self, right: &[E::Factor], gradient: &[E::Factor], sums: &mut [E::Sum]) -> Result<()> {
        let len = self.source.covered(self.source.block_rows);
        let left = StridedRows { numbers: gradient, distance: self.gradient.plane_len };
        let dots = Dots { multiplier: self.entries, left, right, starts: self.offsets, len, sums };
        E::add_dots(dots, self.pass.source_channels)
    }
}
