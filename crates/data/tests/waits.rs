//! Loaders whose workers wait: for a budget, for page-locked memory, or for a worker that starts. A watchdog fails a test that
//! hangs.

mod gate;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{Batches, DataLoader, Dataset, Error, Result, WhenFull};
use pagelock_memory::{Budget, ByteSize, HostBuffer, Trim};
use pagelock_tensor::Tensor;

use gate::Gate;

/// The indices of `n` samples.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }
}

/// Runs `work` on another thread, and fails if it has not ended after 20 seconds.
fn watched<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, done) = mpsc::channel();
    let thread = std::thread::spawn(move || send.send(work()).unwrap());
    match done.recv_timeout(Duration::from_secs(20)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::yield_now();
    }
}

/// `len_kib` KiB of `value`.
fn kibibytes(len_kib: usize, value: usize) -> Result<Tensor> {
    Ok(Tensor::full([256 * len_kib], value as f32)?)
}

fn first(batch: Option<Result<Tensor>>) -> f32 {
    batch.unwrap().unwrap().to_vec::<f32>().unwrap()[0]
}

/// What a budget runs before it refuses memory.
struct Refused<F>(F);

impl<F: Fn() + Send + Sync> Trim for Refused<F> {
    fn trim(&self) -> usize {
        (self.0)();
        0
    }
}

/// Makes `budget` call `f` before it refuses memory, while the result lives.
fn before_refusals(budget: &Budget, f: impl Fn() + Send + Sync + 'static) -> Arc<dyn Trim> {
    let pool: Arc<dyn Trim> = Arc::new(Refused(f));
    budget.add_pool(Arc::downgrade(&pool));
    pool
}

#[test]
fn a_batch_that_lost_its_memory_gets_that_of_later_ones() {
    watched(|| {
        let (second, fourth) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let collate = {
            let (second, fourth) = (second.clone(), fourth.clone());
            move |numbers: Vec<usize>| {
                match numbers[0] {
                    1 => second.pass(),
                    3 => {
                        second.open(); // batch 2 is ready, and this worker has the prefetched bytes of batch 3
                        fourth.pass();
                    }
                    _ => {}
                }
                kibibytes([16, 44, 8, 16][numbers[0]], numbers[0])
            }
        };
        let loader = DataLoader::with_collate(Numbers(4), collate).num_workers(2).prefetch_factor(2);
        let loader = loader.prefetch_budget(Budget::new("prefetch", ByteSize::kib(48))).pin_memory(true);
        let loader = loader.pin_budget(Budget::new("pinned", ByteSize::kib(64))).when_full(WhenFull::Wait);
        let mut batches = loader.iter();
        let held = batches.next();
        assert_eq!(first(batches.next()), 1.0); // takes page-locked bytes from batch 2, and is larger than those before
        fourth.open();
        assert_eq!((first(batches.next()), first(batches.next())), (2.0, 3.0));
        assert_eq!(first(held), 0.0);
    });
}

#[test]
fn a_worker_notices_that_others_release_bytes_of_its_budget() {
    watched(|| {
        let budget = Budget::new("shared", ByteSize::kib(36));
        let others = budget.reserve(ByteSize::kib(8).0).unwrap();
        let n_made = Arc::new(AtomicUsize::new(0));
        let is_refused = Arc::new(AtomicBool::new(false));
        let _pool = before_refusals(&budget, {
            let is_refused = is_refused.clone();
            move || is_refused.store(true, SeqCst)
        });
        let collate = {
            let n_made = n_made.clone();
            move |numbers: Vec<usize>| {
                n_made.fetch_add(1, SeqCst);
                kibibytes(16, numbers[0])
            }
        };
        let loader = DataLoader::with_collate(Numbers(4), collate).num_workers(1).prefetch_factor(3);
        let loader = loader.prefetch_budget(budget);
        let _batches = loader.iter();
        wait_until(|| is_refused.load(SeqCst));
        std::thread::sleep(Duration::from_millis(20)); // until the worker sleeps
        assert_eq!(n_made.load(SeqCst), 2);
        drop(others);
        wait_until(|| n_made.load(SeqCst) == 3);
    });
}

