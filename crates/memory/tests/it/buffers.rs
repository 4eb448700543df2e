//! Buffers: which operation waits for which pending completion, and blocks of any type.

use std::{
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use pagelock_memory::{
    Abandoned, Block, Completion, Counted, Foreign, HostBuffer, Mapped, MemoryKind, Pageable, PageableBlock, Resource,
    default_host,
};

use crate::tools::{CountedWaits, Gate};

#[test]
fn reading_waits_for_writers_once_and_not_for_readers() {
    let mut buffer = HostBuffer::allocate(&Pageable, 16).unwrap();
    let (reader, writer) = (Arc::new(CountedWaits::default()), Arc::new(CountedWaits::default()));
    buffer.add_writer(writer.clone());
    buffer.add_reader(reader.clone());

    buffer.bytes();
    buffer.bytes();
    assert_eq!((reader.waits(), writer.waits()), (0, 1));
}

#[test]
fn writing_waits_for_readers_and_writers() {
    let mut buffer = HostBuffer::allocate(&Pageable, 16).unwrap();
    let (reader, writer) = (Arc::new(CountedWaits::default()), Arc::new(CountedWaits::default()));
    buffer.add_reader(reader.clone());
    buffer.add_writer(writer.clone());

    buffer.bytes_mut().unwrap();
    buffer.bytes_mut().unwrap();
    assert_eq!((reader.waits(), writer.waits()), (1, 1));
}

#[test]
fn waiting_without_access_follows_the_same_rules() {
    let mut buffer = HostBuffer::allocate(&Pageable, 16).unwrap();
    let (reader, writer) = (Arc::new(CountedWaits::default()), Arc::new(CountedWaits::default()));
    buffer.add_reader(reader.clone());
    buffer.add_writer(writer.clone());

    buffer.wait_for_writers();
    assert_eq!((reader.waits(), writer.waits()), (0, 1));
    buffer.wait_for_all();
    assert_eq!((reader.waits(), writer.waits()), (1, 1));
}

#[test]
fn dropping_waits_before_the_block_goes() {
    /// Notes how many blocks live when a thread waits for it.
    struct Counts {
        counted: Counted<Pageable>,
        live_blocks: Mutex<Vec<u64>>,
    }
    impl Completion for Counts {
        fn is_done(&self) -> bool {
            !self.live_blocks.lock().unwrap().is_empty()
        }

        fn wait(&self) {
            self.live_blocks.lock().unwrap().push(self.counted.stats().live_blocks);
        }
    }

    let counted = Counted::new("drop test", Pageable);
    let counts = Arc::new(Counts { counted: counted.clone(), live_blocks: Mutex::default() });
    let buffer = HostBuffer::allocate(&counted, 16).unwrap();
    buffer.add_reader(counts.clone());
    drop(buffer);
    assert_eq!(*counts.live_blocks.lock().unwrap(), [1], "the drop waited once, with the block");
    assert_eq!(counted.stats().live_blocks, 0);
}

#[test]
fn host_code_sees_what_a_device_wrote() {
    /// An address that another thread may write to.
    struct Target(NonNull<u8>);
    // SAFETY: the test lets one thread write, and reads only after it is done.
    unsafe impl Send for Target {}

    for round in 0..100_u8 {
        let mut buffer = HostBuffer::allocate(default_host(), 4_096).unwrap();
        let (gate, target) = (Arc::new(Gate::default()), Target(buffer.as_ptr()));
        buffer.add_writer(gate.clone());
        let device = thread::spawn(move || {
            let target = target;
            // SAFETY: the buffer outlives this thread's writing, since it waits for the gate; nobody reads before.
            unsafe { target.0.write_bytes(round, 4_096) };
            gate.open();
        });
        assert!(buffer.bytes().iter().all(|&byte| byte == round));
        device.join().unwrap();
    }
}

#[test]
fn finished_completions_do_not_pile_up() {
    let buffer = HostBuffer::allocate(&Pageable, 16).unwrap();
    let first = Arc::new(CountedWaits::default());
    buffer.add_reader(first.clone());
    first.wait();
    buffer.add_reader(Arc::new(CountedWaits::default()));
    assert_eq!(Arc::strong_count(&first), 1, "the buffer forgot the finished one");
}

struct Panics;

impl Completion for Panics {
    fn is_done(&self) -> bool {
        panic!("asked whether it is done")
    }

    fn wait(&self) {}
}

#[test]
fn a_completion_that_panics_hides_none_that_is_added_behind_it() {
    let mut buffer = HostBuffer::allocate(&Pageable, 16).unwrap();
    let behind = Arc::new(CountedWaits::default());
    buffer.add_reader(Arc::new(Panics));
    let added = catch_unwind(AssertUnwindSafe(|| buffer.add_reader(behind.clone())));
    assert!(added.is_err());

    buffer.bytes_mut().unwrap();

    assert_eq!(behind.waits(), 1, "a device reads the bytes until then");
}

#[test]
fn a_completion_of_one_buffer_that_panics_hides_no_reader_of_the_next() {
    let [first, mut second] = [0; 2].map(|_| HostBuffer::allocate(&Pageable, 16).unwrap());
    let reader = Arc::new(CountedWaits::default());
    first.add_reader(Arc::new(Panics));
    let done: Arc<dyn Completion> = reader.clone();
    let added = catch_unwind(AssertUnwindSafe(|| HostBuffer::add_reader_to_each([&first, &second], &done)));
    assert!(added.is_err());

    second.bytes_mut().unwrap();

    assert_eq!(reader.waits(), 1, "a device reads the bytes until then");
}

#[test]
fn the_buffer_may_be_used_while_a_completion_is_queried_and_while_it_is_dropped() {
    /// Done; another thread uses the buffer while this is queried or dropped.
    struct Uses(Weak<HostBuffer>, mpsc::Sender<bool>);
    impl Uses {
        fn use_buffer(&self) {
            let (buffer, (send, used)) = (self.0.upgrade().unwrap(), mpsc::channel());
            thread::spawn(move || {
                buffer.wait_for_all();
                send.send(())
            });
            let _ = self.1.send(used.recv_timeout(Duration::from_secs(5)).is_ok());
        }
    }
    impl Completion for Uses {
        fn is_done(&self) -> bool {
            self.use_buffer();
            true
        }

        fn wait(&self) {}
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            self.use_buffer();
        }
    }

    let (send, used) = mpsc::channel();
    let buffer = Arc::new(HostBuffer::allocate(&Pageable, 16).unwrap());
    buffer.add_reader(Arc::new(Uses(Arc::downgrade(&buffer), send)));
    buffer.add_reader(Arc::new(CountedWaits::default()));
    assert_eq!(used.iter().collect::<Vec<_>>(), [true; 2], "the buffer was locked");
}

