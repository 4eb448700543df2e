//! Parts of what errors say: who was at it, and which samples it was about. Read `error.rs` first.

/// Who makes batches.
pub(crate) fn who(worker: Option<usize>) -> String {
    worker.map_or_else(|| "the calling thread".to_owned(), |worker| format!("worker {worker}"))
}

/// "sample 5 of shard 2".
pub(crate) fn sample_of(index: usize, shard: Option<usize>) -> String {
    shard.map_or_else(|| format!("sample {index}"), |shard| format!("sample {index} of shard {shard}"))
}

/// "a batch of 64 samples, the first of them sample 5".
pub(crate) fn batch_of(n_samples: usize, first: usize, shard: Option<usize>) -> String {
    let first = sample_of(first, shard);
    match n_samples {
        1 => format!("a batch of {first}"),
        _ => format!("a batch of {n_samples} samples, the first of them {first}"),
    }
}

/// Where a batch is that is not ready, and what to do.
pub(crate) fn late(worker: Option<usize>, sample: Option<usize>, first: Option<usize>, shard: Option<usize>) -> String {
    let Some(worker) = worker else { return "no worker was free; raise the timeout, or use more workers".to_owned() };
    let (at, look_at) = match (sample, first) {
        (Some(sample), _) => (format!(" at {}", sample_of(sample, shard)), "that sample"),
        (None, Some(first)) => {
            (format!(", with {} as its first", sample_of(first, shard)), "how it is made of its samples")
        }
        (None, None) => {
            return format!(
                "worker {worker} has not begun it; raise the timeout, or look at worker_init, the sampler and the budget"
            );
        }
    };
    format!("worker {worker} is making it{at}; raise the timeout, or look at {look_at}")
}

/// "5, 7 and 9".
pub(crate) fn listed(numbers: &[usize]) -> String {
    let words: Vec<_> = numbers.iter().map(usize::to_string).collect();
    match words.split_last() {
        None => "0".to_owned(),
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
