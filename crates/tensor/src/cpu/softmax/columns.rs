//! Columns of slabs `[n, inner]`, several at a time: neighbors in memory belong to different columns.
//!
//! If there are few rows, they are computed a block of columns at a time, which stays in the L1 cache. Many rows are
//! read twice, in the order of memory: first for the largest elements and the sums of blocks of rows, which are
//! combined for whole columns, then for the results.

use pagelock_memory::Result;

use super::super::elements::{by_rows, rows_of, widened_block};
use super::super::kernel::in_blocks_of_halves;
use super::super::math::half::{self, InAnyOrder, Registers, Wide, by_half};
use super::super::sums::{lane_of, wide};
use super::super::{CHUNK, Stored, StoredMut, simd};
use super::Formula;
use super::rows::greater;
use crate::autocast::Half;
use crate::element::{DType, Real};
use crate::inlined::{Array, Flat, Slice, zip, zip_all};
use crate::parallel::{Columns, for_each_columns_mut};
use crate::scratch;

/// The fewest columns that are worth computing together.
const WIDE: usize = 16;
/// The distance between the elements of a column from which on copying columns is slow.
const FAR: usize = 4096;
/// The most columns of a block.
const WIDTH: usize = 512;
/// The most rows of a block: its terms are added up in `R`, the sums of blocks in `f64`.
const ROWS: usize = 64;
/// The most elements of a block, which stays in the L1 cache while it is computed.
const BLOCK: usize = 4096;
/// The number of elements that is worth a task of its own: each takes an exponential.
const TASK: usize = CHUNK / 4;

/// Whether columns of `dtype` are computed faster here than as rows of a transposed copy. Copies of halves take half
/// as long, and rows of halves are not read twice: 8192 x 128 numbers of `f16` take 0.47 ms here, 0.37 ms as rows, on
/// two threads of a Zen 4.
pub(crate) fn suits_columns([n, inner]: [usize; 2], dtype: DType) -> bool {
    match Half::of(dtype) {
        None => inner >= WIDE,
        Some(_) => inner >= if n <= ROWS { 4 * WIDE } else { FAR },
    }
}

/// Applies `F` to all columns of slabs `[n, inner]`, on several threads if there is enough to do.
pub(super) fn run<R: Real, F: Formula<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    [n, inner]: [usize; 2],
    out: StoredMut<'_, R>,
) -> Result<()> {
    let slab = n * inner;
    if out.len() == 0 {
        return Ok(());
    }
    // Small slabs are handed to threads, large ones are shared between them.
    let chunk_len = if slab > TASK { out.len() } else { slab * (TASK / slab) };
    out.try_for_each_chunk(chunk_len, &|i, out| {
        for (j, out) in out.chunks(slab).enumerate() {
            let inputs = inputs.mapped(|input| input.part(i * chunk_len + j * slab, slab));
            let slab = Slab { inputs, n, inner };
            if n <= ROWS { slab.few_rows::<F>(out) } else { slab.many_rows::<F>(out)? }
        }
        Ok(())
    })
}

struct Slab<'a, R, const N: usize> {
    inputs: [Stored<'a, R>; N],
    n: usize,
    inner: usize,
}

