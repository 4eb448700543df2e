//! A process is killed in mid-epoch, and another resumes where it stopped. Together they see every batch once, in the
//! order and with the content of an undisturbed run.
//!
//! Not a `#[test]`: the program runs itself as the process to be killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use pagelock_data::{DataLoader, Dataset, TensorDataset};
use pagelock_tensor::Tensor;

const BATCHES: usize = 100; // of one epoch
const EPOCHS: usize = 3;

fn loader(n_workers: usize) -> DataLoader<Tensor> {
    let samples = TensorDataset::new(Tensor::arange(0.0, 700.0, 1.0).unwrap()).unwrap();
    let noisy = samples.transform(3, |x, random| Ok((x + random.next_f64() as f32)?));
    DataLoader::new(noisy).batch_size(7).shuffle(11).num_workers(n_workers).pin_memory(true)
}

fn show(batch: &Tensor) -> String {
    format!("{:?}", batch.to_vec::<f32>().unwrap())
}

/// Prints each batch with the state after it, until it is killed.
fn child() -> ! {
    let loader = loader(3);
    let mut out = std::io::stdout().lock();
    loop {
        for batch in &loader {
            writeln!(out, "{}|{}", loader.state(), show(&batch.unwrap())).unwrap();
            out.flush().unwrap();
        }
    }
}

/// What the child printed until it was killed, which happens after its first `n_lines` lines.
fn killed_after(n_lines: usize) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program).env("LOADER_CHILD", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen: Vec<String> = lines.by_ref().take(n_lines).collect();
    child.kill().unwrap(); // SIGKILL
    seen.extend(lines);
    assert!(!child.wait().unwrap().success(), "it ended by itself");
    if !seen.last().is_some_and(|line| line.ends_with(']')) {
        seen.pop(); // cut off in the middle of a line
    }
    seen
}

fn main() {
    if std::env::var_os("LOADER_CHILD").is_some() {
        child();
    }
    let whole = loader(0);
    let expected: Vec<String> =
        (0..EPOCHS).flat_map(|_| whole.iter().map(|batch| show(&batch.unwrap())).collect::<Vec<_>>()).collect();
    assert_eq!(expected.len(), EPOCHS * BATCHES);

    for (n_lines, n_workers) in [(1, 2), (37, 0), (99, 8), (100, 1), (150, 2)] {
        let lines = killed_after(n_lines);
        let (state, _) = lines.last().unwrap().split_once('|').unwrap();
        let mut seen: Vec<String> = lines.iter().map(|line| line.split_once('|').unwrap().1.to_owned()).collect();
        seen.truncate(expected.len());
        let resumed = loader(n_workers);
        resumed.resume(state.parse().unwrap()).unwrap();
        while seen.len() < expected.len() {
            seen.extend(resumed.iter().map(|batch| show(&batch.unwrap())));
        }
        assert_eq!(seen, expected, "killed after {n_lines} batches, resumed with {n_workers} workers");
        println!(
            "killed after {} batches, resumed at `{state}` with {n_workers} workers: the same batches",
            lines.len()
        );
    }
}
