//! The races that a guide would show, in the compiler's own words; `examples/pinmem_nonblock` quotes them.
//!
//! `src/does_not_compile.rs` has more of them, each with the number of its error.

use std::io::Write;
use std::process::Command;

/// The compiler words these itself; each version a little differently.
#[test]
fn what_a_copy_in_flight_uses_is_out_of_reach() {
    let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let rustc = String::from_utf8_lossy(&rustc).into_owned();
    if rustc.starts_with("rustc 1.95.") {
        trybuild::TestCases::new().compile_fail("tests/ui/rustc-1.95/*.rs");
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: the expected texts are those of rustc 1.95, this is {rustc}");
    }
}
