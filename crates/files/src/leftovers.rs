//! Temporary files: their names, and the removal of those that killed processes left.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tempfile::NamedTempFile;

/// Names are `.pagelock-`, [`RANDOM_CHARS`] random letters and digits, and `.tmp`. They do not contain the target's
/// name, so that it may be as long as the system allows.
const PREFIX: &str = ".pagelock-";
const RANDOM_CHARS: usize = 20;
const SUFFIX: &str = ".tmp";

/// Creates a file with a new name in `folder`, which is removed when it is dropped. Its permissions are `permissions`,
/// reduced by the umask, or those of an ordinary new file.
#[cfg_attr(not(unix), expect(unused_variables, reason = "`NewFile::commit` sets the permissions"))]
pub(crate) fn temporary(folder: &Path, permissions: Option<&Permissions>) -> io::Result<NamedTempFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    options.mode(permissions.map_or(0o666, Permissions::mode));
    let mut names = tempfile::Builder::new();
    names.prefix(PREFIX).rand_bytes(RANDOM_CHARS).suffix(SUFFIX);
    names.make_in(folder, |path| options.open(path))
}

/// Removes the temporary files in `folder` that no process is writing. Errors are ignored.
pub(crate) fn remove(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if is_temporary(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_if_left(&entry.path());
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == RANDOM_CHARS && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Removes the file unless it is locked: a process that writes it holds a lock on it.
fn remove_if_left(path: &Path) {
    let opened = File::options().read(true).write(true).open(path); // some file systems lock only writable files
    let Ok(file) = opened.or_else(|_| File::open(path)) else { return };
    if file.try_lock().is_ok() {
        let _ = fs::remove_file(path); // names are not reused, so this removes no other file
    }
}
