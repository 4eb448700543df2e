//! What allocating and freeing memory costs, layer by layer, compared with the plain allocator.
//!
//! Every figure is the best of several rounds of take-and-drop, in one thread unless it says otherwise. Trust the
//! ratios to the first line, not the nanoseconds. `--json` prints one JSON object instead of the table.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use pagelock_memory::{Budget, ByteSize, HostBuffer, Limited, Pageable, Pooled, Resource, default_host};

const ROUNDS: usize = 7;
const SMALL: usize = 1_000;
const LARGE: usize = 64 << 20;

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let figures = measure();
    if json {
        let fields: Vec<_> = figures.iter().map(|(name, nanos)| format!("\"{name}\": {nanos:.1}")).collect();
        println!("{{\"unit\": \"ns per take and drop\", {}}}", fields.join(", "));
        return;
    }
    let base = figures[0].1;
    println!("{:<44} {:>10} {:>8}", "take and drop", "ns", "ratio");
    for (name, nanos) in figures {
        println!("{name:<44} {nanos:>10.1} {:>8.1}", nanos / base);
    }
}

fn measure() -> Vec<(&'static str, f64)> {
    let limited = Limited::new(Pageable, Budget::new("bench", ByteSize::gib(1)));
    let pooled = Pooled::new(limited.clone());
    let buffer = HostBuffer::allocate(&Pageable, SMALL).expect("a kilobyte");
    vec![
        ("Vec, 1000 B", best(100_000, || drop(black_box(Vec::<u8>::with_capacity(black_box(SMALL)))))),
        ("Limited, 1000 B", best(100_000, || take(&limited, SMALL))),
        ("Pooled, hit, 1000 B", best(100_000, || take(&pooled, SMALL))),
        ("default_host, hit, 1000 B", best(100_000, || take(default_host(), SMALL))),
        ("HostBuffer, default_host, hit, 1000 B", best(100_000, || take_buffer(SMALL))),
        ("HostBuffer, default_host, hit, 64 MiB", best(100_000, || take_buffer(LARGE))),
        ("the same, 1000 B, 2 threads at once", two_threads()),
        ("HostBuffer::bytes, nothing pending", best(100_000, || _ = black_box(black_box(&buffer).bytes()))),
    ]
}

fn take(resource: &impl Resource, len_bytes: usize) {
    drop(black_box(resource.allocate(black_box(len_bytes)).expect("the limit is far")));
}

fn take_buffer(len_bytes: usize) {
    drop(black_box(HostBuffer::allocate(default_host(), black_box(len_bytes)).expect("the limit is far")));
}

/// Nanoseconds for one call, in the best round.
fn best(calls: usize, mut work: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..calls).for_each(|_| work());
        start.elapsed()
    };
    let best = (0..ROUNDS).map(|_| round()).min().unwrap_or(Duration::ZERO);
    best.as_nanos() as f64 / calls as f64
}

/// Two threads that do nothing else: the worst case for the locks.
fn two_threads() -> f64 {
    const CALLS: usize = 100_000;
    best(1, || {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..CALLS).for_each(|_| take_buffer(SMALL)));
            }
        });
    }) / CALLS as f64
}
