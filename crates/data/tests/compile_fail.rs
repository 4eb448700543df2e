//! What must not compile, and what the compiler says instead of letting a batch stay pageable in silence.

use std::io::Write;
use std::process::Command;

#[test]
fn what_the_derive_does_not_know_is_refused_with_what_to_write() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

/// The compiler words these itself, around our notes; each version a little differently.
#[test]
fn a_batch_that_nobody_taught_to_be_pinned_does_not_compile() {
    let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let rustc = String::from_utf8_lossy(&rustc).into_owned();
    if rustc.starts_with("rustc 1.95.") {
        trybuild::TestCases::new().compile_fail("tests/ui/rustc-1.95/*.rs");
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: the expected texts are those of rustc 1.95, this is {rustc}");
    }
}
