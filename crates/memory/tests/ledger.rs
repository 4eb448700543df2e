//! The ledger of a whole process. One test, since all tests of a process share its ledger.

use pagelock_memory::{
    Budget, ByteSize, Counted, HostBuffer, Limited, Pageable, Pooled, Resource, default_host, holder, ledger,
};

#[test]
fn the_ledger_shows_who_holds_what_and_is_empty_after_everything_drops() {
    let ram = Budget::new("ram", ByteSize::mib(64));
    let train = ram.child("train", ByteSize::mib(32));
    let tensors = Counted::new("tensors", Pooled::new(Limited::new(Pageable, train.clone())));
    let weights = {
        let _scope = holder("weights");
        HostBuffer::allocate(&tensors, 4 << 20).unwrap()
    };
    let batch = {
        let _scope = holder("loader");
        drop(HostBuffer::allocate(&tensors, 1 << 20).unwrap());
        HostBuffer::allocate(&tensors, 1 << 20).unwrap()
    };
    let queue = ram.reserve(10 << 20).unwrap();

    assert_eq!(
        ledger().to_string(),
        "\
budget                         used       peak      limit  largest holders
ram                          15 MiB     15 MiB     64 MiB  `train` 5 MiB
  train                       5 MiB      5 MiB     32 MiB  `weights` 4 MiB, `loader` 1 MiB

resource                       live       peak     blocks       idle     hits   misses  largest holders
tensors                       5 MiB      5 MiB          2        0 B        1        2  `weights` 4 MiB, `loader` 1 MiB
"
    );

    drop((weights, batch, queue));
    assert_eq!((ledger().live_bytes(), ledger().idle_bytes()), (0, 5 << 20));
    tensors.trim();
    assert_eq!((ledger().idle_bytes(), ram.used().0, ram.peak().0), (0, 0, 15 << 20));

    drop((tensors, train, ram));
    assert!(ledger().budgets.is_empty() && ledger().resources.is_empty());

    let buffer = HostBuffer::allocate(default_host(), 1_000).unwrap();
    assert_eq!(ledger().live_bytes(), 1_000);
    drop(buffer);
    assert_eq!((ledger().live_bytes(), ledger().resources.len()), (0, 1));
}
