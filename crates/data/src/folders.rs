//! [`Places`]: where the files of published data sets are looked for, and downloaded from.

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

/// See the head of the file.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) offline: bool,
    pub(crate) mirrors: Vec<String>,
    #[cfg(feature = "download")]
    pub(crate) timeouts: Timeouts,
    #[cfg(feature = "download")]
    pub(crate) progress: Arc<dyn Progress>,
}

impl Places {
    /// The usual ones, and these mirrors.
    pub(crate) fn new(mirrors: &[&str]) -> Self {
        Self {
            folder: None,
            offline: false,
            mirrors: mirrors.iter().map(|&mirror| mirror.into()).collect(),
            #[cfg(feature = "download")]
            timeouts: Timeouts::default(),
            #[cfg(feature = "download")]
            progress: default_progress(),
        }
    }

    /// The folder of a data set.
    pub(crate) fn folder_of(&self, set: &str, environment: &Environment) -> Result<PathBuf> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None => environment.folder(set),
        }
    }

    /// The path of `file`, under one of these names, downloaded if there is none.
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

/// What the environment says about data files.
pub(crate) struct Environment {
    pub(crate) data: Option<OsString>,
    pub(crate) offline: Option<OsString>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self { data: std::env::var_os("PAGELOCK_DATA"), offline: std::env::var_os("PAGELOCK_OFFLINE") }
    }

    /// Whether nothing may be downloaded.
    pub(crate) fn offline(&self) -> Result<bool> {
        let text = self.offline.as_ref().map(|text| text.to_string_lossy().trim().to_lowercase()).unwrap_or_default();
        match &*text {
            "1" | "true" | "yes" | "on" => Ok(true),
            "" | "0" | "false" | "no" | "off" => Ok(false),
            _ => {
                let allowed = "1 keeps everything from being downloaded; 0, or no such variable, allows it";
                Err(Error::Argument(format!("PAGELOCK_OFFLINE is `{text}`, and {allowed}")))
            }
        }
    }

    pub(crate) fn folder(&self, set: &str) -> Result<PathBuf> {
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_empty()) {
            let data = Path::new(data);
            if data.exists() && !data.is_dir() {
                let data = data.display();
                let problem = format!(
                    "PAGELOCK_DATA is `{data}`, and that is not a folder; name the folder that has the data sets"
                );
                return Err(Error::Argument(problem));
            }
            return Ok(data.join(set));
        }
        let base = etcetera::choose_base_strategy().map_err(|error| Error::NoFolder { because: error.to_string() })?;
        Ok(base.cache_dir().join("pagelock").join(set))
    }
}
