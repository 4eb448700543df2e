//! Operands as contiguous pieces.
//!
//! A loop that handled every stride pattern itself would be compiled once per pattern, closure, element type and
//! instruction set. Here each operand of an elementwise loop becomes contiguous slices first: in place where it is
//! contiguous, from a small buffer filled once where it repeats (scalars, bias rows), and from the same buffer refilled
//! for every piece otherwise. The copies stay in the first-level cache, so only tensors that live there notice them.

use super::walk::{Dims, Walk};
use super::{CpuView, Value};

/// Elements in a buffer.
pub(super) const SEGMENT: usize = 256;

/// Room for what an operand that is not contiguous needs; untouched until then.
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
    data: &'a [T],
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

impl<'a, T: Value> Operand<'a, T> {
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
        match self.pattern {
            Pattern::Contiguous => usize::MAX,
            Pattern::Periodic(period) => SEGMENT / period * period,
            Pattern::Strided => SEGMENT,
        }
    }

    /// Starts reading at element number `start`, in pieces of `segment` elements (the last may be shorter).
    #[inline]
    pub(super) fn open<'s>(&self, start: usize, segment: usize, scratch: &'s mut Scratch<T>) -> Source<'s, T>
    where
        'a: 's,
    {
        if let Pattern::Contiguous = self.pattern {
            return Source::Contiguous(&self.data[start..]);
        }
        let buffer = scratch.buffer.insert([self.data[0]; SEGMENT]);
        match self.pattern {
            Pattern::Periodic(period) if segment.is_multiple_of(period) => {
                repeat(&self.data[..period], start % period, buffer);
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
        return; // The buffer was made of this element.
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
    Periodic(&'s [T]),
    Strided { data: &'s [T], walk: &'s mut Walk, buffer: &'s mut [T; SEGMENT] },
}

impl<T: Value> Source<'_, T> {
    /// The next `len` elements.
    #[inline]
    pub(super) fn next(&mut self, len: usize) -> &[T] {
        match self {
            Source::Contiguous(rest) => {
                let (piece, others) = rest.split_at(len);
                *rest = others;
                piece
            }
            Source::Periodic(buffer) => &buffer[..len],
            Source::Strided { data, walk, buffer } => {
                let piece = &mut buffer[..len];
                walk.read(data, piece);
                piece
            }
        }
    }
}
