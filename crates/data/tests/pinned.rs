//! Batches are made in page-locked memory, not copied there, within a budget. Some tests fill that budget.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, PinMemory, Result, Stack, TensorDataset, WhenFull};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{DType, Int, Tensor, TensorMap};
use proptest::prelude::*;

/// `n` samples of 1 KiB: sample `i` is 256 floats of the value `i`.
fn kibibytes(n: usize) -> TensorDataset<Tensor> {
    let rows: Vec<f32> = (0..n).flat_map(|i| [i as f32; 256]).collect();
    TensorDataset::new(Tensor::from_vec(rows, [n, 256]).unwrap()).unwrap()
}

/// What each batch of an epoch starts with, or the text of its error.
fn epoch(loader: &DataLoader<Tensor>) -> Vec<Result<f32, String>> {
    let first = |batch: Tensor| batch.to_vec::<f32>().unwrap()[0];
    loader.iter().map(|batch| batch.map(first).map_err(|error| error.to_string())).collect()
}

#[derive(PinMemory)]
struct Pair<T> {
    input: T,
    target: Tensor<Int>,
    #[pin(skip)]
    names: Vec<Arc<str>>,
}

#[derive(PinMemory)]
enum Either {
    Images(Tensor<Int>),
    Points { at: Tensor, weights: Option<Tensor> },
    Nothing,
}

#[test]
fn batches_are_collated_in_page_locked_memory_and_not_copied() {
    for n_workers in [0, 2] {
        // 16 KiB of batch and three pages of indices: a second copy of the batch would not fit.
        let budget = Budget::new("one batch", ByteSize::kib(28));
        let loader = DataLoader::new(kibibytes(64)).batch_size(16).num_workers(n_workers).prefetch_factor(1);
        let loader = loader.pin_memory(true).when_full(WhenFull::Wait).pin_budget(budget);
        for batch in &loader {
            assert!(batch.unwrap().is_pinned());
        }
        let report = loader.report();
        assert_eq!((report.pin, report.pageable), (Duration::ZERO, 0));
    }
}

#[test]
fn samples_that_are_stacked_become_page_locked_batches_and_stay_ordinary_themselves() {
    let seen = Arc::new(AtomicUsize::new(0));
    let dataset = kibibytes(32).transform(0, {
        let seen = seen.clone();
        move |sample: Tensor, _| {
            let sample = (sample * 2.0)?;
            seen.fetch_add(sample.is_pinned() as usize, Ordering::Relaxed);
            Ok((sample, 1_i64, "name".to_owned()))
        }
    });
    for batch in &DataLoader::new(dataset).batch_size(8).num_workers(1).pin_memory(true) {
        let (x, y, names) = batch.unwrap();
        assert!(x.is_pinned() && y.is_pinned());
        assert_eq!(names.len(), 8);
    }
    assert_eq!(seen.load(Ordering::Relaxed), 0, "samples that were page-locked");
}

#[test]
fn a_batch_of_ones_own_is_pinned_field_by_field() {
    let collate = |samples: Vec<Tensor>| {
        let names = vec!["a".into(); samples.len()];
        Ok(Pair { input: (Stack::stack(samples)?, 7), target: Tensor::full([4], 0)?, names })
    };
    for batch in &DataLoader::with_collate(kibibytes(8), collate).batch_size(4).pin_memory(true) {
        let batch = batch.unwrap();
        assert!(batch.is_pinned() && batch.input.0.is_pinned() && batch.target.is_pinned());
        assert_eq!((batch.input.1, batch.names.len()), (7, 4));
    }
}

