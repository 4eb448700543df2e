//! What several tests share: resources that refuse on demand, and completions that count waits.

use std::{
    ptr::NonNull,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use pagelock_memory::{Completion, Error, MemoryKind, PageLocker, Pageable, PageableBlock, Resource, Result};

/// Ordinary memory that is refused while `refusing`.
#[derive(Clone, Default)]
pub(crate) struct Refusing {
    pub(crate) refusing: Arc<AtomicBool>,
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Resource for Refusing {
    type Block = PageableBlock;

    fn allocate(&self, len_bytes: usize) -> Result<PageableBlock> {
        self.asked.fetch_add(1, SeqCst);
        if self.refusing.load(SeqCst) {
            return Err(Error::OutOfMemory { asked: (len_bytes as u64).into(), kind: MemoryKind::Pageable });
        }
        Pageable.allocate(len_bytes)
    }
}

/// A stand-in for a GPU driver. It notes what is locked, refuses the lock number `refuse_at`, and refuses to unlock
/// pages if `refuses_unlock`.
#[derive(Debug, Default)]
pub(crate) struct FakeDriver {
    pub(crate) locks: Mutex<Vec<usize>>,
    pub(crate) locked_bytes: AtomicUsize,
    pub(crate) refuse_at: Option<usize>,
    pub(crate) refuses_unlock: bool,
}

impl PageLocker for FakeDriver {
    unsafe fn lock(&self, _start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        let mut locks = self.locks.lock().unwrap();
        if self.refuse_at == Some(locks.len()) {
            return Err(Error::Lock { asked: (len_bytes as u64).into(), source: "refused by the test".into() });
        }
        locks.push(len_bytes);
        self.locked_bytes.fetch_add(len_bytes, SeqCst);
        Ok(())
    }

    unsafe fn unlock(&self, _start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        if self.refuses_unlock {
            return Err(Error::Lock { asked: (len_bytes as u64).into(), source: "still copying".into() });
        }
        self.locked_bytes.fetch_sub(len_bytes, SeqCst);
        Ok(())
    }
}

/// Done as soon as a thread waits for it. Counts the waits.
#[derive(Default)]
pub(crate) struct CountedWaits {
    waits: AtomicUsize,
}

impl CountedWaits {
    pub(crate) fn waits(&self) -> usize {
        self.waits.load(SeqCst)
    }
}

impl Completion for CountedWaits {
    fn is_done(&self) -> bool {
        self.waits() > 0
    }

    fn wait(&self) {
        self.waits.fetch_add(1, SeqCst);
    }
}

/// Done when another thread says so.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Completion for Gate {
    fn is_done(&self) -> bool {
        *self.open.lock().unwrap()
    }

    fn wait(&self) {
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// Random numbers without a dependency: xorshift.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
