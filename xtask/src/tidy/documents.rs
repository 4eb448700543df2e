//! Rules about Markdown and folders: every package has a README, link targets exist, and the test command
//! of the README is the one that the checks run.

use super::{Complaint, TextFile, package_folders, resolve};

pub(super) fn check(files: &[TextFile]) -> Vec<Complaint> {
    let mut complaints = missing_readmes(files);
    complaints.extend(test_command_differs(files));
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        complaints.extend(dead_links(file, files));
    }
    complaints
}

/// `xtask` is exempt, since its `main.rs` has a head comment instead.
fn missing_readmes(files: &[TextFile]) -> Vec<Complaint> {
    let has = |path: &str| files.iter().any(|file| file.path == path && !file.text.is_empty());
    let folders = package_folders(files).into_iter().filter(|folder| *folder != "xtask/");
    let without = folders.filter(|folder| !has(&format!("{folder}README.md")));
    without.map(|folder| format!("{folder}Cargo.toml: the package has no README.md")).collect()
}

/// README.md has to name exactly the test command that `.ci/run` runs.
fn test_command_differs(files: &[TextFile]) -> Option<Complaint> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let command = text(".ci/run")?.lines().find(|line| line.starts_with("cargo test"))?;
    let readme = text("README.md")?;
    let is_named = readme.lines().any(|line| line.trim() == command);
    (!is_named).then(|| format!("README.md: does not name the test command of .ci/run, `{command}`"))
}

fn dead_links(file: &TextFile, files: &[TextFile]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut in_code = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let dead = link_targets(line).filter(|target| !target_exists(file, target, files));
        complaints.extend(dead.map(|target| format!("{}:{}: dead link `{target}`", file.path, index + 1)));
    }
    complaints
}

/// The targets of the links `[text](target)` in a line.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

fn target_exists(from: &TextFile, target: &str, files: &[TextFile]) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (relative, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = from.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = match relative {
        "" => Some(from.path.clone()),
        relative => resolve(folder, relative),
    };
    let Some(path) = path else { return false };
    match files.iter().find(|file| file.path == path) {
        Some(file) => heading.is_empty() || has_heading(&file.text, heading),
        None => files.iter().any(|file| file.path.starts_with(&format!("{path}/"))),
    }
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim()).any(|heading| slug(heading) == anchor)
}

/// The anchor that code hosts give a heading: lower case, spaces as hyphens, no other punctuation.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_link_to_a_missing_file_or_heading_is_reported() {
        let files = [
            file("docs/a.md", "[b](../b.md#two-words) [c](c.md)\n[d](../b.md#nothing)\n"),
            file("b.md", "# Two words!\n"),
        ];

        let expected = ["docs/a.md:1: dead link `c.md`", "docs/a.md:2: dead link `../b.md#nothing`"];
        assert_eq!(check(&files), expected);
    }

    #[test]
    fn links_to_folders_and_to_other_hosts_are_fine_and_code_has_no_links() {
        let text = "[a](crates/) [b](https://example.org/x)\n```\nlet y = f[0](x);\n```\n";
        let files = [file("a.md", text), file("crates/b.md", "")];

        assert!(check(&files).is_empty());
    }

    #[test]
    fn a_package_without_readme_is_reported() {
        let files = [file("crates/a/Cargo.toml", "[package]\n")];

        assert_eq!(check(&files), ["crates/a/Cargo.toml: the package has no README.md"]);
    }

    #[test]
    fn the_readme_must_name_the_test_command_of_the_checks() {
        let files = [file(".ci/run", "set -e\ncargo test --workspace\n"), file("README.md", "Run `cargo test`.\n")];

        let expected = "README.md: does not name the test command of .ci/run, `cargo test --workspace`";
        assert_eq!(check(&files), [expected]);
    }
}
