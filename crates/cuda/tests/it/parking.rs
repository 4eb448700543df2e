//! What dropped tickets leave behind, and when it is given back.

use std::sync::mpsc;

use pagelock_cuda::{Device, Pinned, Stream};

use crate::tools::{gpu, threaded};

/// A stream that does nothing until the sender is used or dropped. Memory is made before: making some may have to wait
/// for streams.
fn stuck_stream(device: &Device) -> (Stream, mpsc::Sender<()>) {
    let stream = device.stream().unwrap();
    upload_and_drop(device, &stream);
    drop((0..20).map(|_| Pinned::<u32>::zeroed(device, 100).unwrap()).collect::<Vec<_>>());
    device.synchronize().unwrap();
    device.reap();
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
    assert_eq!(device.in_flight().parked, 1, "only what is stuck");

    drop(release);
    stuck.synchronize().unwrap();
    device.reap();
    assert_eq!(device.in_flight().parked, 0);
}

fn dropping_and_asking_never_wait_for_a_stuck_copy(device: &Device) {
    let (stuck, release) = stuck_stream(device);
    let mut target = stuck.allocate::<u32>(100).unwrap();
    let ticket = stuck.upload(Pinned::zeroed(device, 100).unwrap(), &mut target).unwrap();
    assert!(!ticket.is_done() && !stuck.is_idle().unwrap());
    let ticket = ticket.try_wait().unwrap_err();
    drop((ticket, target, stuck));
    assert_eq!(device.in_flight().parked, 1);
    drop(release); // whoever waited before here would have waited for ever
    device.synchronize().unwrap();
    assert_eq!(device.in_flight().parked, 0);
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
        if !std::env::args().any(|argument| argument == "--test-threads=1") {
            eprintln!("SKIPPED: other tests park copies on the same GPU; add --test-threads=1");
            return;
        }
        one_copy_that_is_stuck_keeps_no_other_from_being_given_back(&device);
        dropping_and_asking_never_wait_for_a_stuck_copy(&device);
    }
}
