//! Batches that are copied to a device ahead of the program: to the CPU, to a software device that copies as late as it
//! may, and to a GPU where there is one.

mod content;
mod worker_names;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use pagelock_cuda::Timeline;
use pagelock_cuda::software::Config;
use pagelock_data::{
    DataLoader, Dataset, Error, IterableDataset, PinMemory, Result, Samples, StoredRows, StreamLoader, TensorDataset,
    WhenFull,
};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{Device, Float, Int, Tensor};
use tempfile::TempDir;

use worker_names::without_worker_name;

fn devices() -> Vec<Device> {
    let software = pagelock_cuda::Device::software(Config::default()).unwrap();
    let mut devices = vec![Device::Cpu, Device::try_from(&software).unwrap()];
    match Device::cuda(0) {
        Ok(gpu) => devices.push(gpu),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            let _ = writeln!(std::io::stderr(), "SKIPPED on a GPU: {missing}");
        }
    }
    devices
}

fn pairs(n: usize) -> TensorDataset<(Tensor, Tensor<Int>)> {
    let x = Tensor::arange(0.0, 3.0 * n as f32, 1.0).unwrap().reshape([-1, 3]).unwrap();
    TensorDataset::new((x, Tensor::arange(0, n as i64, 1).unwrap())).unwrap()
}

fn values((x, y): &(Tensor, Tensor<Int>)) -> (Vec<f32>, Vec<i64>) {
    (x.to_vec().unwrap(), y.to_vec().unwrap())
}

#[test]
fn batches_on_a_device_are_those_of_the_host_in_the_same_order() {
    let loader = || DataLoader::new(pairs(103)).batch_size(10).shuffle(3);
    let plain = loader();
    let expected: Vec<_> =
        (0..2).flat_map(|_| plain.iter().map(|batch| values(&batch.unwrap())).collect::<Vec<_>>()).collect();
    for device in devices() {
        for (n_workers, ahead) in [(0, 0), (0, 2), (1, 1), (3, 5), (2, 100)] {
            let there = loader().num_workers(n_workers).to(&device).unwrap().ahead(ahead);
            let mut given = Vec::new();
            for _epoch in 0..2 {
                for batch in &there {
                    let batch = batch.unwrap();
                    assert_eq!((batch.0.device(), batch.1.device()), (device.clone(), device.clone()));
                    given.push(values(&batch));
                }
            }
            assert_eq!(given, expected, "{device}, {n_workers} workers, {ahead} ahead");
        }
    }
}

#[test]
fn a_type_of_ones_own_goes_to_a_device_as_it_is_pinned() {
    #[derive(PinMemory)]
    struct Batch {
        points: Tensor,
        #[pin(skip)]
        labels: Tensor<Int>,
    }
    for device in devices() {
        let loader = DataLoader::new(pairs(8)).batch_size(4).map(|(points, labels)| Ok(Batch { points, labels }));
        for batch in &loader.to(&device).unwrap() {
            let batch = batch.unwrap();
            assert_eq!(batch.points.device(), device);
            assert!(batch.labels.device().is_cpu(), "skipped");
        }
    }
}

#[test]
fn an_error_keeps_its_place_among_batches_on_a_device() {
    struct OneIsDamaged;

    impl Dataset for OneIsDamaged {
        type Sample = i64;
        fn len(&self) -> usize {
            5
        }
        fn get(&self, index: usize) -> Result<i64> {
            if index == 2 { Err(Error::other("row 2 is damaged")) } else { Ok(index as i64) }
        }
    }
    for device in devices() {
        let loader = DataLoader::new(OneIsDamaged).num_workers(1).to(&device).unwrap();
        let texts: Vec<String> = loader
            .iter()
            .map(|batch| {
                batch.map_or_else(|error| error.to_string(), |batch| format!("{:?}", batch.to_vec::<i64>().unwrap()))
            })
            .collect();
        let damaged =
            "worker 0 could not get sample 2: row 2 is damaged; skip_bad_samples(true) leaves such samples out";
        assert_eq!(texts, ["[0]", "[1]", damaged, "[3]", "[4]"]);
    }
}

