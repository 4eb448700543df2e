//! Initializers whose numbers are computed on the host: truncated normal, orthogonal, identities, sparse.

use pagelock_tensor::{DType, Error, Generator, Result, Tensor, no_grad};

use crate::functional::shared::{reserve, wrong_argument, wrong_shape};

/// Fills with numbers from a normal distribution that is truncated to `low..=high`.
///
/// # Errors
/// [`Error::Argument`] if `deviation` is not above 0, or `low` is not below `high`; [`Error::WorkingMemory`] if
/// the budget refuses the numbers.
pub fn trunc_normal_(
    tensor: &Tensor,
    (mean, deviation): (f64, f64),
    (low, high): (f64, f64),
    generator: &Generator,
) -> Result<()> {
    if deviation.is_nan() || deviation <= 0.0 {
        return Err(wrong_argument("trunc_normal_", "the deviation", deviation, "above 0"));
    }
    if low.is_nan() || high.is_nan() || low >= high {
        return Err(wrong_argument("trunc_normal_", "low", low, &format!("below high, which is {high}")));
    }
    let _listed = reserve("trunc_normal_", 2 * tensor.len())?; // the numbers, and references to those drawn again
    let range = [low, high].map(|bound| (bound - mean) / deviation);
    let numbers = match probability_above(range[0]) - probability_above(range[1]) > 0.25 {
        true => drawn_inside(tensor.len(), range, generator)?,
        false => quantiles(tensor.len(), range, generator)?,
    };
    set_elements(tensor, numbers.into_iter().map(|x| (mean + deviation * x).clamp(low, high)).collect())
}

/// Standard normal numbers. Those that are outside of a range are drawn again.
fn drawn_inside(len: usize, [low, high]: [f64; 2], generator: &Generator) -> Result<Vec<f64>> {
    let draw = |len: usize| Tensor::of(DType::F64).randn_with([len], generator)?.to_vec::<f64>();
    let mut numbers = draw(len)?;
    loop {
        let mut outside: Vec<&mut f64> = numbers.iter_mut().filter(|x| !(low..=high).contains(*x)).collect();
        if outside.is_empty() {
            return Ok(numbers);
        }
        let again = draw(outside.len())?;
        outside.iter_mut().zip(again).for_each(|(to, x)| **to = x);
    }
}

/// Standard normal numbers in a range, by the inverse of the cumulative distribution function. A range above 0 is
/// mirrored, since probabilities near 0 are exact and those near 1 are not.
fn quantiles(len: usize, [low, high]: [f64; 2], generator: &Generator) -> Result<Vec<f64>> {
    let shares = Tensor::of(DType::F64).rand_with([len], generator)?.to_vec::<f64>()?;
    let sign = if low + high > 0.0 { -1.0 } else { 1.0 };
    let [from, to] = [low, high].map(|bound| probability_above(-sign * bound));
    Ok(shares.into_iter().map(|share| sign * normal_quantile(from + share * (to - from))).collect())
}

/// Fills with an orthogonal matrix times `gain`: the rows, or the columns if there are fewer of them, are
/// perpendicular and have the norm `gain` (Saxe et al., 2013, <https://arxiv.org/abs/1312.6120>). All dimensions
/// after the first count as columns.
///
/// # Errors
/// [`Error::Argument`] for fewer than two dimensions; [`Error::WorkingMemory`] if the budget refuses the numbers.
pub fn orthogonal_(tensor: &Tensor, gain: f64, generator: &Generator) -> Result<()> {
    let [rows, ref columns @ ..] = *tensor.dims() else {
        return Err(too_few("orthogonal_", tensor));
    };
    if columns.is_empty() {
        return Err(too_few("orthogonal_", tensor));
    }
    let columns = columns.iter().product::<usize>();
    let (count, len) = (rows.min(columns), rows.max(columns));
    no_grad(|| {
        let vectors = Tensor::of(DType::F64).randn_with([count, len], generator)?;
        let _listed = reserve("orthogonal_", BLOCK.min(count) * len)?;
        orthogonalize(&vectors)?;
        let matrix = if rows <= columns { vectors } else { vectors.t()? };
        let numbers = matrix.mul_scalar(gain)?.reshape(tensor.shape())?.to_dtype(tensor.dtype())?;
        tensor.copy_(&numbers.to(&tensor.device())?)
    })
}

/// The number of rows that are made perpendicular to the rows before at a time.
const BLOCK: usize = 16;

/// Makes each row perpendicular to those before it, and its norm 1. A block of rows is made perpendicular to the blocks
/// before it by products of matrices, all twice, because one pass leaves rounding errors.
fn orthogonalize(vectors: &Tensor) -> Result<()> {
    let [count, len] = vectors.sizes()?;
    for start in (0..count).step_by(BLOCK) {
        let (before, block) = (vectors.narrow(0, 0, start)?, vectors.narrow(0, start, BLOCK.min(count - start))?);
        for _ in 0..2 {
            if start > 0 {
                block.sub_(&block.matmul(&before.t()?)?.matmul(&before)?)?;
            }
            let mut rows = block.to_vec()?;
            orthogonalize_rows(&mut rows, len);
            block.copy_(&Tensor::from_vec(rows, block.shape())?)?;
        }
    }
    Ok(())
}

/// One pass of Gram-Schmidt over rows of `len` numbers.
fn orthogonalize_rows(rows: &mut [f64], len: usize) {
    for current in 0..rows.len() / len {
        let (before, rest) = rows.split_at_mut(current * len);
        let row = &mut rest[..len];
        for other in before.chunks_exact(len) {
            let projection: f64 = other.iter().zip(&*row).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= projection * b);
        }
        let norm = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        row.iter_mut().for_each(|a| *a /= norm);
    }
}

