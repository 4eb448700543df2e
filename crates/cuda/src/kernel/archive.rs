//! [`KernelArchive`]: compiled kernels that come with a program, so that it starts without compiling them.
//!
//! A kernel is found by the hash of its source and options, as in the cache on disk, so code that was made from
//! another source is never used.
//!
//! The format: [`FORMAT`]; the number of architectures, and the compute capability of each; the number of kernels,
//! and for each its key and the length of its code; then the code of all kernels, each compressed by deflate. Numbers
//! are little-endian and have 32 bits.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

use super::source::KernelSource;
use crate::error::{Error, Result};

const FORMAT: &[u8] = b"pagelock kernels 1\n";
const MAX_BYTES: u64 = 64 << 20; // of one kernel's code

/// The code of some kernels, for one or several kinds of GPUs.
///
/// # Examples
/// Run a program once to write an archive for each kind of GPU, and include the archive from then on:
/// ```no_run
/// use pagelock_cuda::{Device, KernelArchive, load_kernel_archive, software::Config};
///
/// let mut archive = KernelArchive::default();
/// for capability in [(8, 0), (9, 0)] {
///     let config = Config { kernels_for: Some(capability), ..Config::default() };
///     archive.record(capability, || {
///         let device = Device::software(config)?;
///         // ... whatever the program compiles for a device
///         Ok::<_, pagelock_cuda::Error>(())
///     })?;
/// }
/// std::fs::write("kernels.bin", archive.to_bytes())?;
///
/// # const KERNELS: &[u8] = &[]; // static KERNELS: &[u8] = include_bytes!("kernels.bin");
/// // SAFETY: it was written as above.
/// unsafe { load_kernel_archive(KERNELS) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelArchive {
    capabilities: Vec<(u32, u32)>,
    codes: BTreeMap<String, Vec<u8>>,
}

/// The number of this process's kernels by the origin of their code.
///
/// # Examples
/// ```
/// let origins = pagelock_cuda::kernel_origins();
/// println!("{} from archives, {} from the cache", origins.from_archive, origins.from_cache);
/// println!("{} compiled", origins.compiled);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelOrigins {
    /// From the archives given to [`load_kernel_archive`].
    pub from_archive: usize,
    /// From the cache on disk.
    pub from_cache: usize,
    /// From the compiler.
    pub compiled: usize,
}

static ORIGINS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// The archives given to [`load_kernel_archive`].
static LOADED: RwLock<Vec<LoadedArchive<'static>>> = RwLock::new(Vec::new());

/// The kernels recorded so far, while [`KernelArchive::record`] runs.
static RECORD: Mutex<Option<BTreeMap<String, Vec<u8>>>> = Mutex::new(None);

struct LoadedArchive<'a> {
    capabilities: Vec<(u32, u32)>,
    codes: BTreeMap<&'a str, &'a [u8]>,
}

/// The number of this process's kernels so far by the origin of their code, on all devices.
pub fn kernel_origins() -> KernelOrigins {
    let [from_archive, from_cache, compiled] = ORIGINS.each_ref().map(|count| count.load(Relaxed));
    KernelOrigins { from_archive, from_cache, compiled }
}

#[derive(Clone, Copy)]
pub(super) enum KernelOrigin {
    Archive,
    Cache,
    Compiler,
}

/// Counts a kernel by its origin, and records its code if a recording is in progress.
pub(super) fn note(key: &str, code: &[u8], origin: KernelOrigin) {
    ORIGINS[origin as usize].fetch_add(1, Relaxed);
    if let Some(record) = &mut *RECORD.lock().unwrap_or_else(PoisonError::into_inner) {
        record.insert(key.to_owned(), code.to_vec());
    }
}

impl KernelArchive {
    /// Adds all kernels whose code the process compiles or finds while `work` runs, for devices of that compute
    /// capability. Devices of the same major and a greater minor number can use them too.
    ///
    /// # Errors
    /// Those of `work`; then nothing is added.
    pub fn record<E>(&mut self, capability: (u32, u32), work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let record = || RECORD.lock().unwrap_or_else(PoisonError::into_inner);
        *record() = Some(BTreeMap::new());
        let result = catch_unwind(AssertUnwindSafe(work)); // after a panic, too, nothing is recorded any more
        let recorded = record().take();
        result.unwrap_or_else(|panic| resume_unwind(panic))?;
        self.capabilities.push(capability);
        self.codes.extend(recorded.unwrap_or_default());
        Ok(())
    }

    /// The number of kernels.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether the archive has no kernels.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The archive as bytes for [`load_kernel_archive`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_vec();
        let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u32).to_le_bytes());
        number(&mut bytes, self.capabilities.len());
        for &(major, minor) in &self.capabilities {
            [major, minor].into_iter().for_each(|part| number(&mut bytes, part as usize));
        }
        number(&mut bytes, self.codes.len());
        let mut codes = Vec::new();
        for (key, code) in &self.codes {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(code).unwrap_or_else(|error| unreachable!("a vector accepts all writes: {error}"));
            let code = encoder.finish().unwrap_or_else(|error| unreachable!("a vector accepts all writes: {error}"));
            number(&mut bytes, key.len());
            bytes.extend(key.as_bytes());
            number(&mut bytes, code.len());
            codes.extend(code);
        }
        bytes.extend(codes);
        bytes
    }
}

