//! Checking derivatives against central differences, in `f64`.

use super::tensor::{Backward, grad};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::random::Generator;
use crate::tensor::Tensor;

/// How close [`gradcheck`] wants derivatives to be: within `absolute + relative · |difference quotient|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// How far each element is moved in both directions. The quotient's error is about step² · f‴ / 6 + 10⁻¹⁶ · f /
    /// step.
    pub step: f64,
    /// The error that is allowed whatever the size of the derivative.
    pub absolute: f64,
    /// The error that is allowed in proportion to the size of the derivative.
    pub relative: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { step: 1e-5, absolute: 1e-8, relative: 1e-6 }
    }
}

/// Compares the derivatives of `f` that `backward` computes with central differences, for every element of every
/// input and a random gradient of the result.
///
/// `f` must depend on the tensors it is given alone, and be smooth at `inputs`: no kink within a step. It gets
/// `float64`.
///
/// ```
/// # use pagelock_tensor::{Tensor, autograd::{Tolerance, gradcheck}};
/// let (a, b) = (Tensor::rand([2, 3])?, Tensor::rand([3, 4])?);
/// gradcheck(|x| x[0].matmul(&x[1])?.tanh(), &[&a, &b], Tolerance::default())?;
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::GradientMismatch`], which names the input's element and the result's element; [`Error::Argument`] for a
/// tolerance that is negative or NaN; those of `f`.
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[&Tensor], tolerance: Tolerance) -> Result<()> {
    if !(tolerance.absolute >= 0.0 && tolerance.relative >= 0.0) {
        let expected = "its `absolute` and `relative` must be at least 0";
        return Err(Error::bad_argument("gradcheck", "tolerance", format!("{tolerance:?}"), expected));
    }
    let upstream = random_like(&f(&plain(inputs)?)?)?;
    let analytic = gradients(&f, inputs, &upstream)?;
    let upstream = upstream.to_vec::<f64>()?;
    for (input, analytic) in analytic.iter().enumerate() {
        for (element, &analytic) in analytic.iter().enumerate() {
            let quotients = quotients(&f, inputs, input, element, tolerance.step)?;
            let numeric: f64 = quotients.iter().zip(&upstream).map(|(quotient, weight)| quotient * weight).sum();
            if !tolerance.accepts(analytic, numeric) {
                return Err(worst(&f, inputs, [input, element], &quotients, tolerance)?);
            }
        }
    }
    Ok(())
}

/// [`gradcheck`] of the gradients of `f`: second derivatives, also with respect to the gradient of the result.
///
/// In an error, the outputs are the elements of the gradients of all inputs, one after another, and the last input is
/// the gradient of the result.
///
/// # Errors
/// As [`gradcheck`].
pub fn gradgradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[&Tensor], tolerance: Tolerance) -> Result<()> {
    let upstream = random_like(&f(&plain(inputs)?)?)?;
    let first = |tensors: &[Tensor]| {
        let Some((upstream, inputs)) = tensors.split_last() else { unreachable!("the gradient is always given") };
        let leaves: Vec<_> = inputs.iter().map(|input| input.clone().set_requires_grad(true)).collect();
        let options = Backward { gradient: Some(upstream.clone()), create_graph: true, ..Backward::default() };
        let found = grad(&[&f(&leaves)?], &leaves.iter().collect::<Vec<_>>(), options)?;
        let flat = found.into_iter().zip(&leaves).map(|(found, leaf)| match found {
            Some(found) => found.reshape([-1]),
            None => leaf.zeros_like()?.reshape([-1]),
        });
        Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)
    };
    let inputs: Vec<_> = inputs.iter().copied().chain([&upstream]).collect();
    gradcheck(first, &inputs, tolerance)
}

impl Tolerance {
    fn allowed(&self, numeric: f64) -> f64 {
        self.absolute + self.relative * numeric.abs()
    }

    /// False if either is NaN.
    fn accepts(&self, analytic: f64, numeric: f64) -> bool {
        (analytic - numeric).abs() <= self.allowed(numeric)
    }
}

/// Uniform in [−1, 1), from a fixed seed, so that checks are reproducible.
fn random_like(result: &Tensor) -> Result<Tensor> {
    let generator = Generator::new(0);
    let values: Vec<f64> = (0..result.len()).map(|_| 2.0 * generator.next_f64() - 1.0).collect();
    Tensor::from_vec(values, result.shape())?.to(&result.device())
}

/// Copies in `f64`, outside the graph.
fn plain(inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|input| input.detached_copy("gradcheck")?.to_dtype(DType::F64)).collect()
}

/// The gradient of each input's elements, by `backward`; zeros where `f` does not depend on an input.
fn gradients(f: &impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[&Tensor], upstream: &Tensor) -> Result<Vec<Vec<f64>>> {
    let leaves: Vec<_> = plain(inputs)?.into_iter().map(|input| input.set_requires_grad(true)).collect();
    let result = f(&leaves)?;
    let found = if result.requires_grad() {
        let options = Backward { gradient: Some(upstream.clone()), ..Backward::default() };
        grad(&[&result], &leaves.iter().collect::<Vec<_>>(), options)?
    } else {
        vec![None; leaves.len()]
    };
    let zeros = |input: &Tensor| Ok(vec![0.0; input.len()]);
    found
        .iter()
        .zip(&leaves)
        .map(|(found, leaf)| found.as_ref().map_or_else(|| zeros(leaf), Tensor::to_vec::<f64>))
        .collect()
}

/// (f(x + step) − f(x − step)) / 2 step of every output, for one element of one input.
fn quotients(
    f: &impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    input: usize,
    element: usize,
    step: f64,
) -> Result<Vec<f64>> {
    let moved = |by: f64| {
        let mut tensors = plain(inputs)?;
        let mut values = tensors[input].to_vec::<f64>()?;
        values[element] += by;
        tensors[input] = Tensor::from_slice(&values, tensors[input].shape())?.to(&tensors[input].device())?;
        f(&tensors)?.to_vec::<f64>()
    };
    let (up, down) = (moved(step)?, moved(-step)?);
    Ok(up.iter().zip(down).map(|(up, down)| (up - down) / (2.0 * step)).collect())
}

/// The error for the output whose derivative is furthest off.
fn worst(
    f: &impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    [input, element]: [usize; 2],
    quotients: &[f64],
    tolerance: Tolerance,
) -> Result<Error> {
    let result = f(&plain(inputs)?)?;
    let (mut found, mut furthest) = (None, f64::NEG_INFINITY);
    for (output, &numeric) in quotients.iter().enumerate() {
        let mut one = vec![0.0; quotients.len()];
        one[output] = 1.0;
        let analytic =
            gradients(f, inputs, &Tensor::from_vec(one, result.shape())?.to(&result.device())?)?[input][element];
        let excess = (analytic - numeric).abs() - tolerance.allowed(numeric);
        if excess > furthest || excess.is_nan() {
            furthest = if excess.is_nan() { f64::INFINITY } else { excess };
            let allowed = tolerance.allowed(numeric);
            found = Some(Error::GradientMismatch { input, element, output, analytic, numeric, allowed });
        }
    }
    Ok(found.unwrap_or_else(|| {
        let text =
            format!("gradcheck: the result is empty, but element {element} of the gradient of input {input} is not 0");
        Error::Argument(text)
    }))
}
