//! Safetensors files: locates the rows of a tensor with [`TensorFile`], which reads the header.

use std::path::Path;

use pagelock_tensor::{Error as TensorError, FileElements, Kind, TensorFile};

use super::{Array, Claim, FileBytes, StoredRows};
use crate::{Error, Result};

impl<K: Kind> StoredRows<K> {
    /// The rows of the tensor `name` of a `.safetensors` file, in the precision of the file.
    ///
    /// # Errors
    /// As [`TensorFile::open`], but with this crate's [`Error::Io`] and [`Error::Content`]; [`Error::Content`] if the
    /// file has no tensor of that name, or the tensor has elements of another kind.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{Dataset, StoredRows};
    /// use pagelock_tensor::Int;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// let header = r#"{"labels":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}    "#;
    /// let elements = [7_i64.to_le_bytes(), 9_i64.to_le_bytes()].concat();
    /// std::fs::write(&file, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &elements].concat())?;
    ///
    /// let labels = StoredRows::<Int>::safetensors(file.path(), "labels")?;
    /// assert_eq!(labels.read()?.to_vec::<i64>()?, [7, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn safetensors(path: impl AsRef<Path>, name: &str) -> Result<Self> {
        Self::of(Array::safetensors(path.as_ref(), name)?)
    }
}

impl Array {
    fn safetensors(path: &Path, name: &str) -> Result<Self> {
        let opened = TensorFile::open(path).map_err(of_file)?;
        let (dtype, shape, FileElements { file, start, .. }) = opened.elements(name).map_err(|error| match error {
            TensorError::NoEntry { path: name, names, .. } => {
                Error::content(path, format!("it has no tensor `{name}`; it has {names}"))
            }
            error => of_file(error),
        })?;
        let bytes = file.try_clone().and_then(FileBytes::of_file).map_err(|source| Error::io("open", path, source))?;
        Self::claimed(path, bytes, Claim { dtype, shape: shape.to_vec(), start })
    }
}

/// Converts an error about a file to this crate's error.
fn of_file(error: TensorError) -> Error {
    match error {
        TensorError::Content { path, problem } => Error::content(&path, problem),
        TensorError::Io { action, path, source } => Error::io(action, &path, source),
        error => error.into(),
    }
}
