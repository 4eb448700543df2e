//! A loader resumes only from a state of its own. A state of another seed, order, dataset or size is refused with both
//! values. A position beyond the end and a damaged line are refused too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pagelock_data::{
    Batches, BucketSampler, ChainDataset, ConcatDataset, DataLoader, Dataset, DistributedSampler, Error, FixedSampler,
    IterableDataset, LoaderState, Place, RandomSampler, Result, Sampler, Samples, SequentialSampler, StackDataset,
    StreamLoader, Subset, SubsetRandomSampler, TensorDataset, WeightedSampler,
};
use pagelock_tensor::{DType, Device, Int, Tensor, default_generator, manual_seed};

/// The `n` numbers from `first` on.
fn numbers(first: f32, n: usize) -> TensorDataset<Tensor> {
    TensorDataset::new(Tensor::arange(first, first + n as f32, 1.0).unwrap()).unwrap()
}

fn loader() -> DataLoader<Tensor> {
    DataLoader::new(numbers(0.0, 20)).batch_size(4).shuffle(7)
}

/// A state in the middle of the first epoch, as a checkpoint keeps it.
fn saved<B: Send + 'static>(loader: &DataLoader<B>) -> String {
    loader.set_epoch(0);
    loader.iter().take(2).for_each(drop);
    loader.state().to_string()
}

/// The error with which `other` refuses a state of `one`. Checks that the refusal does not change the state of `other`.
fn refusal<A: Send + 'static, B: Send + 'static>(one: &DataLoader<A>, other: &DataLoader<B>) -> String {
    other.set_epoch(3);
    let before = other.state();
    let refused = other.resume(saved(one).parse().unwrap());
    assert_eq!(other.state(), before, "a refused state changes nothing");
    refused.unwrap_err().to_string()
}

#[track_caller]
fn assert_names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn a_state_of_another_seed_is_refused_with_both_seeds() {
    assert_names(&refusal(&loader(), &loader().shuffle(8)), &["seed 7", "seed 8"]);
}

#[test]
fn a_state_of_another_order_is_refused_with_both_orders() {
    let orders: [(&str, fn(DataLoader<Tensor>) -> DataLoader<Tensor>); 7] = [
        ("sequential", |loader| loader.sampler(SequentialSampler)),
        ("random, seed 7", |loader| loader.shuffle(7)),
        ("a list of 20 indices", |loader| loader.sampler(FixedSampler::new((0..20).rev()).unwrap())),
        ("a list of 20 indices", |loader| {
            loader.sampler(FixedSampler::new((0..20).map(|i| if i < 18 { i } else { 37 - i })).unwrap())
        }),
        ("20 draws of 20 weights, seed 7", |loader| loader.sampler(WeightedSampler::new([1.0; 20], 20, 7).unwrap())),
        ("rank 0 of 2 of: random, seed 7", |loader| {
            loader.sampler(DistributedSampler::new(RandomSampler::new(7), 0, 2).unwrap())
        }),
        ("rank 1 of 2 of: random, seed 7", |loader| {
            loader.sampler(DistributedSampler::new(RandomSampler::new(7), 1, 2).unwrap())
        }),
    ];
    for (i, (one, with_one)) in orders.iter().enumerate() {
        for (j, (other, with_other)) in orders.iter().enumerate() {
            let (first, second) = (with_one(loader()), with_other(loader()));
            if i == j {
                second.resume(saved(&first).parse().unwrap()).unwrap();
            } else {
                assert_names(&refusal(&first, &second), &[one, other]);
            }
        }
    }
}

#[test]
fn a_state_of_another_order_of_ones_own_is_refused() {
    /// Rotates the order by this many places, and does not override `identity`.
    struct Turned(usize);

    impl Sampler for Turned {
        fn fill(&self, place: Place, indices: &mut [usize]) {
            SequentialSampler.fill(place, indices);
            indices.iter_mut().for_each(|index| *index = (*index + self.0) % place.n_samples);
        }
    }

    assert_names(&refusal(&loader().sampler(Turned(1)), &loader().sampler(Turned(2))), &["Turned"]);
    loader().sampler(Turned(1)).resume(saved(&loader().sampler(Turned(1))).parse().unwrap()).unwrap();
}