#[test]
fn a_pool_of_the_prefetch_budget_may_end_the_epoch() {
    static LEFT: Mutex<Option<Batches<'static, Tensor>>> = Mutex::new(None);
    watched(|| {
        let budget = Budget::new("prefetch", ByteSize::kib(40));
        let is_left = Arc::new(AtomicBool::new(false));
        let _pool = before_refusals(&budget, {
            let is_left = is_left.clone();
            move || {
                wait_until(|| is_left.load(SeqCst) || LEFT.lock().unwrap().is_some());
                let batches = LEFT.lock().unwrap().take();
                drop(batches);
                is_left.store(true, SeqCst);
            }
        });
        let loader = DataLoader::with_collate(Numbers(8), |numbers| kibibytes(16, numbers[0])).num_workers(1);
        let loader = loader.prefetch_factor(4).persistent_workers(true).prefetch_budget(budget);
        let loader: &'static _ = Box::leak(Box::new(loader));
        *LEFT.lock().unwrap() = Some(loader.iter());
        wait_until(|| is_left.load(SeqCst));
        assert_eq!(loader.iter().filter(Result::is_ok).count(), 8);
    });
}

#[test]
fn a_pool_of_the_prefetch_budget_that_panics_costs_one_batch() {
    watched(|| {
        let budget = Budget::new("prefetch", ByteSize::kib(40));
        let has_panicked = AtomicBool::new(false);
        let _pool = before_refusals(&budget, move || assert!(has_panicked.swap(true, SeqCst), "cannot trim"));
        let loader = DataLoader::with_collate(Numbers(8), |numbers| kibibytes(16, numbers[0])).num_workers(2);
        let loader = loader.prefetch_factor(4).prefetch_budget(budget);
        let errors: Vec<_> = loader.iter().filter_map(Result::err).map(|error| error.to_string()).collect();
        assert!(matches!(&errors[..], [error] if error.contains("panicked: cannot trim")), "{errors:?}");
    });
}

#[test]
fn a_pool_of_the_page_locked_budget_may_allocate() {
    watched(|| {
        let budget = Budget::new("pinned", ByteSize::kib(12));
        let is_inside = AtomicBool::new(false);
        let _pool = before_refusals(&budget, move || {
            if !is_inside.swap(true, SeqCst) {
                drop(HostBuffer::placed(1_000).unwrap());
                is_inside.store(false, SeqCst);
            }
        });
        let collate = |numbers: Vec<usize>| Ok((kibibytes(1, numbers[0])?, kibibytes(1, numbers[0])?));
        let loader = DataLoader::with_collate(Numbers(4), collate).pin_memory(true).pin_budget(budget);
        let batches: Result<Vec<_>> = loader.iter().collect(); // a batch like the one before is one block, which is refused
        assert_eq!((batches.unwrap().len(), loader.report().pageable), (4, 2));
    });
}

#[test]
fn workers_go_on_while_one_that_replaces_another_starts() {
    watched(|| {
        let (gate, n_started) = (Arc::new(Gate::default()), AtomicUsize::new(0));
        let init = {
            let gate = gate.clone();
            move |_worker| {
                if n_started.fetch_add(1, SeqCst) >= 2 {
                    gate.pass(); // it replaces the first worker that hangs
                }
                Ok(())
            }
        };
        let collate = {
            let gate = gate.clone();
            move |numbers: Vec<usize>| {
                if numbers[0] == 1 {
                    gate.pass();
                }
                Ok(numbers[0])
            }
        };
        let loader = DataLoader::with_collate(Numbers(40), collate).num_workers(2).prefetch_factor(2);
        let loader = loader.timeout(Duration::from_millis(500)).worker_init(init);
        let mut batches = loader.iter();
        let (given, late): (Vec<_>, Vec<_>) = batches.by_ref().partition(Result::is_ok);
        gate.open();
        assert!(matches!(late[..], [Err(Error::Timeout { batch: 1, .. })]), "{} are late", late.len());
        assert_eq!(given.len(), 39);
    });
}
