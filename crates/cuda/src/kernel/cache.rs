//! Compiled kernels on disk, named by a hash of everything that they were made from.
//!
//! A file is written beside its place and then renamed, so that there are only whole ones; and it starts with a hash of
//! the rest, so that a damaged one is noticed and made again. A cache that cannot be written costs time, nothing else.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use sha2::{Digest, Sha256};

use super::source::KernelSource;

/// A folder of compiled kernels.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

const FORMAT: &[u8] = b"pagelock kernel 1"; // changes when the same source has to be compiled anew
const HASH_BYTES: usize = 32;

impl Cache {
    /// `$PAGELOCK_KERNEL_CACHE`, or `pagelock/kernels` in the user's cache folder; empty switches it off.
    pub(super) fn of_user() -> Self {
        let usual = || {
            let cache = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
            let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
            Some(cache.join("pagelock").join("kernels"))
        };
        let folder = match env::var_os("PAGELOCK_KERNEL_CACHE") {
            Some(chosen) => Some(PathBuf::from(chosen)).filter(|path| !path.as_os_str().is_empty()),
            None => usual(),
        };
        Self { folder }
    }

    #[cfg(test)]
    fn in_folder(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// What was made from that source for that architecture, or what `make` makes of it now.
    pub(super) fn get<E>(
        &self,
        source: &KernelSource,
        architecture: &str,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let path = self.folder.as_ref().map(|folder| folder.join(key(source, architecture)));
        if let Some(found) = path.as_deref().and_then(read) {
            return Ok(found);
        }
        let made = make()?;
        if let Some(path) = path {
            let _ = write(&path, &made);
        }
        Ok(made)
    }
}

fn key(source: &KernelSource, architecture: &str) -> String {
    let mut hash = Sha256::new_with_prefix(FORMAT);
    let texts = [source.name(), source.text(), architecture];
    for text in texts.into_iter().chain(source.options().iter().map(String::as_str)) {
        hash.update(text.len().to_le_bytes()); // so that no two lists of texts run together to the same bytes
        hash.update(text);
    }
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hash}.cubin")
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut file = fs::read(path).ok()?;
    let (hash, cubin) = file.split_at_checked(HASH_BYTES)?;
    let whole = Sha256::digest(cubin)[..] == *hash;
    whole.then(|| file.split_off(HASH_BYTES))
}

fn write(path: &Path, cubin: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = Temporary(path.with_extension(format!("{}-{count}", process::id())));
    fs::write(&temporary.0, [&Sha256::digest(cubin)[..], cubin].concat())?;
    fs::rename(&temporary.0, path)
}

/// A file that is removed, unless it is not there any more because it got its real name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("pagelock-cache-{}-{name}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn get(cache: &Cache, source: &KernelSource, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        cache.get(source, "sm_90", || Ok::<_, ()>(make())).unwrap()
    }

    #[test]
    fn what_was_made_once_is_found_again() {
        let folder = folder("found");
        let (cache, source) = (Cache::in_folder(&folder), KernelSource::new("a", "text"));
        assert_eq!(get(&cache, &source, || vec![1, 2, 3]), [1, 2, 3]);
        assert_eq!(get(&cache, &source, || unreachable!("it is there")), [1, 2, 3]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left behind");
        fs::remove_dir_all(folder).unwrap();
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
        let folder = folder("damaged");
        let (cache, source) = (Cache::in_folder(&folder), KernelSource::new("a", "text"));
        get(&cache, &source, || vec![1, 2, 3]);
        let path = folder.join(key(&source, "sm_90"));
        for damage in [&b"short"[..], &[0; 40]] {
            fs::write(&path, damage).unwrap();
            assert_eq!(get(&cache, &source, || vec![4, 5]), [4, 5]);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let cache = Cache::in_folder(Path::new("/proc/nowhere"));
        assert_eq!(get(&cache, &KernelSource::new("a", "text"), || vec![1]), [1]);
    }
}
