//! Damage to files: flipped bits, random bytes, extreme numbers, and parts that are removed, duplicated or taken from
//! other files.

/// Random numbers: SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// The random numbers for input `index` of a target.
    pub(crate) fn of(seed: u64, target: &str, index: u64) -> Self {
        let name = target.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut mixed = Self(seed ^ name.rotate_left(32));
        let start = mixed.next();
        Self(start.wrapping_add(index.wrapping_mul(0xD1B5_4A32_D192_ED03)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Longer inputs are truncated to this length.
const LONGEST: usize = 64 << 10;

/// Values that often break code for lengths, offsets and counts.
const EXTREMES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x1_0000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 40,
    1 << 60,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Texts that have a meaning in one of the formats.
const TEXTS: [&[u8]; 22] = [
    b"",
    b"\"\"",
    b"\"",
    b"\n",
    b"\r\n",
    b",",
    b"1e39",
    b"-1e400",
    b"NaN",
    b"-0",
    b"18446744073709551615",
    b"1000000000000000000",
    b"{\"",
    b"[",
    b"]",
    b"__metadata__",
    b"\xff\xd9",
    b"\xff\xda",
    b"PK\x05\x06",
    b"IEND",
    b"PAR1",
    b"\xef\xbb\xbf",
];

/// Damages `bytes` in one to five places; may insert parts of `others`.
pub(crate) fn damage(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..1 + random.below(3) + 2 * usize::from(random.one_in(4)) {
        once(random, bytes, others);
        bytes.truncate(LONGEST);
    }
}

fn once(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let len = bytes.len();
    let at = random.below(len.max(1));
    if len == 0 {
        bytes.extend_from_slice(random.choose::<&[u8]>(&TEXTS));
        return;
    }
    match random.below(16) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 | 3 => bytes[at] = random.next() as u8,
        4 => bytes[at] = EXTREMES[random.below(8)] as u8,
        5 => bytes.truncate(at),
        6..=8 => overwrite(random, bytes, at),
        9 => {
            let part = part_of(random, bytes).to_vec();
            bytes.splice(at..at, part);
        }
        10 => {
            let end = at + random.below((len - at).min(64));
            bytes.drain(at..end);
        }
        11 => {
            let other = random_other(random, others).unwrap_or(&[]);
            let part = part_of(random, other).to_vec();
            bytes.splice(at..at, part);
        }
        12 | 13 => number_in_text(random, bytes, at),
        14 => {
            let text = *random.choose(&TEXTS);
            let end = if random.one_in(2) { (at + text.len()).min(len) } else { at };
            bytes.splice(at..end, text.iter().copied());
        }
        _ => {
            let (from, n) = (random.below(len), random.below(32));
            let n = n.min(len - at).min(len - from);
            bytes.copy_within(from..from + n, at);
        }
    }
}

fn random_other<'a>(random: &mut Random, others: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    (!others.is_empty()).then(|| random.choose(others).as_slice())
}

fn part_of<'a>(random: &mut Random, bytes: &'a [u8]) -> &'a [u8] {
    let start = random.below(bytes.len());
    let most = if random.one_in(8) { bytes.len() } else { 40 };
    &bytes[start..][..random.below((bytes.len() - start).min(most) + 1)]
}

/// Overwrites bytes with an extreme number, or one near the length: two, four or eight bytes in either order, or a
/// varint.
fn overwrite(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let near = bytes.len() as u64;
    let value = match random.below(4) {
        0 => near.wrapping_add(random.below(5) as u64).wrapping_sub(2),
        _ => *random.choose(&EXTREMES),
    };
    let mut number = match random.below(5) {
        0 => value.to_le_bytes()[..2].to_vec(),
        1 => value.to_le_bytes()[..4].to_vec(),
        2 => value.to_le_bytes().to_vec(),
        3 => varint(value),
        _ => value.to_be_bytes()[*random.choose(&[0, 4, 6])..].to_vec(),
    };
    number.truncate(bytes.len() - at);
    bytes.splice(at..at + number.len(), number);
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Replaces the next decimal number in the text by an extreme one.
fn number_in_text(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = (at..bytes.len()).find(|&at| bytes[at].is_ascii_digit()) else { return };
    let end = (start..bytes.len()).find(|&at| !bytes[at].is_ascii_digit()).unwrap_or(bytes.len());
    let number = random.choose(&EXTREMES).to_string();
    bytes.splice(start..end, number.into_bytes());
}
