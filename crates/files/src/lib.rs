//! Replaces a file as a whole: [`replace`] in one call, [`NewFile`] with any number of writes.
//!
//! ```text
//! create   follow links ── remove leftovers ── make a temporary file beside the target and lock it
//! write    into the temporary file
//! commit   permissions ── sync the file ── rename it to the target ── sync the folder
//! ```
//!
//! Invariant: the target's name always refers to a whole file, the old one before the rename and the new one after it.
//! The rename is atomic for readers. It is also atomic if the system crashes, because the bytes are on the disk before
//! the rename. The folder is synced after the rename, so that the new name is on the disk when `commit` returns.
//!
//! A process that is killed before the rename leaves its temporary file. [`NewFile::create`] removes such leftovers:
//! it tries to lock each file with the name of a temporary file, and removes those that it can lock. A process that
//! writes a file holds its lock until the rename is done, and the system releases the lock when the process ends for
//! any reason. A new file that is not locked yet looks like a leftover to other processes. So its creator locks the
//! file, checks that it still has its name, and creates another one if not.

// Read `leftovers.rs` after this file.

#![forbid(unsafe_code)]

/// `at!(Step)` returns an error or aborts the process if a test injects a fault at this step.
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

/// Replaces the file at `path` by one with these contents, or creates it.
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

/// A file that is being written, and replaces another file when it is complete.
///
/// Writes are not buffered. A `NewFile` that is dropped without [`commit`](Self::commit) is removed and changes
/// nothing.
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
    permissions: Option<Permissions>, // those of the file that it replaces
}

/// `NewFile::create` fails if other processes remove this many of its files in a row before it can lock them.
const ATTEMPTS: usize = 100;

impl NewFile {
    /// Begins a file that will replace the one at `path`, and removes temporary files that killed processes left in the
    /// folder.
    ///
    /// If `path` is a symbolic link, the file that it points to is replaced, which need not exist.
    ///
    /// # Errors
    /// Errors of the system; [`io::ErrorKind::IsADirectory`] or [`io::ErrorKind::InvalidInput`] if `path` exists but
    /// is no regular file, or if it names no file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<NewFile> {
        Self::create_at(path.as_ref())
    }

    fn create_at(path: &Path) -> io::Result<NewFile> {
        let target = follow_links(path)?;
        let (Some(folder), Some(_)) = (target.parent(), target.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file; add a file name"));
        };
        let permissions = permissions_of(&target)?;
        leftovers::remove(folder);
        at!(Create)?;
        let temporary = temporary(folder, permissions.as_ref()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), format!("the folder `{}` does not exist; create it", folder.display()))
            }
            _ => error,
        })?;
        Ok(NewFile { temporary, target, permissions })
    }

    /// Syncs the file to the disk and renames it to its target.
    ///
    /// # Errors
    /// Errors of the system. The old file is unchanged, unless the text says that the new file is in its place and only
    /// the folder could not be synced.
    pub fn commit(self) -> io::Result<()> {
        let NewFile { temporary, target, permissions } = self;
        if let Some(permissions) = permissions {
            at!(Permissions)?;
            temporary.as_file().set_permissions(permissions)?;
        }
        at!(SyncFile)?;
        temporary.as_file().sync_all()?;
        at!(Rename)?;
        let renamed = temporary.persist(&target).map_err(|refused| refused.error)?;
        let synced = at!(SyncFolder).and_then(|()| target.parent().map_or(Ok(()), sync_folder));
        drop(renamed); // releases the lock, held until the rename is done
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

/// Seeks in the bytes written so far, for formats that fill in lengths afterwards, such as archives.
impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temporary.as_file_mut().seek(to)
    }
}

/// The absolute path of the file that a write to `path` would change: symbolic links are followed.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    const MAX_LINKS: usize = 40; // as in Linux
    let mut path = std::path::absolute(path)?;
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Ok(path) };
        path.pop();
        path.push(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links follow one another; name the file itself"))
}

/// The permissions of the file at `target`; `None` if there is no file.
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
    #[cfg(unix)] // without setuid and setgid, which writing into the file would clear too
    return Ok(Some(PermissionsExt::from_mode(metadata.permissions().mode() & 0o777)));
    #[cfg(not(unix))]
    Ok(Some(metadata.permissions()))
}

/// Creates a locked file in `folder`, with a name that no other file has or will get.
fn temporary(folder: &Path, permissions: Option<&Permissions>) -> io::Result<NamedTempFile> {
    for _ in 0..ATTEMPTS {
        let file = leftovers::temporary(folder, permissions)?;
        at!(Lock)?;
        match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => continue, // another process locked it to remove it
            Ok(()) | Err(TryLockError::Error(_)) => {} // without locks, nobody removes leftovers
        }
        if has_its_name(&file)? {
            return Ok(file);
        }
    }
    Err(io::Error::other(format!("other processes removed {ATTEMPTS} new files from the folder; try again")))
}

fn has_its_name(file: &NamedTempFile) -> io::Result<bool> {
    #[cfg(unix)]
    return Ok(file.as_file().metadata()?.nlink() > 0);
    #[cfg(not(unix))]
    file.path().try_exists()
}

/// Syncs the names in a folder to the disk, if the system supports that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    let ignored = [io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported];
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if ignored.contains(&error.kind()) => Ok(()), // no read access to the folder, or no sync there
        synced => synced,
    }
}
