//! The pool of device memory: which blocks it keeps, for which stream, and when it frees them.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, HostSource, Priority, Stream, Uninit,
    driver::{Call, Status},
    software::Fault,
};
use pagelock_memory::{ByteSize, HostBuffer, Ledger, Trim, holder, ledger};

use crate::tools::{ends, lazy, threaded};

#[test]
fn a_dropped_block_is_reused_on_its_stream_at_once_without_a_call_of_the_driver() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let first = stream.allocate::<f32>(1_000).unwrap();
    let address = first.address();
    let calls = machine.calls();
    drop(first);
    assert_eq!(stream.allocate::<f32>(1_000).unwrap().address(), address);
    assert_eq!(machine.calls(), calls);
}

#[test]
fn a_block_with_queued_work_is_not_given_to_another_stream_while_there_is_other_memory() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let (busy, other) = (device.stream().unwrap(), device.stream().unwrap());
    let last_use = busy.zeros::<u8>(4 << 20).unwrap();
    let address = last_use.address();
    drop(last_use);
    assert_ne!(other.allocate::<u8>(4 << 20).unwrap().address(), address);
}

/// When a buffer is dropped, its home stream waits for the stream that still uses it. A third stream that has waited
/// for the home stream before must wait for it again.
#[test]
fn a_reused_block_is_ordered_after_what_its_stream_waits_for() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let [home, user, third] = [0; 3].map(|_| device.stream().unwrap());
    let mut shared = home.zeros::<u32>(1_000).unwrap();
    third.fill(&mut shared, 1).unwrap(); // third has waited for all of home's work
    let read_late = user.download(&shared, Uninit::new(&device, 1_000).unwrap()).unwrap();
    drop(shared);

    let mut reused = home.allocate::<u32>(1_000).unwrap();
    third.fill(&mut reused, 2).unwrap();
    third.synchronize().unwrap();

    assert_eq!(*read_late.wait().unwrap(), [1; 1_000], "the block was written while an earlier owner's work read it");
}

/// A stream that uploads batches ahead queues the next upload before the first batch is used.
#[test]
fn who_uses_what_was_uploaded_waits_for_that_copy_alone() {
    let machine = threaded(5);
    let device = machine.device(0).unwrap();
    let (copies, user) = (device.stream().unwrap(), device.stream().unwrap());
    let mut host = HostBuffer::allocate(device.page_locked(), 1_000).unwrap();
    host.bytes_mut().unwrap().fill(7);
    let mut uploaded = copies.allocate::<u8>(1_000).unwrap();
    copies.upload_from(&host, &mut uploaded).unwrap();
    let (release, released) = mpsc::channel::<()>();
    let stuck = copies.call(move || released.recv_timeout(Duration::from_secs(20)).is_ok()).unwrap();

    assert_eq!(user.read(&uploaded).unwrap(), [7; 1_000]);

    release.send(()).unwrap();
    assert!(stuck.wait().unwrap(), "the reader waited for what was queued behind the copy");
}

#[test]
fn a_block_that_is_done_with_goes_to_whichever_stream_asks() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let last_use = first.zeros::<u8>(4 << 20).unwrap();
    let address = last_use.address();
    drop(last_use);
    first.synchronize().unwrap();
    assert_eq!(second.allocate::<u8>(4 << 20).unwrap().address(), address);
}

#[test]
fn where_memory_is_short_a_stream_waits_for_another_on_the_device() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    device.memory_budget().set_limit(ByteSize::mib(4));
    let (busy, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut last_use = busy.allocate::<u32>(1 << 20).unwrap();
    busy.fill(&mut last_use, 1).unwrap();
    drop(last_use);

    let mut taken_over = other.allocate::<u32>(1 << 20).unwrap();
    other.fill(&mut taken_over, 2).unwrap();

    assert!(!busy.is_idle().unwrap(), "nobody waited on the host");
    assert_eq!(other.read(taken_over.slice(..3).unwrap()).unwrap(), [2; 3]);
    machine.run_all();
    assert_eq!(other.read(taken_over.slice(..3).unwrap()).unwrap(), [2; 3], "the earlier fill came late");
}

#[test]
fn where_memory_is_short_idle_blocks_of_other_sizes_are_given_back() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    device.memory_budget().set_limit(ByteSize::mib(6));
    let stream = device.stream().unwrap();
    drop(stream.zeros::<u8>(4 << 20).unwrap());
    assert!(stream.allocate::<u8>(5 << 20).is_ok());
}

