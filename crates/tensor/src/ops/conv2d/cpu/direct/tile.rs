//! The inner loop of a direct pass: a tile of target pixels × one or two vectors of target channels, summed over all taps.

use pulp::{Simd, WithSimd};

use crate::inlined::zip;
use crate::lanes::{Lanes, Registers};

/// The sums of one phase of targets: `sums[v, target] = starts[v] + Σ_t weights[v][t] · source[target's entry + offsets[t]]`.
pub(super) struct Sums<'a, R> {
    pub(super) source: &'a [R],
    /// The offset of each tap's entry from that of a target.
    pub(super) offsets: &'a [usize],
    /// For each vector of channels: `[taps, lanes]`.
    pub(super) weights: &'a [&'a [R]],
    /// For each vector of channels: `[lanes]`.
    pub(super) starts: &'a [&'a [R]],
    pub(super) targets: Targets,
    /// A shape that [`shape`] returns.
    pub(super) shape: TileShape,
    /// For each vector of channels, `vector_len` numbers.
    pub(super) sums: &'a mut [R],
    pub(super) vector_len: usize,
}

/// The targets of one phase in some images: where their sources are (in entries) and where their sums go (in vectors).
#[derive(Clone, Copy)]
pub(super) struct Targets {
    pub(super) images: Span,
    pub(super) rows: Span,
    pub(super) columns: Span,
    /// Where the first target's sum goes.
    pub(super) first: usize,
}

/// The number of images, rows or columns, and the distances between neighbors in source and target.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) n: usize,
    pub(super) source: usize,
    pub(super) target: usize,
}

impl Targets {
    /// The entry and the position of the sum of the first target of a row; rows are counted through all images.
    #[inline(always)]
    fn row(&self, row: usize) -> (usize, usize) {
        let (image, row) = (row / self.rows.n, row % self.rows.n);
        (
            image * self.images.source + row * self.rows.source,
            self.first + image * self.images.target + row * self.rows.target,
        )
    }

    fn n_rows(&self) -> usize {
        self.images.n * self.rows.n
    }
}

/// Rows and columns of a tile.
pub(super) type TileShape = [usize; 2];

/// The shapes that are compiled, for machines with 32 registers and with 16. They are few, since each takes long to
/// compile: rows are counted through all images, so two rows of seven columns serve instead of one of fourteen.
macro_rules! large_shapes {
    ($with:ident) => {
        $with!([2, 7], [2, 6], [2, 5], [2, 4], [4, 4], [4, 3], [4, 2], [4, 1])
    };
}
macro_rules! small_shapes {
    ($with:ident) => {
        $with!([1, 5], [2, 3], [2, 2], [2, 1], [1, 1])
    };
}
macro_rules! array {
    ($($shape:expr),*) => { [$($shape),*] };
}
const LARGE: [TileShape; 8] = large_shapes!(array);
const SMALL: [TileShape; 5] = small_shapes!(array);

/// The most sums of a tile, with 32 registers.
const MAX_SUMS: usize = 28;

/// The cheapest shape for `n_rows` rows of `width` targets, with two vectors of channels or one.
pub(super) fn shape<S: Simd>(n_rows: usize, width: usize, n_vectors: usize) -> TileShape {
    let shapes: &[TileShape] = if Registers::<S>::ARE_MANY { &LARGE } else { &SMALL };
    let cost = |&[rows, columns]: &TileShape| {
        let sums = rows * columns * n_vectors;
        let targets = n_rows.next_multiple_of(rows) * width.next_multiple_of(columns);
        // Each tap also loads its offset and its weights; fewer than eight sums do not hide the latency of
        // multiply-adds.
        targets * n_vectors * (100 + 150 / (rows * columns)) * sums.max(8) / sums
    };
    let fits = |&&[rows, columns]: &&TileShape| columns <= width && rows * columns * n_vectors <= MAX_SUMS;
    *shapes.iter().filter(fits).min_by_key(|shape| cost(shape)).expect("a column fits every row")
}

impl<R: Lanes> Sums<'_, R> {
    pub(super) fn run<S: Simd>(self, simd: S) {
        match self.targets.columns.source {
            1 => self.with_step::<S, 1>(simd),
            2 => self.with_step::<S, 2>(simd),
            step => unreachable!("`suits` refuses steps of {step}"),
        }
    }

    fn with_step<S: Simd, const STEP: usize>(self, simd: S) {
        match self.weights.len() {
            1 => self.with_vectors::<S, STEP, 1>(simd),
            2 => self.with_vectors::<S, STEP, 2>(simd),
            n => unreachable!("tiles of {n} vectors"),
        }
    }

    fn with_vectors<S: Simd, const STEP: usize, const V: usize>(self, simd: S) {
        macro_rules! run {
            ($([$rows:literal, $columns:literal]),*) => {
                match self.shape {
                    $([$rows, $columns] if Fixed::<R, STEP, V, $rows, $columns>::FITS => {
                        simd.vectorize(Fixed::<R, STEP, V, $rows, $columns>(self));
                    })*
                    other => unreachable!("no tiles of {other:?}"),
                }
            };
        }
        if Registers::<S>::ARE_MANY { large_shapes!(run) } else { small_shapes!(run) }
    }
}

