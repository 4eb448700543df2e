//! The pictures: curves of the epochs, and the mistakes in which the network was most confident.

use std::path::Path;

use anyhow::Result;
use pagelock::prelude::*;

use crate::common::pictures::{charts, grid};
use crate::report::{Epoch, Guess, Report};

const SIDE: usize = 28; // pixels of a digit
const COLUMNS: usize = 8;
const ROWS: usize = 3;

/// Training and validation loss, and validation accuracy, by epoch.
pub(crate) fn curves(report: &Report, path: &Path) -> Result<()> {
    let by_epoch = |value: fn(&Epoch) -> f64| report.epochs.iter().map(value).collect::<Vec<f64>>();
    let (training, validation) = (by_epoch(|epoch| epoch.train_loss), by_epoch(|epoch| epoch.val_loss));
    let accuracy = by_epoch(|epoch| 100.0 * epoch.val_accuracy);
    let losses = [("training", &training[..]), ("validation", &validation[..])];
    charts(path, "epoch", &[("loss", &losses[..]), ("validation accuracy, %", &[("accuracy", &accuracy[..])][..])])
}

/// Draws wrong answers, the most confident first, each with its label and the network's answer.
pub(crate) fn mistakes(guesses: &[Guess], digits: &Digits, path: &Path) -> Result<()> {
    let mut wrong: Vec<&Guess> = guesses.iter().filter(|guess| guess.guess != guess.label).collect();
    wrong.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    let title = format!("the most confident of {} wrong answers on {} test images", wrong.len(), guesses.len());
    wrong.truncate(COLUMNS * ROWS);

    let (mut pixels, mut captions) = (Vec::new(), Vec::new());
    for Guess { index, label, guess, confidence } in &wrong {
        let bytes = &digits.image_bytes()[index * SIDE * SIDE..][..SIDE * SIDE];
        pixels.extend(bytes.iter().map(|&byte| f32::from(byte) / 255.0));
        captions.push((format!("label {label}\npredicted {guess}, {:.0} %", 100.0 * confidence), false));
    }
    let images = Tensor::from_vec(pixels, [wrong.len(), 1, SIDE, SIDE])?;
    grid(path, &title, COLUMNS, &images, &captions)
}
