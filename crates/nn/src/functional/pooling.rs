//! Pooling of sequences, images and volumes by maximum, mean and power mean, and max unpooling.
//!
//! Pooling can run one dimension after the other: the maximum of a box is the maximum of the maxima of its rows.
//! Plain windows run [`Tensor::max_pool2d`] and [`Tensor::avg_pool2d`]. Dilated windows, and max pooling that returns
//! indices, gather the elements of all windows along one dimension at a time. This takes the memory of the result
//! times the length of a window in that dimension.

use arrayvec::ArrayVec;
use pagelock_tensor::{Int, PadMode, Pool2dOptions, Result, Shape, Tensor};

use super::shared::{shaped, signed, wrong_argument, wrong_shape};

/// The windows of max pooling over `N` dimensions.
///
/// ```
/// use pagelock_nn::functional::MaxPoolOptions;
///
/// let halving = MaxPoolOptions { padding: [1, 1], ..MaxPoolOptions::new([3, 3]).stride([2, 2]) };
/// assert!(!halving.ceil_mode);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolOptions<const N: usize> {
    /// The length of the window in each dimension.
    pub kernel: [usize; N],
    /// The distance between neighboring windows, in elements.
    pub stride: [usize; N],
    /// How far a window may reach beyond each end; at most half of the kernel.
    pub padding: [usize; N],
    /// The distance between neighboring elements of a window.
    pub dilation: [usize; N],
    /// Whether a last window that reaches beyond the end counts too.
    pub ceil_mode: bool,
}

impl<const N: usize> MaxPoolOptions<N> {
    /// Windows that do not overlap: the stride is the length of the window.
    pub fn new(kernel: [usize; N]) -> Self {
        Self { kernel, stride: kernel, padding: [0; N], dilation: [1; N], ceil_mode: false }
    }

    /// With this stride.
    #[must_use]
    pub fn stride(self, stride: [usize; N]) -> Self {
        Self { stride, ..self }
    }

    fn windows(&self) -> Windows<'_> {
        let Self { kernel, stride, padding, dilation, ceil_mode } = self;
        Windows { kernel, stride, padding, dilation, ceil_mode: *ceil_mode }
    }
}

impl From<Pool2dOptions> for MaxPoolOptions<2> {
    fn from(plain: Pool2dOptions) -> Self {
        Self { padding: plain.padding, ..Self::new(plain.kernel).stride(plain.stride) }
    }
}

/// The windows of average pooling over `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolOptions<const N: usize> {
    /// The length of the window in each dimension.
    pub kernel: [usize; N],
    /// The distance between neighboring windows, in elements.
    pub stride: [usize; N],
    /// How far a window may reach beyond each end, where it reads zeros; at most half of the kernel.
    pub padding: [usize; N],
    /// Whether a last window that reaches beyond the end counts too.
    pub ceil_mode: bool,
    /// Whether the zeros of the padding count as elements.
    pub count_include_pad: bool,
    /// The divisor of the sums, instead of the number of elements.
    pub divisor_override: Option<usize>,
}

impl<const N: usize> AvgPoolOptions<N> {
    /// Windows that do not overlap: the stride is the length of the window.
    pub fn new(kernel: [usize; N]) -> Self {
        Self {
            kernel,
            stride: kernel,
            padding: [0; N],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }

    /// With this stride.
    #[must_use]
    pub fn stride(self, stride: [usize; N]) -> Self {
        Self { stride, ..self }
    }

    fn averages(&self) -> Averages<'_> {
        let Self { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override } = self;
        let windows = Windows { kernel, stride, padding, dilation: &[1; 3][..N], ceil_mode: *ceil_mode };
        Averages { windows, count_include_pad: *count_include_pad, divisor_override: *divisor_override }
    }
}

impl From<Pool2dOptions> for AvgPoolOptions<2> {
    fn from(plain: Pool2dOptions) -> Self {
        Self { padding: plain.padding, ..Self::new(plain.kernel).stride(plain.stride) }
    }
}

/// Windows over any number of last dimensions.
struct Windows<'a> {
    kernel: &'a [usize],
    stride: &'a [usize],
    padding: &'a [usize],
    dilation: &'a [usize],
    ceil_mode: bool,
}

