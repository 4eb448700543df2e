//! Elements as tensors store them: of the type `C` in which kernels compute, or of a half type, which computes in
//! `f32`.
//!
//! Kernels are compiled for the computing types only. They take their inputs in contiguous pieces. Elements of the
//! computing type are used in place. Halves are widened into a small buffer first, and results are rounded when they
//! are written back. The conversions are separate loops, compiled once.

use bytemuck::{AnyBitPattern, NoUninit};
use pagelock_memory::Result;

use super::Value;
use super::math::half::Half;
use crate::element::{Computing, DType, Real};
use crate::inlined::{Array, Slice, zip};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// Elements in a buffer of widened halves. The buffers of all operands of a loop fit in the L1 cache together.
pub(crate) const PIECE: usize = 1024;

/// Elements that compute in `C`, to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a, C> {
    Plain(&'a [C]),
    /// The bits of halves; `C` is `f32`.
    Halves(&'a [u16], Half),
}

impl<'a, C> From<&'a [C]> for Stored<'a, C> {
    fn from(elements: &'a [C]) -> Self {
        Stored::Plain(elements)
    }
}

impl<'a, C: Value> Stored<'a, C> {
    pub(crate) fn len(self) -> usize {
        match self {
            Stored::Plain(elements) => elements.len(),
            Stored::Halves(bits, _) => bits.len(),
        }
    }

    /// The elements from number `start` on.
    #[inline]
    pub(crate) fn from(self, start: usize) -> Self {
        match self {
            Stored::Plain(elements) => Stored::Plain(&elements[start..]),
            Stored::Halves(bits, half) => Stored::Halves(&bits[start..], half),
        }
    }

    /// `len` elements from number `start` on.
    #[inline]
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        match self {
            Stored::Plain(elements) => Stored::Plain(&elements[start..][..len]),
            Stored::Halves(bits, half) => Stored::Halves(&bits[start..][..len], half),
        }
    }

    /// The elements, of a type that is never stored as halves.
    #[inline]
    pub(crate) fn plain(self) -> &'a [C] {
        match self {
            Stored::Plain(elements) => elements,
            Stored::Halves(..) => unreachable!("halves compute in f32"),
        }
    }
}

impl<'a, C> Stored<'a, C> {
    /// The bits of halves.
    pub(crate) fn halves(self) -> &'a [u16] {
        match self {
            Stored::Halves(bits, _) => bits,
            Stored::Plain(_) => unreachable!("only halves are stored as their bits"),
        }
    }
}

impl<'a, C: NoUninit> Stored<'a, C> {
    /// The elements as type `D`, which is the actual type of `C`.
    pub(crate) fn cast<D: AnyBitPattern>(self) -> Stored<'a, D> {
        match self {
            Stored::Plain(elements) => Stored::Plain(bytemuck::cast_slice(elements)),
            Stored::Halves(bits, half) => Stored::Halves(bits, half),
        }
    }
}

impl<'a, C: Computing> Stored<'a, C> {
    /// The elements in the computing type: in place, or widened into `buffer`, which is at least as long.
    #[inline]
    pub(crate) fn widened<'r>(self, buffer: &'r mut [C]) -> &'r [C]
    where
        'a: 'r,
    {
        match self {
            Stored::Plain(elements) => elements,
            Stored::Halves(bits, half) => {
                let buffer = &mut buffer[..bits.len()];
                half.widen(bits, C::f32s(buffer));
                buffer
            }
        }
    }

    /// Writes the elements, in the computing type, to `out`, which is as long.
    pub(super) fn copy_to(self, out: &mut [C]) {
        match self {
            Stored::Plain(elements) => out.copy_from(elements),
            Stored::Halves(bits, half) => half.widen(bits, C::f32s(out)),
        }
    }

    /// Calls `read` for all elements, in order: at once, or, if they are widened, `piece` at a time. `piece` is at
    /// most `N`.
    #[inline]
    pub(crate) fn each_piece<const N: usize>(self, piece: usize, mut read: impl FnMut(&[C])) {
        match self {
            Stored::Plain(elements) => read(elements),
            Stored::Halves(bits, half) => {
                let mut buffer = [C::ZERO; N];
                for bits in bits.chunks(piece) {
                    read(Stored::Halves(bits, half).widened(&mut buffer));
                }
            }
        }
    }

    /// The element number `i`.
    #[inline]
    pub(crate) fn get(self, i: usize) -> C {
        match self {
            Stored::Plain(elements) => elements[i],
            Stored::Halves(bits, half) => {
                let mut one = [C::ZERO];
                half.widen(&bits[i..=i], C::f32s(&mut one));
                one[0]
            }
        }
    }
}

