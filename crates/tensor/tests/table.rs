//! The table of operations is complete: every public function of `src/ops`, and every one that makes tensors, has an
//! entry.
//!
//! The sources are read with `syn`. A function that a macro makes is found by the names that the macro gets, so too
//! many names may be found, but never too few.

#[path = "table/document.rs"]
mod document;

use pagelock_operations::{Operation, table};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::{ImplItem, Item, Visibility};

/// Public functions that are no operations, and why.
const NO_OPERATIONS: &[(&str, &str)] = &[
    ("is_channels_last", "answers about the layout"),
    ("equal", "answers yes or no"),
    ("allclose", "answers yes or no"),
    ("by_num", "a macro's parameter"),
    ("by_real", "a macro's parameter"),
    ("map1", "a macro's parameter"),
    ("map1_long", "a macro's parameter"),
    ("map1_longest", "a macro's parameter"),
    ("map1_except", "a macro's parameter"),
    ("recorded", "a macro's parameter"),
    ("unrecorded", "a macro's parameter"),
    ("of", "options of factories"),
    ("on", "options of factories"),
    ("new", "copies numbers of the caller"),
    ("from_slice", "copies numbers of the caller"),
    ("from_vec", "keeps numbers of the caller"),
    ("build", "is filled by the caller"),
    ("scalar", "copies a number of the caller"),
    ("fused_attention", "is none on the CPU; tests/cuda/attention.rs has it"),
    ("bias", "an option of recurrent layers"),
    ("projection", "an option of recurrent layers, composed of other operations"),
    ("reverse", "an option of recurrent layers"),
];

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn every_public_operation_is_in_the_table() {
    let listed: BTreeSet<String> = table().iter().flat_map(names).chain(exceptions()).collect();
    let found = public_functions(&[sources().join("ops"), sources().join("create.rs"), sources().join("create")]);
    assert!(found.len() > 200, "only {} functions were found: {found:?}", found.len());
    let missing: Vec<_> = found.iter().filter(|(name, _)| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "without an entry in crates/tensor/operations: {missing:#?}");
    let gone: Vec<_> = listed.iter().filter(|name| !found.contains_key(*name)).collect();
    assert!(gone.is_empty(), "listed, but no public functions: {gone:?}");
}

fn names(operation: &Operation) -> Vec<String> {
    match operation.methods {
        [] => vec![operation.name.to_owned()],
        methods => methods.iter().map(|&method| method.to_owned()).collect(),
    }
}

fn exceptions() -> impl Iterator<Item = String> {
    NO_OPERATIONS.iter().map(|&(name, _)| name.to_owned())
}

#[test]
fn a_function_without_an_entry_is_found_in_methods_and_in_macros() {
    let source = "
        impl Tensor { pub fn cosine(&self) -> Result<Tensor> { self.cos() } pub(crate) fn inner(&self) {} }
        macro_rules! unary { ($method:ident = $name:ident) => { impl Tensor { pub fn $method(&self) {} } }; }
        macro_rules! private { ($method:ident) => { fn $method() {} }; }
        unary! { /// doc
            sine = Sine, |x| x.sin(), last }
        private! { hidden }";
    let found = functions_of(&syn::parse_file(source).unwrap(), &BTreeSet::from(["unary".to_owned()]));
    assert_eq!(found, BTreeSet::from(["cosine".to_owned(), "sine".to_owned()]));
}

#[test]
fn entries_have_names_of_their_own_and_samples() {
    let table = table();
    let names: BTreeSet<_> = table.iter().map(|operation| operation.name).collect();
    assert_eq!(names.len(), table.len(), "two entries have one name");
    for operation in &table {
        let random = operation.methods.iter().any(|method| method.ends_with("_with"));
        assert!(random || !operation.samples.is_empty(), "{} has no samples", operation.name);
        assert!(
            operation.samples.iter().all(|sample| sample.args.is_object()),
            "{} has arguments without names",
            operation.name
        );
    }
}

