//! A block of any type, like `Box<dyn Block>`, but without an allocation for small blocks.
//!
//! Small blocks, such as those of pools, are stored inline, large ones in a box. The owner knows only how to drop the
//! block; its address, length and kind were read before.
//!
//! Invariant: `place` holds an initialized value of the type that `drop_block` drops.

use std::mem::{MaybeUninit, align_of, size_of};

use crate::Block;

pub(super) struct Owner {
    place: MaybeUninit<Place>,
    drop_block: unsafe fn(*mut Place),
}

type Place = [usize; 6];

impl Owner {
    pub(super) fn new<B: Block>(block: B) -> Self {
        if fits::<B>() { Self::in_place(block) } else { Self::in_place(Box::new(block)) }
    }

    fn in_place<B>(block: B) -> Self {
        assert!(fits::<B>(), "a boxed block always fits");
        let mut place = MaybeUninit::<Place>::uninit();
        // SAFETY: the place is large and aligned enough for a `B` (just checked), and empty.
        unsafe { place.as_mut_ptr().cast::<B>().write(block) };
        Self { place, drop_block: drop_block::<B> }
    }
}

const fn fits<B>() -> bool {
    size_of::<B>() <= size_of::<Place>() && align_of::<B>() <= align_of::<Place>()
}

/// # Safety
/// `place` holds a `B` that is not used afterwards.
unsafe fn drop_block<B>(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe { place.cast::<B>().drop_in_place() }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the invariant of this file; the owner is gone afterwards.
        unsafe { (self.drop_block)(self.place.as_mut_ptr()) }
    }
}
