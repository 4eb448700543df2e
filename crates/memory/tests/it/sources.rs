//! Sources: what each kind of memory promises beyond the suite of `every_stack.rs`.

use std::{
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
};

use pagelock_memory::{
    Block, Budget, Counted, Error, HostBuffer, HugePages, Limited, Mapped, MemoryKind, PageLocked, PageLocker, Pooled,
    Resource, Result,
};

use proptest::prelude::*;

use crate::tools::FakeDriver;

const MIB: usize = 1 << 20;

#[test]
fn mlock_locks_or_names_the_limit_and_the_fix() {
    match PageLocked::new().allocate(64 << 10) {
        Ok(block) => assert_eq!((block.len_bytes(), block.kind()), (64 << 10, MemoryKind::PageLocked)),
        Err(Error::LockLimit { .. }) => {} // a machine that lets nobody lock memory; the text is tested elsewhere
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn page_locked_memory_is_zero_whoever_touches_it() {
    for (threads, huge_pages) in [(1, HugePages::No), (3, HugePages::No), (3, HugePages::WhereGranted)] {
        let source = PageLocked::new().locked_by(Arc::<FakeDriver>::default());
        let source = source.touch_threads(NonZero::new(threads).unwrap()).huge_pages(huge_pages);
        let buffer = HostBuffer::allocate(&source, 40 * MIB + 5).unwrap();
        assert!(buffer.bytes().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn pages_are_locked_in_chunks_and_unlocked_when_the_block_drops() {
    let driver = Arc::new(FakeDriver::default());
    let block = PageLocked::new().locked_by(driver.clone()).allocate(257 * MIB).unwrap();
    assert_eq!(*driver.locks.lock().unwrap(), [256 * MIB, MIB]);
    drop(block);
    assert_eq!(driver.locked_bytes.load(SeqCst), 0);
}

#[test]
fn a_refused_chunk_undoes_those_before_it_and_the_reservation() {
    let driver = Arc::new(FakeDriver { refuse_at: Some(1), ..FakeDriver::default() });
    let budget = Budget::new("page-locked", 1 << 30);
    let limited = Limited::new(PageLocked::new().locked_by(driver.clone()), budget.clone());

    let error = limited.allocate(257 * MIB).unwrap_err();

    assert_eq!(
        error.to_string(),
        "cannot page-lock or unlock 1 MiB: refused by the test; use smaller buffers, or pageable ones"
    );
    assert_eq!((driver.locked_bytes.load(SeqCst), budget.used().0), (0, 0));
}

#[test]
fn pages_that_cannot_be_unlocked_are_leaked() {
    let driver = Arc::new(FakeDriver { refuses_unlock: true, ..FakeDriver::default() });
    let source = PageLocked::new().locked_by(driver);
    let mut buffer = HostBuffer::allocate(&source, 100).unwrap();
    buffer.bytes_mut().unwrap().fill(9);
    let address = buffer.as_ptr();
    drop(buffer);
    // SAFETY: this is what the test checks: the page is still mapped, and nobody writes to it.
    assert_eq!(unsafe { address.read_volatile() }, 9);
}

#[test]
fn pages_that_cannot_be_unlocked_stay_charged() {
    let driver = Arc::new(FakeDriver { refuses_unlock: true, ..FakeDriver::default() });
    let budget = Budget::new("page-locked", 8_192);
    let limited = Limited::new(PageLocked::new().locked_by(driver), budget.clone());
    drop(limited.allocate(4_096).unwrap());
    assert_eq!(budget.used().0, 4_096);
}

/// Panics when it locks the second chunk.
#[derive(Debug, Default)]
struct PanicsLater(FakeDriver);

impl PageLocker for PanicsLater {
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        assert!(self.0.locks.lock().unwrap().is_empty(), "on purpose");
        // SAFETY: the caller's promises.
        unsafe { self.0.lock(start, len_bytes) }
    }

    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.0.unlock(start, len_bytes) }
    }
}

#[test]
fn a_locker_that_panics_leaks_what_it_may_have_locked_and_unlocks_the_rest() {
    let driver = Arc::new(PanicsLater::default());
    let budget = Budget::new("page-locked", 1 << 30);
    let limited = Limited::new(PageLocked::new().locked_by(driver.clone()), budget.clone());

    assert!(catch_unwind(AssertUnwindSafe(|| limited.allocate(257 * MIB))).is_err());

    assert_eq!((driver.0.locked_bytes.load(SeqCst), budget.used().0), (0, 257 << 20));
}

/// Sends the test what would free dropped blocks.
#[derive(Debug)]
struct Defers(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl PageLocker for Defers {
    unsafe fn lock(&self, _start: NonNull<u8>, _len_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn unlock(&self, _start: NonNull<u8>, _len_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        self.0.send(free).unwrap();
    }
}

#[test]
fn pages_that_are_freed_later_are_charged_to_every_budget_until_then() {
    let (defers, deferred) = mpsc::channel();
    let budgets = ["inner", "ceiling", "outer"].map(|name| Budget::new(name, 8_192));
    let [inner, ceiling, outer] = &budgets;
    let source = Counted::new("deferred", PageLocked::new().locked_by(Arc::new(Defers(defers))));
    let limited = Limited::new(Limited::new(source, inner.clone()).under(ceiling), outer.clone());

    drop(limited.allocate(4_096).unwrap());
    assert_eq!(budgets.each_ref().map(|budget| budget.used().0), [4_096; 3]);

    deferred.recv().unwrap()();
    assert_eq!(budgets.map(|budget| budget.used().0), [0; 3]);
}

#[test]
fn a_page_locked_block_is_charged_for_whole_pages() {
    let source = PageLocked::new().locked_by(Arc::<FakeDriver>::default());
    let huge = source.clone().huge_pages(HugePages::WhereGranted);
    assert_eq!((source.footprint(1), source.footprint(4_097)), (4_096, 8_192));
    assert_eq!((huge.footprint(1), huge.footprint(2 * MIB + 1)), (4_096, 2 * MIB + 4_096));
    assert_eq!(huge.footprint(300 * MIB + 1), 302 * MIB, "less than a hundredth more");
    assert_eq!((huge.footprint(0), huge.footprint(usize::MAX - 5)), (4_096, usize::MAX));

    let budget = Budget::new("page-locked", 8_192);
    let _block = Limited::new(source, budget.clone()).allocate(4_097).unwrap();
    assert_eq!(budget.left().0, 0);
}

#[test]
fn huge_pages_start_where_huge_pages_start() {
    let source = PageLocked::new().locked_by(Arc::<FakeDriver>::default()).huge_pages(HugePages::WhereGranted);
    let block = source.allocate(3 * MIB).unwrap();
    assert!(block.ptr().addr().get().is_multiple_of(2 * MIB));
}

#[test]
fn what_is_charged_for_huge_pages_is_what_is_locked() {
    let driver = Arc::new(FakeDriver::default());
    let source = PageLocked::new().locked_by(driver.clone()).huge_pages(HugePages::WhereGranted);
    for len_bytes in [1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 5, 255 * MIB + 1, 257 * MIB + 1] {
        let block = source.allocate(len_bytes).unwrap();
        assert_eq!((block.len_bytes(), driver.locked_bytes.load(SeqCst)), (len_bytes, source.footprint(len_bytes)));
    }
}

proptest! {
    #[test]
    fn a_footprint_is_its_own_footprint(len_bytes in prop_oneof![0..20 * MIB, 0..1000 * MIB]) {
        let source = PageLocked::new().locked_by(Arc::<FakeDriver>::default()).huge_pages(HugePages::WhereGranted);
        let footprint = source.footprint(len_bytes);
        prop_assert_eq!(source.footprint(footprint), footprint);
        let pooled = Pooled::new(source);
        prop_assert_eq!(pooled.footprint(pooled.footprint(len_bytes)), pooled.footprint(len_bytes));
    }
}

#[test]
fn an_empty_file_maps_to_no_bytes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // SAFETY: nobody else knows the temporary file.
    let mapped = unsafe { Mapped::open(file.path()) }.unwrap();
    assert_eq!(HostBuffer::from_block(mapped).bytes(), b"");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train-images");
    // SAFETY: there is no file.
    let error = unsafe { Mapped::open(&path) }.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot map {}: No such file or directory (os error 2)", path.display()));
}

#[test]
fn a_folder_cannot_be_mapped() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: a folder has no bytes that could change.
    assert!(matches!(unsafe { Mapped::open(folder.path()) }, Err(Error::Map { .. })));
}
