//! What a program sees of workers: the same batches, errors in their place, and nothing left behind.

mod gate;
mod resident;
mod worker_names;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pagelock_data::{
    BucketSampler, ConcatDataset, DataLoader, Dataset, Error, LoaderState, Result, StackDataset, Subset,
    SubsetRandomSampler, TensorDataset,
};
use pagelock_memory::{Budget, ByteSize, Trim};
use pagelock_tensor::{Element, Tensor};
use proptest::prelude::*;

use gate::Gate;
use resident::threads;
use worker_names::without_worker_name;

/// `n` samples: sample `i` is `[i, i + 0.5]`.
fn points(n: usize) -> TensorDataset<Tensor> {
    let values: Vec<f32> = (0..n).flat_map(|i| [i as f32, i as f32 + 0.5]).collect();
    TensorDataset::new(Tensor::from_vec(values, [n, 2]).unwrap()).unwrap()
}

/// Samples `0..n`, each of which is what the function returns for its index.
struct Samples<F>(usize, F);

impl<F: Fn(usize) -> Result<i64> + Send + Sync + 'static> Dataset for Samples<F> {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        (self.1)(index)
    }
}

/// What the loader gives in one epoch: values, or the text of an error.
fn epoch<E: Element>(loader: &DataLoader<Tensor<E::Kind>>) -> Vec<Result<Vec<E>, String>> {
    loader.iter().map(|batch| batch.map(|batch| batch.to_vec().unwrap()).map_err(|error| error.to_string())).collect()
}

#[test]
fn any_number_of_workers_gives_the_same_batches_in_the_same_order() {
    let expected = {
        let loader = DataLoader::new(points(1_003)).batch_size(10).shuffle(5);
        [epoch::<f32>(&loader), epoch::<f32>(&loader)]
    };
    for n_workers in [1, 2, 8] {
        for persistent in [false, true] {
            let loader = DataLoader::new(points(1_003)).batch_size(10).shuffle(5).num_workers(n_workers);
            let loader = loader.persistent_workers(persistent);
            assert_eq!([epoch::<f32>(&loader), epoch::<f32>(&loader)], expected, "{n_workers} workers");
        }
    }
}

#[test]
fn random_changes_of_samples_depend_on_epoch_and_index_alone() {
    let noisy = || points(300).transform(9, |x, random| Ok(x.to_vec::<f32>()?[0] + random.next_f64() as f32));
    let loader = |n_workers| DataLoader::new(noisy()).batch_size(7).shuffle(1).num_workers(n_workers);
    let expected = {
        let loader = loader(0);
        [epoch::<f32>(&loader), epoch::<f32>(&loader)]
    };
    let (mut first, mut second) = (expected[0].clone(), expected[1].clone());
    for batches in [&mut first, &mut second] {
        batches.sort_by(|a, b| a.as_ref().unwrap()[0].total_cmp(&b.as_ref().unwrap()[0]));
    }
    assert_ne!(first, second, "each epoch has noise of its own");
    for n_workers in [1, 4] {
        let loader = loader(n_workers);
        assert_eq!([epoch::<f32>(&loader), epoch::<f32>(&loader)], expected);
    }
    let subset = Subset::new(noisy(), [5, 6]).unwrap();
    assert_eq!(subset.get_in(1, 3).unwrap(), noisy().get_in(6, 3).unwrap());
}

#[test]
fn batches_are_made_ahead_of_the_program_but_no_further_than_the_window() {
    let made = Arc::new(AtomicUsize::new(0));
    let dataset = Samples(100, {
        let made = made.clone();
        move |index| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(index as i64)
        }
    });
    let loader = DataLoader::new(dataset).num_workers(2).prefetch_factor(3);
    let ahead_becomes = |least: usize, given: usize| {
        let start = Instant::now();
        while made.load(Ordering::SeqCst) < given + least && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        made.load(Ordering::SeqCst) - given
    };
    let mut batches = loader.iter();
    batches.next().unwrap().unwrap();
    assert!(matches!(ahead_becomes(5, 1), 5 | 6), "two workers, three batches each");
    for given in 2..=20 {
        batches.next().unwrap().unwrap();
        let ahead = ahead_becomes(4, given);
        assert!((4..=6).contains(&ahead), "{ahead} ahead: workers go on when half are gone");
    }
}

