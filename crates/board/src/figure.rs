//! [`Figure`]: a picture that `plotters` draws on.
//!
//! Text is drawn with fonts that are compiled into the program, so a figure has the same pixels on every machine.

use embedded_graphics::Drawable;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::iso_8859_1::{
    FONT_4X6, FONT_5X8, FONT_6X10, FONT_6X13, FONT_7X14, FONT_8X13, FONT_9X15, FONT_9X18, FONT_10X20,
};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::prelude::{DrawTarget, Pixel};
use embedded_graphics::text::{Baseline, Text};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform};

use crate::error::{Result, ensure};
use crate::image::Pixels;
use crate::step::Step;
use crate::writer::SummaryWriter;

/// The longest side, in pixels.
const MAX_SIDE: u32 = 16_384;

const FONTS: [&MonoFont<'_>; 9] =
    [&FONT_4X6, &FONT_5X8, &FONT_6X10, &FONT_6X13, &FONT_8X13, &FONT_7X14, &FONT_9X15, &FONT_9X18, &FONT_10X20];

/// A white picture that `plotters` draws on, for [`SummaryWriter::add_figure`].
///
/// Text is drawn with the bitmap font nearest in size, from 6 to 20 pixels high; larger text is scaled up. The fonts
/// have the characters of ISO 8859-1.
///
/// # Examples
/// ```
/// use pagelock_board::{Figure, SummaryWriter};
/// use plotters::prelude::*;
///
/// let folder = tempfile::tempdir()?;
/// let writer = SummaryWriter::new(folder.path())?;
/// let mut figure = Figure::new(400, 300)?;
/// {
///     let area = figure.backend().into_drawing_area();
///     let mut chart = ChartBuilder::on(&area)
///         .caption("loss", ("sans-serif", 20))
///         .x_label_area_size(30)
///         .y_label_area_size(40)
///         .build_cartesian_2d(0.0..10.0, 0.0..1.0)?;
///     chart.configure_mesh().draw()?;
///     chart.draw_series(LineSeries::new((1..10).map(|x| (f64::from(x), 1.0 / f64::from(x))), &RED))?;
/// }
/// writer.add_figure("loss", &figure, 0)?;
/// writer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Figure(Pixels);

impl Figure {
    /// A white figure, `width` pixels wide and `height` high.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the width or height is 0 or above 16,384.
    pub fn new(width: u32, height: u32) -> Result<Self> {
        let sides = 1..=MAX_SIDE;
        let fits = sides.contains(&width) && sides.contains(&height);
        ensure!(fits, "a figure cannot have {width} × {height} pixels; each side has 1 to {MAX_SIDE}");
        let (width, height) = (width as usize, height as usize);
        Ok(Self(Pixels { width, height, channels: 3, bytes: vec![255; width * height * 3] }))
    }

    /// The drawing backend for `plotters`: `figure.backend().into_drawing_area()`.
    pub fn backend(&mut self) -> FigureBackend<'_> {
        FigureBackend(self)
    }

    /// Red, green and blue of each pixel, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    fn blend(&mut self, (x, y): BackendCoord, color: BackendColor) {
        let (width, height) = (self.0.width as i32, self.0.height as i32);
        if !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let at = (y as usize * self.0.width + x as usize) * 3;
        let (r, g, b) = color.rgb;
        for (old, new) in self.0.bytes[at..at + 3].iter_mut().zip([r, g, b]) {
            let mixed = f64::from(*old) + (f64::from(new) - f64::from(*old)) * color.alpha;
            *old = mixed.round() as u8;
        }
    }
}

impl SummaryWriter {
    /// Adds a figure, which TensorBoard shows among the pictures.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar).
    pub fn add_figure(&self, tag: &str, figure: &Figure, step: impl Into<Step>) -> Result<()> {
        self.add_pixels(tag, &figure.0, step.into())
    }
}

/// The backend with which `plotters` draws on a [`Figure`].
#[derive(Debug)]
pub struct FigureBackend<'a>(&'a mut Figure);

type DrawResult = std::result::Result<(), DrawingErrorKind<std::convert::Infallible>>;

impl DrawingBackend for FigureBackend<'_> {
    type ErrorType = std::convert::Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.0.0.width as u32, self.0.0.height as u32)
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> DrawResult {
        self.0.blend(point, color);
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> std::result::Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        Ok(Letters::of(style.size()).size(text))
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> DrawResult {
        let letters = Letters::of(style.size());
        let (width, height) = letters.size(text);
        let (width, height) = (width as i32, height as i32);
        let anchor = style.anchor();
        let left = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let (transform, color) = (style.transform(), style.color());
        letters.draw(text, |dx, dy| {
            let (dx, dy) = rotated(&transform, left + dx, top + dy);
            self.0.blend((x.saturating_add(dx), y.saturating_add(dy)), color);
        });
        Ok(())
    }
}

/// An offset from the anchor of a text, after the text is rotated around the anchor.
fn rotated(transform: &FontTransform, x: i32, y: i32) -> (i32, i32) {
    match transform {
        FontTransform::None => (x, y),
        FontTransform::Rotate90 => (-y, x),
        FontTransform::Rotate180 => (-x, -y),
        FontTransform::Rotate270 => (y, -x),
    }
}

/// A font, each of whose pixels is drawn as `scale` × `scale` pixels.
struct Letters {
    font: &'static MonoFont<'static>,
    scale: u32,
}

impl Letters {
    /// The font for text of this height.
    fn of(size: f64) -> Self {
        let size = size.clamp(1.0, 1000.0);
        let scale = (size / 20.0).ceil().max(1.0);
        let distance = |font: &&MonoFont<'_>| (f64::from(font.character_size.height) * scale - size * 1.1).abs();
        let font = FONTS.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(&FONT_6X10);
        Self { font, scale: scale as u32 }
    }

    fn size(&self, text: &str) -> (u32, u32) {
        let Size { width, height } = self.font.character_size;
        (text.chars().count() as u32 * width * self.scale, height * self.scale)
    }

    /// Calls `pixel` with each pixel of the text, relative to its upper left corner.
    fn draw(&self, text: &str, mut pixel: impl FnMut(i32, i32)) {
        let scale = self.scale as i32;
        let mut canvas = Canvas(|x: i32, y: i32| {
            for (dx, dy) in (0..scale).flat_map(|dy| (0..scale).map(move |dx| (dx, dy))) {
                pixel(x * scale + dx, y * scale + dy);
            }
        });
        let style = MonoTextStyle::new(self.font, BinaryColor::On);
        let text = Text::with_baseline(text, Point::zero(), style, Baseline::Top);
        let _ = text.draw(&mut canvas); // a canvas never fails
    }
}

/// Calls a function with each pixel that is drawn.
struct Canvas<F>(F);

impl<F> OriginDimensions for Canvas<F> {
    fn size(&self) -> Size {
        Size::new(u32::MAX, u32::MAX)
    }
}

impl<F: FnMut(i32, i32)> DrawTarget for Canvas<F> {
    type Color = BinaryColor;
    type Error = std::convert::Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(&mut self, pixels: I) -> Result<(), Self::Error> {
        for Pixel(Point { x, y }, color) in pixels {
            if color.is_on() {
                (self.0)(x, y);
            }
        }
        Ok(())
    }
}