#[test]
fn what_a_dropped_stream_kept_is_used_by_the_next() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let address = device.stream().unwrap().allocate::<u8>(4 << 20).unwrap().address();
    assert_eq!(device.stream().unwrap().allocate::<u8>(4 << 20).unwrap().address(), address);
    let urgent = device.stream_with_priority(Priority::High).unwrap();
    assert_eq!(urgent.allocate::<u8>(4 << 20).unwrap().address(), address);
}

#[test]
fn trimming_keeps_what_is_in_use_and_gives_the_rest_back() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let kept = stream.allocate_from(&[1_u8; 700]).unwrap();
    drop((stream.zeros::<u8>(700).unwrap(), stream.zeros::<u8>(4 << 20).unwrap()));

    assert_eq!(device.trim().unwrap(), ByteSize::mib(4), "the small block's segment is in use");
    assert_eq!(stream.read(&kept).unwrap(), [1; 700]);

    drop(kept);
    device.trim().unwrap();
    assert_eq!((machine.allocated().0, device.pool_stats().reserved.0), (0, 0));
}

#[test]
fn trimming_frees_a_segment_whose_blocks_are_in_two_caches() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    for stream in [0; 2].map(|_| device.stream().unwrap()) {
        drop(stream.allocate::<u8>(256 << 10).unwrap()); // the second stream takes a block of the first's segment
    }
    assert_eq!(device.trim().unwrap(), ByteSize::mib(2));
    assert_eq!((machine.allocated().0, device.pool_stats().reserved.0), (0, 0));
}

#[test]
fn trimming_keeps_a_segment_whole_if_one_of_its_streams_cannot_be_waited_for() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let streams = [0; 2].map(|_| device.stream().unwrap());
    streams.iter().for_each(|stream| drop(stream.allocate::<u8>(256 << 10).unwrap()));
    machine.fail(Fault::at(1).call(Call::SynchronizeStream));
    machine.fail(Fault::at(0).call(Call::Synchronize));

    assert!(device.trim().is_err());

    assert_eq!((machine.allocated(), device.pool_stats().idle), (ByteSize::mib(2), ByteSize::mib(2)));
    assert_eq!(device.trim().unwrap(), ByteSize::mib(2));
}

/// Four threads have at most 4 × 4.5 of 19 MiB at a time, but the pool's free memory has the wrong sizes.
#[test]
fn threads_that_allocate_at_once_get_the_memory_that_is_free() {
    let device = threaded(0).device(0).unwrap();
    device.memory_budget().set_limit(ByteSize::mib(19));
    thread::scope(|scope| {
        for first in 0..4 {
            let stream = device.stream().unwrap();
            scope.spawn(move || {
                for round in 0..100 {
                    let quarters = 8 + (round * 7 + first * 3) % 11;
                    let mut buffer = stream.allocate::<u8>(quarters << 18).unwrap();
                    stream.fill(buffer.slice_mut(..1).unwrap(), 1).unwrap();
                }
            });
        }
    });
}

/// A cache whose buffers return to the device's pool, which it trims for that reason.
struct TrimsTheDevice(Device);

impl Trim for TrimsTheDevice {
    fn trim(&self) -> usize {
        self.0.trim().unwrap().0 as usize
    }
}

#[test]
fn a_pool_of_the_device_s_budget_may_trim_the_device() {
    let device = lazy(0).device(0).unwrap();
    device.memory_budget().set_limit(ByteSize::mib(6));
    let pool: Arc<dyn Trim> = Arc::new(TrimsTheDevice(device.clone()));
    device.memory_budget().add_pool(Arc::downgrade(&pool));
    let stream = device.stream().unwrap();
    drop(stream.allocate::<u8>(4 << 20).unwrap());
    assert!(stream.allocate::<u8>(5 << 20).is_ok());
}

/// A cache that uses a little memory of the device to free a lot.
struct AllocatesToo(Stream, Mutex<Option<DeviceBuffer<u8>>>);

impl Trim for AllocatesToo {
    fn trim(&self) -> usize {
        let cached = self.1.lock().unwrap().take();
        assert!(self.0.allocate::<u8>(1 << 10).is_ok());
        cached.map_or(0, |cached| cached.len())
    }
}

