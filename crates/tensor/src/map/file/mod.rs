//! Maps of tensors in safetensors files: written, read within the budget, sent to a device, mapped.
//!
//! `header.rs` knows the format and trusts no file; `write.rs` writes files, `checks.rs` has their checksums. The
//! names in a file are the paths of the map. The map's batches are notes of the file, which other programs ignore.
//!
//! Promises: what a header claims is checked against the length of the file before anything is allocated. A file that
//! is cut short or changed while it is read is an error. On the way to a device, only the slots of the ring hold
//! parts of the file.

mod checks;
mod header;
mod write;

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pagelock_cuda::HostSource;
use pagelock_memory::text::shortened;
use pagelock_memory::{HostBuffer, Mapped, open_regular};

use self::header::{Claim, Header};
use super::{AnyTensor, TensorMap};
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::parallel;
use crate::shape::{IntoShape, Shape};
use crate::storage::{on_cuda, on_host};
use crate::tensor::{Raw, Tensor};
use crate::transfer::many::next;

/// An open safetensors file, of which only the header has been read; see [`TensorMap::open`].
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    stamp: Stamp,
    header: Header,
    by_path: Vec<usize>, // the claims in the order of their paths
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len_bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp { len_bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// Bytes that a thread reads at once.
const TASK_BYTES: usize = 4 << 20;

impl TensorMap {
    /// Opens a safetensors file, of this crate or another program, and reads its header; the tensors are read by
    /// [`TensorFile::to`]. Names with dots become maps in maps.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is no whole safetensors file, holds elements that no tensor has, or names that
    /// are no paths.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{Device, Tensor, TensorMap};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights.safetensors");
    /// let mut map = TensorMap::new(())?;
    /// map.set("layer.weight", Tensor::ones([3, 2])?)?;
    /// map.save(&path)?;
    ///
    /// let file = TensorMap::open(&path)?; // nothing but names, types and shapes
    /// assert_eq!((file.len(), file.len_bytes()), (1, 24));
    /// let there = file.to(&Device::best())?; // through the ring, or within the host's budget
    /// assert_eq!(there.get("layer.weight")?.to_vec::<f32>()?, [1.0; 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<TensorFile> {
        let opened = TensorFile::open(path)?;
        opened.check_names()?;
        Ok(opened)
    }
}

