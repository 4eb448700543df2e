//! What there is no kernel for yet, and kernels that only huge tensors use.

use std::fs;
use std::path::{Path, PathBuf};

use super::COPY;
use crate::element::DType;

/// Operations without a CUDA kernel, by file. A kernel that is added takes one off here.
const MISSING: &[(&str, usize)] = &[("ops/index/mod.rs", 4)];

#[test]
fn operations_without_a_kernel_are_known() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for file in rust_files(&sources) {
        let name = file.strip_prefix(&sources).unwrap().to_string_lossy().into_owned();
        let count = fs::read_to_string(&file).unwrap().matches(concat!("no_cuda_", "kernel!(")).count();
        if count > 0 {
            found.push((name, count));
        }
    }
    found.sort();
    let missing: Vec<_> = MISSING.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(found, missing);
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}

#[test]
fn kernels_for_huge_tensors_compile() {
    if let Err(missing) = pagelock_cuda::compiler_version() {
        eprintln!("SKIPPED: {missing}");
        return;
    }
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::Bool] {
        let types = [dtype; 2];
        for source in [COPY.source(types, "wide"), crate::ops::SUM.source(types, "wide")] {
            pagelock_cuda::compile(&source, (9, 0)).unwrap();
        }
    }
}
