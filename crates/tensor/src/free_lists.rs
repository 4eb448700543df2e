//! Free lists of empty allocations of storages and graph nodes, per thread and type.
//!
//! A training step makes and drops objects of the same types again and again, so after the first steps it finds
//! everything it needs here and allocates nothing. With the workers of a loader, one thread makes objects that
//! another one drops. The thread that drops them moves half of a long list to a shared list, from which the thread
//! that makes them refills its own. Tensor bytes are not kept here: their pool is in `pagelock-memory`.
//!
//! Invariants: everything in the lists is empty, so it holds no tensor and no value of a user's. A thread keeps at
//! most [`KEEP_BYTES`] of each type, and so does the shared list. A thread's lists are freed when it ends.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::heap::CountedHeap;

/// The bytes of each type that a list keeps at most: some hundred nodes, some thousand storages.
const KEEP_BYTES: usize = 256 << 10;

thread_local! {
    /// The lists of this thread.
    static IDLE: RefCell<Lists> = const { RefCell::new(Lists::with_hasher(BuildHasherDefault::new())) };
}

/// The empty allocation of an [`AnySlot`]. Its type is erased, so that the functions below are compiled once.
type Allocation = Arc<dyn Any + Send + Sync>;

/// Kept allocations of each type, the newest last.
type Lists = HashMap<TypeId, Vec<Allocation>, BuildHasherDefault<TypeHasher>>;

/// The number of allocations of a type at which a thread shares half of them.
const SPARE: usize = 64;

/// The list that all threads share.
static SHARED: Mutex<Lists> = Mutex::new(Lists::with_hasher(BuildHasherDefault::new()));

/// Whether `SHARED` was ever used. Relaxed: a hint, so that an empty list costs no lock.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// A `TypeId` is a hash already.
#[derive(Default)]
struct TypeHasher(u64);

impl Hasher for TypeHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Calls `f` with the lists of this thread, unless the thread is ending.
fn with_idle<R>(f: impl FnOnce(&mut Lists) -> R) -> Option<R> {
    IDLE.try_with(|idle| f(&mut idle.borrow_mut())).ok()
}

fn shared() -> MutexGuard<'static, Lists> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes an allocation of this type from the thread's list, or else from the shared one.
#[inline(never)]
fn take(type_id: TypeId) -> Option<Allocation> {
    let own = with_idle(|idle| idle.get_mut(&type_id)?.pop()).flatten();
    if own.is_some() || !IS_SHARED.load(Relaxed) {
        return own;
    }
    with_idle(|idle| {
        let (own, mut lists) = (idle.entry(type_id).or_default(), shared());
        let shared = lists.get_mut(&type_id)?;
        own.extend(shared.drain(shared.len().saturating_sub(SPARE / 2)..));
        own.pop()
    })
    .flatten()
}

/// Keeps an empty allocation of `size_bytes`, or frees it if the list is full.
#[inline(never)]
fn keep(type_id: TypeId, empty: Allocation, size_bytes: usize) {
    let limit = (KEEP_BYTES / size_bytes.max(1)).max(1);
    let mut empty = Some(empty); // freed out here, where `IDLE` is not borrowed
    with_idle(|idle| {
        let own = idle.entry(type_id).or_default();
        if own.len() < limit {
            own.extend(empty.take());
        }
        if own.len() >= SPARE.min(limit) {
            share_spare(type_id, own, limit);
        }
    });
}

/// Moves the older half of a thread's list to the shared one. The newest allocation stays, since somebody may have a
/// handle to it for another moment (see [`release`]).
fn share_spare(type_id: TypeId, own: &mut Vec<Allocation>, limit: usize) {
    IS_SHARED.store(true, Relaxed);
    let mut lists = shared();
    let shared = lists.entry(type_id).or_default();
    shared.extend(own.drain(..own.len() / 2));
    shared.truncate(limit); // they are empty: nothing of a user's is dropped here
}

/// The allocation that [`share`] makes: it holds a value, and counts its bytes as long as it exists.
pub(crate) struct Slot<T> {
    value: Option<T>, // `None` while the allocation is in a list
    _counted: CountedHeap,
}

impl<T> Slot<T> {
    fn empty(extra_bytes: usize) -> Slot<T> {
        Slot { value: None, _counted: CountedHeap::new(size_of::<Slot<T>>() + extra_bytes) }
    }

    /// The value, which exists as long as there are handles.
    #[inline]
    pub(crate) fn value(&self) -> &T {
        self.value.as_ref().unwrap_or_else(|| unreachable!("a value is dropped after its last handle"))
    }
}

