//! Chooses between elements of any type by truth values.

use std::hint::select_unpredictable;

use bytemuck::{NoUninit, Zeroable};

use super::{CHUNK, PIECE, Value, simd};
use crate::inlined::{Array, zip};
use crate::non_temporal::{self, NonTemporal};
use crate::parallel::for_each_chunk_mut;

/// `out[i] = condition[i] ≠ 0 ? yes[i] : no[i]`, where either side may be a single element instead.
pub(crate) fn where_cond<B: Value + NoUninit + Zeroable>(condition: &[u8], sides: [&[B]; 2], out: &mut [B]) {
    let is_large = non_temporal::is_large(out);
    for_each_chunk_mut(out, CHUNK, |i, out| {
        let stream = is_large.then(NonTemporal::new);
        let buffers = sides.mapped(|side| [side.first().copied().unwrap_or(B::zeroed()); PIECE]);
        let mut buffer = [B::zeroed(); PIECE];
        for (j, out) in out.chunks_mut(PIECE).enumerate() {
            let (start, len) = (i * CHUNK + j * PIECE, out.len());
            let part = |side: usize| match sides[side].len() {
                1 => &buffers[side][..len],
                _ => &sides[side][start..][..len],
            };
            let (condition, yes, no) = (&condition[start..][..len], part(0), part(1));
            match &stream {
                Some(stream) => {
                    where_cond_piece(condition, yes, no, &mut buffer[..len]);
                    stream.copy(out, &buffer[..len]);
                }
                None => where_cond_piece(condition, yes, no, out),
            }
        }
    });
}

fn where_cond_piece<B: Value>(condition: &[u8], yes: &[B], no: &[B], out: &mut [B]) {
    simd::vectorized(inlined!(|| {
        for (((out, &condition), &yes), &no) in zip(zip(zip(&mut out[..], condition), yes), no) {
            *out = select_unpredictable(condition != 0, yes, no); // without it, this compiles to branches
        }
    }));
}
