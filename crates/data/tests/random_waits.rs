//! Random programs with random budgets, time-outs, delays and failures: whatever their loaders wait for, every batch comes once
//! and in order, no wait is for ever, and no memory is left behind.
//!
//! `PAGELOCK_SEEDS=1000..2000` runs the programs of other seeds.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pagelock_data::{
    DataLoader, Dataset, Error, IterableDataset, Loader, PinMemory, Result, Samples, StreamLoader, WhenFull,
};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::Tensor;

/// Random numbers.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn is_one_of(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn choose<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Error,
    Panic,
    Slow, // the first time
}

/// What a random program does.
#[derive(Clone, Debug)]
struct Program {
    is_stream: bool,
    lens_kib: Vec<usize>, // by batch
    faults: Vec<Fault>,   // by batch
    n_shards: usize,
    n_workers: usize,
    prefetch_factor: usize,
    prefetch_kib: Option<u64>,
    pinned_kib: Option<u64>,
    when_full: WhenFull,
    timeout: Option<Duration>,
    is_persistent: bool,
    is_slow_to_start: bool,
    n_loaders: usize, // that share the budgets
    n_loops: usize,   // at once
    n_held: usize,    // batches that the program keeps
    drops_elsewhere: bool,
    leaves_early: bool,
    has_others: bool, // who reserve bytes of the budgets
    slowness: usize,  // the longest delay in units of 10 µs
}

const SHORT: Duration = Duration::from_millis(40);

impl Program {
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let random = &mut random;
        let n_batches = 1 + random.below(14);
        let longest = random.choose(&[4, 16, 40]);
        let is_uniform = random.is_one_of(3);
        let len_kib = |random: &mut Random| if is_uniform { longest } else { 4 * (1 + random.below(longest / 4)) };
        let lens_kib: Vec<_> = (0..n_batches).map(|_| len_kib(random)).collect();
        let is_stream = random.is_one_of(4);
        let has_faults = random.is_one_of(3);
        let fault = |random: &mut Random| match random.below(12) {
            0 if has_faults => Fault::Error,
            1 if has_faults && !is_stream => Fault::Panic, // it would end a shard
            2 if has_faults => Fault::Slow,
            _ => Fault::None,
        };
        let faults = (0..n_batches).map(|_| fault(random)).collect();
        let n_held = random.below(3);
        let slot = lens_kib.iter().max().unwrap() * 9 / 8 + 4;
        let slots = |random: &mut Random, n: usize| (n * slot + random.below(2 * slot)) as u64;
        let mut program = Self {
            is_stream,
            faults,
            n_shards: 1 + random.below(3),
            n_workers: random.choose(&[0, 1, 2, 2, 3, 4]),
            prefetch_factor: 1 + random.below(4),
            prefetch_kib: (!random.is_one_of(3)).then(|| slots(random, 1)),
            pinned_kib: (!random.is_one_of(3)).then(|| slots(random, n_held + 1)),
            when_full: random.choose(&[WhenFull::Wait, WhenFull::Wait, WhenFull::Pageable, WhenFull::Error]),
            timeout: random.choose(&[None, None, Some(SHORT), Some(Duration::from_secs(10))]),
            is_persistent: random.is_one_of(2),
            is_slow_to_start: random.is_one_of(4),
            n_loaders: 1 + usize::from(random.is_one_of(4)),
            n_loops: 1 + usize::from(random.is_one_of(4)),
            n_held,
            drops_elsewhere: random.is_one_of(3),
            leaves_early: random.is_one_of(3),
            has_others: random.is_one_of(4),
            slowness: random.choose(&[1, 20, 200]),
            lens_kib,
        };
        if !program.has_memory() {
            program.timeout = program.timeout.map(|_| SHORT); // the loader may wait for as long as that
        }
        program
    }

    /// Whether nothing but faults and short time-outs can cost a batch.
    fn has_memory(&self) -> bool {
        let is_alone = self.n_loaders * self.n_loops == 1 && !self.has_others;
        let never_full = self.pinned_kib.is_none() || self.n_workers == 0 && is_alone && !self.drops_elsewhere;
        let waits = self.when_full == WhenFull::Wait && is_alone && !self.is_stream;
        let prefetches = self.prefetch_kib.is_none() || self.n_workers == 0 || is_alone;
        prefetches && (never_full || waits || self.when_full == WhenFull::Pageable)
    }

    /// The numbers of the batches, in the order in which they come.
    fn order(&self) -> Vec<usize> {
        let n = self.lens_kib.len();
        if !self.is_stream {
            return (0..n).collect();
        }
        let shard = |shard| (shard..n).step_by(self.n_shards).collect::<Vec<_>>();
        let shards: Vec<_> = (0..self.n_shards).map(shard).collect();
        (0..n).flat_map(|round| shards.iter().filter_map(move |shard| shard.get(round).copied())).collect()
    }
}