impl<R: Real, const N: usize> Slab<'_, R, N> {
    fn many_rows<F: Formula<N>>(&self, out: StoredMut<'_, R>) -> Result<()> {
        let &Slab { inputs, n, inner } = self;
        scratch::with((1 + n.div_ceil(ROWS)) * 2 * inner, |buffer: &mut [R]| {
            let (of_columns, of_blocks) = buffer.split_at_mut(2 * inner);
            let (whole, last) = of_blocks.split_at_mut(n / ROWS * 2 * inner);
            self.statistics::<F>(0, ROWS, whole)?;
            self.statistics::<F>(n / ROWS * ROWS, n % ROWS, last)?;
            let (largest, of_sums) = of_columns.split_at_mut(inner);
            for (start, len) in segments(inner, WIDTH) {
                let mut columns = Statistics::new(&mut largest[start..][..len], &mut of_sums[start..][..len]);
                for of_block in of_blocks.chunks_exact(2 * inner) {
                    columns.add::<F, N>(&of_block[start..][..len], &of_block[inner + start..][..len]);
                }
                columns.finish::<F, N>();
            }
            let (largest, of_sums) = (&*largest, &*of_sums);
            by_rows(inputs, (inner, TASK), out, &|_, inputs, out| {
                simd::vectorized_widely(inlined!(|| {
                    for (row, out) in out.chunks_exact_mut(inner).enumerate() {
                        results::<R, F, N>(rows_of(inputs, row * inner, inner), largest, of_sums, out);
                    }
                }));
            })
        })
    }

    /// The statistics of blocks of `rows` rows, from row `first` on: for each block, the largest elements of its
    /// columns, then their sums.
    fn statistics<F: Formula<N>>(&self, first: usize, rows: usize, of_blocks: &mut [R]) -> Result<()> {
        let &Slab { inputs, inner, .. } = self;
        let inputs = inputs.mapped(|input| input.part(first * inner, of_blocks.len() / 2 * rows));
        by_rows(inputs, (rows * inner, TASK), of_blocks.into(), &|_, inputs, of_blocks| {
            simd::vectorized_widely(inlined!(|| {
                for (j, of_block) in of_blocks.chunks_exact_mut(2 * inner).enumerate() {
                    let (largest, sums) = of_block.split_at_mut(inner);
                    let inputs = rows_of(inputs, j * rows * inner, rows * inner);
                    Block { inputs, rows, stride: inner }.statistics::<F>(largest, sums, &mut []);
                }
            }));
        })
    }

    fn few_rows<F: Formula<N>>(&self, out: StoredMut<'_, R>) {
        match out {
            StoredMut::Plain(out) => self.few_rows_of::<F, R>(out, |row| StoredMut::Plain(row)),
            StoredMut::Halves(out, half) => {
                let are_blocks = !F::SHIFTED && self.inner.is_multiple_of(half::BLOCK);
                match in_blocks_of_halves(self.inputs).filter(|_| are_blocks) {
                    Some((wide, inputs)) => self.few_rows_in_registers::<F>(wide, inputs, out.as_chunks_mut().0),
                    None => self.few_rows_of::<F, u16>(out, |row| StoredMut::Halves(row, half)),
                }
            }
        }
    }

    /// For formulas that compute no exponential twice: halves are widened again wherever they are needed.
    fn few_rows_in_registers<F: Formula<N>>(&self, wide: Wide, inputs: [&[half::Block]; N], out: &mut [half::Block]) {
        let width = (TASK / self.n).div_ceil(half::BLOCK);
        for_each_columns_mut(out, self.inner / half::BLOCK, width, |i, columns| {
            by_half!(wide, registers => self.columns_in_registers::<F>(registers, inputs, i * width, columns));
        });
    }

    fn columns_in_registers<F: Formula<N>>(
        &self,
        registers: impl Registers,
        inputs: [&[half::Block]; N],
        first: usize,
        columns: &mut Columns<'_, half::Block>,
    ) {
        let row_len = self.inner / half::BLOCK;
        registers.vectorized_widely(inlined!(|| {
            let registers = InAnyOrder(registers);
            for column in 0..columns.width() {
                let mut of_sums = [R::ZERO; half::BLOCK];
                for row in 0..self.n {
                    let x = widened(registers, inputs, row * row_len + first + column);
                    for (lane, sum) in of_sums.iter_mut().enumerate() {
                        *sum = *sum + F::term(lane_of(&x, lane), R::ZERO);
                    }
                }
                for of_sum in &mut of_sums {
                    *of_sum = F::of_sum(*of_sum);
                }
                for row in 0..self.n {
                    let x = widened(registers, inputs, row * row_len + first + column);
                    let mut results = [R::ZERO; half::BLOCK];
                    for (lane, result) in results.iter_mut().enumerate() {
                        *result = F::result(lane_of(&x, lane), R::ZERO, of_sums[lane]);
                    }
                    let Some(out) = columns.get_mut(row, column) else { return };
                    *out = R::narrowed(registers, &results);
                }
            }
        }));
    }

    fn few_rows_of<F: Formula<N>, T: Send>(
        &self,
        out: &mut [T],
        stored: impl for<'r> Fn(&'r mut [T]) -> StoredMut<'r, R> + Sync,
    ) {
        let &Slab { inputs, n, inner } = self;
        let block_width = (BLOCK / n / WIDE * WIDE).min(WIDTH);
        let width = (TASK / n).next_multiple_of(block_width);
        for_each_columns_mut(out, inner, width, |i, columns| {
            let (mut buffer, mut terms) = (self.buffer(), F::SCALES_TERMS.then_some([R::ZERO; BLOCK]));
            let (mut largest, mut sums, mut of_row) = ([R::ZERO; WIDTH], [R::ZERO; WIDTH], [R::ZERO; WIDTH]);
            for (start, len) in segments(columns.width(), block_width) {
                let first = i * width + start;
                // Whole vectors are computed if the slab has elements for them, beyond these columns.
                let padded = len.next_multiple_of(WIDE).min(inputs[0].len() - (n - 1) * inner - first);
                let block = self.block(first, [n, padded], &mut buffer);
                let (largest, sums) = (&mut largest[..padded], &mut sums[..padded]);
                let terms = terms.as_mut().map_or(&mut [][..], |terms| &mut terms[..n * padded]);
                simd::vectorized_widely(inlined!(|| {
                    block.statistics::<F>(largest, sums, terms);
                    for sum in &mut *sums {
                        *sum = F::of_sum(*sum);
                    }
                }));
                for row in 0..n {
                    let Some(out) = columns.row_mut(row) else { return };
                    stored(&mut out[start..][..len]).write_in(&mut of_row[..len], |out| {
                        simd::vectorized_widely(inlined!(|| match F::SCALES_TERMS {
                            true => scaled(&terms[row * padded..], sums, out),
                            false => results::<R, F, N>(block.row(row, len), largest, sums, out),
                        }));
                    });
                }
            }
        });
    }

    /// A buffer for widened halves of a block. `None` without halves: clearing it would take longer than the sums.
    fn buffer(&self) -> Option<[[R; BLOCK]; N]> {
        let has_halves = self.inputs.iter().any(|input| matches!(input, Stored::Halves(..)));
        has_halves.then_some([[R::ZERO; BLOCK]; N])
    }

    /// The block of `rows` rows and `len` columns whose first element is number `start`.
    fn block<'r>(
        &'r self,
        start: usize,
        [rows, len]: [usize; 2],
        buffer: &'r mut Option<[[R; BLOCK]; N]>,
    ) -> Block<'r, R, N> {
        let buffer = buffer.as_mut().map_or(&mut [][..], |buffer| buffer.flattened_mut());
        let (inputs, stride) = widened_block(self.inputs, start, (rows, len, self.inner), buffer);
        Block { inputs, rows, stride }
    }
}