#[test]
fn a_bad_sample_costs_its_own_batch_only() {
    let get = |index| match index {
        7 => Err(Error::other("row 7 is damaged")),
        index => Ok(index as i64),
    };
    for n_workers in [0, 1, 3] {
        let loader = DataLoader::new(Samples(12, get)).batch_size(3).num_workers(n_workers);
        let given = epoch::<i64>(&loader);
        assert_eq!([&given[0], &given[1], &given[3]], [&Ok(vec![0, 1, 2]), &Ok(vec![3, 4, 5]), &Ok(vec![9, 10, 11])]);
        let error = given[2].as_ref().unwrap_err();
        assert!(error.contains(" could not get sample 7: row 7 is damaged; "), "{error}");
        assert_eq!(loader.report().errors, 1);
    }
}

#[test]
fn a_sample_that_hangs_is_named_after_the_timeout_and_the_epoch_goes_on() {
    let gate = Arc::new(Gate::default());
    let get = {
        let gate = gate.clone();
        move |index| {
            if index == 3 {
                gate.pass();
            }
            Ok(index as i64)
        }
    };
    let loader = DataLoader::new(Samples(8, get)).batch_size(2).num_workers(1).timeout(Duration::from_millis(200));
    let start = Instant::now();
    let batches = epoch::<i64>(&loader);
    assert!(start.elapsed() < Duration::from_secs(4), "one time-out, and no wait for the worker that hangs");
    assert_eq!([&batches[0], &batches[2], &batches[3]], [&Ok(vec![0, 1]), &Ok(vec![4, 5]), &Ok(vec![6, 7])]);
    let error = batches[1].as_ref().unwrap_err();
    assert!(error.starts_with("batch 1 was not ready after 2"), "{error}");
    assert!(error.contains("ms: worker 0 is making it at sample 3; raise the timeout, or look at that"), "{error}");
    gate.open();
}

#[test]
fn a_worker_that_still_hangs_in_an_epoch_that_was_left_is_replaced() {
    let (gate, n_at_gate) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let get = {
        let (gate, n_at_gate) = (gate.clone(), n_at_gate.clone());
        move |index| {
            if index == 1 && n_at_gate.fetch_add(1, Ordering::SeqCst) == 0 {
                gate.pass();
            }
            Ok(index as i64)
        }
    };
    let loader = DataLoader::new(Samples(4, get)).num_workers(1).persistent_workers(true);
    let loader = loader.timeout(Duration::from_millis(200));
    let mut left = loader.iter();
    left.next().unwrap().unwrap();
    while n_at_gate.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(left);

    let batches = epoch::<i64>(&loader);
    assert!(batches[0].as_ref().is_err_and(|error| error.contains("no worker was free")), "{batches:?}");
    assert_eq!(batches[1..], [Ok(vec![1]), Ok(vec![2]), Ok(vec![3])]);
    assert_eq!(epoch::<i64>(&loader), [0, 1, 2, 3].map(|index| Ok(vec![index])));
    gate.open();
}

#[test]
fn workers_that_take_too_long_to_start_are_told_apart_from_a_sample_that_hangs() {
    let gate = Arc::new(Gate::default());
    let init = {
        let gate = gate.clone();
        move |_worker| {
            gate.pass();
            Ok(())
        }
    };
    let loader = DataLoader::new(points(4)).num_workers(1).timeout(Duration::from_millis(200)).worker_init(init);
    let mut batches = loader.iter();
    let late = batches.next().unwrap().unwrap_err();
    let Error::Timeout { worker: None, batch: 0, waited, .. } = late else { panic!("{late}") };
    assert_eq!(
        late.to_string(),
        format!("batch 0 was not ready after {waited:.1?}: no worker was free; raise the timeout, or use more workers")
    );
    gate.open();
    assert_eq!(batches.filter(Result::is_ok).count(), 3);
}

