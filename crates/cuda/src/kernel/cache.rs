//! Compiled kernels on disk, named by a hash of their source, options and architecture.

use super::source::KernelSource;
use crate::error::Result;
use crate::user_cache::{UserCache, hash};

/// A folder of compiled kernels.
pub(super) struct KernelCache {
    files: UserCache,
}

const FORMAT: &str = "pagelock kernel 2"; // changes when all sources must be compiled again
const MAX_BYTES: u64 = 256 << 20;

impl KernelCache {
    /// The cache in `$PAGELOCK_KERNEL_CACHE`, or in `pagelock/kernels` in the user's cache folder. An empty variable
    /// disables it.
    pub(super) fn of_user() -> Result<Self> {
        Ok(Self { files: UserCache::of_user("kernels", "PAGELOCK_KERNEL_CACHE")? })
    }

    /// The cached code of that source for that architecture, or else the code that `compile` returns, which is cached.
    pub(super) fn get<E>(
        &self,
        source: &KernelSource,
        architecture: &str,
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let key = key(source, architecture);
        if let Some(found) = self.files.read(&key, MAX_BYTES) {
            return Ok(found);
        }
        let code = compile()?;
        let _ = self.files.write(&key, &code);
        Ok(code)
    }
}

/// The file name of the code of that source for that architecture.
pub(super) fn key(source: &KernelSource, architecture: &str) -> String {
    let texts = [FORMAT, source.name(), source.text(), architecture];
    let texts = texts.into_iter().chain(source.options().iter().map(String::as_str));
    format!("{}.cubin", hash(texts))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::user_cache::TestFolder;

    fn in_folder(folder: &Path) -> KernelCache {
        KernelCache { files: UserCache::in_folder(folder) }
    }

    fn get(cache: &KernelCache, source: &KernelSource, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        cache.get(source, "sm_90", || Ok::<_, ()>(make())).unwrap()
    }

    #[test]
    fn what_was_made_once_is_found_again() {
        let folder = TestFolder::new("kernels found");
        let (cache, source) = (in_folder(&folder.0), KernelSource::new("a", "text"));
        assert_eq!(get(&cache, &source, || vec![1, 2, 3]), [1, 2, 3]);
        assert_eq!(get(&cache, &source, || unreachable!("it is there")), [1, 2, 3]);
    }

    #[test]
    fn another_text_name_option_or_architecture_is_another_kernel() {
        let source = KernelSource::new("a", "text");
        let keys = [
            key(&source, "sm_90"),
            key(&source, "sm_80"),
            key(&KernelSource::new("b", "text"), "sm_90"),
            key(&KernelSource::new("a", "text2"), "sm_90"),
            key(&source.clone().option("-x"), "sm_90"),
            key(&source.clone().option("-").option("x"), "sm_90"),
        ];
        let mut distinct = keys.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn a_damaged_file_is_made_again() {
        let folder = TestFolder::new("kernels damaged");
        let (cache, source) = (in_folder(&folder.0), KernelSource::new("a", "text"));
        get(&cache, &source, || vec![1, 2, 3]);
        let path = folder.0.join(key(&source, "sm_90"));
        for damage in [&b"short"[..], &[0; 40]] {
            fs::write(&path, damage).unwrap();
            assert_eq!(get(&cache, &source, || vec![4, 5]), [4, 5]);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let cache = in_folder(Path::new("/proc/nowhere"));
        assert_eq!(get(&cache, &KernelSource::new("a", "text"), || vec![1]), [1]);
    }
}
