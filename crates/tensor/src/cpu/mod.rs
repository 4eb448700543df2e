//! The inner loops of the CPU kernels: free functions over strided views and slices.
//!
//! Ops decide *what* is computed (a closure per element or per pair) and check every shape and index; the loops here
//! decide *how*: in which order, in which blocks, with which vector instructions and on how many threads. They promise:
//!
//! - **Same bits for any number of threads.** Work is split by sizes, never by the number of threads.
//! - **No allocation of their own**, except lists with an entry per chunk. Scratch memory is on the stack (a few KiB,
//!   at most about 128 KiB in a reduction over rows), or comes from [`scratch`](crate::scratch), which the budget
//!   counts: for sums of columns, sums at indices, and widened rows of halves.
//! - **No `unsafe`.** A wrong index panics; it cannot read or write elsewhere.
//!
//! Reading order: [`CpuView`] (what a loop reads), `elements` (numbers and halves, as a loop reads and writes them),
//! `walk` (strided positions in row-major order), `sides` (positions in several tensors at once), `source` (how every
//! operand becomes contiguous pieces, so that each closure is compiled into few loops), `kernel` (those loops),
//! `map`, then any other file. `simd` compiles a loop once per instruction set and picks one at run time; `math` has
//! the functions that vectorize.

#![forbid(unsafe_code)]

mod arg_extreme;
mod channels;
mod column_blocks;
mod columns;
mod copy;
mod distances;
mod elements;
mod fill;
mod index;
mod join;
mod kernel;
mod layer_norm;
mod long_rows;
mod map;
mod map_except;
pub(crate) mod math;
mod mixed_orders;
mod moments;
mod narrowed;
mod outer;
mod permuted;
mod reduce;
mod scatter;
mod simd;
mod softmax;
mod sort;
mod source;
mod spaced_rows;
mod strided_zip;
mod sums;
#[cfg(test)]
pub(crate) mod testing;
mod to_halves;
mod transpose;
mod triangle;
mod view;
mod walk;
mod where_cond;

pub(crate) use arg_extreme::arg_reduce;
pub(crate) use channels::{
    Normalizers, batch_norm, batch_norm_grad, batch_norm_sums, channel_statistics, scaled_deviations, with_normalizers,
};
pub(crate) use copy::{copy, copy_lines, copy_strided, interleave_two};
pub(crate) use distances::{distances, distances_grad};
pub(crate) use elements::{PIECE, Stored, StoredMut};
pub(crate) use fill::{fill, fill_by_number, fill_halves_by_number};
pub(crate) use index::{all_below, gather, index_add, index_select, scatter_add};
pub(crate) use join::join_rows;
pub(crate) use layer_norm::{Normalized, keeps_statistics, layer_norm, layer_norm_grad};
pub(crate) use map::{convert, map1, map1_long, map1_longest, map2, map2_long, map2_longest, map3, map3_long, update};
pub(crate) use map_except::{map1_by_bits, map1_except, map2_by_bits, map2_except};
pub(crate) use moments::Moments;
pub(crate) use outer::{map2_product, map3_product};
pub(crate) use reduce::{Extreme, Fold, SumOfNumbers, columns, fold, mean, reduce, sum};
pub(crate) use scatter::{counts_of_true, flip, indices_where, keep_where, replace_where, scatter};
pub(crate) use simd::{vectorized, vectorized_widely};
pub(crate) use softmax::{cross_entropy, cross_entropy_grad, softmax, softmax_grad, suits_columns};
pub(crate) use sort::{Key, Quantile, modes, neighbors, order};
pub(crate) use sums::total;
pub(crate) use to_halves::to_halves;
pub(crate) use triangle::triangle;
pub(crate) use view::{CpuView, MAX_RANK};
pub(crate) use where_cond::where_cond;

use crate::parallel::for_each_chunk_mut;

/// The number of elements that is worth a task of its own, for cheap work: about 10 µs, several times the cost of
/// waking a thread.
const CHUNK: usize = 16 * 1024;

/// What a loop reads, writes or accumulates: plain values that any thread may hold.
pub(crate) trait Value: Copy + Send + Sync {}

impl<T: Copy + Send + Sync> Value for T {}

/// Calls `work(start, chunk)` for consecutive chunks of `out`, on several threads if there is enough to do.
fn in_chunks<T: Value>(out: &mut [T], work: impl Fn(usize, &mut [T]) + Sync) {
    if out.len() <= CHUNK {
        work(0, out);
    } else {
        for_each_chunk_mut(out, CHUNK, |i, chunk| work(i * CHUNK, chunk));
    }
}