/// The starts and lengths of segments of at most `len` elements, of `n` elements in all.
fn segments(n: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(len).map(move |start| (start, len.min(n - start)))
}

/// Rows of some columns. Rows begin `stride` elements apart.
struct Block<'a, R, const N: usize> {
    inputs: [&'a [R]; N],
    rows: usize,
    stride: usize,
}

impl<R: Real, const N: usize> Block<'_, R, N> {
    #[inline(always)]
    fn row(&self, row: usize, len: usize) -> [&[R]; N] {
        rows_of(self.inputs, row * self.stride, len)
    }

    /// Computes the largest elements of the columns, and the sums of their terms, which `terms` gets unless it is
    /// empty.
    #[inline(always)]
    fn statistics<F: Formula<N>>(&self, largest: &mut [R], sums: &mut [R], terms: &mut [R]) {
        let len = sums.len();
        largest.set_to(if F::SHIFTED { R::LOWEST } else { R::ZERO });
        sums.set_to(R::ZERO);
        if F::SHIFTED {
            // Two rows at once: for a single row, the compiler emits a masked store, which takes many cycles with
            // AVX2.
            for row in (0..self.rows).step_by(2) {
                let [x, y] = [row, (row + 1).min(self.rows - 1)].mapped(|row| self.row(row, len)[0]);
                for (largest, (&x, &y)) in zip(&mut *largest, zip(x, y)) {
                    *largest = greater(greater(*largest, x), y);
                }
            }
        }
        for row in 0..self.rows {
            let x = self.row(row, len);
            let columns = zip(zip(&mut *sums, &*largest), zip_all(&x));
            if terms.is_empty() {
                for ((sum, &largest), x) in columns {
                    *sum = *sum + F::term(x, or_zero(largest));
                }
            } else {
                for (((sum, &largest), x), term) in zip(columns, &mut terms[row * len..][..len]) {
                    *term = F::term(x, or_zero(largest));
                    *sum = *sum + *term;
                }
            }
        }
    }
}

