//! What goes wrong in a loader arrives as an error in its place, soon, and the rest arrives as if nothing had happened.

mod quiet;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, Error, Result};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::Tensor;
use proptest::prelude::*;

use quiet::without_backtraces;

/// What a sample does when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Fails,
    Panics,
    Slow,
}

struct Faulty(Vec<Fault>);

impl Dataset for Faulty {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<i64> {
        match self.0[index] {
            Fault::None => {}
            Fault::Fails => return Err(Error::other(format!("row {index} is damaged"))),
            Fault::Panics => panic!("row {index} is impossible"),
            Fault::Slow => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(300) {
                    std::thread::yield_now();
                }
            }
        }
        Ok(index as i64)
    }
}

/// One epoch: values, or the text of an error.
fn epoch(loader: &DataLoader<Tensor<i64>>) -> Vec<Result<Vec<i64>, String>> {
    loader.iter().map(|batch| batch.map(|batch| batch.to_vec().unwrap()).map_err(|error| error.to_string())).collect()
}

#[test]
fn samples_that_fail_or_panic_are_left_out_by_choice_and_reported() {
    without_backtraces();
    for n_workers in [0, 1, 3] {
        let mut faults = vec![Fault::None; 12];
        faults[1] = Fault::Fails;
        faults[6..9].fill(Fault::Fails);
        if n_workers > 0 {
            faults[10] = Fault::Panics;
        } else {
            faults[10] = Fault::Fails;
        }
        let loader = DataLoader::new(Faulty(faults)).batch_size(3).num_workers(n_workers).skip_bad_samples(true);
        let given = epoch(&loader);
        assert_eq!([&given[0], &given[1], &given[3]], [&Ok(vec![0, 2]), &Ok(vec![3, 4, 5]), &Ok(vec![9, 11])]);
        let all_bad = given[2].as_ref().unwrap_err();
        let expected = "could get none of the 3 samples of a batch; the last of them, sample 8: row 8 is damaged; look at \
                        skipped(), or at the dataset";
        assert!(all_bad.ends_with(expected), "{all_bad}");

        let skipped = loader.skipped();
        assert_eq!(skipped.iter().map(|skipped| skipped.index).collect::<Vec<_>>(), [1, 6, 7, 8, 10]);
        assert_eq!((skipped[0].epoch, &*skipped[0].error), (0, "row 1 is damaged"));
        if n_workers == 1 {
            assert_eq!(
                skipped[4].error,
                "worker 0 panicked at sample 10: row 10 is impossible; num_workers(0) lets the panic through, with its \
                 backtrace"
            );
        }
        let report = loader.report();
        assert_eq!((report.skipped, report.samples, report.errors), (5, 7, 1));
        assert!(report.to_string().contains("5 samples failed and were left out"), "{report}");
    }
}

/// A batch that ends the worker that has to drop it.
struct Deadly {
    armed: Arc<AtomicBool>,
    dropped: mpsc::Sender<()>,
}

impl Drop for Deadly {
    fn drop(&mut self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let _ = self.dropped.send(());
            panic!("dropping this panics");
        }
    }
}

#[test]
fn a_worker_that_dies_is_replaced_and_the_epoch_goes_on() {
    // The first batch comes too late, so that its worker drops it, and dies of that.
    let armed = Arc::new(AtomicBool::new(false));
    let (dropped, was_dropped) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let (gate, dropped) = (std::sync::Mutex::new(gate), std::sync::Mutex::new(dropped));
    let collate = {
        let armed = armed.clone();
        move |samples: Vec<i64>| {
            if samples[0] == 0 {
                let _ = gate.lock().unwrap().recv();
                armed.store(true, Ordering::SeqCst);
            }
            Ok(Deadly { armed: armed.clone(), dropped: dropped.lock().unwrap().clone() })
        }
    };
    let loader =
        DataLoader::with_collate(Faulty(vec![Fault::None; 8]), collate).num_workers(1).persistent_workers(true);
    let loader = loader.timeout(Duration::from_millis(100));
    let mut batches = loader.iter();
    let late = batches.next().unwrap().err().unwrap();
    let Error::Timeout { worker: Some(0), batch: 0, sample: None, first: Some(0), .. } = late else { panic!("{late}") };
    open.send(()).unwrap();
    was_dropped.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(batches.filter(|batch| batch.is_ok()).count(), 7);
}