#[test]
fn a_state_of_other_batches_is_refused_with_both_sizes() {
    assert_names(&refusal(&loader(), &loader().batch_size(5)), &["batches of 4", "batches of 5"]);
    assert_names(&refusal(&loader(), &loader().drop_last(true)), &["batches of 4", "full batches of 4"]);
}

#[test]
fn a_state_of_another_dataset_is_refused_with_both() {
    let other = |dataset| DataLoader::new(dataset).batch_size(4).shuffle(7);
    assert_names(&refusal(&loader(), &other(numbers(0.0, 24))), &["20 samples", "24 samples"]);
    assert_names(&refusal(&loader(), &other(numbers(1.0, 20))), &["TensorDataset"]);
    let mut elements: Vec<f32> = (0..20).map(|i| i as f32).collect();
    for i in 0..20 {
        elements[i] += 0.5;
        let one_differs = TensorDataset::new(Tensor::from_slice(&elements, 20).unwrap()).unwrap();
        elements[i] -= 0.5;
        assert_names(&refusal(&loader(), &other(one_differs)), &["TensorDataset"]);
    }
    let doubles = TensorDataset::new(Tensor::of(DType::F64).arange(0.0, 20.0, 1.0).unwrap()).unwrap();
    assert_names(&refusal(&loader(), &other(doubles)), &["TensorDataset"]);

    let part = |indices: Vec<usize>| DataLoader::new(Subset::new(numbers(0.0, 30), indices).unwrap()).batch_size(4);
    let text = refusal(&part((0..20).collect()), &part((0..19).chain([20]).collect()));
    assert_names(&text, &["20 of TensorDataset"]);
    part((5..25).collect()).resume(saved(&part((5..25).collect())).parse().unwrap()).unwrap();
}

#[test]
fn a_state_of_another_augmentation_is_refused_with_both_seeds() {
    let noisy = |seed| {
        let noisy = numbers(0.0, 20).transform(seed, |x, random| Ok(x.item::<f32>()? + random.next_f64() as f32));
        DataLoader::new(noisy).batch_size(4)
    };
    assert_names(&refusal(&noisy(1), &noisy(2)), &["seed 1", "seed 2"]);
}

#[test]
fn a_dataset_of_ones_own_says_what_it_is() {
    struct Lines(&'static str);

    impl Dataset for Lines {
        type Sample = i64;
        fn len(&self) -> usize {
            12
        }
        fn get(&self, index: usize) -> Result<i64> {
            Ok(index as i64)
        }
        fn identity(&self) -> String {
            format!("lines of {}", self.0)
        }
    }

    let lines = |file| DataLoader::new(Lines(file)).batch_size(4);
    assert_names(&refusal(&lines("a.txt"), &lines("b.txt")), &["lines of a.txt", "lines of b.txt"]);
}

#[test]
fn a_place_behind_the_end_is_refused_with_the_number_of_batches() {
    let loader = loader();
    for batch in [5, 6, 1_000, u64::MAX] {
        let error = loader.resume(LoaderState { batch, ..loader.state() }).unwrap_err();
        assert_names(&error.to_string(), &[&format!("batch {batch}"), "an epoch has 5 batches"]);
    }
    loader.resume(LoaderState { batch: 4, ..loader.state() }).unwrap();
    assert_eq!(loader.iter().count(), 1);
}

#[test]
fn the_state_after_a_worker_that_could_not_start_repeats_and_skips_nothing() {
    for n_given in [0, 2] {
        let n_starts = AtomicUsize::new(0);
        let init = move |_worker| match n_starts.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::other("no scratch folder")),
            _ => Ok(()),
        };
        let loader = loader().num_workers(1).worker_init(init);
        let all: Vec<Vec<f32>> = self::loader().iter().map(|batch| batch.unwrap().to_vec().unwrap()).collect();
        loader.resume(LoaderState { batch: n_given, ..loader.state() }).unwrap();
        let mut batches = loader.iter();
        assert!(matches!(batches.next(), Some(Err(Error::Worker { .. }))));
        assert!(batches.next().is_none());
        drop(batches);
        assert_eq!((loader.state().epoch, loader.state().batch), (0, n_given));

        loader.resume(loader.state()).unwrap();
        let rest: Vec<Vec<f32>> = loader.iter().map(|batch| batch.unwrap().to_vec().unwrap()).collect();
        assert_eq!(rest, all[n_given as usize..]);
    }
}

