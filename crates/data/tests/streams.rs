//! Datasets whose samples can only be read in order: the same batches for any number of workers, errors in the place of
//! their batches, a state to resume from, and nothing left behind.

mod quiet;
mod resident;
mod worker_names;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{Error, IterableDataset, LoaderState, Result, Samples, StreamLoader, WhenFull};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{Int, Tensor};
use proptest::prelude::*;

use quiet::without_backtraces;
use resident::threads;
use worker_names::without_worker_name;

/// Shards of some lengths: sample `i` of shard `s` in epoch `e` is `10,000 e + 100 s + i`, and some are damaged.
#[derive(Clone)]
struct Shards {
    lens: Vec<usize>,
    damaged: Vec<(usize, usize)>,
    panics: bool,
}

impl Shards {
    fn of(lens: impl Into<Vec<usize>>) -> Self {
        Self { lens: lens.into(), damaged: Vec::new(), panics: false }
    }
}

impl IterableDataset for Shards {
    type Sample = i64;

    fn n_shards(&self) -> usize {
        self.lens.len()
    }

    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<i64>> {
        let (damaged, panics) = (self.damaged.clone(), self.panics);
        Ok(Box::new((0..self.lens[shard]).map(move |i| match damaged.contains(&(shard, i)) {
            true if panics => panic!("line {i} is impossible"),
            true => Err(Error::other(format!("line {i} is damaged"))),
            false => Ok(10_000 * epoch as i64 + 100 * shard as i64 + i as i64),
        })))
    }
}

/// What the loader gives in one epoch: values, or the text of an error.
fn epoch(loader: &StreamLoader<Tensor<Int>>) -> Vec<Result<Vec<i64>, String>> {
    loader.iter().map(|batch| batch.map(|batch| batch.to_vec().unwrap()).map_err(|error| error.to_string())).collect()
}

#[test]
fn shards_take_turns_and_those_that_are_over_are_left_out() {
    for n_workers in [0, 1, 2, 8] {
        let loader = StreamLoader::new(Shards::of([5, 1, 0, 3])).batch_size(2).num_workers(n_workers);
        let expected = [vec![0, 1], vec![100], vec![300, 301], vec![2, 3], vec![302], vec![4]];
        assert_eq!(epoch(&loader), expected.clone().map(Ok), "{n_workers} workers");
        let next = expected.map(|batch| Ok(batch.into_iter().map(|value| value + 10_000).collect()));
        assert_eq!(epoch(&loader), next, "each epoch is told its number");
    }
}

#[test]
fn workers_that_stay_and_functions_of_batches_change_no_order() {
    let loader = || StreamLoader::new(Shards::of([5, 1, 0, 3])).batch_size(2).map(|batch| Ok((batch * 2)?));
    let expected = [vec![0, 2], vec![200], vec![600, 602], vec![4, 6], vec![604], vec![8]].map(Ok);
    assert_eq!(epoch(&loader()), expected);
    for n_workers in [1, 2, 3] {
        let loader = loader().num_workers(n_workers).persistent_workers(true);
        for n_given in 0..4 {
            loader.set_epoch(0);
            loader.iter().take(n_given).for_each(drop);
            loader.set_epoch(0);
            assert_eq!(epoch(&loader), expected, "{n_workers} workers, after {n_given}");
        }
    }
}

#[test]
fn a_sample_that_fails_costs_its_batch_and_names_its_shard() {
    for n_workers in [0, 1, 3] {
        let dataset = Shards { damaged: vec![(1, 1)], ..Shards::of([4, 4]) };
        let loader = StreamLoader::new(dataset).batch_size(2).num_workers(n_workers);
        let who = ["the calling thread", "worker 0", "", "worker 1"][n_workers];
        let error = format!(
            "{who} could not get sample 1 of shard 1: line 1 is damaged; skip_bad_samples(true) leaves such samples out"
        );
        assert_eq!(epoch(&loader), [Ok(vec![0, 1]), Err(error), Ok(vec![2, 3]), Ok(vec![102, 103])]);
        assert_eq!((loader.report().errors, loader.report().batches), (1, 4));
    }
}

