//! Writing a map as a safetensors file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use pagelock_files::NewFile;

use super::super::{AnyTensor, Entry, TensorMap};
use super::header;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::{Raw, by_dtype};
use crate::transfer::readable;

impl TensorMap {
    /// Writes all tensors to a safetensors file, which PyTorch and others read, in place of what was there; the paths are
    /// the names. It is written under another name and then renamed: whoever opens it finds the old file or the new one,
    /// whole. Tensors of a device come down one at a time.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if a tensor has the path `__metadata__`, which the format keeps for itself, or the paths are longer
    /// than it allows; [`Error::Io`]; as [`Tensor::to`](crate::Tensor::to) for tensors on a device. What was there is still there then.
    ///
    /// # Examples
    /// See [`TensorMap::open`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |source| Error::io("write", path, source);
        let mut tensors: Vec<(String, &AnyTensor)> = self.iter().collect();
        tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().size())); // so that all are aligned
        let mut batches = vec![(String::new(), &self.batch)];
        self.batches_into("", &mut batches);
        let unwritable = |problem| Error::Unwritable { path: path.to_owned(), problem };
        let header = header::text(
            tensors.iter().map(|(path, tensor)| (&**path, tensor.dtype(), tensor.shape())),
            batches.iter().map(|(path, batch)| (&**path, *batch)),
        )
        .map_err(unwritable)?;
        let mut file = BufWriter::new(NewFile::create(path).map_err(failed)?);
        file.write_all(&header).map_err(failed)?;
        for (name, tensor) in tensors {
            let written = by_dtype!(tensor.dtype(), T => write::<T>(tensor.raw(), &mut file));
            written.map_err(|source| Error::at(&name, source))?.map_err(failed)?;
        }
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.commit().map_err(failed)
    }

    /// The batches of the maps in this one.
    fn batches_into<'a>(&'a self, before: &str, all: &mut Vec<(String, &'a Shape)>) {
        for (name, entry) in &self.entries {
            if let Entry::Map(map) = entry {
                let path = if before.is_empty() { name.to_string() } else { format!("{before}.{name}") };
                all.push((path.clone(), &map.batch));
                map.batches_into(&path, all);
            }
        }
    }
}

/// The elements in row-major order; what the file says, apart from what the tensor says.
fn write<T: Element>(tensor: &Raw, file: &mut impl Write) -> Result<io::Result<()>> {
    let here = readable(tensor)?.gap_free()?;
    let reading = here.read::<T>("save")?;
    Ok(file.write_all(bytemuck::cast_slice(reading.of(&here.layout))))
}
