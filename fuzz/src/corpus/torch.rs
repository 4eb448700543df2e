//! Files that PyTorch wrote for the tests of `pagelock-nn`.

/// The bytes of the files with these names.
macro_rules! written {
    ($($name:literal)+) => {
        vec![$(include_bytes!(concat!("../../../crates/nn/tests/golden/torch_files/", $name, ".pt")).to_vec()),+]
    };
}

pub(super) fn files() -> Vec<Vec<u8>> {
    written![
        "dtypes" "linear" "conv" "tied" "views" "empty" "parameters" "adam" "checkpoint" "values"
        "dtypes_legacy" "tied_legacy" "views_legacy" "checkpoint_legacy" "values_legacy" "tar"
    ]
}
