//! `cargo xtask bench`: every benchmark of the workspace, one after the other.
//!
//! A benchmark is a program in a `benches/` folder with `harness = false`, which prints a table. The comment at the
//! head of its main file says whether it writes JSON, and how: `--json FILE` writes it to that file, `--json` prints it
//! in place of the table. With `--json DIR`, this command writes `DIR/NAME.json` for each benchmark that has one of the
//! two options; the others print their tables. A benchmark that fails does not stop the ones after it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::steps::Steps;

/// A benchmark and the package it belongs to.
#[derive(Debug, PartialEq)]
struct Bench {
    package: String,
    name: String,
    /// The features without which cargo refuses to build it, separated by commas.
    features: Option<String>,
    json: Json,
}

/// How a benchmark writes JSON.
#[derive(Debug, PartialEq)]
enum Json {
    Never,
    /// `--json` prints it.
    Printed,
    /// `--json FILE` writes it to the file.
    File,
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
    let json_folder = json_folder.map(|folder| sh.create_dir(folder)).transpose()?;
    let mut steps = Steps::new("bench");
    for bench in &benches {
        let name = format!("{}: {}", bench.package, bench.name);
        steps.step(&name, || measure(sh, bench, json_folder.as_deref()));
    }
    steps.finish()
}

/// Runs a benchmark. If a folder is given, its JSON goes there.
fn measure(sh: &Shell, bench: &Bench, json_folder: Option<&Path>) -> Result<()> {
    let Bench { package, name, features, json } = bench;
    let features = features.iter().map(|features| format!("--features={features}"));
    let run = cmd!(sh, "cargo bench --quiet --package {package} --bench {name} {features...}").quiet();
    let Some(folder) = json_folder.filter(|_| *json != Json::Never) else { return Ok(run.run()?) };
    // cargo runs a benchmark in the folder of its package, so the path has to be absolute, as `create_dir` returns it.
    let path = folder.join(format!("{name}.json"));
    sh.remove_path(&path)?;
    if *json == Json::File {
        run.args(["--", "--json"]).arg(&path).run()?;
    } else {
        let printed = run.args(["--", "--json"]).read()?;
        match printed.starts_with('{') {
            true => sh.write_file(&path, printed)?,
            false => println!("{printed}"), // why there was nothing to measure
        }
    }
    if sh.path_exists(&path) {
        println!("   wrote {}", path.display());
    }
    Ok(())
}

/// The benchmarks called `names`, or all of them if no name is given.
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
        let (features, json) = (required_features(&manifest, name), json_of(&sh.read_file(path)?));
        benches.push(Bench { package, name: name.to_owned(), features, json });
    }
    Ok(benches)
}

/// The name of the benchmark whose main file this is, as a path in `benches`; `None` for its other modules.
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

/// The `required-features` of a benchmark in a manifest, as in `images,parquet`.
fn required_features(manifest: &str, name: &str) -> Option<String> {
    let tables = manifest.split("[[bench]]\n").skip(1).filter_map(|rest| rest.split("\n[").next());
    let of_bench = |table: &&str| table.lines().any(|line| line == format!("name = \"{name}\""));
    let mut lines = tables.filter(of_bench).flat_map(str::lines);
    let list = lines.find_map(|line| line.strip_prefix("required-features = ["))?;
    Some(list.trim_end_matches(']').replace(['"', ' '], ""))
}

/// How a benchmark with this main file writes JSON.
fn json_of(source: &str) -> Json {
    let head: Vec<&str> = source.lines().take_while(|line| line.starts_with("//!")).collect();
    let says = |text: &str| head.iter().any(|line| line.contains(text));
    match (says("--json FILE"), says("--json")) {
        (true, _) => Json::File,
        (false, true) => Json::Printed,
        (false, false) => Json::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(name: &str) -> Bench {
        Bench { package: "pagelock".to_owned(), name: name.to_owned(), features: None, json: Json::Never }
    }

    #[test]
    fn package_name_is_that_of_the_package_table() {
        let manifest = "[workspace]\nname = \"no\"\n\n[package]\nname = \"pagelock\"\n\n[[bench]]\nname = \"x\"\n";

        assert_eq!(package_name(manifest).as_deref(), Some("pagelock"));
    }

    #[test]
    fn required_features_are_those_of_the_benchmark_with_the_name() {
        let manifest = "[[bench]]\nname = \"a\"\nharness = false\n\n[[bench]]\nname = \"b\"\n\
                        required-features = [\"images\", \"text\"]\n\n[[test]]\nname = \"c\"\n";

        let found = ["a", "b", "c"].map(|name| required_features(manifest, name));

        assert_eq!(found, [None, Some("images,text".to_owned()), None]);
    }

    #[test]
    fn the_head_of_a_benchmark_says_how_it_writes_json() {
        assert_eq!(json_of("//! Times.\n//! cargo bench -- [--quick] [--json FILE]\n"), Json::File);
        assert_eq!(json_of("//! Times. With `--json`, as JSON.\n"), Json::Printed);
        assert_eq!(json_of("//! Times.\n\n// no --json\n"), Json::Never);
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