struct Averages<'a> {
    windows: Windows<'a>,
    count_include_pad: bool,
    divisor_override: Option<usize>,
}

impl Windows<'_> {
    /// The number of windows in each of the last dimensions. All shapes of sliding windows are checked here.
    fn counts(&self, op: &str, x: &Tensor) -> Result<ArrayVec<usize, 3>> {
        let sizes = space(op, x, self.kernel.len())?;
        sizes.iter().enumerate().map(|(axis, &size)| self.count(op, x, axis, size)).collect()
    }

    fn count(&self, op: &str, x: &Tensor, axis: usize, size: usize) -> Result<usize> {
        let [kernel, stride, padding] = [self.kernel[axis], self.stride[axis], self.padding[axis]];
        for (argument, value) in [("kernel", kernel), ("stride", stride), ("dilation", self.dilation[axis])] {
            if value == 0 {
                return Err(wrong_argument(op, argument, 0, "at least 1"));
            }
        }
        if padding > kernel / 2 {
            let expected = format!("at most half of the kernel, which is {kernel}");
            return Err(wrong_argument(op, "padding", padding, &expected));
        }
        let remaining = self.span(axis).and_then(|span| size.checked_add(2 * padding)?.checked_sub(span));
        let Some(remaining) = remaining.filter(|_| size > 0) else {
            let expected = format!(
                "padded by {:?} it must be at least as large as the window, {:?} dilated by {:?}; use a smaller kernel",
                self.padding, self.kernel, self.dilation
            );
            return Err(wrong_shape(op, "the input", x.shape(), &expected));
        };
        let count = if self.ceil_mode { remaining.div_ceil(stride) } else { remaining / stride } + 1;
        // The last window begins in the input, or in the padding before it.
        let begins_outside = self.ceil_mode && (count - 1).saturating_mul(stride) >= size.saturating_add(padding);
        Ok(if begins_outside { count - 1 } else { count })
    }

    /// How many elements a window has.
    fn elements(&self) -> f64 {
        self.kernel.iter().map(|&kernel| kernel as f64).product()
    }

    /// How many entries of a dimension a window spans, including gaps.
    fn span(&self, axis: usize) -> Option<usize> {
        self.dilation[axis].checked_mul(self.kernel[axis] - 1)?.checked_add(1)
    }

    /// The entries of a dimension that each window covers. An entry outside is replaced by the window's first entry
    /// inside, which does not change the maximum.
    fn entries(&self, op: &str, axis: usize, size: usize, count: usize) -> Result<WindowEntries> {
        let [stride, padding, dilation] = [self.stride[axis], self.padding[axis], self.dilation[axis]];
        let kernel = self.kernel[axis];
        let mut misses_input = false;
        let index = Tensor::build(count.saturating_mul(kernel), |index: &mut [i64]| {
            for (window, index) in index.chunks_exact_mut(kernel).enumerate() {
                let inside =
                    |tap: usize| (window * stride + tap * dilation).checked_sub(padding).filter(|&at| at < size);
                let first = (0..kernel).find_map(inside);
                misses_input |= first.is_none();
                let entries = (0..kernel).map(|tap| inside(tap).or(first).unwrap_or(0) as i64);
                std::iter::zip(index, entries).for_each(|(out, entry)| *out = entry);
            }
        })?;
        if misses_input {
            let expected = format!("small enough that every window covers at least one of the {size} elements");
            return Err(wrong_argument(op, "dilation", dilation, &expected));
        }
        Ok(WindowEntries { index, count, len: kernel })
    }

    /// The padding that makes the last window of each dimension fit: `[left, right, top, bottom, …]`.
    fn end_padding(&self, x: &Tensor, counts: &[usize]) -> ArrayVec<isize, 6> {
        let sizes = &x.dims()[x.rank() - counts.len()..];
        let of = |axis: usize| {
            let needed = (counts[axis] - 1).saturating_mul(self.stride[axis]).saturating_add(self.kernel[axis]);
            isize::try_from(needed.saturating_sub(sizes[axis] + 2 * self.padding[axis])).unwrap_or(isize::MAX)
        };
        (0..counts.len()).rev().flat_map(|axis| [0, of(axis)]).collect()
    }

    fn as_images(&self, axes: [usize; 2]) -> Pool2dOptions {
        let of = |values: &[usize]| axes.map(|axis| values[axis]);
        Pool2dOptions { kernel: of(self.kernel), stride: of(self.stride), padding: of(self.padding) }
    }

    /// Calls `pool` with these windows: once for sequences and images, twice for volumes.
    fn over(&self, x: &Tensor, pool: &dyn Fn(&Tensor, Pool2dOptions) -> Result<Tensor>) -> Result<Tensor> {
        match *self.kernel {
            [kernel] => {
                let rows =
                    Pool2dOptions { kernel: [1, kernel], stride: [1, self.stride[0]], padding: [0, self.padding[0]] };
                pool(&x.unsqueeze(-2)?, rows)?.squeeze(-2)
            }
            [_, _] => pool(x, self.as_images([0, 1])),
            _ => {
                let planes = pool(x, self.as_images([1, 2]))?;
                let size = Shape::new(&planes.dims()[planes.rank() - 2..])?;
                let columns = Pool2dOptions {
                    kernel: [self.kernel[0], 1],
                    stride: [self.stride[0], 1],
                    padding: [self.padding[0], 0],
                };
                pool(&planes.flatten(-2, -1)?, columns)?.unflatten(-1, size)
            }
        }
    }
}

