//! Files with given content, for tests of readers.

use std::path::PathBuf;

use tempfile::TempDir;

/// A file with that content, and its folder, which removes the file on drop.
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
