//! Ten thousand loaders that are left in mid-epoch leave no thread, no file and no byte behind. One test, since it
//! counts what the whole process has.

mod resident;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, TensorDataset};
use pagelock_memory::{Budget, ByteSize, default_host};
use pagelock_tensor::Tensor;

use resident::{entries, threads};

#[test]
fn ten_thousand_loaders_left_in_mid_epoch_leave_nothing_behind() {
    let threads_before = threads();
    let dataset = Arc::new(TensorDataset::new(Tensor::zeros([400, 16]).unwrap()).unwrap());
    let budget = Budget::new("loaders", ByteSize::kib(256));
    let run = |round: usize| {
        let loader = DataLoader::new(dataset.clone()).batch_size(10).shuffle(round as u64).num_workers(1 + round % 3);
        let loader = loader.persistent_workers(round.is_multiple_of(2)).pin_memory(round.is_multiple_of(4));
        let loader = if round.is_multiple_of(8) { loader.pin_budget(budget.clone()) } else { loader };
        loader.iter().take(round % 4).for_each(drop);
    };
    (0..16).for_each(run); // opens everything that is opened only once
    let counts = || (threads(), entries("/proc/self/fd"), default_host().stats().live_bytes);
    let (_, files, bytes) = counts();
    let before = (threads_before, files, bytes);

    (0..10_000).for_each(run);

    assert_eq!(Arc::strong_count(&dataset), 1, "a worker holds the dataset");
    assert_eq!(budget.used(), ByteSize(0), "page-locked memory is held");
    // A thread that was joined may stay in the list for a moment.
    let start = Instant::now();
    while counts() != before && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!(counts(), before, "threads, open files, live bytes");
}
