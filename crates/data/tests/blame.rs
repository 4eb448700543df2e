//! Every fault of a loader has an exact text, which names the sample and the worker, and arrives within a tenth of a
//! second. `streams.rs` tests the faults of streams, `faults.rs` that the rest of an epoch arrives too.

mod quiet;

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, Error, FixedSampler, Result, StoredRows, TensorDataset, WhenFull};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{DType, Float, Int, Tensor};

use quiet::without_backtraces;

/// An error must arrive within this time.
const SOON: Duration = Duration::from_millis(100);

/// The time at which something went wrong.
#[derive(Clone, Default)]
struct Moment(Arc<Mutex<Option<Instant>>>);

impl Moment {
    fn is_now(&self) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }

    /// How long the program waited: since that time or since it asked, whichever is later.
    fn waited(&self, asked: Instant) -> Duration {
        self.0.lock().unwrap().map_or(asked, |moment| moment.max(asked)).elapsed()
    }
}

/// Samples `0..n`. Sample 5 notes the time, and is what the function returns.
struct FiveIs<F>(usize, Moment, F);

impl<F: Fn() -> Result<i64> + Send + Sync + 'static> Dataset for FiveIs<F> {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        if index != 5 {
            return Ok(index as i64);
        }
        self.1.is_now();
        (self.2)()
    }
}

fn damaged() -> Result<i64> {
    Err(Error::other("row 5 is damaged"))
}

/// The only error of an epoch. It must arrive soon in at least one of three tries, since the machine may be busy.
fn fault<B: Send + 'static>(loader: impl Fn(Moment) -> DataLoader<B>) -> Error {
    without_backtraces();
    let mut tries: Vec<_> = (0..3).map(|_| one_fault(&loader)).collect();
    tries.sort_by_key(|(waited, _)| *waited);
    let (waited, error) = tries.swap_remove(0);
    assert!(waited < SOON, "{waited:?} until: {error}");
    error
}

fn one_fault<B: Send + 'static>(loader: impl Fn(Moment) -> DataLoader<B>) -> (Duration, Error) {
    let moment = Moment::default();
    let loader = loader(moment.clone());
    let mut fault = None;
    let mut batches = loader.iter();
    loop {
        let asked = Instant::now();
        match batches.next() {
            Some(Ok(_)) => {}
            Some(Err(error)) => assert!(fault.replace((moment.waited(asked), error)).is_none(), "a second error"),
            None => return fault.expect("an error"),
        }
    }
}

/// The numbers of workers that are tried, each with the name and the worker number of the thread that makes batches.
const MAKERS: [(usize, &str, Option<usize>); 2] = [(0, "the calling thread", None), (1, "worker 0", Some(0))];

#[test]
fn a_sample_that_fails_is_named_with_who_got_it() {
    for (n_workers, who, number) in MAKERS {
        let error = fault(|moment| DataLoader::new(FiveIs(8, moment, damaged)).batch_size(4).num_workers(n_workers));
        assert_eq!(
            error.to_string(),
            format!("{who} could not get sample 5: row 5 is damaged; skip_bad_samples(true) leaves such samples out")
        );
        assert!(matches!(error, Error::Sample { index: 5, shard: None, worker, .. } if worker == number));
    }
}

#[test]
fn a_transform_that_fails_is_one_of_its_sample() {
    for (n_workers, who, _) in MAKERS {
        let error = fault(|moment| {
            let dataset = FiveIs(8, moment.clone(), || Ok(-1)).transform(0, |x: i64, _| match x {
                -1 => Err(Error::other("cannot rotate")),
                x => Ok(x),
            });
            DataLoader::new(dataset).batch_size(4).num_workers(n_workers)
        });
        assert_eq!(
            error.to_string(),
            format!("{who} could not get sample 5: cannot rotate; skip_bad_samples(true) leaves such samples out")
        );
    }
}

