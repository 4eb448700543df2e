//! Products of blocks of `bf16` numbers by AMX, the matrix units of Intel's server processors since 2023.
//!
//! One instruction multiplies 16 rows of 16 pairs of numbers by 16 rows of pairs for 16 columns, and adds the
//! products to 16 × 16 sums of `f32`. It treats subnormal numbers as zero, as PyTorch's products of `bf16` do. See
//! the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
//!
//! Unsafe code: the instructions, for which Rust has no functions yet, and the system call that requests their
//! registers from Linux.

use std::arch::asm;
use std::sync::OnceLock;

use crate::inlined::Slice;
use crate::processor;

/// Columns of two tiles, side by side.
pub(crate) const COLUMNS: usize = 32;
/// Rows of a tile, and pairs of numbers in each.
pub(crate) const SIDE: usize = 16;
/// Rows of two tiles, one above the other.
pub(crate) const ROWS: usize = 2 * SIDE;

/// A processor with the instructions, in a process that may use them.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

/// The left side of a product: rows of consecutive pairs.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) numbers: &'a [u16],
    /// The distance from one row to the next, in numbers.
    pub(crate) distance: usize,
    pub(crate) rows: usize,
}

/// The operands of [`Amx::add_shifted`]: products with rows at arbitrary positions of the right side.
#[derive(Clone, Copy)]
pub(crate) struct Shifted<'a> {
    /// Pairs of the left side, `[steps, ROWS, depth]`.
    pub(crate) left: &'a [u32],
    /// The number of pairs that a step sums over, at most [`SIDE`].
    pub(crate) depth: usize,
    pub(crate) right: &'a [u32],
    /// Where the rows of the right side begin, `depth` for each step. Only the first of each step is read.
    pub(crate) starts: &'a [usize],
    /// The distance between the rows of the right side within a step.
    pub(crate) distance: usize,
}

/// Tiles 0 to 3 hold sums, tile 4 rows of the left side, tiles 5 and 6 rows of the right side.
const TILES_OF_ROWS: usize = 5;
const TILES: usize = 7;

/// The configuration of the tiles: the operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// `None` on other processors, and on systems other than Linux 5.16 or later.
    pub(crate) fn new() -> Option<Amx> {
        static IS_THERE: OnceLock<bool> = OnceLock::new();
        #[cfg(test)]
        if super::testing::is_forced() {
            return None;
        }
        processor::wide_vectors()?;
        IS_THERE.get_or_init(|| has_instructions() && may_use()).then_some(Amx(()))
    }

    /// Multiplies the left side by panels of `pairs` rows each. A row of a panel holds a pair for each of its
    /// columns, all at one position of the inner dimension. `write` is called with the index of the first row, the
    /// index of the panel, and the sums of consecutive rows. It may get the same row twice.
    ///
    /// # Panics
    /// If a row ends behind the last number.
    #[inline(always)]
    pub(crate) fn multiply(
        self,
        left: Left<'_>,
        (right, pairs): (&[[u32; COLUMNS]], usize),
        mut write: impl FnMut(usize, usize, &[[f32; COLUMNS]]),
    ) {
        let side = left.rows.min(SIDE);
        let tiles = Tiles::new(side, SIDE);
        let mut sums = [[0.0; COLUMNS]; ROWS];
        for (panel, right) in right.chunks_exact(pairs).enumerate() {
            let mut first = 0;
            while first < left.rows {
                let rows = if left.rows - first >= ROWS { ROWS } else { side };
                let start = first.min(left.rows - rows);
                let numbers = &left.numbers[start * left.distance..];
                tiles.multiply(Left { numbers, rows, ..left }, right, &mut sums);
                write(start, panel, &sums[..rows]);
                first = start + rows;
            }
        }
    }

    /// Adds the products of all steps to `sums`, `[ROWS, columns]`, where `columns` is a multiple of [`COLUMNS`].
    ///
    /// # Panics
    /// If the sizes do not match, or a row ends outside of the right side.
    pub(crate) fn add_shifted(self, shifted: Shifted<'_>, sums: &mut [f32]) {
        let Shifted { left, depth, right, starts, distance } = shifted;
        let columns = sums.len() / ROWS;
        let steps = starts.len() / depth;
        let rows_end = |start: usize| distance.saturating_mul(depth - 1).saturating_add(start).saturating_add(columns);
        let last = starts.iter().step_by(depth).max().map_or(0, |start| rows_end(*start));
        let is_whole = sums.len() == ROWS * columns && columns.is_multiple_of(COLUMNS) && depth <= SIDE;
        assert!(
            is_whole && left.len() == steps * ROWS * depth,
            "{} sums, {} pairs {depth} deep",
            sums.len(),
            left.len()
        );
        assert!(last <= right.len(), "rows end at {last} of {}", right.len());
        let tiles = Tiles::new(SIDE, depth);
        for column in (0..columns).step_by(COLUMNS) {
            let to = sums[column..].as_mut_ptr().cast();
            // SAFETY: there are `ROWS` rows of `columns` sums, and `COLUMNS` of each from `column` on.
            unsafe { tiles.load(to, 4 * columns) };
            for (starts, left) in starts.chunks_exact(depth).zip(left.chunks_exact(ROWS * depth)) {
                let sides = [left.as_ptr().cast(), right[starts[0] + column..].as_ptr().cast()];
                // SAFETY: a step reads `ROWS` rows of `depth` pairs, which the left side has, and `depth` rows of
                // `COLUMNS` pairs, the last of which is inside by the assertion above.
                unsafe { tiles.accumulate(false, sides, [4 * depth, 4 * distance], 1) };
            }
            // SAFETY: as above.
            unsafe { tiles.store(false, to, 4 * columns) };
        }
    }
}

