//! The results of the run, printed as it progresses and saved as JSON.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use pagelock::prelude::*;
use pagelock::tensor::profiler::ActiveProfiler;
use serde::{Deserialize, Serialize};

use crate::Args;

/// One epoch's figures.
#[derive(Serialize, Deserialize)]
pub(crate) struct Epoch {
    pub(crate) train_loss: f64,
    pub(crate) val_loss: f64,
    pub(crate) val_accuracy: f64,
    pub(crate) train_seconds: f64,
    pub(crate) val_seconds: f64,
}

/// The whole run.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    arguments: &'a Args,
    data: String,
    seed: u64,
    device: String,
    threads: usize,
    pub(crate) epochs: Vec<Epoch>,
    test_accuracy: Option<f64>, // `None` if the run was stopped before its test
    seconds_to_first_step: Option<f64>,
    peak_memory_bytes: Option<u64>,
    #[serde(skip)]
    has_header: bool, // whether the header of the table is printed
}

/// The network's answer to one test image.
pub(crate) struct Guess {
    pub(crate) index: usize,
    pub(crate) label: usize,
    pub(crate) guess: usize,
    /// The probability that the network gave its guess.
    pub(crate) confidence: f32,
}

impl<'a> Report<'a> {
    pub(crate) fn new(arguments: &'a Args, digits: &DigitSet, device: &Device) -> Report<'a> {
        Report {
            arguments,
            data: digits.to_string(),
            seed: arguments.seed,
            device: device.to_string(),
            threads: num_threads(),
            epochs: Vec::new(),
            test_accuracy: None,
            seconds_to_first_step: None,
            peak_memory_bytes: None,
            has_header: false,
        }
    }

    /// Records the time since `start` on the first call.
    pub(crate) fn first_step(&mut self, start: Instant) {
        self.seconds_to_first_step.get_or_insert_with(|| start.elapsed().as_secs_f64());
    }

    /// Adds the figures of the epochs so far to a checkpoint, as JSON.
    pub(crate) fn save_epochs(&self, checkpoint: Checkpoint) -> Result<Checkpoint> {
        Ok(checkpoint.value("epochs", serde_json::to_string(&self.epochs)?)?)
    }

    /// Restores the epochs of a checkpoint.
    pub(crate) fn load_epochs(&mut self, found: &SavedCheckpoint) -> Result<()> {
        self.epochs = serde_json::from_str(&found.value::<String>("epochs")?)?;
        Ok(())
    }

    pub(crate) fn finish(&mut self, test_accuracy: f64) {
        self.test_accuracy = Some(test_accuracy);
        self.peak_memory_bytes = peak_memory_bytes();
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        pagelock_files::replace(path, json).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Prints a row of the table of epochs, and the header before the first row.
    pub(crate) fn print_epoch(&mut self, epoch: usize, n_samples: usize) {
        if !self.has_header {
            self.has_header = true;
            println!("\nepoch  train loss  val loss  val accuracy   seconds   images/s");
        }
        let Epoch { train_loss, val_loss, val_accuracy, train_seconds, .. } = &self.epochs[epoch];
        let (percent, rate) = (100.0 * val_accuracy, n_samples as f64 / train_seconds);
        println!(
            "{:>5}  {train_loss:>10.4}  {val_loss:>8.4}  {percent:>10.2} %  {train_seconds:>8.2}  {rate:>9.0}",
            epoch + 1
        );
    }

    /// Prints the confusion matrix.
    pub(crate) fn print_confusion(&self, guesses: &[Guess]) {
        let mut counts = [[0; 10]; 10];
        for Guess { label, guess, .. } in guesses {
            counts[*label][*guess] += 1;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(std::iter::once("label".to_string()).chain((0..10).map(|guess| format!("as {guess}"))));
        for (label, row) in counts.iter().enumerate() {
            let cells = row.iter().map(|&count| if count == 0 { "·".to_string() } else { count.to_string() });
            table.add_row(std::iter::once(label.to_string()).chain(cells));
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        println!("\nconfusion matrix of the test images, with a row for each label:\n{table}");
    }
}

/// Appends the network's answers to a batch.
pub(crate) fn collect_guesses(out: &Tensor, yb: &Tensor<Int>, guesses: &mut Vec<Guess>) -> Result<()> {
    let probabilities = out.softmax(1)?;
    let confidences: Vec<f32> = probabilities.max(1)?.to_vec()?;
    let [labels, answers]: [Vec<i64>; 2] = [yb.to_vec()?, out.argmax(1)?.to_vec()?];
    for ((label, guess), confidence) in labels.into_iter().zip(answers).zip(confidences) {
        guesses.push(Guess { index: guesses.len(), label: label as usize, guess: guess as usize, confidence });
    }
    Ok(())
}

/// The peak resident memory of the process, if the system reports it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Ends the profile, if there is one: prints its table, and writes its trace and its memory timeline to the folder.
pub(crate) fn save_profile(profiler: Option<ActiveProfiler<'_>>, folder: Option<&Path>) -> Result<()> {
    let (Some(profiler), Some(folder)) = (profiler, folder) else { return Ok(()) };
    let profile = profiler.stop()?;
    crate::common::make_folder(folder)?;
    println!("\n{}", profile.key_averages().row_limit(30));
    profile.export_chrome_trace(folder.join("trace.json"))?;
    profile.export_memory_timeline(folder.join("memory.svg"))?;
    println!("trace.json, for chrome://tracing or ui.perfetto.dev, and memory.svg are in {}", folder.display());
    Ok(())
}