/// [`Sums`] with the step and the shape known to the compiler, so that sums stay in registers.
struct Fixed<'a, R, const STEP: usize, const V: usize, const ROWS: usize, const COLUMNS: usize>(Sums<'a, R>);

impl<R, const STEP: usize, const V: usize, const ROWS: usize, const COLUMNS: usize>
    Fixed<'_, R, STEP, V, ROWS, COLUMNS>
{
    /// A constant, so that tiles that [`shape`] never returns are not compiled.
    const FITS: bool = ROWS * COLUMNS * V <= MAX_SUMS;
}

impl<R: Lanes, const STEP: usize, const V: usize, const ROWS: usize, const COLUMNS: usize> WithSimd
    for Fixed<'_, R, STEP, V, ROWS, COLUMNS>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Sums { source, offsets, weights, starts, targets, sums, vector_len, .. } = self.0;
        let tile = Tile::<S, R, V> {
            simd,
            source,
            offsets,
            weights: each(weights, |weights| &R::vectors::<S>(weights)[..offsets.len()]),
            starts: each(starts, |starts| R::vectors::<S>(starts)[0]),
        };
        let (n_rows, width) = (targets.n_rows(), targets.columns.n);
        let mut row = 0;
        while row < n_rows {
            // The last tile repeats a row or some columns instead of running over the end.
            let (mut entries, mut starts) = ([0; ROWS], [0; ROWS]);
            for i in 0..ROWS {
                (entries[i], starts[i]) = targets.row((row + i).min(n_rows - 1));
            }
            let mut column = 0;
            while column < width {
                let first = column.min(width - COLUMNS);
                let tile = tile.sums::<STEP, ROWS, COLUMNS>(entries, first * STEP);
                for v in 0..V {
                    let to = R::vectors_mut::<S>(&mut sums[v * vector_len..]);
                    for (start, sums) in zip(&starts[..], &tile) {
                        let to = &mut to[start + first * targets.columns.target..];
                        put::<_, V, COLUMNS>(to, targets.columns.target, sums, v);
                    }
                }
                column += COLUMNS;
            }
            row += ROWS;
        }
    }
}

/// `f` of the first `N` items. (Not `array::from_fn`, of which each of the many tiles would compile 150 lines.)
#[inline(always)]
fn each<'a, T, U: Copy, const N: usize>(items: &'a [T], f: impl Fn(&'a T) -> U) -> [U; N] {
    let mut all = [f(&items[0]); N];
    for (to, item) in zip(&mut all[..], items) {
        *to = f(item);
    }
    all
}

/// Writes vector `v` of each pixel, `step` apart.
#[inline(always)]
fn put<T: Copy, const V: usize, const N: usize>(to: &mut [T], step: usize, vectors: &[[T; V]; N], v: usize) {
    match step {
        1 => {
            let to = &mut to[..N];
            for i in 0..N {
                to[i] = vectors[i][v];
            }
        }
        2 => {
            let to = &mut to[..2 * N - 1];
            for i in 0..N {
                to[2 * i] = vectors[i][v];
            }
        }
        _ => {
            for i in 0..N {
                to[step * i] = vectors[i][v];
            }
        }
    }
}

/// The operands that all tiles of the same vectors share.
struct Tile<'a, S: Simd, R: Lanes, const V: usize> {
    simd: S,
    source: &'a [R],
    offsets: &'a [usize],
    /// One vector per tap.
    weights: [&'a [R::Vector<S>]; V],
    starts: [R::Vector<S>; V],
}

impl<S: Simd, R: Lanes, const V: usize> Tile<'_, S, R, V> {
    /// The sums of a tile whose rows begin `first` entries after `entries`.
    #[inline(always)]
    fn sums<const STEP: usize, const ROWS: usize, const COLUMNS: usize>(
        &self,
        entries: [usize; ROWS],
        first: usize,
    ) -> [[[R::Vector<S>; V]; COLUMNS]; ROWS] {
        let mut sources = [self.source; ROWS];
        for (source, entry) in zip(&mut sources[..], entries) {
            *source = &self.source[entry + first..];
        }
        let mut sums = [[self.starts; COLUMNS]; ROWS];
        for (t, &offset) in self.offsets.iter().enumerate() {
            let mut row = 0;
            while row < ROWS {
                let (pixels, mut i) = (&sources[row][offset..][..(COLUMNS - 1) * STEP + 1], 0);
                while i < COLUMNS {
                    let (pixel, mut v) = (R::splat(self.simd, pixels[i * STEP]), 0);
                    while v < V {
                        sums[row][i][v] = R::mul_add(self.simd, pixel, self.weights[v][t], sums[row][i][v]);
                        v += 1;
                    }
                    i += 1;
                }
                row += 1;
            }
        }
        sums
    }
}
