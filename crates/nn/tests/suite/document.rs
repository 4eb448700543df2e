//! `docs/modules.md` lists what the golden cases of modules compare.
//!
//! After a change of `layers.rs`, `images.rs` or `recurrent.rs`, run
//! `PAGELOCK_WRITE_DOCS=1 cargo test -p pagelock-nn --test suite document`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use pagelock_nn::{StateDict, load_safetensors};

use crate::{images, layers, pytorch, recurrent};

const HEAD: &str = "# Modules

<!-- Made by the test `the_document_is_what_the_golden_cases_say` of pagelock-nn; CONTRIBUTING.md says how to regenerate it. -->

Every layer and loss of `pagelock_nn`, and what each test run compares with PyTorch. Modules use [operations](operations.md).
All of them run on the CPU and on GPUs, and are compared on both, in `f64` and `f32`. Half types (from
`to_dtype` or autocast) are compared by the tests of operations.

- **golden**: the number of calls whose state, output and printed form are compared, or the tests that cover the module instead.
- **gradient**: of all inputs and parameters. **second gradient**: of Σ (the first input's gradient)², by that input.

| module | golden | gradient | second gradient |
|---|---|---|---|
";

/// Modules without a golden case of their own, and what tests them.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (
        &["AdaptiveAvgPool2d", "Flatten", "Lambda", "Linear", "ReLU", "Sigmoid", "Tanh"],
        "its operation, and networks in training (`training.safetensors`)",
    ),
    (&["BatchNorm1d", "BatchNorm2d", "LayerNorm"], "networks in training (`normalized.safetensors`)"),
    (
        &["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"],
        "random numbers: `layer_rules.rs`",
    ),
    (&["CTCLoss"], "4 calls of its function"),
    (&["FractionalMaxPool2d"], "3 calls of its function, and `drawn.rs`"),
    (&["Hooked"], "names, order and what hooks change: `hooks.rs`"),
    (&["MSELoss"], "its operation"),
    (
        &["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"],
        "printed forms and names; it computes nothing of its own",
    ),
];

/// Modules whose second gradient is not compared, and why.
const NOT_SECOND: &[(&[&str], &str)] = &[
    (
        &[
            "CircularPad1d",
            "CircularPad2d",
            "CircularPad3d",
            "ConstantPad1d",
            "ConstantPad2d",
            "ConstantPad3d",
            "ChannelShuffle",
            "Conv1d",
            "Conv3d",
            "ConvTranspose1d",
            "ConvTranspose2d",
            "ConvTranspose3d",
            "Embedding",
            "EmbeddingBag",
            "Fold",
            "Identity",
            "KLDivLoss",
            "MaxUnpool1d",
            "MaxUnpool2d",
            "MaxUnpool3d",
            "PixelShuffle",
            "PixelUnshuffle",
            "Unflatten",
            "Unfold",
            "Upsample",
            "UpsamplingBilinear2d",
            "UpsamplingNearest2d",
            "ZeroPad1d",
            "ZeroPad2d",
            "ZeroPad3d",
        ],
        "none: it is linear",
    ),
    (&["HingeEmbeddingLoss", "MarginRankingLoss", "MultiLabelMarginLoss"], "none: it is linear in pieces"),
    (
        &[
            "BCELoss",
            "BatchNorm3d",
            "Bilinear",
            "LPPool2d",
            "MultiMarginLoss",
            "Transformer",
            "TransformerDecoder",
            "TransformerDecoderLayer",
            "TransformerEncoder",
            "TransformerEncoderLayer",
        ],
        "of its operations",
    ),
];

/// The number of golden cases of a module that compare outputs, gradients and second gradients.
#[derive(Default)]
struct Cases {
    golden: usize,
    gradient: usize,
    second: usize,
}