/// Operations without large inputs for the benchmark and the test of the budget: views, which compute nothing, and
/// the running statistics of `batch_norm`, which has an entry of its own.
const NOT_LARGE: &[&str] = &[
    "batch_norm_running",
    "view",
    "flatten",
    "unflatten",
    "permute",
    "transpose",
    "t",
    "narrow",
    "slice",
    "select",
    "squeeze",
    "unsqueeze",
    "expand",
];

#[test]
fn every_operation_has_large_inputs() {
    let without: Vec<_> =
        table().iter().filter(|entry| (entry.large)(1 << 14).is_empty()).map(|entry| entry.name).collect();
    assert_eq!(without, NOT_LARGE);
}

/// Writes `target/tmp/operations.json`, which `golden/make.py` reads.
#[test]
fn the_table_is_written_for_pytorch() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("operations.json");
    let entries: Vec<_> = table().iter().map(Operation::json).collect();
    std::fs::write(&path, serde_json::to_string(&entries).unwrap()).unwrap();
    println!("{}", path.display());
}

/// The names of all public functions of tensors in these files and folders, each with its file.
pub(crate) fn public_functions(places: &[PathBuf]) -> BTreeMap<String, PathBuf> {
    let files: Vec<_> = places.iter().flat_map(|place| rust_files(place)).collect();
    let parsed: Vec<_> = files
        .iter()
        .map(|file| {
            syn::parse_file(&std::fs::read_to_string(file).unwrap())
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        })
        .collect();
    let makers: BTreeSet<String> = parsed.iter().flat_map(|file| file.items.iter().filter_map(maker)).collect();
    let named = files.iter().zip(&parsed).flat_map(|(path, file)| {
        functions_of(file, &makers).into_iter().map(|name| (name, path.clone())).collect::<Vec<_>>()
    });
    named.collect()
}

fn rust_files(place: &Path) -> Vec<PathBuf> {
    match place.is_dir() {
        false => Vec::from_iter(place.extension().filter(|end| *end == "rs").map(|_| place.to_owned())),
        true => std::fs::read_dir(place).unwrap().flat_map(|entry| rust_files(&entry.unwrap().path())).collect(),
    }
}

/// The name of a macro that makes public functions with names that it gets.
fn maker(item: &Item) -> Option<String> {
    let Item::Macro(item) = item else { return None };
    let body = item.mac.tokens.to_string();
    item.ident.as_ref().filter(|_| body.contains("pub fn $")).map(|name| name.to_string())
}

fn functions_of(file: &syn::File, makers: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for item in &file.items {
        match item {
            Item::Impl(block) if block.trait_.is_none() && is_tensor(&block.self_ty) => {
                let public = block.items.iter().filter_map(|item| match item {
                    ImplItem::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
                        Some(&function.sig.ident)
                    }
                    _ => None,
                });
                found.extend(public.map(|name| name.to_string()));
            }
            Item::Macro(call) if call.mac.path.get_ident().is_some_and(|name| makers.contains(&name.to_string())) => {
                found.extend(given_names(call.mac.tokens.clone()));
            }
            _ => {}
        }
    }
    found
}

fn is_tensor(of: &syn::Type) -> bool {
    let syn::Type::Path(path) = of else { return false };
    let types = ["Tensor", "TensorOptions", "RecurrentLayer"];
    path.path.segments.last().is_some_and(|last| types.iter().any(|name| last.ident == name))
}

/// The lowercase identifiers that a macro gets before the first closure or arrow.
fn given_names(tokens: TokenStream) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for token in tokens {
        match token {
            TokenTree::Punct(sign) if matches!(sign.as_char(), '|' | '>') && !names.is_empty() => break,
            TokenTree::Ident(name) if name.to_string().starts_with(char::is_lowercase) => {
                names.insert(name.to_string());
            }
            _ => {}
        }
    }
    names
}
