//! Pictures of results as SVG: a grid of small images with captions, and lines over steps.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use pagelock::prelude::*;
use plotters::prelude::*;

/// Images `[n, 1 or 3, height, width]` from 0 to 1, each over its caption: green if it is true, else red.
pub(crate) fn grid(
    path: &Path,
    title: &str,
    columns: usize,
    images: &Tensor,
    captions: &[(String, bool)],
) -> Result<()> {
    let &[n, channels @ (1 | 3), height, width] = images.dims() else {
        return Err(anyhow!("cannot draw images of shape {}: they are [n, 1 or 3, height, width]", images.shape()));
    };
    ensure!(captions.len() == n, "cannot draw {n} images with {} captions", captions.len());
    let scale = (96 / height).max(1) as i32;
    let cell = (scale * width as i32 + 16, scale * height as i32 + 28);
    let size = (columns as i32 * cell.0, n.div_ceil(columns) as i32 * cell.1 + 32);
    let root = SVGBackend::new(path, (size.0 as u32, size.1 as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    root.draw(&Text::new(title.to_owned(), (8, 8), ("sans-serif", 15))).map_err(failed)?;
    let values: Vec<f32> = images.to_vec()?;
    for (number, (caption, is_right)) in captions.iter().enumerate() {
        let (left, top) = ((number % columns) as i32 * cell.0 + 8, (number / columns) as i32 * cell.1 + 32);
        let color = if *is_right { RGBColor(0, 110, 0) } else { RGBColor(190, 0, 0) };
        let style = ("sans-serif", 12).into_font().color(&color);
        let text = Text::new(caption.clone(), (left, top + scale * height as i32 + 4), style);
        root.draw(&text).map_err(failed)?;
        let planes = &values[number * channels * height * width..][..channels * height * width];
        for row in 0..height {
            for (from, to, color) in runs(planes, row, height, width) {
                let (y, x) = (top + scale * row as i32, [from, to].map(|x| left + scale * x as i32));
                root.draw(&Rectangle::new([(x[0], y), (x[1], y + scale)], color.filled())).map_err(failed)?;
            }
        }
    }
    root.present().map_err(failed)
}

/// Neighbors of one color in a row, with 32 shades of each channel: where they begin and end.
fn runs(planes: &[f32], row: usize, height: usize, width: usize) -> Vec<(usize, usize, RGBColor)> {
    let shade = |value: f32| ((value.clamp(0.0, 1.0) * 31.0).round() * (255.0 / 31.0)) as u8;
    let mut runs: Vec<(usize, usize, RGBColor)> = Vec::new();
    for x in 0..width {
        let at = |channel: usize| shade(planes[channel * height * width + row * width + x]);
        let blue = planes.len() / (height * width) - 1; // the only channel, where there is one
        let color = RGBColor(at(0), at(blue / 2), at(blue));
        match runs.last_mut() {
            Some((_, to, last)) if *last == color => *to = x + 1,
            _ => runs.push((x, x + 1, color)),
        }
    }
    runs
}

/// Lines over epochs or steps, counted from 1, each with its name.
pub(crate) fn lines(path: &Path, title: &str, over: &str, series: &[(&str, &[f64])]) -> Result<()> {
    let root = SVGBackend::new(path, (480, 340)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let all = || series.iter().flat_map(|(_, values)| values.iter().copied()).filter(|value| value.is_finite());
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let n = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    ensure!(low <= high && n > 0, "cannot draw {title}: there are no numbers");
    let margin = ((high - low) * 0.05).max(1e-6);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(48)
        .build_cartesian_2d(1.0..n.max(2) as f64, low - margin..high + margin)
        .map_err(failed)?;
    chart.configure_mesh().x_desc(over).light_line_style(WHITE).draw().map_err(failed)?;
    let colors = [RGBColor(31, 119, 180), RGBColor(214, 39, 40), RGBColor(44, 160, 44)];
    for (&(name, values), color) in series.iter().zip(colors.into_iter().cycle()) {
        let points = values.iter().enumerate().map(|(i, &value)| ((i + 1) as f64, value));
        let points: Vec<(f64, f64)> = points.filter(|(_, value)| value.is_finite()).collect();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)?;
    root.present().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
