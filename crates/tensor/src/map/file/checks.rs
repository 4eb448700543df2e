//! CRC-32C checksums of safetensors files, in a note of the file. The first number is the sum of the checksums of
//! each tensor's name, type and shape. The others are checksums of the elements of each tensor that has any, in the
//! order of the file.
//!
//! Invariant: with any byte changed, a file that has checksums is refused or has the same names, types, shapes and elements.

use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use pagelock_memory::text::shortened;

use super::header::Claim;
use super::{AnyTensor, TensorFile, content, unread};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// The note for tensors that are written in this order.
pub(super) fn of(tensors: &[(&str, &AnyTensor)]) -> Result<String> {
    let names = tensors.iter().map(|(name, tensor)| of_name(name, tensor.dtype(), tensor.shape()));
    let mut sums = vec![names.fold(0, u32::wrapping_add)];
    for (name, tensor) in tensors.iter().filter(|(_, tensor)| tensor.len_bytes() > 0) {
        let mut sum = Checksum::default();
        let summed = tensor.write_elements(&mut sum);
        summed.map_err(|source| Error::at(name, source))?.unwrap_or_else(|_| unreachable!("a sum takes all bytes"));
        sums.push(sum.0);
    }
    Ok(sums.iter().map(|sum| format!("{sum:08x}")).collect::<Vec<_>>().join(","))
}

impl TensorFile {
    /// Reads the whole file, and compares it with the checksums that [`TensorFile::save_checked`] wrote.
    ///
    /// # Errors
    /// [`Error::Content`] says which tensor is damaged, or that the file has no checksums; [`Error::Io`].
    ///
    /// # Examples
    /// ```
    /// use std::fs;
    /// use pagelock_tensor::{AnyTensor, Tensor, TensorFile};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights.safetensors");
    /// let ones = AnyTensor::from(Tensor::ones([3])?);
    /// TensorFile::save_checked(&path, [("ones", &ones)])?;
    /// TensorFile::open(&path)?.check()?;
    ///
    /// let mut bytes = fs::read(&path)?;
    /// *bytes.last_mut().unwrap() ^= 1;
    /// fs::write(&path, bytes)?;
    /// assert!(TensorFile::open(&path)?.check().unwrap_err().to_string().contains("`ones`"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        let damaged = |problem: &str| content(&self.path, &format!("{problem}; get it again"));
        let note = self.header.checks.as_deref().ok_or_else(|| damaged("it has no checksums"))?;
        let mut sums = note.split(',').map(|sum| u32::from_str_radix(sum, 16).ok());
        let names = self.header.claims.iter().map(|claim| of_name(&claim.path, claim.dtype, &claim.shape));
        if sums.next() != Some(Some(names.fold(0, u32::wrapping_add))) {
            return Err(damaged("the names and shapes in its header do not match their checksum"));
        }
        let mut piece = vec![0; PIECE_BYTES];
        for claim in self.header.claims.iter().filter(|claim| !claim.bytes.is_empty()) {
            if sums.next() != Some(Some(self.sum_of(claim, &mut piece)?)) {
                let (name, bytes) = (shortened(&claim.path), &claim.bytes);
                let problem = format!("`{name}`, bytes {} to {}, does not match its checksum", bytes.start, bytes.end);
                return Err(damaged(&problem));
            }
        }
        self.check_unchanged()?;
        if sums.next().is_some() { Err(damaged("it has too many checksums")) } else { Ok(()) }
    }

    fn sum_of(&self, claim: &Claim, piece: &mut [u8]) -> Result<u32> {
        let mut sum = Checksum::default();
        let mut start = claim.bytes.start;
        while start < claim.bytes.end {
            let len = (claim.bytes.end - start).min(piece.len() as u64) as usize;
            self.file.read_exact_at(&mut piece[..len], start).map_err(|source| unread(&self.path, source))?;
            sum.add(&piece[..len]);
            start += len as u64;
        }
        Ok(sum.0)
    }
}

/// The checksum of a tensor's entry in the header.
fn of_name(name: &str, dtype: DType, shape: &Shape) -> u32 {
    crc32c::crc32c(format!("{dtype} {shape} {name}").as_bytes())
}

/// The checksum of the bytes that are written to it.
#[derive(Default)]
struct Checksum(u32);

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }
}

impl Write for Checksum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