#[test]
fn a_worker_that_dies_in_its_place_is_replaced_too() {
    // The program leaves the epoch while the batch is being made; the same worker, which stays for the next, dies of it.
    let armed = Arc::new(AtomicBool::new(false));
    let (dropped, was_dropped) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let (gate, senders) = (std::sync::Mutex::new(gate), std::sync::Mutex::new((dropped, begun)));
    let n_made = AtomicUsize::new(0);
    let collate = {
        let armed = armed.clone();
        move |_: Vec<i64>| {
            let (dropped, begun) = senders.lock().unwrap().clone();
            if n_made.fetch_add(1, Ordering::SeqCst) == 0 {
                begun.send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
                armed.store(true, Ordering::SeqCst);
            }
            Ok(Deadly { armed: armed.clone(), dropped })
        }
    };
    let loader =
        DataLoader::with_collate(Faulty(vec![Fault::None; 8]), collate).num_workers(1).persistent_workers(true);
    drop({
        let batches = loader.iter();
        has_begun.recv_timeout(Duration::from_secs(20)).unwrap();
        batches
    });
    open.send(()).unwrap();
    was_dropped.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(loader.iter().filter(|batch| batch.is_ok()).count(), 8);
}

/// What a sample panics with, and what panics again when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("twice");
    }
}

#[test]
fn a_panic_that_panics_again_costs_its_batch_and_no_worker() {
    struct Explosive;

    impl Dataset for Explosive {
        type Sample = i64;
        fn len(&self) -> usize {
            4
        }
        fn get(&self, index: usize) -> Result<i64> {
            if index == 1 { std::panic::panic_any(Grenade) } else { Ok(index as i64) }
        }
    }
    without_backtraces();
    let error = "worker 0 panicked at sample 1: no message; num_workers(0) lets the panic through, with its backtrace";
    let loader = || DataLoader::new(Explosive).num_workers(1).timeout(Duration::from_secs(20));
    assert_eq!(epoch(&loader()), [Ok(vec![0]), Err(error.to_owned()), Ok(vec![2]), Ok(vec![3])]);
    assert_eq!(epoch(&loader().batch_size(4).skip_bad_samples(true)), [Ok(vec![0, 2, 3])]);

    let loader = loader().worker_init(|_| std::panic::panic_any(Grenade));
    let error = "worker 0 could not start: worker 0 panicked: no message; num_workers(0) lets the panic through, with its \
                 backtrace";
    assert_eq!(epoch(&loader), [Err(error.to_owned())]);
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault =
        prop_oneof![12 => Just(Fault::None), 1 => Just(Fault::Fails), 1 => Just(Fault::Panics), 2 => Just(Fault::Slow)];
    prop::collection::vec(fault, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn whatever_fails_and_whenever_every_batch_comes_once_and_in_order(
        faults in faults(),
        batch_size in 1_usize..10,
        n_workers in 1_usize..5,
        prefetch in 0_usize..5,
        skip in any::<bool>(),
        pin in any::<bool>(),
        persistent in any::<bool>(),
        budget_kib in prop::option::of(9_u64..100),
        leave_after in 0_usize..30,
    ) {
        without_backtraces();
        let model = |batch: &[usize]| -> Result<Vec<i64>, usize> {
            let good = |&index: &usize| matches!(faults[index], Fault::None | Fault::Slow);
            match batch.iter().find(|index| !good(index)) {
                Some(&bad) if !skip || !batch.iter().any(good) => Err(bad),
                _ => Ok(batch.iter().filter(|index| good(index)).map(|&index| index as i64).collect()),
            }
        };
        let indices: Vec<usize> = (0..faults.len()).collect();
        let expected: Vec<_> = indices.chunks(batch_size).map(model).collect();

        let loader = DataLoader::new(Faulty(faults.clone())).batch_size(batch_size).num_workers(n_workers);
        let loader = loader.prefetch_factor(prefetch).skip_bad_samples(skip).persistent_workers(persistent);
        let loader = loader.pin_memory(pin).timeout(Duration::from_secs(60));
        let loader = match budget_kib {
            Some(kib) => loader.prefetch_budget(Budget::new("ahead", ByteSize::kib(kib))),
            None => loader,
        };
        loader.iter().take(leave_after).for_each(drop);
        let given = epoch(&loader);
        prop_assert_eq!(given.len(), expected.len());
        for (given, expected) in given.into_iter().zip(expected) {
            match (given, expected) {
                (Ok(given), Ok(expected)) => prop_assert_eq!(given, expected),
                (Err(error), Err(bad)) if !skip => {
                    prop_assert!(error.contains(&format!("sample {bad}: row {bad} is")), "{}, not {}", error, bad);
                    prop_assert!(error.starts_with("worker "), "{}", error);
                }
                (Err(error), Err(_)) => prop_assert!(error.contains(" could get none of the "), "{}", error),
                (given, expected) => prop_assert!(false, "{:?} instead of {:?}", given, expected),
            }
        }
    }
}
