//! What `plotters` draws on a figure.

use plotters::prelude::*;

use super::{folder, read, writer};
use crate::Figure;
use crate::proto::{Content, What};

/// The positions of the pixels that are not white.
fn drawn(figure: &Figure, width: usize) -> Vec<(usize, usize)> {
    let pixels = figure.bytes().chunks(3).enumerate().filter(|(_, pixel)| *pixel != [255, 255, 255]);
    pixels.map(|(at, _)| (at % width, at / width)).collect()
}

#[test]
fn text_has_the_size_that_layouts_are_made_with_and_turns_around_its_anchor() {
    let bounds = |transform: FontTransform| {
        let mut figure = Figure::new(100, 100).unwrap();
        let area = figure.backend().into_drawing_area();
        let font = ("sans-serif", 12).into_font().transform(transform).color(&BLACK);
        area.draw(&Text::new("HHH", (50, 50), font)).unwrap();
        drop(area);
        let drawn = drawn(&figure, 100);
        let (xs, ys): (Vec<usize>, Vec<usize>) = drawn.into_iter().unzip();
        [xs.iter().min(), xs.iter().max(), ys.iter().min(), ys.iter().max()].map(|bound| *bound.unwrap())
    };
    let [left, right, top, bottom] = bounds(FontTransform::None);
    assert!(left >= 50 && right < 50 + 3 * 8 && top >= 50 && bottom < 50 + 14, "{left} {right} {top} {bottom}");
    let (width, height) = (right - left, bottom - top);
    let [left, right, top, bottom] = bounds(FontTransform::Rotate270);
    assert_eq!((right - left, bottom - top), (height, width));
    assert!(left >= 50 && bottom <= 50, "it runs upward");
    let [left, right, top, bottom] = bounds(FontTransform::Rotate180);
    assert_eq!((right - left, bottom - top), (width, height));
    assert!(right <= 50 && bottom <= 50 && left < right && top < bottom);
}

#[test]
fn what_lies_outside_is_cut_and_colors_mix() {
    let mut figure = Figure::new(4, 4).unwrap();
    let area = figure.backend().into_drawing_area();
    area.draw(&Rectangle::new([(-100, -100), (1, 1)], BLACK.filled())).unwrap();
    area.draw(&Rectangle::new([(2, 2), (100, 100)], BLACK.mix(0.5).filled())).unwrap();
    area.draw(&Text::new("far away", (i32::MAX, i32::MAX), ("sans-serif", 5000))).unwrap();
    drop(area);
    assert_eq!(drawn(&figure, 4), [(0, 0), (1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (2, 3), (3, 3)]);
    assert_eq!((figure.bytes()[0], figure.bytes()[47]), (0, 128));
}

#[test]
fn a_figure_is_written_as_a_picture_and_one_without_pixels_is_refused() {
    let folder = folder();
    let writer = writer(&folder);
    writer.add_figure("plot", &Figure::new(30, 20).unwrap(), 3).unwrap();
    writer.close().unwrap();
    let events = read(folder.path());
    let Some(What::Summary(summary)) = &events[1].what else { panic!("{events:?}") };
    let Some(Content::Image(image)) = &summary.value[0].content else { panic!("{summary:?}") };
    assert_eq!((image.width, image.height, image.colorspace), (30, 20, 3));

    let error = Figure::new(0, 20).unwrap_err();
    assert_eq!(error.to_string(), "a figure cannot have 0 × 20 pixels; each side has 1 to 16384");
}
