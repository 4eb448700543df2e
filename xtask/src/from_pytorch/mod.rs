//! `cargo xtask from-pytorch`: writes `docs/from-pytorch.md`, which lists PyTorch's names and their equivalents.
//!
//! `docs/pytorch/names.txt` has PyTorch's names by section. `docs/pytorch/rows.txt` says how they are written in
//! Pagelock, or why Pagelock does not have them. A name without a line there has to be a public name of Pagelock
//! (`ours.rs` finds those in the sources). `cargo xtask tidy` reports names that are in neither, rows with names of
//! Pagelock that do not exist, and a document that differs from what this command writes.

mod ours;
mod rows;

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Result, bail};
use lexopt::Parser;
use xshell::Shell;

use self::ours::Ours;
use self::rows::{Entry, Row, Section, sections};
use crate::no_more_arguments;
use crate::tidy::{Complaint, TextFile, text_files};

const DOCUMENT: &str = "docs/from-pytorch.md";
const NAMES: &str = "docs/pytorch/names.txt";
const ROWS: &str = "docs/pytorch/rows.txt";

const HEAD: &str = "# From PyTorch

<!-- Made by `cargo xtask from-pytorch` from docs/pytorch/names.txt and docs/pytorch/rows.txt. -->

This page lists the public names of the sections of PyTorch below, and their equivalents here. `?` is left out of fallible calls.
Arguments with defaults in Python are passed explicitly, or set by a method of the same name: `Dropout::new(0.5)`,
`Sgd::new(parameters, 0.1).momentum(0.9)`. Methods that change a tensor in place end in `_`, as in PyTorch (`add_`, `mul_`, `clamp_`).
They are never recorded, so they need `no_grad` if the tensor requires a gradient. For an operation without such a method, use `x.copy_(&y)`.
Tensors, modules and data have error types of their own; a `main` that returns `anyhow::Result<()>` takes all of them with `?`.
`copy.deepcopy(model.state_dict())` is `model.state_dict().deep_clone()`.
";

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    let (document, complaints) = made(&text_files(sh)?);
    sh.write_file(DOCUMENT, document)?;
    println!("{DOCUMENT} is written");
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    match complaints.len() {
        0 => Ok(()),
        n => bail!("from-pytorch has {n} complaint(s), listed above"),
    }
}

/// Complaints about the document and the two files that it is made from.
pub(crate) fn check(files: &[TextFile]) -> Vec<Complaint> {
    if text_of(files, NAMES).is_empty() {
        return Vec::new();
    }
    let (document, mut complaints) = made(files);
    if document != text_of(files, DOCUMENT) {
        complaints.push(format!("{DOCUMENT}: is out of date; run `cargo xtask from-pytorch`"));
    }
    complaints
}

fn text_of<'a>(files: &'a [TextFile], path: &str) -> &'a str {
    files.iter().find(|file| file.path == path).map_or("", |file| &file.text)
}

/// Makes the document, and complaints about the two files that it is made from.
fn made(files: &[TextFile]) -> (String, Vec<Complaint>) {
    let ours = Ours::new(files);
    let (sections, mut complaints) = sections(text_of(files, NAMES), text_of(files, ROWS));
    let mut document = HEAD.to_owned();
    for section in &sections {
        complaints.extend(check_section(section, &ours));
        write_section(&mut document, section, &ours);
    }
    (document, complaints)
}

fn check_section(section: &Section, ours: &Ours) -> Vec<Complaint> {
    let (title, mut complaints, mut seen) = (&section.title, Vec::new(), BTreeSet::new());
    for Row { line, names, entry } in &section.rows {
        for name in names {
            if !section.names.contains(name) {
                complaints.push(format!("{ROWS}:{line}: `{name}` is not a name of {title}; remove it"));
            }
            if !seen.insert(name) {
                complaints.push(format!("{ROWS}:{line}: `{name}` is also in another row; remove it from one of them"));
            }
        }
        if let Entry::Equivalent { here, note, .. } = entry {
            let code = note.split('`').skip(1).step_by(2).chain([here.as_str()]);
            let missing = code.flat_map(ours::called).filter(|name| !ours.has(name));
            let complain = |name| format!("{ROWS}:{line}: `{name}` is not a public name of Pagelock; correct the row");
            complaints.extend(missing.map(complain));
        }
    }
    let without = section.names.iter().filter(|name| !seen.contains(name) && !ours.has_in(title, name));
    let complain = |name| format!("{ROWS}: `{name}` of {title} is not in Pagelock and has no row; add one");
    complaints.extend(without.map(complain));
    complaints
}

