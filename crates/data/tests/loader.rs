//! What a program sees of datasets, loaders and their errors.

use std::sync::Arc;
use std::time::Duration;

use pagelock_data::{
    DataLoader, Dataset, Digits, FixedSampler, LoaderReport, Result, Stack, Subset, TensorDataset, get_data,
    random_split,
};
use pagelock_tensor::{Generator, Int, Tensor};

/// `n` samples: `([i, i + 0.5], i)`.
fn pairs(n: usize) -> TensorDataset<(Tensor, Tensor<Int>)> {
    let x: Vec<f32> = (0..n).flat_map(|i| [i as f32, i as f32 + 0.5]).collect();
    let y: Vec<i64> = (0..n as i64).collect();
    TensorDataset::new((Tensor::from_vec(x, [n, 2]).unwrap(), Tensor::from_vec(y, n).unwrap())).unwrap()
}

/// The labels of every batch of the next epoch.
fn labels(loader: &DataLoader<(Tensor, Tensor<Int>)>) -> Vec<Vec<i64>> {
    loader.iter().map(|batch| batch.unwrap().1.to_vec().unwrap()).collect()
}

/// A dataset that knows only single samples.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = f32;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<f32> {
        Ok(index as f32)
    }
}

#[test]
fn batches_come_in_order_and_the_last_may_be_small() {
    let loader = DataLoader::new(pairs(5)).batch_size(2);
    assert_eq!(labels(&loader), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(loader.len().unwrap(), 3);
}

#[test]
fn drop_last_leaves_the_small_batch_out() {
    let loader = DataLoader::new(pairs(5)).batch_size(2).drop_last(true);
    assert_eq!(labels(&loader), [vec![0, 1], vec![2, 3]]);
    assert_eq!(loader.len().unwrap(), 2);
}

#[test]
fn rows_of_all_tensors_stay_together() {
    for batch in &DataLoader::new(pairs(20)).batch_size(6).shuffle(3) {
        let (x, y) = batch.unwrap();
        let x = x.to_vec::<f32>().unwrap();
        for (row, label) in x.chunks_exact(2).zip(y.to_vec::<i64>().unwrap()) {
            assert_eq!(row, [label as f32, label as f32 + 0.5]);
        }
    }
}

#[test]
fn every_epoch_has_its_own_order_of_the_same_samples() {
    let loader = DataLoader::new(pairs(50)).batch_size(50).shuffle(1);
    let (mut first, mut second) = (labels(&loader).concat(), labels(&loader).concat());
    assert_ne!(first, second);
    first.sort();
    second.sort();
    assert_eq!(first, second);
}

#[test]
fn the_same_seed_gives_the_same_epochs() {
    let run = |seed| {
        let loader = DataLoader::new(pairs(50)).batch_size(8).shuffle(seed);
        [labels(&loader), labels(&loader)]
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn an_epoch_can_be_repeated_by_its_number() {
    let loader = DataLoader::new(pairs(50)).batch_size(8).shuffle(1);
    let epochs = [labels(&loader), labels(&loader), labels(&loader)];
    loader.set_epoch(1);
    assert_eq!(labels(&loader), epochs[1]);
}

#[test]
fn an_epoch_that_is_left_early_still_counts() {
    let loader = DataLoader::new(pairs(50)).batch_size(8).shuffle(1);
    let _first_batch = loader.iter().next();
    assert_eq!(loader.epoch(), 1);
}

#[test]
fn the_shortcut_gives_what_single_samples_stack_to() {
    let dataset = Arc::new(pairs(30));
    let order = [7, 7, 29, 0, 13];
    let (x, y) = dataset.gather(&order).unwrap().unwrap();
    let samples = order.map(|index| dataset.get(index).unwrap());
    let (stacked_x, stacked_y) = Stack::stack(samples.into()).unwrap();
    assert_eq!((x.dims(), x.to_vec::<f32>().unwrap()), (stacked_x.dims(), stacked_x.to_vec::<f32>().unwrap()));
    assert_eq!((y.dims(), y.to_vec::<i64>().unwrap()), (stacked_y.dims(), stacked_y.to_vec::<i64>().unwrap()));
}

#[test]
fn digits_gather_what_their_samples_stack_to() {
    let images: Vec<u8> = (0..5 * 784).map(|pixel| (pixel * 31 % 256) as u8).collect();
    let digits = Digits::new(&images, &[3, 1, 4, 1, 5]).unwrap().slice(1..5).unwrap();
    let order = [3, 0, 0];
    let (x, y) = digits.gather(&order).unwrap().unwrap();
    let (stacked_x, stacked_y) = Stack::stack(order.map(|index| digits.get(index).unwrap()).into()).unwrap();
    assert_eq!((x.dims(), x.to_vec::<f32>().unwrap()), (stacked_x.dims(), stacked_x.to_vec::<f32>().unwrap()));
    assert_eq!((y.to_vec::<i64>().unwrap(), stacked_y.to_vec::<i64>().unwrap()), (vec![5, 1, 1], vec![5, 1, 1]));
    assert_eq!(x.to_vec::<f32>().unwrap()[..784], digits.flat().unwrap().to_vec::<f32>().unwrap()[3 * 784..]);
}

#[test]
fn a_loader_over_single_samples_stacks_them() {
    let loader = DataLoader::new(Numbers(5)).batch_size(2);
    let batches: Vec<Vec<f32>> = loader.iter().map(|batch| batch.unwrap().to_vec().unwrap()).collect();
    assert_eq!(batches, [vec![0.0, 1.0], vec![2.0, 3.0], vec![4.0]]);
}

#[test]
fn a_collating_function_gets_the_samples_in_order() {
    let loader = DataLoader::with_collate(Numbers(5), Ok).batch_size(3);
    let batches: Vec<Vec<f32>> = loader.iter().map(Result::unwrap).collect();
    assert_eq!(batches, [vec![0.0, 1.0, 2.0], vec![3.0, 4.0]]);
}

#[test]
fn a_mapped_loader_keeps_length_order_and_epoch() {
    let plain = DataLoader::new(pairs(10)).batch_size(4).shuffle(2);
    let expected = [labels(&plain), labels(&plain)];

    let mapped = DataLoader::new(pairs(10)).batch_size(4).shuffle(2).map(|(x, y)| Ok((x.reshape([-1, 2, 1])?, y)));

    assert_eq!(mapped.len().unwrap(), 3);
    assert_eq!([labels(&mapped), labels(&mapped)], expected);
    assert_eq!(mapped.epoch(), 2);
}

#[test]
fn builder_calls_may_follow_map() {
    let loader =
        DataLoader::new(pairs(10)).map(|(_, y)| Ok(y)).batch_size(5).sampler(FixedSampler::new([9, 1, 9]).unwrap());
    assert_eq!(loader.iter().next().unwrap().unwrap().to_vec::<i64>().unwrap(), [9, 1, 9]);
}

#[test]
fn get_data_shuffles_training_and_doubles_the_validation_batch() {
    let (train_dl, valid_dl) = get_data(pairs(100), pairs(100), 20);
    assert_eq!((train_dl.len().unwrap(), valid_dl.len().unwrap()), (5, 3));
    assert_ne!(labels(&train_dl).concat(), (0..100).collect::<Vec<i64>>());
    assert_eq!(labels(&valid_dl).concat(), (0..100).collect::<Vec<i64>>());
}

#[test]
fn subsets_and_splits_load_like_any_dataset() {
    let subset = Subset::new(pairs(10), [8, 2, 5]).unwrap();
    assert_eq!(labels(&DataLoader::new(subset).batch_size(2)), [vec![8, 2], vec![5]]);

    let [a, b] = random_split(pairs(10), [7, 3], &Generator::new(1)).unwrap();
    let mut all = [labels(&DataLoader::new(a)).concat(), labels(&DataLoader::new(b)).concat()].concat();
    all.sort();
    assert_eq!(all, (0..10).collect::<Vec<i64>>());
}

#[test]
fn a_slice_shares_the_storage_of_the_tensors() {
    let dataset = pairs(10);
    let (x, _) = dataset.slice(4..6).unwrap();
    pagelock_tensor::no_grad(|| dataset.tensors().0.fill_(7.0).unwrap());
    assert_eq!(x.to_vec::<f32>().unwrap(), [7.0; 4]);
}

/// The text of the error that is the only item of a loop.
fn refusal<B: Send + 'static>(loader: &DataLoader<B>) -> String {
    let mut batches = loader.iter();
    let text = batches.next().unwrap().err().unwrap().to_string();
    assert!(batches.next().is_none(), "nothing follows a refusal");
    assert_eq!(loader.len().unwrap_err().to_string(), text);
    text
}

#[test]
fn a_batch_size_of_zero_is_refused() {
    assert_eq!(
        refusal(&DataLoader::new(pairs(60)).batch_size(0)),
        "the batch size is 0, so an epoch over 60 samples would never end; give at least 1 (64 is usual)"
    );
}

#[test]
fn an_empty_dataset_is_refused() {
    assert_eq!(
        refusal(&DataLoader::new(pairs(0)).batch_size(64).shuffle(1)),
        "the dataset is empty, so there is no batch to load; check the path, filter or split that it came from"
    );
}

#[test]
fn a_sampler_without_indices_is_refused() {
    let loader = DataLoader::new(pairs(5)).sampler(FixedSampler::new([]).unwrap());
    assert_eq!(refusal(&loader), "the sampler visits none of the dataset's 5 samples; check what it was made from");
}

#[test]
fn dropping_the_only_batch_is_refused() {
    assert_eq!(
        refusal(&DataLoader::new(pairs(60)).batch_size(64).drop_last(true)),
        "60 samples do not fill one batch of 64, and drop_last leaves incomplete batches out; \
         use a batch size of at most 60 or keep the last batch"
    );
}

#[test]
fn every_way_to_ask_checks_the_index() {
    let text = "there is no sample 9: the dataset has 4 samples, counted from 0; check the sampler or the range";
    let subset = Subset::new(pairs(10), 0..4).unwrap();
    let digits = Digits::new(&[0; 4 * 784], &[0; 4]).unwrap();
    assert_eq!(pairs(4).get(9).err().unwrap().to_string(), text);
    assert_eq!(pairs(4).gather(&[1, 9]).err().unwrap().to_string(), text);
    assert_eq!(subset.get(9).err().unwrap().to_string(), text);
    assert_eq!(subset.gather(&[1, 9]).err().unwrap().to_string(), text);
    assert_eq!(digits.get(9).err().unwrap().to_string(), text);
    assert_eq!(digits.gather(&[1, 9]).err().unwrap().to_string(), text);
}

#[test]
fn tensors_of_different_lengths_are_refused() {
    let tensors = (Tensor::zeros([5]).unwrap(), Tensor::zeros([5, 2]).unwrap(), Tensor::zeros([6]).unwrap());
    assert_eq!(
        TensorDataset::new(tensors).err().unwrap().to_string(),
        "the tensors of a TensorDataset have 5, 5 and 6 rows; each needs one row per sample, so slice them to one length"
    );
}

#[test]
fn a_tensor_without_rows_is_refused() {
    let tensors = (Tensor::zeros([5]).unwrap(), Tensor::scalar(1.0_f32).unwrap());
    assert_eq!(
        TensorDataset::new(tensors).err().unwrap().to_string(),
        "tensor 1 of a TensorDataset has no dimensions; the first dimension counts the samples: use unsqueeze(0) for \
         one sample"
    );
}

#[test]
fn ranges_outside_the_dataset_are_refused() {
    let text = |range| pairs(5).slice(range).err().unwrap().to_string();
    assert_eq!(text(6..9), "samples 6..5 do not lie within the dataset's 5; keep start <= end <= 5");
    let digits = Digits::new(&[0; 784], &[0]).unwrap();
    assert_eq!(
        digits.slice(0..2).unwrap_err().to_string(),
        "samples 0..2 do not lie within the dataset's 1; keep start <= end <= 1"
    );
}

#[test]
fn a_split_that_does_not_add_up_is_refused() {
    let error = random_split(pairs(100), [80, 30], &Generator::new(0)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "a split into 80 and 30 is 110 samples, but the dataset has 100; make the parts add up to 100"
    );
    assert!(random_split(pairs(1), [usize::MAX, 2], &Generator::new(0)).is_err(), "the sum must not wrap");
}

#[test]
fn loaders_and_their_iterators_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let loader = DataLoader::new(pairs(4));
    shared(&loader);
    shared(&loader.iter());
}

const MS: Duration = Duration::from_millis(1);

/// A report of a hundred batches by two workers, for which the program waits half of the time, after `change`.
fn report(change: impl FnOnce(&mut LoaderReport)) -> LoaderReport {
    let mut report = LoaderReport::default();
    (report.workers, report.batches, report.samples) = (2, 100, 6_400);
    (report.program_waited, report.program_worked) = (50 * MS, 50 * MS);
    (report.fetch, report.collate) = (90 * MS, 10 * MS);
    change(&mut report);
    report
}

#[test]
fn the_advice_names_what_takes_the_time() {
    let cases: [(fn(&mut LoaderReport), &str); 10] = [
        (|report| report.batches = 0, "no batch was loaded yet"),
        (|report| report.pageable = 11, "page-locked memory is short"),
        (|report| report.program_waited = 2 * MS, "the loader keeps up"),
        (|report| report.wait_for_budget = 30 * MS, "the budget holds the workers back"),
        (|report| report.workers = 0, "the program makes its batches itself"),
        (|report| report.wait_for_program = 30 * MS, "batches are made in bursts"),
        (|report| report.pin = 110 * MS, "copying batches into page-locked memory"),
        (|report| report.map = 110 * MS, "functions given to map"),
        (|report| report.collate = 100 * MS, "collating samples takes most of the time"),
        (|_| {}, "getting samples takes most of the time"),
    ];
    for (change, advice) in cases {
        let given = report(change).advice();
        assert!(given.starts_with(advice), "{given}, not {advice}");
    }
}

#[test]
fn a_report_prints_every_time_per_batch() {
    let report = report(|report| (report.transfer, report.pageable) = (3 * MS, 1));
    let expected = "\
100 batches of 6400 samples, 0 with errors, 2 workers; per batch:
  1 batches were not page-locked, for lack of page-locked memory
  fetch                               900.0 µs
  collate                             100.0 µs
  map                                   0.0 µs
  pin                                   0.0 µs
  transfer                             30.0 µs
  workers waited for the program        0.0 µs
  waited for the budget                 0.0 µs
  the program waited                  500.0 µs
  the program worked                  500.0 µs
getting samples takes most of the time: use more workers, or samples that are cheaper to decode";
    assert_eq!(report.to_string(), expected);
}