/// Fills a matrix with 1 on its diagonal and 0 elsewhere.
///
/// # Errors
/// [`Error::Argument`] if there are not two dimensions; [`Error::WorkingMemory`] if the budget refuses the numbers.
pub fn eye_(tensor: &Tensor) -> Result<()> {
    let &[rows, columns] = tensor.dims() else {
        return Err(wrong_shape("eye_", "the tensor", tensor.shape(), "it must be a matrix; reshape it"));
    };
    let _listed = reserve("eye_", tensor.len())?;
    let is_diagonal = |index: usize| index / columns == index % columns;
    set_elements(tensor, (0..rows * columns).map(|index| f64::from(u8::from(is_diagonal(index)))).collect())
}

/// Fills the weight of a convolution so that it preserves its input: in each group, the kernel from input channel i
/// to output channel i has a 1 in its middle; all other elements are 0.
///
/// # Errors
/// [`Error::Argument`] if there are not three to five dimensions, or `groups` does not divide the output channels;
/// [`Error::WorkingMemory`] if the budget refuses the numbers.
pub fn dirac_(tensor: &Tensor, groups: usize) -> Result<()> {
    let (outputs, inputs, kernel) = match *tensor.dims() {
        [outputs, inputs, ref kernel @ ..] if (1..=3).contains(&kernel.len()) => (outputs, inputs, kernel),
        _ => {
            let expected = "it must be [out_channels, in_channels, ..kernel] with three to five dimensions";
            return Err(wrong_shape("dirac_", "the weight", tensor.shape(), expected));
        }
    };
    if outputs.checked_rem(groups) != Some(0) {
        let expected = format!("a divisor of {outputs} output channels");
        return Err(wrong_argument("dirac_", "groups", groups, &expected));
    }
    if tensor.is_empty() {
        return Ok(()); // without a loop over its channels
    }
    let (area, per_group) = (kernel.iter().product::<usize>(), outputs / groups);
    let middle = kernel.iter().fold(0, |index, &size| index * size + size / 2);
    let _listed = reserve("dirac_", tensor.len())?;
    let mut numbers = vec![0.0; tensor.len()];
    for output in 0..outputs {
        let input = output % per_group;
        if input < inputs {
            numbers[(output * inputs + input) * area + middle] = 1.0;
        }
    }
    set_elements(tensor, numbers)
}

/// Fills a matrix with normally distributed numbers, then sets the fraction `sparsity` of each column, rounded up, to
/// zero (Martens, 2010).
///
/// # Errors
/// [`Error::Argument`] if there are not two dimensions, or `sparsity` is not in `0..=1`; [`Error::WorkingMemory`]
/// if the budget refuses the numbers.
pub fn sparse_(tensor: &Tensor, sparsity: f64, deviation: f64, generator: &Generator) -> Result<()> {
    let &[rows, columns] = tensor.dims() else {
        return Err(wrong_shape("sparse_", "the tensor", tensor.shape(), "it must be a matrix; reshape it"));
    };
    if !(0.0..=1.0).contains(&sparsity) {
        return Err(wrong_argument("sparse_", "sparsity", sparsity, "0 to 1"));
    }
    if tensor.is_empty() {
        return Ok(()); // without a loop over its columns
    }
    let _listed = reserve("sparse_", tensor.len() + rows)?; // the numbers, and the order of a column
    let n_zeros = (sparsity * rows as f64).ceil() as usize;
    let drawn = Tensor::of(DType::F64).randn_with([rows, columns], generator)?.to_vec::<f64>()?;
    let mut numbers: Vec<f64> = drawn.into_iter().map(|number| number * deviation).collect();
    for column in 0..columns {
        let order = Tensor::randperm_with(rows, generator)?.to_vec::<i64>()?;
        for &row in order.iter().take(n_zeros) {
            numbers[row as usize * columns + column] = 0.0;
        }
    }
    set_elements(tensor, numbers)
}

fn too_few(op: &str, tensor: &Tensor) -> Error {
    wrong_shape(op, "the tensor", tensor.shape(), "it must have at least two dimensions; reshape it")
}

/// Copies numbers from the host into a tensor on any device, rounded to its precision.
fn set_elements(tensor: &Tensor, numbers: Vec<f64>) -> Result<()> {
    let numbers = Tensor::from_vec(numbers, tensor.shape())?.to_dtype(tensor.dtype())?;
    no_grad(|| tensor.copy_(&numbers.to(&tensor.device())?))
}

/// The probability that a standard normal number is above `x`: a series up to 3, a continued fraction above.
fn probability_above(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - probability_above(-x);
    }
    if x > 3.0 {
        return density(x) / (1..=60).rev().fold(x, |fraction, k| x + f64::from(k) / fraction);
    }
    let (mut term, mut sum, mut k) = (x, x, 1.0);
    while term > sum * f64::EPSILON {
        k += 2.0;
        term *= x * x / k;
        sum += term;
    }
    0.5 - density(x) * sum
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The number below which a standard normal number is with probability `p`: an approximation (Abramowitz and Stegun, 1964,
/// 26.2.23), and two of Halley's steps.
fn normal_quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    let t = (-2.0 * p.max(f64::MIN_POSITIVE).ln()).sqrt();
    let top = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let bottom = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut above = t - top / bottom;
    for _ in 0..2 {
        let off = (p - probability_above(above)) / density(above);
        above -= off / (1.0 + 0.5 * above * off);
    }
    -above
}