/// The sizes of the last `dims` dimensions, which follow the channels and an optional batch.
fn space<'x>(op: &str, x: &'x Tensor, dims: usize) -> Result<&'x [usize]> {
    if x.rank() == dims + 1 || x.rank() == dims + 2 {
        return Ok(&x.dims()[x.rank() - dims..]);
    }
    let expected =
        format!("it must be [batch, channels, ..] or [channels, ..] with {dims} more dimensions; reshape it");
    Err(wrong_shape(op, "the input", x.shape(), &expected))
}

/// The entries that windows cover along a dimension: `count` rows of `len` entries.
struct WindowEntries {
    index: Tensor<Int>,
    count: usize,
    len: usize,
}

/// The maxima over windows along the dimensions so far, and optionally their flat indices in their channel
/// (`indices`).
struct Largest {
    values: Tensor,
    indices: Option<Tensor<Int>>,
}

impl Largest {
    /// The input before any reduction. With indices, each element starts with its flat index in its channel.
    fn new(x: &Tensor, dims: usize, with_indices: bool) -> Result<Self> {
        let number = || {
            let of_channel = Shape::new(&x.dims()[x.rank() - dims..])?;
            let order = Tensor::on(&x.device()).arange(0_i64, of_channel.elements() as i64, 1)?;
            order.unflatten(0, of_channel)?.expand(x.shape())
        };
        Ok(Self { values: x.clone(), indices: if with_indices { Some(number()?) } else { None } })
    }

    fn along(self, dim: usize, entries: &WindowEntries) -> Result<Self> {
        let index = entries.index.to(&self.values.device())?;
        let (dim, window_dim, windows) = (signed(dim), signed(dim + 1), [entries.count, entries.len]);
        let gathered = self.values.index_select(dim, &index)?.unflatten(dim, windows)?;
        let (values, chosen) = gathered.max_dim(window_dim)?;
        let indices = match self.indices {
            None => None,
            Some(indices) => {
                let gathered = indices.index_select(dim, &index)?.unflatten(dim, windows)?;
                Some(gathered.gather(window_dim, &chosen.unsqueeze(window_dim)?)?.squeeze(window_dim)?)
            }
        };
        Ok(Self { values, indices })
    }
}

fn max_pool(op: &str, x: &Tensor, windows: &Windows<'_>) -> Result<Tensor> {
    let counts = windows.counts(op, x)?;
    if windows.dilation.iter().any(|&dilation| dilation > 1) {
        return Ok(largest(op, x, windows, &counts, false)?.values);
    }
    let end_padding = windows.end_padding(x, &counts);
    let whole = if end_padding.iter().any(|&more| more > 0) {
        x.pad(&end_padding, PadMode::Constant(f64::NEG_INFINITY))?
    } else {
        x.clone()
    };
    windows.over(&whole, &|x, geometry| x.max_pool2d(geometry))
}

