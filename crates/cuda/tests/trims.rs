//! A pool that panics when page-locked memory is short. This test has a process of its own, since it lowers the limit of
//! that memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use pagelock_cuda::{Device, page_locked_budget, software::Config};
use pagelock_memory::{ByteSize, Trim};

struct Panics;

impl Trim for Panics {
    fn trim(&self) -> usize {
        panic!("a pool panics")
    }
}

#[test]
fn staged_copies_go_on_after_a_pool_panicked() {
    let device = Device::software(Config::default()).unwrap();
    let stream = device.stream().unwrap();
    page_locked_budget().set_limit(ByteSize::mib(64));
    let held = page_locked_budget().reserve(64 << 20).unwrap();
    let pool: Arc<dyn Trim> = Arc::new(Panics);
    page_locked_budget().add_pool(Arc::downgrade(&pool));
    let sources = [8, 1 << 20].map(|len| vec![7_u8; len]);
    let mut target = stream.allocate::<u8>(1 << 20).unwrap();
    for _ in 0..100 {
        for source in &sources {
            let mut upload = || stream.upload_from(source, target.slice_mut(..source.len()).unwrap());
            assert!(catch_unwind(AssertUnwindSafe(&mut upload)).is_err());
        }
    }
    assert_eq!(device.staged(), ByteSize(0));

    drop((held, pool));
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for source in &sources {
            stream.upload_from(source, target.slice_mut(..source.len()).unwrap()).unwrap();
        }
        send.send(stream.read(&target).unwrap())
    });
    assert_eq!(receive.recv_timeout(Duration::from_secs(20)).as_deref(), Ok(&[7_u8; 1 << 20][..]));
}