fn open(path: &Path) -> Result<(File, Stamp)> {
    let failed = |source| Error::io("open", path, source);
    let (file, _) = open_regular(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    Ok((file, Stamp::of(&metadata)))
}

impl TensorFile {
    /// Opens a safetensors file whose names may be any text, and reads its header; [`TensorFile::get_any`] reads a
    /// tensor.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is no whole safetensors file, or holds elements that no tensor has;
    /// [`Error::WorkingMemory`] if the budget has no room for the header.
    ///
    /// # Examples
    /// See [`TensorFile::save`].
    pub fn open(path: impl AsRef<Path>) -> Result<TensorFile> {
        let path = path.as_ref();
        let (file, stamp) = open(path)?;
        let header = header::read(path, &file, stamp.len_bytes)?;
        let mut by_path: Vec<usize> = (0..header.claims.len()).collect();
        by_path.sort_by_key(|&at| &header.claims[at].path);
        Ok(TensorFile { file, path: path.to_owned(), stamp, header, by_path })
    }

    /// The number of tensors in the file.
    pub fn len(&self) -> usize {
        self.header.claims.len()
    }

    /// Whether the file has no tensors.
    pub fn is_empty(&self) -> bool {
        self.header.claims.is_empty()
    }

    /// The size of the elements of all tensors in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.header.claims.iter().map(|claim| claim.bytes.end - claim.bytes.start).sum()
    }

    /// Path, element type and shape of each tensor, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, DType, &Shape)> {
        self.header.claims.iter().map(|claim| (&*claim.path, claim.dtype, &claim.shape))
    }

    /// The paths of all tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.by_path.iter().map(|&at| &*self.header.claims[at].path)
    }

    /// All tensors on `device`. For a GPU, several threads read them straight into the slots of the page-locked ring
    /// that all copies share, and they are nowhere else in host memory. On the host, they are allocated from the
    /// budget.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if the file was cut short or changed since it was opened, or if a byte of a
    /// `bool` tensor is neither 0 nor 1; [`Error::Memory`], [`Error::DeviceMemory`], [`Error::Cuda`].
    #[track_caller]
    pub fn to(&self, device: &Device) -> Result<TensorMap> {
        let _here = pagelock_cuda::here();
        let raws = match device {
            Device::Cpu => self.read()?,
            Device::Cuda(cuda) => self.send(device, cuda)?,
        };
        self.check_unchanged()?;
        self.map_of(raws)
    }

    /// The tensor of floats at `path`, on `device`, without the others.
    ///
    /// # Errors
    /// As [`to`](Self::to); [`Error::NoEntry`], [`Error::At`] if its elements are of another kind.
    #[track_caller]
    pub fn get(&self, path: &str, device: &Device) -> Result<Tensor> {
        self.get_as(path, device)
    }

    /// The tensor of kind `K` at `path`, on `device`, without the others.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[track_caller]
    pub fn get_as<K: Kind>(&self, path: &str, device: &Device) -> Result<Tensor<K>> {
        let _here = pagelock_cuda::here();
        self.get_any(path, device)?.kind().map_err(|source| Error::at(path, source))
    }

    /// The tensor at `path`, on `device`, of whatever kind.
    ///
    /// # Errors
    /// As [`to`](Self::to); [`Error::NoEntry`].
    #[track_caller]
    pub fn get_any(&self, path: &str, device: &Device) -> Result<AnyTensor> {
        let _here = pagelock_cuda::here();
        let (dtype, shape, at) = self.elements(path)?;
        let tensor = at.tensor(dtype, shape, device)?;
        self.check_unchanged()?;
        Ok(AnyTensor::new(tensor))
    }

    /// The element type and shape of the tensor at `path`, and where its elements are in the file, for programs that
    /// read a few rows of it at a time.
    ///
    /// # Errors
    /// [`Error::NoEntry`].
    pub fn elements(&self, path: &str) -> Result<(DType, Shape, FileElements<'_>)> {
        let claim = self.claim(path)?;
        Ok((claim.dtype, claim.shape, self.elements_of(claim)))
    }

    fn elements_of(&self, claim: &Claim) -> FileElements<'_> {
        FileElements { file: &self.file, path: &self.path, start: claim.bytes.start }
    }

    fn claim(&self, path: &str) -> Result<&Claim> {
        let claims = &self.header.claims;
        if let Ok(found) = self.by_path.binary_search_by(|&at| claims[at].path.as_str().cmp(path)) {
            return Ok(&claims[self.by_path[found]]);
        }
        let names = super::listed(claims.iter().map(|claim| &*claim.path));
        Err(Error::NoEntry { path: shortened(path), inside: String::new(), names })
    }

    /// All tensors, mapped into memory as parts of the file. Pages are read when they are first accessed, and the
    /// system can reclaim their RAM at any time. The tensors cannot be changed in place. `bool` tensors, and tensors
    /// whose position is no multiple of their element's size, are read instead.
    ///
    /// # Errors
    /// As [`to`](Self::to).
    ///
    /// # Safety
    /// Nobody, in this process or another, may change or shorten the file from when it was opened until the last of
    /// the tensors and of their views is dropped. Their elements are handed out as slices, which must not change, and
    /// reading behind the end of a shortened file kills the process. Files that are written under another name and
    /// then renamed into place, as [`TensorMap::save`] does, satisfy this.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("x.safetensors");
    /// let mut map = TensorMap::new([2])?;
    /// map.set("x", Tensor::new([1.0, 2.0])?)?;
    /// map.save(&path)?;
    /// // SAFETY: nobody else knows the temporary folder.
    /// let mapped = unsafe { TensorMap::open(&path)?.map()? };
    /// assert_eq!(mapped.get("x")?.sum(..)?.item::<f32>()?, 3.0);
    /// assert!(mapped.get("x")?.zero_().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn map(&self) -> Result<TensorMap> {
        let mut storages = Vec::new(); // one for each element type
        let mut raws = Vec::new();
        for claim in &self.header.claims {
            let size = claim.dtype.size() as u64;
            if claim.dtype == DType::Bool || !claim.bytes.start.is_multiple_of(size) {
                raws.push(self.read_one(claim)?);
                continue;
            }
            if !storages.iter().any(|(dtype, _)| *dtype == claim.dtype) {
                // SAFETY: the caller promises that nobody changes the file.
                let mapped = unsafe { Mapped::of_file(&self.file, &self.path) };
                let buffer = HostBuffer::from_block(mapped.map_err(|source| self.refused(claim, source))?);
                if buffer.len_bytes() as u64 != self.stamp.len_bytes {
                    return Err(self.was_changed());
                }
                storages.push((claim.dtype, on_host(buffer, claim.dtype)?));
            }
            let storage = storages.iter().find(|(dtype, _)| *dtype == claim.dtype).map(|(_, storage)| storage.clone());
            let Some(storage) = storage else { unreachable!("it was just made") };
            let layout = Layout::contiguous(claim.shape).starting_at((claim.bytes.start / size) as usize);
            raws.push(Raw { storage, layout, node: None });
        }
        self.check_unchanged()?;
        self.map_of(raws)
    }

    /// Reads all tensors on the host, within the budget.
    fn read(&self) -> Result<Vec<Raw>> {
        self.header.claims.iter().map(|claim| self.read_one(claim)).collect()
    }

    fn read_one(&self, claim: &Claim) -> Result<Raw> {
        self.elements_of(claim).read(claim.dtype, claim.shape).map_err(|source| Error::at(&claim.path, source))
    }

    /// Sends all tensors through the ring, but those whose bytes must be checked first by way of the host.
    fn send(&self, device: &Device, cuda: &CudaDevice) -> Result<Vec<Raw>> {
        let is_direct = |claim: &&Claim| claim.dtype != DType::Bool;
        let ranges: Vec<Range<u64>> =
            self.header.claims.iter().filter(is_direct).map(|claim| claim.bytes.clone()).collect();
        let sources = ranges.iter().map(|range| HostSource::of_file(&self.file, range.clone()));
        let sent = sources.collect::<Result<Vec<_>, _>>().and_then(|sources| cuda.stream().upload_all(&sources));
        let mut sent = sent.map_err(|source| unsent(&self.path, source))?.into_iter();
        let raw = |claim: &Claim| match if is_direct(&claim) { sent.next() } else { None } {
            Some(buffer) => {
                let (storage, layout) = (on_cuda(buffer, claim.dtype, device), Layout::contiguous(claim.shape));
                Ok(Raw { storage, layout, node: None })
            }
            None => Ok(self.read_one(claim)?.to(device)?),
        };
        self.header.claims.iter().map(raw).collect()
    }

    fn refused(&self, claim: &Claim, source: pagelock_memory::Error) -> Error {
        Error::Memory { op: "map", shape: claim.shape, dtype: claim.dtype, source }
    }

    fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|source| Error::io("read the metadata of", &self.path, source))?;
        if Stamp::of(&now) == self.stamp {
            return Ok(());
        }
        Err(self.was_changed())
    }

    fn was_changed(&self) -> Error {
        content(&self.path, "it was changed after it was opened; open it again when nobody writes to it")
    }

    /// Checks that the names are paths of one map.
    fn check_names(&self) -> Result<()> {
        let placeholder = |claim: &Claim| -> Result<Raw> {
            // Expanded from one number, so that no shape takes memory.
            let one = on_host(HostBuffer::placed(8).map_err(|source| self.refused(claim, source))?, claim.dtype)?;
            let layout = Layout::contiguous(Shape::SCALAR).expand("open", &claim.shape)?;
            Ok(Raw { storage: one, layout, node: None })
        };
        self.map_of(self.header.claims.iter().map(placeholder).collect::<Result<Vec<_>>>()?).map(drop)
    }

    /// The map of the tensors that were made for the claims, in their order.
    fn map_of(&self, raws: Vec<Raw>) -> Result<TensorMap> {
        let wrong = |error: Error| content(&self.path, &error.to_string());
        let mut map = TensorMap::new(self.header.batch)?;
        for (path, batch) in &self.header.inner {
            map.set_map(path, TensorMap::new(batch)?).map_err(wrong)?;
        }
        for (claim, raw) in self.header.claims.iter().zip(raws) {
            map.set_new(&claim.path, AnyTensor::new(raw)).map_err(wrong)?;
        }
        Ok(map)
    }
}