/// A program with what its threads share.
struct Running {
    program: Program,
    random: AtomicU64,
    was_slow: Vec<AtomicBool>, // by batch
}

impl Running {
    fn delay(&self) {
        let mut random = Random(self.random.fetch_add(1, SeqCst));
        let longest = self.program.slowness;
        if !random.is_one_of(3) {
            thread::sleep(Duration::from_micros(10 * random.below(longest) as u64));
        }
    }

    fn make(&self, number: usize) -> Result<Tensor> {
        self.delay();
        match self.program.faults[number] {
            Fault::Error => return Err(Error::other("a fault")),
            Fault::Panic => std::panic::resume_unwind(Box::new("a fault")), // without a message of the panic
            Fault::Slow if !self.was_slow[number].swap(true, SeqCst) => thread::sleep(Duration::from_millis(60)),
            Fault::Slow | Fault::None => {}
        }
        let batch = Tensor::full([256 * self.program.lens_kib[number]], number as f32)?;
        self.delay();
        Ok(batch)
    }
}

struct Numbers(Arc<Running>);

impl Dataset for Numbers {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0.program.lens_kib.len()
    }

    fn get(&self, index: usize) -> Result<usize> {
        self.0.delay();
        Ok(index)
    }
}

impl IterableDataset for Numbers {
    type Sample = usize;

    fn n_shards(&self) -> usize {
        self.0.program.n_shards
    }

    fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<usize>> {
        let program = &self.0.program;
        Ok(Box::new((shard..program.lens_kib.len()).step_by(program.n_shards).map(Ok)))
    }
}

/// The budgets that all loaders of a program share.
struct Budgets {
    prefetch: Option<Budget>,
    pinned: Option<Budget>,
}

fn configure<K>(loader: Loader<Tensor, K>, running: &Arc<Running>, budgets: &Budgets) -> Loader<Tensor, K> {
    let program = &running.program;
    let mut loader = loader.num_workers(program.n_workers).prefetch_factor(program.prefetch_factor);
    if let Some(budget) = &budgets.prefetch {
        loader = loader.prefetch_budget(budget.clone());
    }
    if let Some(budget) = &budgets.pinned {
        loader = loader.pin_memory(true).pin_budget(budget.clone()).when_full(program.when_full);
    }
    if let Some(timeout) = program.timeout {
        loader = loader.timeout(timeout);
    }
    let (is_slow, running) = (program.is_slow_to_start, running.clone());
    loader.persistent_workers(program.is_persistent).worker_init(move |_worker| {
        if is_slow {
            running.delay();
            thread::sleep(Duration::from_millis(3));
        }
        Ok(())
    })
}

/// A loop over a loader.
struct Loop<'a> {
    batches: Box<dyn Iterator<Item = Result<Tensor>> + 'a>,
    left: VecDeque<usize>,
}

impl Loop<'_> {
    /// The next batch, checked; an error is a batch, too. `None` at the end.
    fn next(&mut self, program: &Program) -> Option<Option<Tensor>> {
        let result = self.batches.next();
        let Some(result) = result else {
            assert!(self.left.is_empty(), "batches {:?} did not come", self.left);
            return None;
        };
        let is_late = matches!(result, Err(Error::Timeout { .. }));
        if is_late && program.is_stream {
            assert_eq!(program.timeout, Some(SHORT));
            return Some(None); // the batch comes later, unless the shard turns out to be over
        }
        let number = self.left.pop_front().expect("there are no more batches");
        match result {
            Ok(batch) => {
                assert!(!matches!(program.faults[number], Fault::Error | Fault::Panic), "batch {number} had a fault");
                let values = batch.to_vec::<f32>().unwrap();
                assert_eq!(values.len(), 256 * program.lens_kib[number]);
                assert!(values.iter().all(|value| *value == number as f32), "{} for batch {number}", values[0]);
                Some(Some(batch))
            }
            Err(error) => {
                let text = error.to_string();
                let is_fault = text.contains("a fault") && program.faults[number] != Fault::None;
                let is_refused = !program.has_memory() && text.contains("cannot take");
                let may_be_late = program.timeout == Some(SHORT);
                assert!(is_fault || is_refused || is_late && may_be_late, "batch {number}: {error}");
                Some(None)
            }
        }
    }
}

/// Runs the loops of one epoch at once.
fn run_loops<'a>(running: &Running, loops: Vec<Loop<'a>>, random: &mut Random, give: &mut dyn FnMut(Tensor)) {
    let mut loops = loops;
    while !loops.is_empty() {
        let at = random.below(loops.len());
        if running.program.leaves_early && random.is_one_of(8) {
            loops.swap_remove(at);
            continue;
        }
        running.delay();
        match loops[at].next(&running.program) {
            None => drop(loops.swap_remove(at)),
            Some(batch) => batch.into_iter().for_each(&mut *give),
        }
    }
}