#[test]
fn what_a_collation_did_not_make_is_copied_and_that_is_timed() {
    let known = Tensor::ones([256]).unwrap();
    let whole = known.clone();
    let collate = move |samples: Vec<Tensor>| {
        let maps = BTreeMap::from([("known", whole.clone())]);
        Ok((samples, maps, HashMap::from([(1, [Some(Box::new(whole.clone())), None])])))
    };
    let loader = DataLoader::with_collate(kibibytes(8), collate).batch_size(4).pin_memory(true);
    for batch in &loader {
        let (samples, maps, more) = batch.unwrap();
        assert!(samples.iter().all(Tensor::is_pinned) && maps["known"].is_pinned());
        assert!(more.is_pinned() && more[&1][0].as_ref().unwrap().is_pinned());
        assert_eq!(maps["known"].to_vec::<f32>().unwrap(), [1.0; 256]);
    }
    assert!(!known.is_pinned(), "the dataset's own tensor stays where it is");
    assert!(loader.report().pin > Duration::ZERO);
}

#[test]
fn a_map_of_tensors_is_pinned_tensor_by_tensor() {
    fn collate(samples: Vec<(Tensor, Tensor<Int>)>) -> Result<TensorMap> {
        let (image, label) = Stack::stack(samples)?;
        let mut map = TensorMap::new([label.len()])?;
        map.set("image", image)?;
        map.set("target.label", label)?;
        Ok(map)
    }
    let labels = Tensor::arange(0, 8, 1).unwrap();
    let dataset = TensorDataset::new((Tensor::zeros([8, 3]).unwrap(), labels)).unwrap();
    for batch in &DataLoader::with_collate(dataset, collate).batch_size(4).pin_memory(true) {
        let batch = batch.unwrap();
        assert!(batch.is_pinned() && batch.batch() == &[4]);
        assert_eq!(batch.get("image").unwrap().dims(), [4, 3]);
    }
}

#[test]
fn an_enum_is_pinned_in_every_variant() {
    let collate = |samples: Vec<Tensor>| {
        Ok(match samples[0].to_vec::<f32>()?[0] as usize {
            0 => Either::Images(Tensor::of(DType::U8).full([9], 0)?),
            1 => Either::Points { at: Stack::stack(samples)?, weights: Some(Tensor::ones([1])?) },
            2 => Either::Points { at: Stack::stack(samples)?, weights: None },
            _ => Either::Nothing,
        })
    };
    let loader = DataLoader::with_collate(kibibytes(4), collate).pin_memory(true);
    let batches: Vec<_> = loader.iter().map(|batch| batch.unwrap()).collect();
    assert!(batches.iter().all(Either::is_pinned));
    let Either::Images(images) = &batches[0] else { panic!("the first batch has images") };
    assert!(images.is_pinned());
    let Either::Points { at, weights: Some(weights) } = &batches[1] else { panic!("the second has points") };
    assert!(at.is_pinned() && weights.is_pinned());
    assert!(matches!(&batches[2], Either::Points { weights: None, .. }) && matches!(batches[3], Either::Nothing));
}

#[test]
fn what_map_makes_is_page_locked_before_pin_memory_and_not_after_it() {
    let doubled = |batch: Tensor| Ok((batch * 2.0)?);
    let before = DataLoader::new(kibibytes(8)).batch_size(4).map(doubled).pin_memory(true);
    assert!(before.iter().all(|batch| batch.unwrap().is_pinned()));
    assert_eq!(before.report().pin, Duration::ZERO, "made there, not copied");
    let after = DataLoader::new(kibibytes(8)).batch_size(4).pin_memory(true).map(doubled);
    assert!(after.iter().all(|batch| !batch.unwrap().is_pinned()));
    let not_at_all = DataLoader::new(kibibytes(8)).batch_size(4).pin_memory(false);
    assert!(not_at_all.iter().all(|batch| !batch.unwrap().is_pinned()));
}