#[test]
fn a_buffer_of_a_lost_device_refuses_access_and_leaks_its_block() {
    struct Lost;
    impl Completion for Lost {
        fn is_done(&self) -> bool {
            false
        }

        fn wait(&self) {}

        fn is_lost(&self) -> bool {
            true
        }
    }

    let counted = Counted::new("lost device", Pageable);
    let mut buffer = HostBuffer::allocate(&counted, 8).unwrap();
    buffer.add_writer(Arc::new(Lost));

    let access = catch_unwind(AssertUnwindSafe(|| buffer.bytes().len()));
    drop(buffer);

    assert!(access.is_err(), "what the bytes are, nobody knows");
    assert_eq!(counted.stats().live_blocks, 1, "the block must not be freed");
}

/// Keeps the blocks that it is given until the test frees them.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<Abandoned>>,
    waits: AtomicUsize,
}

impl Completion for Keeper {
    fn is_done(&self) -> bool {
        false
    }

    fn wait(&self) {
        self.waits.fetch_add(1, SeqCst);
    }

    fn keep(&self, block: Abandoned) -> Result<(), Abandoned> {
        self.kept.lock().unwrap().push(block);
        Ok(())
    }
}

#[test]
fn a_buffer_that_is_dropped_without_waiting_leaves_its_block_to_whoever_knows_when_it_is_done() {
    let counted = Counted::new("kept test", Pageable);
    let keeper = Arc::new(Keeper::default());
    let buffer = HostBuffer::allocate(&counted, 16).unwrap().drop_without_waiting();
    buffer.add_reader(keeper.clone());
    drop(buffer);
    assert_eq!((counted.stats().live_bytes, keeper.waits.load(SeqCst)), (16, 0));

    let kept = keeper.kept.lock().unwrap().pop().unwrap();
    assert_eq!(kept.len_bytes(), 16);
    kept.free();
    assert_eq!(counted.stats().live_bytes, 0);
}

#[test]
fn a_buffer_waits_when_it_is_dropped_unless_it_was_asked_not_to_and_one_can_keep_its_block() {
    let counted = Counted::new("kept by nobody", Pageable);
    let (keeper, noted) = (Arc::new(Keeper::default()), Arc::new(CountedWaits::default()));
    let patient = HostBuffer::allocate(&counted, 16).unwrap();
    patient.add_reader(keeper.clone());
    drop(patient);
    let [of_two, of_none] = [0; 2].map(|_| HostBuffer::allocate(&counted, 16).unwrap().drop_without_waiting());
    of_two.add_reader(keeper.clone());
    of_two.add_reader(keeper.clone());
    drop(of_two);
    of_none.add_reader(noted.clone());
    drop(of_none);
    assert_eq!((keeper.waits.load(SeqCst), noted.waits()), (3, 1));
    assert_eq!((keeper.kept.lock().unwrap().len(), counted.stats().live_bytes), (0, 0));
}

#[test]
fn a_kept_block_that_nobody_gives_back_leaks() {
    let counted = Counted::new("kept for ever", Pageable);
    let keeper = Arc::new(Keeper::default());
    let buffer = HostBuffer::allocate(&counted, 16).unwrap().drop_without_waiting();
    buffer.add_reader(keeper.clone());
    drop(buffer);
    drop(keeper);
    assert_eq!(counted.stats().live_blocks, 1, "the device may still use it");
}