#[test]
fn samples_that_fail_are_left_out_by_choice_and_a_batch_of_none_is_an_error() {
    let dataset = Shards { damaged: vec![(0, 0), (0, 2), (0, 3)], ..Shards::of([5]) };
    let loader = StreamLoader::new(dataset).batch_size(2).num_workers(1).skip_bad_samples(true);
    let none = "worker 0 could get none of the 2 samples of a batch; the last of them, sample 3 of shard 0: line 3 is \
                damaged; look at skipped(), or at the dataset";
    assert_eq!(epoch(&loader), [Ok(vec![1]), Err(none.to_owned()), Ok(vec![4])]);
    assert_eq!(loader.skipped().iter().map(|skipped| skipped.index).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(loader.report().skipped, 3);
    let last = &loader.skipped()[2];
    assert_eq!((last.shard, last.worker), (Some(0), Some(0)));
    assert_eq!(last.to_string(), "worker 0 left out sample 3 of shard 0 in epoch 0: line 3 is damaged");
}

#[test]
fn a_panic_is_an_error_that_ends_its_shard_and_no_other_for_any_number_of_workers() {
    without_backtraces();
    for n_workers in [0, 1, 8] {
        let dataset = Shards { damaged: vec![(1, 1)], panics: true, ..Shards::of([4, 4]) };
        let loader = StreamLoader::new(dataset).batch_size(2).num_workers(n_workers);
        let who = if n_workers == 0 { "the calling thread" } else { ["worker 0", "worker 1"][n_workers.min(2) - 1] };
        let error =
            format!("{who} panicked at sample 1 of shard 1: line 1 is impossible; RUST_BACKTRACE=1 shows where");
        assert_eq!(epoch(&loader), [Ok(vec![0, 1]), Err(error), Ok(vec![2, 3])], "{n_workers} workers");
    }
}

#[test]
fn a_failure_and_a_panic_of_a_stream_reach_the_program_within_a_tenth_of_a_second() {
    without_backtraces();
    for panics in [false, true] {
        let dataset = Shards { damaged: vec![(0, 2)], panics, ..Shards::of([4]) };
        let loader = StreamLoader::new(dataset).batch_size(2).num_workers(1);
        let mut batches = loader.iter();
        batches.next().unwrap().unwrap();
        let start = Instant::now();
        assert!(batches.next().unwrap().is_err());
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    }
}

#[test]
fn a_collation_of_a_stream_that_fails_or_panics_is_named_by_its_first_sample_and_who_made_it() {
    without_backtraces();
    for (n_workers, who) in [(0, "the calling thread"), (1, "worker 0")] {
        for panics in [false, true] {
            let collate = move |samples: Vec<i64>| match samples[0] {
                102 if panics => panic!("impossible"),
                102 => Err(Error::other("cannot pad")),
                first => Ok(first),
            };
            let loader = StreamLoader::with_collate(Shards::of([2, 4]), collate).batch_size(2).num_workers(n_workers);
            let error = loader.iter().find_map(Result::err).unwrap();
            let why = match panics {
                true => format!("{who} panicked: impossible; RUST_BACKTRACE=1 shows where"),
                false => "cannot pad".to_owned(),
            };
            assert_eq!(
                error.to_string(),
                format!("{who} could not make a batch of 2 samples, the first of them sample 2 of shard 1: {why}")
            );
            assert!(matches!(error, Error::Batch { n_samples: 2, first: 2, shard: Some(1), .. }));
        }
    }
}

#[test]
fn a_shard_that_panics_when_it_is_opened_is_named() {
    struct Locked;

    impl IterableDataset for Locked {
        type Sample = i64;
        fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            panic!("locked")
        }
    }
    without_backtraces();
    for (n_workers, who) in [(0, "the calling thread"), (1, "worker 0")] {
        let error = format!("{who} could not open shard 0: {who} panicked: locked; RUST_BACKTRACE=1 shows where");
        assert_eq!(epoch(&StreamLoader::new(Locked).num_workers(n_workers)), [Err(error)]);
    }
}

#[test]
fn a_shard_that_cannot_be_opened_is_an_error_and_the_others_go_on() {
    struct OneIsMissing;

    impl IterableDataset for OneIsMissing {
        type Sample = i64;
        fn n_shards(&self) -> usize {
            2
        }
        fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            match shard {
                0 => Err(Error::other("0.txt is not there")),
                _ => Ok(Box::new([Ok(1), Ok(2)].into_iter())),
            }
        }
    }
    for (n_workers, who) in [(0, "the calling thread"), (2, "worker 0")] {
        let loader = StreamLoader::new(OneIsMissing).num_workers(n_workers);
        let error = format!("{who} could not open shard 0: 0.txt is not there");
        assert_eq!(epoch(&loader), [Err(error), Ok(vec![1]), Ok(vec![2])]);
    }
}

