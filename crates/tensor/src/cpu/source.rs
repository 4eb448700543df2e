//! Operands as contiguous pieces.
//!
//! A loop that handled every stride pattern itself would be compiled once per pattern, closure, element type and
//! instruction set. Here each operand of an elementwise loop becomes contiguous slices first: in place where it is
//! contiguous or has long lines, from a small buffer filled once where it repeats (scalars, bias rows), and from a
//! buffer refilled for every piece otherwise. The copies stay in the L1 cache, so they only matter for tensors that
//! fit in it, too. Halves stay halves: the kernels widen them.

use bytemuck::Pod;

use super::copy::fill_line;
use super::math::half::Half;
use super::walk::{Dims, Walk};
use super::{CpuView, Stored, simd};
use crate::element::Computing;
use crate::inlined::Slice;

/// The most elements of a piece. If pieces were shorter, starting them would take a fourth of the time of adding a
/// row to each row.
pub(super) const SEGMENT: usize = 2048;
/// Bytes of a piece of an operand that repeats. They stay in the L1 cache while other operands pass through it.
const REPEATED_BYTES: usize = 8 << 10;
/// The shortest lines at whose ends pieces end, too: a piece that is within one line is read in place.
const LONG_LINE: usize = 512;
/// The longest period of an operand that is treated as periodic.
const LONGEST_PERIOD: usize = SEGMENT / 4;

/// A buffer on the stack, aligned to cache lines: no vector spans two lines, which would take twice the time.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct AlignedBuffer<T, const LEN: usize>(pub(super) [T; LEN]);

/// A buffer for a piece of an operand that repeats. A piece may begin anywhere in the period.
pub(super) struct Repeated(AlignedBuffer<u8, { REPEATED_BYTES + LONGEST_PERIOD * size_of::<u64>() }>);

impl Repeated {
    #[inline]
    pub(super) const fn new() -> Self {
        Repeated(AlignedBuffer([0; _]))
    }

    /// The first `len` elements.
    fn first<B: Pod>(&mut self, len: usize) -> &mut [B] {
        bytemuck::cast_slice_mut(&mut self.0.0[..len * size_of::<B>()])
    }
}

/// A buffer for pieces of a strided operand.
pub(super) struct Scratch<T> {
    numbers: Buffer<T>,
    bits: Buffer<u16>,
    walk: Option<Walk>,
}

impl<T: Computing> Scratch<T> {
    #[inline]
    pub(super) const fn new() -> Self {
        Scratch { numbers: Buffer::new(), bits: Buffer::new(), walk: None }
    }
}

/// A buffer for a piece, created when it is needed.
pub(super) struct Buffer<B> {
    elements: Option<AlignedBuffer<B, SEGMENT>>,
    /// How many elements of the buffer repeat the element of the current line.
    filled: usize,
}

impl<B: Pod> Buffer<B> {
    const fn new() -> Self {
        Buffer { elements: None, filled: 0 }
    }

    /// The next `len` elements of a walk through `data`.
    fn next<'p>(&'p mut self, data: &'p [B], walk: &mut Walk, len: usize) -> &'p [B] {
        let (stride, start) = (walk.inner().1, walk.offset());
        if stride > 1 || walk.run() < len {
            let AlignedBuffer(elements) = self.elements.get_or_insert_with(|| AlignedBuffer([B::zeroed(); SEGMENT]));
            walk.read(data, &mut elements[..len]);
            self.filled = 0;
            return &elements[..len];
        }
        let begins = walk.run() == walk.inner().0;
        walk.advance(len);
        if stride == 1 {
            return &data[start..][..len];
        }
        let AlignedBuffer(elements) = self.elements.get_or_insert_with(|| AlignedBuffer([B::zeroed(); SEGMENT]));
        if begins || self.filled < len {
            fill(&mut elements[..len], data[start]);
            self.filled = len;
        }
        &elements[..len]
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
    /// Repeats so many contiguous elements, at most [`LONGEST_PERIOD`].
    Periodic(usize),
    Strided,
}

impl<'a, T: Computing> Operand<'a, T> {
    /// The operand for a view that has elements.
    #[inline]
    pub(super) fn new(view: CpuView<'a, T>) -> Self {
        let dims = Dims::of(view.shape, view.strides);
        let pattern = match (dims.shape(), dims.strides()) {
            ([_], [1]) => Pattern::Contiguous,
            ([_], [0]) => Pattern::Periodic(1),
            ([_, period], [0, 1]) if *period <= LONGEST_PERIOD => Pattern::Periodic(*period),
            _ => Pattern::Strided,
        };
        Operand { data: view.data, dims, pattern }
    }

    /// The longest piece that [`Source::next`] can give. A loop uses the least of its operands' lengths.
    #[inline]
    pub(super) fn segment(&self) -> usize {
        match self.pattern {
            Pattern::Contiguous => usize::MAX,
            Pattern::Periodic(period) => {
                let len = match self.data {
                    Stored::Plain(_) => SEGMENT.min(REPEATED_BYTES / size_of::<T>()),
                    Stored::Halves(..) => REPEATED_BYTES / size_of::<u16>(),
                };
                len / period * period
            }
            Pattern::Strided => SEGMENT,
        }
    }