#[test]
fn the_state_after_a_worker_that_could_not_be_replaced_is_behind_the_batches_that_were_given() {
    for on_device in [false, true] {
        let (gate, n_starts) = (Arc::new(Mutex::new(())), AtomicUsize::new(0));
        let hangs = {
            let gate = gate.clone();
            numbers(0.0, 20).transform(0, move |x, _| {
                if x.item::<f32>()? == 8.0 {
                    drop(gate.lock());
                }
                Ok(x)
            })
        };
        let loader = DataLoader::new(hangs).batch_size(4).num_workers(1).timeout(Duration::from_millis(200));
        let loader = loader.worker_init(move |_worker| match n_starts.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Error::other("no scratch folder")),
        });
        let hanging = gate.lock().unwrap();
        let (batches, state): (Vec<_>, _) = if on_device {
            let loader = loader.to(&Device::Cpu).unwrap();
            (loader.iter().collect(), loader.state())
        } else {
            (loader.iter().collect(), loader.state())
        };
        drop(hanging);
        assert!(
            matches!(batches[..], [Ok(_), Ok(_), Err(Error::Timeout { .. }), Err(Error::Worker { .. })]),
            "{batches:?}"
        );
        assert_eq!((state.epoch, state.batch), (0, 3), "on a device: {on_device}");
    }
}

#[test]
fn the_last_epoch_that_can_be_counted_is_no_overflow() {
    let loader = loader();
    loader.resume(LoaderState { epoch: u64::MAX, ..loader.state() }).unwrap();
    assert_eq!((loader.iter().count(), loader.iter().count()), (5, 5));
    assert_eq!(loader.state().epoch, u64::MAX);
}

/// Every text that differs from `line` in one character, or is cut short.
fn damages(line: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = line.chars().collect();
    let cut = (0..letters.len()).map({
        let letters = letters.clone();
        move |at| letters[..at].iter().collect()
    });
    let changed = (0..letters.len()).flat_map(move |at| {
        let letters = letters.clone();
        "0159af, ".chars().filter_map(move |other| {
            let mut changed = letters.clone();
            (std::mem::replace(&mut changed[at], other) != other).then(|| changed.into_iter().collect())
        })
    });
    cut.chain(changed)
}

#[test]
fn a_damaged_state_is_refused_whatever_was_damaged() {
    let loader = loader();
    let line = saved(&loader);
    loader.resume(line.parse().unwrap()).unwrap();
    for damaged in damages(&line) {
        assert!(damaged.parse::<LoaderState>().is_err(), "{damaged}");
    }
}

#[test]
fn a_state_of_an_older_version_is_told_apart() {
    let error = "epoch 0, batch 3, 10 samples in batches of 2".parse::<LoaderState>().unwrap_err();
    assert_names(
        &error.to_string(),
        &["epoch 0, batch 3, 10 samples in batches of 2", "older version", "set_epoch(0)"],
    );
    let error = "epoch 4, round 1, turn 0 of 1 shards in batches of 2".parse::<LoaderState>().unwrap_err();
    assert_names(&error.to_string(), &["epoch 4, round 1", "older version", "set_epoch(4)"]);
}

/// Draws from the default generator.
struct Noise;

impl Dataset for Noise {
    type Sample = f64;