#[test]
fn a_stream_that_hangs_is_named_after_the_timeout_and_its_batch_comes_later() {
    struct Slow(Arc<Mutex<mpsc::Receiver<()>>>);

    impl IterableDataset for Slow {
        type Sample = i64;
        fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            let gate = self.0.clone();
            Ok(Box::new((0..2).map(move |i| {
                let _ = gate.lock().unwrap().recv(); // an error once the sender is dropped
                Ok(i)
            })))
        }
    }
    let (open, gate) = mpsc::channel();
    let loader = StreamLoader::new(Slow(Arc::new(Mutex::new(gate)))).num_workers(1).timeout(Duration::from_millis(50));
    let mut batches = loader.iter();
    let late = batches.next().unwrap().unwrap_err();
    let Error::Timeout { waited, shard: Some(0), sample: Some(0), .. } = late else { panic!("{late}") };
    assert!(waited < Duration::from_millis(150), "{waited:?} is more than a tenth of a second late");
    let expected = "worker 0 is making it at sample 0 of shard 0; raise the timeout, or look at that sample";
    assert_eq!(late.to_string(), format!("batch 0 was not ready after {waited:.1?}: {expected}"));
    drop(open);
    let given: Vec<_> = batches.filter_map(Result::ok).map(|batch| batch.to_vec::<i64>().unwrap()[0]).collect();
    assert_eq!(given, [0, 1]);
}

#[test]
fn a_worker_that_still_hangs_in_an_epoch_that_was_left_is_replaced() {
    /// The second sample of the first epoch waits for the gate.
    struct Hangs(Arc<Mutex<mpsc::Receiver<()>>>, mpsc::Sender<()>);

    impl IterableDataset for Hangs {
        type Sample = i64;
        fn shard(&self, _shard: usize, epoch: u64) -> Result<Samples<i64>> {
            let (gate, arrived) = (self.0.clone(), self.1.clone());
            Ok(Box::new((0..3).map(move |i| {
                if (epoch, i) == (0, 1) {
                    arrived.send(()).unwrap();
                    let _ = gate.lock().unwrap().recv(); // an error once the sender is dropped
                }
                Ok(i)
            })))
        }
    }
    let ((open, gate), (arrived, has_arrived)) = (mpsc::channel(), mpsc::channel());
    let loader = StreamLoader::new(Hangs(Arc::new(Mutex::new(gate)), arrived)).num_workers(1);
    let loader = loader.persistent_workers(true).timeout(Duration::from_millis(100));
    let mut left = loader.iter();
    left.next().unwrap().unwrap();
    has_arrived.recv().unwrap();
    drop(left);

    let mut batches = loader.iter();
    let late = batches.next().unwrap().unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    let given: Vec<_> = batches.map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).take(4).collect();
    assert_eq!(given, [[0], [1], [2]]);
    drop(open);
}

#[test]
fn a_shard_is_not_read_again_after_its_end() {
    /// Three samples, the second damaged, and more after the end. Counts the calls after the end.
    struct Restarts(Arc<AtomicUsize>);

    impl IterableDataset for Restarts {
        type Sample = i64;
        fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            let (mut n_calls, n_again) = (0, self.0.clone());
            Ok(Box::new(std::iter::from_fn(move || {
                n_calls += 1;
                n_again.fetch_add(usize::from(n_calls > 4), Ordering::SeqCst);
                match n_calls {
                    2 => Some(Err(Error::other("line 2 is damaged"))),
                    4 | 9.. => None,
                    sample => Some(Ok(sample)),
                }
            })))
        }
    }
    let n_again = Arc::new(AtomicUsize::new(0));
    for (n_workers, batch_size, n_batches) in [(0, 1, 3), (1, 1, 3), (0, 2, 2), (1, 2, 2), (0, 4, 1), (1, 4, 1)] {
        let loader = StreamLoader::new(Restarts(n_again.clone())).batch_size(batch_size).num_workers(n_workers);
        assert_eq!(epoch(&loader).len(), n_batches, "{n_workers} workers, batches of {batch_size}");
        assert_eq!(n_again.load(Ordering::SeqCst), 0, "{n_workers} workers, batches of {batch_size}");
    }
}

