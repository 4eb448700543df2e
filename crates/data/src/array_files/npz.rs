//! NumPy's `.npz`: a zip archive of `.npy` files, which the crate `zip` reads.

use std::io::{self, BufReader, Read};
use std::path::Path;

use pagelock_memory::{CountedReader, HostBuffer, default_host};
use pagelock_tensor::Kind;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::{Array, StoredRows};
use crate::error::Problem;
use crate::file_bytes::{FileBytes, MAX_DEFLATE_RATIO, Reader};
use crate::identity::Checksum;
use crate::{Error, Result};

type Archive = ZipArchive<BufReader<CountedReader<Reader>>>;

/// Memory that a parsed directory takes at most, as a multiple of its length in the file.
const PARSED_RATIO: u64 = 24;
/// Reads the directory of an archive.
fn archive(path: &Path, bytes: &FileBytes) -> Result<Archive> {
    let (reader, parsed) = CountedReader::new(bytes.clone().reader(), PARSED_RATIO);
    let archive = Archive::new(BufReader::new(reader))
        .map_err(|error| parsed.take_refusal().map_or_else(|| failed(path, error), Error::from))?;
    parsed.mark_read(); // members are read from here on, into buffers that the budget counts itself
    Ok(archive)
}

fn failed(path: &Path, error: ZipError) -> Error {
    match error {
        ZipError::Io(source) if source.raw_os_error().is_some() => Error::io("read", path, source),
        error => Error::content(path, not_whole(&error.to_string())),
    }
}

impl<K: Kind> StoredRows<K> {
    /// The rows of the array `name` of a `.npz` file. An array that `numpy.savez` wrote is read on demand from the
    /// file. One that `numpy.savez_compressed` wrote is unpacked into memory here. Either is read once in full here,
    /// to verify its checksum.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is not a `.npz` file, has no array of that name, or the array does not
    /// match its checksum or is not one that [`npy`](Self::npy) reads; [`Error::Memory`] if the budget has no memory
    /// to unpack it.
    ///
    /// # Examples
    /// ```no_run
    /// use pagelock_data::{DataLoader, StoredRows};
    /// use pagelock_tensor::Int;
    ///
    /// // numpy.savez("train.npz", images=images, labels=labels)
    /// let images = StoredRows::<Int>::npz("train.npz", "images")?;
    /// for batch in &DataLoader::new(images).batch_size(64).shuffle(0).num_workers(2) {
    ///     println!("{:?}", batch?.dims());
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn npz(path: impl AsRef<Path>, name: &str) -> Result<Self> {
        Self::of(Array::npz(path.as_ref(), name)?)
    }
}

impl Array {
    fn npz(path: &Path, name: &str) -> Result<Self> {
        let bytes = FileBytes::open(path)?;
        let mut archive = archive(path, &bytes)?;
        let found = archive.index_for_name(&format!("{name}.npy")).or_else(|| archive.index_for_name(name));
        let index = found.ok_or_else(|| missing(path, name, &archive))?;
        let packed_with = archive.by_index_raw(index).map_err(|error| failed(path, error))?.compression();
        if ![CompressionMethod::Stored, CompressionMethod::Deflated].contains(&packed_with) {
            let problem = format!("its array `{name}` is packed with {packed_with}, which is not supported");
            return Err(Error::content(path, format!("{problem}; write it with numpy.savez")));
        }
        let member = archive.by_index(index).map_err(|error| failed(path, error))?;
        let checksum = Checksum(member.crc32());
        let array = match member.compression() {
            CompressionMethod::Stored => in_place(member, &bytes).map_err(Problem::from),
            _ => unpacked(member),
        };
        let array =
            array.map_err(|problem| problem.explained(|what| not_whole(&format!("`{name}` {what}"))).at(path))?;
        Ok(Self { checksum: Some(checksum), ..Self::npy_in(path, array)? })
    }
}

/// The text for an archive that is damaged or of another format.
fn not_whole(what: &str) -> String {
    format!("it is not a complete .npz file: {what}; get it again, or write it with numpy.savez")
}

fn missing(path: &Path, name: &str, archive: &Archive) -> Error {
    let names = archive.file_names().take(10).filter_map(|name| name.ok());
    let names: Vec<_> = names.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_owned()).collect();
    match names.is_empty() {
        true => Error::content(path, not_whole("its directory is empty")),
        false => Error::content(path, format!("it has no array `{name}`; it has {}", names.join(", "))),
    }
}

/// The range of the file that holds a stored member, after its checksum was verified; else what is wrong.
fn in_place<R: Read>(mut member: ZipFile<'_, R>, bytes: &FileBytes) -> Result<FileBytes, String> {
    let (start, len) = (member.data_start(), member.size());
    let part = start.and_then(|start| bytes.part(start, len)).ok_or("reaches beyond its end")?;
    match io::copy(&mut member, &mut io::sink()) {
        Ok(n_bytes) if n_bytes == len => Ok(part),
        Ok(n_bytes) => Err(format!("has {n_bytes} bytes, but claims {len}")),
        Err(error) => Err(format!("does not match its checksum ({error})")),
    }
}

/// A compressed member, unpacked into memory; else what is wrong with it.
fn unpacked<R: Read>(mut member: ZipFile<'_, R>) -> Result<FileBytes, Problem> {
    let len = member.size();
    if len > member.compressed_size().saturating_add(1).saturating_mul(MAX_DEFLATE_RATIO) {
        return Err(format!("claims to unpack to {len} bytes, more than Deflate allows").into());
    }
    let mut memory = HostBuffer::allocate(default_host(), len as usize)?;
    // `zip` compares the checksum at the end of the member, which only the last of these reads reaches.
    let is_whole = member.read_exact(memory.bytes_mut()?).is_ok() && matches!(member.read(&mut [0]), Ok(0));
    if is_whole {
        Ok(FileBytes::of_memory(memory))
    } else {
        Err("does not unpack to its length and checksum".to_owned().into())
    }
}
