//! Tests of kernels that only huge tensors use, and of the calls of `begin` in all kernels.

use std::path::Path;

use super::COPY;
use crate::element::DType;

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

/// A kernel that calls `begin` may start before the previous kernel has ended. Memory accesses before `begin` would
/// race with that kernel.
#[test]
fn kernels_that_call_begin_call_it_first() {
    let mut n_kernels = 0;
    for_each_kernel_file(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut |path, text| {
        if !text.contains("begin();") {
            return;
        }
        for kernel in text.split("__global__").skip(1) {
            let body = kernel.split_once('{').map_or("", |(_, body)| body);
            assert!(
                body.trim_start_matches([' ', '\\', '\n']).starts_with("begin();"),
                "in {}: {}",
                path.display(),
                kernel.lines().next().unwrap()
            );
            n_kernels += 1;
        }
    });
    assert!(n_kernels > 20, "{n_kernels}");
}

fn for_each_kernel_file(folder: &Path, visit: &mut dyn FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            for_each_kernel_file(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "cu") {
            visit(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}