#[test]
fn a_worker_that_takes_too_long_to_start_is_told_apart_from_a_sample_that_hangs() {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let loader = StreamLoader::new(Shards::of([1])).num_workers(1).timeout(Duration::from_millis(50));
    let loader = loader.worker_init(move |_| {
        let _ = gate.lock().unwrap().recv();
        Ok(())
    });
    let mut batches = loader.iter();
    let late = batches.next().unwrap().unwrap_err();
    let Error::Timeout { waited, .. } = late else { panic!("{late}") };
    let expected = "worker 0 has not begun it; raise the timeout, or look at worker_init, the sampler and the budget";
    assert_eq!(late.to_string(), format!("batch 0 was not ready after {waited:.1?}: {expected}"));
    drop(open);
    assert_eq!(batches.filter(Result::is_ok).count(), 1);
}

#[test]
fn what_cannot_give_a_batch_is_refused() {
    let refusal = |loader: StreamLoader<Tensor<Int>>| {
        let mut batches = loader.iter();
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(batches.next().is_none());
        error
    };
    let empty = "the dataset is empty, so there is no batch to load; check the path, filter or split that it came from";
    for n_workers in [0, 2] {
        assert_eq!(refusal(StreamLoader::new(Shards::of([])).num_workers(n_workers)), empty);
        assert_eq!(refusal(StreamLoader::new(Shards::of([0, 0])).num_workers(n_workers)), empty);
    }
    assert_eq!(
        refusal(StreamLoader::new(Shards::of([1])).batch_size(0)),
        "the batch size is 0; set StreamLoader::batch_size to at least 1"
    );
    assert_eq!(
        StreamLoader::new(Shards::of([1])).distributed(2, 2).err().unwrap().to_string(),
        "there is no rank 2 among 2 processes; ranks count from 0"
    );
}

#[test]
fn a_state_of_other_shards_is_refused() {
    let loader = StreamLoader::new(Shards::of([1, 1])).batch_size(2);
    let state = LoaderState { epoch: 1, batch: 2, turn: Some(0), len: 3, ..loader.state() };
    assert_eq!(
        loader.resume(state).unwrap_err().to_string(),
        "cannot resume from epoch 1, round 2, turn 0: it has `3 shards in batches of 2`, but this loader has `2 shards \
         in batches of 2`; resume with the dataset, shards and batch size that it was saved with, or begin an epoch with \
         set_epoch"
    );
    assert_eq!(
        "round 3".parse::<LoaderState>().unwrap_err().to_string(),
        "`round 3` is not the state of a loader, or it was damaged; a state looks like `epoch 3, round 17, turn 2 of 8 \
         shards in batches of 64; shards: …; data: …; check …`"
    );
}

#[test]
fn a_dataset_that_can_jump_is_not_read_again() {
    struct Jumps(Arc<AtomicUsize>);

    impl IterableDataset for Jumps {
        type Sample = i64;
        fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<i64>> {
            self.shard_from(shard, epoch, 0)
        }
        fn shard_from(&self, _shard: usize, _epoch: u64, start: u64) -> Result<Samples<i64>> {
            let n_read = self.0.clone();
            Ok(Box::new((start as i64..1_000).map(move |i| {
                n_read.fetch_add(1, Ordering::SeqCst);
                Ok(i)
            })))
        }
    }
    let n_read = Arc::new(AtomicUsize::new(0));
    let loader = StreamLoader::new(Jumps(n_read.clone())).batch_size(10);
    loader.resume(LoaderState { epoch: 4, batch: 99, ..loader.state() }).unwrap();
    assert_eq!(epoch(&loader), [Ok((990..1_000).collect())]);
    assert_eq!(n_read.load(Ordering::SeqCst), 10);
}

#[test]
fn streams_are_collated_in_page_locked_memory_within_a_budget() {
    let loader =
        |n_workers| StreamLoader::new(Shards::of([40, 30])).batch_size(8).num_workers(n_workers).pin_memory(true);
    for n_workers in [0, 2] {
        assert!(loader(n_workers).iter().all(|batch| batch.is_ok_and(|batch| batch.is_pinned())));
        let budget = Budget::new("stream", ByteSize(16));
        let short = loader(n_workers).pin_budget(budget.clone());
        assert!(short.iter().all(|batch| batch.is_ok_and(|batch| !batch.is_pinned())));
        assert_eq!(short.report().pageable, 9);
        let refused = loader(n_workers).pin_budget(budget.clone()).when_full(WhenFull::Error);
        let error = refused.iter().next().unwrap().unwrap_err().to_string();
        let who = if n_workers == 0 { "the calling thread" } else { "worker 0" };
        assert_eq!(
            error,
            format!(
                "{who} could not make a batch of 8 samples, the first of them sample 0 of shard 0: from_slice: no memory for [8] \
                 of int64: cannot take 4 KiB: budget `stream` has 16 B left of 16 B; raise the limit or drop buffers first"
            )
        );
        assert!(refused.iter().all(|batch| batch.is_err()));
        assert_eq!(budget.used(), ByteSize(0));
    }
}

