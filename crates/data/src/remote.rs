//! Files that are published once and for all: their names, lengths and checksums.

use std::path::Path;

use crate::Error;

/// A file that is the same wherever it is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteFile {
    /// The data set that it belongs to, and the folder's name in `$PAGELOCK_DATA`.
    pub(crate) set: &'static str,
    pub(crate) name: &'static str,
    #[cfg_attr(not(feature = "download"), allow(dead_code))] // says how much to download
    pub(crate) len_bytes: u64,
    /// In lower-case hexadecimal digits.
    pub(crate) md5: &'static str,
}

impl RemoteFile {
    pub(crate) const fn new(set: &'static str, name: &'static str, len_bytes: u64, md5: &'static str) -> Self {
        Self { set, name, len_bytes, md5 }
    }

    /// Its address at each mirror.
    pub(crate) fn urls(&self, mirrors: &[String]) -> Vec<String> {
        mirrors.iter().map(|mirror| format!("{}/{}", mirror.trim_end_matches('/'), self.name)).collect()
    }

    /// The error for a file that is not in `folder` and is not going to be downloaded.
    pub(crate) fn missing(&self, folder: &Path, mirrors: &[String], because: NoDownload) -> Error {
        let Self { set, name: file, md5, .. } = *self;
        let urls = self.urls(mirrors).iter().map(|url| without_user(url)).collect();
        Error::Missing { file, set, folder: folder.into(), md5, urls, because }
    }
}

/// An address without user and password, for errors.
pub(crate) fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    format!("{scheme}{}{path}", host.rsplit('@').next().unwrap_or(host))
}

/// Why a file that is missing was not downloaded.
///
/// # Examples
/// ```
/// use pagelock_data::{Error, Mnist, NoDownload};
///
/// let error = Mnist::new().folder("/nowhere").offline(true).open().unwrap_err();
/// assert!(matches!(error, Error::Missing { because: NoDownload::SwitchedOff, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoDownload {
    /// By [`Mnist::offline`](crate::Mnist::offline).
    SwitchedOff,
    /// By the environment variable `PAGELOCK_OFFLINE`.
    Environment,
    /// The feature `download` is off.
    NotBuilt,
}

impl NoDownload {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::SwitchedOff => "downloading is switched off",
            Self::Environment => "PAGELOCK_OFFLINE is set",
            Self::NotBuilt => "this program was built without downloads",
        }
    }

    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::SwitchedOff => "allow downloads",
            Self::Environment => "unset PAGELOCK_OFFLINE",
            Self::NotBuilt => "build with the feature `download`",
        }
    }
}
