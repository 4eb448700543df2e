//! `cargo xtask programs`: measures how much code a user's crate compiles.
//!
//! Generic code is compiled again in every program that uses it. So three programs, the README's, a GPT and a
//! ResNet-18 (in `xtask/consumers/`), are compiled against the library that the tests have built. Their lines of LLVM
//! IR, before LLVM optimizes, must not exceed a bound ([`PROGRAMS`]). They are also run, so that they keep working.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::consumers::Libraries;
use crate::{consumers, no_more_arguments};

/// Each program, and how many lines of LLVM IR it may have.
const PROGRAMS: &[(&str, usize)] = &[("readme", 20_000), ("gpt", 32_000), ("resnet18", 36_000)];

/// How many functions a complaint names.
const NAMED: usize = 8;

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    check(sh)
}

/// Compiles and runs all programs, and then fails if one is above its bound.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    let libraries = Libraries::built_for_tests(sh)?;
    let mut complaints = Vec::new();
    for &(name, most) in PROGRAMS {
        let functions = compile_and_run(sh, name, &libraries).with_context(|| format!("the program `{name}`"))?;
        let lines: usize = functions.iter().map(|function| function.0).sum();
        println!("   {name}: {lines} lines of LLVM IR, at most {most}");
        if lines > most {
            complaints.push(complaint(name, lines, most, functions));
        }
    }
    if complaints.is_empty() { Ok(()) } else { bail!("{}", complaints.join("\n")) }
}

/// Compiles and runs the program, and returns the number of lines and the name of each function.
fn compile_and_run(sh: &Shell, name: &str, libraries: &Libraries) -> Result<Vec<(usize, String)>> {
    let root = sh.current_dir();
    let folder = sh.create_temp_dir()?;
    let there = folder.path();
    let source = match name {
        "readme" => {
            let source = there.join("readme.rs");
            sh.write_file(&source, program_in(&sh.read_file("README.md")?).context("README.md has no program")?)?;
            source
        }
        _ => root.join(format!("xtask/consumers/{name}.rs")),
    };
    sh.write_file(there.join("Cargo.toml"), consumers::manifest(&root, consumers::WHOLE))?;
    let ir = there.join("program.ll");
    let emit = format!("--emit=llvm-ir={}", ir.display());
    let options = ["-Ccodegen-units=1", "-Cno-prepopulate-passes", "-Csymbol-mangling-version=v0", &emit];
    let program = libraries.compile(sh, consumers::WHOLE, &source, there, &options.map(str::to_owned))?;
    let _there = sh.push_dir(there);
    cmd!(sh, "{program}").quiet().ignore_stdout().run()?;
    Ok(functions(&sh.read_file(ir)?))
}

/// The first block of Rust with a `main`.
fn program_in(markdown: &str) -> Option<&str> {
    let blocks = markdown.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains("fn main()"))
}

/// The number of lines and the name of each function. The name is that in the comment above, which has no hash.
fn functions(ir: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut name, mut begin) = ("", None);
    for (at, line) in ir.lines().enumerate() {
        match line.strip_prefix("; ") {
            Some(comment) if begin.is_none() && !comment.starts_with("Function Attrs") => name = comment,
            _ if line.starts_with("define ") => begin = Some(at),
            _ if line == "}" => found.extend(begin.take().map(|begin| (at + 1 - begin, name.to_owned()))),
            _ => {}
        }
    }
    found
}

fn complaint(name: &str, lines: usize, most: usize, functions: Vec<(usize, String)>) -> String {
    let mut by_name = BTreeMap::<String, usize>::new();
    for (lines, name) in functions {
        *by_name.entry(name).or_default() += lines;
    }
    let mut largest: Vec<_> = by_name.into_iter().collect();
    largest.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    let largest = largest.into_iter().take(NAMED).map(|(name, lines)| format!("\n     {lines} {name}"));
    format!(
        "the program `{name}` has {lines} lines of LLVM IR, and {most} are allowed; move code out of generic \
         functions, so that it is compiled once, in our crates. The largest functions:{}",
        largest.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const IR: &str = "\
; <user::Net as core::fmt::Debug>::fmt
; Function Attrs: nounwind
define void @a() {
start:
  ret void
}
declare void @b()
; core::ptr::drop_in_place::<user::Net>
define void @c() {
  ; a comment
  ret void
}
";

    #[test]
    fn functions_have_the_names_above_them_and_their_lines() {
        let found = functions(IR);

        let names = ["<user::Net as core::fmt::Debug>::fmt", "core::ptr::drop_in_place::<user::Net>"];
        assert_eq!(found, names.map(|name| (4, name.to_owned())));
    }

    #[test]
    fn a_complaint_names_the_largest_functions_first() {
        let functions = vec![(10, "small".to_owned()), (30, "twice".to_owned()), (20, "twice".to_owned())];

        let complaint = complaint("gpt", 60, 50, functions);

        assert!(
            complaint.starts_with("the program `gpt` has 60 lines of LLVM IR, and 50 are allowed; "),
            "{complaint}"
        );
        assert!(complaint.ends_with("The largest functions:\n     50 twice\n     10 small"), "{complaint}");
    }

    #[test]
    fn the_program_is_the_first_block_with_a_main() {
        let markdown = "```sh\ncargo run\n```\n```rust\nlet x = 1;\n```\n```rust\nfn main() {}\n```\n";

        assert_eq!(program_in(markdown), Some("fn main() {}\n"));
    }
}
