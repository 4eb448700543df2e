//! Products of `bf16` by the instruction that x86 processors have for them since 2020 (`lanes/multiplier.rs`), or by the matrix
//! units of some (`lanes/amx.rs`).
//!
//! The instruction multiplies pairs of numbers that follow each other along the inner dimension. In the rows of a
//! contiguous left side such pairs are adjacent already. A right side, and any other left side, is packed so that
//! they are: with many rows, the right side once for all tasks; with few rows, by each task for its own columns.

use pagelock_memory::Result;
use pulp::x86::V4;
use pulp::{Simd, WithSimd};

use super::{Matrix, Sizes};
use crate::cpu::math::half::f32_to_bf16;
use crate::cpu::{self, CpuView};
use crate::inlined::{Array, Flat, Slice, from_fn, zip};
use crate::lanes::amx::{self, Amx};
use crate::lanes::{Bf16, Dots, Multiplier, PairsOfBf16, StridedRows, transposed_16};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// Rows and columns of a tile, whose sums stay in registers.
const ROWS: usize = 8;
const COLUMNS: usize = 32;
/// The most panels of the right side that a task packs.
const PANELS: usize = 8;
/// Pairs of the right side that a task packs for itself; they fit in the second-level cache.
const OWN_PAIRS: usize = 64 << 10;
/// The fewest multiply-adds that are worth packing for.
const MIN_WORK: usize = 1 << 15;
/// The fewest rows for a matrix unit.
const UNIT_ROWS: usize = 8;
/// Numbers in 64 bytes. Matrix units read rows that are aligned to this twice as fast.
const ALIGNED: usize = 32;
/// The fewest columns for tiles: fewer would leave most of a tile empty.
const MIN_COLUMNS: usize = 8;
/// Dot products are faster than packing for at most `LONG_COLUMNS` columns of at least `LONG` numbers.
const LONG: usize = 8 << 10;
const LONG_COLUMNS: usize = 16;
/// With at most this many rows, a task computes all of them for some columns.
const FEW_ROWS: usize = 64;
/// Up to this many pairs of a single panel are packed on the stack.
const FEW_PAIRS: usize = 32;
/// With more rows, there should be at least this many tasks.
const ENOUGH_TASKS: usize = 16;
/// Numbers of the left side that a task reads; they fit in the second-level cache.
const TASK_LEN: usize = 256 << 10;

/// Two numbers that follow each other along the inner dimension, the first in the lower half.
type Pair = u32;

