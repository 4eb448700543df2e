//! [`make_grid`]: arranges pictures as one, like `torchvision.utils.make_grid`.

use std::borrow::Cow;

use crate::array::{Array, ToArray, Values};
use crate::error::{Result, ensure, refuse};

/// How [`make_grid`] arranges pictures; the names and the defaults are torchvision's.
#[derive(Debug, Clone, PartialEq)]
pub struct GridOptions {
    /// Pictures in each row; 8 by default.
    pub nrow: usize,
    /// Pixels between pictures and around them; 2 by default.
    pub padding: usize,
    /// Whether values are shifted and scaled to the range from 0 to 1.
    pub normalize: bool,
    /// The values that become 0 and 1; by default the least and the largest. Values outside are clamped.
    pub value_range: Option<(f64, f64)>,
    /// Whether each picture is normalized by its own least and largest value, instead of those of all pictures.
    pub scale_each: bool,
    /// The value of the pixels between pictures; 0 by default.
    pub pad_value: f64,
}

impl Default for GridOptions {
    fn default() -> Self {
        Self { nrow: 8, padding: 2, normalize: false, value_range: None, scale_each: false, pad_value: 0.0 }
    }
}

/// Makes one picture of the shape `[channels, height, width]` out of pictures of the shape `[pictures, channels,
/// height, width]`.
///
/// Gray pictures get three channels. An array of the shape `[height, width]` or `[channels, height, width]` is a single
/// picture. A single picture gets no padding.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if the array has another shape or no pixel, `nrow` is 0,
/// `value_range` is reversed, bytes are to be normalized, or the grid is too big; the tensor's error, if it cannot be
/// read.
///
/// # Examples
/// ```
/// use pagelock_board::{Array, GridOptions, make_grid};
///
/// let digits = vec![0.5f32; 10 * 28 * 28];
/// let digits = Array::new(&digits, [10, 1, 28, 28])?;
/// assert_eq!(make_grid(&digits, GridOptions::default())?.shape(), [3, 62, 242]);
/// let square = GridOptions { nrow: 4, normalize: true, ..GridOptions::default() };
/// assert_eq!(make_grid(&digits, square)?.shape(), [3, 92, 122]);
/// # Ok::<(), pagelock_board::Error>(())
/// ```
pub fn make_grid(images: &(impl ToArray + ?Sized), options: GridOptions) -> Result<Array<'static>> {
    let images = images.to_array()?;
    let shape = images.shape();
    let [n, channels, height, width] = match *shape {
        [height, width] => [1, 1, height, width],
        [channels, height, width] => [1, channels, height, width],
        [n, channels, height, width] => [n, channels, height, width],
        _ => {
            refuse!("pictures have the shape {shape:?}, not [pictures, channels, height, width]");
        }
    };
    ensure!(
        images.len() > 0 && options.nrow > 0,
        "pictures of the shape {shape:?} in rows of {} have no pixels",
        options.nrow
    );
    let batch = BatchShape { n, channels, height, width };
    match &images.values {
        Values::U8(bytes) => {
            ensure!(!options.normalize, "bytes cannot be normalized; convert the pictures to f32");
            let (shape, grid) = batch.arrange(bytes, &options, options.pad_value as u8)?;
            Array::of(Values::U8(Cow::Owned(grid)), shape)
        }
        _ => {
            let mut values = images.to_f32()?;
            if options.normalize {
                normalize(&mut values, batch.channels * batch.height * batch.width, &options)?;
            }
            let (shape, grid) = batch.arrange(&values, &options, options.pad_value as f32)?;
            Array::of(Values::F32(Cow::Owned(grid)), shape)
        }
    }
}

fn normalize(values: &mut [f32], image_len: usize, options: &GridOptions) -> Result<()> {
    if let Some((low, high)) = options.value_range {
        let is_range = low <= high;
        ensure!(is_range, "the range of values ends at {high}, below its start {low}");
    }
    let part = if options.scale_each { image_len } else { values.len() };
    for part in values.chunks_mut(part) {
        let least = || part.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = || part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (low, high) = options.value_range.unwrap_or_else(|| (least().into(), largest().into()));
        let width = (high - low).max(1e-5) as f32;
        let (low, high) = (low as f32, high as f32);
        part.iter_mut().for_each(|value| *value = (value.max(low).min(high) - low) / width);
    }
    Ok(())
}

/// The number and the size of the pictures.
struct BatchShape {
    n: usize,
    channels: usize,
    height: usize,
    width: usize,
}

impl BatchShape {
    /// The shape and the values of the grid.
    fn arrange<T: Copy>(&self, values: &[T], options: &GridOptions, pad: T) -> Result<(Vec<usize>, Vec<T>)> {
        let &BatchShape { n, channels, height, width } = self;
        let shown = if channels == 1 { 3 } else { channels };
        let padding = if n == 1 { 0 } else { options.padding };
        let columns = options.nrow.min(n);
        let side = |count: usize, size: usize| count.checked_mul(size.checked_add(padding)?)?.checked_add(padding);
        let sides = side(n.div_ceil(columns), height).zip(side(columns, width));
        let len =
            sides.and_then(|(h, w)| h.checked_mul(w)?.checked_mul(shown)).filter(|len| *len <= isize::MAX as usize / 8);
        let (Some((grid_height, grid_width)), Some(len)) = (sides, len) else {
            refuse!("a grid of {n} pictures with a padding of {padding} is too big");
        };
        let mut grid = Vec::new();
        let has_memory = grid.try_reserve_exact(len).is_ok();
        ensure!(has_memory, "there is no memory for a grid of {n} pictures with a padding of {padding}");
        grid.resize(len, pad);
        for (image, channel) in (0..n).flat_map(|image| (0..shown).map(move |channel| (image, channel))) {
            let from = (image * channels + channel.min(channels - 1)) * height * width;
            let top = image / columns * (height + padding) + padding;
            let left = image % columns * (width + padding) + padding;
            for (y, row) in values[from..from + height * width].chunks_exact(width).enumerate() {
                let to = (channel * grid_height + top + y) * grid_width + left;
                grid[to..to + width].copy_from_slice(row);
            }
        }
        Ok((vec![shown, grid_height, grid_width], grid))
    }
}
