//! The pictures: curves of the epochs, and a sheet of the mistakes that the network was surest of.

use std::path::Path;

use anyhow::{Result, anyhow};
use pagelock::prelude::*;
use plotters::prelude::*;

use crate::report::{Epoch, Guess, Report};

const SIDE: usize = 28; // pixels of a digit
const COLUMNS: usize = 8;
const ROWS: usize = 3;

/// One of an epoch's figures.
type Figure = fn(&Epoch) -> f64;

/// Training and validation loss, and validation accuracy, by epoch.
pub(crate) fn curves(report: &Report, path: &Path) -> Result<()> {
    let root = SVGBackend::new(path, (860, 380)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(430);
    let n_epochs = report.epochs.len();
    let by_epoch = |value: Figure| report.epochs.iter().enumerate().map(move |(i, epoch)| (i + 1, value(epoch)));

    let losses = report.epochs.iter().map(|epoch| epoch.train_loss.max(epoch.val_loss));
    let highest = losses.filter(|loss| loss.is_finite()).fold(0.0, f64::max);
    let mut losses = chart(&left, "loss", n_epochs, 0.0..(highest * 1.05).max(1e-3))?;
    let series: [(&str, RGBColor, Figure); 2] = [
        ("training", RGBColor(31, 119, 180), |epoch| epoch.train_loss),
        ("validation", RGBColor(214, 39, 40), |epoch| epoch.val_loss),
    ];
    for (name, color, value) in series {
        line(&mut losses, by_epoch(value), color)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    losses
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(drawing)?;

    let lowest = report.epochs.iter().map(|epoch| 100.0 * epoch.val_accuracy).fold(100.0, f64::min);
    let mut accuracies = chart(&right, "validation accuracy, %", n_epochs, (lowest - 2.0).max(0.0)..100.0)?;
    line(&mut accuracies, by_epoch(|epoch| 100.0 * epoch.val_accuracy), RGBColor(44, 160, 44))?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordusize, plotters::coord::types::RangedCoordf64>,
>;

fn chart<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    n_epochs: usize,
    values: std::ops::Range<f64>,
) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(1..n_epochs.max(2), values)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .x_labels(n_epochs.clamp(2, 10))
        .light_line_style(WHITE)
        .draw()
        .map_err(drawing)?;
    Ok(chart)
}

fn line<'c, 'a, 'b>(
    chart: &'c mut Chart<'a, 'b>,
    points: impl Iterator<Item = (usize, f64)> + Clone,
    color: RGBColor,
) -> Result<&'c mut plotters::chart::SeriesAnno<'a, SVGBackend<'b>>> {
    let points = points.filter(|(_, value)| value.is_finite());
    chart.draw_series(points.clone().map(|point| Circle::new(point, 3, color.filled()))).map_err(drawing)?;
    chart.draw_series(LineSeries::new(points, color.stroke_width(2))).map_err(drawing)
}

/// Wrong answers, the surest first, each with its label and what it was taken for.
pub(crate) fn mistakes(guesses: &[Guess], digits: &Digits, path: &Path) -> Result<()> {
    let mut wrong: Vec<&Guess> = guesses.iter().filter(|guess| guess.guess != guess.label).collect();
    wrong.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));

    let (cell_w, cell_h, scale) = (100, 130, 3);
    let root = SVGBackend::new(path, ((cell_w * COLUMNS) as u32, (cell_h * ROWS + 30) as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("the network's surest mistakes, of {} on {} test images", wrong.len(), guesses.len());
    root.draw(&Text::new(title, (10, 8), ("sans-serif", 16)))?;
    for (place, guess) in wrong.into_iter().take(COLUMNS * ROWS).enumerate() {
        let (left, top) = ((place % COLUMNS * cell_w + 8) as i32, (place / COLUMNS * cell_h + 34) as i32);
        let pixels = &digits.image_bytes()[guess.index * SIDE * SIDE..][..SIDE * SIDE];
        root.draw(&Rectangle::new(
            [(left, top), (left + (SIDE * scale) as i32, top + (SIDE * scale) as i32)],
            BLACK.filled(),
        ))?;
        for (i, &value) in pixels.iter().enumerate().filter(|&(_, &value)| value > 0) {
            let (x, y) = (left + (i % SIDE * scale) as i32, top + (i / SIDE * scale) as i32);
            root.draw(&Rectangle::new(
                [(x, y), (x + scale as i32, y + scale as i32)],
                RGBColor(value, value, value).filled(),
            ))?;
        }
        let caption = format!("{} taken for {}, {:.0} %", guess.label, guess.guess, 100.0 * guess.confidence);
        root.draw(&Text::new(caption, (left, top + (SIDE * scale) as i32 + 6), ("sans-serif", 11)))?;
    }
    root.present()?;
    Ok(())
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
