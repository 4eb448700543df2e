//! What this crate reads of files that others may have written, for `cargo xtask fuzz`; no part of its interface.

use std::path::Path;

use crate::{kernel, user_cache::UserCache};

/// The content of the file `name` of a cache; none if it is missing, damaged, or longer than `most_bytes`.
pub fn cached(folder: &Path, name: &str, most_bytes: u64) -> Option<Vec<u8>> {
    UserCache::in_folder(folder).read(name, most_bytes)
}

/// How many kernels an archive has, each unpacked.
pub fn kernels(archive: &[u8]) -> Option<usize> {
    kernel::unpack_all(archive)
}
