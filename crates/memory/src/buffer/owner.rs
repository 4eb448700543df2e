//! A block of any type, like `Box<dyn Block>`, but without an allocation for small blocks.
//!
//! Small blocks, such as those of pools, are stored inline, large ones in a box. The owner knows only how to drop the
//! block; its address, length and kind were read before.
//!
//! Invariant: `storage` holds an initialized value of the type that `drop_block` drops.

use std::mem::{MaybeUninit, align_of, size_of};

use crate::Block;

pub(super) struct Owner {
    storage: MaybeUninit<Storage>,
    drop_block: unsafe fn(*mut Storage),
}

type Storage = [usize; 6];

impl Owner {
    pub(super) fn new<B: Block>(block: B) -> Self {
        if fits::<B>() { Self::in_place(block) } else { Self::in_place(Box::new(block)) }
    }

    fn in_place<B>(block: B) -> Self {
        assert!(fits::<B>(), "a boxed block always fits");
        let mut storage = MaybeUninit::<Storage>::uninit();
        // SAFETY: the storage is large and aligned enough for a `B` (just checked), and empty.
        unsafe { storage.as_mut_ptr().cast::<B>().write(block) };
        Self { storage, drop_block: drop_block::<B> }
    }
}

const fn fits<B>() -> bool {
    size_of::<B>() <= size_of::<Storage>() && align_of::<B>() <= align_of::<Storage>()
}

/// # Safety
/// `storage` holds a `B` that is not used afterwards.
unsafe fn drop_block<B>(storage: *mut Storage) {
    // SAFETY: the caller's promise.
    unsafe { storage.cast::<B>().drop_in_place() }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the invariant of this file; the owner is gone afterwards.
        unsafe { (self.drop_block)(self.storage.as_mut_ptr()) }
    }
}
