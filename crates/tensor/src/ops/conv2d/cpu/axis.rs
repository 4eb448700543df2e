//! One axis of a pass: which pixels of the source each pixel of the target adds up.
//!
//! Both directions are brought into one form. Targets come in `target_step` interleaved phases that use different
//! taps, and source pixels in `source_phases` interleaved phases; target `t` of a phase reads, for each of its taps,
//! entry `t · advance + shift` of one source phase. Where sources are split, `advance` is 1: neighboring targets read
//! neighboring entries.
//!
//! - Convolution, stride `s`: one target phase; tap `k` of target `t` reads pixel `t·s + k·d − p`. With entries that
//!   start at pixel `−p` that is entry `t·s + k·d`, or, split into phases, entry `t + k·d / s` of phase `k·d mod s`.
//! - Gradient of the image: one source phase; pixel `i` adds up the outputs `o` with `i = o·s + k·d − p`, so pixels
//!   `f, f + s, f + 2s, …` use the taps with `k·d ≡ f + p (mod s)`, at `o = (i + p − k·d) / s`.

use std::ops::Range;

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvAxis {
    pub(super) in_size: usize,
    pub(super) out_size: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Forward,
    Split,
    InputGrad,
}

/// One axis of a pass; see the top of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) target_size: usize,
    pub(super) target_step: usize,
    pub(super) source_size: usize,
    pub(super) source_step: usize,
    pub(super) source_phases: usize,
    /// The source pixel at entry 0 of phase 0; negative in the padding.
    pub(super) origin: isize,
    /// The distance in entries between what one target reads and what the next one reads.
    pub(super) advance: usize,
    /// The largest shift of a tap.
    pub(super) reach: usize,
    conv: ConvAxis,
    direction: Direction,
}

/// A tap as one target phase sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Its index in the kernel.
    pub(super) index: usize,
    /// The source phase that it reads.
    pub(super) phase: usize,
    /// For target `t`, it reads entry `t · advance + shift`.
    pub(super) shift: usize,
}

impl Axis {
    pub(super) fn forward(conv: ConvAxis) -> Axis {
        Axis {
            target_size: conv.out_size,
            target_step: 1,
            source_size: conv.in_size,
            source_step: 1,
            source_phases: 1,
            origin: -(conv.padding as isize),
            advance: conv.stride,
            reach: conv.last_tap(),
            conv,
            direction: Direction::Forward,
        }
    }

    /// The same axis with its source split into phases, so that `advance` is 1.
    pub(super) fn split(self) -> Axis {
        let ConvAxis { kernel, stride, dilation, .. } = self.conv;
        if matches!(self.direction, Direction::InputGrad) {
            return self;
        }
        let phases = (0..kernel).map(|k| k * dilation % stride + 1).max();
        Axis {
            source_step: stride,
            source_phases: phases.unwrap_or(1),
            advance: 1,
            reach: self.conv.last_tap() / stride,
            direction: Direction::Split,
            ..self
        }
    }

    pub(super) fn input_grad(conv: ConvAxis) -> Axis {
        let ConvAxis { padding, stride, .. } = conv;
        let shift = conv.last_tap() / stride;
        Axis {
            target_size: conv.in_size,
            target_step: stride,
            source_size: conv.out_size,
            source_step: 1,
            source_phases: 1,
            origin: (padding / stride) as isize - shift as isize,
            advance: 1,
            reach: shift + padding.div_ceil(stride) - padding / stride,
            conv,
            direction: Direction::InputGrad,
        }
    }

    /// Every target reads the source pixel with its own index: an axis of the gradient in products with the image.
    pub(super) fn identity(size: usize) -> Axis {
        let conv = ConvAxis { in_size: size, out_size: size, kernel: 1, stride: 1, padding: 0, dilation: 1 };
        Axis::forward(conv)
    }

    /// How many target phases are not empty.
    pub(super) fn target_phases(&self) -> usize {
        self.target_step.min(self.target_size)
    }

    /// How many targets a phase has; phase 0 has most.
    pub(super) fn targets(&self, phase: usize) -> usize {
        (self.target_size - phase).div_ceil(self.target_step)
    }

    /// The taps of a target phase, in the order of the kernel.
    pub(super) fn taps(&self, target_phase: usize) -> impl Iterator<Item = Tap> {
        let Axis { conv: ConvAxis { kernel, stride, padding, dilation, .. }, direction, .. } = *self;
        let last = self.conv.last_tap() / stride;
        (0..kernel).filter_map(move |index| {
            let at = index * dilation;
            match direction {
                Direction::Forward => Some(Tap { index, phase: 0, shift: at }),
                Direction::Split => Some(Tap { index, phase: at % stride, shift: at / stride }),
                Direction::InputGrad => {
                    let first = target_phase + padding;
                    let shift = first / stride - padding / stride + last - at / stride;
                    (at % stride == first % stride).then_some(Tap { index, phase: 0, shift })
                }
            }
        })
    }

    /// How many entries `targets` targets of a phase read.
    pub(super) fn entries(&self, targets: usize) -> usize {
        (targets - 1) * self.advance + self.reach + 1
    }

    /// The distance between the first entries of neighboring rows. The zeros behind a row are also those before the
    /// next one.
    pub(super) fn pitch(&self) -> usize {
        let (entries, before) = (self.targets(0) + self.reach, self.origin.min(0).unsigned_abs());
        match self.source_step {
            1 => self.targets(0).max(entries - entries.saturating_sub(before + self.source_size).min(before)),
            _ => entries,
        }
    }

    /// The source pixels among the first `entries` entries of a row.
    pub(super) fn pixels(&self, entries: usize) -> Range<usize> {
        let end = self.origin + (entries * self.source_step) as isize;
        let end = self.source_size.min(end.max(0) as usize);
        end.min(self.origin.max(0) as usize)..end
    }

    /// The source pixel of an entry; out of range in the padding.
    pub(super) fn source_pixel(&self, phase: usize, entry: usize) -> usize {
        self.origin.wrapping_add((entry * self.source_step + phase) as isize) as usize
    }
}

impl ConvAxis {
    /// The distance of the last tap from the first.
    fn last_tap(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }
}
