//! [`Bits`] and [`Table`]: reading codes of varying length, several bits at a time.

/// How many bits are looked up at once.
const LOOKUP_BITS: u32 = 11;

/// How numbers of one kind are read.
pub(super) struct Codes<'a> {
    pub(super) dc: &'a Table,
    pub(super) ac: &'a Table,
    pub(super) quant: &'a [i16; 64],
}

/// What codes mean.
pub(super) struct Table {
    /// As [`code_of`] puts it, by the first bits of what is next; 0 if the code is longer than that.
    codes: [u32; 1 << LOOKUP_BITS],
    /// For codes of each length, on top of 16 bits: what all of them are below, and how far it is from a code to the place of
    /// its symbol.
    ends: [u32; 17],
    offsets: [i32; 17],
    symbols: [u8; 256],
}

impl Table {
    /// `counts[i]` codes have `i + 1` bits; none if they do not fit together.
    pub(super) fn new(counts: &[u8; 16], symbols_in_order: &[u8]) -> Option<Box<Self>> {
        let mut table =
            Box::new(Self { codes: [0; 1 << LOOKUP_BITS], ends: [0; 17], offsets: [0; 17], symbols: [0; 256] });
        table.symbols.get_mut(..symbols_in_order.len())?.copy_from_slice(symbols_in_order);
        let (mut code, mut place) = (0_u32, 0);
        for (len, &count) in (1_u32..).zip(counts) {
            table.offsets[len as usize] = place as i32 - (code >> (16 - len)) as i32;
            for &symbol in symbols_in_order.get(place..place + usize::from(count))? {
                table.enter(code, len, symbol);
                code += 1 << (16 - len);
                place += 1;
            }
            table.ends[len as usize] = code;
        }
        (code <= 1 << 16).then_some(table)
    }

    fn enter(&mut self, code: u32, len: u32, symbol: u8) {
        if len > LOOKUP_BITS {
            return;
        }
        let (first, n_entries) = ((code >> (16 - LOOKUP_BITS)) as usize, 1 << (LOOKUP_BITS - len));
        self.codes.iter_mut().skip(first).take(n_entries).for_each(|place| *place = code_of(len, symbol));
    }

    /// A code that is longer than what is looked up, on top of 16 bits; none if there is no such code.
    #[cold]
    fn search(&self, next: u32) -> Option<u32> {
        let len = (LOOKUP_BITS + 1..=16).find(|&len| next < self.ends[len as usize])?;
        let place = (next >> (16 - len)) as i32 + self.offsets[len as usize];
        self.symbols.get(place as usize).map(|&symbol| code_of(len, symbol))
    }
}

/// A code: how long it is with its number, how long without, how long the number is, and how many zeros precede it.
fn code_of(len: u32, symbol: u8) -> u32 {
    let (size, run) = (u32::from(symbol & 15), u32::from(symbol >> 4));
    (len + size) | len << 8 | size << 16 | run << 24
}

/// How many bytes after the data are read ahead.
pub(super) const AHEAD_BYTES: usize = 16;

/// Copies the data of a scan up to the next marker, without the zeros that follow each 0xFF there, and zeros behind it. `out` is
/// longer than `data` by [`AHEAD_BYTES`]. Returns what there is, and the data from the marker on.
#[inline(always)]
pub(super) fn unstuff<'a, 'o>(data: &'a [u8], out: &'o mut [u8]) -> (&'o [u8], &'a [u8]) {
    let (mut rest, mut n) = (data, 0);
    loop {
        while let Some((chunk, after)) = rest.split_first_chunk::<32>() {
            if chunk.iter().fold(false, |any, &byte| any | (byte == 0xFF)) {
                break;
            }
            out[n..n + 32].copy_from_slice(chunk);
            (n, rest) = (n + 32, after);
        }
        let n_plain = rest.iter().position(|&byte| byte == 0xFF).unwrap_or(rest.len());
        out[n..n + n_plain].copy_from_slice(&rest[..n_plain]);
        (n, rest) = (n + n_plain, &rest[n_plain..]);
        let [0xFF, 0, after @ ..] = rest else { break };
        out[n] = 0xFF;
        (n, rest) = (n + 1, after);
    }
    out[n..n + AHEAD_BYTES].fill(0);
    (&out[..n + AHEAD_BYTES], rest)
}