#[test]
fn samples_that_panic_again_when_they_are_dropped_cost_their_shard_and_no_worker() {
    /// In shard 0, the second sample panics, and dropping the iterator panics again.
    struct Deadly(i64, std::ops::Range<i64>);

    impl Iterator for Deadly {
        type Item = Result<i64>;
        fn next(&mut self) -> Option<Result<i64>> {
            let i = self.1.next()?;
            assert!(self.0 > 0 || i == 0, "line {i} is impossible");
            Some(Ok(10 * self.0 + i))
        }
    }

    impl Drop for Deadly {
        fn drop(&mut self) {
            assert!(self.0 > 0, "twice");
        }
    }

    struct Three;

    impl IterableDataset for Three {
        type Sample = i64;
        fn n_shards(&self) -> usize {
            3
        }
        fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
            Ok(Box::new(Deadly(shard as i64, 0..2)))
        }
    }
    let error = "worker 0 panicked at sample 1 of shard 0: line 1 is impossible; RUST_BACKTRACE=1 shows where";
    let expected = [Ok(vec![0]), Ok(vec![10]), Ok(vec![20]), Err(error.to_owned()), Ok(vec![11]), Ok(vec![21])];
    without_backtraces();
    let loader = || StreamLoader::new(Three).num_workers(2);
    // The fastest of three tries, since the machine may be busy during the others.
    let took = (0..3).map(|_| {
        let start = Instant::now();
        assert_eq!(epoch(&loader()), expected);
        start.elapsed()
    });
    let took = took.min().unwrap();
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(epoch(&loader().prefetch_budget(Budget::new("loader", ByteSize::mib(1)))), expected);
}

#[test]
fn each_worker_is_prepared_before_its_first_batch() {
    let prepared = Arc::new(Mutex::new(Vec::new()));
    let loader = StreamLoader::new(Shards::of([2, 2, 2])).num_workers(8).worker_init({
        let prepared = prepared.clone();
        move |worker| {
            prepared.lock().unwrap().push(worker);
            Ok(())
        }
    });
    assert!(epoch(&loader).iter().all(Result::is_ok));
    let mut prepared = prepared.lock().unwrap().clone();
    prepared.sort_unstable();
    assert_eq!(prepared, [0, 1, 2], "as many as there are shards");
}

#[test]
fn a_worker_that_cannot_start_is_one_error_and_the_end_of_the_epoch() {
    let loader = StreamLoader::new(Shards::of([3, 3])).num_workers(2).worker_init(|worker| match worker {
        1 => Err(Error::other("no license")),
        _ => Ok(()),
    });
    assert_eq!(epoch(&loader), [Err("worker 1 could not start: no license".to_owned())]);
    assert_eq!((loader.state().epoch, loader.state().batch), (0, 0), "no batch was given");

    let loader = StreamLoader::new(Shards::of([3])).num_workers(1).worker_init(|_| panic!("no license"));
    let error = "worker 0 could not start: worker 0 panicked: no license; RUST_BACKTRACE=1 shows where";
    assert_eq!(epoch(&loader), [Err(error.to_owned())]);
}

/// Samples of 256 bytes: a batch of four takes a KiB.
struct Kibibytes(Vec<usize>);

impl IterableDataset for Kibibytes {
    type Sample = Tensor;
    fn n_shards(&self) -> usize {
        self.0.len()
    }
    fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<Tensor>> {
        Ok(Box::new((0..self.0[shard]).map(move |i| Ok(Tensor::full([64], (100 * shard + i) as f32)?))))
    }
}

#[test]
fn workers_keep_to_the_budget_of_what_is_ahead_and_nothing_else_changes() {
    let loader = || StreamLoader::new(Kibibytes(vec![40, 3, 0, 25, 17])).batch_size(4);
    let firsts = |loader: &StreamLoader<Tensor>| -> Vec<f32> {
        loader.iter().map(|batch| batch.unwrap().to_vec().unwrap()[0]).collect()
    };
    let expected = firsts(&loader());
    for n_workers in [1, 2, 3, 8] {
        let budget = Budget::new("loader", ByteSize::kib(9));
        let loader = loader().num_workers(n_workers).prefetch_factor(100).prefetch_budget(budget.clone());
        assert_eq!(firsts(&loader), expected, "{n_workers} workers");
        assert!(budget.peak() >= ByteSize::kib(1) && budget.peak() <= ByteSize::kib(9), "{}", budget.peak());
        for n_given in 0..10 {
            loader.iter().take(n_given).for_each(drop);
        }
        assert_eq!(budget.used(), ByteSize(0));
    }
}