#[test]
fn the_state_counts_batches_that_the_program_has_and_not_those_ahead() {
    for device in devices() {
        let loader =
            || DataLoader::new(pairs(50)).batch_size(10).shuffle(3).num_workers(2).to(&device).unwrap().ahead(3);
        let whole: Vec<_> = loader().iter().map(|batch| values(&batch.unwrap())).collect();
        let first = loader();
        for n_given in 0..=5 {
            first.set_epoch(0);
            let mut given: Vec<_> = first.iter().take(n_given).map(|batch| values(&batch.unwrap())).collect();
            let state = first.state();
            assert_eq!((state.epoch, state.batch), if n_given == 5 { (1, 0) } else { (0, n_given as u64) });
            let second = loader();
            second.resume(state).unwrap();
            if n_given < 5 {
                given.extend(second.iter().map(|batch| values(&batch.unwrap())));
            }
            assert_eq!(given, whole);
        }
    }
}

/// Two batches ahead and the one that the program has: the memory of the batch before it is free again.
#[test]
fn a_pin_budget_of_one_batch_more_than_are_ahead_is_enough() {
    const LEN: usize = (1 << 18) - 1024; // with the header of a block, a MiB
    let numbers = TensorDataset::new(Tensor::zeros([12, LEN]).unwrap()).unwrap();
    for device in devices().into_iter().filter(|device| !device.is_cpu()) {
        for ahead in [1, 2] {
            let budget = Budget::new("train", ByteSize::mib(1 + ahead as u64));
            let loader = DataLoader::new(numbers.clone()).pin_memory(true).pin_budget(budget);
            let loader = loader.when_full(WhenFull::Error).to(&device).unwrap().ahead(ahead);
            for batch in &loader {
                assert_eq!(batch.unwrap().dims(), [1, LEN], "{ahead} ahead on {device}");
            }
        }
    }
}

