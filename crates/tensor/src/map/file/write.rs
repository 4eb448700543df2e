//! Writing a map as a safetensors file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::{AnyTensor, Entry, TensorMap};
use super::header;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::{Tensor, typed};

impl TensorMap {
    /// Writes all tensors to a safetensors file, which PyTorch and others read, in place of what was there; the paths are
    /// the names. It is written under another name and then renamed: whoever opens it finds the old file or the new one,
    /// whole. Tensors of a device come down one at a time.
    ///
    /// # Errors
    /// [`Error::Io`]; what was there is still there then. As [`Tensor::to`] for tensors on a device.
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
        let header = header::text(
            tensors.iter().map(|(path, tensor)| (&**path, tensor.dtype(), tensor.shape())),
            batches.iter().map(|(path, batch)| (&**path, *batch)),
        );
        let temporary = Temporary::beside(path).map_err(failed)?;
        let mut file = BufWriter::new(File::create_new(&temporary.path).map_err(failed)?);
        file.write_all(&header).map_err(failed)?;
        for (name, tensor) in tensors {
            typed!(tensor.raw(), tensor => write(&tensor, &mut file).map_err(|source| Error::at(&name, source))?)
                .map_err(failed)?;
        }
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary.path, path).map_err(failed)
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
fn write<T: Element>(tensor: &Tensor<T>, file: &mut impl Write) -> Result<io::Result<()>> {
    let here = tensor.clone().with_node(None).readable()?.gap_free()?;
    let reading = here.read("save")?;
    Ok(file.write_all(bytemuck::cast_slice(reading.of(here.layout()))))
}

/// The name of a file that is gone when this is dropped.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> io::Result<Temporary> {
        static COUNT: AtomicU64 = AtomicU64::new(0); // Relaxed: only its own uniqueness matters
        let unnamed = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().ok_or_else(unnamed)?);
        name.push(format!(".{}.{}.tmp", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        Ok(Temporary { path: path.with_file_name(name) })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // already renamed, unless something failed
    }
}