/// Tiles that are configured for left sides of one or two tiles of rows, and released on drop.
struct Tiles {
    side: usize,
}

impl Tiles {
    /// `side` is the number of rows of a left tile, `depth` the number of pairs in each; both are at most 16.
    fn new(side: usize, depth: usize) -> Tiles {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..TILES].set_to(4 * SIDE as u16);
        configuration.row_bytes[TILES_OF_ROWS - 1] = 4 * depth as u16;
        configuration.rows[..TILES_OF_ROWS].set_to(side as u8);
        configuration.rows[TILES_OF_ROWS..TILES].set_to(depth as u8);
        // SAFETY: `Amx` exists only where the instruction does. It reads the 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly)) };
        Tiles { side }
    }

    /// Multiplies one or two tiles of rows by one panel.
    #[inline(always)]
    fn multiply(&self, left: Left<'_>, right: &[[u32; COLUMNS]], sums: &mut [[f32; COLUMNS]; ROWS]) {
        let Left { numbers, distance, rows } = left;
        let is_one = rows == self.side;
        let needed = rows.checked_sub(1).and_then(|before| before.checked_mul(distance)?.checked_add(2 * right.len()));
        let is_inside = (is_one || rows == ROWS) && needed.is_some_and(|needed| needed <= numbers.len());
        assert!(is_inside, "{rows} rows of {} pairs, {distance} apart, of {} numbers", right.len(), numbers.len());
        let (steps, rest) = right.as_chunks::<SIDE>();
        self.zero();
        if !steps.is_empty() {
            let sides = [numbers.as_ptr().cast::<u8>(), steps.as_ptr().cast()];
            // SAFETY: a step reads `rows` rows of 64 bytes of the left side, which are inside by the assertion above,
            // and 16 rows of 128 bytes of the right side, which are one step's.
            unsafe { self.accumulate(is_one, sides, [2 * distance, 4 * COLUMNS], steps.len()) };
        }
        if !rest.is_empty() {
            // The last pairs, padded with zeros.
            let (mut of_left, mut of_right) = ([[0_u32; SIDE]; ROWS], [[0_u32; COLUMNS]; SIDE]);
            for (i, to) in of_left[..rows].iter_mut().enumerate() {
                let from = &numbers[i * distance + 2 * SIDE * steps.len()..][..2 * rest.len()];
                bytemuck::cast_slice_mut::<u32, u16>(to)[..from.len()].copy_from(from);
            }
            of_right[..rest.len()].copy_from(rest);
            let sides = [of_left.as_ptr().cast::<u8>(), of_right.as_ptr().cast()];
            // SAFETY: both arrays have the size of one step.
            unsafe { self.accumulate(is_one, sides, [4 * SIDE, 4 * COLUMNS], 1) };
        }
        // SAFETY: `sums` has all rows that are written, of 128 bytes each.
        unsafe { self.store(is_one, sums.as_mut_ptr().cast(), 4 * COLUMNS) };
    }

    #[inline(always)]
    fn zero(&self) {
        // SAFETY: the tiles are configured.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem, preserves_flags)
            );
        }
    }

    /// Adds products: each step multiplies 16 pairs of every row of the left side by 16 rows of the right side. `distance` and `row` are
    /// the bytes from a row to the next one of the left and of the right side; the right side of the next step begins 16 rows of
    /// 128 bytes further. The order of instructions matters: with both tiles of the left side in registers of
    /// their own, steps take four times as long.
    ///
    /// # Safety
    /// All rows of these steps may be read: of the left side the rows of one tile or of two, of the right side 16.
    #[inline(always)]
    unsafe fn accumulate(
        &self,
        is_one: bool,
        [left, right]: [*const u8; 2],
        [distance, row]: [usize; 2],
        steps: usize,
    ) {
        if is_one {
            // SAFETY: what the caller promises.
            unsafe {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{left} + {distance} * 1]",
                    "tileloadd tmm5, [{right} + {row} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    "tileloadd tmm6, [{right} + {row} * 1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm6",
                    "add {left}, 64",
                    "add {right}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    left = inout(reg) left => _,
                    right = inout(reg) right => _,
                    steps = inout(reg) steps => _,
                    distance = in(reg) distance,
                    row = in(reg) row,
                    options(nostack, readonly)
                );
            }
        } else {
            // SAFETY: what the caller promises.
            unsafe {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{upper} + {distance} * 1]",
                    "tileloadd tmm5, [{right} + {row} * 1]",
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    "tileloadd tmm6, [{right} + {row} * 1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm6",
                    "tileloadd tmm4, [{lower} + {distance} * 1]",
                    "tdpbf16ps tmm2, tmm4, tmm5",
                    "tdpbf16ps tmm3, tmm4, tmm6",
                    "add {upper}, 64",
                    "add {lower}, 64",
                    "add {right}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    upper = inout(reg) left => _,
                    lower = inout(reg) left.wrapping_add(SIDE * distance) => _,
                    right = inout(reg) right => _,
                    steps = inout(reg) steps => _,
                    distance = in(reg) distance,
                    row = in(reg) row,
                    options(nostack, readonly)
                );
            }
        }
    }

    /// Reads the sums of two tiles of rows that are `row` bytes apart.
    ///
    /// # Safety
    /// The rows of both may be read.
    #[inline(always)]
    unsafe fn load(&self, sums: *const u8, row: usize) {
        // SAFETY: what the caller promises.
        unsafe {
            asm!(
                "tileloadd tmm0, [{upper} + {row} * 1]",
                "tileloadd tmm1, [{upper} + {row} * 1 + 64]",
                "tileloadd tmm2, [{lower} + {row} * 1]",
                "tileloadd tmm3, [{lower} + {row} * 1 + 64]",
                upper = in(reg) sums,
                lower = in(reg) sums.wrapping_add(SIDE * row),
                row = in(reg) row,
                options(nostack, readonly, preserves_flags)
            );
        }
    }

    /// Writes the sums to rows that are `row` bytes apart.
    ///
    /// # Safety
    /// The rows of one tile or of two may be written.
    #[inline(always)]
    unsafe fn store(&self, is_one: bool, sums: *mut u8, row: usize) {
        // SAFETY: what the caller promises.
        unsafe {
            asm!(
                "tilestored [{sums} + {row} * 1], tmm0",
                "tilestored [{sums} + {row} * 1 + 64], tmm1",
                sums = in(reg) sums,
                row = in(reg) row,
                options(nostack, preserves_flags)
            );
        }
        if !is_one {
            // SAFETY: what the caller promises.
            unsafe {
                asm!(
                    "tilestored [{sums} + {row} * 1], tmm2",
                    "tilestored [{sums} + {row} * 1 + 64], tmm3",
                    sums = in(reg) sums.wrapping_add(SIDE * row),
                    row = in(reg) row,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `Amx` exists only where the instruction does.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

fn has_instructions() -> bool {
    const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
    let most = std::arch::x86_64::__cpuid(0).eax;
    most >= 7 && std::arch::x86_64::__cpuid_count(7, 0).edx & TILES_AND_BF16 == TILES_AND_BF16
}

/// Asks Linux to save the registers when it switches threads, for all threads of this process.
#[cfg(target_os = "linux")]
fn may_use() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn may_use() -> bool {
    false
}
