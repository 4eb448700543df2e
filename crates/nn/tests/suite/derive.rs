//! The texts and places of the compile errors of `#[derive(Module)]`.

use std::io::Write;
use std::process::Command;

#[test]
fn mistakes_are_said_where_they_are_made() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

/// The compiler words these itself, around our notes; each version a little differently.
#[test]
fn a_field_that_does_not_fit_is_underlined_and_explained() {
    let rustc = Command::new("rustc").arg("--version").output().unwrap().stdout;
    let rustc = String::from_utf8_lossy(&rustc);
    if rustc.starts_with("rustc 1.95.") {
        trybuild::TestCases::new().compile_fail("tests/ui/rustc-1.95/*.rs");
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: the expected texts are those of rustc 1.95, this is {rustc}");
    }
}
