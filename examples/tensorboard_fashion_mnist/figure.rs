//! Pictures with the network's predictions: green if right, else red.

use anyhow::Result;
use pagelock::board::Figure;
use pagelock::prelude::*;
use plotters::prelude::*;

use crate::common::pictures::cannot_draw;

const SIDE: usize = 28; // pixels of a picture
const SCALE: usize = 5;
const CELL: (usize, usize) = (SIDE * SCALE + 32, SIDE * SCALE + 70);
/// The number of cells in a row. TensorBoard shows 350 pixels, and shrinks wider figures until their text is
/// unreadable.
const COLUMNS: usize = 2;

/// The index and the value of the largest number.
pub(crate) fn best(numbers: &[f32]) -> (usize, f32) {
    let largest = numbers.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    largest.unwrap_or_default()
}

/// The pictures of a batch in two columns, each below its prediction, the prediction's probability, and its label.
pub(crate) fn predictions(
    out: &Tensor,
    images: &Tensor<Int>,
    labels: &Tensor<Int>,
    classes: &[&str; 10],
) -> Result<Figure> {
    let probabilities: Vec<f32> = out.softmax(1)?.to_vec()?;
    let (bytes, labels): (Vec<u8>, Vec<i64>) = (images.to_vec()?, labels.to_vec()?);
    let rows = labels.len().div_ceil(COLUMNS);
    let mut figure = Figure::new((CELL.0 * COLUMNS) as u32, (CELL.1 * rows) as u32)?;
    let area = figure.backend().into_drawing_area();
    for (place, &label) in labels.iter().enumerate() {
        let (answer, probability) = best(&probabilities[place * 10..][..10]);
        let (left, top) = ((place % COLUMNS * CELL.0 + 16) as i32, (place / COLUMNS * CELL.1) as i32);
        let color = if answer as i64 == label { RGBColor(0, 128, 0) } else { RED };
        let percent = 100.0 * probability;
        let lines = [format!("{}, {percent:.1} %", classes[answer]), format!("(label: {})", classes[label as usize])];
        for (line, text) in lines.into_iter().enumerate() {
            let style = ("sans-serif", 13).into_font().color(&color);
            area.draw(&Text::new(text, (left, top + 10 + 22 * line as i32), style)).map_err(cannot_draw)?;
        }
        let picture = &bytes[place * SIDE * SIDE..][..SIDE * SIDE];
        for (at, &gray) in picture.iter().enumerate() {
            let (x, y) = (left + (at % SIDE * SCALE) as i32, top + 58 + (at / SIDE * SCALE) as i32);
            let square = [(x, y), (x + SCALE as i32 - 1, y + SCALE as i32 - 1)];
            area.draw(&Rectangle::new(square, RGBColor(gray, gray, gray).filled())).map_err(cannot_draw)?;
        }
    }
    drop(area);
    Ok(figure)
}
