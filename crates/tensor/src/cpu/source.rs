//! Operands as contiguous pieces.
//!
//! A loop that handled every stride pattern itself would be compiled once per pattern, closure, element type and
//! instruction set. Here each operand of an elementwise loop becomes contiguous slices first: in place where it is
//! contiguous, from a small buffer filled once where it repeats (scalars, bias rows), and from the same buffer refilled
//! for every piece otherwise. The copies stay in the first-level cache, so only tensors that live there notice them.
//! Halves stay halves: the kernels widen them.

use super::math::half::Half;
use super::walk::{Dims, Walk};
use super::{CpuView, Stored};
use crate::element::Computing;

/// Elements in a buffer.
pub(super) const SEGMENT: usize = 1024;

/// Room for what an operand that does not lie there as the loop takes it needs; untouched until then.
pub(super) struct Scratch<T> {
    numbers: Option<[T; SEGMENT]>,
    bits: Option<[u16; SEGMENT]>,
    walk: Option<Walk>,
}

impl<T: Computing> Scratch<T> {
    #[inline]
    pub(super) fn new() -> Self {
        Scratch { numbers: None, bits: None, walk: None }
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
        let Scratch { numbers, bits, walk } = scratch;
        match (self.pattern, self.data) {
            (Pattern::Contiguous, data) => Source::Contiguous(data.from(start)),
            (Pattern::Periodic(period), data) if segment.is_multiple_of(period) => match data {
                Stored::Plain(elements) => {
                    let buffer = numbers.insert([T::ZERO; SEGMENT]);
                    repeat(&elements[..period], start % period, buffer);
                    Source::Periodic(Stored::Plain(buffer))
                }
                Stored::Halves(halves, half) => {
                    let buffer = bits.insert([0; SEGMENT]);
                    repeat(&halves[..period], start % period, buffer);
                    Source::Periodic(Stored::Halves(buffer, half))
                }
            },
            (_, data) => {
                let walk = walk.insert(Walk::starting_at(self.dims, start));
                match data {
                    Stored::Plain(data) => Source::Strided { data, walk, buffer: numbers.insert([T::ZERO; SEGMENT]) },
                    Stored::Halves(data, half) => {
                        Source::StridedHalves { data, half, walk, buffer: bits.insert([0; SEGMENT]) }
                    }
                }
            }
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
    Contiguous(Stored<'s, T>),
    Periodic(Stored<'s, T>),
    Strided { data: &'s [T], walk: &'s mut Walk, buffer: &'s mut [T; SEGMENT] },
    StridedHalves { data: &'s [u16], half: Half, walk: &'s mut Walk, buffer: &'s mut [u16; SEGMENT] },
}

impl<T: Computing> Source<'_, T> {
    /// The next `len` elements.
    #[inline]
    pub(super) fn next(&mut self, len: usize) -> Stored<'_, T> {
        match self {
            Source::Contiguous(rest) => {
                let piece = rest.part(0, len);
                *rest = rest.from(len);
                piece
            }
            Source::Periodic(buffer) => buffer.part(0, len),
            Source::Strided { data, walk, buffer } => {
                walk.read(data, &mut buffer[..len]);
                Stored::Plain(&buffer[..len])
            }
            Source::StridedHalves { data, half, walk, buffer } => {
                walk.read(data, &mut buffer[..len]);
                Stored::Halves(&buffer[..len], *half)
            }
        }
    }
}