/// Elements of an operand that [`by_rows`] widens at a time: two inputs and a result fit in the L1 cache.
const GROUP: usize = 2048;

/// Calls `work(first, inputs, out)` for consecutive rows from number `first` on, on several threads if there are more than
/// `chunk` elements. Rows have `row_len` elements in each input; `out` has the same number of elements for each of them.
///
/// `work` gets slices of whole rows in the computing type: in place, or widened. The previous contents of its `out`
/// are unspecified.
///
/// # Errors
/// The budget's error if it refuses memory for widened rows.
pub(super) fn by_rows<C: Real, const N: usize>(
    inputs: [Stored<'_, C>; N],
    (row_len, chunk): (usize, usize),
    out: StoredMut<'_, C>,
    work: &(dyn Fn(usize, [&[C]; N], &mut [C]) + Sync),
) -> Result<()> {
    if out.len() == 0 {
        return Ok(());
    }
    let out_len = out.len() / (inputs[0].len() / row_len);
    let is_plain = matches!(out, StoredMut::Plain(_)) && inputs.iter().all(|input| matches!(input, Stored::Plain(_)));
    let (chunk, group) = (rows_in(chunk, row_len), rows_in(GROUP, row_len));
    out.try_for_each_chunk(chunk * out_len, &|i, out| {
        let (first, rows) = (i * chunk, out.len() / out_len);
        let inputs = inputs.mapped(|input| input.part(first * row_len, rows * row_len));
        if is_plain {
            work(first, inputs.mapped(Stored::plain), out.plain());
            return Ok(());
        }
        scratch::with(group.min(rows) * (N * row_len + out_len), |buffer: &mut [C]| {
            for (j, mut out) in out.chunks(group * out_len).enumerate() {
                let len = out.len() / out_len * row_len;
                let (own, mut buffer) = buffer.split_at_mut(out.len());
                let mut widened = [&[][..]; N];
                for (widened, input) in zip(&mut widened[..], inputs) {
                    let (own, rest) = std::mem::take(&mut buffer).split_at_mut(len);
                    (*widened, buffer) = (input.part(j * group * row_len, len).widened(own), rest);
                }
                out.write_in(own, |out| work(first + j * group, widened, out));
            }
            Ok(())
        })
    })
}

/// Calls `work(i, out, pieces)` for each row of `n` elements, on several threads if there are more than `chunk`
/// elements. For long rows: rows of halves are widened in pieces.
pub(super) fn by_long_rows<C: Computing, const N: usize>(
    out: StoredMut<'_, C>,
    (n, chunk): (usize, usize),
    work: &(dyn Fn(usize, StoredMut<'_, C>, &mut Pieces<C, N>) + Sync),
) {
    let rows = rows_in(chunk, n);
    out.for_each_chunk(rows * n, &|i, out| {
        let mut pieces = Pieces::new();
        for (j, out) in out.chunks(n).enumerate() {
            work(i * rows + j, out, &mut pieces);
        }
    });
}

/// Buffers for a piece of each input and of the result, if they are halves.
pub(super) struct Pieces<C, const N: usize> {
    inputs: [[C; PIECE]; N],
    out: [C; PIECE],
}

impl<C: Computing, const N: usize> Pieces<C, N> {
    pub(super) fn new() -> Self {
        Pieces { inputs: [[C::ZERO; PIECE]; N], out: [C::ZERO; PIECE] }
    }

    /// Calls `work` for all pieces, of at most [`PIECE`] elements of each input, in order.
    pub(super) fn read(&mut self, inputs: [Stored<'_, C>; N], work: &mut dyn FnMut([&[C]; N])) {
        let n = inputs[0].len();
        for start in (0..n).step_by(PIECE) {
            work(widened_piece(inputs, start, PIECE.min(n - start), &mut self.inputs));
        }
    }

    /// Calls `work` for all pieces of the inputs and of the result, whose previous values are unspecified.
    pub(super) fn write(
        &mut self,
        inputs: [Stored<'_, C>; N],
        mut out: StoredMut<'_, C>,
        work: &mut dyn FnMut([&[C]; N], &mut [C]),
    ) {
        let n = out.len();
        for start in (0..n).step_by(PIECE) {
            let len = PIECE.min(n - start);
            let inputs = widened_piece(inputs, start, len, &mut self.inputs);
            out.part(start, len).write_in(&mut self.out[..len], |out| work(inputs, out));
        }
    }
}

fn widened_piece<'r, C: Computing, const N: usize>(
    inputs: [Stored<'r, C>; N],
    start: usize,
    len: usize,
    buffers: &'r mut [[C; PIECE]; N],
) -> [&'r [C]; N] {
    let mut pieces = [&[][..]; N];
    for ((piece, buffer), input) in zip(zip(&mut pieces[..], buffers), inputs) {
        *piece = input.part(start, len).widened(buffer);
    }
    pieces
}

/// `n` pieces of `len` elements of each input, `stride` elements apart, from number `start` on: in place, or widened
/// into `buffer` without gaps. Also returns how far apart the returned pieces begin.
pub(super) fn widened_block<'r, C: Computing, const N: usize>(
    inputs: [Stored<'r, C>; N],
    start: usize,
    (n, len, stride): (usize, usize, usize),
    mut buffer: &'r mut [C],
) -> ([&'r [C]; N], usize) {
    let mut all = [&[][..]; N];
    let is_plain = inputs.iter().all(|input| matches!(input, Stored::Plain(_)));
    for (all, input) in zip(&mut all[..], inputs) {
        if is_plain {
            *all = input.part(start, (n - 1) * stride + len).plain();
            continue;
        }
        let (own, rest) = std::mem::take(&mut buffer).split_at_mut(n * len);
        let (n, len) = if len == stride { (1, n * len) } else { (n, len) };
        for (i, own) in own.chunks_exact_mut(len).enumerate().take(n) {
            input.part(start + i * stride, len).copy_to(own);
        }
        (*all, buffer) = (own, rest);
    }
    (all, if is_plain { stride } else { len })
}

/// Pieces up to this length use a short buffer: zeroing a long one takes longer than widening few elements.
const SHORT: usize = 128;

/// The number of whole rows that have about `len` elements: at least one, and a multiple of 16 if there are many.
pub(super) fn rows_in(len: usize, row_len: usize) -> usize {
    match len / row_len {
        rows @ 16.. => rows / 16 * 16,
        rows => rows.max(1),
    }
}

/// How many rows are computed together, step by step, so that a step of one row overlaps with those of others: as many
/// as have `group` elements, at least one and at most `LANES`.
#[inline(always)]
pub(super) fn rows_per_group<const LANES: usize>(row_len: usize, group: usize) -> usize {
    (group / row_len).clamp(1, LANES)
}

/// Element number `i` of each slice.
#[inline(always)]
pub(super) fn nth<C: Computing, const N: usize>(slices: &[&[C]; N], i: usize) -> [C; N] {
    let mut all = [C::ZERO; N];
    for (x, slice) in zip(&mut all[..], slices) {
        *x = slice[i];
    }
    all
}

/// `len` elements of each input, from number `start` on.
#[inline(always)]
pub(super) fn rows_of<R, const N: usize>(mut inputs: [&[R]; N], start: usize, len: usize) -> [&[R]; N] {
    for input in &mut inputs {
        *input = &input[start..][..len];
    }
    inputs
}

/// Elements that compute in `C`, to be written.
#[derive(Debug)]
pub(crate) enum StoredMut<'a, C> {
    Plain(&'a mut [C]),
    /// The bits of halves; `C` is `f32`.
    Halves(&'a mut [u16], Half),
}

impl<'a, C> From<&'a mut [C]> for StoredMut<'a, C> {
    fn from(elements: &'a mut [C]) -> Self {
        StoredMut::Plain(elements)
    }
}

impl<'a, C: Value> StoredMut<'a, C> {
    pub(crate) fn len(&self) -> usize {
        match self {
            StoredMut::Plain(elements) => elements.len(),
            StoredMut::Halves(bits, _) => bits.len(),
        }
    }

    /// All elements, reborrowed.
    pub(crate) fn all(&mut self) -> StoredMut<'_, C> {
        self.part(0, self.len())
    }

    /// `len` elements from number `start` on.
    #[inline]
    pub(crate) fn part(&mut self, start: usize, len: usize) -> StoredMut<'_, C> {
        match self {
            StoredMut::Plain(elements) => StoredMut::Plain(&mut elements[start..][..len]),
            StoredMut::Halves(bits, half) => StoredMut::Halves(&mut bits[start..][..len], *half),
        }
    }

    /// Chunks of `len` elements, of which the last may be shorter.
    pub(crate) fn chunks(self, len: usize) -> impl Iterator<Item = StoredMut<'a, C>> {
        let (plain, halves) = match self {
            StoredMut::Plain(elements) => (Some(elements), None),
            StoredMut::Halves(bits, half) => (None, Some((bits, half))),
        };
        let plain = plain.into_iter().flat_map(move |elements| elements.chunks_mut(len)).map(StoredMut::Plain);
        let halves = halves
            .into_iter()
            .flat_map(move |(bits, half)| bits.chunks_mut(len).map(move |bits| StoredMut::Halves(bits, half)));
        plain.chain(halves)
    }

    /// The elements, of a type that is never stored as halves.
    #[inline]
    pub(crate) fn plain(self) -> &'a mut [C] {
        match self {
            StoredMut::Plain(elements) => elements,
            StoredMut::Halves(..) => unreachable!("halves compute in f32"),
        }
    }

    /// The bits of halves.
    pub(super) fn halves(self) -> &'a mut [u16] {
        match self {
            StoredMut::Halves(bits, _) => bits,
            StoredMut::Plain(_) => unreachable!("only halves are stored as their bits"),
        }
    }

    /// Calls `work(i, chunk)` for every chunk of `chunk_len` elements; see [`for_each_chunk_mut`].
    pub(crate) fn for_each_chunk(self, chunk_len: usize, work: &(dyn Fn(usize, StoredMut<'_, C>) + Sync)) {
        match self {
            StoredMut::Plain(elements) => {
                for_each_chunk_mut(elements, chunk_len, |i, chunk| work(i, StoredMut::Plain(chunk)));
            }
            StoredMut::Halves(bits, half) => {
                for_each_chunk_mut(bits, chunk_len, |i, chunk| work(i, StoredMut::Halves(chunk, half)));
            }
        }
    }
}

impl<C: Value> StoredMut<'_, C> {
    /// As [`for_each_chunk`](Self::for_each_chunk), for `work` that may fail.
    pub(crate) fn try_for_each_chunk(
        self,
        chunk_len: usize,
        work: &(dyn Fn(usize, StoredMut<'_, C>) -> Result<()> + Sync),
    ) -> Result<()> {
        match self {
            StoredMut::Plain(elements) => {
                try_for_each_chunk_mut(elements, chunk_len, |i, chunk| work(i, StoredMut::Plain(chunk)))
            }
            StoredMut::Halves(bits, half) => {
                try_for_each_chunk_mut(bits, chunk_len, |i, chunk| work(i, StoredMut::Halves(chunk, half)))
            }
        }
    }
}

impl<'a, C: Computing> StoredMut<'a, C> {
    /// The elements in `bytes`: they are of `dtype`, which computes in `C`.
    pub(crate) fn of_bytes(bytes: &'a mut [u8], dtype: DType) -> Self {
        debug_assert_eq!(dtype.computing().size(), size_of::<C>());
        match Half::of(dtype) {
            Some(half) => StoredMut::Halves(bytemuck::cast_slice_mut(bytes), half),
            None => StoredMut::Plain(C::slice_mut(bytes)),
        }
    }

    /// Writes `len` elements, at most [`PIECE`], from number `start` on. `write` gets a slice of the computing type
    /// with unspecified values.
    #[inline]
    pub(crate) fn write<R>(&mut self, start: usize, len: usize, write: impl FnOnce(&mut [C]) -> R) -> R {
        match self {
            StoredMut::Plain(elements) => write(&mut elements[start..][..len]),
            StoredMut::Halves(bits, half) => {
                let (mut short, mut long);
                let buffer = match len <= SHORT {
                    true => {
                        short = [C::ZERO; SHORT];
                        &mut short[..len]
                    }
                    false => {
                        long = [C::ZERO; PIECE];
                        &mut long[..len]
                    }
                };
                let result = write(buffer);
                half.narrow(C::f32s(buffer), &mut bits[start..][..len]);
                result
            }
        }
    }

    /// Writes all elements. `write` gets a slice of the computing type with unspecified values: the elements in
    /// place, or `buffer`, which is as long.
    #[inline]
    pub(super) fn write_in(&mut self, buffer: &mut [C], write: impl FnOnce(&mut [C])) {
        match self {
            StoredMut::Plain(elements) => write(elements),
            StoredMut::Halves(bits, half) => {
                write(buffer);
                half.narrow(C::f32s(buffer), bits);
            }
        }
    }

    /// Calls `write(start, piece)` for all elements, as [`write`](Self::write) does: at once, or [`PIECE`] halves at
    /// a time.
    #[inline]
    pub(crate) fn each_piece(&mut self, mut write: impl FnMut(usize, &mut [C])) {
        let piece = match self {
            StoredMut::Plain(elements) => elements.len(),
            StoredMut::Halves(..) => PIECE,
        };
        for start in (0..self.len()).step_by(piece.max(1)) {
            let len = piece.min(self.len() - start);
            self.write(start, len, |piece| write(start, piece));
        }
    }

    /// Sets every element to the value.
    pub(crate) fn fill(&mut self, value: C) {
        match self {
            StoredMut::Plain(elements) => elements.set_to(value),
            StoredMut::Halves(bits, half) => {
                let [value] = half.bits_of([C::f32s(&mut [value])[0]]);
                bits.set_to(value);
            }
        }
    }
}