#[test]
fn a_budget_too_small_for_a_batch_is_an_error_with_the_numbers_in_its_place() {
    let budget = Budget::new("loader", ByteSize(500)).with_advice("give the loader more");
    let loader = StreamLoader::new(Kibibytes(vec![9, 5])).batch_size(4).num_workers(2).prefetch_budget(budget.clone());
    let batches: Vec<_> = loader.iter().collect();
    assert!(batches[0].is_ok(), "nobody knows yet how much a batch takes");
    assert_eq!(batches.len(), 5, "what was refused was read over");
    let refused = |worker, samples, shard| {
        format!(
            "worker {worker} could not make a batch of {samples} of shard {shard}: cannot take 1 KiB: budget `loader` has 500 B \
             left of 500 B; give the loader more"
        )
    };
    let texts: Vec<_> = batches[1..].iter().map(|batch| batch.as_ref().unwrap_err().to_string()).collect();
    let expected = [
        refused(1, "4 samples, the first of them sample 0", 1),
        refused(0, "4 samples, the first of them sample 4", 0),
        refused(1, "sample 4", 1),
        refused(0, "sample 8", 0),
    ];
    assert_eq!(texts, expected);
    assert_eq!((loader.report().errors, budget.used()), (4, ByteSize(0)));
}

#[test]
fn loaders_of_streams_left_in_mid_epoch_leave_nothing_behind() {
    let dataset = Arc::new(Shards::of([50, 50, 50]));
    let before = threads();
    for round in 0..1_000 {
        let loader = StreamLoader::new(dataset.clone()).batch_size(5).num_workers(round % 4);
        loader.iter().take(round % 7).for_each(drop);
    }
    assert_eq!(Arc::strong_count(&dataset), 1, "a worker holds the dataset");
    let start = Instant::now();
    while threads() > before + 4 && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now(); // a thread that was joined may stay in the list for a moment
    }
    assert!(threads() <= before + 4, "{before} threads before, {} after", threads());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_number_of_workers_and_any_interruption_gives_the_same_batches(
        lens in prop::collection::vec(0_usize..30, 1..6),
        damaged in prop::collection::vec((0_usize..6, 0_usize..30), 0..4),
        batch_size in 1_usize..7,
        drop_last in any::<bool>(),
        skip in any::<bool>(),
        workers in prop::collection::vec(0_usize..5, 2),
        prefetch in 0_usize..4,
        budget in prop::option::of(200_u64..2_000),
        stop_after in 0_usize..60,
    ) {
        let dataset = Shards { damaged, ..Shards::of(lens) };
        let loader = |n_workers| {
            let loader = StreamLoader::new(dataset.clone()).batch_size(batch_size).drop_last(drop_last);
            let loader = loader.num_workers(n_workers).prefetch_factor(prefetch).skip_bad_samples(skip);
            match budget {
                Some(limit) => loader.prefetch_budget(Budget::new("loader", ByteSize(limit))),
                None => loader,
            }
        };
        // Which thread could not get a sample depends on the number of workers.
        let epoch = |loader: &_| -> Vec<_> {
            epoch(loader).into_iter().map(|batch| batch.map_err(without_worker_name)).collect()
        };
        let whole = loader(0);
        let expected = [epoch(&whole), epoch(&whole)];

        let first = loader(workers[0]);
        let mut given: Vec<_> = Vec::new();
        for batch in first.iter().take(stop_after) {
            let values = batch.map(|batch| batch.to_vec::<i64>().unwrap());
            given.push(values.map_err(|error| without_worker_name(error.to_string())));
        }
        let second = loader(workers[1]);
        second.resume(first.state().to_string().parse().unwrap()).unwrap();
        given.extend(epoch(&second));
        if given.len() > expected[0].len() {
            prop_assert_eq!(&given, &expected.concat(), "the end of the epoch was seen before");
        } else {
            prop_assert_eq!(&given, &expected[0]);
            prop_assert_eq!(&epoch(&second), &expected[1]);
        }
    }
}
