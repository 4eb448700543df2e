//! Storage: the bytes behind one or several tensors, with a lock and a version.
//!
//! Views share a storage, in-place operations write it under its lock, and every write makes a new version, so that
//! `backward` can tell whether a tensor that it saved is still the one it saved.
//!
//! Invariant: no code of a user ever runs while a lock is held, no thread takes the same lock twice, and several locks
//! are taken in the order of [`lock_order`], so threads never wait for each other in a circle.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pagelock_memory::{HostBuffer, default_host};

use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::reuse;
use crate::shape::Shape;

/// A handle to a storage, counted like an `Arc`: the last one that is dropped gives the bytes back to their pool.
#[derive(Clone)]
pub(crate) struct StorageRef(Arc<Option<Storage>>); // see `reuse.rs`

impl StorageRef {
    fn new(storage: Storage) -> StorageRef {
        StorageRef(reuse::share(storage))
    }

    /// Whether two handles are to one storage.
    pub(crate) fn is(&self, other: &StorageRef) -> bool {
        self.address() == other.address()
    }

    /// Whether this is the only handle.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Where the storage is, for [`lock_order`].
    pub(crate) fn address(&self) -> *const Storage {
        &**self
    }
}

impl Deref for StorageRef {
    type Target = Storage;

    fn deref(&self) -> &Storage {
        self.0.as_ref().as_ref().unwrap_or_else(|| unreachable!("a storage is dropped after its last handle"))
    }
}

impl Drop for StorageRef {
    fn drop(&mut self) {
        reuse::release(&mut self.0);
    }
}

pub(crate) struct Storage {
    memory: RwLock<HostBuffer>,
    version: AtomicU64,
    dtype: DType,
}

impl Storage {
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn read<T: Element>(&self) -> Reading<'_, T> {
        // A poisoned lock means that a kernel panicked on a bug of ours; the bytes are still initialised.
        Reading { guard: self.memory.read().unwrap_or_else(PoisonError::into_inner), element: PhantomData }
    }

    /// Locks for writing and makes a new version.
    pub(crate) fn write<T: Element>(&self) -> Writing<'_, T> {
        let guard = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        self.version.fetch_add(1, Ordering::Release);
        Writing { guard, element: PhantomData }
    }
}

/// The order in which storages are locked by whoever locks several: by address, equal ones next to each other.
pub(crate) fn lock_order<const N: usize>(storages: [&StorageRef; N]) -> [usize; N] {
    let mut order = std::array::from_fn(|i| i);
    order.sort_unstable_by_key(|&i| storages[i].address());
    order
}

/// A storage locked for reading.
pub(crate) struct Reading<'a, T> {
    guard: RwLockReadGuard<'a, HostBuffer>,
    element: PhantomData<T>,
}

impl<T: Element> Reading<'_, T> {
    /// All elements of the storage.
    pub(crate) fn all(&self) -> &[T] {
        T::slice(self.guard.bytes())
    }

    /// The elements from a view's first to its last.
    pub(crate) fn of(&self, layout: &Layout) -> &[T] {
        &self.all()[layout.offset()..][..layout.span()]
    }
}

/// A storage locked for writing.
pub(crate) struct Writing<'a, T> {
    guard: RwLockWriteGuard<'a, HostBuffer>,
    element: PhantomData<T>,
}

impl<T: Element> Writing<'_, T> {
    /// The elements from a view's first to its last.
    pub(crate) fn of(&mut self, op: &'static str, layout: &Layout) -> Result<&mut [T]> {
        let bytes =
            self.guard.bytes_mut().map_err(|source| Error::NotWritable { op, shape: *layout.shape(), source })?;
        Ok(&mut T::slice_mut(bytes)[layout.offset()..][..layout.span()])
    }
}

/// A new storage that nobody else holds yet: the output of a kernel.
pub(crate) struct Fresh<T> {
    memory: HostBuffer,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Element> Fresh<T> {
    /// Room for a contiguous tensor; its elements have unspecified values.
    pub(crate) fn allocate(op: &'static str, shape: Shape) -> Result<Fresh<T>> {
        shape.check_size()?; // sizes may come from expanded tensors, which take no memory
        let refused = |source| Error::Memory { op, shape, dtype: T::DTYPE, source };
        let memory = HostBuffer::allocate(default_host(), shape.elements() * size_of::<T>()).map_err(refused)?;
        let mut fresh = Fresh { memory, shape, element: PhantomData };
        if T::DTYPE == DType::Bool {
            fresh.bytes().fill(0); // recycled bytes need not be truth values
        }
        Ok(fresh)
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn elements(&mut self) -> &mut [T] {
        T::slice_mut(self.bytes())
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.bytes_mut().unwrap_or_else(|error| unreachable!("host memory is writable: {error}"))
    }

    pub(crate) fn share(self) -> (StorageRef, Layout) {
        let storage = Storage { memory: RwLock::new(self.memory), version: AtomicU64::new(0), dtype: T::DTYPE };
        (StorageRef::new(storage), Layout::contiguous(self.shape))
    }
}