    /// Whether [`repeated`](Self::repeated) needs a buffer.
    pub(super) fn is_periodic(&self) -> bool {
        matches!(self.pattern, Pattern::Periodic(_))
    }

    /// Whether [`open`](Self::open) needs a buffer.
    pub(super) fn is_strided(&self) -> bool {
        matches!(self.pattern, Pattern::Strided)
    }

    /// The number of rows, their length, and the distance from one to the next, if the gaps between them are small.
    pub(super) fn rows(&self) -> Option<[usize; 3]> {
        match (self.pattern, self.dims.shape(), self.dims.strides()) {
            (Pattern::Strided, &[n, len], &[distance, 1]) => {
                (distance <= SEGMENT && (len..=len + len / 4).contains(&distance)).then_some([n, len, distance])
            }
            _ => None,
        }
    }

    /// The memory from the first element on.
    pub(super) fn data(&self) -> Stored<'a, T> {
        self.data
    }

    /// The operand itself or, if it is periodic, an operand whose elements are repeated in `buffer`, for pieces of
    /// `segment` elements.
    #[inline]
    pub(super) fn repeated<'s>(self, segment: usize, buffer: &'s mut Repeated) -> Operand<'s, T>
    where
        'a: 's,
    {
        let Pattern::Periodic(period) = self.pattern else { return self };
        let data = match self.data {
            Stored::Plain(elements) => {
                let all = buffer.first(segment + period);
                repeat(&elements[..period], all);
                Stored::Plain(all)
            }
            Stored::Halves(halves, half) => {
                let all = buffer.first(segment + period);
                repeat(&halves[..period], all);
                Stored::Halves(all, half)
            }
        };
        Operand { data, ..self }
    }

    /// Starts reading at element number `start`.
    #[inline]
    pub(super) fn open<'s>(&self, start: usize, scratch: Option<&'s mut Scratch<T>>) -> Source<'s, T>
    where
        'a: 's,
    {
        match (self.pattern, self.data) {
            (Pattern::Contiguous, data) => Source::Contiguous(data.from(start)),
            (Pattern::Periodic(period), data) => Source::Periodic { data, period, phase: start % period },
            (Pattern::Strided, data) => {
                let Scratch { numbers, bits, walk } = scratch.expect("strided operands have a buffer");
                let walk = walk.insert(Walk::starting_at(self.dims, start));
                match data {
                    Stored::Plain(data) => Source::Strided { data, walk, buffer: numbers },
                    Stored::Halves(data, half) => Source::StridedHalves { data, half, walk, buffer: bits },
                }
            }
        }
    }
}

/// [`fill_line`] with vectors.
fn fill<B: Copy>(to: &mut [B], value: B) {
    simd::vectorized(inlined!(|| fill_line(to, value)));
}

/// Fills `buffer` with `pattern` over and over.
fn repeat<T: Copy>(pattern: &[T], buffer: &mut [T]) {
    let period = pattern.len();
    if period == 1 {
        return buffer.set_to(pattern[0]);
    }
    buffer[..period].copy_from(pattern);
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
    Periodic { data: Stored<'s, T>, period: usize, phase: usize },
    Strided { data: &'s [T], walk: &'s mut Walk, buffer: &'s mut Buffer<T> },
    StridedHalves { data: &'s [u16], half: Half, walk: &'s mut Walk, buffer: &'s mut Buffer<u16> },
}

impl<T: Computing> Source<'_, T> {
    /// The longest next piece that stays within a line, if lines are long.
    #[inline]
    pub(super) fn run(&self) -> usize {
        match self {
            Source::Strided { walk, .. } | Source::StridedHalves { walk, .. } => match walk.inner() {
                (LONG_LINE.., 0 | 1) => walk.run(),
                _ => usize::MAX,
            },
            _ => usize::MAX,
        }
    }

    /// Sets `piece` to the next `len` elements. If it were returned, it would be written in two parts and read at
    /// once as a whole, which stalls the processor.
    #[inline(always)]
    pub(super) fn next<'p>(&'p mut self, len: usize, piece: &mut Stored<'p, T>) {
        match self {
            Source::Contiguous(Stored::Plain(rest)) => {
                let (next, others) = rest.split_at(len);
                (*piece, *rest) = (Stored::Plain(next), others);
            }
            Source::Contiguous(Stored::Halves(rest, half)) => {
                let (next, others) = rest.split_at(len);
                (*piece, *rest) = (Stored::Halves(next, *half), others);
            }
            Source::Periodic { data, period, phase } => {
                match data {
                    Stored::Plain(data) => *piece = Stored::Plain(&data[*phase..][..len]),
                    Stored::Halves(data, half) => *piece = Stored::Halves(&data[*phase..][..len], *half),
                }
                *phase = ((*phase + len) as u32 % *period as u32) as usize; // faster than dividing `usize`
            }
            Source::Strided { data, walk, buffer } => *piece = Stored::Plain(buffer.next(data, walk, len)),
            Source::StridedHalves { data, half, walk, buffer } => {
                *piece = Stored::Halves(buffer.next(data, walk, len), *half);
            }
        }
    }
}
