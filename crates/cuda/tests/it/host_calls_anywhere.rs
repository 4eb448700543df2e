//! Host functions that run while another thread, or the same one, is inside a call of the driver.
//!
//! A software device without threads executes work inside of calls. So a host function finds every lock taken that the
//! calling function holds over a call.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Pinned, Stream, Ticket, Uninit,
    software::{Config, Execution, Machine},
};
use pagelock_memory::{HostBuffer, ledger};

use crate::tools::{ends, lazy, not_given_back};

/// Calls `function` on the stream, at some time.
fn call(stream: &Stream, function: impl FnOnce() + Send + 'static) {
    drop(stream.call(function).unwrap());
}

#[test]
fn a_host_function_may_drop_a_ticket_while_dropped_tickets_are_looked_at() {
    ends(|| {
        let device = lazy(0).device(0).unwrap();
        let stream = device.stream().unwrap();
        let [mut one, mut other] = [0; 2].map(|_| stream.allocate::<u8>(8).unwrap());
        let pinned = || Pinned::from_slice(&device, &[1_u8; 8]).unwrap();
        let inside = stream.upload(pinned(), &mut one).unwrap();
        call(&stream, move || drop(inside));
        drop(stream.upload(pinned(), &mut other).unwrap());
        (0..12).for_each(|_| device.release_finished());
        assert_eq!(device.in_flight().deferred, 0);
    });
}

#[test]
fn a_host_function_may_ask_a_device_while_it_looks_for_an_idle_stream() {
    ends(|| {
        let device = lazy(0).device(0).unwrap();
        let [stream, last] = [0; 2].map(|_| device.stream().unwrap());
        let inside = device.clone();
        call(&stream, move || {
            assert!(matches!(inside.stream(), Err(Error::InsideHostFunction)));
            drop((inside.pool_stats(), last, ledger()));
        });
        drop(stream);
        assert!((0..4).all(|_| device.stream().is_ok()));
    });
}

#[test]
fn a_host_function_may_ask_for_the_staging_memory_while_a_copy_takes_a_slot() {
    for len in [8, 1 << 20] {
        ends(move || {
            let device = lazy(0).device(0).unwrap();
            let [stream, other] = [0; 2].map(|_| device.stream().unwrap());
            let mut buffers = [&stream, &other].map(|stream| stream.allocate::<u8>(len).unwrap());
            let source = vec![1_u8; len];
            stream.upload_from(&source, &mut buffers[0]).unwrap();
            for _ in 0..4 {
                let inside = device.clone();
                call(&stream, move || {
                    assert!(inside.staged().0 > 0);
                    inside.release_staging();
                });
                other.upload_from(&source, &mut buffers[1]).unwrap();
                stream.upload_from(&source, &mut buffers[0]).unwrap();
            }
        });
    }
}

#[test]
fn a_host_function_may_be_told_that_it_cannot_wait_while_another_reader_is_added() {
    ends(|| {
        let device = lazy(0).device(0).unwrap();
        let stream = device.stream().unwrap();
        let host = Arc::new(HostBuffer::allocate(device.page_locked(), 64).unwrap());
        let mut target = stream.allocate::<u8>(64).unwrap();
        stream.upload_from(&*host, &mut target).unwrap();
        for _ in 0..4 {
            let inside = host.clone();
            call(&stream, move || drop(catch_unwind(AssertUnwindSafe(|| inside.wait_for_all()))));
            stream.upload_from(&*host, &mut target).unwrap();
        }
    });
}

thread_local! {
    static KEPT: RefCell<Option<Ticket<Pinned<u8>>>> = const { RefCell::new(None) };
}

#[test]
fn a_host_function_may_run_at_the_end_of_a_thread() {
    ends(|| {
        KEPT.set(None); // the first thread-local value that is used is the last one that is dropped
        let device = lazy(0).device(0).unwrap();
        let stream = device.stream().unwrap();
        let [mut target, dropped] = [0; 2].map(|_| stream.allocate::<u8>(8).unwrap());
        stream.call(|| ()).unwrap().wait().unwrap();
        call(&stream, move || drop(dropped));
        let pinned = Pinned::from_slice(&device, &[1_u8; 8]).unwrap();
        KEPT.set(Some(stream.upload(pinned, &mut target).unwrap())); // its drop queries the device
    });
}

