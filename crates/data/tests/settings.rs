//! Absurd settings are errors before anything of their size is allocated.

use std::time::Duration;

use pagelock_data::{
    BatchSampler, DataLoader, Dataset, Error, IterableDataset, Result, Samples, StreamLoader, SyntheticDigits,
    TensorDataset, WeightedSampler, random_split,
};
use pagelock_tensor::{Device, Generator, Tensor};

/// Numbers that nobody can mean: more than can exist, and more than any machine has.
const ABSURD: [usize; 3] = [usize::MAX, usize::MAX / 2, 1_000_000_000_000];

fn loader() -> DataLoader<Tensor> {
    DataLoader::new(TensorDataset::new(Tensor::zeros([10]).unwrap()).unwrap()).batch_size(5)
}

struct Shards(usize);

impl IterableDataset for Shards {
    type Sample = i64;

    fn n_shards(&self) -> usize {
        self.0
    }

    fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
        Ok(Box::new((0..10).map(Ok)))
    }
}

/// The one error of an epoch that does not begin.
fn refusal<B>(mut batches: impl Iterator<Item = Result<B>>) -> Error {
    let Some(Err(error)) = batches.next() else { panic!("the epoch began") };
    assert!(batches.next().is_none(), "one error is enough");
    error
}

#[track_caller]
fn assert_refused(error: Error, setting: &str, value: usize) {
    let text = error.to_string();
    assert!(matches!(error, Error::Argument(_)), "{text}");
    assert!(text.contains(setting) && text.contains(&value.to_string()), "{text}");
}

#[test]
fn numbers_of_workers_that_no_machine_has_are_refused() {
    for n in ABSURD.into_iter().chain([100_000]) {
        assert_refused(refusal(loader().num_workers(n).iter()), "num_workers", n);
        assert_refused(loader().num_workers(n).len().unwrap_err(), "num_workers", n);
        assert_refused(refusal(StreamLoader::new(Shards(4)).num_workers(n).iter()), "num_workers", n);
        let on_device = loader().num_workers(n).to(&Device::Cpu).unwrap();
        assert_refused(refusal(on_device.iter()), "num_workers", n);
    }
}

#[test]
fn the_error_gives_the_maximum_number_of_workers() {
    assert_eq!(
        refusal(loader().num_workers(1_000_000_000_000).iter()).to_string(),
        "num_workers is 1000000000000, but must be at most 1024; one per core is usual"
    );
}

#[test]
fn batches_that_are_further_ahead_than_any_memory_are_refused() {
    for n in ABSURD {
        for n_workers in [0, 1] {
            let far = loader().num_workers(n_workers).prefetch_factor(n);
            assert_refused(refusal(far.iter()), "prefetch_factor", n);
            let far = StreamLoader::new(Shards(4)).num_workers(n_workers).prefetch_factor(n);
            assert_refused(refusal(far.iter()), "prefetch_factor", n);
        }
        let on_device = loader().to(&Device::Cpu).unwrap().ahead(n);
        assert_refused(refusal(on_device.iter()), "ahead", n);
        let on_device = StreamLoader::new(Shards(4)).to(&Device::Cpu).unwrap().ahead(n);
        assert_refused(refusal(on_device.iter()), "ahead", n);
    }
}

#[test]
fn a_batch_of_more_indices_than_fit_is_refused() {
    for n in ABSURD {
        for n_workers in [0, 2] {
            let draws = WeightedSampler::new([1.0; 10], n, 0).unwrap();
            let huge = loader().sampler(draws).batch_size(n).num_workers(n_workers);
            assert_refused(refusal(huge.iter()), "the batch size", n);
        }
        let draws = BatchSampler::new(WeightedSampler::new([1.0; 10], n, 0).unwrap(), n);
        assert_refused(draws.n_batches(10).unwrap_err(), "the batch size", n);
        let mut indices = vec![7];
        draws.fill(0, 0, 10, &mut indices);
        assert!(indices.is_empty(), "nothing of that size is made");
    }
}

#[test]
fn a_batch_size_beyond_the_dataset_is_the_whole_dataset() {
    for n in ABSURD {
        for n_workers in [0, 2] {
            assert_eq!(loader().batch_size(n).num_workers(n_workers).iter().count(), 1);
            let stream = StreamLoader::new(Shards(2)).num_workers(n_workers);
            assert_eq!(stream.batch_size(1 << 28).iter().count(), 2, "each shard is a batch");
            let stream = StreamLoader::new(Shards(2)).num_workers(n_workers); // might have no end
            assert_refused(refusal(stream.batch_size(n).iter()), "the batch size", n);
        }
    }
}

#[test]
fn more_shards_than_there_can_be_are_refused() {
    for n in ABSURD {
        for n_workers in [0, 1] {
            let loader = StreamLoader::new(Shards(n)).num_workers(n_workers);
            assert_refused(refusal(loader.iter()), "n_shards", n);
        }
        let share = StreamLoader::new(Shards(n)).distributed(n / 2, n).unwrap(); // this rank has one shard
        let batches: Result<Vec<_>> = share.iter().collect();
        assert_eq!(batches.unwrap().len(), 10, "one for each sample of the shard");
    }
}

#[test]
fn a_split_of_a_dataset_without_end_is_an_error() {
    struct Endless(usize);

    impl Dataset for Endless {
        type Sample = i64;
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, index: usize) -> Result<i64> {
            Ok(index as i64)
        }
    }

    for n in ABSURD {
        let split = random_split(Endless(n), [n], &Generator::new(0));
        assert!(split.is_err(), "{n}");
        let batches = DataLoader::new(Endless(n)).batch_size(2).shuffle(0);
        assert_eq!(batches.iter().take(2).filter(|batch| batch.is_ok()).count(), 2, "an order needs no memory");
    }
}

#[test]
fn more_digits_than_memory_are_refused_with_the_number_of_bytes() {
    for n in ABSURD {
        let error = SyntheticDigits::new(0).train_len(n).test_len(n).generate().unwrap_err().to_string();
        assert!(error.contains("cannot take ") && !error.contains("no limit"), "{error}");
    }
}

/// Runs in a process of its own, in which a thread takes more address space than there is.
#[test]
fn digits_are_the_same_where_the_system_gives_no_threads() {
    const CHILD: &str = "PAGELOCK_TEST_CHILD";
    let digits = SyntheticDigits::new(1).train_len(60).test_len(10).generate().unwrap();
    if std::env::var_os(CHILD).is_some() {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err());
        return println!("{:?}", digits.train.image_bytes());
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "digits_are_the_same_where_the_system_gives_no_threads", "--nocapture"]);
    let output = child.env(CHILD, "1").env("RUST_MIN_STACK", (1_u64 << 50).to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("{:?}", digits.train.image_bytes())), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn duration_max_as_timeout_never_times_out() {
    for n_workers in [0, 1] {
        let patient = loader().num_workers(n_workers).timeout(Duration::MAX);
        assert_eq!(patient.iter().collect::<Result<Vec<_>>>().unwrap().len(), 2);
        let patient = StreamLoader::new(Shards(2)).num_workers(n_workers).timeout(Duration::MAX);
        assert_eq!(patient.iter().collect::<Result<Vec<_>>>().unwrap().len(), 20);
    }
}
