//! Memory of another library, as a block.

use std::{ptr::NonNull, sync::Arc};

use crate::{ALIGN, Block, MemoryKind, mapped::Aligned};

/// Bytes of another owner, such as an Arrow buffer, used without a copy. They are read-only, and no budget counts
/// them. `Foreign` is a [`Block`] for [`HostBuffer::from_block`](crate::HostBuffer::from_block); the owner is dropped
/// with it.
///
/// # Examples
/// ```
/// use pagelock_memory::{Foreign, HostBuffer};
///
/// #[repr(align(64))]
/// struct Line([u8; 64]);
/// impl AsRef<[u8]> for Line {
///     fn as_ref(&self) -> &[u8] {
///         &self.0
///     }
/// }
/// let mut buffer = HostBuffer::from_block(Foreign::new(Line([7; 64])).ok().unwrap());
/// assert_eq!(buffer.bytes(), [7; 64]);
/// assert!(buffer.bytes_mut().is_err());
/// ```
pub struct Foreign<O> {
    start: NonNull<u8>,
    len_bytes: usize,
    _owner: Arc<O>, // at a fixed address, and never borrowed mutably
}

impl<O: AsRef<[u8]> + Send + Sync + 'static> Foreign<O> {
    /// The bytes of `owner`.
    ///
    /// # Errors
    /// The owner, if its bytes do not start at a multiple of [`ALIGN`]: copy them then.
    pub fn new(owner: O) -> std::result::Result<Self, O> {
        let owner = Arc::new(owner);
        let bytes = (*owner).as_ref();
        let (start, len_bytes) = match bytes.is_empty() {
            true => (NonNull::<Aligned>::dangling().cast(), 0),
            false => (NonNull::from(bytes).cast::<u8>(), bytes.len()),
        };
        if !start.addr().get().is_multiple_of(ALIGN) {
            return match Arc::try_unwrap(owner) {
                Ok(owner) => Err(owner),
                Err(_) => unreachable!("the owner has no other handle"),
            };
        }
        Ok(Self { start, len_bytes, _owner: owner })
    }
}

// SAFETY: the owner is Send and Sync; the bytes are only read.
unsafe impl<O: Send + Sync> Send for Foreign<O> {}
// SAFETY: as above.
unsafe impl<O: Send + Sync> Sync for Foreign<O> {}

// SAFETY: the slice was borrowed from the owner, which stays in place and is never borrowed mutably until it is dropped
// with this block. So the bytes are valid for reads, initialized and not written. They start at a multiple of `ALIGN`
// (checked), and the kind is read-only.
unsafe impl<O: AsRef<[u8]> + Send + Sync + 'static> Block for Foreign<O> {
    fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Foreign
    }
}