fn max_pool_with_indices(op: &str, x: &Tensor, windows: &Windows<'_>) -> Result<(Tensor, Tensor<Int>)> {
    let counts = windows.counts(op, x)?;
    values_and_indices(largest(op, x, windows, &counts, true)?)
}

fn values_and_indices(largest: Largest) -> Result<(Tensor, Tensor<Int>)> {
    let Some(indices) = largest.indices else { unreachable!("the caller requested the indices") };
    Ok((largest.values, indices))
}

fn largest(op: &str, x: &Tensor, windows: &Windows<'_>, counts: &[usize], with_indices: bool) -> Result<Largest> {
    let dims = counts.len();
    (0..dims).rev().try_fold(Largest::new(x, dims, with_indices)?, |largest, axis| {
        let dim = x.rank() - dims + axis;
        largest.along(dim, &windows.entries(op, axis, x.dims()[dim], counts[axis])?)
    })
}

fn avg_pool(op: &str, x: &Tensor, averages: &Averages<'_>) -> Result<Tensor> {
    let Averages { windows, count_include_pad, divisor_override } = averages;
    let counts = windows.counts(op, x)?;
    let end_padding = windows.end_padding(x, &counts);
    let is_extended = end_padding.iter().any(|&more| more > 0);
    let whole = if is_extended { x.pad(&end_padding, PadMode::Constant(0.0))? } else { x.clone() };
    let means = windows.over(&whole, &|x, geometry| x.avg_pool2d(geometry))?;
    if let Some(divisor) = divisor_override {
        if *divisor == 0 {
            return Err(wrong_argument(op, "divisor_override", 0, "at least 1"));
        }
        return means.mul_scalar(windows.elements() / *divisor as f64);
    }
    let is_padded = windows.padding.iter().any(|&padding| padding > 0);
    if !is_extended && (*count_include_pad || !is_padded) {
        return Ok(means);
    }
    (0..counts.len()).try_fold(means, |means, axis| {
        let dim = means.rank() - counts.len() + axis;
        let factors = averages.factors(axis, x.dims()[dim], counts[axis])?.to_dtype(x.dtype())?.to(&x.device())?;
        means.mul(&(dim + 1..means.rank()).try_fold(factors, |factors, _| factors.unsqueeze(-1))?)
    })
}

impl Averages<'_> {
    /// The factors along a dimension that turn means over whole windows into means over the elements that count.
    fn factors(&self, axis: usize, size: usize, count: usize) -> Result<Tensor> {
        let Windows { kernel, stride, padding, .. } = self.windows;
        let [kernel, stride, padding] = [kernel[axis], stride[axis], padding[axis]];
        let counted = |window: usize| {
            let (start, end) = (window * stride, (window * stride).saturating_add(kernel).min(size + 2 * padding));
            match self.count_include_pad {
                true => end - start,
                false => end.min(size + padding).saturating_sub(start.max(padding)).max(1),
            }
        };
        Tensor::build(count, |factors: &mut [f64]| {
            let all = factors.iter_mut().enumerate();
            all.for_each(|(window, factor)| *factor = kernel as f64 / counted(window) as f64);
        })
    }
}

/// Windows that cover `size` entries evenly: window `i` of `count` begins at ⌊i·size/count⌋ and ends before ⌈(i +
/// 1)·size/count⌉.
fn even_entries(op: &str, size: usize, count: usize) -> Result<WindowEntries> {
    if count == 0 {
        return Err(wrong_argument(op, "size", 0, "at least 1"));
    }
    let len = if size.is_multiple_of(count) { size / count } else { size / count + 2 };
    let index = Tensor::build(count.saturating_mul(len), |index: &mut [i64]| {
        for (window, index) in index.chunks_exact_mut(len).enumerate() {
            let at = |window: usize| window as u128 * size as u128;
            let (start, end) = (at(window) / count as u128, at(window + 1).div_ceil(count as u128));
            index.iter_mut().enumerate().for_each(|(tap, entry)| *entry = (start + tap as u128).min(end - 1) as i64);
        }
    })?;
    Ok(WindowEntries { index, count, len })
}