#[test]
fn a_pool_of_the_device_s_budget_may_allocate_memory_of_the_device() {
    ends(|| {
        let device = lazy(0).device(0).unwrap();
        device.memory_budget().set_limit(ByteSize::mib(6));
        let stream = device.stream().unwrap();
        let cached = stream.allocate::<u8>(4 << 20).unwrap();
        let pool: Arc<dyn Trim> = Arc::new(AllocatesToo(stream.clone(), Mutex::new(Some(cached))));
        device.memory_budget().add_pool(Arc::downgrade(&pool));
        assert!(stream.allocate::<u8>(5 << 20).is_ok());
    });
}

/// Lets another thread trim the device, and waits until that has taken the free blocks.
struct LetsAnotherTrim(Device, mpsc::Sender<()>);

impl Trim for LetsAnotherTrim {
    fn trim(&self) -> usize {
        let _ = self.1.send(());
        let start = Instant::now();
        while self.0.pool_stats().idle > ByteSize(0) && start.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
        0
    }
}

#[test]
fn an_allocation_gets_the_memory_that_another_thread_is_freeing() {
    ends(|| {
        let device = threaded(0).device(0).unwrap();
        device.memory_budget().set_limit(ByteSize::mib(8));
        let [stuck, other] = [0; 2].map(|_| device.stream().unwrap());
        let (trim, trims) = mpsc::channel();
        let pool: Arc<dyn Trim> = Arc::new(LetsAnotherTrim(device.clone(), trim));
        device.memory_budget().add_pool(Arc::downgrade(&pool));
        drop(stuck.allocate::<u8>(6 << 20).unwrap());
        let (release, released) = mpsc::channel::<()>();
        drop(stuck.call(move || released.recv()).unwrap());
        let (send, allocated) = mpsc::channel();
        let trimming = thread::spawn(move || trims.recv().is_ok().then(|| device.trim()));
        thread::spawn(move || send.send(other.allocate::<u8>(8 << 20).map(drop)));

        let early = allocated.recv_timeout(Duration::from_millis(100)).ok();
        drop(release);

        let late = early.unwrap_or_else(|| allocated.recv().unwrap());
        assert!(late.is_ok(), "{late:?}");
        drop(pool);
        let _ = trimming.join().unwrap();
    });
}

#[test]
fn parts_of_parts_of_parts_are_dropped_on_a_small_stack() {
    let chain = || {
        let stream = lazy(0).device(0).unwrap().stream().unwrap();
        let mut buffer = stream.allocate::<u8>(64).unwrap();
        for _ in 0..10_000 {
            buffer = buffer.split([0..64]).unwrap().remove(0);
        }
        drop(buffer);
        stream.device().pool_stats().live
    };
    let small_stack = thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap();
    assert_eq!(small_stack.join().unwrap(), ByteSize(0));
}

#[test]
fn a_block_is_allocated_alone_if_there_is_no_memory_for_more() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    device.memory_budget().set_limit(ByteSize::mib(1));
    let buffers = [0; 4].map(|_| stream.allocate::<u8>(256 << 10).unwrap());
    assert_eq!(device.pool_stats().reserved, ByteSize::mib(1));
    assert_eq!(
        stream.allocate::<u8>(256 << 10).unwrap_err().to_string(),
        "cannot take 256 KiB: budget `device 0` has 0 B left of 1 MiB; drop device buffers, use smaller batches, or \
         raise the device's limit"
    );
    drop(buffers);
}

#[test]
fn memory_that_could_not_be_freed_stays_charged_to_the_limit() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    drop(stream.allocate::<u8>(20 << 20).unwrap());
    machine.fail(Fault::at(0).call(Call::Free));
    device.trim().unwrap();
    assert_eq!((device.leaked().count, device.leaked().memory), (1, ByteSize::mib(20)));
    assert_eq!(device.memory_budget().used(), machine.allocated());
}

#[test]
fn a_refusal_names_the_numbers() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let _held = stream.allocate::<u8>(100 << 20).unwrap();
    machine.fail(Fault::at(0).call(Call::Allocate).status(Status::OUT_OF_MEMORY));
    let refused = stream.allocate::<u8>(8 << 20).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "device 0 cannot allocate 8 MiB: buffers hold 100 MiB of the reserved 100 MiB, 924 MiB of 1 GiB are free for \
         all processes; drop buffers, use smaller batches or another device"
    );
}

