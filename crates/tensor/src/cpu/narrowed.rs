//! Elementwise loops over rows with small gaps between them, as `narrow` makes them.
//!
//! The sources are read in place, in long pieces: the loops also compute results for the elements in the gaps, in a
//! buffer, and then copy only the results of the rows to the destination.

use super::copy::copy_line;
use super::source::{Operand, SEGMENT};
use super::{CHUNK, Stored, StoredMut, Value, simd};
use crate::element::Computing;

/// The result of [`Operand::rows`], if it is the same for all operands.
pub(super) fn common_rows<A: Computing, const N: usize>(operands: &[Operand<'_, A>; N]) -> Option<[usize; 3]> {
    let rows = operands.first()?.rows()?;
    operands.iter().all(|operand| operand.rows() == Some(rows)).then_some(rows)
}

/// Writes every element of a contiguous destination, whose rows have `len` elements. The rows of the operands begin
/// `distance` elements apart. `work` computes contiguous elements.
pub(super) fn write_rows<T: Computing, A: Computing, const N: usize>(
    [_, len, distance]: [usize; 3],
    dst: StoredMut<'_, T>,
    operands: &[Operand<'_, A>; N],
    work: &(dyn Fn(StoredMut<'_, T>, &[Stored<'_, A>; N]) + Sync),
) {
    // As many rows as fit in SEGMENT elements and in the bytes of SEGMENT elements of `f32`, but at least one.
    let rows = (SEGMENT * 4 / size_of::<T>().max(4) / distance).max(1);
    let task_rows = (CHUNK / (rows * len)).max(1) * rows;
    let sources = |start, span| {
        let mut sources = [Stored::Plain(&[][..]); N];
        for (n, source) in sources.iter_mut().enumerate() {
            *source = operands[n].data().part(start, span);
        }
        sources
    };
    dst.for_each_chunk(task_rows * len, &|i, dst| {
        let blocks = Blocks { first: i * task_rows, rows, len, distance };
        match dst {
            StoredMut::Plain(dst) => blocks.write(dst, &mut [T::ZERO; SEGMENT], |start, buffer| {
                let sources = sources(start, buffer.len());
                work(StoredMut::Plain(buffer), &sources);
            }),
            StoredMut::Halves(dst, half) => blocks.write(dst, &mut [0; SEGMENT], |start, buffer| {
                let sources = sources(start, buffer.len());
                work(StoredMut::Halves(buffer, half), &sources);
            }),
        }
    });
}

/// Rows of the operands, the first of which has the index `first`, `rows` at a time. Each row has `len` elements and
/// begins `distance` elements after the row before.
struct Blocks {
    first: usize,
    rows: usize,
    len: usize,
    distance: usize,
}

impl Blocks {
    fn write<B: Value>(&self, dst: &mut [B], buffer: &mut [B], mut work: impl FnMut(usize, &mut [B])) {
        let Blocks { first, rows, len, distance } = *self;
        for (block, dst) in dst.chunks_mut(rows * len).enumerate() {
            let buffer = &mut buffer[..dst.len() / len * distance - (distance - len)];
            work((first + block * rows) * distance, buffer);
            // Wide vectors halve the number of stores: `Tensor::diff` along rows takes a twentieth less time.
            simd::vectorized_widely(inlined!(|| {
                for (row, dst) in dst.chunks_exact_mut(len).enumerate() {
                    copy_line(dst, &buffer[row * distance..][..len]);
                }
            }));
        }
    }
}
