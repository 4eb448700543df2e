//! Products of blocks of `bf16` numbers by AMX, the matrix units of Intel's server processors since 2023.
//!
//! A unit multiplies 16 rows of 16 pairs of numbers with 16 rows of pairs for 16 columns, and adds to 16 × 16 sums of
//! `f32`. It takes subnormal numbers for zero, as PyTorch's products of `bf16` do. Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 1, chapter 18.
//!
//! Unsafe: its instructions, for which Rust has no functions yet, and the system call that asks Linux for its registers.

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

/// A left side: rows of pairs that follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) numbers: &'a [u16],
    /// From a row to the next one, in numbers.
    pub(crate) distance: usize,
    pub(crate) rows: usize,
}

/// Sums of products with rows that lie anywhere: what [`Amx::add_shifted`] adds up.
#[derive(Clone, Copy)]
pub(crate) struct Shifted<'a> {
    /// Pairs of the left side, `[steps, ROWS, depth]`.
    pub(crate) left: &'a [u32],
    /// Pairs that a step adds up, at most [`SIDE`].
    pub(crate) depth: usize,
    pub(crate) right: &'a [u32],
    /// Where the rows of the right side begin, `depth` for each step. Only the first of each step is read.
    pub(crate) starts: &'a [usize],
    /// From a row of the right side to the next one of its step.
    pub(crate) distance: usize,
}

/// Tiles 0 to 3 are sums, 4 is rows of the left side, 5 and 6 are 16 rows of the right one.
const TILES_OF_ROWS: usize = 5;
const TILES: usize = 7;

/// How tiles are laid out: the operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// None on other processors, and where Linux is older than 5.16.
    pub(crate) fn new() -> Option<Amx> {
        static IS_THERE: OnceLock<bool> = OnceLock::new();
        #[cfg(test)]
        if super::testing::is_forced() {
            return None;
        }
        processor::wide_vectors()?;
        IS_THERE.get_or_init(|| has_instructions() && may_use()).then_some(Amx(()))
    }

    /// The products of a left side with panels of `pairs` rows each, which are pairs with one place along the inner dimension.
    /// `write` is given sums of rows that follow each other: the number of the first row, the number of the panel, and the
    /// sums; of some rows twice.
    ///
    /// # Panics
    /// If rows are not inside the numbers.
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

    /// Adds the products of all steps to sums, `[ROWS, columns]`, of which [`COLUMNS`] divides the number of columns.
    ///
    /// # Panics
    /// If the sizes are others, or rows are not inside the right side.
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
                // SAFETY: a step reads `ROWS` rows of `depth` pairs, which the left side has, and `depth` rows of `COLUMNS`
                // pairs, of which the assertion found the last inside.
                unsafe { tiles.accumulate(false, sides, [4 * depth, 4 * distance], 1) };
            }
            // SAFETY: as above.
            unsafe { tiles.store(false, to, 4 * columns) };
        }
    }
}

/// Tiles that are laid out for left sides of one or two tiles of rows.
struct Tiles {
    side: usize,
}

impl Tiles {
    /// For up to 16 rows in a tile of the left side, and up to 16 pairs in each.
    fn new(side: usize, depth: usize) -> Tiles {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..TILES].set_to(4 * SIDE as u16);
        configuration.row_bytes[TILES_OF_ROWS - 1] = 4 * depth as u16;
        configuration.rows[..TILES_OF_ROWS].set_to(side as u8);
        configuration.rows[TILES_OF_ROWS..TILES].set_to(depth as u8);
        // SAFETY: called where `Amx` is; reads the 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly)) };
        Tiles { side }
    }

    /// The sums of one or two tiles of rows with one panel.
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
            // SAFETY: a step reads `rows` rows of 64 bytes of the left side, which the assertion found inside, and 16 rows of
            // 128 bytes of the right one, which are a step's.
            unsafe { self.accumulate(is_one, sides, [2 * distance, 4 * COLUMNS], steps.len()) };
        }
        if !rest.is_empty() {
            // With zeros behind the last pairs.
            let (mut of_left, mut of_right) = ([[0_u32; SIDE]; ROWS], [[0_u32; COLUMNS]; SIDE]);
            for (i, to) in of_left[..rows].iter_mut().enumerate() {
                let from = &numbers[i * distance + 2 * SIDE * steps.len()..][..2 * rest.len()];
                bytemuck::cast_slice_mut::<u32, u16>(to)[..from.len()].copy_from(from);
            }
            of_right[..rest.len()].copy_from(rest);
            let sides = [of_left.as_ptr().cast::<u8>(), of_right.as_ptr().cast()];
            // SAFETY: they have room for one step.
            unsafe { self.accumulate(is_one, sides, [4 * SIDE, 4 * COLUMNS], 1) };
        }
        // SAFETY: there are as many rows of 128 bytes.
        unsafe { self.store(is_one, sums.as_mut_ptr().cast(), 4 * COLUMNS) };
    }

    #[inline(always)]
    fn zero(&self) {
        // SAFETY: tiles are laid out.
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
        // SAFETY: called where `Amx` is.
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
    // SAFETY: it has no pointers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn may_use() -> bool {
    false
}
