//! `cargo xtask bench`: every benchmark of the workspace, one after the other.
//!
//! A benchmark is a program in a `benches/` folder with `harness = false`. It prints a table for people, or,
//! with `--json`, one JSON object on standard output and nothing else there.

use anyhow::{Context, Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

/// A benchmark and the package it belongs to.
#[derive(Debug, PartialEq)]
struct Bench {
    package: String,
    name: String,
}

pub(crate) fn run(sh: &Shell, mut parser: Parser) -> Result<()> {
    let mut json_folder = None;
    let mut names = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            lexopt::Arg::Long("json") => json_folder = Some(parser.value()?),
            lexopt::Arg::Value(name) => names.push(name.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().into()),
        }
    }
    let benches = selected(all_benches(sh)?, &names)?;
    for Bench { package, name } in &benches {
        println!("── {package}: {name}");
        let bench = cmd!(sh, "cargo bench --quiet --package {package} --bench {name}").quiet();
        let Some(folder) = &json_folder else {
            bench.run()?;
            continue;
        };
        let report = bench.args(["--", "--json"]).read()?;
        let path = sh.create_dir(folder)?.join(format!("{name}.json"));
        sh.write_file(&path, report)?;
        println!("   wrote {}", path.display());
    }
    Ok(())
}

/// The benchmarks called `names`; all of them where no name is given.
fn selected(benches: Vec<Bench>, names: &[String]) -> Result<Vec<Bench>> {
    if let Some(unknown) = names.iter().find(|name| benches.iter().all(|bench| bench.name != **name)) {
        let known: Vec<_> = benches.iter().map(|bench| bench.name.as_str()).collect();
        bail!("there is no benchmark `{unknown}`; there are: {}", known.join(", "));
    }
    let wanted = |bench: &Bench| names.is_empty() || names.contains(&bench.name);
    Ok(benches.into_iter().filter(wanted).collect())
}

/// Benchmarks are the files `benches/NAME.rs` and `benches/NAME/main.rs` that git knows, or would know after `git add`.
fn all_benches(sh: &Shell) -> Result<Vec<Bench>> {
    let files = cmd!(sh, "git ls-files --cached --others --exclude-standard -- benches/*.rs */benches/*.rs");
    let mut benches = Vec::new();
    for path in files.quiet().read()?.lines() {
        let (folder, file) = path.rsplit_once("benches/").context("a benchmark lies in a folder of benchmarks")?;
        let Some(name) = bench_name(file) else { continue };
        let manifest = sh.read_file(format!("{folder}Cargo.toml"))?;
        let package = package_name(&manifest).with_context(|| format!("no package name for {path}"))?;
        benches.push(Bench { package, name: name.to_owned() });
    }
    Ok(benches)
}

/// The benchmark that starts in that file of a `benches` folder; none for its other modules.
fn bench_name(file: &str) -> Option<&str> {
    let name = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
    (!name.contains('/')).then_some(name)
}

/// The `name` in the `[package]` table of a manifest.
fn package_name(manifest: &str) -> Option<String> {
    let package = manifest.split("[package]").nth(1)?;
    let line = package.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(line.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(name: &str) -> Bench {
        Bench { package: "pagelock".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn package_name_is_that_of_the_package_table() {
        let manifest = "[workspace]\nname = \"no\"\n\n[package]\nname = \"pagelock\"\n\n[[bench]]\nname = \"x\"\n";

        assert_eq!(package_name(manifest).as_deref(), Some("pagelock"));
    }

    #[test]
    fn a_benchmark_is_a_file_or_a_folder_with_a_main_file() {
        assert_eq!(bench_name("ops.rs"), Some("ops"));
        assert_eq!(bench_name("transfer/main.rs"), Some("transfer"));
        assert_eq!(bench_name("transfer/copies.rs"), None);
    }

    #[test]
    fn without_names_every_benchmark_is_selected() {
        let all = selected(vec![bench("ops"), bench("mnist_epoch")], &[]).unwrap();

        assert_eq!(all, [bench("ops"), bench("mnist_epoch")]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list_of_known_ones() {
        let error = selected(vec![bench("ops"), bench("mnist_epoch")], &["epoch".to_owned()]).unwrap_err();

        assert_eq!(error.to_string(), "there is no benchmark `epoch`; there are: ops, mnist_epoch");
    }
}
