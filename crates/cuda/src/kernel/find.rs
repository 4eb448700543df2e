//! The places that are searched for NVRTC: those of the dynamic linker, and the folders of `library/find.rs`.

use std::path::{Path, PathBuf};

use crate::library::find::{self, matching};

/// The names that the dynamic linker tries.
pub(super) const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Folders that may have the library but are unknown to the dynamic linker, the likeliest first.
pub(super) fn folders() -> Vec<PathBuf> {
    find::folders("PAGELOCK_NVRTC", &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"])
}

/// The library in a folder, and the libraries that it depends on, which must be loaded first.
pub(super) fn in_folder(folder: &Path) -> Option<(PathBuf, Vec<PathBuf>)> {
    let library = NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file())?;
    let mut builtins = matching(folder, "libnvrtc-builtins.so");
    builtins.retain(|path| path.is_file());
    Some((library, builtins))
}

/// The folder of CUDA's headers, such as `cuda_fp16.h`, that belongs to a library.
pub(super) fn headers(library: &Path) -> Vec<PathBuf> {
    let near = library.ancestors().skip(2).take(3).map(|above| above.join("include"));
    let usual = [PathBuf::from("/usr/local/cuda/include")];
    near.chain(usual).find(|folder| folder.join("cuda_fp16.h").is_file()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_library_has_none() {
        assert_eq!(in_folder(Path::new("/nowhere")), None);
        assert_eq!(
            headers(Path::new("/nowhere/lib/libnvrtc.so.13")).iter().filter(|h| h.starts_with("/nowhere")).count(),
            0
        );
    }
}
