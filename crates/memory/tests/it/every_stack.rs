//! One suite, run on every stack of sources and layers.

use std::{sync::Arc, thread};

use pagelock_memory::{
    ALIGN, Budget, ByteSize, Counted, HostBuffer, HugePages, Limited, PageLocked, Pageable, Pooled, Resource, ledger,
};

use crate::tools::{FakeDriver, random};

/// A limit that no test here comes near.
fn roomy() -> Budget {
    Budget::new("roomy", ByteSize::gib(1))
}

fn registered() -> PageLocked {
    PageLocked::new().locked_by(Arc::<FakeDriver>::default())
}

macro_rules! on_every_stack {
    ($($stack:ident: $make:expr;)*) => { $(mod $stack {
        use super::*;

        #[test]
        fn a_block_is_as_long_as_asked_and_aligned() {
            super::a_block_is_as_long_as_asked_and_aligned(&$make);
        }

        #[test]
        fn blocks_never_overlap() {
            super::blocks_never_overlap(&$make);
        }

        #[test]
        fn an_impossible_size_is_refused_and_leaves_nothing_behind() {
            super::an_impossible_size_is_refused_and_leaves_nothing_behind(&$make);
        }

        #[test]
        fn dropping_and_trimming_gives_every_byte_back() {
            super::dropping_and_trimming_gives_every_byte_back(&$make);
        }

        #[test]
        fn threads_share_it_and_drop_each_others_blocks() {
            super::threads_share_it_and_drop_each_others_blocks(&$make);
        }
    })* };
}

on_every_stack! {
    pageable: Pageable;
    page_locked: registered();
    page_locked_huge: registered().huge_pages(HugePages::WhereGranted);
    limited: Limited::new(Pageable, roomy());
    pooled: Pooled::new(Pageable);
    counted: Counted::new("suite", Pageable);
    pool_over_limit: Pooled::new(Limited::new(Pageable, roomy()));
    limit_over_pool: Limited::new(Pooled::new(Pageable), roomy());
    pool_over_pool: Pooled::new(Pooled::new(Limited::new(Pageable, roomy())));
    limit_in_child_budget: Limited::new(Limited::new(Pageable, roomy()), roomy().child("inner", ByteSize::gib(1)));
    host_stack: Counted::new("suite", Pooled::new(Limited::new(Pageable, roomy())));
    pinned_stack: Counted::new("suite", Pooled::new(Limited::new(registered(), roomy())));
    pinned_huge_stack: Pooled::new(Limited::new(registered().huge_pages(HugePages::WhereGranted), roomy()));
}

const SIZES: [usize; 14] = [0, 1, 63, 64, 65, 511, 512, 513, 4_095, 4_097, 100_000, 1 << 20, (2 << 20) + 1, 17 << 20];

fn a_block_is_as_long_as_asked_and_aligned(resource: &impl Resource) {
    for len_bytes in SIZES {
        let mut buffer = HostBuffer::allocate(resource, len_bytes).unwrap();
        assert_eq!(buffer.len_bytes(), len_bytes);
        assert_eq!(buffer.bytes().len(), len_bytes);
        assert!(buffer.bytes().as_ptr().addr().is_multiple_of(ALIGN));
        assert!(resource.footprint(len_bytes) >= len_bytes);
        buffer.bytes_mut().unwrap().fill(0xA5);
        assert!(buffer.bytes().iter().all(|&byte| byte == 0xA5));
    }
}

fn blocks_never_overlap(resource: &impl Resource) {
    let mut state = 7;
    let mut live: Vec<(HostBuffer, u8)> = Vec::new();
    for step in 0..400_usize {
        if live.len() > 20 || (step % 3 == 2) {
            let (buffer, mark) = live.swap_remove(random(&mut state) as usize % live.len());
            assert!(buffer.bytes().iter().all(|&byte| byte == mark));
        }
        let mut buffer = HostBuffer::allocate(resource, random(&mut state) as usize % 10_000).unwrap();
        buffer.bytes_mut().unwrap().fill(step as u8);
        live.push((buffer, step as u8));
    }
    assert!(live.iter().all(|(buffer, mark)| buffer.bytes().iter().all(|byte| byte == mark)));
}

fn an_impossible_size_is_refused_and_leaves_nothing_behind(resource: &impl Resource) {
    for len_bytes in [usize::MAX, usize::MAX - 4_096, isize::MAX as usize, 1 << 60] {
        assert!(HostBuffer::allocate(resource, len_bytes).is_err());
        assert_eq!(resource.budget().map_or(0, |budget| budget.used().0), 0);
    }
    assert!(HostBuffer::allocate(resource, 1_000).is_ok());
}

fn dropping_and_trimming_gives_every_byte_back(resource: &impl Resource) {
    let buffers: Vec<_> = SIZES.map(|len_bytes| HostBuffer::allocate(resource, len_bytes).unwrap()).into();
    let held: u64 = SIZES.iter().map(|&len_bytes| len_bytes as u64).sum();
    assert!(resource.budget().is_none_or(|budget| budget.used().0 >= held));
    drop(buffers);
    resource.trim();
    assert_eq!(resource.budget().map_or(0, |budget| budget.used().0), 0);
    assert_eq!(resource.pool_stats().unwrap_or_default().idle_bytes, 0);
}

fn threads_share_it_and_drop_each_others_blocks(resource: &impl Resource) {
    let (send, receive) = std::sync::mpsc::channel::<HostBuffer>();
    thread::scope(|scope| {
        for seed in 1..=3 {
            let send = send.clone();
            scope.spawn(move || {
                let mut state = seed;
                for _ in 0..100 {
                    let len_bytes = random(&mut state) as usize % 5_000 + 1;
                    let mut buffer = HostBuffer::allocate(resource, len_bytes).unwrap();
                    buffer.bytes_mut().unwrap().fill(seed as u8);
                    send.send(buffer).unwrap();
                }
            });
        }
        drop(send);
        for buffer in receive {
            let mark = buffer.bytes()[0];
            assert!(buffer.bytes().iter().all(|&byte| byte == mark));
        }
    });
}

#[test]
fn the_ledger_lists_a_stack_while_it_lives() {
    let listed = |name: &str| ledger().resources.iter().any(|entry| entry.name == name);
    let counted = Counted::new("only here", Pageable);
    assert!(listed("only here"));
    drop(counted);
    assert!(!listed("only here"));
}
