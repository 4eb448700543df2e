//! Rule: the head comment of a crate's `lib.rs` names every file of that crate that contains `unsafe`.
//!
//! The list tells an auditor where to look, and a new entry is a visible line in the diff.

use super::code::code_only;
use super::{Complaint, TextFile, package_folders};

pub(super) fn check(files: &[TextFile]) -> Vec<Complaint> {
    let folders = package_folders(files);
    folders.into_iter().flat_map(|folder| check_package(files, folder)).collect()
}

fn check_package(files: &[TextFile], folder: &str) -> Vec<Complaint> {
    let sources = format!("{folder}src/");
    let head = files
        .iter()
        .find(|file| file.path.strip_prefix(&sources).is_some_and(|name| matches!(name, "lib.rs" | "main.rs")));
    let Some(head) = head else { return Vec::new() };
    let listed = head_comment(&head.text);
    let of_package = files.iter().filter_map(|file| Some((file, file.path.strip_prefix(&sources)?)));
    let unlisted = of_package.filter(|(file, name)| {
        name.ends_with(".rs") && has_unsafe(&file.text) && !listed.contains(&format!("`{name}`"))
    });
    let complain = |(file, name): (&TextFile, &str)| {
        format!("{}: contains `unsafe`; list it as `{name}` in the head comment of {}", file.path, head.path)
    };
    unlisted.map(complain).collect()
}

/// The comments at the top of a file: the docs for users, and any comments for readers of the code after them.
fn head_comment(text: &str) -> String {
    text.lines().take_while(|line| line.is_empty() || line.starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Whether the keyword stands in the code of `text`.
fn has_unsafe(text: &str) -> bool {
    let code = code_only(text);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !is_word(c)).any(|word| word == "unsafe")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(lib: &str) -> Vec<TextFile> {
        let files = [
            ("crates/a/Cargo.toml", "[package]"),
            ("crates/a/src/lib.rs", lib),
            ("crates/a/src/pool/free.rs", "//! A.\nfn f() { unsafe { g() } }\n"),
        ];
        let text_file = |(path, text): (&str, &str)| TextFile { path: path.to_owned(), text: text.to_owned() };
        files.into_iter().map(text_file).collect()
    }

    #[test]
    fn an_unlisted_file_with_unsafe_is_reported() {
        let complaints = check(&package("//! A crate.\n"));

        assert_eq!(
            complaints,
            ["crates/a/src/pool/free.rs: contains `unsafe`; list it as `pool/free.rs` in the head comment of \
              crates/a/src/lib.rs"]
        );
    }

    #[test]
    fn a_listed_file_with_unsafe_is_fine() {
        assert!(check(&package("//! Unsafe code: `pool/free.rs`.\n")).is_empty());
    }

    #[test]
    fn the_word_in_a_comment_or_a_lint_name_is_not_unsafe_code() {
        assert!(!has_unsafe("#![deny(unsafe_op_in_unsafe_fn)]\n// unsafe\n"));
    }
}