/// Computes `c = a · b`, for numbers given as their bits. `None` if the processor does not have the instruction, or
/// sizes and strides do not suit it.
pub(super) fn product(sizes: Sizes, [a, b]: [Matrix<'_, u16>; 2], c: &mut [u16]) -> Option<Result<()>> {
    let Sizes { m, k, n } = sizes;
    let is_large = m.saturating_mul(k).saturating_mul(n) >= MIN_WORK;
    let bf16 = Bf16::new().filter(|_| is_large)?;
    if n == 1 && m >= MIN_COLUMNS && a.strides[0] == 1 {
        // The same as a row times the transposed left side.
        let [row, right] =
            [b, a].mapped(|Matrix { numbers, strides: [step, next] }| Matrix { numbers, strides: [next, step] });
        return product(Sizes { m: 1, k, n: m }, [row, right], c);
    }
    let are_rows = a.strides[1] == 1 && b.strides[0] == 1;
    if n < MIN_COLUMNS || n <= LONG_COLUMNS && k >= LONG && are_rows {
        return are_rows.then(|| few_columns(bf16, sizes, [a, b], c));
    }
    let unit = unit(sizes);
    let is_aligned = a.strides[0].is_multiple_of(ALIGNED) && a.numbers.as_ptr().addr().is_multiple_of(2 * ALIGNED);
    if a.strides[1] == 1 && k.is_multiple_of(2) && (unit.is_none() || is_aligned || n <= COLUMNS) {
        return Some(Product { bf16, unit, sizes, left: Left::InRows(a), b }.compute(c));
    }
    if unit.is_some() {
        return Some(scratch::with(m * k, |left: &mut [u16]| {
            cpu::copy(CpuView { data: a.numbers.into(), shape: &[m, k], strides: &a.strides }, left);
            let a = Matrix { numbers: left, strides: [k, 1] };
            Product { bf16, unit, sizes, left: Left::InRows(a), b }.compute(c)
        }));
    }
    let (pairs, panels) = (k.div_ceil(2), TASK_LEN.div_ceil(ROWS * k));
    Some(scratch::with(pairs * m.div_ceil(ROWS), |left: &mut [[Pair; ROWS]]| {
        for_each_chunk_mut(left, panels * pairs, |task, to| {
            let first = task * panels * ROWS;
            let from = Matrix { numbers: &a.numbers[first * a.strides[0]..], ..a };
            pack(bf16.simd, from, [(panels * ROWS).min(m - first), k], to);
        });
        Product { bf16, unit, sizes, left: Left::Packed(left), b }.compute(c)
    }))
}

/// The matrix unit, if there is one and it suits a product of these sizes.
fn unit(Sizes { m, k, .. }: Sizes) -> Option<Amx> {
    Amx::new().filter(|_| m >= UNIT_ROWS && k.is_multiple_of(2))
}

/// The product where both sides are contiguous along `k`, and the right one has at most [`LONG_COLUMNS`] columns: every element
/// is a dot product.
fn few_columns(bf16: Bf16, sizes: Sizes, [a, b]: [Matrix<'_, u16>; 2], c: &mut [u16]) -> Result<()> {
    let Sizes { k, n, .. } = sizes;
    let mut starts = [0; LONG_COLUMNS];
    starts.iter_mut().enumerate().for_each(|(j, start)| *start = j * b.strides[1]);
    let rows = (TASK_LEN / k).max(1);
    try_for_each_chunk_mut(c, rows * n, |task, c| {
        scratch::with(c.len(), |sums: &mut [f32]| {
            sums.set_to(0.0);
            let left = StridedRows { numbers: &a.numbers[task * rows * a.strides[0]..], distance: a.strides[0] };
            Dots { multiplier: bf16, left, right: b.numbers, starts: &starts[..n], len: k, sums }.run();
            zip(&mut c[..], &*sums).for_each(|(c, &sum)| *c = f32_to_bf16(sum).to_bits());
            Ok(())
        })
    })
}

/// Computes the sums of `a · b`, for numbers given as their bits and a right side packed by [`pack_right`]. The
/// processor has the instruction, rows of `a` are contiguous, and `k` is even. A sum does not depend on the number of
/// rows and columns.
pub(super) fn product_of_packed(sizes: Sizes, a: Matrix<'_, u16>, right: &[[Pair; COLUMNS]], sums: &mut [f32]) {
    let Some(bf16) = Bf16::new() else { unreachable!("the caller that packed checked for the instruction") };
    let b = Matrix { numbers: &[], strides: [0; 2] };
    let layout = PanelLayout { n: sizes.n, row: sizes.n, panel: COLUMNS };
    Product { bf16, unit: Amx::new(), sizes, left: Left::InRows(a), b }.multiply(0, right, layout, sums);
}

/// Packs a right side `[k, n]` of numbers given as their bits, in panels of all its rows.
pub(super) fn pack_right(b: Matrix<'_, u16>, [k, n]: [usize; 2], to: &mut [[Pair; COLUMNS]]) {
    let Some(bf16) = Bf16::new() else { unreachable!("the caller checked for the instruction") };
    pack(bf16.simd, Matrix { numbers: b.numbers, strides: [b.strides[1], b.strides[0]] }, [n, k], to);
}

/// Pairs of a single panel, aligned as scratch memory is.
#[repr(align(64))]
struct OnStack([[Pair; COLUMNS]; FEW_PAIRS]);

/// A product whose left side is ready.
struct Product<'a> {
    bf16: Bf16,
    unit: Option<Amx>,
    sizes: Sizes,
    left: Left<'a>,
    b: Matrix<'a, u16>,
}

impl Product<'_> {
    fn compute(&self, c: &mut [u16]) -> Result<()> {
        let Sizes { m, n, .. } = self.sizes;
        match (m <= FEW_ROWS, n <= COLUMNS) {
            (true, true) if self.pairs() <= FEW_PAIRS => {
                let mut right = OnStack([[0; COLUMNS]; FEW_PAIRS]);
                let right = &mut right.0[..self.pairs()];
                self.pack(0, right);
                self.multiply(0, right, PanelLayout { n, row: n, panel: COLUMNS }, c);
                Ok(())
            }
            (true, false) if n.div_ceil(COLUMNS) > self.own_panels() => self.by_columns(c),
            _ => self.by_rows(c),
        }
    }

    /// Each task computes some rows; the right side is packed once for all tasks.
    fn by_rows(&self, c: &mut [u16]) -> Result<()> {
        let (Sizes { m, k, n }, pairs) = (self.sizes, self.pairs());
        let fewest = if self.unit.is_some() { 4 * ROWS } else { 2 * ROWS };
        let rows = m.div_ceil(ENOUGH_TASKS).max(fewest).min(TASK_LEN / k).max(1).next_multiple_of(ROWS);
        scratch::with(pairs * n.div_ceil(COLUMNS), |right: &mut [[Pair; COLUMNS]]| {
            for_each_chunk_mut(right, PANELS * pairs, |task, to| self.pack(task * PANELS, to));
            let layout = PanelLayout { n, row: n, panel: COLUMNS };
            for_each_chunk_mut(c, rows * n, |task, c| self.multiply(task * rows, right, layout, c));
            Ok(())
        })
    }

    /// Each task packs and computes some columns; the results are put together in the end.
    fn by_columns(&self, c: &mut [u16]) -> Result<()> {
        let (Sizes { m, n, .. }, pairs) = (self.sizes, self.pairs());
        let panels = self.own_panels();
        scratch::with(n.div_ceil(COLUMNS) * m, |results: &mut [[u16; COLUMNS]]| {
            try_for_each_chunk_mut(results, panels * m, |task, results| {
                scratch::with(results.len() / m * pairs, |right| {
                    self.pack(task * panels, right);
                    let layout = PanelLayout { n: right.len() / pairs * COLUMNS, row: COLUMNS, panel: m * COLUMNS };
                    self.multiply(0, right, layout, results.flattened_mut());
                    Ok(())
                })
            })?;
            for (row, c) in c.chunks_exact_mut(n).enumerate() {
                let panels = results[row..].iter().step_by(m);
                zip(c.chunks_mut(COLUMNS), panels).for_each(|(c, panel)| c.copy_from(&panel[..c.len()]));
            }
            Ok(())
        })
    }

    /// Panels that a task packs for itself.
    fn own_panels(&self) -> usize {
        (OWN_PAIRS / (self.pairs() * COLUMNS)).clamp(1, PANELS)
    }

    fn pairs(&self) -> usize {
        self.sizes.k.div_ceil(2)
    }

    /// Packs panels of the right side, from panel `first` on.
    fn pack(&self, first: usize, to: &mut [[Pair; COLUMNS]]) {
        let (b, first, width) = (self.b, first * COLUMNS, to.len() / self.pairs() * COLUMNS);
        let from = Matrix { numbers: &b.numbers[first * b.strides[1]..], strides: [b.strides[1], b.strides[0]] };
        pack(self.bf16.simd, from, [width.min(self.sizes.n - first), self.sizes.k], to);
    }

    /// Multiplies the rows from `first_row` on, as many as `c` has, with packed panels.
    fn multiply<C: OfSums>(&self, first_row: usize, right: &[[Pair; COLUMNS]], layout: PanelLayout, c: &mut [C]) {
        let multiplier = PairsOfBf16(self.bf16);
        let (unit, left, m, pairs) = (self.unit, self.left, self.sizes.m, self.pairs());
        multiplier.vectorize(Tiles { multiplier, unit, left, first_row, m, pairs, right, layout, c });
    }
}

