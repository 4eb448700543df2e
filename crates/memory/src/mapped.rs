//! A file mapped into memory.

use std::{fs::File, path::Path, ptr::NonNull};

use memmap2::Mmap;

use crate::{ALIGN, Block, Error, MemoryKind, Result, open_regular};

/// A file mapped into memory, read-only. Its pages are read at their first access, and the system can reclaim their RAM
/// at any time. It is a [`Block`], so [`HostBuffer::from_block`](crate::HostBuffer::from_block) takes it.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, Mapped};
///
/// let file = tempfile::NamedTempFile::new().unwrap();
/// std::fs::write(&file, b"four").unwrap();
/// // SAFETY: nobody else knows the temporary file.
/// let mapped = unsafe { Mapped::open(file.path())? };
/// assert_eq!(HostBuffer::from_block(mapped).bytes(), b"four");
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Mapped {
    map: Option<Mmap>, // none: the file is empty, and nothing can be mapped
}

impl Mapped {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// [`Error::Map`] if the file cannot be opened or mapped, or is no regular file (for example a folder or a pipe).
    ///
    /// # Safety
    /// Nobody, in this process or another, may change or shorten the file while the mapping lives. The bytes are
    /// exposed as `&[u8]`, which must not change, and reading beyond the end of a shortened file kills the process.
    /// Files that are written under another name and then renamed into place satisfy this.
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, _) = open_regular(path).map_err(|source| Error::Map { path: path.to_owned(), source })?;
        // SAFETY: the caller's promise.
        unsafe { Self::of_file(&file, path) }
    }

    /// Maps the whole of an open file; errors name `path`.
    ///
    /// # Errors
    /// [`Error::Map`] if the file cannot be mapped.
    ///
    /// # Safety
    /// As for [`open`](Self::open).
    pub unsafe fn of_file(file: &File, path: &Path) -> Result<Self> {
        let refused = |source| Error::Map { path: path.to_owned(), source };
        if file.metadata().map_err(refused)?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the caller promises that the file does not change.
        let map = unsafe { Mmap::map(file) }.map_err(refused)?;
        Ok(Self { map: Some(map) })
    }
}

// SAFETY: a mapping stays in place and readable until it is dropped, and starts at a page. The bytes of a file are
// initialized, and the caller of `open` promised that nothing writes to them.
unsafe impl Block for Mapped {
    fn ptr(&self) -> NonNull<u8> {
        let start = self.map.as_ref().and_then(|map| NonNull::new(map.as_ptr().cast_mut()));
        start.unwrap_or(NonNull::<Aligned>::dangling().cast())
    }

    fn len_bytes(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Mapped
    }
}

/// A type whose dangling pointer is aligned like every block.
#[repr(align(64))]
pub(crate) struct Aligned;
const _: () = assert!(align_of::<Aligned>() == ALIGN);