/// The largest of some elements, or 0 if all are -∞: subtracting that would give NaN.
#[inline(always)]
fn or_zero<R: Real>(largest: R) -> R {
    if largest > R::LOWEST { largest } else { R::ZERO }
}

/// The largest elements of some columns, at most [`WIDTH`], and the sums of their terms.
struct Statistics<'a, R> {
    largest: &'a mut [R],
    totals: [f64; WIDTH],
    of_sums: &'a mut [R],
}

impl<'a, R: Real> Statistics<'a, R> {
    fn new(largest: &'a mut [R], of_sums: &'a mut [R]) -> Self {
        largest.set_to(R::LOWEST);
        Statistics { largest, totals: [0.0; WIDTH], of_sums }
    }

    /// Adds the statistics of a block. Sums are relative to the largest elements, and rescaled when these become
    /// larger.
    fn add<F: Formula<N>, const N: usize>(&mut self, largest: &[R], sums: &[R]) {
        let columns = zip(zip(&mut *self.largest, &mut self.totals[..]), zip(largest, sums));
        simd::vectorized_widely(inlined!(|| {
            for ((largest, total), (&of_block, &sum)) in columns {
                if F::SHIFTED {
                    let now = greater(*largest, of_block);
                    let [before, of_block] = [*largest, of_block].mapped(|x| (x - or_zero(now)).exp_below());
                    *total = *total * wide(before) + wide(sum) * wide(of_block);
                    *largest = now;
                } else {
                    *total += wide(sum);
                }
            }
        }));
    }

    /// Writes `F::of_sum` of the sums.
    fn finish<F: Formula<N>, const N: usize>(self) {
        let columns = zip(self.of_sums, &self.totals[..]);
        simd::vectorized_widely(inlined!(
            || columns.for_each(|(of_sum, &total)| *of_sum = F::of_sum(R::from_f64(total)))
        ));
    }
}

#[inline(always)]
fn results<R: Real, F: Formula<N>, const N: usize>(inputs: [&[R]; N], largest: &[R], of_sums: &[R], out: &mut [R]) {
    for ((out, x), (&largest, &of_sum)) in zip(zip(out, zip_all(&inputs)), zip(largest, of_sums)) {
        *out = F::result(x, largest, of_sum);
    }
}

/// Block number `i` of each input, widened.
#[inline(always)]
fn widened<R: Real, const N: usize>(
    registers: impl Registers,
    inputs: [&[half::Block]; N],
    i: usize,
) -> [[R; half::BLOCK]; N] {
    let mut x = [[R::ZERO; half::BLOCK]; N];
    for (x, input) in zip(&mut x[..], inputs) {
        *x = R::widened(registers, &input[i]);
    }
    x
}

#[inline(always)]
fn scaled<R: Real>(terms: &[R], factors: &[R], out: &mut [R]) {
    for ((out, &term), &factor) in zip(zip(out, terms), factors) {
        *out = term * factor;
    }
}