fn write_section(document: &mut String, section: &Section, ours: &Ours) {
    let is_same = |name: &str| ours.has_in(&section.title, name);
    let mut written = BTreeSet::new();
    let (mut rows, mut absent) = (String::new(), String::new());
    for Row { names, entry, .. } in &section.rows {
        match entry {
            Entry::Equivalent { torch, here, note } => {
                written.extend(names);
                let _ = writeln!(rows, "| {} | {} | {note} |", torch_cell(names, torch), code_cell(here));
            }
            Entry::Missing { why } => {
                let gone: Vec<&String> = names.iter().filter(|name| !is_same(name)).collect();
                if !gone.is_empty() {
                    let _ = writeln!(absent, "| {} | {why} |", code_list(gone));
                }
            }
        }
    }
    let same = section.names.iter().filter(|name| !written.contains(name) && is_same(name));
    let same = code_list(same.collect());
    let _ = write!(document, "\n## {}\n", section.title);
    if !rows.is_empty() {
        let _ = write!(document, "\n| PyTorch | here | |\n|---|---|---|\n{rows}");
    }
    if !same.is_empty() {
        let _ = write!(document, "\nThe same name: {same}.\n");
    }
    if !absent.is_empty() {
        let _ = write!(document, "\n| not here | |\n|---|---|\n{absent}");
    }
}

/// PyTorch's code, and those of `names` that do not occur in it.
fn torch_cell(names: &[String], torch: &str) -> String {
    let shown: BTreeSet<&str> = torch.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let others: Vec<&String> = names.iter().filter(|name| !shown.contains(name.as_str())).collect();
    match (torch.is_empty(), others.is_empty()) {
        (true, _) => code_list(others),
        (false, true) => code_cell(torch),
        (false, false) => format!("{} ({})", code_cell(torch), code_list(others)),
    }
}

fn code_list(names: Vec<&String>) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn code_cell(code: &str) -> String {
    if code.is_empty() { String::new() } else { format!("`{code}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &str, rows: &str) -> Vec<TextFile> {
        let ours = "pub fn exp(&self) {}\npub fn sum(&self) {}\n";
        let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        vec![file(NAMES, names), file(ROWS, rows), file("crates/tensor/src/ops/all.rs", ours)]
    }

    #[test]
    fn a_name_is_the_same_or_written_otherwise_or_absent_for_a_reason() {
        let names = "# head\n\n[torch and torch.Tensor]\nexp\nsum\nadded\nfft\n";
        let rows = "[torch and torch.Tensor]\nsum : x.sum() | x.sum(..) | all\nnot fft : why\nnot added : old\n";
        let (document, complaints) = made(&files(names, rows));
        assert!(complaints.is_empty(), "{complaints:?}");
        let section = document.split_once("## ").unwrap().1;
        assert_eq!(
            section,
            "torch and torch.Tensor\n\n| PyTorch | here | |\n|---|---|---|\n| `x.sum()` | `x.sum(..)` | all |\n\nThe same name: \
             `exp`.\n\n| not here | |\n|---|---|\n| `fft` | why |\n| `added` | old |\n"
        );
    }

    #[test]
    fn a_reason_for_a_name_that_has_come_is_passed_over() {
        let names = "[torch and torch.Tensor]\nexp\n";
        let (document, complaints) = made(&files(names, "[torch and torch.Tensor]\nnot exp : not there yet\n"));
        assert!(complaints.is_empty() && document.ends_with("\n\nThe same name: `exp`.\n"), "{document}");
    }

    #[test]
    fn names_without_a_place_and_rows_that_are_wrong_are_reported() {
        let names = "[torch and torch.Tensor]\nexp\nsin\n";
        let rows = "[torch and torch.Tensor]\nexp exp cos : | x.expo(Tensor::sum) |\n";
        let (_, complaints) = made(&files(names, rows));
        assert_eq!(
            complaints,
            [
                "docs/pytorch/rows.txt:2: `exp` is also in another row; remove it from one of them",
                "docs/pytorch/rows.txt:2: `cos` is not a name of torch and torch.Tensor; remove it",
                "docs/pytorch/rows.txt:2: `Tensor` is not a public name of Pagelock; correct the row",
                "docs/pytorch/rows.txt:2: `expo` is not a public name of Pagelock; correct the row",
                "docs/pytorch/rows.txt: `sin` of torch and torch.Tensor is not in Pagelock and has no row; add one",
            ]
        );
    }
}
