//! The source of a thread's new buffers: [`default_host`], unless a [`HostScope`] names another one.
//!
//! Code that fills buffers, such as a function that collates a batch, need not know which memory it fills. Its caller decides,
//! as with [holders](crate::holder).

use std::{cell::RefCell, marker::PhantomData, sync::Arc};

use crate::{HostBuffer, Result, default_host};

/// Allocates host memory for the tensors that a thread makes while this allocator is [entered](HostScope::enter).
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use pagelock_memory::{HostAllocator, HostBuffer, HostScope, MemoryKind, PageLocked, Result};
///
/// struct Locked(PageLocked);
///
/// impl HostAllocator for Locked {
///     fn allocate(&self, len_bytes: usize) -> Result<HostBuffer> {
///         HostBuffer::allocate(&self.0, len_bytes)
///     }
/// }
///
/// let locked: Arc<dyn HostAllocator> = Arc::new(Locked(PageLocked::new()));
/// {
///     let _scope = HostScope::enter(locked);
///     assert_eq!(HostBuffer::placed(100)?.kind(), MemoryKind::PageLocked);
/// }
/// assert_eq!(HostBuffer::placed(100)?.kind(), MemoryKind::Pageable);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub trait HostAllocator: Send + Sync + 'static {
    /// A buffer of `len_bytes` that can be written.
    ///
    /// # Errors
    /// Any error that prevents the allocation.
    fn allocate(&self, len_bytes: usize) -> Result<HostBuffer>;
}

thread_local! {
    static SOURCE: RefCell<Option<Arc<dyn HostAllocator>>> = const { RefCell::new(None) };
}

/// While this lives, its thread's new buffers come from a [`HostAllocator`].
#[must_use = "the source is used only while the scope lives"]
pub struct HostScope {
    previous: Option<Arc<dyn HostAllocator>>,
    on_this_thread: PhantomData<*const ()>,
}

impl HostScope {
    /// This thread's buffers come from `source` until the scope is dropped, then from the previous source again.
    pub fn enter(source: Arc<dyn HostAllocator>) -> Self {
        Self { previous: SOURCE.replace(Some(source)), on_this_thread: PhantomData }
    }
}

impl Drop for HostScope {
    fn drop(&mut self) {
        let previous = self.previous.take();
        let _ = SOURCE.try_with(|source| source.replace(previous)); // dropped outside the borrow: its drop may allocate
    }
}

impl HostBuffer {
    /// A buffer of `len_bytes` from the innermost [`HostScope`] of this thread, or from [`default_host`] without one.
    /// The contents are unspecified.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn placed(len_bytes: usize) -> Result<Self> {
        let source = SOURCE.try_with(|source| source.borrow().clone()).ok().flatten();
        let Some(source) = source else { return Self::allocate(default_host(), len_bytes) };
        let buffer = source.allocate(len_bytes)?;
        // Callers rely on both, and a safe trait guarantees neither.
        let is_right = buffer.len_bytes() == len_bytes && buffer.is_writable();
        assert!(is_right, "a HostAllocator returned a buffer that is not {len_bytes} B long, or is read-only");
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Pageable};

    struct Limited(usize);

    impl HostAllocator for Limited {
        fn allocate(&self, len_bytes: usize) -> Result<HostBuffer> {
            match len_bytes <= self.0 {
                true => HostBuffer::allocate(&Pageable, len_bytes),
                false => Err(Error::Argument(format!("at most {}", self.0))),
            }
        }
    }

    fn most() -> String {
        HostBuffer::placed(1 << 20).map_or_else(|error| error.to_string(), |_| "any".to_owned())
    }

    #[test]
    fn the_innermost_scope_decides_and_the_outer_one_comes_back() {
        assert_eq!(most(), "any");
        let outer = HostScope::enter(Arc::new(Limited(7)));
        {
            let _inner = HostScope::enter(Arc::new(Limited(5)));
            assert!(most().starts_with("at most 5"));
        }
        assert!(most().starts_with("at most 7"));
        drop(outer);
        assert_eq!(most(), "any");
    }

    #[test]
    fn a_scope_is_of_its_thread_alone() {
        let _scope = HostScope::enter(Arc::new(Limited(0)));
        assert_eq!(std::thread::spawn(most).join().unwrap(), "any");
    }
}
