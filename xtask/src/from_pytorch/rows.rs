//! Reads `names.txt` and `rows.txt`.

use super::{NAMES, ROWS};
use crate::tidy::Complaint;

/// A section of PyTorch's names, and its rows.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// A line of `rows.txt`.
pub(super) struct Row {
    pub(super) line: usize,
    pub(super) names: Vec<String>,
    pub(super) entry: Entry,
}

/// What a row says about its names.
pub(super) enum Entry {
    Equivalent { torch: String, here: String, note: String },
    Missing { why: String },
}

/// The sections in the order of `names`, and complaints about lines that cannot be read.
pub(super) fn sections(names: &str, rows: &str) -> (Vec<Section>, Vec<Complaint>) {
    let (mut sections, mut complaints) = (Vec::<Section>::new(), Vec::new());
    for (_, line) in lines(names) {
        match (title(line), sections.last_mut()) {
            (Some(title), _) => sections.push(Section { title: title.to_owned(), names: Vec::new(), rows: Vec::new() }),
            (None, Some(section)) => section.names.push(line.to_owned()),
            (None, None) => complaints.push(format!("{NAMES}: `{line}` is before the first section")),
        }
    }
    let mut current = None;
    for (number, line) in lines(rows) {
        if let Some(title) = title(line) {
            current = sections.iter().position(|section| section.title == title);
            if current.is_none() {
                complaints.push(format!("{ROWS}:{number}: {NAMES} has no section `{title}`"));
            }
            continue;
        }
        match (row(number, line), current) {
            (Some(row), Some(section)) => sections[section].rows.push(row),
            _ => complaints.push(format!(
                "{ROWS}:{number}: is not a row; write `NAMES : PYTORCH | HERE | NOTE` or `not NAMES : WHY`"
            )),
        }
    }
    (sections, complaints)
}

/// The lines that are neither empty nor comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn title(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.strip_suffix(']')
}

fn row(line: usize, text: &str) -> Option<Row> {
    let (names, rest) = text.split_once(" : ").or_else(|| Some((text.strip_suffix(" :")?, "")))?;
    let (names, entry) = match names.strip_prefix("not ") {
        Some(names) => (names, Entry::Missing { why: rest.to_owned() }),
        None => {
            let [torch, here, note] = cells(rest)?;
            (names, Entry::Equivalent { torch, here, note })
        }
    };
    Some(Row { line, names: names.split_whitespace().map(str::to_owned).collect(), entry })
}

/// Three cells, separated by `|`; `\|` is a literal `|`, as in Markdown.
fn cells(text: &str) -> Option<[String; 3]> {
    let escaped = text.replace("\\|", "\0");
    let cells: Vec<String> = escaped.split('|').map(|cell| cell.trim().replace('\0', "\\|")).collect();
    cells.try_into().ok()
}
