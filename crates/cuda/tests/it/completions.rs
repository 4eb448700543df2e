//! Page-locked buffers with [`Completion`]s of the program beside those of copies.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
};

use pagelock_memory::{Abandoned, Completion, HostBuffer, PageLocked, PageLocker, Result};

use crate::tools::{lazy, not_given_back, threaded};

#[test]
fn after_a_completion_panics_the_copies_of_other_buffers_are_still_waited_for() {
    struct Panics;
    impl Completion for Panics {
        fn is_done(&self) -> bool {
            panic!("asked whether it is done")
        }

        fn wait(&self) {}
    }

    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let [first, mut second] = [0; 2].map(|_| {
        let mut buffer = HostBuffer::allocate(device.page_locked(), 64).unwrap();
        buffer.bytes_mut().unwrap().fill(1);
        buffer
    });
    let [mut to_first, mut to_second] = [0; 2].map(|_| stream.allocate::<u8>(64).unwrap());
    first.add_reader(Arc::new(Panics));
    let each = [(&first, &mut to_first), (&second, &mut to_second)];
    assert!(catch_unwind(AssertUnwindSafe(|| stream.upload_each(each))).is_err());

    second.bytes_mut().unwrap().fill(9); // waits for the copy

    assert_eq!(stream.read(&to_second).unwrap(), [1; 64]);
}

/// Wraps a device's locker, and records whether a block is freed while a copy is in flight.
#[derive(Debug)]
struct RecordingLocker {
    locker: Arc<dyn PageLocker>,
    in_flight: AtomicBool,
    freed_in_flight: AtomicBool,
}

impl PageLocker for RecordingLocker {
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.locker.lock(start, len_bytes) }
    }

    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe { self.locker.unlock(start, len_bytes) }
    }

    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        self.freed_in_flight.fetch_or(self.in_flight.load(SeqCst), SeqCst);
        self.locker.when_possible(free);
    }
}

#[test]
fn a_block_that_a_completion_frees_in_a_host_function_waits_for_the_copies() {
    /// A completion for which no thread may wait, and whose `keep` frees the block at once.
    struct Frees;
    impl Completion for Frees {
        fn is_done(&self) -> bool {
            false
        }

        fn wait(&self) {}

        fn may_wait(&self) -> bool {
            false
        }

        fn keep(&self, block: Abandoned) -> std::result::Result<(), Abandoned> {
            block.free();
            Ok(())
        }
    }

    let machine = threaded(0);
    let device = machine.device(0).unwrap();
    let [copies, calls, blocked] = [0; 3].map(|_| device.stream().unwrap());
    let (go, gate) = mpsc::channel::<()>();
    let blocking = blocked.call(move || gate.recv()).unwrap();
    copies.wait_for(&blocked.record().unwrap()).unwrap();
    let (in_flight, freed_in_flight) = (AtomicBool::new(true), AtomicBool::new(false));
    let locker = Arc::new(RecordingLocker { locker: device.page_locker(), in_flight, freed_in_flight });
    let mut buffer = HostBuffer::allocate(&PageLocked::new().locked_by(locker.clone()), 64).unwrap();
    buffer.bytes_mut().unwrap().fill(1);
    buffer.add_reader(Arc::new(Frees));
    let mut target = copies.allocate::<u8>(64).unwrap();
    copies.upload_from(&buffer, &mut target).unwrap(); // in flight until the gate opens

    calls.call(move || drop(buffer)).unwrap().wait().unwrap();

    locker.in_flight.store(false, SeqCst);
    go.send(()).unwrap();
    assert_eq!(copies.read(&target).unwrap(), [1; 64]);
    assert!(!locker.freed_in_flight.load(SeqCst), "the block was freed during the copy");
    drop((target, blocking, copies, calls, blocked, device));
    assert_eq!(not_given_back(&machine), (0, 0), "the block was not freed after the copy");
    assert_eq!(machine.violations(), [""; 0]);
}
