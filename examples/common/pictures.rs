//! Pictures of results as SVG: a grid of small images with captions, and charts of lines over steps.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use pagelock::prelude::*;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Lines with at most this many points have a dot at each, so that a line of one point is seen.
const MAX_DOTS: usize = 20;

/// Images `[n, 1 or 3, height, width]` from 0 to 1, each above its caption of one or more lines. A caption is green if
/// its flag is true, else red.
pub(crate) fn grid(
    path: &Path,
    title: &str,
    columns: usize,
    images: &Tensor,
    captions: &[(String, bool)],
) -> Result<()> {
    let &[n, channels @ (1 | 3), height, width] = images.dims() else {
        return Err(anyhow!("cannot draw images of shape {}; give [n, 1 or 3, height, width]", images.shape()));
    };
    ensure!(captions.len() == n, "cannot draw {n} images with {} captions", captions.len());
    let scale = (96 / height).max(1) as i32;
    let n_lines = captions.iter().map(|(caption, _)| caption.lines().count()).fold(1, usize::max) as i32;
    let cell = (scale * width as i32 + 16, scale * height as i32 + 12 + 16 * n_lines);
    let size = (columns as i32 * cell.0, n.div_ceil(columns) as i32 * cell.1 + 32);
    let root = SVGBackend::new(path, (size.0 as u32, size.1 as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(cannot_draw)?;
    root.draw(&Text::new(title.to_owned(), (8, 8), ("sans-serif", 15))).map_err(cannot_draw)?;
    let values: Vec<f32> = images.to_vec()?;
    for (number, (caption, is_right)) in captions.iter().enumerate() {
        let (left, top) = ((number % columns) as i32 * cell.0 + 8, (number / columns) as i32 * cell.1 + 32);
        let color = if *is_right { RGBColor(0, 110, 0) } else { RGBColor(190, 0, 0) };
        let (bottom, style) = (top + scale * height as i32 + 4, ("sans-serif", 12).into_font().color(&color));
        for (line, text) in caption.lines().enumerate() {
            let place = (left, bottom + 16 * line as i32);
            root.draw(&Text::new(text.to_owned(), place, style.clone())).map_err(cannot_draw)?;
        }
        let planes = &values[number * channels * height * width..][..channels * height * width];
        for row in 0..height {
            for (from, to, color) in runs(planes, row, height, width) {
                let (y, x) = (top + scale * row as i32, [from, to].map(|x| left + scale * x as i32));
                root.draw(&Rectangle::new([(x[0], y), (x[1], y + scale)], color.filled())).map_err(cannot_draw)?;
            }
        }
    }
    root.present().map_err(cannot_draw)
}

/// The runs of pixels with the same color in a row: begin, end and color. Each channel is reduced to 32 shades.
fn runs(planes: &[f32], row: usize, height: usize, width: usize) -> Vec<(usize, usize, RGBColor)> {
    let shade = |value: f32| ((value.clamp(0.0, 1.0) * 31.0).round() * (255.0 / 31.0)) as u8;
    let mut runs: Vec<(usize, usize, RGBColor)> = Vec::new();
    for x in 0..width {
        let at = |channel: usize| shade(planes[channel * height * width + row * width + x]);
        let blue = planes.len() / (height * width) - 1; // 0 if the image is gray
        let color = RGBColor(at(0), at(blue / 2), at(blue));
        match runs.last_mut() {
            Some((_, to, last)) if *last == color => *to = x + 1,
            _ => runs.push((x, x + 1, color)),
        }
    }
    runs
}

/// A line: its name, and a value for each epoch or step.
pub(crate) type Line<'a> = (&'a str, &'a [f64]);

/// Lines over epochs or steps, counted from 1.
pub(crate) fn lines(path: &Path, title: &str, over: &str, series: &[Line<'_>]) -> Result<()> {
    charts(path, over, &[(title, series)])
}

/// Charts side by side, each with its title, and lines as [`lines`] draws them.
pub(crate) fn charts(path: &Path, over: &str, charts: &[(&str, &[Line<'_>])]) -> Result<()> {
    let root = SVGBackend::new(path, (480 * charts.len() as u32, 340)).into_drawing_area();
    root.fill(&WHITE).map_err(cannot_draw)?;
    for (area, (title, series)) in root.split_evenly((1, charts.len())).iter().zip(charts) {
        chart(area, title, over, series)?;
    }
    root.present().map_err(cannot_draw)
}

/// One of [`charts`]. Values that are not finite are left out.
fn chart(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, over: &str, series: &[Line<'_>]) -> Result<()> {
    let n = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    ensure!(n > 0, "cannot draw {title}: there are no values");
    let finite = series.iter().flat_map(|(_, values)| values.iter().copied()).filter(|value| value.is_finite());
    let extremes = finite.fold(None, |extremes: Option<(f64, f64)>, value| {
        let (low, high) = extremes.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    });
    let (low, high) = extremes.unwrap_or((0.0, 1.0));
    let spread = if low < high { high - low } else { high.abs() };
    let margin = (spread * 0.05).max(1e-6);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(48)
        .build_cartesian_2d(1..n.max(2), low - margin..high + margin)
        .map_err(cannot_draw)?;
    chart.configure_mesh().x_desc(over).x_labels(n.clamp(2, 10)).light_line_style(WHITE).draw().map_err(cannot_draw)?;
    let colors = [RGBColor(31, 119, 180), RGBColor(214, 39, 40), RGBColor(44, 160, 44)];
    for (&(name, values), color) in series.iter().zip(colors.into_iter().cycle()) {
        let points = values.iter().enumerate().map(|(i, &value)| (i + 1, value));
        let points: Vec<(usize, f64)> = points.filter(|(_, value)| value.is_finite()).collect();
        if points.len() <= MAX_DOTS {
            let dots = points.iter().map(|&point| Circle::new(point, 3, color.filled()));
            chart.draw_series(dots).map_err(cannot_draw)?;
        }
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(cannot_draw)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(cannot_draw)
}

/// The error of a picture that cannot be drawn.
pub(crate) fn cannot_draw(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
