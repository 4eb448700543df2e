//! `cargo xtask ci`: every check besides the tests themselves.
//!
//! All steps use the release profile, which the tests have already built for, so that dependencies and
//! derive macros are compiled once. They enable all features, which the tests do not: `pagelock` and `pagelock-data`
//! have features that are off by default.

use anyhow::Result;
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::steps::Steps;
use crate::{consumers, features, fuzz, no_more_arguments, programs, tidy};

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    let mut steps = Steps::new("ci");
    steps.step("fmt: every file is formatted", || Ok(cmd!(sh, "cargo fmt --all --check").quiet().run()?));
    steps.step("tidy: the rules no compiler checks", || tidy::check(sh));
    steps.step("features: all commands build with the same ones", || features::check(sh));
    // These two use the libraries that the tests have built, so they run before steps that build with other features.
    steps.step("programs: a user's crate compiles little of ours", || programs::check(sh));
    steps.step("consumers: each crate works alone", || consumers::check(sh, &[]));
    steps.step("clippy: no warning in any target", || {
        let lints = cmd!(sh, "cargo clippy --workspace --all-features --all-targets --release --quiet -- -D warnings");
        Ok(lints.quiet().run()?)
    });
    steps.step("doc: no warning, no dead link", || {
        let doc = cmd!(sh, "cargo doc --workspace --all-features --no-deps --release --quiet");
        Ok(doc.env("RUSTDOCFLAGS", "-D warnings").quiet().run()?)
    });
    steps.step("doc tests: the examples of optional features run", || {
        let tests =
            cmd!(sh, "cargo test --package pagelock --package pagelock-data --all-features --doc --release --quiet");
        Ok(tests.quiet().run()?)
    });
    steps.step("features: the tests of optional features pass", || {
        let tests = cmd!(
            sh,
            "cargo test --package pagelock --package pagelock-data --all-features --test files --test foreign --test ceiling
             --release --quiet"
        );
        Ok(tests.quiet().run()?)
    });
    steps.step("fuzz: no reader panics, hangs or takes too much memory on damaged files", || fuzz::briefly(sh));
    steps.finish()
}