/// A [`Slot`] whose type is erased: [`share`] makes it, [`release`] empties it.
pub(crate) trait AnySlot {
    /// Drops the value.
    fn empty(&mut self);
    /// Keeps the allocation, which is empty.
    fn keep(self: Arc<Self>);
}

impl<T: Send + Sync + 'static> AnySlot for Slot<T> {
    fn empty(&mut self) {
        self.value = None;
    }

    fn keep(self: Arc<Self>) {
        keep(TypeId::of::<Self>(), self, size_of::<Self>());
    }
}

/// A shared value, in a kept allocation if there is one. Code that drops a handle must call [`release`] first.
///
/// `extra_bytes` is the number of bytes outside of the slot that count together with it. It must be the same for all
/// values of a type.
pub(crate) fn share<T: Send + Sync + 'static>(value: T, extra_bytes: usize) -> Arc<Slot<T>> {
    let mut handle = take_typed().unwrap_or_else(|| Arc::new(Slot::empty(extra_bytes)));
    let slot = Arc::get_mut(&mut handle).unwrap_or_else(|| unreachable!("a kept value has no other handle"));
    slot.value = Some(value);
    handle
}

/// A kept allocation of this type.
fn take_typed<P: Send + Sync + 'static>() -> Option<Arc<P>> {
    take(TypeId::of::<P>())?.downcast().ok()
}

/// Called when a handle is dropped: if it is the last one, drops the value at once and keeps the allocation.
///
/// If two threads drop the last two handles at the same time, both may still see the other one here. The allocation
/// is then freed like that of any `Arc`.
pub(crate) fn release<P: AnySlot + ?Sized>(handle: &mut Arc<P>) {
    if Arc::strong_count(handle) > 1 {
        return; // the usual case, which `get_mut` would find out more slowly
    }
    if let Some(slot) = Arc::get_mut(handle) {
        slot.empty();
        Arc::clone(handle).keep(); // the only one left as soon as `handle` is gone
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A value whose strong count says how many of its clones are alive.
    type Alive = Arc<()>;

    struct Handle<T: Send + Sync + 'static>(Arc<Slot<T>>);

    impl<T: Send + Sync + 'static> Drop for Handle<T> {
        fn drop(&mut self) {
            release(&mut self.0);
        }
    }

    #[test]
    fn the_last_handle_drops_the_value_and_the_next_value_takes_its_place() {
        let alive = Alive::default();
        let first = Handle(share(Alive::clone(&alive), 0));
        let (second, address) = (Handle(Arc::clone(&first.0)), Arc::as_ptr(&first.0));
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&alive), 1);
        assert_eq!(Arc::as_ptr(&Handle(share(alive, 0)).0), address);
    }

    #[test]
    fn values_of_different_types_and_living_values_take_different_places() {
        let handles = (Handle(share(1_u64, 0)), Handle(share(2_i64, 0)), Handle(share(3_u64, 0)));
        assert_eq!((handles.0.0.value(), handles.1.0.value(), handles.2.0.value()), (&1, &2, &3));
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        struct Large([u8; KEEP_BYTES / 4]);
        let handles = [0; 10].map(|byte| Handle(share(Large([byte; KEEP_BYTES / 4]), 0)));
        assert!(handles.iter().all(|handle| handle.0.value().0[0] == 0));
        drop(handles);
        assert!((1..=4).contains(&with_idle(|idle| idle[&TypeId::of::<Slot<Large>>()].len()).unwrap()));
    }

    #[test]
    fn what_one_thread_drops_another_that_makes_it_uses_again() {
        struct Passed([u8; 16]);
        let make = || (0..SPARE).map(|i| Handle(share(Passed([i as u8; 16]), 0))).collect::<Vec<_>>();
        let addresses = |handles: &[Handle<Passed>]| {
            handles.iter().map(|handle| Arc::as_ptr(&handle.0).addr()).collect::<HashSet<_>>()
        };
        // A thread that ends frees what it keeps, so the maker stays.
        let (to_drop, dropped) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(move || {
                let known = (0..4).fold(HashSet::new(), |known, _| {
                    let made = make();
                    let known = &known | &addresses(&made);
                    to_drop.0.send(made).unwrap();
                    dropped.1.recv().unwrap();
                    known
                });
                assert!(known.len() <= 3 * SPARE, "{} different ones", known.len());
            });
            for handles in to_drop.1 {
                assert!(handles.iter().enumerate().all(|(i, handle)| handle.0.value().0[0] == i as u8));
                drop(handles);
                dropped.0.send(()).unwrap();
            }
        });
    }
}
