//! Kernels that only huge tensors use.

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
