//! Writing a map as a safetensors file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use pagelock_files::NewFile;

use super::super::{AnyTensor, Entry, TensorMap, joined};
use super::{TensorFile, checks, header};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::heap;
use crate::shape::Shape;
use crate::tensor::{Raw, by_dtype};
use crate::transfer::readable;

impl TensorMap {
    /// Writes all tensors to a safetensors file, which PyTorch and others read, and replaces an existing file. The
    /// paths are the names. The file is written under another name and then renamed, so a program that opens it finds
    /// either the whole old file or the whole new one. Tensors on a device are copied to the host one at a time.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if a tensor has the path `__metadata__`, which the format reserves, or the paths are
    /// longer than it allows; [`Error::Io`]; as [`Tensor::to`](crate::Tensor::to) for tensors on a device. An
    /// existing file is then unchanged.
    ///
    /// # Examples
    /// See [`TensorMap::open`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let tensors: Vec<(String, &AnyTensor)> = self.iter().collect();
        let mut batches = vec![(String::new(), &self.batch)];
        self.batches_into("", &mut batches);
        save(path.as_ref(), tensors.iter().map(|(path, tensor)| (&**path, *tensor)).collect(), &batches, Checked::No)
    }

    /// The batches of the maps in this one.
    fn batches_into<'a>(&'a self, before: &str, all: &mut Vec<(String, &'a Shape)>) {
        for (name, entry) in self.entries.iter() {
            if let Entry::Map(map) = entry {
                let path = joined(before, name);
                all.push((path.clone(), &map.batch));
                map.batches_into(&path, all);
            }
        }
    }
}

impl TensorFile {
    /// Writes tensors with any names, as [`TensorMap::save`] does.
    ///
    /// # Errors
    /// As [`TensorMap::save`]; [`Error::Unwritable`] if two have the same name.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{AnyTensor, Device, Tensor, TensorFile};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights.safetensors");
    /// let ones = AnyTensor::from(Tensor::ones([3])?);
    /// TensorFile::save(&path, [("a", &ones), ("a.b", &ones)])?; // which no map could have
    ///
    /// let file = TensorFile::open(&path)?;
    /// assert_eq!(file.names().collect::<Vec<_>>(), ["a", "a.b"]);
    /// assert_eq!(file.get("a.b", &Device::Cpu)?.to_vec::<f32>()?, [1.0; 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save<'a>(path: impl AsRef<Path>, tensors: impl IntoIterator<Item = (&'a str, &'a AnyTensor)>) -> Result<()> {
        save(path.as_ref(), tensors.into_iter().collect(), &[], Checked::No)
    }

    /// Like [`save`](Self::save), with a checksum of each tensor among the file's notes, for [`TensorFile::check`].
    /// Other programs read the file as usual.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    ///
    /// # Examples
    /// See [`TensorFile::check`].
    pub fn save_checked<'a>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'a str, &'a AnyTensor)>,
    ) -> Result<()> {
        save(path.as_ref(), tensors.into_iter().collect(), &[], Checked::Yes)
    }
}

impl AnyTensor {
    /// Writes the elements in row-major order and this machine's byte order; those on a device are copied to the host
    /// first.
    ///
    /// # Errors
    /// The outer error is as of [`Tensor::to`](crate::Tensor::to), the inner one is that of `out`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{AnyTensor, Tensor};
    ///
    /// let mut bytes = Vec::new();
    /// AnyTensor::from(Tensor::full([2], 3)?).write_elements(&mut bytes)??;
    /// assert_eq!(bytes, [3_i64.to_ne_bytes(); 2].concat());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_elements(&self, out: &mut dyn Write) -> Result<io::Result<()>> {
        by_dtype!(self.dtype(), T => write::<T>(self.raw(), out))
    }
}

/// Whether a file has checksums.
#[derive(PartialEq)]
enum Checked {
    Yes,
    No,
}

fn save(
    path: &Path,
    mut tensors: Vec<(&str, &AnyTensor)>,
    batches: &[(String, &Shape)],
    checked: Checked,
) -> Result<()> {
    let failed = |source| Error::io("write", path, source);
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().size())); // so that all are aligned
    let header_bytes: usize = tensors.iter().map(|(name, _)| HEADER_BYTES + MADE * name.len()).sum();
    let _making = heap::reserve("save", "the header of the file", header_bytes)?;
    let checks = (checked == Checked::Yes).then(|| checks::of(&tensors)).transpose()?;
    let header = header::text(
        tensors.iter().map(|(path, tensor)| (*path, tensor.dtype(), tensor.shape())),
        batches.iter().map(|(path, batch)| (&**path, *batch)),
        checks,
    )
    .map_err(|problem| Error::Unwritable { path: path.to_owned(), problem })?;
    let mut file = BufWriter::new(NewFile::create(path).map_err(failed)?);
    file.write_all(&header).map_err(failed)?;
    for (name, tensor) in tensors {
        tensor.write_elements(&mut file).map_err(|source| Error::at(name, source))?.map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.commit().map_err(failed)
}

/// The bytes that a tensor takes while a header is made, beside its name, and the number of copies of the name.
const HEADER_BYTES: usize = 1_000;
const MADE: usize = 4;

/// Writes the elements in row-major order. The outer error is one of the tensor, the inner one of the file.
fn write<T: Element>(tensor: &Raw, file: &mut dyn Write) -> Result<io::Result<()>> {
    let here = readable(tensor)?.gap_free()?;
    let reading = here.read::<T>("save")?;
    Ok(file.write_all(bytemuck::cast_slice(reading.of(&here.layout))))
}