#[test]
fn a_full_budget_makes_ordinary_batches_that_are_counted() {
    let budget = Budget::new("train", ByteSize::kib(40)); // two batches and their indices
    let loader = DataLoader::new(kibibytes(64)).batch_size(16).pin_memory(true).pin_budget(budget.clone());
    let batches: Vec<Tensor> = loader.iter().map(|batch| batch.unwrap()).collect();
    let pinned = batches.iter().filter(|batch| batch.is_pinned()).count();
    assert!((1..=2).contains(&pinned), "{pinned} of 4");
    assert_eq!(loader.report().pageable, 4 - pinned as u64);
    assert!(loader.report().to_string().contains(" batches were not page-locked, for lack of page-locked memory"));
    assert_eq!(
        loader.report().advice(),
        "page-locked memory is short: raise pin_budget, prefetch fewer batches, or drop batches earlier"
    );
    assert!(budget.peak() <= ByteSize::kib(40));
    drop((batches, loader));
    assert_eq!(budget.used(), ByteSize(0), "the pool went with the loader and its batches");
}

#[test]
fn the_strides_of_a_batch_do_not_depend_on_whether_page_locked_memory_ran_out() {
    let table = Tensor::arange(0.0, 12.0, 1.0).unwrap().reshape([3, 4]).unwrap();
    let collate = move |samples| {
        let made: Tensor = Stack::stack(samples)?;
        let views =
            |x: &Tensor| -> Result<_> { Ok([x.t()?, x.narrow(1, 1, 2)?, x.select(0, 0)?.expand([2, x.dims()[1]])?]) };
        Ok((views(&made.narrow(0, 0, 3)?.narrow(1, 0, 4)?)?, views(&made.t()?)?, views(&table)?))
    };
    let budget = Budget::new("train", ByteSize::kib(128)); // two batches
    let loader = DataLoader::with_collate(kibibytes(128), collate).batch_size(16).pin_memory(true).pin_budget(budget);
    let batches: Vec<_> = loader.iter().map(|batch| batch.unwrap()).collect();
    assert!((1..8).contains(&loader.report().pageable));
    let strides: Vec<_> =
        batches.iter().map(|(a, b, c)| [a, b, c].map(|views| views.each_ref().map(|x| x.strides().to_vec()))).collect();
    assert!(strides.iter().all(|of_batch| *of_batch == strides[0]), "{strides:?}");
}

#[test]
fn a_batch_that_can_never_fit_is_an_error_at_once_also_for_who_waits() {
    let loader = DataLoader::new(kibibytes(32)).batch_size(16).num_workers(2).timeout(Duration::from_secs(3_600));
    let loader = loader.pin_memory(true).pin_budget(Budget::new("train", ByteSize::kib(12)));
    assert!(epoch(&loader.when_full(WhenFull::Wait)).iter().all(Result::is_err));
}

#[test]
fn a_program_that_holds_all_memory_and_asks_for_more_is_told_so_in_time() {
    for n_workers in [0, 1, 3] {
        let budget = Budget::new("train", ByteSize::kib(60));
        let loader = DataLoader::new(kibibytes(160)).batch_size(16).num_workers(n_workers).pin_memory(true);
        let loader = loader.pin_budget(budget).when_full(WhenFull::Wait);
        let mut batches = loader.iter();
        let mut held = Vec::new();
        let (error, waited) = loop {
            let start = Instant::now();
            match batches.next().unwrap() {
                Ok(batch) => held.push(batch),
                Err(error) => break (error.to_string(), start.elapsed()),
            }
        };
        assert!((1..=3).contains(&held.len()), "{} held", held.len());
        let expected = "could not make a batch of 16 samples, the first of them sample 48: index_select: no memory for [16, \
                        256] of float32: cannot take 16 KiB: budget `train` has 0 B left of 60 KiB; largest holders: `loader` \
                        48.38 KiB; raise the limit or drop buffers first";
        match n_workers {
            0 => assert_eq!(error, format!("the calling thread {expected}")),
            1 => assert_eq!(error, format!("worker 0 {expected}")),
            _ => assert!(error.starts_with("worker ") && error.contains(": budget `train` has "), "{error}"),
        }
        assert!(waited > Duration::from_millis(90) && waited < Duration::from_secs(5), "{waited:?}");
        drop(held);
        assert!(batches.all(|batch| batch.is_ok()), "the rest comes when there is memory again");
    }
}