/// A left side whose pairs are adjacent.
#[derive(Clone, Copy)]
enum Left<'a> {
    InRows(Matrix<'a, u16>),
    /// `[panels, pairs, ROWS]`
    Packed(&'a [[Pair; ROWS]]),
}

/// The layout of the results: `n` columns, of which those of a panel are adjacent.
#[derive(Clone, Copy)]
struct PanelLayout {
    n: usize,
    /// The distance from a row to the next one.
    row: usize,
    /// The distance from a panel to the next one.
    panel: usize,
}

/// The products of some rows with some panels.
struct Tiles<'a, C> {
    multiplier: PairsOfBf16,
    unit: Option<Amx>,
    left: Left<'a>,
    /// A multiple of [`ROWS`].
    first_row: usize,
    /// All rows of the left side.
    m: usize,
    pairs: usize,
    right: &'a [[Pair; COLUMNS]],
    layout: PanelLayout,
    c: &'a mut [C],
}

impl<C: OfSums> WithSimd for Tiles<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Tiles { multiplier, unit, left, first_row, m, pairs, right, layout, c } = self;
        let n_rows = (m - first_row).min(c.len().div_ceil(layout.row));
        if let (Some(unit), Left::InRows(a)) = (unit, left) {
            let numbers = &a.numbers[first_row * a.strides[0]..];
            let left = amx::Left { numbers, distance: a.strides[0], rows: n_rows };
            return unit.multiply(
                left,
                (right, pairs),
                inlined!(|first, j, sums| {
                    let width = COLUMNS.min(layout.n - j * COLUMNS);
                    write(multiplier.0, sums, &mut c[first * layout.row + j * layout.panel..], (layout.row, width));
                }),
            );
        }
        for (j, right) in right.chunks_exact(pairs).enumerate() {
            let width = COLUMNS.min(layout.n - j * COLUMNS);
            for first in (0..n_rows).step_by(ROWS) {
                let sums = match left {
                    Left::InRows(a) => {
                        let mut rows = [&[][..]; ROWS];
                        for (i, row) in rows.iter_mut().enumerate() {
                            // Rows beyond the end repeat the last one; their sums are not written.
                            let start = (first_row + first + i).min(m - 1) * a.strides[0];
                            *row = &a.numbers[start..][..2 * pairs].as_chunks().0[..pairs];
                        }
                        sums(multiplier, &InRows(rows), right)
                    }
                    Left::Packed(panels) => {
                        sums(multiplier, &Packed(&panels[(first_row + first) / ROWS * pairs..][..pairs]), right)
                    }
                };
                let c = &mut c[first * layout.row + j * layout.panel..];
                write(multiplier.0, &sums[..ROWS.min(n_rows - first)], c, (layout.row, width));
            }
        }
    }
}

