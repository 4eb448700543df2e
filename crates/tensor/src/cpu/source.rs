//! Operands as contiguous pieces.
//!
//! A loop that handled every stride pattern itself would be compiled once per pattern, closure, element type and
//! instruction set. Here each operand of an elementwise loop becomes contiguous slices first: in place where it is
//! contiguous, from a small buffer filled once where it repeats (scalars, bias rows), and from the same buffer refilled
//! for every piece otherwise (half types are widened there). The copies stay in the first-level cache, so only tensors that live there notice them.

use super::math::half::Half;
use super::walk::{Dims, Walk};
use super::{CpuView, Stored};
use crate::element::Computing;

/// Elements in a buffer.
pub(super) const SEGMENT: usize = 512;

/// Room for what an operand that does not lie there as the loop takes it needs; untouched until then.
pub(super) struct Scratch<T> {
    buffer: Option<[T; SEGMENT]>,
    walk: Option<Walk>,
}

impl<T> Scratch<T> {
    #[inline]
    pub(super) fn new() -> Self {
        Scratch { buffer: None, walk: None }
    }
}

/// One operand of an elementwise loop.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a, T> {
    data: Stored<'a, T>,
    dims: Dims,
    pattern: Pattern,
}

#[derive(Clone, Copy)]
enum Pattern {
    Contiguous,
    /// The same contiguous elements again and again; at most half a buffer.
    Periodic(usize),
    Strided,
}

impl<'a, T: Computing> Operand<'a, T> {
    /// Looks at a view that has elements.
    #[inline]
    pub(super) fn new(view: CpuView<'a, T>) -> Self {
        let dims = Dims::of(view.shape, view.strides);
        let pattern = match (dims.shape(), dims.strides()) {
            ([_], [1]) => Pattern::Contiguous,
            ([_], [0]) => Pattern::Periodic(1),
            ([_, period], [0, 1]) if *period <= SEGMENT / 2 => Pattern::Periodic(*period),
            _ => Pattern::Strided,
        };
        Operand { data: view.data, dims, pattern }
    }

    /// The longest piece that [`Source::next`] can give; the pieces of a loop have the least of its operands' lengths.
    #[inline]
    pub(super) fn segment(&self) -> usize {
        match (self.pattern, self.data) {
            (Pattern::Contiguous, Stored::Plain(_)) => usize::MAX,
            (Pattern::Periodic(period), _) => SEGMENT / period * period,
            _ => SEGMENT,
        }
    }

    /// Starts reading at element number `start`, in pieces of `segment` elements (the last may be shorter).
    #[inline]
    pub(super) fn open<'s>(&self, start: usize, segment: usize, scratch: &'s mut Scratch<T>) -> Source<'s, T>
    where
        'a: 's,
    {
        if let (Pattern::Contiguous, Stored::Plain(elements)) = (self.pattern, self.data) {
            return Source::Contiguous(&elements[start..]);
        }
        let buffer = scratch.buffer.insert([T::ZERO; SEGMENT]);
        match (self.pattern, self.data) {
            (Pattern::Contiguous, Stored::Halves(bits, half)) => Source::Halves { bits: &bits[start..], half, buffer },
            (Pattern::Periodic(period), data) if segment.is_multiple_of(period) => {
                let mut room = [T::ZERO; SEGMENT / 2];
                repeat(data.part(0, period).widened(&mut room), start % period, buffer);
                Source::Periodic(buffer)
            }
            _ => Source::Strided {
                data: self.data,
                walk: scratch.walk.insert(Walk::starting_at(self.dims, start)),
                buffer,
            },
        }
    }
}

/// Fills `buffer` with `pattern` over and over, beginning at `pattern[phase]`.
fn repeat<T: Copy>(pattern: &[T], phase: usize, buffer: &mut [T]) {
    let period = pattern.len();
    if period == 1 {
        return buffer.fill(pattern[0]);
    }
    buffer[..period - phase].copy_from_slice(&pattern[phase..]);
    buffer[period - phase..period].copy_from_slice(&pattern[..phase]);
    let mut filled = period;
    while filled < buffer.len() {
        let more = filled.min(buffer.len() - filled);
        buffer.copy_within(..more, filled);
        filled += more;
    }
}

/// An operand being read in contiguous pieces.
pub(super) enum Source<'s, T> {
    Contiguous(&'s [T]),
    Halves { bits: &'s [u16], half: Half, buffer: &'s mut [T; SEGMENT] },
    Periodic(&'s [T]),
    Strided { data: Stored<'s, T>, walk: &'s mut Walk, buffer: &'s mut [T; SEGMENT] },
}

impl<T: Computing> Source<'_, T> {
    /// The next `len` elements.
    #[inline]
    pub(super) fn next(&mut self, len: usize) -> &[T] {
        match self {
            Source::Contiguous(rest) => {
                let (piece, others) = rest.split_at(len);
                *rest = others;
                piece
            }
            Source::Halves { bits, half, buffer } => {
                let (piece, others) = bits.split_at(len);
                *bits = others;
                Stored::Halves(piece, *half).widened(&mut buffer[..])
            }
            Source::Periodic(buffer) => &buffer[..len],
            Source::Strided { data, walk, buffer } => {
                let piece = &mut buffer[..len];
                walk.read_widened(*data, piece);
                piece
            }
        }
    }
}
