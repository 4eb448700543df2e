//! What dropped tickets leave behind, and when it is freed.

use std::sync::mpsc;

use pagelock_cuda::{Device, DeviceBuffer, Pinned, Stream};
use pagelock_memory::HostBuffer;

use crate::tools::{gpu, lazy, threaded};

/// A stream that does nothing until the sender is used or dropped. The memory that tests need is allocated before that,
/// since an allocation may have to wait for streams.
fn stuck_stream(device: &Device) -> (Stream, mpsc::Sender<()>) {
    let stream = device.stream().unwrap();
    upload_and_drop(device, &stream);
    drop((0..20).map(|_| Pinned::<u32>::zeroed(device, 100).unwrap()).collect::<Vec<_>>());
    device.synchronize().unwrap();
    device.release_finished();
    let (release, released) = mpsc::channel::<()>();
    drop(stream.call(move || released.recv()).unwrap());
    (stream, release)
}

fn upload_and_drop(device: &Device, stream: &Stream) {
    let mut target = stream.allocate::<u32>(100).unwrap();
    drop(stream.upload(Pinned::zeroed(device, 100).unwrap(), &mut target).unwrap());
}

fn one_copy_that_is_stuck_keeps_no_other_from_being_given_back(device: &Device) {
    let other = device.stream().unwrap();
    upload_and_drop(device, &other);
    let (stuck, release) = stuck_stream(device);
    upload_and_drop(device, &stuck);
    (0..10).for_each(|_| upload_and_drop(device, &other));
    other.synchronize().unwrap();
    let mut buffer = other.allocate::<u8>(1).unwrap();
    (0..20).for_each(|_| other.fill(&mut buffer, 0).unwrap());
    assert_eq!(device.in_flight().deferred, 1, "only what is stuck");

    drop(release);
    stuck.synchronize().unwrap();
    device.release_finished();
    assert_eq!(device.in_flight().deferred, 0);
}

fn dropping_and_asking_never_wait_for_a_stuck_copy(device: &Device) {
    let (stuck, release) = stuck_stream(device);
    let mut target = stuck.allocate::<u32>(100).unwrap();
    let ticket = stuck.upload(Pinned::zeroed(device, 100).unwrap(), &mut target).unwrap();
    assert!(!ticket.is_done() && !stuck.is_idle().unwrap());
    let ticket = ticket.try_wait().unwrap_err();
    drop((ticket, target, stuck));
    assert_eq!(device.in_flight().deferred, 1);
    drop(release); // a wait before this line would never have ended
    device.synchronize().unwrap();
    assert_eq!(device.in_flight().deferred, 0);
}

/// Queues the copy of a page-locked buffer, and drops the buffer at once.
fn upload_buffer_and_drop(device: &Device, stream: &Stream, target: &mut DeviceBuffer<u8>) {
    let mut source = HostBuffer::allocate(device.page_locked(), target.len()).unwrap().drop_without_waiting();
    source.bytes_mut().unwrap().fill(7);
    stream.upload_from(&source, target).unwrap();
}

#[test]
fn a_buffer_that_is_dropped_without_waiting_is_given_back_when_its_copy_is_done() {
    let machine = lazy(3);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u8>(1_000).unwrap();
    upload_buffer_and_drop(&device, &stream, &mut target);
    assert_eq!(device.in_flight().deferred, 1);
    assert_eq!(device.page_locked().stats().live_blocks, 1);

    assert_eq!(stream.read(&target).unwrap(), [7; 1_000]);
    device.release_finished();
    assert_eq!((device.in_flight().deferred, device.page_locked().stats().live_blocks), (0, 0));
    assert_eq!(machine.violations(), [""; 0]);
}

#[test]
fn a_device_keeps_few_buffers_that_were_dropped_without_waiting() {
    let device = lazy(4).device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u8>(4 << 20).unwrap();
    for _ in 0..20 {
        upload_buffer_and_drop(&device, &stream, &mut target);
        assert!(device.page_locked().stats().live_bytes <= 48 << 20);
    }
    assert!(
        device.page_locked().stats().live_bytes > 32 << 20,
        "the device has done little, and nobody waits for more"
    );
    let mut target = stream.allocate::<u8>(50 << 20).unwrap();
    upload_buffer_and_drop(&device, &stream, &mut target); // too long to be deferred: waits for it and all before
    device.release_finished();
    assert_eq!(device.page_locked().stats().live_bytes, 0);
}

#[test]
fn a_software_device_gives_back_around_what_is_stuck() {
    one_copy_that_is_stuck_keeps_no_other_from_being_given_back(&threaded(1).device(0).unwrap());
    dropping_and_asking_never_wait_for_a_stuck_copy(&threaded(2).device(0).unwrap());
}

mod cuda {
    use super::*;

    #[test]
    fn a_gpu_gives_back_around_what_is_stuck() {
        let Some(device) = gpu() else { return };
        one_copy_that_is_stuck_keeps_no_other_from_being_given_back(&device);
        dropping_and_asking_never_wait_for_a_stuck_copy(&device);
    }
}
