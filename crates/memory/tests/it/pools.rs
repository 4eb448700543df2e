//! Pools: size classes, reuse, trimming and retrying; against naive accounting.

use std::sync::atomic::Ordering::SeqCst;

use pagelock_memory::{
    Block, Budget, ByteSize, Counted, HostBuffer, Limited, PageLocked, Pageable, PageableBlock, Pooled, Resource,
    Result,
};
use proptest::prelude::*;

use crate::tools::{FakeDriver, Refusing};

#[test]
fn a_dropped_block_serves_the_next_of_its_class() {
    let pool = Pooled::new(Pageable);
    let first = pool.allocate(1_000).unwrap();
    let address = first.ptr();
    drop(first);
    assert_eq!(pool.allocate(1_024).unwrap().ptr(), address);
    assert_ne!(pool.footprint(1_000), pool.footprint(1_025));
}

#[test]
fn a_large_block_is_exact_and_serves_only_its_own_size() {
    let pool = Pooled::new(Pageable);
    let large = (4 << 20) + 1_000;
    assert_eq!(pool.footprint(large), large);
    drop((pool.allocate(large).unwrap(), pool.allocate(large + 1).unwrap()));
    drop(pool.allocate(large).unwrap());
    assert_eq!((pool.stats().hits, pool.stats().misses), (1, 2));
    assert_eq!(pool.trim(), 2 * large + 1);
}

#[test]
fn large_blocks_of_ever_new_sizes_do_not_pile_up() {
    let pool = Pooled::new(Pageable);
    let sizes = (0..50).map(|step| (17 << 20) + 4_096 * step);
    for len_bytes in sizes {
        drop(pool.allocate(len_bytes).unwrap());
        assert!(pool.stats().idle_bytes <= 2 * len_bytes as u64);
    }
}

#[test]
#[should_panic(expected = "returned a block that is too short")]
fn a_resource_that_hands_out_too_little_is_caught() {
    struct Stingy;
    impl Resource for Stingy {
        type Block = PageableBlock;
        fn allocate(&self, len_bytes: usize) -> Result<PageableBlock> {
            Pageable.allocate(len_bytes / 2)
        }
    }

    let _ = Pooled::new(Stingy).allocate(1_000);
}

#[test]
fn a_refused_pool_gives_back_what_is_idle_and_asks_once_more() {
    let budget = Budget::new("host", 10_000);
    let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
    drop((pool.allocate(4_000).unwrap(), pool.allocate(3_000).unwrap()));
    assert!(budget.left().0 < 4_000);
    assert_eq!(pool.allocate(9_000).unwrap().len_bytes(), 9_000);
    assert_eq!(pool.stats().misses, 3);
}

#[test]
fn a_pool_refused_by_its_source_trims_and_retries_once_and_then_hands_the_refusal_up() {
    let source = Refusing::default();
    let pool = Pooled::new(source.clone());
    drop(pool.allocate(1_000).unwrap());
    source.refusing.store(true, SeqCst);

    let error = pool.allocate(5_000).unwrap_err();

    assert_eq!(source.asked.load(SeqCst), 3, "once for the first block, twice for the refused one");
    assert_eq!(pool.stats().idle_bytes, 0);
    assert_eq!(
        error.to_string(),
        "the system cannot allocate 5 KiB of pageable memory; free some, or set a budget below the machine's RAM so \
         that the refusal comes earlier"
    );
    assert!(pool.allocate(5_000).is_err());
    assert_eq!(source.asked.load(SeqCst), 4, "with nothing idle there is nothing to retry for");
}

#[test]
fn idle_bytes_are_given_back_when_the_pool_and_its_last_block_are_gone() {
    let budget = Budget::new("host", 10_000);
    let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
    let last = pool.allocate(100).unwrap();
    drop(pool.allocate(1_000).unwrap());
    drop(pool);
    drop(last);
    assert_eq!(budget.used().0, 0);
}

#[test]
fn a_page_locked_pool_asks_for_whole_pages_and_reuses_them_for_all_small_sizes() {
    let pool = Pooled::new(PageLocked::new().locked_by(std::sync::Arc::<FakeDriver>::default()));
    drop(pool.allocate(100).unwrap());
    drop(pool.allocate(4_000).unwrap());
    assert_eq!((pool.stats().hits, pool.stats().idle_bytes), (1, 4_096));
}