#[test]
fn a_loader_waits_for_batches_that_another_thread_has() {
    let budget = Budget::new("train", ByteSize::kib(60));
    let loader = DataLoader::new(kibibytes(640)).batch_size(16).num_workers(2).pin_memory(true);
    let loader = loader.pin_budget(budget.clone()).when_full(WhenFull::Wait).timeout(Duration::from_secs(60));
    let (give, take) = mpsc::sync_channel::<Tensor>(0);
    let n_batches = std::thread::scope(|scope| {
        let consumer = scope.spawn(move || take.iter().filter(|batch| batch.is_pinned()).count());
        loader.iter().for_each(|batch| give.send(batch.unwrap()).unwrap());
        drop(give);
        consumer.join().unwrap()
    });
    assert_eq!(n_batches, 40);
    assert!(budget.peak() <= ByteSize::kib(60));
}

/// Samples of which the one at `at` waits until the gate opens.
struct Held {
    samples: TensorDataset<Tensor>,
    at: usize,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Dataset for Held {
    type Sample = Tensor;

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        if index == self.at {
            drop(self.gate.1.wait_while(self.gate.0.lock().unwrap(), |open| !*open).unwrap());
        }
        self.samples.get(index)
    }
}

#[test]
fn finished_batches_make_room_for_the_one_that_the_program_waits_for() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let dataset = Held { samples: kibibytes(400), at: 0, gate: gate.clone() };
    let budget = Budget::new("train", ByteSize::kib(80)); // five batches; forty are wanted
    let loader = DataLoader::new(dataset).batch_size(10).num_workers(4).prefetch_factor(10).pin_memory(true);
    let loader = loader.pin_budget(budget.clone()).when_full(WhenFull::Wait);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while budget.used() < ByteSize::kib(70) && start.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now(); // the others fill the budget meanwhile
            }
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
        });
        let expected: Vec<_> = (0..40).map(|i| Ok(i as f32 * 10.0)).collect();
        assert_eq!(epoch(&loader), expected);
    });
    assert_eq!(loader.report().batches, 40);
    assert!(budget.peak() <= ByteSize::kib(80));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_tight_budget_changes_neither_order_nor_content(
        n_samples in 1_usize..120,
        batch_size in 1_usize..12,
        n_workers in 0_usize..5,
        prefetch in 1_usize..6,
        held in 0_usize..3,
        slack_kib in 0_u64..64,
        seed in any::<u64>(),
    ) {
        let plain = DataLoader::new(kibibytes(n_samples)).batch_size(batch_size).shuffle(seed);
        let expected: Vec<Vec<f32>> = plain.iter().map(|batch| batch.unwrap().to_vec().unwrap()).collect();

        // The batches that the program holds, the next one, and their indices. Pools round up by an eighth at most.
        let slot = (batch_size as u64 * 9 / 8 + 4).next_multiple_of(4);
        let budget = Budget::new("tight", ByteSize::kib((held as u64 + 2) * slot + 12 + slack_kib));
        let loader = DataLoader::new(kibibytes(n_samples)).batch_size(batch_size).shuffle(seed).num_workers(n_workers);
        let loader = loader.prefetch_factor(prefetch).pin_memory(true).pin_budget(budget.clone());
        let loader = loader.when_full(WhenFull::Wait).timeout(Duration::from_secs(30));
        let mut kept = std::collections::VecDeque::new();
        let mut given = Vec::new();
        for batch in &loader {
            let batch = batch.unwrap();
            prop_assert!(batch.is_pinned());
            given.push(batch.to_vec::<f32>().unwrap());
            kept.push_back(batch);
            if kept.len() > held {
                kept.pop_front();
            }
        }
        prop_assert_eq!(given, expected);
        drop((kept, loader));
        prop_assert_eq!(budget.used(), ByteSize(0));
    }
}