#[test]
fn a_worker_that_cannot_start_is_one_error_and_the_end_of_the_epoch() {
    let init = |worker| if worker == 1 { Err(Error::other("no scratch folder")) } else { Ok(()) };
    let loader = DataLoader::new(points(4)).num_workers(2).persistent_workers(true).worker_init(init);
    for _ in 0..2 {
        assert_eq!(epoch::<f32>(&loader), [Err("worker 1 could not start: no scratch folder".into())]);
    }

    let panics = DataLoader::new(points(4)).num_workers(1).worker_init(|_| panic!("at once"));
    let error = "worker 0 could not start: worker 0 panicked: at once; RUST_BACKTRACE=1 shows where";
    assert_eq!(epoch::<f32>(&panics), [Err(error.into())]);
}

#[test]
fn workers_keep_to_the_budget_of_what_is_ahead() {
    let budget = Budget::new("loader", ByteSize::kib(100)); // 6 batches of 16 KiB
    let dataset = TensorDataset::new(Tensor::zeros([640, 256]).unwrap()).unwrap();
    let loader = DataLoader::new(dataset).batch_size(16).num_workers(3).prefetch_factor(100);
    let loader = loader.prefetch_budget(budget.clone());
    assert!(epoch::<f32>(&loader).iter().all(Result::is_ok));
    assert!(budget.peak() >= ByteSize::kib(16) && budget.peak() <= ByteSize::kib(100), "{}", budget.peak());
    assert_eq!(budget.used(), ByteSize(0));
}

#[test]
fn a_budget_too_small_for_a_batch_is_an_error_with_the_numbers() {
    let budget = Budget::new("loader", ByteSize::kib(10)).with_advice("give the loader more");
    let dataset = TensorDataset::new(Tensor::zeros([64, 256]).unwrap()).unwrap();
    let loader = DataLoader::new(dataset).batch_size(16).num_workers(2).prefetch_budget(budget.clone());
    let batches = epoch::<f32>(&loader);
    assert!(batches[0].is_ok(), "nobody knows yet how much a batch takes");
    for (number, batch) in batches.into_iter().enumerate().skip(1) {
        let expected = format!(
            "not make a batch of 16 samples, the first of them sample {}: cannot take 16 KiB: budget `loader` has \
             10 KiB left of 10 KiB; give the loader more",
            16 * number
        );
        assert_eq!(batch.map(drop).map_err(without_worker_name), Err(expected));
    }
    assert_eq!(budget.used(), ByteSize(0));
}

#[test]
fn loaders_that_are_left_in_mid_epoch_leave_nothing_behind() {
    let dataset = Arc::new(points(1_000));
    let before = threads();
    for round in 0..500 {
        let loader = DataLoader::new(dataset.clone()).batch_size(10).shuffle(round).num_workers(2);
        let loader = loader.persistent_workers(round % 2 == 0);
        loader.iter().take(round as usize % 5).for_each(drop);
    }
    assert_eq!(Arc::strong_count(&dataset), 1, "no worker holds the dataset");
    assert!(threads() <= before + 8, "{before} threads before, {} after", threads());
}