#[test]
fn refusals_and_the_ledger_name_who_holds_the_device() {
    let device = lazy(0).device(0).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    device.memory_budget().set_limit(ByteSize::mib(64));
    let held = |name: &str, stream: &Stream, mib: usize| {
        let _scope = holder(name);
        stream.allocate::<u8>(mib << 20).unwrap()
    };
    let (weights, batch) = (held("weights", &stream, 24), held("loader", &other, 8));
    drop(held("weights", &stream, 16)); // a block in the pool has no holder

    let refused = stream.allocate::<u8>(48 << 20).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cannot take 48 MiB: budget `device 0` has 32 MiB left of 64 MiB; largest holders: `weights` 24 MiB, `loader` 8 MiB; drop device \
         buffers, use smaller batches, or raise the device's limit"
    );
    let again = held("loader", &stream, 16);
    let names: Vec<_> = device.holders().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["`weights` 24 MiB", "`loader` 24 MiB"]);
    let shown =
        |ledger: Ledger| ledger.devices.iter().any(|entry| entry.holders.len() == 2 && entry.stats.live_blocks == 3);
    assert!(shown(ledger()) && ledger().to_string().contains("\ndevice   "), "{}", ledger());
    drop((weights, batch, again));
    assert!(device.holders().is_empty());
}

#[test]
fn more_elements_than_can_be_are_refused() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    for len in [usize::MAX, usize::MAX / 8 + 1, (1 << 61) + 1] {
        assert!(matches!(stream.allocate::<u64>(len), Err(Error::Argument(_))), "{len}");
    }
    assert!(stream.allocate::<u64>(1 << 50).is_err());
}

#[test]
fn statistics_say_what_is_live_idle_and_reserved() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let (first, second) = (stream.allocate::<u8>(4 << 20).unwrap(), stream.allocate::<u8>(4 << 20).unwrap());
    drop(first);
    let stats = device.pool_stats();
    let mib = ByteSize::mib;
    assert_eq!((stats.live, stats.idle, stats.peak, stats.reserved), (mib(4), mib(4), mib(8), mib(8)));
    assert_eq!((stats.hits, stats.misses), (0, 2));
    drop(second);
}

#[test]
fn the_memory_of_parts_is_reused_after_the_last_of_them() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let whole = stream.allocate_from(&[1_u8; 4_000]).unwrap();
    let address = whole.address();
    let mut parts = whole.split([0..1_000, 1_024..1_024, 2_048..4_000]).unwrap();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [1_000, 0, 1_952]);
    assert_eq!(parts[2].address().0, address.0 + 2_048);

    parts.remove(0);
    assert_ne!(stream.allocate::<u8>(4_000).unwrap().address(), address);
    assert_eq!(stream.read(&parts[1]).unwrap(), [1; 1_952]);
    drop(parts);
    assert_eq!(stream.allocate::<u8>(4_000).unwrap().address(), address);
}

#[test]
fn a_block_of_parts_is_ordered_after_what_other_streams_do_with_each() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let [home, user] = [0; 2].map(|_| device.stream().unwrap());
    let mut parts = home.zeros::<u32>(1_000).unwrap().split([0..500, 512..1_000]).unwrap();
    home.fill(&mut parts[1], 1).unwrap();
    let read_late = user.download(&parts[1], Uninit::new(&device, 488).unwrap()).unwrap();
    drop(parts.pop());
    drop(parts);

    let mut reused = home.allocate::<u32>(1_000).unwrap();
    home.fill(&mut reused, 2).unwrap();
    home.synchronize().unwrap();

    assert_eq!(*read_late.wait().unwrap(), [1; 488]);
}

#[test]
fn a_part_is_used_as_the_whole_was() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let [home, writer, reader] = [0; 3].map(|_| device.stream().unwrap());
    let mut whole = home.zeros::<u32>(1_000).unwrap();
    writer.fill(&mut whole, 7).unwrap();
    let parts = whole.split(std::iter::once(0..10)).unwrap();
    assert_eq!(reader.read(&parts[0]).unwrap(), [7; 10], "the reader waited for who wrote the whole");
}

