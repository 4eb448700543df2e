//! One axis of a pooling: which pixels belong to each window.

use std::ops::Range;

use crate::inlined::zip;

#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// Windows of `kernel` pixels, `stride` apart, the first one `padding` before the image.
    Sliding { in_size: usize, out_size: usize, kernel: usize, stride: usize, padding: usize },
    /// Windows that cover the image and overlap where they must.
    Adaptive { in_size: usize, out_size: usize },
}

impl Axis {
    pub(super) fn in_size(self) -> usize {
        match self {
            Axis::Sliding { in_size, .. } | Axis::Adaptive { in_size, .. } => in_size,
        }
    }

    pub(super) fn out_size(self) -> usize {
        match self {
            Axis::Sliding { out_size, .. } | Axis::Adaptive { out_size, .. } => out_size,
        }
    }

    /// The pixels of window `i` that lie inside the image; there is at least one.
    #[inline(always)]
    pub(super) fn window(self, i: usize) -> Range<usize> {
        match self {
            Axis::Sliding { in_size, kernel, stride, padding, .. } => {
                let end = (i * stride + kernel).saturating_sub(padding).min(in_size);
                (i * stride).saturating_sub(padding)..end
            }
            Axis::Adaptive { in_size, out_size } => i * in_size / out_size..((i + 1) * in_size).div_ceil(out_size),
        }
    }

    /// The taps of a window that lie inside the image in at least one window.
    pub(super) fn taps(self) -> Range<usize> {
        let Axis::Sliding { in_size, out_size, kernel, stride, padding } = self else {
            unreachable!("adaptive windows have no taps");
        };
        padding.saturating_sub((out_size - 1) * stride)..kernel.min(in_size + padding)
    }

    /// The windows whose tap number `tap` lies inside the image, and the pixel under it in the first of them. In the
    /// next window, that pixel is `stride` further.
    pub(super) fn tap(self, tap: usize) -> (Range<usize>, usize) {
        let Axis::Sliding { in_size, out_size, stride, padding, .. } = self else {
            unreachable!("adaptive windows have no taps");
        };
        let first = padding.saturating_sub(tap).div_ceil(stride);
        let end = (in_size + padding).saturating_sub(tap).div_ceil(stride).min(out_size);
        if first >= end { (0..0, 0) } else { (first..end, first * stride + tap - padding) }
    }
}

/// Calls `each(to[j], from[j * step])` for every element of `to`.
#[inline(always)]
pub(super) fn for_each_stepped<A, B>(step: usize, to: &mut [A], from: &[B], mut each: impl FnMut(&mut A, &B)) {
    match step {
        1 => zip(&mut to[..], from).for_each(|(to, from)| each(to, from)),
        2 => {
            // The last element may be the last of the line, without a whole pair.
            let Some((last, to)) = to.split_last_mut() else { return };
            let at = 2 * to.len();
            zip(&mut to[..], from.as_chunks::<2>().0).for_each(|(to, [from, _])| each(to, from));
            each(last, &from[at]);
        }
        _ => zip(&mut to[..], from.iter().step_by(step)).for_each(|(to, from)| each(to, from)),
    }
}