    fn len(&self) -> usize {
        12
    }

    fn get(&self, _: usize) -> Result<f64> {
        Ok(default_generator().next_f64())
    }
}

#[test]
fn an_epoch_that_goes_on_elsewhere_keeps_the_seed_with_which_it_began() {
    let values = |batches: Batches<'_, Tensor>| -> Vec<f64> {
        batches.flat_map(|batch| batch.unwrap().to_vec::<f64>().unwrap()).collect()
    };
    for n_workers in [0, 2] {
        let loader = || DataLoader::new(Noise).batch_size(2).num_workers(n_workers);
        let (first, second) = (loader(), loader());
        manual_seed(1);
        let mut epoch = first.iter();
        epoch.by_ref().take(2).for_each(drop);
        manual_seed(7); // as an evaluation does
        second.resume(first.state().to_string().parse().unwrap()).unwrap();
        assert_eq!(second.state(), first.state());

        assert_eq!(values(second.iter()), values(epoch));
        assert_eq!(values(second.iter()), values(first.iter()), "the next epoch begins with the new seed");
    }
}

#[test]
fn a_state_without_a_seed_is_resumed_with_the_present_one() {
    let older = "epoch 0, batch 2, 20 samples in batches of 4; order: random, seed 7, e2dcda9070da5625; data: TensorDataset \
                 f9edb26a7bd3d5c1; check 78d6e555717ad86f";
    let state: LoaderState = older.parse().unwrap();
    loader().resume(state.clone()).unwrap();
    assert_eq!((state.seed, state.to_string().as_str()), (None, older));
}

/// Shards of these lengths, from files of that name.
#[derive(Clone)]
struct Lines(&'static str, Vec<usize>);

impl IterableDataset for Lines {
    type Sample = i64;

    fn n_shards(&self) -> usize {
        self.1.len()
    }

    fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
        Ok(Box::new((0..self.1[shard] as i64).map(Ok)))
    }

    fn identity(&self) -> String {
        self.0.to_owned()
    }
}

fn stream(name: &'static str, lens: &[usize]) -> StreamLoader<Tensor<Int>> {
    StreamLoader::new(Lines(name, lens.into())).batch_size(2)
}

fn saved_stream(loader: &StreamLoader<Tensor<Int>>) -> String {
    loader.set_epoch(0);
    loader.iter().take(3).for_each(drop);
    loader.state().to_string()
}

#[test]
fn a_state_of_another_stream_is_refused_with_both() {
    let one = stream("a.txt", &[9, 9, 9, 9]);
    let line = saved_stream(&one);
    let others = [
        (stream("b.txt", &[9, 9, 9, 9]), ["a.txt", "b.txt"]),
        (stream("a.txt", &[9, 9, 9]), ["4 shards", "3 shards"]),
        (stream("a.txt", &[9, 9, 9, 9]).batch_size(3), ["batches of 2", "batches of 3"]),
        (stream("a.txt", &[9, 9, 9, 9]).drop_last(true), ["batches of 2", "full batches of 2"]),
        (stream("a.txt", &[9; 8]).distributed(1, 2).unwrap(), ["all", "rank 1 of 2"]),
    ];
    for (other, both) in others {
        other.set_epoch(3);
        let before = other.state();
        assert_names(&other.resume(line.parse().unwrap()).unwrap_err().to_string(), &both);
        assert_eq!(other.state(), before, "a refused state changes nothing");
    }
    stream("a.txt", &[9, 9, 9, 9]).num_workers(3).resume(line.parse().unwrap()).unwrap();

    let first = stream("a.txt", &[9; 8]).distributed(0, 2).unwrap();
    let second = stream("a.txt", &[9; 8]).distributed(1, 2).unwrap();
    let error = second.resume(saved_stream(&first).parse().unwrap()).unwrap_err();
    assert_names(&error.to_string(), &["rank 0 of 2", "rank 1 of 2"]);
}