#[test]
fn ranges_that_are_no_parts_are_refused() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    for ranges in [&[(0, 101)][..], &[(0, 10), (5, 20)], &[(20, 10)]] {
        let ranges = ranges.iter().map(|&(start, end)| start..end);
        let whole = stream.zeros::<u8>(100).unwrap();
        assert!(matches!(whole.split(ranges), Err(Error::Argument(_))));
    }
}

#[test]
fn parts_that_follow_each_other_move_as_one() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let whole = HostBuffer::allocate(device.page_locked(), 300).unwrap();
    let mut parts = whole.split([0..50, 64..128, 192..300]).unwrap();
    for (value, part) in parts.iter_mut().enumerate() {
        part.bytes_mut().unwrap().fill(value as u8);
    }
    let mut there = stream.allocate::<u8>(300).unwrap().split([0..50, 64..128, 192..300]).unwrap();
    machine.fail(Fault::at(1).call(Call::CopyToDevice).lasting());
    stream.upload_each(parts.iter().zip(&mut there)).unwrap();
    machine.heal();
    parts[2].bytes_mut().unwrap().fill(9); // waits for the copy

    let back = HostBuffer::allocate(device.page_locked(), 300).unwrap();
    let mut back = back.split([0..50, 64..128, 192..300]).unwrap();
    machine.fail(Fault::at(1).call(Call::CopyToHost).lasting());
    stream.download_each(there.iter().zip(&mut back)).unwrap();
    machine.heal();
    let values: Vec<_> = back.iter().map(|part| (part.len_bytes(), part.bytes()[0], part.bytes()[40])).collect();
    assert_eq!(values, [(50, 0, 0), (64, 1, 1), (108, 2, 2)]);
}

#[test]
fn uploads_to_views_bring_each_its_own_and_leave_alone_what_lies_between() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let parts = || {
        let whole = HostBuffer::allocate(device.page_locked(), 300).unwrap();
        let mut parts = whole.split([0..50, 64..128, 192..300]).unwrap();
        for (value, part) in parts.iter_mut().enumerate() {
            part.bytes_mut().unwrap().fill(value as u8 + 1);
        }
        parts
    };
    // Targets as far apart as their sources take one copy (done twice, since the first call creates events). If only
    // the last two are, they take two copies; if none are, three.
    let mut calls = Vec::new();
    let as_far = [0..50, 64..128, 192..300];
    for ranges in [as_far.clone(), as_far, [0..50, 50..114, 178..286], [0..50, 70..134, 192..300]] {
        let sources = parts();
        let mut whole = stream.allocate::<u8>(300).unwrap();
        stream.fill(&mut whole, 9).unwrap();
        let mut there = whole.split(ranges).unwrap();
        let before = machine.calls();
        stream.upload_each(sources.iter().zip(&mut there)).unwrap();
        calls.push(machine.calls() - before);
        drop(sources); // waits
        for (value, part) in there.iter().enumerate() {
            assert_eq!(stream.read(part).unwrap(), vec![value as u8 + 1; part.len()]);
        }
    }
    assert_eq!([calls[2] - calls[1], calls[3] - calls[1]], [1, 2], "{calls:?}");
    // A view shorter than its buffer: the copy must not touch the bytes behind the view.
    let sources = parts();
    let mut whole = stream.allocate::<u8>(300).unwrap();
    stream.fill(&mut whole, 9).unwrap();
    let mut there = whole.split([0..64, 64..128]).unwrap();
    let [first, second] = &mut there[..] else { unreachable!("two were asked for") };
    let copies = vec![
        (HostSource::of(&sources[0], 0..50).unwrap(), first.view_mut().slice(..50).unwrap()),
        (HostSource::of(&sources[1], 0..64).unwrap(), second.view_mut()),
    ];
    stream.upload_each(copies).unwrap();
    assert_eq!(stream.read(&there[0]).unwrap(), [[1; 50].as_slice(), &[9; 14]].concat());
    assert_eq!(stream.read(&there[1]).unwrap(), [2; 64]);
    // Refused before anything is copied.
    let mut short = stream.allocate::<u8>(40).unwrap();
    let copies = vec![(HostSource::of(&sources[0], 0..50).unwrap(), short.view_mut())];
    let refused = stream.upload_each(copies);
    assert!(matches!(&refused, Err(Error::Argument(text)) if text.contains("50 elements to 40")), "{refused:?}");
}
