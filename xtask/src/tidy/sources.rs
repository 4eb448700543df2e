//! Rules about one source file at a time: size, head comment, leftovers, paths of one machine.

use super::code::code_only;
use super::{Complaint, TextFile};

/// A file with more lines than this has to be split by concept.
const MAX_LINES: usize = 600;

/// Texts that a finished change must not contain. Only code is searched: strings, as here, and comments may contain
/// them.
const LEFTOVERS: &[(&str, &str)] = &[
    ("todo!", "finish it, or return an error"),
    ("unimplemented!", "finish it, or return an error"),
    ("dbg!", "remove it"),
    ("#[ignore", "fix or remove the test; a test that needs hardware prints why it was skipped"),
];

/// First folders of absolute paths that exist on one machine only.
const MACHINE_FOLDERS: &[&str] = &["home", "root", "tmp", "work", "Users"];

pub(super) fn check(files: &[TextFile]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in files {
        if file.path.ends_with(".rs") {
            complaints.extend(too_long(file));
            complaints.extend(no_head_comment(file));
            complaints.extend(leftovers(file));
        }
        if !may_name_machine_paths(&file.path) {
            complaints.extend(machine_paths(file));
        }
    }
    complaints
}

fn too_long(file: &TextFile) -> Option<Complaint> {
    let n_lines = file.text.lines().count();
    let path = &file.path;
    (n_lines > MAX_LINES).then(|| format!("{path}: {n_lines} lines, the most is {MAX_LINES}; split it by concept"))
}

/// Sources, examples and benchmarks open with `//!`: what the file is, what it promises, where to go next.
fn no_head_comment(file: &TextFile) -> Option<Complaint> {
    let path = &file.path;
    let has_reader = ["src/", "examples/", "benches/"].iter().any(|folder| path.contains(folder));
    let opens = file.text.starts_with("//!") || file.text.starts_with("#![doc");
    (has_reader && !opens).then(|| format!("{path}:1: open the file with a `//!` comment that says what it is"))
}

fn leftovers(file: &TextFile) -> Vec<Complaint> {
    let code = code_only(&file.text);
    let mut complaints = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for (leftover, advice) in LEFTOVERS {
            if line.contains(leftover) {
                complaints.push(format!("{}:{}: `{leftover}`: {advice}", file.path, index + 1));
            }
        }
    }
    complaints
}

/// Tests may need such a path, for example to show that it is refused.
fn may_name_machine_paths(path: &str) -> bool {
    path.contains("tests/") || path.ends_with(".lock")
}

fn machine_paths(file: &TextFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_root_folder(line, folder)) {
            complaints.push(format!(
                "{}:{}: a path below `{folder}` exists on one machine only; make it relative or an option",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

/// Whether `line` has `/folder/` with nothing before it that would make it part of a longer path.
fn names_root_folder(line: &str, folder: &str) -> bool {
    let absolute = format!("/{folder}/");
    line.match_indices(&absolute).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_.-/}~*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_leftover_in_code_is_reported_with_its_line() {
        let complaints = check(&[file("src/a.rs", "//! A.\nfn f() {\n    todo!()\n}\n")]);

        assert_eq!(complaints, ["src/a.rs:3: `todo!`: finish it, or return an error"]);
    }

    #[test]
    fn a_leftover_in_a_comment_or_string_is_not_code() {
        let complaints = check(&[file("src/a.rs", "//! No dbg! here.\nconst A: &str = \"#[ignore]\";\n")]);

        assert!(complaints.is_empty(), "{complaints:?}");
    }

    #[test]
    fn a_file_over_the_limit_is_reported_with_its_length() {
        let text = format!("//! A.\n{}", "\n".repeat(600));

        let complaints = check(&[file("src/a.rs", &text)]);

        assert_eq!(complaints, ["src/a.rs: 601 lines, the most is 600; split it by concept"]);
    }

    #[test]
    fn a_source_without_a_head_comment_is_reported_but_a_test_is_not() {
        let files = [file("src/a.rs", "fn f() {}\n"), file("tests/a.rs", "fn f() {}\n")];

        assert_eq!(check(&files), ["src/a.rs:1: open the file with a `//!` comment that says what it is"]);
    }

    #[test]
    fn a_path_of_one_machine_is_reported_but_not_the_end_of_a_longer_path() {
        let absolute = ["", "home", "me", "mnist"].join("/");
        let files = [file("a.md", &format!("see {absolute}\n")), file("b.md", &format!("see docs{absolute}\n"))];

        let expected = "a.md:1: a path below `home` exists on one machine only; make it relative or an option";
        assert_eq!(check(&files), [expected]);
    }
}
