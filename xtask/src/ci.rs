//! `cargo xtask ci`: everything that must hold besides the tests themselves.
//!
//! All steps use the release profile, which the tests have already built for, so that dependencies and
//! derive macros are compiled once. All features are on, which the tests are not built with: only `pagelock-data` has
//! some that are off unless asked for.

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
    // Before what builds with other features: these two use the libraries that the tests have built.
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
    steps.step("doc tests: examples of what is left out unless asked for run", || {
        let tests =
            cmd!(sh, "cargo test --package pagelock --package pagelock-data --all-features --doc --release --quiet");
        Ok(tests.quiet().run()?)
    });
    steps.step("features: tests of what is left out unless asked for pass", || {
        let tests = cmd!(
            sh,
            "cargo test --package pagelock --package pagelock-data --all-features --test files --test foreign --test ceiling
             --release --quiet"
        );
        Ok(tests.quiet().run()?)
    });
    steps.step("fuzz: no reader panics, hangs or takes memory over damaged files", || fuzz::briefly(sh));
    steps.finish()
}