#[test]
fn a_sample_that_panics_is_named_with_who_got_it() {
    for (n_workers, who, number) in MAKERS {
        let dataset = |moment| FiveIs(8, moment, || panic!("row 5 is impossible"));
        let error = fault(|moment| DataLoader::new(dataset(moment)).batch_size(4).num_workers(n_workers));
        assert_eq!(
            error.to_string(),
            format!("{who} panicked at sample 5: row 5 is impossible; RUST_BACKTRACE=1 shows where")
        );
        assert!(matches!(error, Error::Panicked { worker, sample: Some(5), shard: None, .. } if worker == number));
    }
}

#[test]
fn a_shortcut_that_fails_is_taken_sample_by_sample_to_name_the_one() {
    struct Gathers(FiveIs<fn() -> Result<i64>>);

    impl Dataset for Gathers {
        type Sample = i64;
        fn len(&self) -> usize {
            self.0.len()
        }
        fn get(&self, index: usize) -> Result<i64> {
            self.0.get(index)
        }
        fn gather(&self, indices: &[usize]) -> Result<Option<Tensor<Int>>> {
            match indices.contains(&7) {
                true => Err(Error::other("the index is damaged")),
                false => self.0.get(indices[1]).map(|_| None),
            }
        }
    }
    for (n_workers, who, _) in MAKERS {
        let gathers = |moment| Gathers(FiveIs(6, moment, damaged));
        let error = fault(|moment| DataLoader::new(gathers(moment)).batch_size(2).num_workers(n_workers));
        assert_eq!(
            error.to_string(),
            format!("{who} could not get sample 5: row 5 is damaged; skip_bad_samples(true) leaves such samples out")
        );
        let gathers = |moment| Gathers(FiveIs(8, moment, || Ok(5)));
        let error = fault(|moment| DataLoader::new(gathers(moment)).batch_size(2).num_workers(n_workers));
        assert_eq!(
            error.to_string(),
            format!("{who} could not make a batch of 2 samples, the first of them sample 6: the index is damaged")
        );
    }
}

#[test]
fn a_collation_that_fails_is_named_by_its_first_sample_and_who_made_it() {
    for (n_workers, who, number) in MAKERS {
        let error = fault(|moment| {
            let collate = move |samples: Vec<i64>| match samples[0] {
                4 => {
                    moment.is_now();
                    Err(Error::other("cannot pad"))
                }
                first => Ok(first),
            };
            let dataset = FiveIs(9, Moment::default(), || Ok(5));
            DataLoader::with_collate(dataset, collate).batch_size(4).num_workers(n_workers)
        });
        assert_eq!(
            error.to_string(),
            format!("{who} could not make a batch of 4 samples, the first of them sample 4: cannot pad")
        );
        assert!(matches!(
            error,
            Error::Batch { n_samples: 4, first: 4, shard: None, worker, .. } if worker == number
        ));
    }
}

#[test]
fn a_collation_that_panics_is_named_by_its_first_sample_and_who_made_it() {
    for (n_workers, who, _) in MAKERS {
        let error = fault(|moment| {
            let collate = move |samples: Vec<i64>| match samples[..] {
                [8] => {
                    moment.is_now();
                    panic!("one is not enough")
                }
                _ => Ok(()),
            };
            let dataset = FiveIs(9, Moment::default(), || Ok(5));
            DataLoader::with_collate(dataset, collate).batch_size(4).num_workers(n_workers)
        });
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could not make a batch of sample 8: {who} panicked: one is not enough; RUST_BACKTRACE=1 shows where"
            )
        );
    }
}

#[test]
fn a_map_that_fails_is_named_by_its_first_sample_and_who_made_it() {
    for (n_workers, who, _) in MAKERS {
        let error = fault(|moment| {
            let loader = DataLoader::new(FiveIs(8, moment, || Ok(5))).batch_size(4).num_workers(n_workers);
            loader.map(|batch| Ok(batch.narrow(0, 0, if batch.to_vec::<i64>()?[0] == 4 { 5 } else { 4 })?))
        });
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could not make a batch of 4 samples, the first of them sample 4: narrow: 0..5 with step 1 does not fit \
                 dimension 0 of [4]; keep start and end in 0..=4 and the step at least 1"
            )
        );
    }
}

