//! `cargo xtask test-gpu`: the tests that use a GPU, in release, where a missing GPU is a failure.
//!
//! Examples that check themselves run, too. All programs are first copied into a folder that needs neither cargo nor
//! network. The `run.sh` in it runs them: here, or with `--bundle DIR` later on another machine. `run.sh` first
//! checks that there is a GPU, and its last line counts the results.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lexopt::Arg::Long;
use lexopt::Parser;
use serde_json::Value;
use xshell::{Shell, cmd};

/// Packages whose tests use a GPU and fail without one under `REQUIRE_GPU=1`, each with arguments for `cargo test`
/// that select only those tests.
const PACKAGES: &[(&str, &[&str])] = &[
    ("pagelock-cuda", &["--lib", "--tests"]),
    (
        "pagelock-tensor",
        &[
            "--test=cuda",
            "--test=golden",
            "--test=gradients",
            "--test=optimizer_steps",
            "--test=properties",
            "--test=refusals",
        ],
    ),
    ("pagelock-linalg", &["--test=linalg"]),
    ("pagelock-data", &["--test=device"]),
    ("pagelock-nn", &["--test=training", "--test=suite"]),
    ("pagelock-board", &["--test=tensors"]),
];

/// Examples that check what they promise, and end within seconds with `--quick`: their names begin with one of these.
const EXAMPLES: [&str; 6] = ["basics_", "blitz_", "models_", "classify_names", "generate_names", "translate"];

/// The script that runs the bundled tests. Its first test, `tools::there_is_a_gpu` of `pagelock-cuda`, checks for a
/// GPU.
const RUN: &str = include_str!("run.sh");

/// A program with tests.
#[derive(Debug, PartialEq)]
struct TestBinary {
    /// The folder of its package and the name of its target, such as `cuda-it`.
    name: String,
    path: String,
}

pub(crate) fn run(sh: &Shell, mut parser: Parser) -> Result<()> {
    let (mut bundle_folder, mut sanitize) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("bundle") => bundle_folder = Some(parser.value()?),
            Long("sanitize") => sanitize = Some("--sanitize"),
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(folder) = bundle_folder {
        ensure!(sanitize.is_none(), "--bundle only makes a folder; give --sanitize to the `run.sh` in it");
        let folder = sh.current_dir().join(folder);
        let n_binaries = bundle(sh, &folder)?;
        println!("test-gpu: {n_binaries} test programs in {}; `run.sh` there runs them", folder.display());
        return Ok(());
    }
    let folder = sh.current_dir().join("target/test-gpu");
    bundle(sh, &folder)?;
    let script = folder.join("run.sh");
    cmd!(sh, "{script} {sanitize...}").quiet().run().context("test-gpu failed; its last line says how")
}

/// Fills `folder` anew: stripped programs in `tests/` and `examples/`, golden files, and `run.sh`. Returns how many
/// programs there are.
fn bundle(sh: &Shell, folder: &Path) -> Result<usize> {
    let mut binaries = Vec::new();
    for &(package, targets) in PACKAGES {
        let built = cmd!(sh, "cargo test --release --no-run --message-format=json --package {package} {targets...}");
        let of_package = test_binaries(&built.quiet().read()?)?;
        ensure!(!of_package.is_empty(), "cargo built no tests of {package}");
        binaries.extend(of_package);
    }

    let built = cmd!(sh, "cargo build --release --message-format=json --package pagelock --examples");
    let examples = examples(&built.quiet().read()?)?;
    ensure!(!examples.is_empty(), "cargo built no examples");
    strip(sh, &binaries, &folder.join("tests"))?;
    strip(sh, &examples, &folder.join("examples"))?;
    for (of, golden) in [("tensor", "golden"), ("nn", "golden-nn")] {
        let (from, to) = (format!("crates/{of}/tests/golden"), folder.join(golden));
        sh.remove_path(&to)?;
        cmd!(sh, "cp -r {from} {to}").quiet().run()?;
    }
    let script = folder.join("run.sh");
    sh.write_file(&script, RUN)?;
    cmd!(sh, "chmod +x {script}").quiet().run()?;
    Ok(binaries.len() + examples.len())
}

/// Copies the programs, without symbols, into a new folder.
fn strip(sh: &Shell, binaries: &[TestBinary], folder: &Path) -> Result<()> {
    sh.remove_path(folder)?;
    sh.create_dir(folder)?;
    for TestBinary { name, path } in binaries {
        let stripped = folder.join(name);
        cmd!(sh, "strip -o {stripped} {path}").quiet().run()?;
    }
    Ok(())
}

/// The examples that check themselves, among cargo's messages.
fn examples(messages: &str) -> Result<Vec<TestBinary>> {
    let mut examples = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("not a message of cargo: {line}"))?;
        let (Some(path), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        if EXAMPLES.iter().any(|prefix| name.starts_with(prefix)) {
            examples.push(TestBinary { name: name.to_owned(), path: path.to_owned() });
        }
    }
    Ok(examples)
}

/// The test programs among cargo's messages, which are one JSON object in each line.
fn test_binaries(messages: &str) -> Result<Vec<TestBinary>> {
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("not a message of cargo: {line}"))?;
        let Some(path) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().context("a program without a manifest")?);
        let package = manifest.parent().and_then(Path::file_name).context("a manifest lies in a folder")?;
        let target = message["target"]["name"].as_str().context("a program without a name")?;
        let name = format!("{}-{target}", package.to_string_lossy());
        binaries.push(TestBinary { name, path: path.to_owned() });
    }
    Ok(binaries)
}

#[cfg(test)]
mod tests;
