//! [`Published`]: where the files of a published data set are looked for, and downloaded from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
#[cfg(feature = "download")]
use std::sync::Arc;

use etcetera::BaseStrategy;

#[cfg(feature = "download")]
use crate::download::{Job, Timeouts};
#[cfg(feature = "download")]
use crate::progress::{Progress, default_progress};
use crate::remote::RemoteFile;
use crate::{Error, NoDownload, Result};

/// A published data set: [`Mnist`](crate::Mnist) or [`CifarFiles`](crate::CifarFiles), depending on `S`.
///
/// Looks in the given folder; without one, in the set's folder in `$PAGELOCK_DATA`; without that variable, in the
/// set's folder in `pagelock` in the user's cache folder. A missing file is downloaded into that folder and verified,
/// unless `PAGELOCK_OFFLINE` is `1`, `true`, `yes` or `on`.
///
/// # Examples
/// ```
/// use pagelock_data::Mnist;
///
/// let mnist = Mnist::new().mirrors(["http://files.example.org/mnist"]).folder("/nowhere").offline(true);
/// assert_eq!(
///     mnist.open().unwrap_err().to_string(),
///     "`train-images-idx3-ubyte.gz` is not in `/nowhere` and downloading is switched off; put \
///      http://files.example.org/mnist/train-images-idx3-ubyte.gz (md5 f68b3c2dcbeaaa9fbdd348bbdeb94873) there, or set \
///      PAGELOCK_DATA to a folder that has `mnist/train-images-idx3-ubyte.gz`, or allow downloads",
/// );
/// ```
#[derive(Clone)]
pub struct Published<S> {
    pub(crate) set: S,
    pub(crate) folder: Option<PathBuf>,
    offline: bool,
    mirrors: Vec<String>,
    #[cfg(feature = "download")]
    timeouts: Timeouts,
    #[cfg(feature = "download")]
    progress: Arc<dyn Progress>,
}

impl<S> Published<S> {
    /// The usual folders, and these mirrors.
    pub(crate) fn of(set: S, mirrors: &[&str]) -> Self {
        Self {
            set,
            folder: None,
            offline: false,
            mirrors: mirrors.iter().map(|&mirror| mirror.into()).collect(),
            #[cfg(feature = "download")]
            timeouts: Timeouts::default(),
            #[cfg(feature = "download")]
            progress: default_progress(),
        }
    }

    /// Looks in `folder` and nowhere else.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Whether downloads are forbidden. The environment variable `PAGELOCK_OFFLINE=1` forbids them too.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Addresses of folders that have the packed files, which are tried in turn instead of the usual ones.
    pub fn mirrors(mut self, mirrors: impl IntoIterator<Item: Into<String>>) -> Self {
        self.mirrors = mirrors.into_iter().map(Into::into).collect();
        self
    }

    /// How long a download may take. The archive of CIFAR is 17 times as long as the largest file of MNIST.
    #[cfg(feature = "download")]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// What shows the progress of a download.
    #[cfg(feature = "download")]
    pub fn progress(mut self, progress: impl Progress) -> Self {
        self.progress = Arc::new(progress);
        self
    }

    /// The folder of the data set named `set`.
    pub(crate) fn folder_of(&self, set: &str, environment: &Environment) -> Result<PathBuf> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None => environment.folder(set),
        }
    }

    /// The path of `file`, which may have any of these names in `folder`. Downloads it if it is not there.
    pub(crate) fn find(
        &self,
        file: RemoteFile,
        names: &[&str],
        folder: &Path,
        environment: &Environment,
    ) -> Result<PathBuf> {
        if let Some(path) = names.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
            return Ok(path);
        }
        let missing = |because| Err(file.missing(folder, &self.mirrors, because));
        if self.offline {
            return missing(NoDownload::SwitchedOff);
        }
        if environment.offline()? {
            return missing(NoDownload::Environment);
        }
        self.download(file, folder)
    }

    #[cfg(feature = "download")]
    fn download(&self, file: RemoteFile, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder).map_err(|source| Error::io("create", folder, source))?;
        let (mirrors, timeouts) = (&self.mirrors, self.timeouts);
        Job { mirrors, folder, timeouts, progress: &*self.progress }.fetch(file)
    }

    #[cfg(not(feature = "download"))]
    fn download(&self, file: RemoteFile, folder: &Path) -> Result<PathBuf> {
        Err(file.missing(folder, &self.mirrors, NoDownload::NotBuilt))
    }
}

/// The environment variables for data files.
pub(crate) struct Environment {
    pub(crate) data: Option<OsString>,
    pub(crate) offline: Option<OsString>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self { data: std::env::var_os("PAGELOCK_DATA"), offline: std::env::var_os("PAGELOCK_OFFLINE") }
    }

    /// Whether downloads are forbidden.
    pub(crate) fn offline(&self) -> Result<bool> {
        let text = self.offline.as_ref().map(|text| text.to_string_lossy().trim().to_lowercase()).unwrap_or_default();
        match &*text {
            "1" | "true" | "yes" | "on" => Ok(true),
            "" | "0" | "false" | "no" | "off" => Ok(false),
            _ => {
                let allowed = "set it to 1 to forbid downloads; set it to 0, or unset it, to allow them";
                Err(Error::Argument(format!("PAGELOCK_OFFLINE is `{text}`; {allowed}")))
            }
        }
    }

    pub(crate) fn folder(&self, set: &str) -> Result<PathBuf> {
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_empty()) {
            let data = Path::new(data);
            if data.exists() && !data.is_dir() {
                let data = data.display();
                let problem =
                    format!("PAGELOCK_DATA is `{data}`, which is not a folder; name the folder that has the data sets");
                return Err(Error::Argument(problem));
            }
            return Ok(data.join(set));
        }
        let base = etcetera::choose_base_strategy().map_err(|error| Error::NoFolder { because: error.to_string() })?;
        Ok(base.cache_dir().join("pagelock").join(set))
    }
}
