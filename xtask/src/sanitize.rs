//! `cargo xtask sanitize`: AddressSanitizer and ThreadSanitizer on the tests of the crates with `unsafe`, and of the
//! loaders' threads.
//!
//! Needs a nightly toolchain. With its `rust-src` component the standard library is built with the sanitizer
//! too. ThreadSanitizer needs that: it sees no fence, and nothing inside an uninstrumented library, so it would
//! report every `Arc` and every contended `Mutex` as a race. [`RUNS`] says which tests run.

use std::ffi::OsString;

use anyhow::{Result, bail, ensure};
use lexopt::Arg::{Long, Short};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::steps::Steps;

/// A sanitizer, and how the compiler is told about it.
struct Sanitizer {
    name: &'static str,
    rustflags: &'static str,
    /// Whether its reports are false unless the standard library is instrumented.
    needs_std_source: bool,
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer { name: "address", rustflags: "-Zsanitizer=address", needs_std_source: false },
    Sanitizer {
        name: "thread",
        // The sanitizer learns from libc that memory was unmapped, not from system calls that rustix makes itself.
        rustflags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg=rustix_use_libc",
        needs_std_source: true,
    },
];

/// The tests of one package, as arguments after `cargo test -p PACKAGE`.
struct Run {
    package: &'static str,
    targets: &'static [&'static str],
    /// Whether threads share memory in them, so that ThreadSanitizer runs them, too.
    has_threads: bool,
}

/// Unit tests and integration tests: all of them, unless a comment says otherwise. Doc tests exercise nothing more.
const RUNS: &[Run] = &[
    Run { package: "pagelock-memory", targets: &["--lib", "--tests"], has_threads: true },
    Run { package: "pagelock-cuda", targets: &["--lib", "--tests"], has_threads: true },
    // All tests that compute. The others check messages and sources, or count allocations, which a sanitizer changes.
    Run {
        package: "pagelock-tensor",
        targets: &[
            "--lib",
            "--test",
            "autograd",
            "--test",
            "exactness",
            "--test",
            "files",
            "--test",
            "functions",
            "--test",
            "golden",
            "--test",
            "gradients",
            "--test",
            "graph",
            "--test",
            "maps",
            "--test",
            "precision",
            "--test",
            "properties",
            "--test",
            "random",
            "--test",
            "refusals",
            "--test",
            "values",
        ],
        has_threads: true,
    },
    // This crate has no `unsafe`, but its threads share memory of the crates below.
    Run {
        package: "pagelock-data",
        targets: &["--test", "workers", "--test", "faults", "--test", "loader", "--test", "streams"],
        has_threads: true,
    },
    // Readers, whose decoders have `unsafe`, and training.
    Run {
        package: "pagelock-data",
        targets: &["--features", "images,parquet", "--test", "files", "--test", "foreign"],
        has_threads: false,
    },
    Run { package: "pagelock-nn", targets: &["--lib", "--test", "suite", "--test", "refusals"], has_threads: false },
];

/// The only target on which these checks have been run.
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    let (sanitizers, runs) = chosen(parser)?;
    let has_std_source = has_std_source(sh)?;
    let mut steps = Steps::new("sanitize");
    for sanitizer in &sanitizers {
        for run in runs.iter().filter(|run| run.has_threads || sanitizer.name == "address") {
            let name = format!("{} sanitizer: {}", sanitizer.name, run.package);
            steps.step(&name, || test(sh, sanitizer, run, has_std_source));
        }
    }
    steps.finish()
}

/// The selection of the command line: everything, or the part that `--only` and `--package` select. Both may be given
/// several times.
fn chosen(mut parser: Parser) -> Result<(Vec<&'static Sanitizer>, Vec<&'static Run>)> {
    let (mut only, mut packages) = (Vec::new(), Vec::new());
    while let Some(argument) = parser.next()? {
        match argument {
            Long("only") => {
                let name = parser.value()?;
                let is_known = SANITIZERS.iter().any(|sanitizer| name == sanitizer.name);
                ensure!(is_known, "--only takes `address` or `thread`, not {name:?}");
                only.push(name);
            }
            Short('p') | Long("package") => {
                let name = parser.value()?;
                let is_known = RUNS.iter().any(|run| name == run.package);
                ensure!(is_known, "--package takes a package with tests listed in sanitize.rs, not {name:?}");
                packages.push(name);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let is_chosen = |names: &[OsString], name: &str| names.is_empty() || names.iter().any(|chosen| chosen == name);
    let sanitizers = SANITIZERS.iter().filter(|sanitizer| is_chosen(&only, sanitizer.name)).collect();
    let runs = RUNS.iter().filter(|run| is_chosen(&packages, run.package)).collect();
    Ok((sanitizers, runs))
}

/// Whether the nightly toolchain can build an instrumented standard library; an error without a nightly.
fn has_std_source(sh: &Shell) -> Result<bool> {
    let sysroot = cmd!(sh, "rustup run nightly rustc --print sysroot").quiet().ignore_stderr().read();
    let Ok(sysroot) = sysroot else {
        bail!("sanitizers need a nightly toolchain; `rustup toolchain install nightly` gets one");
    };
    Ok(sh.path_exists(format!("{sysroot}/lib/rustlib/src/rust/library/Cargo.lock")))
}

fn test(sh: &Shell, sanitizer: &Sanitizer, run: &Run, has_std_source: bool) -> Result<()> {
    ensure!(
        has_std_source || !sanitizer.needs_std_source,
        "it needs the source of the standard library; `rustup component add rust-src --toolchain nightly` gets it"
    );
    let (package, targets) = (run.package, run.targets);
    let std_flag = has_std_source.then_some("-Zbuild-std");
    let tests = cmd!(
        sh,
        "rustup run nightly cargo test --quiet {std_flag...} --target {TARGET} --package {package} {targets...}"
    );
    let target_folder = format!("target/sanitize/{}", sanitizer.name);
    let tests = tests.env("RUSTFLAGS", sanitizer.rustflags).env("CARGO_TARGET_DIR", target_folder);
    // At the optimization level of tests, the kernels of every instruction set take a quarter of an hour to build.
    let tests = tests.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    // Some tests ask for impossible sizes and expect an error, where a sanitizer would end the process.
    let null = "allocator_may_return_null=1";
    let tests = tests.env("ASAN_OPTIONS", null).env("TSAN_OPTIONS", null);
    Ok(tests.quiet().run()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the sanitizers and packages that these arguments select.
    fn names(arguments: &[&str]) -> Result<(Vec<&'static str>, Vec<&'static str>)> {
        let (sanitizers, runs) = chosen(Parser::from_args(arguments))?;
        Ok((sanitizers.iter().map(|sanitizer| sanitizer.name).collect(), runs.iter().map(|run| run.package).collect()))
    }

    #[test]
    fn several_sanitizers_and_packages_can_be_selected() {
        let arguments = ["--only", "thread", "-p", "pagelock-nn", "--only", "address", "-p", "pagelock-cuda"];

        let (sanitizers, packages) = names(&arguments).unwrap();

        assert_eq!(sanitizers, ["address", "thread"]);
        assert_eq!(packages, ["pagelock-cuda", "pagelock-nn"]);
    }

    #[test]
    fn an_unknown_sanitizer_is_refused_after_a_known_one() {
        let error = names(&["--only", "thread", "--only", "memory"]).unwrap_err();

        assert_eq!(error.to_string(), "--only takes `address` or `thread`, not \"memory\"");
    }
}
