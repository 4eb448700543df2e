//! What this crate reads of files that others may have written, for `cargo xtask fuzz`; no part of its interface.

use std::path::Path;

use crate::{CopyModel, StagingConfig, kernel, user_cache::UserCache};

/// The content of the file `name` of a cache; none if it is missing, damaged, or longer than `most_bytes`.
pub fn cached(folder: &Path, name: &str, most_bytes: u64) -> Option<Vec<u8>> {
    UserCache::in_folder(folder).read(name, most_bytes)
}

/// How many kernels an archive has, each unpacked.
pub fn kernels(archive: &[u8]) -> Option<usize> {
    kernel::unpack_all(archive)
}

/// Whether the text of a file of measured shapes of the ring is one.
pub fn is_staging(text: &str) -> bool {
    StagingConfig::from_kept(text).is_some_and(|config| config.is_sound())
}

/// Whether the text of a file of measured copies is one.
pub fn is_copy_model(text: &str) -> bool {
    CopyModel::from_kept(text).is_some()
}
