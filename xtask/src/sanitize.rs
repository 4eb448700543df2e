//! `cargo xtask sanitize`: AddressSanitizer and ThreadSanitizer on the tests of the crates with `unsafe`.
//!
//! Needs a nightly toolchain. Where its `rust-src` component is installed, the standard library is
//! instrumented too; otherwise `xtask/tsan.supp` quiets what ThreadSanitizer cannot see in an
//! uninstrumented one. [`RUNS`] says which tests run.

use anyhow::{Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::remaining_words;
use crate::steps::Steps;

/// A sanitizer, and how the compiler is told about it.
#[derive(Clone, Copy)]
struct Sanitizer {
    name: &'static str,
    rustflags: &'static str,
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        rustflags: "-Zsanitizer=address",
    },
    Sanitizer {
        name: "thread",
        rustflags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
    },
];

/// The tests of one package: what follows `cargo test -p PACKAGE`.
struct Run {
    package: &'static str,
    targets: &'static [&'static str],
}

/// Unit tests and integration tests; doc tests are left out, they exercise nothing more.
const RUNS: &[Run] = &[
    Run {
        package: "pagelock-memory",
        targets: &["--lib", "--tests"],
    },
    Run {
        package: "pagelock-tensor",
        targets: &["--lib", "--tests"],
    },
];

/// The only target on which these checks have been run.
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    let words = remaining_words(parser)?;
    let chosen = chosen(&words)?;
    let build_std = needs(sh)?;
    let mut steps = Steps::new("sanitize");
    for sanitizer in chosen {
        for run in RUNS {
            let name = format!("{} sanitizer: {}", sanitizer.name, run.package);
            steps.step(&name, || test(sh, sanitizer, run, build_std));
        }
    }
    steps.finish()
}

/// The sanitizers named in `words`; both where none is named.
fn chosen(words: &[String]) -> Result<Vec<Sanitizer>> {
    if let Some(unknown) = words
        .iter()
        .find(|word| SANITIZERS.iter().all(|one| one.name != **word))
    {
        bail!("there is no sanitizer `{unknown}`; there are: address, thread");
    }
    let wanted = |one: &Sanitizer| words.is_empty() || words.iter().any(|word| word == one.name);
    Ok(SANITIZERS.into_iter().filter(wanted).collect())
}

/// Whether the nightly toolchain can build an instrumented standard library; an error without a nightly.
fn needs(sh: &Shell) -> Result<bool> {
    let sysroot = cmd!(sh, "rustup run nightly rustc --print sysroot")
        .quiet()
        .ignore_stderr()
        .read();
    let Ok(sysroot) = sysroot else {
        bail!("sanitizers need a nightly toolchain; `rustup toolchain install nightly` gets one");
    };
    let has_source = sh.path_exists(format!("{sysroot}/lib/rustlib/src/rust/library/Cargo.lock"));
    Ok(has_source)
}

fn test(sh: &Shell, sanitizer: Sanitizer, run: &Run, build_std: bool) -> Result<()> {
    let (package, targets) = (run.package, run.targets);
    let std_flag = build_std.then_some("-Zbuild-std");
    let suppressions = sh.current_dir().join("xtask/tsan.supp");
    let tests = cmd!(
        sh,
        "rustup run nightly cargo test --quiet {std_flag...} --target {TARGET} --package {package} {targets...}"
    );
    let tests = tests
        .env("RUSTFLAGS", sanitizer.rustflags)
        .env(
            "CARGO_TARGET_DIR",
            format!("target/sanitize/{}", sanitizer.name),
        )
        .env(
            "TSAN_OPTIONS",
            format!("suppressions={}", suppressions.display()),
        );
    Ok(tests.quiet().run()?)
}