/// Reads data without stuffing bit by bit.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, the first of them on top.
    buffer: u64,
    n_bits: u32,
}

impl<'a> Bits<'a> {
    /// Reads what [`unstuff`] gave.
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, buffer: 0, n_bits: 0 }
    }

    /// Whether more was read than the data had.
    pub(super) fn is_short(&self) -> bool {
        8 * self.at > 8 * (self.data.len() - AHEAD_BYTES) + self.n_bits as usize
    }

    /// Makes 56 bits or more ready: enough for a code and its number, and most often for two.
    #[inline(always)]
    fn refill(&mut self) {
        let ahead = self.data.get(self.at..).and_then(|rest| rest.first_chunk());
        self.buffer |= ahead.map_or(0, |&ahead| u64::from_be_bytes(ahead)) >> self.n_bits;
        self.at += (63 - self.n_bits as usize) / 8;
        self.n_bits |= 56;
    }

    /// The next code: how many zeros precede its number, how long that is, and the number. It takes at most 31 bits.
    #[inline(always)]
    fn next(&mut self, table: &Table) -> Option<(usize, u32, i16)> {
        let mut code = table.codes[(self.buffer >> (64 - LOOKUP_BITS)) as usize];
        if code == 0 {
            code = table.search((self.buffer >> 48) as u32)?;
        }
        let (len, size, run) = (code >> 8 & 31, code >> 16 & 15, code >> 24);
        let rest = self.buffer << len;
        (self.buffer, self.n_bits) = (self.buffer << (code & 31), self.n_bits - (code & 31));
        // The lower half of the numbers of a length are negative.
        let is_positive = (rest as i64 >> 63) as i32;
        let bits = ((rest >> 32) as u32 >> 1 >> (31 - size)) as i32;
        Some((run as usize, size, (bits - (!is_positive & ((1 << size) - 1))) as i16))
    }

    /// Reads a block into zeros: its coefficients times `quant`, row by row. `dc` is the first of the block before. Returns how far the
    /// last that is not zero is from the first, in the order of the file; none if the data is damaged.
    #[inline(always)]
    pub(super) fn block(&mut self, codes: &Codes<'_>, dc: &mut i16, block: &mut [i16; 64]) -> Option<usize> {
        self.refill();
        let (0, _, difference) = self.next(codes.dc)? else { return None };
        *dc = dc.wrapping_add(difference);
        block[0] = dc.wrapping_mul(codes.quant[0]);
        let mut last = 0;
        loop {
            self.refill(); // always, since whether it is needed could not be foretold
            if !self.coefficient(codes, &mut last, block)? {
                return Some(last);
            }
            if self.n_bits < 32 {
                self.refill();
            }
            if !self.coefficient(codes, &mut last, block)? {
                return Some(last);
            }
        }
    }

    /// Reads the coefficient behind `last`; false if it was the last.
    #[inline(always)]
    fn coefficient(&mut self, codes: &Codes<'_>, last: &mut usize, block: &mut [i16; 64]) -> Option<bool> {
        let (run, size, number) = self.next(codes.ac)?;
        if size == 0 && run != 15 {
            return Some(false); // the rest is zero
        }
        *last += run + 1;
        if *last > 63 {
            return None;
        }
        block[usize::from(ORDER[*last])] = number.wrapping_mul(codes.quant[*last]);
        Some(*last < 63)
    }
}

/// Where the coefficients of a file belong: by diagonals, to and fro.
const ORDER: [u8; 64] = {
    let (mut order, mut at, mut diagonal) = ([0; 64], 0, 0);
    while diagonal < 15 {
        let mut step = 0;
        while step <= diagonal {
            let (row, column) = if diagonal % 2 == 0 { (diagonal - step, step) } else { (step, diagonal - step) };
            if row < 8 && column < 8 {
                order[at] = (8 * row + column) as u8;
                at += 1;
            }
            step += 1;
        }
        diagonal += 1;
    }
    order
};