fn adaptive_max_pool(op: &str, x: &Tensor, size: &[usize], with_indices: bool) -> Result<Largest> {
    let dims = size.len();
    if space(op, x, dims)?.contains(&0) {
        return Err(wrong_shape(op, "the input", x.shape(), "no dimension that is pooled may be empty"));
    }
    (0..dims).rev().try_fold(Largest::new(x, dims, with_indices)?, |largest, axis| {
        let dim = x.rank() - dims + axis;
        largest.along(dim, &even_entries(op, x.dims()[dim], size[axis])?)
    })
}

/// `pools! { dims, shape, out; max, max_with_indices, avg, adaptive_max, adaptive_max_with_indices, lp, unpool }`
macro_rules! pools {
    ($n:literal, $shape:literal, $max:ident, $max_with:ident, $avg:ident, $adaptive:ident, $adaptive_with:ident, $lp:ident, $unpool:ident) => {
        /// The largest element of each window; NaN counts as the largest.
        ///
        #[doc = concat!("- `x`: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - result: the same with `out = (size + 2·padding − dilation·(kernel − 1) − 1) / stride + 1` in each of
        ///   these dimensions, rounded up with `ceil_mode` if the last window still begins inside
        ///
        /// # Errors
        /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shape does not fit, the window is larger than
        /// the padded input, the padding is more than half of the kernel, or a size, stride or dilation is 0.
        pub fn $max(x: &Tensor, options: impl Into<MaxPoolOptions<$n>>) -> Result<Tensor> {
            max_pool(stringify!($max), x, &options.into().windows())
        }

        #[doc = concat!("[`", stringify!($max), "`], and the flat indices of the largest elements in their channel, which")]
        #[doc = concat!("[`", stringify!($unpool), "`] takes.")]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($max), "`].")]
        pub fn $max_with(x: &Tensor, options: impl Into<MaxPoolOptions<$n>>) -> Result<(Tensor, Tensor<Int>)> {
            max_pool_with_indices(stringify!($max_with), x, &options.into().windows())
        }

        /// The mean of each window. Elements beyond the ends count as 0, or not at all.
        ///
        #[doc = concat!("Shapes and errors as for [`", stringify!($max), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($max), "`]; for a `divisor_override` of 0.")]
        pub fn $avg(x: &Tensor, options: impl Into<AvgPoolOptions<$n>>) -> Result<Tensor> {
            avg_pool(stringify!($avg), x, &options.into().averages())
        }

        /// The largest element of each of `size` windows that cover each dimension evenly: window `i` of `n` covers
        /// the elements ⌊i·in/n⌋ to ⌈(i + 1)·in/n⌉.
        ///
        #[doc = concat!("- `x`: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - result: the same with `size` in these dimensions
        ///
        /// # Errors
        /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shape does not fit, or a size is 0.
        pub fn $adaptive(x: &Tensor, size: [usize; $n]) -> Result<Tensor> {
            Ok(adaptive_max_pool(stringify!($adaptive), x, &size, false)?.values)
        }

        #[doc = concat!("[`", stringify!($adaptive), "`], and the flat indices of the largest elements, as [`", stringify!($max_with), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($adaptive), "`].")]
        pub fn $adaptive_with(x: &Tensor, size: [usize; $n]) -> Result<(Tensor, Tensor<Int>)> {
            values_and_indices(adaptive_max_pool(stringify!($adaptive_with), x, &size, true)?)
        }

        /// `(Σ xᵖ)^(1/p)` of each window, where p is `norm_type`. Without a `stride`, the windows do not overlap.
        ///
        #[doc = concat!("Shapes as for [`", stringify!($max), "`].")]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($max), "`].")]
        pub fn $lp(x: &Tensor, norm_type: f64, kernel: [usize; $n], stride: Option<[usize; $n]>, ceil_mode: bool) -> Result<Tensor> {
            let options = AvgPoolOptions { ceil_mode, ..AvgPoolOptions::new(kernel).stride(stride.unwrap_or(kernel)) };
            lp_pool(stringify!($lp), x, norm_type, &options.averages())
        }

        #[doc = concat!("Puts each element at its index and zeros elsewhere: a partial inverse of [`", stringify!($max_with), "`].")]
        /// Elements with the same index are averaged; in PyTorch they overwrite each other in an unspecified order.
        ///
        #[doc = concat!("- `x`, `indices`: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - result: the same with `output_size` in these dimensions
        ///
        /// # Errors
        /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes differ or do not fit;
        /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for an index outside of the result.
        pub fn $unpool(x: &Tensor, indices: &Tensor<Int>, output_size: [usize; $n]) -> Result<Tensor> {
            max_unpool(stringify!($unpool), x, indices, &output_size)
        }
    };
}

