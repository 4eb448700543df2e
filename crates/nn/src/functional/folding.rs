//! Windows of images as columns, and back: `unfold` (im2col) and `fold` (col2im).

use pagelock_tensor::{Int, PadMode, Result, Shape, Tensor};

use super::shared::{signed, wrong_argument, wrong_shape};

/// The windows of [`unfold`] and [`fold`]; sizes are `[height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldOptions {
    /// The size of a window.
    pub kernel_size: [usize; 2],
    /// The distance between neighboring elements of a window.
    pub dilation: [usize; 2],
    /// The number of zeros added at each end of the image.
    pub padding: [usize; 2],
    /// The distance between neighboring windows.
    pub stride: [usize; 2],
}

impl FoldOptions {
    /// Windows with stride 1.
    pub fn new(kernel_size: [usize; 2]) -> Self {
        Self { kernel_size, dilation: [1; 2], padding: [0; 2], stride: [1; 2] }
    }

    /// The number of windows in each dimension, and the padded size.
    fn counts(&self, op: &str, size: [usize; 2]) -> Result<[[usize; 2]; 2]> {
        let mut sizes = [[0; 2]; 2];
        for axis in 0..2 {
            let [kernel, dilation, stride] = [self.kernel_size[axis], self.dilation[axis], self.stride[axis]];
            for (argument, value) in [("kernel_size", kernel), ("dilation", dilation), ("stride", stride)] {
                if value == 0 {
                    return Err(wrong_argument(op, argument, 0, "at least 1"));
                }
            }
            let padded = self.padding[axis].checked_mul(2).and_then(|padding| padding.checked_add(size[axis]));
            let span = dilation.checked_mul(kernel - 1).and_then(|span| span.checked_add(1));
            let Some((padded, remaining)) =
                padded.zip(span).and_then(|(padded, span)| Some((padded, padded.checked_sub(span)?)))
            else {
                let expected = format!("small enough for an image of {size:?} padded by {:?}", self.padding);
                return Err(wrong_argument(op, "kernel_size", format!("{:?}", self.kernel_size), &expected));
            };
            (sizes[0][axis], sizes[1][axis]) = (remaining / stride + 1, padded);
        }
        Shape::new(&sizes[1])?;
        Ok(sizes)
    }

    /// The flat index in the padded image of each element of each window: elements vary slowest, windows fastest.
    fn flat_indices(&self, [rows, columns]: [usize; 2], width: usize, like: &Tensor) -> Result<Tensor<Int>> {
        let along = |axis: usize, count: usize| {
            let numbers = |len: usize, step: usize| {
                Tensor::on(&like.device()).arange(0_i64, len as i64, 1)?.mul_scalar(step as i64)
            };
            let taps = numbers(self.kernel_size[axis], self.dilation[axis])?.unsqueeze(1)?;
            taps.add(&numbers(count, self.stride[axis])?)
        };
        let vertical = along(0, rows)?.mul_scalar(width as i64)?.unsqueeze(1)?.unsqueeze(3)?;
        let horizontal = along(1, columns)?.unsqueeze(1)?.unsqueeze(0)?;
        vertical.add(&horizontal)?.reshape([-1]) // [kernel_h, kernel_w, rows, columns]
    }
}

/// The windows of images as columns (im2col), as PyTorch's `F.unfold`.
///
/// - `x`: `[batch, channels, height, width]`, or one sample without `batch`
/// - result: `[batch, channels · kernel_h · kernel_w, windows]`, windows row by row
///
/// ```
/// use pagelock_nn::functional::{self as F, FoldOptions};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])?;
/// let columns = F::unfold(&x, FoldOptions::new([2, 2]))?;
/// assert_eq!(columns.to_vec::<f32>()?, [1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has another rank, the window does not fit, or a size,
/// dilation or stride is 0.
pub fn unfold(x: &Tensor, options: FoldOptions) -> Result<Tensor> {
    let (lead, [channels, height, width]) = match *x.dims() {
        [channels, height, width] => (None, [channels, height, width]),
        [batch, channels, height, width] => (Some(batch), [channels, height, width]),
        _ => {
            let expected = "it must be [batch, channels, height, width] or [channels, height, width]; reshape it";
            return Err(wrong_shape("unfold", "the input", x.shape(), expected));
        }
    };
    let [counts, padded] = options.counts("unfold", [height, width])?;
    let [vertical, horizontal] = options.padding.map(signed);
    let whole = match options.padding {
        [0, 0] => x.clone(),
        _ => x.pad(&[horizontal, horizontal, vertical, vertical], PadMode::Constant(0.0))?,
    };
    let planes = whole.reshape([signed(lead.unwrap_or(1) * channels), signed(padded[0] * padded[1])])?;
    let gathered = planes.index_select(1, &options.flat_indices(counts, padded[1], x)?)?;
    let rows = channels * options.kernel_size[0] * options.kernel_size[1];
    let columns = gathered.reshape([lead.unwrap_or(1), rows, counts[0] * counts[1]].map(signed))?;
    if lead.is_none() { columns.squeeze(0) } else { Ok(columns) }
}

/// The image of `output_size` whose windows are the columns, summed where they overlap (col2im), as PyTorch's
/// `F.fold`.
///
/// - `x`: `[batch, channels · kernel_h · kernel_w, windows]`, or one sample without `batch`
/// - result: `[batch, channels, output_size[0], output_size[1]]`
///
/// ```
/// use pagelock_nn::functional::{self as F, FoldOptions};
/// # use pagelock_tensor::Tensor;
/// let columns = Tensor::ones([1, 4, 2])?;
/// let image = F::fold(&columns, [2, 3], FoldOptions::new([2, 2]))?;
/// assert_eq!(image.to_vec::<f32>()?, [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shape of the columns does not fit the image and the
/// windows, or a size, dilation or stride is 0.
pub fn fold(x: &Tensor, output_size: [usize; 2], options: FoldOptions) -> Result<Tensor> {
    let [counts, padded] = options.counts("fold", output_size)?;
    let elements = options.kernel_size[0].saturating_mul(options.kernel_size[1]);
    let (lead, rows) = match *x.dims() {
        [rows, windows] if windows == counts[0] * counts[1] && rows % elements == 0 => (None, rows),
        [batch, rows, windows] if windows == counts[0] * counts[1] && rows % elements == 0 => (Some(batch), rows),
        _ => {
            let windows = counts[0].saturating_mul(counts[1]);
            let expected =
                format!("it must be [batch, a multiple of {elements}, {windows}], or without batch; check the sizes");
            return Err(wrong_shape("fold", "the input", x.shape(), &expected));
        }
    };
    let (batch, channels) = (lead.unwrap_or(1), rows / elements);
    Shape::new(&[elements, counts[0], counts[1]])?;
    let columns = x.reshape([signed(batch * channels), signed(elements * counts[0] * counts[1])])?;
    let zeros = Tensor::on(&x.device()).of(x.dtype()).zeros([batch * channels, padded[0] * padded[1]])?;
    let planes = zeros.index_add(1, &options.flat_indices(counts, padded[1], x)?, &columns)?;
    let whole = planes.reshape([batch, channels, padded[0], padded[1]].map(signed))?;
    let kept = whole.narrow(2, options.padding[0], output_size[0])?.narrow(3, options.padding[1], output_size[1])?;
    if lead.is_none() { kept.squeeze(0) } else { Ok(kept) }
}