#[test]
fn samples_that_do_not_fit_together_are_named_with_who_stacked_them_also_behind_one_left_out() {
    struct Ragged;

    impl Dataset for Ragged {
        type Sample = Tensor;
        fn len(&self) -> usize {
            8
        }
        fn get(&self, index: usize) -> Result<Tensor> {
            match index {
                5 => Err(Error::other("damaged")),
                index => Ok(Tensor::zeros([if index == 7 { 5 } else { 2 }])?),
            }
        }
    }
    for (n_workers, who, _) in MAKERS {
        let error = fault(|_| DataLoader::new(Ragged).batch_size(4).num_workers(n_workers).skip_bad_samples(true));
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could not make a batch of 4 samples, the first of them sample 4: sample 7 is [5], but sample 4 of the \
                 same batch is [2]; bring all samples to one shape, or batch them with a function of your own \
                 (DataLoader::with_collate)"
            )
        );
    }
}

#[test]
fn an_index_that_the_dataset_does_not_have_is_named_with_who_asked() {
    for (n_workers, who, _) in MAKERS {
        let error = fault(|moment| {
            let dataset = FiveIs(9, moment, || Ok(5));
            DataLoader::new(dataset)
                .batch_size(3)
                .sampler(FixedSampler::new([1, 70, 2]).unwrap())
                .num_workers(n_workers)
        });
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could not make a batch of 3 samples, the first of them sample 1: there is no sample 70: the dataset \
                 has 9 samples, counted from 0; check the sampler or the range"
            )
        );
    }
}

/// `n` rows of 1 KiB.
fn kibibytes(n: usize) -> TensorDataset<Tensor> {
    TensorDataset::new(Tensor::zeros([n, 256]).unwrap()).unwrap()
}

#[test]
fn a_full_budget_of_what_is_ahead_is_told_with_the_numbers_and_the_samples_it_was_for() {
    let error = fault(|_| {
        let budget = Budget::new("ahead", ByteSize::kib(10)).with_advice("give the loader more");
        DataLoader::new(kibibytes(32)).batch_size(16).num_workers(1).prefetch_budget(budget)
    });
    assert_eq!(
        error.to_string(),
        "worker 0 could not make a batch of 16 samples, the first of them sample 16: cannot take 16 KiB: budget `ahead` \
         has 10 KiB left of 10 KiB; give the loader more"
    );
}

#[test]
fn a_full_budget_of_page_locked_memory_is_told_with_the_numbers_and_the_samples_it_was_for() {
    for (n_workers, who, _) in MAKERS {
        for when_full in [WhenFull::Error, WhenFull::Wait] {
            // A batch that can never fit is refused without a wait.
            let error = fault(|_| {
                let budget = Budget::new("train", ByteSize::kib(12)).with_advice("give it more");
                let loader = DataLoader::new(kibibytes(16)).batch_size(16).num_workers(n_workers).pin_memory(true);
                loader.pin_budget(budget).when_full(when_full)
            });
            assert_eq!(
                error.to_string(),
                format!(
                    "{who} could not make a batch of 16 samples, the first of them sample 0: index_select: no memory for \
                     [16, 256] of float32: cannot take 16 KiB: budget `train` has 8 KiB left of 12 KiB; largest holders: \
                     `loader` 128 B; give it more"
                )
            );
        }
    }
}

#[test]
fn a_file_that_is_cut_short_in_mid_epoch_is_told_with_the_row_and_who_read_it() {
    for (n_workers, who, _) in MAKERS {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(40 * 400).unwrap();
        let rows = StoredRows::<Float>::raw(file.path(), DType::F32, &[100]).unwrap();
        let loader = DataLoader::new(rows).batch_size(10).num_workers(n_workers).prefetch_factor(1);
        let mut batches = loader.iter();
        batches.next().unwrap().unwrap();
        file.as_file().set_len(35 * 400 + 399).unwrap(); // no worker has read that far yet

        let asked = Instant::now();
        let rest: Vec<_> = batches.map(|batch| batch.map(drop)).collect();

        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        let [Ok(()), Ok(()), Err(error)] = &rest[..] else { panic!("the last of three is an error: {rest:?}") };
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could not get sample 35: `{}` cannot be used: row 35 no longer exists: the file was cut short; \
                 get it again; skip_bad_samples(true) leaves such samples out",
                file.path().display()
            )
        );
    }
}

