//! A fault in a loader soon arrives as an error in the place of its batch. The rest arrives as if nothing had happened.

mod quiet;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, Error, PinMemory, Place, Result, Sampler, SequentialSampler, Slots};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{Device, Int, Tensor};
use proptest::prelude::*;

use quiet::without_backtraces;

/// What getting a sample does.
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
fn epoch(loader: &DataLoader<Tensor<Int>>) -> Vec<Result<Vec<i64>, String>> {
    loader.iter().map(|batch| batch.map(|batch| batch.to_vec().unwrap()).map_err(|error| error.to_string())).collect()
}

#[test]
fn samples_that_fail_or_panic_are_left_out_by_choice_and_reported() {
    without_backtraces();
    for n_workers in [0, 1, 3] {
        let mut faults = vec![Fault::None; 12];
        faults[1] = Fault::Fails;
        faults[6..9].fill(Fault::Fails);
        faults[10] = Fault::Panics;
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
        let panicked = "panicked at sample 10: row 10 is impossible; RUST_BACKTRACE=1 shows where";
        let who = ["the calling thread", "worker 0", "", ""][n_workers];
        assert!(skipped[4].error.starts_with(who) && skipped[4].error.ends_with(panicked), "{}", skipped[4]);
        let report = loader.report();
        assert_eq!((report.skipped, report.samples, report.errors), (5, 7, 1));
        assert!(report.to_string().contains("5 samples failed and were left out"), "{report}");
    }
}

/// Checks that of three batches only the second is an error, for several numbers of workers and in two epochs.
fn around_a_fault(loader: impl Fn() -> DataLoader<i64>) {
    without_backtraces();
    for n_workers in [0, 1, 8] {
        let loader = loader().batch_size(3).num_workers(n_workers);
        for _epoch in 0..2 {
            let given: Vec<_> = loader.iter().collect();
            assert!(matches!(given[..], [Ok(0), Err(_), Ok(6)]), "{n_workers} workers: {given:?}");
        }
        assert_eq!((loader.report().errors, loader.report().batches), (2, 6), "{n_workers} workers");
    }
}

/// Nine samples without a fault.
fn nine() -> Faulty {
    Faulty(vec![Fault::None; 9])
}

#[test]
fn a_panic_anywhere_costs_its_batch_for_any_number_of_workers() {
    let first = |samples: Vec<i64>| samples[0];
    let middle = |first: i64| assert_ne!(first, 3, "the middle is impossible");
    let collated = || DataLoader::with_collate(nine(), move |samples| Ok(first(samples)));

    around_a_fault(|| {
        let mut faults = vec![Fault::None; 9];
        faults[4] = Fault::Panics;
        DataLoader::with_collate(Faulty(faults), move |samples| Ok(first(samples)))
    });
    around_a_fault(|| {
        let transformed = nine().transform(7, move |sample, _| {
            middle(sample);
            Ok(sample)
        });
        DataLoader::with_collate(transformed, move |samples| Ok(first(samples)))
    });
    around_a_fault(|| {
        DataLoader::with_collate(nine(), move |samples| {
            middle(samples[0]);
            Ok(first(samples))
        })
    });
    around_a_fault(|| {
        collated().map(move |first| {
            middle(first);
            Ok(first)
        })
    });
}

#[test]
fn an_order_that_panics_costs_its_batch_for_any_number_of_workers() {
    struct Faints;

    impl Sampler for Faints {
        fn fill(&self, place: Place, indices: &mut [usize]) {
            assert_ne!(place.position, 3, "no such place");
            SequentialSampler.fill(place, indices);
        }
    }

    around_a_fault(|| DataLoader::with_collate(nine(), |samples| Ok(samples[0])).sampler(Faints));
}

#[test]
fn a_move_to_a_device_that_panics_costs_its_batch() {
    struct Heavy(i64);

    impl PinMemory for Heavy {
        fn move_into(self, _: &Slots<'_>) -> Result<Self> {
            assert_ne!(self.0, 3, "too heavy");
            Ok(self)
        }
        fn is_pinned(&self) -> bool {
            false
        }
    }

    without_backtraces();
    for n_workers in [0, 1, 8] {
        let loader = DataLoader::with_collate(nine(), |samples| Ok(Heavy(samples[0]))).batch_size(3);
        let loader = loader.num_workers(n_workers).to(&Device::Cpu).unwrap();
        let given: Vec<_> = loader.iter().map(|batch| batch.map(|Heavy(first)| first)).collect();
        assert!(matches!(given[..], [Ok(0), Err(_), Ok(6)]), "{n_workers} workers: {given:?}");
    }
}

/// A batch whose drop panics once while it is armed, which ends the worker that drops it.
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
    // The first batch comes after the time-out, so its worker drops it, and dies of the panic.
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
    // The program leaves the epoch while the batch is being made. The worker, which stays for the next epoch, drops the
    // batch and dies of the panic.
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

/// The payload of a sample's panic, which panics again when it is dropped.
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
    let error = "worker 0 panicked at sample 1: no message; RUST_BACKTRACE=1 shows where";
    let loader = || DataLoader::new(Explosive).num_workers(1).timeout(Duration::from_secs(20));
    assert_eq!(epoch(&loader()), [Ok(vec![0]), Err(error.to_owned()), Ok(vec![2]), Ok(vec![3])]);
    assert_eq!(epoch(&loader().batch_size(4).skip_bad_samples(true)), [Ok(vec![0, 2, 3])]);

    let loader = loader().worker_init(|_| std::panic::panic_any(Grenade));
    let error = "worker 0 could not start: worker 0 panicked: no message; RUST_BACKTRACE=1 shows where";
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
        n_workers in 0_usize..5,
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
                    let who = if n_workers == 0 { "the calling thread " } else { "worker " };
                    prop_assert!(error.starts_with(who), "{}", error);
                }
                (Err(error), Err(_)) => prop_assert!(error.contains(" could get none of the "), "{}", error),
                (given, expected) => prop_assert!(false, "{:?} instead of {:?}", given, expected),
            }
        }
    }
}
