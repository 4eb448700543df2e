//! [`UserCache`]: files that can be created again, in the user's cache folder.
//!
//! A file is replaced atomically, so readers never see one that is written in part. It starts with a hash of the
//! rest, so that damage is noticed. A cache that cannot be read or written only costs time. An environment variable
//! that names something other than a folder is an error.

use std::{
    env,
    ffi::OsString,
    fs,
    hash::Hasher,
    io::{self, Read},
    path::{Path, PathBuf},
};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::error::{Error, Result};

/// A cache of files in one folder, or a disabled cache.
pub(crate) struct UserCache {
    folder: Option<PathBuf>,
}

const HASH_BYTES: usize = 16;

impl UserCache {
    /// The cache in the folder that the variable names, or in `pagelock/NAME` in the user's cache folder if the
    /// variable is not set. An empty variable disables the cache.
    ///
    /// # Errors
    /// [`Error::Argument`] if the variable names something that exists and is not a folder.
    pub(crate) fn of_user(name: &str, variable: &'static str) -> Result<Self> {
        Self::from_variable(name, variable, env::var_os(variable))
    }

    fn from_variable(name: &str, variable: &'static str, value: Option<OsString>) -> Result<Self> {
        let default_folder = || {
            let cache = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
            let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
            Some(cache.join("pagelock").join(name))
        };
        let folder = match value.map(PathBuf::from) {
            Some(path) if path.exists() && !path.is_dir() => {
                return Err(Error::Argument(format!(
                    "${variable} is `{}`, which is not a folder; name a folder, set it to an empty value to disable the \
                     cache, or unset it",
                    path.display()
                )));
            }
            Some(path) => Some(path).filter(|path| !path.as_os_str().is_empty()),
            None => default_folder(),
        };
        Ok(Self { folder })
    }

    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// The contents that were written under that name; none if they are missing, longer than `max_bytes`, or
    /// damaged.
    pub(crate) fn read(&self, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.join(name);
        let max_bytes = max_bytes + HASH_BYTES as u64;
        let (opened, len_bytes) = pagelock_memory::open_regular(path).ok()?;
        if len_bytes > max_bytes {
            return None;
        }
        let mut file = Vec::new();
        opened.take(len_bytes).read_to_end(&mut file).ok()?;
        let (hash, contents) = file.split_at_checked(HASH_BYTES)?;
        let is_intact = digest(contents) == *hash;
        is_intact.then(|| file.split_off(HASH_BYTES))
    }

    /// Writes the contents under that name.
    pub(crate) fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        fs::create_dir_all(folder)?;
        pagelock_files::replace(folder.join(name), [&digest(contents)[..], contents].concat())
    }
}

/// The hash of some texts, for use as a name. It has 128 bits, so that lists of texts do not collide by accident.
pub(crate) fn hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = SipHasher24::new();
    for text in texts {
        hash.write(&text.len().to_le_bytes()); // so that no two lists concatenate to the same bytes
        hash.write(text.as_bytes());
    }
    format!("{:032x}", hash.finish128().as_u128())
}

fn digest(contents: &[u8]) -> [u8; HASH_BYTES] {
    SipHasher24::new().hash(contents).as_bytes()
}

/// A folder for a test, removed on drop.
#[cfg(test)]
pub(crate) struct TestFolder(pub(crate) PathBuf);

#[cfg(test)]
impl TestFolder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("pagelock-cache-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Self(folder)
    }
}

#[cfg(test)]
impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_written_file_is_read_back_and_no_temporary_file_remains() {
        let folder = TestFolder::new("found");
        let cache = UserCache::in_folder(&folder.0);
        assert_eq!(cache.read("a", 3), None);
        cache.write("a", &[1, 2, 3]).unwrap();
        assert_eq!(cache.read("a", 3), Some(vec![1, 2, 3]));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_overlong_file_is_not_found() {
        let folder = TestFolder::new("damaged");
        let cache = UserCache::in_folder(&folder.0);
        cache.write("a", &[1, 2, 3]).unwrap();
        assert_eq!(cache.read("a", 2), None);
        for damage in [&b""[..], b"short", &[0; HASH_BYTES + 3]] {
            fs::write(folder.0.join("a"), damage).unwrap();
            assert_eq!(cache.read("a", 3), None);
        }
    }

    #[test]
    fn a_variable_that_names_a_file_is_refused_and_a_missing_folder_is_accepted() {
        let folder = TestFolder::new("variable");
        fs::create_dir_all(&folder.0).unwrap();
        let file = folder.0.join("file");
        fs::write(&file, "no folder").unwrap();
        let chosen = |path: &Path| UserCache::from_variable("kernels", "PAGELOCK_KERNEL_CACHE", Some(path.into()));
        let expected = format!("$PAGELOCK_KERNEL_CACHE is `{}`, which is not a folder", file.display());
        assert!(chosen(&file).err().unwrap().to_string().starts_with(&expected));
        for good in ["", ".", "new"] {
            let path = if good.is_empty() { PathBuf::new() } else { folder.0.join(good) };
            assert!(chosen(&path).is_ok(), "{good}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn folders_and_pipes_are_not_read_and_do_not_block() {
        let folder = TestFolder::new("pipe");
        let cache = UserCache::in_folder(&folder.0);
        fs::create_dir_all(folder.0.join("folder")).unwrap();
        let made = process::Command::new("mkfifo").arg(folder.0.join("pipe")).status();
        assert!(made.unwrap().success());
        assert_eq!((cache.read("folder", 100), cache.read("pipe", 100)), (None, None));
    }

    #[test]
    fn a_failed_write_is_an_error_and_a_disabled_cache_stores_nothing() {
        assert!(UserCache::in_folder(Path::new("/proc/nowhere")).write("a", &[1]).is_err());
        let off = UserCache { folder: None };
        off.write("a", &[1]).unwrap();
        assert_eq!(off.read("a", 1), None);
    }

    #[test]
    fn lists_that_concatenate_to_the_same_text_have_different_hashes() {
        assert_ne!(hash(["ab", "c"]), hash(["a", "bc"]));
        assert_ne!(hash(["a"]), hash(["a", ""]));
    }
}