#[test]
fn a_counted_pool_counts_what_is_in_use_not_what_is_idle() {
    let counted = Counted::new("pool test", Pooled::new(Pageable));
    let buffers = [100, 200, 300].map(|len_bytes| HostBuffer::allocate(&counted, len_bytes).unwrap());
    drop(buffers);
    let stats = counted.stats();
    assert_eq!((stats.live_blocks, stats.live_bytes, stats.peak_bytes), (0, 0, 600));
    assert_eq!((stats.total_blocks, stats.total_bytes), (3, 600));
    assert_eq!(counted.pool_stats().unwrap().idle_bytes, 128 + 256 + 320);
}

/// Above this size, blocks are not rounded up.
const LONGEST_CLASS: usize = 4 << 20;

#[derive(Clone, Debug)]
enum Step {
    Allocate { len_bytes: usize },
    Drop { which: usize },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let len_bytes = prop_oneof![0..700_usize, 0..40_000_usize, LONGEST_CLASS - 2..LONGEST_CLASS + 3];
    prop_oneof![
        10 => len_bytes.prop_map(|len_bytes| Step::Allocate { len_bytes }),
        10 => any::<usize>().prop_map(|which| Step::Drop { which }),
        1 => Just(Step::Trim),
    ]
}

/// The same rules, done naively: every sum is computed anew.
#[derive(Default)]
struct Model {
    live: Vec<usize>, // rounded sizes
    idle: Vec<usize>, // rounded sizes, the longest idle first
    large_peak: usize,
    hits: u64,
    misses: u64,
}

impl Model {
    fn large(sizes: &[usize]) -> usize {
        sizes.iter().filter(|&&len_bytes| len_bytes > LONGEST_CLASS).sum()
    }

    fn allocate(&mut self, len_bytes: usize) {
        let kept = self.idle.iter().rposition(|&idle| idle == len_bytes);
        self.live.push(len_bytes);
        self.large_peak = self.large_peak.max(Self::large(&self.live));
        let Some(at) = kept else {
            self.misses += 1;
            while len_bytes > LONGEST_CLASS && Self::large(&self.live) + Self::large(&self.idle) > 2 * self.large_peak {
                let longest_idle = self.idle.iter().position(|&idle| idle > LONGEST_CLASS).unwrap();
                self.idle.remove(longest_idle);
            }
            return;
        };
        self.hits += 1;
        self.idle.remove(at);
    }

    fn drop(&mut self, which: usize) {
        let len_bytes = self.live.swap_remove(which);
        self.idle.push(len_bytes);
    }

    fn trim(&mut self) -> usize {
        self.large_peak = Self::large(&self.live);
        self.idle.drain(..).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_pool_keeps_the_books_that_naive_accounting_keeps(steps in prop::collection::vec(step(), 1..150)) {
        let budget = Budget::new("model", ByteSize::MAX);
        let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
        let (mut model, mut live) = (Model::default(), Vec::new());
        for step in steps {
            match step {
                Step::Allocate { len_bytes } => {
                    live.push(HostBuffer::allocate(&pool, len_bytes).unwrap());
                    model.allocate(pool.footprint(len_bytes));
                }
                Step::Drop { which } if !live.is_empty() => {
                    let which = which % live.len();
                    drop(live.swap_remove(which));
                    model.drop(which);
                }
                Step::Drop { .. } => {}
                Step::Trim => prop_assert_eq!(pool.trim(), model.trim()),
            }
            let (stats, idle_bytes) = (pool.stats(), model.idle.iter().sum::<usize>() as u64);
            prop_assert_eq!((stats.hits, stats.misses, stats.idle_bytes), (model.hits, model.misses, idle_bytes));
            prop_assert_eq!(budget.used().0, model.live.iter().sum::<usize>() as u64 + idle_bytes);
        }
    }

    #[test]
    fn a_size_is_rounded_up_by_at_most_an_eighth(len_bytes in prop_oneof![1..10_000_usize, 1..1_usize << 40]) {
        let rounded = Pooled::new(Pageable).footprint(len_bytes);
        prop_assert!(rounded >= len_bytes);
        prop_assert!(rounded - len_bytes < 64 || (rounded - len_bytes) as f64 <= len_bytes as f64 * 0.125);
    }

    #[test]
    fn a_larger_size_is_never_rounded_to_a_smaller_one(a in 1..32_usize << 20, b in 1..32_usize << 20) {
        let pool = Pooled::new(Pageable);
        prop_assert!(pool.footprint(a.min(b)) <= pool.footprint(a.max(b)));
    }
}
