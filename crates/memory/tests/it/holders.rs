//! Holders: whom memory is charged to, in budgets, counted resources and refusals.

use std::thread;

use pagelock_memory::{Budget, Counted, Holder, HostBuffer, Limited, Pageable, Pooled, holder};

#[test]
fn scopes_nest_and_end() {
    let before = Holder::current();
    {
        let _outer = holder("outer");
        {
            let _inner = holder("inner");
            assert_eq!(Holder::current(), Holder::named("inner"));
        }
        assert_eq!(Holder::current(), Holder::named("outer"));
    }
    assert_eq!(Holder::current(), before);
}

#[test]
fn a_thread_starts_with_nobody_and_can_take_over_a_holder() {
    let budget = Budget::new("host", 1_000);
    let _scope = holder("loader");
    let carried = Holder::current();
    let held = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let alone = budget.reserve(1).unwrap();
            let _scope = carried.enter();
            (alone, budget.reserve(10).unwrap())
        });
        worker.join().unwrap()
    });
    assert_eq!(budget.holders().iter().map(ToString::to_string).collect::<Vec<_>>(), ["`loader` 10 B"]);
    drop(held);
}

#[test]
fn a_reused_block_belongs_to_who_holds_it_now() {
    let budget = Budget::new("host", 1_024);
    let counted = Counted::new("holder test", Pooled::new(Limited::new(Pageable, budget)));
    {
        let _scope = holder("first");
        drop(HostBuffer::allocate(&counted, 1_000).unwrap());
    }
    let _scope = holder("second");
    let _buffer = HostBuffer::allocate(&counted, 1_000).unwrap();

    assert_eq!(counted.holders().iter().map(ToString::to_string).collect::<Vec<_>>(), ["`second` 1000 B"]);
    assert_eq!(
        HostBuffer::allocate(&counted, 64).unwrap_err().to_string(),
        "cannot take 64 B: budget `host` has 0 B left of 1 KiB; largest holders: `second` 1000 B; raise the limit or \
         drop buffers first"
    );
}

#[test]
fn bytes_go_back_to_the_holder_they_were_charged_to() {
    let counted = Counted::new("holder test", Pageable);
    let buffer = {
        let _scope = holder("gone");
        HostBuffer::allocate(&counted, 100).unwrap()
    };
    let _scope = holder("another");
    drop(buffer);
    assert!(counted.holders().is_empty());
}
