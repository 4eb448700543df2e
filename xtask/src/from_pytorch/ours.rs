//! The public names of the workspace, read from the sources.
//!
//! A name is one that follows `pub fn`, `pub struct` and so on, a function of a public trait, a variant of an enum,
//! or an argument of a macro that makes public functions or types. The search may find names that are not public, but
//! misses no public one.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::TextFile;

/// The files in which the names of each section of PyTorch are searched.
const PLACES: &[(&str, &[&str])] = &[
    ("torch and torch.Tensor", TENSOR),
    ("torch.linalg", &["crates/linalg/src/", "crates/tensor/src/ops/"]),
    ("torch.special", TENSOR),
    ("torch.fft", TENSOR),
    (
        "torch.nn",
        &["crates/nn/src/layers/", "crates/nn/src/loss/", "crates/nn/src/parameter.rs", "crates/nn/src/module.rs"],
    ),
    ("torch.nn.Module", &["crates/nn/src/module.rs"]),
    ("torch.nn.functional", &["crates/nn/src/functional/"]),
    ("torch.nn.init", &["crates/nn/src/init/"]),
    ("torch.nn.utils", &["crates/nn/src/"]),
    ("torch.optim", &["crates/nn/src/optim/"]),
    ("torch.optim.lr_scheduler", &["crates/nn/src/optim/lr_scheduler/"]),
    ("torch.optim.swa_utils", &["crates/nn/src/optim/"]),
    ("torch.utils.data", &["crates/data/src/"]),
    ("torchvision.transforms.v2", &["crates/data/src/transforms"]),
    ("torch.func", &["crates/tensor/src/func/", "crates/nn/src/functional_call.rs"]),
    ("torch.autograd", &["crates/tensor/src/autograd/"]),
    ("torch.cuda", &["crates/cuda/src/"]),
    ("torch.amp", &["crates/tensor/src/autocast.rs", "crates/nn/src/optim/scaler.rs"]),
    ("torch.profiler", &["crates/tensor/src/profiler/"]),
    ("torch.utils.tensorboard.SummaryWriter", &["crates/board/src/"]),
];

const TENSOR: &[&str] = &[
    "crates/tensor/src/ops/",
    "crates/tensor/src/create",
    "crates/tensor/src/tensor.rs",
    "crates/tensor/src/autograd/tensor.rs",
    "crates/tensor/src/autograd/mode.rs",
    "crates/tensor/src/transfer/",
    "crates/tensor/src/random.rs",
];

/// Names that the search finds in the files of tensors, although no tensor has a method of that name: a field, and
/// variables in the arguments of macros.
const NOT_METHODS: &[&str] = &["angle", "gradient", "values"];

/// Names of the standard library, and names that examples define themselves.
const NOT_OURS: &[&str] = &["Mine", "Net", "None", "Ok", "Self", "Some", "Vec", "derive", "describe", "starts_with"];

pub(super) struct Ours {
    by_file: BTreeMap<String, BTreeSet<String>>,
    all: BTreeSet<String>,
}

impl Ours {
    pub(super) fn new(files: &[TextFile]) -> Ours {
        let is_source = |file: &&TextFile| {
            file.path.ends_with(".rs") && file.path.starts_with("crates/") && file.path.contains("/src/")
        };
        let sources: Vec<&TextFile> = files.iter().filter(is_source).collect();
        let makers = makers(sources.iter().flat_map(|file| macros(&file.text)).collect());
        let by_file: BTreeMap<String, BTreeSet<String>> =
            sources.iter().map(|file| (file.path.clone(), names(&file.text, &makers))).collect();
        let all = by_file.values().flatten().cloned().collect();
        Ours { by_file, all }
    }

    /// Whether the name exists in any file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains(name)
    }

    /// Whether the name exists in the files of a section.
    pub(super) fn has_in(&self, section: &str, name: &str) -> bool {
        let places = PLACES.iter().find(|(title, _)| *title == section).map_or(&[][..], |(_, places)| places);
        if places == TENSOR && NOT_METHODS.contains(&name) {
            return false;
        }
        let is_there = |path: &String| places.iter().any(|place| path.starts_with(place));
        self.by_file.iter().any(|(path, names)| is_there(path) && names.contains(name))
    }
}

/// The names of functions, types and constants in code, without modules, macros and variables.
pub(super) fn called(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (start, name) in words(code) {
        let (before, after) = (&code[..start], &code[start + name.len()..]);
        let is_called = after.starts_with('(') || after.starts_with("::<");
        let is_type = name.starts_with(char::is_uppercase);
        let is_path = before.ends_with("::") && !after.starts_with("::");
        if (is_called || is_type || is_path)
            && !before.ends_with("f32::")
            && !before.ends_with("f64::")
            && !NOT_OURS.contains(&name)
        {
            found.insert(name);
        }
    }
    found
}