/// Makes all devices of the process use the kernels of an archive from now on instead of compiling them. Returns the
/// number of kernels in the archive.
///
/// # Errors
/// [`Error::Argument`] if the bytes are not a complete archive.
///
/// # Safety
/// The bytes are those of a [`KernelArchive`], as [`KernelArchive::to_bytes`] made them.
pub unsafe fn load_kernel_archive(bytes: &'static [u8]) -> Result<usize> {
    let archive = LoadedArchive::read(bytes).ok_or_else(|| {
        let len_bytes = bytes.len();
        Error::Argument(format!(
            "these {len_bytes} bytes are not a complete kernel archive: write it again with `KernelArchive::to_bytes`"
        ))
    })?;
    let count = archive.codes.len();
    LOADED.write().unwrap_or_else(PoisonError::into_inner).push(archive);
    Ok(count)
}

/// The key and the code of a kernel, if an archive has it. `key` returns the key of a source for a compute
/// capability.
pub(super) fn find(
    source: &KernelSource,
    (major, minor): (u32, u32),
    key: impl Fn(&KernelSource, (u32, u32)) -> String,
) -> Option<(String, Vec<u8>)> {
    let all = LOADED.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().find_map(|archive| {
        let is_compatible = |&&(other, least): &&(u32, u32)| other == major && least <= minor;
        let nearest = archive.capabilities.iter().filter(is_compatible).max()?;
        let key = key(source, *nearest);
        let code = inflate(archive.codes.get(&*key)?)?;
        Some((key, code))
    })
}

fn inflate(code: &[u8]) -> Option<Vec<u8>> {
    let mut inflated = Vec::new();
    DeflateDecoder::new(code).take(MAX_BYTES + 1).read_to_end(&mut inflated).ok()?;
    (inflated.len() as u64 <= MAX_BYTES).then_some(inflated)
}

/// Unpacks all kernels of an archive, and returns their number; `None` if the bytes are not an archive.
pub(crate) fn unpack_all(bytes: &[u8]) -> Option<usize> {
    let archive = LoadedArchive::read(bytes)?;
    Some(archive.codes.values().filter_map(|code| inflate(code)).count())
}

impl<'a> LoadedArchive<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(FORMAT)?;
        let mut take = |len: usize| {
            let (taken, remainder) = rest.split_at_checked(len)?;
            rest = remainder;
            Some(taken)
        };
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let mut capabilities = Vec::new();
        for _ in 0..number(take(4)?)? {
            capabilities.push((number(take(4)?)?, number(take(4)?)?));
        }
        let mut lengths = Vec::new();
        for _ in 0..number(take(4)?)? {
            let key_len = number(take(4)?)? as usize;
            lengths.push((std::str::from_utf8(take(key_len)?).ok()?, number(take(4)?)? as usize));
        }
        let mut codes = BTreeMap::new();
        for (key, len_bytes) in lengths {
            codes.insert(key, take(len_bytes)?);
        }
        rest.is_empty().then_some(Self { capabilities, codes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> KernelArchive {
        let codes = [("one", vec![1; 1000]), ("two", vec![2])].map(|(key, code)| (key.to_owned(), code));
        KernelArchive { capabilities: vec![(8, 0), (9, 0)], codes: codes.into() }
    }

    /// Leaks a copy of the bytes, in a list where leak checkers see a reference to it.
    fn leaked(bytes: &[u8]) -> &'static [u8] {
        static LEAKED: Mutex<Vec<&[u8]>> = Mutex::new(Vec::new());
        let bytes: &[u8] = bytes.to_vec().leak();
        LEAKED.lock().unwrap().push(bytes);
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = archive().to_bytes();
        assert!(bytes.len() < 200, "a thousand equal bytes take few");
        let loaded = LoadedArchive::read(leaked(&bytes)).unwrap();
        assert_eq!(loaded.capabilities, [(8, 0), (9, 0)]);
        let read = loaded.codes.iter().map(|(key, code)| (key.to_string(), inflate(code).unwrap()));
        assert_eq!(read.collect::<BTreeMap<_, _>>(), archive().codes);
    }

    #[test]
    fn a_part_of_an_archive_or_more_than_one_is_refused() {
        let bytes = archive().to_bytes();
        for len in 0..bytes.len() {
            assert!(LoadedArchive::read(leaked(&bytes[..len])).is_none(), "{len} of {} bytes", bytes.len());
        }
        assert!(LoadedArchive::read(leaked(&[&bytes[..], &[0]].concat())).is_none());
        // SAFETY: bytes that are not an archive are refused.
        let refused = unsafe { load_kernel_archive(b"something else") }.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "these 14 bytes are not a complete kernel archive: write it again with `KernelArchive::to_bytes`"
        );
    }

    #[test]
    fn a_device_is_served_by_its_own_kind_and_by_lesser_ones_of_its_generation() {
        let source = KernelSource::new("served.cu", "text");
        let key = |source: &KernelSource, (major, minor): (u32, u32)| format!("{} {major}{minor}", source.text());
        let codes = [("text 80", vec![80]), ("text 86", vec![86])].map(|(key, code)| (key.to_owned(), code));
        let archive = KernelArchive { capabilities: vec![(8, 0), (8, 6)], codes: codes.into() };
        // SAFETY: it is an archive; nobody loads its code.
        unsafe { load_kernel_archive(leaked(&archive.to_bytes())) }.unwrap();

        let found = |capability| find(&source, capability, key).map(|(_, code)| code[0]);

        assert_eq!(
            [(7, 5), (8, 0), (8, 5), (8, 6), (8, 9), (9, 0)].map(found),
            [None, Some(80), Some(80), Some(86), Some(86), None]
        );
        assert_eq!(find(&KernelSource::new("served.cu", "other"), (8, 0), key), None);
    }
}
