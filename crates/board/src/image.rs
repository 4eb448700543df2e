//! Pictures: their layout, and PNG.

use crate::array::{Array, ToArray};
use crate::error::{Result, collect, ensure};
use crate::proto::{Content, Image, Value};
use crate::step::Step;
use crate::writer::SummaryWriter;

/// Columns of the grid that [`SummaryWriter::add_images`] makes.
const COLUMNS: usize = 8;

/// The longest side, in pixels; browsers do not show larger pictures.
const MAX_SIDE: usize = 65_535;

/// Rows of pixels, each of `channels` bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Pixels {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// 1: gray; 2: gray and alpha; 3: red, green and blue; 4: red, green, blue and alpha.
    pub(crate) channels: usize,
    pub(crate) bytes: Vec<u8>,
}

impl SummaryWriter {
    /// Adds a picture of the shape `[channels, height, width]`. Bytes (`u8`) go from 0 to 255, other numbers from 0 to
    /// 1; values outside are clamped.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Argument`](crate::Error::Argument) if the shape has another
    /// number of dimensions or no pixels, a side has more than 65,535 pixels, or there are not one to four channels.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{Array, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// let gray: Vec<f32> = (0..28 * 28).map(|i| i as f32 / 784.0).collect();
    /// writer.add_image("ramp", &Array::new(&gray, [1, 28, 28])?, 0)?;
    /// writer.add_image_as("ramp", &Array::new(&gray, [28, 28])?, "WH", 1)?; // its columns as rows
    /// writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_image(&self, tag: &str, image: &(impl ToArray + ?Sized), step: impl Into<Step>) -> Result<()> {
        self.add_image_as(tag, image, "CHW", step)
    }

    /// Adds pictures of the shape `[pictures, channels, height, width]` as one picture, in rows of
    /// eight. [`make_grid`](crate::make_grid) offers other arrangements.
    ///
    /// # Errors
    /// As [`add_image`](Self::add_image); also if there are not one or three channels.
    pub fn add_images(&self, tag: &str, images: &(impl ToArray + ?Sized), step: impl Into<Step>) -> Result<()> {
        self.add_image_as(tag, images, "NCHW", step)
    }

    /// Adds a picture, or several, whose dimensions are in the order of the letters of `format`: `CHW`, `HWC`, `HW`,
    /// `WH`, `NCHW`, `NHWC` and so on.
    ///
    /// # Errors
    /// As [`add_image`](Self::add_image); also if `format` has other letters, or not one letter for each dimension.
    pub fn add_image_as(
        &self,
        tag: &str,
        image: &(impl ToArray + ?Sized),
        format: &str,
        step: impl Into<Step>,
    ) -> Result<()> {
        self.add_pixels(tag, &pixels(&image.to_array()?, format)?, step.into())
    }

    pub(crate) fn add_pixels(&self, tag: &str, pixels: &Pixels, step: Step) -> Result<()> {
        let &Pixels { width, height, channels, .. } = pixels;
        let [width, height, colorspace] = [width as i32, height as i32, channels as i32];
        let image = Image { height, width, colorspace, png: png(pixels)? };
        let value = Value { tag: tag.to_owned(), metadata: None, content: Some(Content::Image(image)) };
        self.add_value(self.main, value, step)
    }
}

/// The picture, or the grid of pictures, in an array whose dimensions `format` names.
pub(crate) fn pixels(array: &Array<'_>, format: &str) -> Result<Pixels> {
    let layout = match format.len() {
        2 => "HW",
        3 => "HWC",
        _ => "NHWC",
    };
    let positions: Vec<_> = layout.chars().map(|letter| format.to_uppercase().find(letter)).collect();
    let shape = &array.shape;
    ensure!(
        format.len() == layout.len() && positions.iter().all(Option::is_some),
        "`{format}` is not a picture format; write \"CHW\", \"HWC\", \"HW\", \"NCHW\" or the like"
    );
    ensure!(shape.len() == format.len(), "a picture of the shape {shape:?} is not `{format}`; name its format");
    let strides: Vec<usize> = (0..shape.len())
        .map(|at| shape[at + 1..].iter().fold(1, |stride: usize, &size| stride.saturating_mul(size)))
        .collect();
    let positions = positions.into_iter().flatten();
    let mut dims: Vec<(usize, usize)> = positions.map(|position| (shape[position], strides[position])).collect();
    dims.extend(std::iter::repeat_n((1, 0), usize::from(layout == "HW"))); // one channel
    dims.splice(..0, std::iter::repeat_n((1, 0), 4 - dims.len()));
    let [n, height, width, channels] = dims[..] else { unreachable!("`dims` was filled up to four dimensions") };
    let (fits, expected) = match layout {
        "NHWC" => ([1, 3].contains(&channels.0), "1 or 3"),
        _ => ((1..=4).contains(&channels.0), "1 to 4"),
    };
    ensure!(fits, "a picture of the shape {shape:?}, `{format}`, has {} channels; give {expected}", channels.0);
    arrange(&array.to_bytes()?, [n, height, width, channels], COLUMNS)
}

/// Arranges pictures in rows of at most `columns`; gray becomes color. `dims` has the size and the stride of each
/// dimension: pictures, height, width, channels.
pub(crate) fn arrange(bytes: &[u8], dims: [(usize, usize); 4], columns: usize) -> Result<Pixels> {
    let [n, height, width, channels] = dims.map(|dim| dim.0);
    ensure!(![n, height, width].contains(&0), "{n} pictures of {height} × {width} pixels have no pixels");
    let columns = columns.min(n);
    let mut pixels = Pixels {
        width: columns * width,
        height: n.div_ceil(columns) * height,
        channels: if channels == 1 { 3 } else { channels },
        bytes: Vec::new(),
    };
    let (largest, w, h) = (MAX_SIDE, pixels.width, pixels.height);
    ensure!(w.max(h) <= largest, "a picture of {w} × {h} pixels is too big: a side has at most {largest}");
    let len = w * h * pixels.channels;
    pixels.bytes = collect("a picture", len, std::iter::repeat_n(0, len))?;
    let [image_stride, row_stride, column_stride, channel_stride] = dims.map(|dim| dim.1);
    for image in 0..n {
        let (top, left) = (image / columns * height, image % columns * width);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let from = image * image_stride + y * row_stride + x * column_stride;
            let to = ((top + y) * pixels.width + left + x) * pixels.channels;
            for channel in 0..pixels.channels {
                pixels.bytes[to + channel] = bytes[from + channel.min(channels - 1) * channel_stride];
            }
        }
    }
    Ok(pixels)
}

/// The picture as a PNG file.
pub(crate) fn png(pixels: &Pixels) -> Result<Vec<u8>> {
    let &Pixels { width, height, channels, .. } = pixels;
    let color = match channels {
        1 => png::ColorType::Grayscale,
        2 => png::ColorType::GrayscaleAlpha,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    };
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels.bytes));
    ensure!(written.is_ok(), "a picture of {width} × {height} pixels cannot be a PNG: {}", written.unwrap_err());
    Ok(file)
}