#[test]
fn two_loops_over_one_loader_do_not_disturb_each_other() {
    let loader = DataLoader::new(points(100)).batch_size(10).num_workers(2).persistent_workers(true);
    let expected = epoch::<f32>(&DataLoader::new(points(100)).batch_size(10));
    for (one, other) in loader.iter().zip(&loader) {
        assert_eq!(one.unwrap().to_vec::<f32>().unwrap(), other.unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!(epoch::<f32>(&loader), expected);
}

#[test]
fn settings_that_change_between_epochs_reach_workers_that_stay() {
    let loader = DataLoader::new(points(10)).batch_size(5).num_workers(2).persistent_workers(true);
    assert_eq!(epoch::<f32>(&loader).len(), 2);
    let loader = loader.batch_size(2).shuffle(3).drop_last(true);
    let expected = DataLoader::new(points(10)).batch_size(2).shuffle(3);
    expected.set_epoch(1);
    assert_eq!(epoch::<f32>(&loader), epoch::<f32>(&expected));
}

#[test]
fn a_state_of_another_dataset_is_refused() {
    let loader = DataLoader::new(points(10)).batch_size(4);
    let state = LoaderState { epoch: 1, batch: 2, len: 20, ..loader.state() };
    assert_eq!(
        loader.resume(state).unwrap_err().to_string(),
        "cannot resume from epoch 1, batch 2: it has `20 samples in batches of 4`, but this loader has `10 samples in \
         batches of 4`; resume with the dataset, order and batch size that it was saved with, or begin an epoch with \
         set_epoch"
    );
    assert_eq!(
        "batch 3".parse::<LoaderState>().unwrap_err().to_string(),
        "`batch 3` is not the state of a loader, or it was damaged; a state looks like `epoch 3, batch 17, 50000 samples \
         in batches of 64; order: …; data: …; check …`"
    );
}

#[test]
fn the_state_after_the_last_batch_is_the_next_epoch() {
    let loader = DataLoader::new(points(10)).batch_size(4).num_workers(1);
    loader.iter().for_each(drop);
    assert_eq!((loader.state().epoch, loader.state().batch), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn stopping_and_going_on_anywhere_with_any_workers_changes_nothing(
        n_samples in 1_usize..200,
        batch_size in 1_usize..20,
        seed in any::<u64>(),
        stop_after in 0_usize..60,
        workers in prop::collection::vec(0_usize..4, 2),
        faults in prop::collection::vec(0_usize..200, 0..4),
    ) {
        let dataset = || {
            let faults = faults.clone();
            Samples(n_samples, move |index| match faults.contains(&index) {
                true if index % 2 == 0 => Err(Error::other("bad")),
                true => { std::thread::yield_now(); Ok(-1) }
                false => Ok(index as i64),
            })
        };
        let loader = |n_workers| DataLoader::new(dataset()).batch_size(batch_size).shuffle(seed).num_workers(n_workers);
        let whole = loader(0);
        let without_names = |batches: Vec<Result<Vec<i64>, String>>| -> Vec<_> {
            batches.into_iter().map(|batch| batch.map_err(without_worker_name)).collect()
        };
        let expected = without_names([epoch::<i64>(&whole), epoch::<i64>(&whole)].concat());

        let first = loader(workers[0]);
        let mut given = Vec::new();
        'epochs: for _ in 0..2 {
            for batch in &first {
                if given.len() == stop_after {
                    break 'epochs;
                }
                given.push(batch.map(|batch| batch.to_vec::<i64>().unwrap()).map_err(|error| error.to_string()));
            }
        }
        let n_batches = first.len().unwrap();
        let state = LoaderState {
            epoch: (given.len() / n_batches) as u64,
            batch: (given.len() % n_batches) as u64,
            ..first.state()
        };

        let second = loader(workers[1]);
        second.resume(state.to_string().parse().unwrap()).unwrap();
        while given.len() < expected.len() {
            given.extend(epoch::<i64>(&second));
        }
        prop_assert_eq!(without_names(given), expected);
    }
}

#[test]
fn datasets_of_datasets_and_their_orders_are_the_same_for_any_number_of_workers_and_after_a_restart() {
    let joined = || {
        let parts: [Box<dyn Dataset<Sample = Tensor>>; 2] =
            [Box::new(points(17)), Box::new(Subset::new(points(40), 20..40).unwrap())];
        StackDataset::new((ConcatDataset::new(parts).unwrap(), points(37))).unwrap()
    };
    let lengths: Vec<usize> = (0..37).map(|i| i * 7 % 11).collect();
    for order in 0..2 {
        let loader = |n_workers| {
            let loader = DataLoader::new(joined()).batch_size(4).num_workers(n_workers);
            match order {
                0 => loader.sampler(SubsetRandomSampler::new(0..37, 3).unwrap()),
                _ => loader.sampler(BucketSampler::new(&lengths, 4, 3).unwrap().batches_per_bucket(2)),
            }
        };
        let epoch = |loader: &DataLoader<(Tensor, Tensor)>| -> Vec<Vec<f32>> {
            let values = |(left, right): (Tensor, Tensor)| [left.to_vec().unwrap(), right.to_vec().unwrap()].concat();
            loader.iter().map(|batch| values(batch.unwrap())).collect()
        };
        let (alone, pooled) = (loader(0), loader(3));
        let epochs = [epoch(&alone), epoch(&alone)];
        assert_eq!([epoch(&pooled), epoch(&pooled)], epochs);
        assert_ne!(epochs[0], epochs[1]);
        pooled.set_epoch(1);
        pooled.iter().take(3).for_each(drop);
        let resumed = loader(1);
        resumed.resume(pooled.state().to_string().parse().unwrap()).unwrap();
        assert_eq!(epoch(&resumed), epochs[1][3..]);
        let mut seen: Vec<f32> =
            epochs[1].iter().flat_map(|batch| batch[batch.len() / 2..].iter().step_by(2).copied()).collect();
        seen.sort_by(f32::total_cmp);
        assert!(seen.into_iter().eq((0..37).map(|i| i as f32)), "every sample once");
    }
}

/// Samples of 16 KiB. All but the first block in the epoch in which a test says so, until the budget refuses memory.
struct Blocking {
    is_blocking: Mutex<bool>,
    changed: Condvar,
    n_blocked: AtomicUsize,
}

impl Dataset for Blocking {
    type Sample = Tensor;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        if index > 0 && *self.is_blocking.lock().unwrap() {
            self.n_blocked.fetch_add(1, Ordering::SeqCst);
            drop(self.changed.wait_while(self.is_blocking.lock().unwrap(), |is_blocking| *is_blocking).unwrap());
        }
        Ok(Tensor::full([1 << 12], index as f32)?)
    }
}

/// Ends the blocking when the budget asks for memory, if the epoch that blocks was left.
struct Unblocks(Arc<Blocking>, AtomicUsize);

impl Trim for Unblocks {
    fn trim(&self) -> usize {
        if self.1.load(Ordering::SeqCst) > 0 {
            *self.0.is_blocking.lock().unwrap() = false;
            self.0.changed.notify_all();
        }
        0
    }
}

#[test]
fn an_epoch_waits_for_the_memory_of_one_that_was_left_early() {
    let dataset = Arc::new(Blocking { is_blocking: Mutex::new(true), changed: Condvar::new(), n_blocked: 0.into() });
    let budget = Budget::new("loader", ByteSize::kib(20)); // one batch
    let unblocks = Arc::new(Unblocks(dataset.clone(), AtomicUsize::new(0)));
    let pool: Arc<dyn Trim> = unblocks.clone();
    budget.add_pool(Arc::downgrade(&pool));
    let loader = DataLoader::new(dataset.clone()).num_workers(2).persistent_workers(true).prefetch_budget(budget);

    let mut left = loader.iter();
    left.next().unwrap().unwrap();
    while dataset.n_blocked.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(left);
    unblocks.1.store(1, Ordering::SeqCst);

    for (i, batch) in loader.iter().enumerate() {
        assert_eq!(batch.unwrap().select(1, 0).unwrap().to_vec::<f32>().unwrap(), [i as f32]);
    }
}

/// Draws from the default generator in samples and in collation.
struct Noise;

impl Dataset for Noise {
    type Sample = Tensor;

    fn len(&self) -> usize {
        64
    }

    fn get(&self, _: usize) -> Result<Tensor> {
        Ok(Tensor::randn([3])?)
    }
}

#[test]
fn the_default_generator_gives_the_same_numbers_for_any_number_of_workers() {
    let loader = |num_workers| {
        let collate =
            |noise: Vec<Tensor>| Ok(Tensor::cat(&noise.iter().collect::<Vec<_>>(), 0)?.add(&Tensor::randn([12])?)?);
        DataLoader::with_collate(Noise, collate).batch_size(4).num_workers(num_workers)
    };
    let alone = loader(0);
    let epochs = [epoch::<f32>(&alone), epoch::<f32>(&alone)];
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[0][0], epochs[0][1]);
    let position = pagelock_tensor::default_generator().position();
    for num_workers in [1, 4] {
        let loader = loader(num_workers);
        assert_eq!([epoch::<f32>(&loader), epoch::<f32>(&loader)], epochs, "{num_workers} workers");
    }
    assert_eq!(pagelock_tensor::default_generator().position(), position, "the program's own numbers go on");
}