/// Keeps `n_held` batches, and drops the others in any order.
struct Keeper {
    held: Vec<Tensor>,
    n_held: usize,
    random: Random,
}

impl Keeper {
    fn keep(&mut self, batch: Tensor) {
        self.held.push(batch);
        while self.held.len() > self.n_held {
            self.held.swap_remove(self.random.below(self.held.len()));
        }
    }
}

fn run_epochs<K>(running: &Arc<Running>, budgets: &Budgets, mut random: Random, loader: impl Fn() -> Loader<Tensor, K>)
where
    Tensor: PinMemory,
{
    let program = &running.program;
    let loaders: Vec<_> = (0..program.n_loaders).map(|_| configure(loader(), running, budgets)).collect();
    let mut keeper = Keeper { held: Vec::new(), n_held: program.n_held, random };
    thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(0);
        if program.drops_elsewhere {
            let mut keeper = Keeper { held: Vec::new(), ..keeper };
            scope.spawn(move || receive.iter().for_each(|batch| keeper.keep(batch)));
        }
        for _ in 0..3 {
            let start = |loader| (0..program.n_loops).map(move |_| loader);
            let start = loaders.iter().flat_map(start).map(|loader: &Loader<Tensor, K>| Loop {
                batches: Box::new(loader.iter()),
                left: program.order().into(),
            });
            run_loops(running, start.collect(), &mut random, &mut |batch| match program.drops_elsewhere {
                true => send.send(batch).unwrap(),
                false => keeper.keep(batch),
            });
        }
    });
}

/// Sets the flag when it drops.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Reserves bytes of a budget now and then, until `is_over`.
fn disturb(budget: &Budget, running: &Running, is_over: &AtomicBool, mut random: Random) {
    while !is_over.load(SeqCst) {
        let reserved = budget.reserve(random.next() % (budget.limit().0 + 1));
        running.delay();
        drop(reserved);
        thread::sleep(Duration::from_micros(200));
    }
}

fn run(seed: u64) {
    let program = Program::of(seed);
    let was_slow = program.lens_kib.iter().map(|_| AtomicBool::new(false)).collect();
    let running = Arc::new(Running { random: (seed << 32).into(), was_slow, program });
    let program = &running.program;
    let budget = |name, kib: Option<u64>| kib.map(|kib| Budget::new(name, ByteSize::kib(kib)));
    let budgets =
        Budgets { prefetch: budget("prefetch", program.prefetch_kib), pinned: budget("pinned", program.pinned_kib) };
    let (is_over, random) = (AtomicBool::new(false), Random(seed ^ 1 << 63));
    let all = || [&budgets.prefetch, &budgets.pinned].into_iter().flatten();
    thread::scope(|scope| {
        for budget in all().filter(|_| program.has_others) {
            scope.spawn(|| disturb(budget, &running, &is_over, random));
        }
        let (running, _sets) = (&running, Sets(&is_over));
        match program.is_stream {
            true => run_epochs(running, &budgets, random, || {
                StreamLoader::with_collate(Numbers(running.clone()), make(running))
            }),
            false => run_epochs(running, &budgets, random, || {
                DataLoader::with_collate(Numbers(running.clone()), make(running))
            }),
        }
    });
    let start = Instant::now();
    for budget in all() {
        while budget.used() > ByteSize(0) {
            assert!(start.elapsed() < Duration::from_secs(5), "{budget:?} is still used");
            thread::yield_now(); // a worker that was replaced may still have a batch
        }
        assert!(budget.peak() <= budget.limit(), "{budget:?}");
    }
}

fn make(running: &Arc<Running>) -> impl Fn(Vec<usize>) -> Result<Tensor> + Send + Sync + 'static {
    let running = running.clone();
    move |numbers| running.make(numbers[0])
}

fn seeds() -> Range<u64> {
    let Ok(seeds) = std::env::var("PAGELOCK_SEEDS") else { return 0..40 };
    let (start, end) = seeds.split_once("..").expect("PAGELOCK_SEEDS is like 0..40");
    start.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn every_batch_comes_once_and_in_order_whatever_workers_wait_for() {
    for seed in seeds() {
        let (send, done) = mpsc::channel();
        let start = Instant::now();
        let thread = thread::spawn(move || {
            run(seed);
            send.send(()).unwrap();
        });
        match done.recv_timeout(Duration::from_secs(20)) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed} hangs: {:?}", Program::of(seed)),
            Err(_) => panic!(
                "seed {seed} fails: {:?}: {:?}",
                Program::of(seed),
                thread.join().unwrap_err().downcast_ref::<String>()
            ),
        }
        if std::env::var("PAGELOCK_SEEDS").is_ok() && start.elapsed() > Duration::from_secs(3) {
            println!("seed {seed} took {:?}: {:?}", start.elapsed(), Program::of(seed));
        }
    }
}
