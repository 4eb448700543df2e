//! A watcher of accesses that panics. This test has a process of its own, since the first watcher of a process stays.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use pagelock_cuda::{
    Pinned, Uninit,
    software::{Config, Execution, Machine},
};
use pagelock_memory::{Budget, ByteSize, HostBuffer, Limited, PageLocked, watch_accesses};

/// How many accesses succeed before the watcher panics.
static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

fn watch() {
    watch_accesses(|_, _, _| {
        let left = LEFT.load(SeqCst);
        if left != usize::MAX {
            LEFT.store(left.wrapping_sub(1), SeqCst);
            assert!(left > 0, "the watcher panics");
        }
    });
}

/// Runs copies while the watcher panics at the access after `skip` others, and returns whether it did. The device uses
/// no memory that was freed, and in the end all page-locked memory is free.
fn copies_until_the_watcher_panics(sanitize: bool, skip: usize) -> bool {
    let execution = Execution::Stepped { haste: 0 };
    let machine = Machine::new(Config { execution, sanitize, ..Config::default() });
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let memory =
        Limited::new(PageLocked::new().locked_by(device.page_locker()), Budget::new("test", ByteSize::mib(64)));
    let room = || HostBuffer::allocate(&memory, 8_192).unwrap();
    let parts = || room().split([0..64, 64..128, 4_096..8_192]).unwrap();
    let mut targets = stream.zeros::<u8>(8_192).unwrap().split([0..64, 64..128, 4_096..8_192]).unwrap();
    let locked = Pinned::from_slice(&device, &[1_u8; 64]).unwrap();
    let uninit = Uninit::<u8>::new(&device, 64).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let (one, other, apart, mut back) = (parts(), parts(), parts(), parts());
        LEFT.store(skip, SeqCst);
        stream.upload_each(one.iter().zip(&mut targets)).unwrap();
        let other: Vec<_> = other.iter().map(|part| part.into()).collect();
        drop(stream.upload_all(&other).unwrap());
        let apart: Vec<_> = apart.iter().rev().map(|part| part.into()).collect();
        drop(stream.upload_all(&apart).unwrap());
        drop(stream.upload(locked, &mut targets[0]).unwrap());
        drop(stream.download(&targets[0], uninit).unwrap());
        stream.download_each(targets.iter().zip(&mut back)).unwrap();
        LEFT.store(usize::MAX, SeqCst);
    }));
    LEFT.store(usize::MAX, SeqCst);
    machine.run_all();
    stream.synchronize().unwrap();
    assert_eq!(machine.violations(), [""; 0], "after {skip} accesses");
    let page_locked = device.page_locked().clone();
    drop((targets, stream, device, machine));
    assert_eq!(page_locked.stats().live_blocks, 0, "leaked after {skip} accesses");
    panicked.is_err()
}

#[test]
fn memory_outlives_its_copies_wherever_a_watcher_panics() {
    watch();
    for sanitize in [false, true] {
        let panics = (0..200).take_while(|&skip| copies_until_the_watcher_panics(sanitize, skip)).count();
        assert!((5..200).contains(&panics), "{panics} accesses are watched");
    }
}