/// The error in the place of a batch that hangs, and how long it waited. It must arrive at most a tenth of a second
/// after the time-out.
fn hang<B: Send + 'static>(loader: impl Fn(Arc<Mutex<mpsc::Receiver<()>>>) -> DataLoader<B>) -> (Duration, String) {
    const TIMEOUT: Duration = Duration::from_millis(150);
    let mut tries: Vec<_> = (0..3)
        .map(|_| {
            let (open, gate) = mpsc::channel();
            let loader = loader(Arc::new(Mutex::new(gate))).num_workers(1).timeout(TIMEOUT);
            let start = Instant::now();
            let error = loader.iter().find_map(Result::err).unwrap();
            let took = start.elapsed();
            drop(open);
            let Error::Timeout { worker: Some(0), batch: 1, shard: None, waited, .. } = error else {
                panic!("{error}")
            };
            assert!(waited >= TIMEOUT && took >= waited, "{waited:?} of {took:?}");
            (took, waited, error.to_string())
        })
        .collect();
    tries.sort();
    let (took, waited, text) = tries.swap_remove(0);
    assert!(took < TIMEOUT + SOON, "{took:?}");
    (waited, text)
}

#[test]
fn a_sample_that_hangs_is_named_with_its_worker_after_the_timeout() {
    let (waited, text) = hang(|gate| {
        let dataset = FiveIs(8, Moment::default(), move || {
            let _ = gate.lock().unwrap().recv(); // an error once the sender is dropped
            Ok(5)
        });
        DataLoader::new(dataset).batch_size(4)
    });
    let expected = "worker 0 is making it at sample 5; raise the timeout, or look at that sample";
    assert_eq!(text, format!("batch 1 was not ready after {waited:.1?}: {expected}"));
}

#[test]
fn a_collation_that_hangs_is_named_by_its_first_sample_and_its_worker_after_the_timeout() {
    let (waited, text) = hang(|gate| {
        let collate = move |samples: Vec<i64>| {
            if samples[0] == 4 {
                let _ = gate.lock().unwrap().recv();
            }
            Ok(())
        };
        DataLoader::with_collate(FiveIs(8, Moment::default(), || Ok(5)), collate).batch_size(4)
    });
    let expected =
        "worker 0 is making it, with sample 4 as its first; raise the timeout, or look at how it is collated";
    assert_eq!(text, format!("batch 1 was not ready after {waited:.1?}: {expected}"));
}

#[test]
fn samples_that_are_left_out_are_listed_with_who_left_them_out() {
    for (n_workers, who, number) in MAKERS {
        let loader = DataLoader::new(FiveIs(8, Moment::default(), damaged)).batch_size(4).num_workers(n_workers);
        let loader = loader.skip_bad_samples(true);
        assert_eq!(loader.iter().map(|batch| batch.unwrap().len()).collect::<Vec<_>>(), [4, 3]);
        let skipped = &loader.skipped()[0];
        assert_eq!((skipped.epoch, skipped.index, skipped.shard, skipped.worker), (0, 5, None, number));
        assert_eq!(skipped.to_string(), format!("{who} left out sample 5 in epoch 0: row 5 is damaged"));
    }
}

#[test]
fn a_batch_of_which_all_samples_were_left_out_names_the_last_and_who_could_not_get_it() {
    for (n_workers, who, number) in MAKERS {
        let error = fault(|moment| {
            let loader = DataLoader::new(FiveIs(6, moment, damaged)).batch_size(5).num_workers(n_workers);
            loader.skip_bad_samples(true)
        });
        assert_eq!(
            error.to_string(),
            format!(
                "{who} could get none of the 1 samples of a batch; the last of them, sample 5: row 5 is damaged; look at \
                 skipped(), or at the dataset"
            )
        );
        assert!(matches!(error, Error::AllSkipped { index: 5, worker, .. } if worker == number));
    }
}
