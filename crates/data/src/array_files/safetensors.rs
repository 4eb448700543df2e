//! Safetensors: the length of a header, the header (JSON: name, type, shape and place of each tensor), the elements.

use std::path::Path;

use pagelock_memory::HeapReservation;
use pagelock_tensor::{DType, Kind};
use safetensors::tensor::Metadata;

use super::{Array, Claim, StoredRows, bytes_of, open};
use crate::{Error, Result};

/// What the format allows.
const LONGEST_HEADER: u64 = 100_000_000;
/// Memory that a parsed header takes at most, as a multiple of its length in the file.
const PARSED: u64 = 16;

impl<K: Kind> StoredRows<K> {
    /// The rows of the tensor `name` of a `.safetensors` file, in the precision of the file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is no such file, has no tensor of that name, has elements of another kind, or
    /// is shorter than its header says.
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
        let bytes = open(path)?;
        let mut start = [0; 8];
        let n_start = bytes.len().min(8) as usize;
        bytes.read_exact_at(&mut start[..n_start], 0).map_err(|source| Error::io("read", path, source))?;
        let header_bytes = u64::from_le_bytes(start);
        if n_start < 8 || header_bytes > LONGEST_HEADER || 8 + header_bytes > bytes.len() {
            return Err(Error::content(path, "it does not start like a safetensors file; get it again"));
        }
        let _room = HeapReservation::new(header_bytes.saturating_mul(PARSED))?;
        let mut header = vec![0; header_bytes as usize];
        bytes.read_exact_at(&mut header, 8).map_err(|source| Error::io("read", path, source))?;
        let damaged = |why: String| Error::content(path, format!("its header is damaged ({why}); get it again"));
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let Some(info) = metadata.info(name) else {
            let mut names: Vec<_> = metadata.tensors().into_keys().collect();
            names.sort();
            names.truncate(10);
            return Err(Error::content(path, format!("it has no tensor `{name}`; it has {}", names.join(", "))));
        };
        let Some(dtype) = DType::from_safetensors(&info.dtype.to_string()) else {
            return Err(Error::content(path, format!("`{name}` has elements of {}, which no tensor has", info.dtype)));
        };
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if to.checked_sub(from) != bytes_of(dtype, &info.shape) {
            return Err(damaged(format!("`{name}` is {:?} of {dtype}, in bytes {from} to {to}", info.shape)));
        }
        let start = (8 + header_bytes).saturating_add(from);
        Self::claimed(path, bytes, Claim { dtype, shape: info.shape.clone(), start })
    }
}
