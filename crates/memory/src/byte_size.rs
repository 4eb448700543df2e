//! Sizes in bytes that print and parse as people write them: `1.5 GiB`.
//!
//! Printing uses powers of 1024 and at most two decimals, so a printed size is for reading; the exact
//! number is the public field.

use std::{fmt, str::FromStr};

use crate::Error;

/// A number of bytes. Prints as `1.5 GiB`; parses `1.5 GiB`, `200 MB` and `4096`.
///
/// # Examples
/// ```
/// use pagelock_memory::ByteSize;
///
/// let size: ByteSize = "1.5 GiB".parse()?;
/// assert_eq!(size, ByteSize::mib(1536));
/// assert_eq!(size.to_string(), "1.5 GiB");
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(
    /// The exact number of bytes.
    pub u64,
);

impl ByteSize {
    /// The largest size. As the limit of a budget it means "no limit", which is also how it prints.
    pub const MAX: ByteSize = ByteSize(u64::MAX);

    /// `n` times 1024 bytes, [`ByteSize::MAX`] if that does not fit.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 1024² bytes, [`ByteSize::MAX`] if that does not fit.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` times 1024³ bytes, [`ByteSize::MAX`] if that does not fit.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }
}

impl ByteSize {
    /// The text of a requested size: for the largest one, "no limit" would be wrong.
    pub(crate) fn amount(self) -> impl fmt::Display {
        match self {
            Self::MAX => "16 EiB or more".to_owned(),
            size => size.to_string(),
        }
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::MAX {
            return f.pad("no limit");
        }
        let (mut value, mut unit) = (self.0 as f64, 0);
        // 1023.996 would print as 1024: such values belong to the next unit.
        while value >= 1023.995 {
            value /= 1024.0;
            unit += 1;
        }
        let digits = format!("{value:.2}");
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        f.pad(&format!("{digits} {}", UNITS[unit]))
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    /// Reads a decimal number and a unit: `B` or nothing, `KiB`/`MiB`/`GiB`/`TiB` (powers of 1024, also
    /// written `K`, `M`, `G`, `T`) or `kB`/`MB`/`GB`/`TB` (powers of 1000), in any case.
    ///
    /// # Errors
    /// [`Error::Argument`] for anything else, for negative numbers and for more than 16 EiB.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map(Self).ok_or_else(|| not_a_size(text))
    }
}

fn not_a_size(text: &str) -> Error {
    let fix = "write a number and a unit, for example 1.5 GiB, 200 MB or 4096";
    Error::Argument(format!("`{text}` is not a size in bytes; {fix}"))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = unit_bytes(unit.trim())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (fraction.is_empty() && number.contains('.')) || fraction.contains('.') {
        return None;
    }
    // Nine decimals of a tebibyte are precise to a kilobyte, which is enough.
    let fraction = &fraction[..fraction.len().min(9)];
    let scale = 10_u128.pow(fraction.len() as u32);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scaled = whole.parse::<u64>().ok()? as u128 * scale + fraction;
    u64::try_from(scaled.checked_mul(unit)? / scale).ok()
}

fn unit_bytes(unit: &str) -> Option<u128> {
    let (exponent, base) = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => (0, 1024),
        "k" | "kib" => (1, 1024),
        "m" | "mib" => (2, 1024),
        "g" | "gib" => (3, 1024),
        "t" | "tib" => (4, 1024),
        "kb" => (1, 1000),
        "mb" => (2, 1000),
        "gb" => (3, 1000),
        "tb" => (4, 1000),
        _ => return None,
    };
    Some(u128::pow(base, exponent))
}