#[test]
fn a_place_behind_the_end_of_a_stream_is_an_error_and_not_silence() {
    for n_workers in [0, 1, 3] {
        let loader = stream("a.txt", &[5, 1, 4]).num_workers(n_workers);
        for (round, turn) in [(2, 2), (3, 0), (3, 1), (4, 0), (1_000, 2), (1 << 30, 0), (1 << 30, 2)] {
            loader.resume(LoaderState { batch: round, turn: Some(turn), ..loader.state() }).unwrap();
            let mut batches = loader.iter();
            let error = batches.next().expect("an error").unwrap_err().to_string();
            assert_names(&error, &[&format!("round {round}, turn {turn}"), "past the end"]);
            assert!(batches.next().is_none());
        }
        // No loader stops at these states: the batch before would be one of shard 1, which has no samples left.
        let states =
            [(1, 2), (2, 2)].map(|(round, turn)| LoaderState { batch: round, turn: Some(turn), ..loader.state() });
        for state in states {
            let sample = 2 * state.batch;
            loader.resume(state).unwrap();
            let error = loader.iter().next().expect("an error").unwrap_err().to_string();
            assert_names(&error, &["shard 1, which has 1 samples", &format!("none at {sample}")]);
        }
        let single = stream("a.txt", &[5]).num_workers(n_workers);
        single.resume(LoaderState { batch: 4, ..single.state() }).unwrap();
        let error = single.iter().next().expect("an error").unwrap_err().to_string();
        assert_names(&error, &["shard 0, which has 5 samples", "none at 6"]);
        // Directly behind the last batch, nothing is left, and that is no error.
        loader.resume(LoaderState { batch: 2, turn: Some(1), ..loader.state() }).unwrap();
        assert_eq!(loader.iter().count(), 0);
    }
}

#[test]
fn a_loader_over_a_chain_goes_on_where_another_was() {
    let chain = |n_workers: usize| {
        let lines = [Lines("a.txt", vec![5, 3]), Lines("b.txt", vec![4])];
        StreamLoader::new(ChainDataset::new(lines)).batch_size(2).num_workers(n_workers)
    };
    let batches = |loader: &StreamLoader<Tensor<Int>>, n: usize| -> Vec<Vec<i64>> {
        loader.iter().take(n).map(|batch| batch.unwrap().to_vec().unwrap()).collect()
    };
    let all = batches(&chain(0), usize::MAX);
    assert_eq!(all.concat().len(), 12);
    for (taken, n_workers) in (0..=all.len()).flat_map(|taken| [(taken, 0), (taken, 3)]) {
        let first = chain(n_workers);
        assert_eq!(batches(&first, taken), all[..taken]);
        let second = chain(n_workers);
        second.resume(first.state().to_string().parse().unwrap()).unwrap();
        assert_eq!(batches(&second, usize::MAX), all[taken..], "after {taken} batches, {n_workers} workers");
    }
}

#[test]
fn a_turn_that_no_shard_has_is_refused() {
    let loader = stream("a.txt", &[5, 1, 4]);
    let error = loader.resume(LoaderState { turn: Some(3), ..loader.state() }).unwrap_err();
    assert_names(&error.to_string(), &["turn 3", "3 shards"]);
}

#[test]
fn a_damaged_state_of_a_stream_is_refused_whatever_was_damaged() {
    let loader = stream("a.txt", &[5, 1, 4]);
    let line = saved_stream(&loader);
    loader.resume(line.parse().unwrap()).unwrap();
    for damaged in damages(&line) {
        assert!(damaged.parse::<LoaderState>().is_err(), "{damaged}");
    }
}

