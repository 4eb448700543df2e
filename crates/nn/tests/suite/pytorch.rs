//! Reads the golden files, which the scripts in `../golden` wrote, and lists the devices to compare on.

use pagelock_nn::{StateDict, load_safetensors};
use pagelock_tensor::{Device, Tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn path(name: &str) -> PathBuf {
    let in_sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if in_sources.exists() { in_sources } else { Path::new("golden-nn").join(name) }
}

pub(crate) fn json(name: &str) -> Value {
    let path = path(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The CPU, and a GPU if there is one. Panics if `REQUIRE_GPU` is 1 and there is none.
pub(crate) fn devices() -> Vec<Device> {
    let gpu = Device::cuda(0).inspect_err(|missing| {
        let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "REQUIRE_GPU=1, but {missing}");
        eprintln!("SKIPPED on a GPU: {missing}");
    });
    [Device::Cpu].into_iter().chain(gpu).collect()
}

/// The largest of `differences`; ∞ if one of them is NaN, so that it is above every bound.
pub(crate) fn largest(differences: impl IntoIterator<Item = f64>) -> f64 {
    let larger = |most: f64, x: f64| if x.is_nan() { f64::INFINITY } else { most.max(x) };
    differences.into_iter().fold(0.0, larger)
}

/// The largest difference of an element from PyTorch's, relative to PyTorch's number if its magnitude is above 1; ∞ if
/// an element is NaN.
pub(crate) fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.dims(), theirs.dims());
    let pairs = ours.to_vec::<f64>().unwrap().into_iter().zip(theirs.to_vec::<f64>().unwrap());
    largest(pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0)))
}

/// The tensors whose names begin with `prefix`, without it.
pub(crate) fn under(dict: &StateDict, prefix: &str) -> StateDict {
    dict.renamed(|name| name.strip_prefix(prefix).map(str::to_owned))
}

pub(crate) fn training() -> StateDict {
    load_safetensors(path("training.safetensors")).unwrap()
}

/// Runs a script of `../golden`. If `PAGELOCK_PYTHON` names no Python that has torch, prints that and returns
/// `false`.
pub(crate) fn script(name: &str, command: &str, file: &Path) -> bool {
    let Some(python) = std::env::var_os("PAGELOCK_PYTHON") else {
        println!("skipped: set PAGELOCK_PYTHON to a Python that has torch");
        return false;
    };
    let status = Command::new(python).arg(path(name)).arg(command).arg(file).status().expect("PAGELOCK_PYTHON runs");
    assert!(status.success(), "the script says above what is wrong");
    true
}
