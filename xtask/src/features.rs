//! `cargo xtask features`: checks that everything is built with the same features.
//!
//! Cargo compiles a crate, and all crates above it, once for each selection of its features. The commands of this
//! project select different members. This check compares [`SELECTIONS`] with the whole workspace and names the
//! features that differ. Features that a command needs belong in `features/Cargo.toml`; the README there says why.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::no_more_arguments;

/// The packages that a command selects, and the selection whose features have to be the same.
struct Selection {
    /// The arguments of cargo.
    selects: &'static str,
    /// Whether tests, examples and benchmarks are included, which have dependencies of their own.
    with_dev: bool,
    same_as: &'static str,
}

const TESTS: &str = "--workspace";
const ALL: &str = "--workspace --all-features";

const fn dev(selects: &'static str) -> Selection {
    Selection { selects, with_dev: true, same_as: TESTS }
}

/// Examples, tests of one crate as in `test-gpu`, and the fuzz program.
const SELECTIONS: &[Selection] = &[
    dev("--package pagelock"),
    dev("--package pagelock-files"),
    dev("--package pagelock-memory"),
    dev("--package pagelock-cuda"),
    dev("--package pagelock-tensor"),
    dev("--package pagelock-linalg"),
    dev("--package pagelock-data"),
    dev("--package pagelock-nn"),
    dev("--package pagelock-board"),
    Selection { selects: "--package pagelock-fuzz --features readers", with_dev: false, same_as: ALL },
];

/// The packages with features of their own that `--all-features` enables.
const HAVE_FEATURES: [&str; 2] = ["pagelock v", "pagelock-data"];

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    check(sh)
}

/// Names each dependency of our crates that a command builds with different features.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    let (tests, all) = (packages(sh, TESTS, true)?, packages(sh, ALL, true)?);
    let mut complaints = Vec::new();
    for Selection { selects, with_dev, same_as } in SELECTIONS {
        let (these, below) = (packages(sh, selects, *with_dev)?, packages(sh, selects, false)?);
        let those = if *same_as == ALL { &all } else { &tests };
        complaints.extend(differences(&below, (selects, &these), (same_as, those)));
    }
    let mut below = packages(sh, "--package pagelock", false)?;
    below.retain(|name, _| !HAVE_FEATURES.iter().any(|package| name.starts_with(package)));
    complaints.extend(differences(&below, (ALL, &all), (TESTS, &tests)));
    match complaints.is_empty() {
        true => Ok(()),
        false => {
            bail!("members are built twice; add these features to features/Cargo.toml: {}", complaints.join("; "))
        }
    }
}

/// Packages, each with its sets of features: more than one set if build scripts, macros or tests need other features.
type Packages = BTreeMap<String, BTreeSet<String>>;

/// The packages that cargo would build.
fn packages(sh: &Shell, selects: &str, with_dev: bool) -> Result<Packages> {
    let edges = if with_dev { "normal,build,dev" } else { "normal,build" };
    let selects = selects.split(' ');
    let tree = cmd!(sh, "cargo tree {selects...} --edges {edges} --prefix none --format {PACKAGE}");
    Ok(parse(&tree.quiet().read()?))
}

/// The format of `cargo tree`: name and version, then features.
const PACKAGE: &str = "{p}|{f}";

fn parse(tree: &str) -> Packages {
    let mut packages = Packages::new();
    for (package, features) in tree.lines().filter_map(|line| line.split_once('|')) {
        let features = features.trim_end_matches(" (*)"); // marks a package that was listed before
        let name_and_version: Vec<&str> = package.split(' ').take(2).collect();
        packages.entry(name_and_version.join(" ")).or_default().insert(features.to_owned());
    }
    packages
}

/// The packages in `below` that `these` and `those` both have, but with no set of features in common.
fn differences(below: &Packages, these: (&str, &Packages), those: (&str, &Packages)) -> Vec<String> {
    let mut differences = Vec::new();
    for (package, features) in these.1.iter().filter(|(package, _)| below.contains_key(*package)) {
        let Some(others) = those.1.get(package).filter(|others| others.is_disjoint(features)) else { continue };
        let [here, there] = [features, others].map(|all| names(all.first().map_or("", |first| first)));
        let differing: Vec<_> = here.symmetric_difference(&there).copied().collect();
        let differing = differing.join(", ");
        differences.push(format!("`{package}`: only one of `{}` and `{}` enables {differing}", these.0, those.0));
    }
    differences
}

fn names(features: &str) -> BTreeSet<&str> {
    features.split(',').filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_only_one_command_switches_on_is_named() {
        let tests = parse("a v1.0.0|default,std\nb v2.0.0 (/b)|\na v1.0.0|default,std (*)\n");
        let alone = parse("a v1.0.0|default\nb v2.0.0 (/b)|\n");

        let found = differences(&tests, ("-p b", &alone), ("--workspace", &tests));

        assert_eq!(found, ["`a v1.0.0`: only one of `-p b` and `--workspace` enables std"]);
    }

    #[test]
    fn what_is_not_below_our_crates_and_what_a_command_does_not_build_may_differ() {
        let ours = parse("a v1.0.0|std\nb v2.0.0|x\n");
        let alone = parse("a v1.0.0|std\nc v3.0.0|y\n");
        let tests = parse("a v1.0.0|std\nb v2.0.0|x\nc v3.0.0|\n");

        assert_eq!(differences(&ours, ("-p a", &alone), ("--workspace", &tests)), Vec::<String>::new());
    }
}
