//! Max pooling with windows at random positions.

use super::shared::{signed, wrong_argument, wrong_shape};
use pagelock_tensor::{DType, Generator, Int, Result, Tensor};

/// The largest element of each window, as PyTorch's `F.fractional_max_pool2d`. Windows begin at random positions,
/// whose distances differ by at most one, so an image can shrink by any factor (Graham, 2014,
/// <https://arxiv.org/abs/1412.6071>).
///
/// - `x`: `[batch, channels, height, width]`, or one sample without `batch`
/// - `kernel`: height and width of a window
/// - result: the same with `output_size` in the last two dimensions
///
/// `generator` draws the positions for each channel of each sample. The elements of all windows are in memory at
/// once.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::{Generator, Tensor};
/// let y = F::fractional_max_pool2d(&Tensor::randn([2, 3, 8, 9])?, [2, 2], [5, 6], &Generator::new(0))?;
/// assert_eq!(y.dims(), [2, 3, 5, 6]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has another rank, a size is 0, or the image is
/// smaller than `output_size + kernel − 1`.
pub fn fractional_max_pool2d(
    x: &Tensor,
    kernel: [usize; 2],
    output_size: [usize; 2],
    generator: &Generator,
) -> Result<Tensor> {
    let samples = random_samples(x, kernel, output_size, generator)?;
    Ok(fractional_max_pool2d_with_indices(x, kernel, output_size, &samples)?.0)
}

/// Two random numbers from 0 to 1 for each channel of `x`: `[batch, channels, 2]`. They are drawn after all else was
/// checked.
pub(crate) fn random_samples(
    x: &Tensor,
    kernel: [usize; 2],
    output_size: [usize; 2],
    generator: &Generator,
) -> Result<Tensor> {
    let (channels, size) = match *x.dims() {
        [channels, height, width] => ([1, channels], [height, width]),
        [batch, channels, height, width] => ([batch, channels], [height, width]),
        _ => return Err(wrong_rank(x)),
    };
    check(size, kernel, output_size)?;
    Tensor::on(&x.device()).of(DType::F32).rand_with([channels[0], channels[1], 2], generator)
}

/// [`fractional_max_pool2d`] and the flat index of each largest element in its channel: PyTorch's
/// `return_indices=True`.
///
/// - `random_samples`: `[batch, channels, 2]`, numbers in `0..1` that place the columns and the rows: PyTorch's
///   `_random_samples`
///
/// # Errors
/// As [`fractional_max_pool2d`], and if `random_samples` has another shape.
pub fn fractional_max_pool2d_with_indices(
    x: &Tensor,
    kernel: [usize; 2],
    output_size: [usize; 2],
    random_samples: &Tensor,
) -> Result<(Tensor, Tensor<Int>)> {
    if x.rank() == 3 {
        let (y, indices) = fractional_max_pool2d_with_indices(&x.unsqueeze(0)?, kernel, output_size, random_samples)?;
        return Ok((y.squeeze(0)?, indices.squeeze(0)?));
    }
    let &[batch, channels, height, width] = x.dims() else { return Err(wrong_rank(x)) };
    check([height, width], kernel, output_size)?;
    if random_samples.dims() != [batch, channels, 2] {
        let expected = format!("it must be [{batch}, {channels}, 2], two numbers for each channel");
        return Err(wrong_shape(OP, "random_samples", random_samples.shape(), &expected));
    }
    let planes = batch * channels;
    let samples = random_samples.detach().to(&x.device())?.to_dtype(DType::F64)?.reshape([signed(planes), 2])?;
    let [columns, rows] = [(0, width), (1, height)]
        .map(|(which, size)| starts(&samples.narrow(1, which, 1)?, size - kernel[1 - which], output_size[1 - which]));
    let within = |len: usize| Tensor::on(&x.device()).arange(0_i64, len as i64, 1);
    let rows = rows?.unsqueeze(-1)?.unsqueeze(-1)?.unsqueeze(-1)?; // [planes, rows, 1, 1, 1]
    let columns = columns?.unsqueeze(1)?.unsqueeze(-1)?.unsqueeze(-1)?; // [planes, 1, columns, 1, 1]
    let rows = rows.add(&within(kernel[0])?.unsqueeze(-1)?)?.mul_scalar(width as i64)?;
    // [planes, rows, columns, rows and columns of a window]
    let indices = rows.add(&columns.add(&within(kernel[1])?)?)?;
    let windows = [planes, output_size[0] * output_size[1], kernel[0] * kernel[1]];
    let flat = [planes, windows[1] * windows[2]].map(signed);
    let numbers = x.reshape([planes, height * width].map(signed))?.gather(1, &indices.reshape(flat)?)?;
    let (numbers, indices) = (numbers.reshape(windows.map(signed))?, indices.reshape(windows.map(signed))?);
    let largest = numbers.argmax_keepdim(-1)?;
    let shape = [batch, channels, output_size[0], output_size[1]].map(signed);
    Ok((numbers.gather(-1, &largest)?.reshape(shape)?, indices.gather(-1, &largest)?.reshape(shape)?))
}

const OP: &str = "fractional_max_pool2d";

fn wrong_rank(x: &Tensor) -> pagelock_tensor::Error {
    wrong_shape(OP, "the input", x.shape(), "it must be [batch, channels, height, width], or without batch; reshape it")
}

fn check(size: [usize; 2], kernel: [usize; 2], output_size: [usize; 2]) -> Result<()> {
    for ((size, kernel), output) in size.into_iter().zip(kernel).zip(output_size) {
        if kernel == 0 {
            return Err(wrong_argument(OP, "kernel", kernel, "at least 1"));
        }
        if output == 0 || output.checked_add(kernel - 1).is_none_or(|needed| needed > size) {
            let expected = format!("from 1 to {size} − {kernel} + 1, for windows of {kernel} in {size} elements");
            return Err(wrong_argument(OP, "output_size", output, &expected));
        }
    }
    Ok(())
}

/// Where windows begin, from 0 to `last`: `[planes, output]`, for samples `[planes, 1]`.
fn starts(samples: &Tensor, last: usize, output: usize) -> Result<Tensor<Int>> {
    let device = samples.device();
    let on = Tensor::on(&device).of(DType::F64);
    let end = on.full([samples.dims()[0], 1], last as f64)?;
    if output == 1 {
        return end.to_int();
    }
    let step = last as f64 / (output - 1) as f64;
    let number = on.arange(0.0, (output - 1) as f64, 1.0)?;
    let first = samples.mul_scalar(step)?.floor()?;
    let others = samples.add(&number)?.mul_scalar(step)?.floor()?.sub(&first)?;
    Tensor::cat(&[&others, &end], 1)?.to_int()
}