/// Consecutive elements in an open file, in this machine's byte order, as files of many formats have them.
#[derive(Debug, Clone, Copy)]
pub struct FileElements<'a> {
    /// The file.
    pub file: &'a File,
    /// The file's name in errors.
    pub path: &'a Path,
    /// Where in the file the first element begins, in bytes.
    pub start: u64,
}

impl FileElements<'_> {
    /// A tensor of these elements on `device`. For a GPU, several threads read them straight into the slots of the
    /// page-locked ring that all copies share, and they are nowhere else in host memory. On the host, they are
    /// allocated from the budget.
    ///
    /// # Errors
    /// [`Error::Content`] if the file ends before the last element, or if a byte of a `bool` tensor is neither 0 nor
    /// 1; [`Error::Io`], [`Error::Memory`], [`Error::DeviceMemory`], [`Error::Cuda`]; as [`Shape::new`].
    ///
    /// # Examples
    /// ```
    /// use std::fs::{self, File};
    /// use pagelock_tensor::{Device, FileElements};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("numbers.bin");
    /// fs::write(&path, [[0; 4], 1.5_f32.to_le_bytes(), 2.5_f32.to_le_bytes()].concat())?;
    ///
    /// let elements = FileElements { file: &File::open(&path)?, path: &path, start: 4 };
    /// assert_eq!(elements.to::<f32>([2], &Device::best())?.to_vec::<f32>()?, [1.5, 2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn to<T: Element>(&self, shape: impl IntoShape, device: &Device) -> Result<Tensor<T::Kind>> {
        let _here = pagelock_cuda::here();
        self.checked(T::DTYPE, shape.into_shape()?, device).map(Raw::typed)
    }

    fn checked(&self, dtype: DType, shape: Shape, device: &Device) -> Result<Raw> {
        let metadata = self.file.metadata().map_err(|source| Error::io("read the metadata of", self.path, source))?;
        let end = self.start.checked_add((shape.elements() * dtype.size()) as u64);
        if end.is_none_or(|end| end > metadata.len()) {
            let problem = format!(
                "{} {shape} from byte {} on do not fit into its {} bytes; it was cut short: get it again",
                dtype,
                self.start,
                metadata.len()
            );
            return Err(content(self.path, &problem));
        }
        self.tensor(dtype, shape, device)
    }

    fn tensor(&self, dtype: DType, shape: Shape, device: &Device) -> Result<Raw> {
        match device {
            Device::Cuda(cuda) if dtype != DType::Bool => self.send(dtype, shape, device, cuda),
            device => self.read(dtype, shape)?.to(device),
        }
    }

    fn send(&self, dtype: DType, shape: Shape, device: &Device, cuda: &CudaDevice) -> Result<Raw> {
        let len_bytes = (shape.elements() * dtype.size()) as u64;
        let range = self.start..self.start.saturating_add(len_bytes);
        let sent = HostSource::of_file(self.file, range).and_then(|source| cuda.stream().upload_all(&[source]));
        let buffer = sent.map_err(|source| unsent(self.path, source))?.pop();
        let Some(buffer) = buffer else { unreachable!("there is one buffer for one range") };
        let (storage, layout) = (on_cuda(buffer, dtype, device), Layout::contiguous(shape));
        Ok(Raw { storage, layout, node: None })
    }

    /// Reads on the host, with as many threads as kernels use.
    fn read(&self, dtype: DType, shape: Shape) -> Result<Raw> {
        let refused = |source| Error::Memory { op: "read", shape, dtype, source };
        let mut memory = HostBuffer::placed(shape.elements() * dtype.size()).map_err(refused)?;
        let bytes = memory.bytes_mut().map_err(refused)?;
        let tasks = bytes.chunks_mut(TASK_BYTES).enumerate();
        let (n_tasks, tasks) = (tasks.len(), Mutex::new(tasks));
        let failure: Mutex<Option<io::Error>> = Mutex::new(None);
        parallel::run(parallel::num_threads().min(n_tasks), |_| {
            loop {
                let Some((at, chunk)) = next(&tasks) else { return };
                let start = self.start + (at * TASK_BYTES) as u64;
                if let Err(error) = self.file.read_exact_at(chunk, start) {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(unread(self.path, error));
        }
        if dtype == DType::Bool && memory.bytes().iter().any(|&byte| byte > 1) {
            return Err(content(self.path, "it has a bool that is neither 0 nor 1; get it again"));
        }
        Ok(Raw { storage: on_host(memory, dtype)?, layout: Layout::contiguous(shape), node: None })
    }
}

fn unread(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => content(path, "it was cut short while it was read; get it again"),
        _ => Error::io("read", path, source),
    }
}

fn unsent(path: &Path, source: pagelock_cuda::Error) -> Error {
    match source {
        pagelock_cuda::Error::File { source } => unread(path, source),
        source => Error::cuda("to", source),
    }
}

fn content(path: &Path, problem: &str) -> Error {
    Error::Content { path: path.to_owned(), problem: problem.to_owned() }
}
