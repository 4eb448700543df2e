//! `docs/operations.md` lists what the table of operations says.
//!
//! After a change of the table, run `PAGELOCK_WRITE_DOCS=1 cargo test -p pagelock-tensor --test table`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use pagelock_operations::{Derivative, Operation, factories, in_place, table, why_of_few_bits};
use pagelock_tensor::{DType, Device};

use crate::names;

const HEAD: &str = "# Operations

<!-- Made by the test `the_document_is_what_the_table_says` of pagelock-tensor; CONTRIBUTING.md says how to regenerate it. -->

Every operation of tensors in the table of operations (`crates/tensor/operations`), by PyTorch's name, and what the tests compare
in each run. All run on the CPU and on GPUs, and the results of both are compared. [Modules](modules.md) have a table of their own.

- **types**: the precisions that it takes: floats are `f16`, `bf16`, `f32` and `f64`, integers `u8`, `i32` and `i64`.
- **gradient** and **second gradient**: compared with central differences and with PyTorch's.
- **golden**: how many calls are compared with PyTorch's results, each in several precisions.
- **special**: how many of them have NaN, infinities, signed zeros, subnormal, largest and smallest numbers.

| operation | methods | types | gradient | second gradient | golden | special |
|---|---|---|---|---|---|---|
";

/// Operations whose results are floats without a gradient, and why.
const NO_GRADIENT: &[(&str, &str)] = &[
    ("to_float", "no: integers and truth values have none"),
    ("scaled", "no: integers have none"),
    ("floor_divide", "no: the result changes in steps"),
    ("floor_divide_scalar", "no: the result changes in steps"),
    ("heaviside", "no: the result changes in steps"),
    ("put_", "no: changes in place are not recorded"),
    ("fill_diagonal_", "no: changes in place are not recorded"),
    ("unique_consecutive", "no: PyTorch has none, either"),
    ("unique", "no: PyTorch has none, either"),
    ("histc", "no: the result is a count"),
    ("batch_norm_running", "no: statistics are not recorded"),
];

/// Operations of floats without special numbers, and why.
const NO_SPECIAL: &[(&str, &str)] = &[
    ("dropout", "random numbers: `tests/random.rs`"),
    ("histc", "bounds are finite numbers"),
    ("to_float", "integers and truth values have none"),
];

#[test]
fn the_document_is_what_the_table_says() {
    let rows: Vec<Result<String, String>> = table().iter().map(row).collect();
    let without: Vec<&String> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
    assert!(without.is_empty(), "cells without a reason in {}: {without:#?}", file!());
    let document = HEAD.to_owned() + &rows.into_iter().flatten().collect::<String>();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    if std::env::var_os("PAGELOCK_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == document, "docs/operations.md is not what the table says; run this with PAGELOCK_WRITE_DOCS=1");
}

fn row(operation: &Operation) -> Result<String, String> {
    let methods: Vec<String> = names(operation).iter().map(|name| format!("`{name}`")).collect();
    let [first, second] = gradients(operation)?;
    let mut row = String::new();
    let _ = writeln!(
        row,
        "| `{}` | {} | {} | {first} | {second} | {} | {} |",
        operation.name,
        methods.join(", "),
        types(operation),
        golden(operation),
        special(operation)?,
    );
    Ok(row)
}

fn types(operation: &Operation) -> String {
    let run = &operation.run;
    let kinds = [(run.float.is_some(), "floats"), (run.int.is_some(), "integers"), (run.bool.is_some(), "bool")];
    kinds.iter().filter(|(takes, _)| *takes).map(|(_, kind)| *kind).collect::<Vec<_>>().join(", ")
}

fn gradients(operation: &Operation) -> Result<[String; 2], String> {
    if operation.derivative == Derivative::Twice && operation.run.float.is_some() {
        return Ok(["yes", "yes"].map(str::to_owned));
    }
    let why = match (reason(NO_GRADIENT, operation), is_of(in_place::entries(), operation)) {
        (Some(why), _) => why.to_owned(),
        (_, true) => "no: changes in place are not recorded".to_owned(),
        _ if is_of(factories::entries(), operation) => "no: it makes a tensor".to_owned(),
        _ => match result_dtype(operation) {
            Some(dtype) if dtype.is_float() => return Err(format!("{}: gradient", operation.name)),
            Some(dtype) => format!("no: the result is {}", dtype.kind_name()),
            None => return Err(format!("{}: gradient, and no sample", operation.name)),
        },
    };
    Ok([why.clone(), why])
}

fn is_of(entries: Vec<Operation>, operation: &Operation) -> bool {
    entries.iter().any(|entry| entry.name == operation.name)
}

fn reason(of: &[(&'static str, &'static str)], operation: &Operation) -> Option<&'static str> {
    of.iter().find(|(name, _)| *name == operation.name).map(|(_, why)| *why)
}

/// The precision of the first sample's result.
fn result_dtype(operation: &Operation) -> Option<DType> {
    let sample = operation.samples.first()?;
    let dtype = operation.dtypes_of(sample).first().copied()?;
    let inputs = sample.make(dtype, &Device::Cpu).ok()?;
    Some(operation.call(&inputs, &sample.args).ok()?.dtype())
}

fn golden(operation: &Operation) -> String {
    match operation.samples.len() {
        0 => "random numbers: `tests/random.rs`".to_owned(),
        n => n.to_string(),
    }
}

fn special(operation: &Operation) -> Result<String, String> {
    match ((operation.special)(DType::F32).len(), reason(NO_SPECIAL, operation)) {
        (0, Some(why)) => Ok(why.to_owned()),
        (0, None) if operation.run.float.is_none() => Ok("no floats".to_owned()),
        (0, None) if is_of(factories::entries(), operation) => Ok("no inputs".to_owned()),
        (0, None) => Err(format!("{}: special", operation.name)),
        (n, _) => Ok(why_of_few_bits(operation.name).map_or(n.to_string(), |why| format!("{n}, {why}"))),
    }
}

#[test]
fn every_reason_is_one_of_an_operation() {
    let operations: BTreeSet<&str> = table().iter().map(|operation| operation.name).collect();
    let reasons = NO_GRADIENT.iter().chain(NO_SPECIAL).map(|(name, _)| *name);
    assert_eq!(reasons.filter(|name| !operations.contains(name)).collect::<Vec<_>>(), Vec::<&str>::new());
}