/// Writes the rows of a tile.
#[inline(always)]
fn write<C: OfSums>(bf16: Bf16, sums: &[[f32; COLUMNS]], c: &mut [C], (distance, width): (usize, usize)) {
    // Two loops: with one, the compiler would call `memcpy` for whole rows, too.
    if width == COLUMNS {
        for (i, sums) in sums.iter().enumerate() {
            *c[i * distance..].first_chunk_mut().expect("a row has room for all columns") = C::of(bf16, sums);
        }
    } else {
        for (i, sums) in sums.iter().enumerate() {
            c[i * distance..][..width].copy_from(&C::of(bf16, sums)[..width]);
        }
    }
}

/// How a tile reads the left side. (Not a closure: those need not be inlined, and would then be called per number.)
trait Rows {
    /// Pair `p` of each of the tile's rows.
    fn pairs(&self, p: usize) -> [Pair; ROWS];
}

struct InRows<'a>([&'a [[u16; 2]]; ROWS]);

impl Rows for InRows<'_> {
    #[inline(always)]
    fn pairs(&self, p: usize) -> [Pair; ROWS] {
        let mut pairs = [0; ROWS];
        for (pair, row) in zip(&mut pairs[..], self.0) {
            *pair = bytemuck::cast(row[p]);
        }
        pairs
    }
}

struct Packed<'a>(&'a [[Pair; ROWS]]);

impl Rows for Packed<'_> {
    #[inline(always)]
    fn pairs(&self, p: usize) -> [Pair; ROWS] {
        self.0[p]
    }
}

