//! Memory that a program freed and the allocator may keep. This test has a process of its own, as it sets a limit.

use pagelock_memory::{ByteSize, HeapReservation, host_budget};

const MIB: u64 = 1 << 20;

#[test]
fn freed_memory_counts_until_others_need_it() {
    host_budget().set_limit(ByteSize::mib(40));
    drop(HeapReservation::new(10 * MIB).unwrap());
    let kept = if cfg!(all(target_os = "linux", target_env = "gnu", not(miri))) { 10 * MIB } else { 0 };
    assert_eq!(host_budget().used().0, kept);

    assert_eq!(HeapReservation::new(40 * MIB).unwrap().len_bytes(), 40 * MIB);
    assert!(HeapReservation::new(41 * MIB).is_err());

    let ask = || (0..5_000).all(|_| HeapReservation::new(5 * MIB).is_ok());
    let granted = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().all(|thread| thread.join().unwrap())
    });
    assert!(granted, "eight threads take 5 of 40 MiB at a time");
}