#[test]
fn a_dataset_of_datasets_and_an_order_by_length_have_names_of_their_own() {
    let both = |second: f32| ConcatDataset::new([numbers(0.0, 10), numbers(second, 10)]).unwrap();
    let text = refusal(&DataLoader::new(both(10.0)).batch_size(4), &DataLoader::new(both(11.0)).batch_size(4));
    assert_names(&text, &["its dataset is `ConcatDataset of 2, "]);
    let pair = |second: f32| StackDataset::new((numbers(0.0, 20), numbers(second, 20))).unwrap();
    let text = refusal(&DataLoader::new(pair(0.0)).batch_size(4), &DataLoader::new(pair(1.0)).batch_size(4));
    assert_names(&text, &["its dataset is `StackDataset of 2, "]);
    let bucketed = |seed| loader().sampler(BucketSampler::new(&[1; 20], 4, seed).unwrap());
    assert_names(&refusal(&bucketed(7), &bucketed(8)), &["batches of 4, seed 7", "batches of 4, seed 8"]);
    let some = |seed| loader().sampler(SubsetRandomSampler::new(0..12, seed).unwrap());
    assert_names(&refusal(&some(7), &some(8)), &["random among 12 indices, seed 7", "seed 8"]);
}

/// Two shards, of which the second panics once.
struct BreaksOnce(Arc<AtomicUsize>);

impl IterableDataset for BreaksOnce {
    type Sample = i64;

    fn n_shards(&self) -> usize {
        2
    }

    fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
        let n_panics = self.0.clone();
        Ok(Box::new((0..4).map(move |i| {
            assert!(shard != 1 || i != 1 || n_panics.fetch_add(1, Ordering::SeqCst) > 0, "a hiccup");
            Ok(10 * shard as i64 + i)
        })))
    }
}

#[test]
fn a_shard_that_panicked_is_over_until_the_loader_is_resumed() {
    let values = |batches: Batches<'_, Tensor<Int>>| -> Vec<Option<i64>> {
        batches.map(|batch| Some(batch.ok()?.item::<i64>().unwrap())).collect()
    };
    let first = StreamLoader::new(BreaksOnce(Arc::default()));
    let mut epoch = first.iter();
    assert_eq!(epoch.by_ref().take(4).filter(|batch| batch.is_err()).count(), 1);
    let resumed = StreamLoader::new(BreaksOnce(Arc::new(AtomicUsize::new(1))));
    resumed.resume(first.state()).unwrap();

    assert_eq!(values(epoch), [Some(2), Some(3)]);
    assert_eq!(values(resumed.iter()), [Some(2), Some(12), Some(3), Some(13)]);
}

/// Names itself by the state of the loader that reads it.
struct Circular(Mutex<Weak<DataLoader<Tensor>>>);

impl Dataset for Circular {
    type Sample = Tensor;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, _index: usize) -> Result<Tensor> {
        Ok(Tensor::zeros(())?)
    }

    fn identity(&self) -> String {
        let loader = self.0.lock().unwrap().upgrade().expect("the loader was dropped");
        format!("inside `{}`", loader.state().dataset)
    }
}

#[test]
fn a_dataset_may_use_the_state_of_its_loader_in_its_name() {
    let loader = Arc::new_cyclic(|loader| DataLoader::new(Circular(Mutex::new(loader.clone()))));
    for _ in 0..2 {
        assert_eq!(loader.state().dataset, "inside ``");
    }
    let lost = DataLoader::new(Circular(Mutex::default()));
    for _ in 0..2 {
        assert!(catch_unwind(AssertUnwindSafe(|| lost.state())).is_err(), "the dataset panics each time");
    }
}

#[test]
fn a_state_far_past_what_can_be_read_is_refused_without_reading() {
    struct Endless(bool);

    impl IterableDataset for Endless {
        type Sample = i64;

        fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            Ok(Box::new((0..i64::MAX).map(Ok)))
        }

        fn n_shards(&self) -> usize {
            if self.0 { 2 } else { 1 }
        }
    }

    for has_two_shards in [false, true] {
        let loader = StreamLoader::with_collate(Endless(has_two_shards), Ok).batch_size(4);
        let state = LoaderState { batch: u64::MAX, ..loader.state() };
        loader.resume(state).unwrap();
        let error = loader.iter().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("the first sample is 18446744073709551615, but must be at most 4294967296"), "{error}");
    }
}