#[test]
fn an_epoch_that_is_left_early_leaves_nothing_in_flight() {
    let software = pagelock_cuda::Device::software(Config::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let loader = DataLoader::new(pairs(1_000)).batch_size(10).num_workers(2).to(&device).unwrap();
    for n_given in 0..20 {
        loader.iter().take(n_given).for_each(drop);
    }
    assert_nothing_in_flight(&software);
    device.synchronize().unwrap();
    assert_eq!(software.leaked().count, 0);
}

#[track_caller]
fn assert_nothing_in_flight(device: &pagelock_cuda::Device) {
    let in_flight = device.in_flight();
    assert_eq!((in_flight.tickets, in_flight.deferred), (0, 0));
}

/// Shards of consecutive numbers. The number `damaged` is an error.
#[derive(Clone)]
struct Counters {
    lens: Vec<i64>,
    damaged: i64,
}

impl IterableDataset for Counters {
    type Sample = i64;

    fn n_shards(&self) -> usize {
        self.lens.len()
    }

    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<i64>> {
        let (first, damaged) = (100 * shard as i64 + 1_000 * epoch as i64, self.damaged);
        Ok(Box::new((first..first + self.lens[shard]).map(move |i| match i == damaged {
            true => Err(Error::other(format!("record {i} is damaged"))),
            false => Ok(i),
        })))
    }
}

fn shown(batch: Result<Tensor<Int>>) -> String {
    let error_text = |error: Error| without_worker_name(error.to_string());
    batch.map_or_else(error_text, |batch| format!("{:?}", batch.to_vec::<i64>().unwrap()))
}

#[test]
fn batches_of_a_stream_on_a_device_are_those_of_the_host_with_errors_in_their_place() {
    let loader = || StreamLoader::new(Counters { lens: vec![9, 0, 5], damaged: 203 }).batch_size(2);
    let plain = loader();
    let expected: Vec<_> = (0..2).flat_map(|_| plain.iter().map(shown).collect::<Vec<_>>()).collect();
    assert_eq!(
        expected[3],
        "not get sample 3 of shard 2: record 203 is damaged; skip_bad_samples(true) leaves such samples out"
    );
    for device in devices() {
        for (n_workers, ahead) in [(0, 0), (0, 2), (1, 1), (3, 5), (2, 100)] {
            let there = loader().num_workers(n_workers).to(&device).unwrap().ahead(ahead);
            let mut given = Vec::new();
            for _epoch in 0..2 {
                for batch in &there {
                    assert!(batch.as_ref().map_or(true, |batch| batch.device() == device));
                    given.push(shown(batch));
                }
            }
            assert_eq!(given, expected, "{device}, {n_workers} workers, {ahead} ahead");
        }
    }
}

#[test]
fn the_state_of_a_stream_counts_batches_that_the_program_has_and_not_those_ahead() {
    for device in devices() {
        let loader = || {
            let loader = StreamLoader::new(Counters { lens: vec![7, 5], damaged: -1 }).batch_size(2).num_workers(2);
            loader.to(&device).unwrap().ahead(3)
        };
        let whole: Vec<_> = loader().iter().map(shown).collect();
        for n_given in 0..=whole.len() {
            let first = loader();
            let mut given: Vec<_> = first.iter().take(n_given).map(shown).collect();
            let second = loader();
            second.resume(first.state()).unwrap();
            given.extend(second.iter().map(shown));
            assert_eq!(given, whole, "{device}, after {n_given}");
        }
        let first = loader();
        assert_eq!((first.iter().count(), first.state().epoch), (whole.len(), 1));
    }
}

#[test]
fn the_copies_of_a_stream_are_numbered_and_what_is_left_early_leaves_nothing_in_flight() {
    let software = pagelock_cuda::Device::software(Config::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let timeline = Timeline::new();
    let loader = StreamLoader::new(Counters { lens: vec![20, 20], damaged: -1 }).batch_size(2).num_workers(2);
    let loader = loader.to(&device).unwrap().timeline(&timeline);
    for n_given in 0..20 {
        loader.iter().take(n_given).for_each(drop);
    }
    assert_nothing_in_flight(&software);
    device.synchronize().unwrap();
    assert_eq!(software.leaked().count, 0);
    let names: Vec<_> = timeline.spans().unwrap().into_iter().take(4).map(|span| span.name).collect();
    assert_eq!(names, ["upload 0", "upload 1", "upload 2", "upload 0"], "of one batch, then of the next epoch");
    assert!(loader.report().transfer > std::time::Duration::ZERO);
}

/// A `.npy` file of `n_rows` rows of 1,000 floats, each the number of its row.
fn npy_rows(n_rows: usize) -> (TempDir, PathBuf) {
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n_rows}, 1000), }}");
    let elements: Vec<u8> = (0..n_rows * 1_000).flat_map(|at| ((at / 1_000) as f32).to_le_bytes()).collect();
    content::file(&content::npy(&dictionary, &elements))
}

#[test]
fn an_array_in_a_file_reaches_every_device_as_it_was_written() {
    let (_folder, path) = npy_rows(700);
    let rows = StoredRows::<Float>::npy(&path).unwrap();
    for device in devices() {
        let there = rows.to(&device).unwrap();
        assert_eq!((there.dims(), there.device()), (&[700, 1_000][..], device));
        assert!(there.to_vec::<f32>().unwrap().iter().enumerate().all(|(at, &value)| value == (at / 1_000) as f32));
    }
}

#[test]
fn an_array_that_was_cut_short_after_it_was_opened_reaches_no_device() {
    let (_folder, path) = npy_rows(700);
    let rows = StoredRows::<Float>::npy(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1_000_000).unwrap();
    for device in devices() {
        let error = rows.to(&device).unwrap_err().to_string();
        assert!(error.contains("float32 [700, 1000] from byte 128 on do not fit into its 1000000 bytes"), "{error}");
    }
}