pools!(
    1,
    "length",
    max_pool1d,
    max_pool1d_with_indices,
    avg_pool1d,
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    lp_pool1d,
    max_unpool1d
);
pools!(
    2,
    "height, width",
    max_pool2d,
    max_pool2d_with_indices,
    avg_pool2d,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    lp_pool2d,
    max_unpool2d
);
pools!(
    3,
    "depth, height, width",
    max_pool3d,
    max_pool3d_with_indices,
    avg_pool3d,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    lp_pool3d,
    max_unpool3d
);

fn lp_pool(op: &str, x: &Tensor, norm_type: f64, averages: &Averages<'_>) -> Result<Tensor> {
    if !(norm_type > 0.0 && norm_type.is_finite()) {
        return Err(wrong_argument(op, "norm_type", norm_type, "above 0"));
    }
    let sums = avg_pool(op, &x.pow(norm_type)?, averages)?.mul_scalar(averages.windows.elements())?;
    let is_zero = sums.eq_scalar(0.0)?; // the root has no gradient there, and PyTorch's is 0
    sums.masked_fill(&is_zero, 1.0)?.pow(1.0 / norm_type)?.masked_fill(&is_zero, 0.0)
}

fn max_unpool(op: &str, x: &Tensor, indices: &Tensor<Int>, size: &[usize]) -> Result<Tensor> {
    let dims = size.len();
    space(op, x, dims)?;
    if x.shape() != indices.shape() {
        let expected = format!("it must have the input's shape {}", x.shape());
        return Err(wrong_shape(op, "the tensor of indices", indices.shape(), &expected));
    }
    let lead = x.rank() - dims;
    let mut wide = x.dims()[..lead].to_vec();
    wide.extend(size);
    let wide = Shape::new(&wide)?;
    let mut flat = wide[..lead].to_vec();
    flat.push(Shape::new(size)?.elements());
    let (flat, dim) = (Shape::new(&flat)?, signed(lead));
    let (values, indices) = (x.flatten(dim, -1)?, indices.flatten(dim, -1)?);
    let zeros = || Tensor::on(&x.device()).of(x.dtype()).zeros(flat);
    let counts = zeros()?.scatter_add(dim, &indices, &values.detach().ones_like()?)?.clamp_min(1.0)?;
    shaped(&zeros()?.scatter_add(dim, &indices, &values)?.div(&counts)?, &wide)
}

/// The means of `size` windows that cover the sequence evenly.
///
/// - `x`: `[batch, channels, length]`, or one sample without `batch`
/// - result: `[batch, channels, size]`
///
/// # Errors
/// As [`adaptive_avg_pool2d`](super::adaptive_avg_pool2d).
pub fn adaptive_avg_pool1d(x: &Tensor, size: usize) -> Result<Tensor> {
    space("adaptive_avg_pool1d", x, 1)?;
    x.unsqueeze(-2)?.adaptive_avg_pool2d([1, size])?.squeeze(-2)
}

/// The means of `size` windows that cover each dimension of the volume evenly.
///
/// - `x`: `[batch, channels, depth, height, width]`, or one sample without `batch`
/// - result: the same with `size` in the last three dimensions
///
/// # Errors
/// As [`adaptive_avg_pool2d`](super::adaptive_avg_pool2d).
pub fn adaptive_avg_pool3d(x: &Tensor, size: [usize; 3]) -> Result<Tensor> {
    space("adaptive_avg_pool3d", x, 3)?;
    let [depth, height, width] = size;
    let planes = x.adaptive_avg_pool2d([height, width])?.flatten(-2, -1)?;
    planes.adaptive_avg_pool2d([depth, height.saturating_mul(width)])?.unflatten(-1, [height, width])
}
