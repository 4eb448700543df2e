//! Programs that must not compile: those in `crates/*/tests/ui`, each with a file of the expected compiler output
//! beside it. Output in a folder `rustc-1.95` depends on the wording of that compiler.
//!
//! The programs are compiled against the libraries that this test was built with, so nothing is built for them.
//! `BLESS=1 cargo test --test does_not_compile` rewrites the expected output; read the diff before you commit it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crates with such programs.
const CRATES: [&str; 4] = ["cuda", "tensor", "data", "nn"];

#[test]
fn programs_that_must_not_compile_say_what_to_write() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = libraries(root);
    let version = String::from_utf8(Command::new("rustc").arg("--version").output().unwrap().stdout).unwrap();
    let mut complaints = String::new();
    let mut compared = 0;
    for program in CRATES.iter().flat_map(|name| programs(&root.join("crates").join(name).join("tests/ui"))) {
        let folder = program.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        if folder.strip_prefix("rustc-").is_some_and(|wanted| !version.starts_with(&format!("rustc {wanted}."))) {
            eprintln!("skipped: {} is for {folder}, this is {version}", program.display());
            continue;
        }
        let said = said(root, &program, &libraries);
        compared += 1;
        let expected = program.with_extension("stderr");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&expected, &said).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != said {
            let _ = writeln!(complaints, "== {}\n{said}", program.display());
        }
    }
    assert!(compared >= 5, "only {compared} programs were found");
    assert!(complaints.is_empty(), "the compiler says something else than is expected:\n{complaints}");
}

/// The paths of our libraries, as they were built for the tests of the workspace.
fn libraries(root: &Path) -> BTreeMap<String, PathBuf> {
    let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "tensors", "--message-format=json"]).args(release).current_dir(root);
    // Cargo sets these variables for a test. If they were kept, build scripts that depend on them would run again.
    for (variable, _) in std::env::vars_os() {
        if ["CARGO_MANIFEST", "CARGO_PKG"].iter().any(|begin| variable.to_string_lossy().starts_with(begin)) {
            build.env_remove(variable);
        }
    }
    let build = build.output().unwrap();
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    let messages = String::from_utf8(build.stdout).unwrap();
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = messages.filter_map(|message| {
        let name = message["target"]["name"].as_str()?.replace('-', "_");
        let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str).map(PathBuf::from);
        let library = files.into_iter().find(|file| file.extension().is_some_and(|ending| ending == "rlib"))?;
        name.starts_with("pagelock").then_some((name, library))
    });
    ours.collect()
}

/// The programs in a folder and its subfolders, sorted by name.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let found = paths.into_iter().flat_map(|path| if path.is_dir() { programs(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The compiler's output for a program, which must not compile.
fn said(root: &Path, program: &Path, libraries: &BTreeMap<String, PathBuf>) -> String {
    let tests = program.ancestors().find(|folder| folder.ends_with("tests")).unwrap();
    let package = tests.parent().unwrap();
    let name = program.strip_prefix(package).unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--diagnostic-width=140", "--color=never"]);
    rustc.arg("--out-dir").arg(out.path()).arg(name).current_dir(package).env("CARGO_MANIFEST_DIR", package);
    for (name, library) in libraries {
        let dependencies = library.with_file_name("deps");
        let dependencies = if dependencies.is_dir() { dependencies.as_path() } else { library.parent().unwrap() };
        rustc.arg("--extern").arg(format!("{name}={}", library.display()));
        rustc.arg("-L").arg(format!("dependency={}", dependencies.display()));
    }
    let output = rustc.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{} compiles", program.display());
    stable(&text, root, &name.display().to_string())
}

/// The text without the parts that depend on other programs and on lines of our sources: the folder of the project,
/// line numbers in files other than the program, lists of other types that implement a trait, notes about files with
/// long type names, and the closing summary.
fn stable(text: &str, root: &Path, program: &str) -> String {
    let text = text.replace(&format!("{}/", root.display()), "");
    let ours = ["--> ", "::: "];
    let (mut is_elsewhere, mut is_list) = (false, false);
    let mut out = String::new();
    for line in text.lines() {
        let begin = line.trim_start();
        is_elsewhere &= begin.len() < line.len() || line.is_empty();
        is_list &= line.len() - begin.len() >= 8 && !begin.starts_with(['=', '|', '-', ':']);
        if is_list {
            continue;
        } else if begin.contains("the following other types implement trait") {
            is_list = true;
        } else if let Some(place) = ours.iter().find_map(|arrow| begin.strip_prefix(arrow)) {
            is_elsewhere = !place.starts_with(program);
            let place = if is_elsewhere { place.split(':').next().unwrap_or(place) } else { place };
            let place = place.split_once("/library/").map_or(place, |(_, of_rust)| of_rust); // behind the commit hash
            let _ = writeln!(out, "{} {place}", &line[..line.len() - begin.len() + 3]);
        } else if begin.starts_with("error: aborting due to") || begin.starts_with("error: could not compile") {
            break;
        } else if begin.starts_with("= note: the full name for the type")
            || begin.starts_with("= note: consider using `--verbose`")
        {
            continue;
        } else if is_elsewhere && begin.starts_with(|first: char| first.is_ascii_digit()) {
            let _ = writeln!(out, "{}", begin.trim_start_matches(|digit: char| digit.is_ascii_digit() || digit == ' '));
        } else {
            let _ = writeln!(out, "{line}");
        }
    }
    out.trim_end().to_owned() + "\n"
}