#[test]
fn a_completion_that_panics_leaks_the_block_rather_than_freeing_it() {
    static LEAKED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut()); // where a leak checker finds it
    struct Broken;
    impl Completion for Broken {
        fn is_done(&self) -> bool {
            false
        }
        fn wait(&self) {
            panic!("the device is lost");
        }
    }

    let counted = Counted::new("leak test", Pageable);
    let buffer = HostBuffer::allocate(&counted, 16).unwrap();
    std::hint::black_box(&LEAKED).store(buffer.as_ptr().as_ptr(), SeqCst);
    buffer.add_reader(Arc::new(Broken));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(buffer))).is_err());
    assert_eq!(counted.stats().live_blocks, 1);
}

/// A block that is too large and too aligned to be stored inline in a buffer, and that counts its drops.
#[repr(align(64))]
struct Bulky {
    inner: PageableBlock,
    padding: [u64; 40],
    drops: Arc<AtomicUsize>,
}

// SAFETY: all answers are those of the inner block.
unsafe impl Block for Bulky {
    fn ptr(&self) -> NonNull<u8> {
        self.inner.ptr()
    }

    fn len_bytes(&self) -> usize {
        self.inner.len_bytes()
    }

    fn kind(&self) -> MemoryKind {
        self.inner.kind()
    }
}

impl Drop for Bulky {
    fn drop(&mut self) {
        assert_eq!(self.padding, [7; 40]);
        self.drops.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_block_of_any_size_is_dropped_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let inner = Pageable.allocate(100).unwrap();
    let mut buffer = HostBuffer::from_block(Bulky { inner, padding: [7; 40], drops: drops.clone() });
    buffer.bytes_mut().unwrap().fill(3);
    let moved = Box::new(buffer);
    assert_eq!(moved.bytes(), [3; 100]);
    drop(moved);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_mapped_buffer_refuses_to_be_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [1; 2_048]).unwrap();
    // SAFETY: nobody else knows the temporary file.
    let mut buffer = HostBuffer::from_block(unsafe { Mapped::open(file.path()) }.unwrap());

    assert!(!buffer.is_writable());
    assert_eq!(
        buffer.bytes_mut().unwrap_err().to_string(),
        "cannot write to a mapped buffer of 2 KiB: it is read-only; copy it to an allocated buffer first"
    );
    assert_eq!(buffer.bytes(), [1; 2_048]);
}

const READERS: usize = 4;

/// Done when all readers wait for it at the same time.
#[derive(Default)]
struct Meeting {
    n_waiting: Mutex<usize>,
    changed: Condvar,
}

impl Completion for Meeting {
    fn is_done(&self) -> bool {
        *self.n_waiting.lock().unwrap() == READERS
    }

    fn wait(&self) {
        let mut n_waiting = self.n_waiting.lock().unwrap();
        *n_waiting += 1;
        self.changed.notify_all();
        let patience = Duration::from_secs(20); // so that the test fails if a reader keeps the others out
        drop(self.changed.wait_timeout_while(n_waiting, patience, |n_waiting| *n_waiting < READERS).unwrap());
    }
}

#[test]
fn threads_that_read_a_buffer_wait_for_its_writer_at_the_same_time() {
    let mut buffer = HostBuffer::allocate(&Pageable, 64).unwrap();
    let meeting = Arc::new(Meeting::default());
    buffer.add_writer(meeting.clone());
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                buffer.bytes();
                assert!(meeting.is_done(), "nobody reads before the writer is done");
            });
        }
    });
}

#[test]
fn a_buffer_prints_what_it_is() {
    let buffer = HostBuffer::allocate(&Pageable, 3 << 19).unwrap();
    assert_eq!(format!("{buffer:?}"), "HostBuffer(1.5 MiB pageable)");
}

#[test]
fn parts_of_parts_of_parts_are_dropped_on_a_small_stack() {
    let chain = || {
        let memory = Counted::new("chain", Pageable);
        let mut buffer = HostBuffer::allocate(&memory, 64).unwrap();
        for _ in 0..10_000 {
            buffer = buffer.split(iter::once(0..64)).unwrap().remove(0);
        }
        assert_eq!(memory.stats().live_blocks, 1);
        drop(buffer);
        memory.stats().live_blocks
    };
    let small_stack = thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap();
    assert_eq!(small_stack.join().unwrap(), 0);
}

#[test]
fn a_part_whose_memory_panics_keeps_no_other_from_being_dropped() {
    struct Panics;
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            &[]
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("an owner panics");
        }
    }
    let cut = |buffer: HostBuffer| buffer.split(iter::once(0..0)).unwrap().remove(0);
    let nested = |buffer| cut(cut(buffer));
    let panicking = nested(HostBuffer::from_block(Foreign::new(Panics).ok().unwrap()));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(panicking))).is_err());

    let memory = Counted::new("after a panic", Pageable);
    drop(nested(HostBuffer::allocate(&memory, 64).unwrap()));
    assert_eq!(memory.stats().live_blocks, 0);
}
