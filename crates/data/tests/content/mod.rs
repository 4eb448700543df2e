//! Files of some content, for tests of what reads them.

use std::path::PathBuf;

use pagelock_data::Error;
use tempfile::TempDir;

/// A file with that content, and the folder that it goes with.
pub(crate) fn file(content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

/// What is wrong, without the name of the file.
pub(crate) fn problem<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Content { problem, .. }) => problem,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("the file was accepted"),
    }
}