/// The sums of products of pairs, of up to [`ROWS`] rows with up to [`COLUMNS`] columns.
#[inline(always)]
fn sums(multiplier: PairsOfBf16, left: &impl Rows, right: &[[Pair; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[multiplier.sums(0.0); 2]; ROWS];
    for (p, right) in right.iter().enumerate() {
        let right = PairsOfBf16::vectors(right);
        for (sums, pair) in zip(&mut sums[..], left.pairs(p)) {
            let pair = multiplier.splat(pair);
            for (sum, &right) in zip(&mut sums[..], right) {
                *sum = multiplier.add_products(right, pair, *sum);
            }
        }
    }
    bytemuck::cast(sums)
}

/// An element type that sums are converted to.
trait OfSums: Copy {
    fn of(bf16: Bf16, sums: &[f32; COLUMNS]) -> [Self; COLUMNS];
}

impl OfSums for f32 {
    #[inline(always)]
    fn of(_: Bf16, sums: &[f32; COLUMNS]) -> [f32; COLUMNS] {
        *sums
    }
}

/// The bits of rounded numbers.
impl OfSums for u16 {
    #[inline(always)]
    fn of(bf16: Bf16, sums: &[f32; COLUMNS]) -> [u16; COLUMNS] {
        bf16.rounded_sums(sums)
    }
}

/// Packs `lines` lines of `len` numbers, where `strides` are the distances between lines and between numbers, in
/// panels of `W` lines. Pair `p` of all lines of a panel are adjacent, with zeros for missing lines.
fn pack<const W: usize>(
    simd: V4,
    Matrix { numbers, strides }: Matrix<'_, u16>,
    [lines, len]: [usize; 2],
    to: &mut [[Pair; W]],
) {
    if !lines.is_multiple_of(W) {
        to.set_to([0; W]);
    }
    simd.vectorize(inlined!(|| match strides {
        [1, step] => pack_across((numbers, step), [lines, len], to),
        [step, 1] => pack_along(simd, (numbers, step), [lines, len], to),
        [line_step, step] => {
            let pairs = (0..lines).flat_map(|line| (0..len).step_by(2).map(move |first| (line, first)));
            for (line, first) in pairs {
                let at = line * line_step + first * step;
                let second = if first + 1 < len { numbers[at + step] } else { 0 };
                to[line / W * len.div_ceil(2) + first / 2][line % W] = pair(numbers[at], second);
            }
        }
    }));
}

#[inline(always)]
fn pair(first: u16, second: u16) -> Pair {
    Pair::from(first) | Pair::from(second) << 16
}

/// Pairs of a panel that are packed before those of the next panel.
const BLOCK: usize = 8;

/// [`pack`] of lines that are interleaved: neighboring lines are adjacent.
#[inline(always)]
fn pack_across<const W: usize>((numbers, step): (&[u16], usize), [lines, len]: [usize; 2], to: &mut [[Pair; W]]) {
    let pairs = len.div_ceil(2);
    // Several pairs of a panel before the next panel: panels are so far apart that single pairs would evict each
    // other from the caches.
    for block in (0..pairs).step_by(BLOCK) {
        for (panel, to) in to.chunks_exact_mut(pairs).enumerate() {
            let (start, end) = (panel * W, (panel * W + W).min(lines));
            for p in block..pairs.min(block + BLOCK) {
                let row = |number: usize| &numbers[number * step..][start..end];
                let (first, second) = (row(2 * p), (2 * p + 1 < len).then(|| row(2 * p + 1)));
                match (first.first_chunk(), second.map(|second| second.first_chunk())) {
                    (Some(first), Some(Some(second))) => to[p] = joined::<W>(first, second),
                    _ => {
                        let second = second.unwrap_or_default().iter().chain(std::iter::repeat(&0));
                        to[p].iter_mut().zip(first.iter().zip(second)).for_each(|(to, (&a, &b))| *to = pair(a, b));
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn joined<const W: usize>(first: &[u16; W], second: &[u16; W]) -> [Pair; W] {
    let mut joined = [0; W];
    zip(&mut joined[..], zip(&first[..], second)).for_each(|(to, (&first, &second))| *to = pair(first, second));
    joined
}

/// Lines and pairs that are transposed in registers.
const SQUARE: usize = 16;

/// [`pack`] of lines whose numbers are contiguous.
#[inline(always)]
fn pack_along<const W: usize>(
    simd: V4,
    (numbers, step): (&[u16], usize),
    [lines, len]: [usize; 2],
    to: &mut [[Pair; W]],
) {
    let pairs = len.div_ceil(2);
    for first in (0..lines).step_by(SQUARE) {
        let n = SQUARE.min(lines - first);
        let line = |i| if i < n { &numbers[(first + i) * step..][..len] } else { &[] };
        let square_lines: [&[u16]; SQUARE] = from_fn(line);
        let n_whole = if n == SQUARE { len / (2 * SQUARE) } else { 0 };
        let whole = square_lines.mapped(|line| &line.as_chunks().0[..n_whole]);
        for block in 0..n_whole {
            write_square(simd, whole.mapped(|line| line[block]), [first, block * SQUARE], pairs, to);
        }
        for block in n_whole..pairs.div_ceil(SQUARE) {
            let mut square = [[0; 2 * SQUARE]; SQUARE];
            for (part, line) in zip(&mut square[..], square_lines) {
                let from = &line[(2 * SQUARE * block).min(line.len())..];
                let n = from.len().min(part.len());
                part[..n].copy_from(&from[..n]);
            }
            write_square(simd, square, [first, block * SQUARE], pairs, to);
        }
    }
}

/// Writes a square of pairs, from `first_line` and `first_pair` on, to panels of `W` lines.
#[inline(always)]
fn write_square<const W: usize>(
    simd: V4,
    lines: [[u16; 2 * SQUARE]; SQUARE],
    [first_line, first_pair]: [usize; 2],
    pairs: usize,
    to: &mut [[Pair; W]],
) {
    let columns = transposed_16(simd, bytemuck::cast(lines));
    let width = const { if W < SQUARE { W } else { SQUARE } };
    let n = SQUARE.min(pairs - first_pair);
    for start in (0..SQUARE).step_by(width) {
        let line = first_line + start;
        let Some(panel) = to.get_mut(line / W * pairs + first_pair..).filter(|panel| panel.len() >= n) else { return };
        for (to, column) in zip(&mut panel[..n], &columns) {
            let pairs: &[Pair; SQUARE] = bytemuck::cast_ref(column);
            to[line % W..][..width].copy_from(&pairs[start..][..width]);
        }
    }
}
