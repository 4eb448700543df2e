//! Sizes: printing and parsing.

use pagelock_memory::ByteSize;
use proptest::prelude::*;

#[test]
fn sizes_print_with_two_decimals_at_most() {
    let printed = [0, 1, 1_000, 1_023, 1_024, 1_536, 1_500_000, 1 << 30, (1 << 30) - 1, u64::MAX - 1, u64::MAX];
    let printed = printed.map(|bytes| ByteSize(bytes).to_string());
    assert_eq!(
        printed,
        ["0 B", "1 B", "1000 B", "1023 B", "1 KiB", "1.5 KiB", "1.43 MiB", "1 GiB", "1 GiB", "16 EiB", "no limit"]
    );
}

#[test]
fn sizes_keep_to_their_column() {
    assert_eq!(format!("[{:>8}] [{:<8}]", ByteSize::kib(2), ByteSize::kib(2)), "[   2 KiB] [2 KiB   ]");
}

#[test]
fn sizes_parse_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4_096),
        ("17 B", 17),
        ("1.5 GiB", 3 << 29),
        ("1.5g", 3 << 29),
        ("64M", 64 << 20),
        ("200 MB", 200_000_000),
        ("0.25 kB", 250),
        ("2 tib", 2 << 40),
        ("  7KiB ", 7 << 10),
        ("16777215.9999999999 TiB", u64::MAX - 1_099),
    ] {
        assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
    }
}

#[test]
fn what_is_no_size_is_refused_with_an_example() {
    let texts =
        ["", "GiB", "-1", "1.5.2 GiB", "1.", ".5", "1e9", "12 XB", "1 Gi B", "99999999999999999999", "16777216 TiB"];
    for text in texts {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
    assert_eq!(
        "12 XB".parse::<ByteSize>().unwrap_err().to_string(),
        "`12 XB` is not a size in bytes; write a number and a unit, for example 1.5 GiB, 200 MB or 4096"
    );
}

#[test]
fn multiples_saturate() {
    assert_eq!(ByteSize::gib(u64::MAX), ByteSize::MAX);
}

proptest! {
    #[test]
    fn a_printed_size_parses_to_within_half_a_hundredth(bytes in 0..1_u64 << 50) {
        let parsed: ByteSize = ByteSize(bytes).to_string().parse().unwrap();
        prop_assert!(parsed.0.abs_diff(bytes) as f64 <= bytes as f64 * 0.005);
    }

    #[test]
    fn no_text_panics(text in ".*") {
        let _ = text.parse::<ByteSize>();
    }
}