#[test]
fn the_document_is_what_the_golden_cases_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(lib) = std::fs::read_to_string(root.join("src/lib.rs")) else {
        eprintln!("skipped: the sources are not here");
        return;
    };
    let path = root.join("../../docs/modules.md");
    let cases = cases();
    let rows: Vec<Result<String, String>> =
        public_modules(&lib).iter().map(|name| row(name, cases.get(name))).collect();
    let without: Vec<&String> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
    assert!(without.is_empty(), "without a golden case and a reason in {}: {without:#?}", file!());
    let document = HEAD.to_owned() + &rows.into_iter().flatten().collect::<String>();
    if std::env::var_os("PAGELOCK_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == document, "docs/modules.md is not what the cases say; run this with PAGELOCK_WRITE_DOCS=1");
}

/// The golden cases of each module, by its name.
fn cases() -> BTreeMap<String, Cases> {
    let files = [
        ("layers.safetensors", layers::cases as fn() -> layers::Cases),
        ("images.safetensors", images::cases),
        ("recurrent.safetensors", recurrent::cases),
    ];
    let mut all: BTreeMap<String, Cases> = BTreeMap::new();
    for (file, cases) in files {
        let golden = load_safetensors(pytorch::path(file)).unwrap();
        for (name, mut case) in cases() {
            let golden: StateDict = pytorch::under(&golden, &format!("{name}/"));
            let counts = all.entry(case.module().title()).or_default();
            counts.golden += 1;
            counts.gradient += usize::from(golden.get("upstream").is_some());
            counts.second += usize::from(golden.get("second").is_some());
        }
    }
    all
}

/// The structs that `lib.rs` re-exports from `layers` and `loss`.
fn public_modules(lib: &str) -> BTreeSet<String> {
    let lists = ["pub use layers::{", "pub use loss::{"].map(|start| {
        let rest = &lib[lib.find(start).unwrap() + start.len()..];
        &rest[..rest.find('}').unwrap()]
    });
    let names = lists.iter().flat_map(|list| list.split(',')).map(str::trim);
    let no_modules =
        ["DecoderMasks", "HookHandle", "IntoLayers", "MultiheadOptions", "OutProjection", "Padding", "Targets", ""];
    names.filter(|name| !no_modules.contains(name)).map(str::to_owned).collect()
}

fn row(name: &str, cases: Option<&Cases>) -> Result<String, String> {
    let reason =
        |of: &[(&[&str], &'static str)]| of.iter().find(|(names, _)| names.contains(&name)).map(|(_, why)| *why);
    let mut row = String::new();
    let Some(cases) = cases else {
        let elsewhere = reason(ELSEWHERE).ok_or_else(|| name.to_owned())?;
        let _ = writeln!(row, "| `{name}` | {elsewhere} | as golden | as golden |");
        return Ok(row);
    };
    let compared = |n: usize, what: &str| match (n, reason(NOT_SECOND)) {
        (0, Some(why)) => Ok(why.to_owned()),
        (0, None) => Err(format!("{name}: {what}")),
        _ => Ok("yes".to_owned()),
    };
    let [gradient, second] = [compared(cases.gradient, "gradient")?, compared(cases.second, "second gradient")?];
    let _ = writeln!(row, "| `{name}` | {} | {gradient} | {second} |", cases.golden);
    Ok(row)
}

#[test]
fn every_reason_is_of_a_public_module_that_lacks_cases() {
    let Ok(lib) = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")) else {
        eprintln!("skipped: the sources are not here");
        return;
    };
    let (modules, cases) = (public_modules(&lib), cases());
    let [elsewhere, not_second] =
        [ELSEWHERE, NOT_SECOND].map(|of| of.iter().flat_map(|(names, _)| names.iter().copied()).collect::<Vec<_>>());
    let unknown: Vec<_> = elsewhere.iter().chain(&not_second).filter(|name| !modules.contains(**name)).collect();
    assert!(unknown.is_empty(), "these are no public modules: {unknown:?}");
    let superfluous: Vec<_> = elsewhere.iter().filter(|name| cases.contains_key(**name)).collect();
    assert!(superfluous.is_empty(), "these have golden cases: {superfluous:?}");
    let lacks_some = |name: &str| cases.get(name).is_some_and(|cases| cases.gradient == 0 || cases.second == 0);
    let stale: Vec<_> = not_second.iter().filter(|name| !lacks_some(name)).collect();
    assert!(stale.is_empty(), "these lack no gradients of golden cases: {stale:?}");
}
