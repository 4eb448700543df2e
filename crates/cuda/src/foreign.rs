//! The readers of files that other programs may have written, for `cargo xtask fuzz`. Not part of the crate's
//! interface.

use std::path::Path;

use crate::{kernel, user_cache::UserCache};

/// The content of the file `name` of a cache; none if it is missing, damaged, or longer than `max_bytes`.
pub fn cached(folder: &Path, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
    UserCache::in_folder(folder).read(name, max_bytes)
}

/// Unpacks all kernels of an archive, and returns their number.
pub fn kernels(archive: &[u8]) -> Option<usize> {
    kernel::unpack_all(archive)
}
