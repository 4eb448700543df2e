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

/// A `.npy` file with that header and those elements.
pub(crate) fn npy(dictionary: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{dictionary:<117}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

/// What is wrong, without the name of the file.
pub(crate) fn problem<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Content { problem, .. }) => {
            problem.strip_prefix("cannot be used: ").expect("an error of this crate's readers").to_owned()
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("the file was accepted"),
    }
}
