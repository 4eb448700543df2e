//! Replaces a file as a whole: [`replace`], and [`NewFile`] for what is written piece by piece.
//!
//! ```text
//! create   follow links ── remove leftovers ── make a temporary file beside the target and lock it
//! write    into the temporary file
//! commit   permissions ── sync the file ── rename it to the target ── sync the folder
//! ```
//!
//! Invariant: the target's name always refers to a whole file. Until the rename that is the old one, and from then on the new
//! one; the rename is one step for readers, and for a crash, because the bytes are on the disk before it and the folder is
//! synced after it.
//!
//! A process that is killed before the rename leaves its temporary file. [`NewFile::create`] removes such leftovers: it locks
//! each file whose name is that of a temporary one, and removes those that it could lock. A process that writes holds that
//! lock until the rename is done, and the system releases the lock of a process that ended, however it ended. Between making
//! the file and locking it, a file could be taken for a leftover. So its maker, once it has the lock, checks that the file still
//! has its name, and makes another one if not.

// Read `leftovers.rs` after this file.

#![forbid(unsafe_code)]

/// `at!(Step)` is an error, or the end of the process, where a test says so.
macro_rules! at {
    ($step:ident) => {{
        #[cfg(test)]
        {
            $crate::faults::at($crate::faults::Step::$step)
        }
        #[cfg(not(test))]
        {
            std::io::Result::Ok(())
        }
    }};
}

#[cfg(test)]
mod faults;
mod leftovers;
#[cfg(test)]
mod tests;

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Replaces the file at `path` by one with these contents, or makes it.
///
/// # Errors
/// As [`NewFile::create`] and [`NewFile::commit`].
///
/// # Examples
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// pagelock_files::replace(&path, "old")?;
/// pagelock_files::replace(&path, "new")?;
/// assert_eq!(std::fs::read_to_string(&path)?, "new");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn replace(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    replace_with(path.as_ref(), contents.as_ref())
}

fn replace_with(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(contents)?;
    file.commit()
}

/// A file that is being written, and takes the place of another one when it is whole.
///
/// Writes are not buffered. One that is dropped without [`commit`](Self::commit) is gone, and nothing has changed.
///
/// # Examples
/// ```
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("squares.txt");
/// let mut file = pagelock_files::NewFile::create(&path)?;
/// for number in 0..3 {
///     writeln!(file, "{}", number * number)?;
/// }
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read_to_string(&path)?, "0\n1\n4\n");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewFile {
    temporary: NamedTempFile,
    target: PathBuf,
    kept: Option<Permissions>, // those of the file that it replaces
}

/// So many temporary files in a row may be taken for leftovers before they are locked; then it is an error.
const ATTEMPTS: usize = 100;

impl NewFile {
    /// Begins a file that will be at `path`; removes what processes that were killed have left in the folder.
    ///
    /// If `path` is a symbolic link, the file that it names is meant, which need not exist.
    ///
    /// # Errors
    /// What the system says of the folder; [`io::ErrorKind::IsADirectory`] or [`io::ErrorKind::InvalidInput`] if there is
    /// something at `path` that is no file, or `path` names none.
    pub fn create(path: impl AsRef<Path>) -> io::Result<NewFile> {
        Self::create_at(path.as_ref())
    }

    fn create_at(path: &Path) -> io::Result<NewFile> {
        let target = behind_links(path)?;
        let (Some(folder), Some(_)) = (target.parent(), target.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file; name one"));
        };
        let kept = permissions_of(&target)?;
        leftovers::remove(folder);
        at!(Create)?;
        Ok(NewFile { temporary: temporary(folder, kept.as_ref())?, target, kept })
    }

    /// Puts the file in its place, whole and on the disk.
    ///
    /// # Errors
    /// What the system says. The old file is unchanged, unless the text says that the new file is in its place and only the
    /// folder could not be synced.
    pub fn commit(self) -> io::Result<()> {
        let NewFile { temporary, target, kept } = self;
        if let Some(permissions) = kept {
            at!(Permissions)?;
            temporary.as_file().set_permissions(permissions)?;
        }
        at!(SyncFile)?;
        temporary.as_file().sync_all()?;
        at!(Rename)?;
        let renamed = temporary.persist(&target).map_err(|refused| refused.error)?;
        let synced = at!(SyncFolder).and_then(|()| target.parent().map_or(Ok(()), sync_folder));
        drop(renamed); // with its lock, which says that it is no leftover
        synced.map_err(|error| {
            let text = format!("the new file is in its place, but its folder could not be synced to the disk: {error}");
            io::Error::new(error.kind(), text)
        })
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        at!(Write)?;
        self.temporary.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

/// Over what was written so far, as archives do that note lengths behind the fact.
impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temporary.as_file_mut().seek(to)
    }
}

/// Where writing to `path` would write: an absolute path that is no symbolic link.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    const MOST_LINKS: usize = 40; // as Linux
    let mut path = std::path::absolute(path)?;
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Ok(path) };
        path.pop();
        path.push(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links lead on from there; name the file itself"))
}

/// The permissions of the file there; none if there is nothing.
fn permissions_of(target: &Path) -> io::Result<Option<Permissions>> {
    let metadata = match fs::symlink_metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "there is a folder of that name; name a file"));
    }
    if !metadata.is_file() {
        let text = "there is a pipe, a device or a socket of that name, which cannot be replaced; name a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    #[cfg(unix)] // as writing into the file would leave them: without the bits that make it run as another user
    return Ok(Some(PermissionsExt::from_mode(metadata.permissions().mode() & 0o777)));
    #[cfg(not(unix))]
    Ok(Some(metadata.permissions()))
}

/// A new file in `folder`, locked; its name is that of no other, nor will another one get it.
fn temporary(folder: &Path, kept: Option<&Permissions>) -> io::Result<NamedTempFile> {
    for _ in 0..ATTEMPTS {
        let file = leftovers::temporary(folder, kept)?;
        at!(Lock)?;
        match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => continue, // it is about to be removed
            Ok(()) | Err(TryLockError::Error(_)) => {} // a file system without locks has no one who removes leftovers
        }
        if has_its_name(&file)? {
            return Ok(file);
        }
    }
    Err(io::Error::other(format!("{ATTEMPTS} new files were removed from the folder by others; try again")))
}

fn has_its_name(file: &NamedTempFile) -> io::Result<bool> {
    #[cfg(unix)]
    return Ok(file.as_file().metadata()?.nlink() > 0);
    #[cfg(not(unix))]
    file.path().try_exists()
}

/// Brings the names in a folder to the disk, where the system can do that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    let ignored = [io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported];
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if ignored.contains(&error.kind()) => Ok(()), // it may be written, not read; or has no disk
        synced => synced,
    }
}