/// The macros of a text: names and bodies.
fn macros(text: &str) -> Vec<(&str, &str)> {
    let rest_of = |(start, word): (usize, &str)| &text[start + word.len()..];
    let rests = text.match_indices("macro_rules! ").map(rest_of);
    let body = |rest| -> Option<(&str, &str)> {
        let rest: &str = rest;
        Some((words(rest).next()?.1, &rest[..rest.find("\n}").unwrap_or(rest.len())]))
    };
    rests.filter_map(body).collect()
}

/// The macros that make public functions or types with names from their arguments, also through each other.
fn makers<'a>(all: Vec<(&'a str, &'a str)>) -> BTreeSet<&'a str> {
    let is_direct = |body: &str| ["pub fn $", "pub struct $", "pub enum $"].iter().any(|made| body.contains(made));
    let mut found: BTreeSet<&str> = all.iter().filter(|(_, body)| is_direct(body)).map(|(name, _)| *name).collect();
    loop {
        let calls = |body: &str| found.iter().any(|maker| body.contains(&format!("{maker}! {{ $")));
        let more: Vec<&str> =
            all.iter().filter(|(name, body)| !found.contains(name) && calls(body)).map(|(name, _)| *name).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

fn names(text: &str, makers: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = Block::Other;
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        if !line.starts_with([' ', '}', ')', ']']) && !line.is_empty() {
            inside = Block::begun_by(line, makers);
        }
        let words: Vec<&str> = words(line).map(|(_, word)| word).collect();
        let name = match (&words[..], &inside) {
            (["pub", rest @ ..], _) => rest.iter().find(|word| !KEYWORDS.contains(word)),
            (["fn", name, ..] | ["const", "fn", name, ..], Block::Trait) => Some(name),
            ([name, ..], Block::Enum) if line.starts_with("    ") && !line.starts_with("     ") => Some(name),
            (given, Block::Maker) => {
                let until = line.find(['|', '>']).unwrap_or(line.len());
                found.extend(self::words(&line[..until]).map(|(_, name)| name.to_owned()).take(given.len()));
                None
            }
            _ => None,
        };
        found.extend(name.map(|name| (*name).to_owned()));
    }
    found
}

const KEYWORDS: &[&str] =
    &["fn", "struct", "enum", "trait", "mod", "const", "static", "type", "unsafe", "async", "use", "union"];

/// The kind of item at the outermost level of a file that a line belongs to.
enum Block {
    Trait,
    Enum,
    Maker,
    Other,
}

impl Block {
    fn begun_by(line: &str, makers: &BTreeSet<&str>) -> Block {
        let mut words = words(line).map(|(_, word)| word);
        match (words.next(), words.next()) {
            (Some("pub"), Some("trait")) => Block::Trait,
            (Some("pub"), Some("enum")) => Block::Enum,
            (Some(name), _) if makers.contains(name) && line[name.len()..].starts_with('!') => Block::Maker,
            _ => Block::Other,
        }
    }
}

/// The identifiers in a text, with their offsets.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let starts = text.char_indices().filter(move |&(at, c)| is_part(c) && !text[..at].ends_with(is_part));
    starts.filter(|(_, c)| !c.is_ascii_digit()).map(move |(at, _)| {
        let rest = &text[at..];
        (at, &rest[..rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_names_are_found_however_they_are_made() {
        let source = "
pub struct Sgd { pub lr: f64 }
pub enum Mode {
    /// A doc.
    Reflect,
}
pub trait Module {
    fn train(&self);
}
impl Sgd {
    pub const fn momentum(self) {}
    fn hidden() {}
}
macro_rules! unary { ($name:ident) => { impl Tensor { pub fn $name(&self) {} } }
}
unary! { sine = Sine, |x| x.sin(), last }
other! { thing }
";
        let makers = makers(macros(source));
        let found = names(source, &makers);
        for name in ["Sgd", "Mode", "Reflect", "Module", "train", "momentum", "sine"] {
            assert!(found.contains(name), "{name} is missing in {found:?}");
        }
        for name in ["hidden", "last", "thing", "sin"] {
            assert!(!found.contains(name), "{name} is in {found:?}");
        }
    }

    #[test]
    fn names_that_code_calls_are_told_from_variables_and_macros() {
        let code = "no_grad(|| x.copy_(&y)), x.item::<f32>(), Tensor::on(&d).of(t), DType::F64, f32::MAX, batch, format!(\"{x}\")";
        let found: Vec<&str> = called(code).into_iter().collect();
        assert_eq!(found, ["DType", "F64", "Tensor", "copy_", "item", "no_grad", "of", "on"]);
    }
}