/// Drops one of each thing that a device may still use, and calls everything that is not refused inside.
struct Inside {
    device: Device,
    dropped: Vec<Box<dyn Send>>,
}

impl Inside {
    fn new(device: &Device, stream: &Stream) -> Self {
        let mut used = stream.zeros::<u8>(64).unwrap();
        let host = HostBuffer::allocate(device.page_locked(), 64).unwrap();
        stream.upload_from(&host, &mut used).unwrap();
        let upload = stream.upload(Pinned::from_slice(device, &[1_u8; 64]).unwrap(), &mut used).unwrap();
        let download = stream.download(&used, Uninit::<u8>::new(device, 64).unwrap()).unwrap();
        let parts = stream.zeros::<u8>(64).unwrap().split([0..10, 20..64]).unwrap();
        let (event, last) = (stream.record().unwrap(), device.stream().unwrap());
        Self {
            device: device.clone(),
            dropped: vec![
                Box::new((used, host)),
                Box::new((upload, download)),
                Box::new((parts, event, last)),
                Box::new(stream.call(|| ()).unwrap()),
            ],
        }
    }

    fn run(self) {
        let Self { device, dropped } = self;
        drop(dropped);
        drop((device.pool_stats(), device.holders(), device.live_memory(), ledger().to_string()));
        let _ = (device.in_flight(), device.leaked(), device.staged(), device.page_locked().stats());
        device.set_staging(device.staging());
        device.release_finished();
        let refused = [device.stream().err(), device.capture(|_| Ok(())).err(), device.trim().err()];
        assert!(refused.iter().all(|error| matches!(error, Some(Error::InsideHostFunction))));
    }
}

/// Work of all kinds, each with a call of a host function before it that may run at any time from then on.
fn work_with_calls_inside(device: &Device) {
    let [stream, other] = [0; 2].map(|_| device.stream().unwrap());
    let inside = |of: &Stream| {
        let inside = Inside::new(device, of);
        call(of, move || inside.run());
    };
    let (source, mut place) = (vec![7_u8; 100_000], vec![0_u8; 100_000]);
    let host = HostBuffer::allocate(device.page_locked(), 1_000).unwrap();
    let mut buffer = stream.zeros::<u8>(100_000).unwrap();
    for of in [&stream, &other, &stream] {
        inside(of);
        stream.upload_from(&source[..100], buffer.slice_mut(..100).unwrap()).unwrap();
        inside(of);
        other.upload_from(&source, &mut buffer).unwrap();
        inside(of);
        stream.upload_from(&host, buffer.slice_mut(..1_000).unwrap()).unwrap();
        inside(of);
        other.download_to(&buffer, &mut place).unwrap();
        inside(of);
        let mut between: DeviceBuffer<u8> = other.allocate(100_000).unwrap();
        stream.copy(&buffer, &mut between).unwrap();
        inside(of);
        let mut owned = device.stream().unwrap().zeros::<u8>(100).unwrap();
        let graph = device.capture(|stream| stream.fill(&mut owned, 1)).unwrap().with(owned).unwrap();
        graph.launch(&other).unwrap();
        inside(of);
        drop((graph, between, device.stream().unwrap()));
        device.trim().unwrap();
        inside(of);
        device.synchronize().unwrap();
        device.release_finished();
    }
}

#[test]
fn host_functions_may_run_inside_any_call() {
    ends(|| {
        for seed in 0..30 {
            let haste = [0, 30, 100, 255][seed as usize % 4];
            let machine = Machine::new(Config { execution: Execution::Stepped { haste }, seed, ..Config::default() });
            let device = machine.device(0).unwrap();
            work_with_calls_inside(&device);
            assert_eq!((machine.violations(), device.leaked().count), (Vec::new(), 0), "seed {seed}");
            drop(device);
            assert_eq!(not_given_back(&machine), (0, 0), "seed {seed}");
        }
    });
}
