//! Weights that are computed from other parameters, as PyTorch's `torch.nn.utils.parametrizations`: weight norm, spectral norm.
//!
//! A [`Parametrized`] layer computes its weight in each forward. Its names are PyTorch's: the layer's own, without
//! `weight`, and `parametrizations.weight.original` (weight norm: `original0` and `original1`). Files of PyTorch's
//! older `weight_norm` have `weight_g` and `weight_v`; [`StateDict::renamed`](crate::StateDict::renamed) gives them
//! the new names.
//!
//! ```
//! use pagelock_nn::{Forward, Linear, Module, parametrizations::weight_norm};
//! use pagelock_tensor::Tensor;
//!
//! let layer = weight_norm(Linear::new(3, 2)?, 0)?;
//! let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
//! assert_eq!(names, ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]);
//! assert_eq!(layer.forward(&Tensor::ones([4, 3])?)?.dims(), [4, 2]);
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```

use crate::functional::shared::wrong_argument;
use crate::{Buffer, Forward, Mode, Module, Parameter, Visitor, VisitorMut, functional, module_scope, print};
use pagelock_tensor::{Generator, Result, Tensor, default_generator, no_grad};
use std::fmt;

/// A layer whose weight can be passed in.
pub trait Weighted: Module + Forward {
    /// The weight, which the layer visits under the name `weight`.
    fn weight(&self) -> &Parameter;

    /// [`forward`](Forward::forward) with `weight` instead of the layer's own.
    ///
    /// # Errors
    /// As [`forward`](Forward::forward).
    fn forward_with_weight(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor>;

    /// The output dimension of the weight: 1 for transposed convolutions, else 0.
    fn output_dim(&self) -> isize {
        0
    }
}

/// Computes a weight from the parameters that are trained in its place. What the parametrization itself visits is
/// saved under `parametrizations.weight.0`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, Module, parametrizations::{Parametrization, Parametrized}};
/// use pagelock_tensor::{Result, Tensor};
///
/// #[derive(Module)]
/// struct Symmetric;
///
/// impl Parametrization for Symmetric {
///     fn weight(&self, original: &Tensor) -> Result<Tensor> {
///         original.triu(0)?.add(&original.triu(1)?.t()?)
///     }
/// }
///
/// let layer = Parametrized::new(Linear::new(3, 3)?, Symmetric);
/// let weight = layer.weight()?;
/// assert_eq!(weight.to_vec::<f32>()?, weight.t()?.to_vec::<f32>()?);
/// assert_eq!(layer.named_parameters()[1].0, "parametrizations.weight.original");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub trait Parametrization: Module {
    /// Computes the weight. `original` is the parameter with the weight's shape.
    ///
    /// # Errors
    /// The errors of the operations inside.
    fn weight(&self, original: &Tensor) -> Result<Tensor>;

    /// Calls the layer's `forward` with the weight. A parametrization whose buffers change in each forward changes
    /// them after the call, so that a failed forward changes nothing.
    ///
    /// # Errors
    /// The errors of [`weight`](Self::weight) and of `forward`.
    fn forward_with(&self, original: &Tensor, forward: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        forward(&self.weight(original)?)
    }

    /// A second parameter of the weight, saved as `original0`; `original` is then saved as `original1`.
    fn original0(&self) -> Option<&Parameter> {
        None
    }

    /// Mutable access to [`original0`](Self::original0).
    fn original0_mut(&mut self) -> Option<&mut Parameter> {
        None
    }
}

/// A layer whose weight is computed by a [`Parametrization`]; made by [`weight_norm`], [`spectral_norm`] or [`new`](Self::new).
pub struct Parametrized<L, P> {
    /// Its own weight is the original.
    layer: L,
    parametrization: P,
}

impl<L: Weighted, P: Parametrization> Parametrized<L, P> {
    /// Parametrizes the layer, with its weight as the original.
    pub fn new(layer: L, parametrization: P) -> Self {
        Self { layer, parametrization }
    }

    /// The current weight.
    ///
    /// # Errors
    /// As [`Parametrization::weight`].
    pub fn weight(&self) -> Result<Tensor> {
        self.parametrization.weight(self.layer.weight())
    }

    /// How the weight is computed.
    pub fn parametrization(&self) -> &P {
        &self.parametrization
    }

    /// The plain layer with the current weight: PyTorch's `remove_parametrizations`.
    ///
    /// # Errors
    /// As [`weight`](Self::weight).
    pub fn remove(self) -> Result<L> {
        no_grad(|| self.layer.weight().copy_(&self.weight()?))?;
        Ok(self.layer)
    }
}

impl<L: Weighted, P: Parametrization> Forward for Parametrized<L, P> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        let forward = |weight: &Tensor| self.layer.forward_with_weight(x, weight);
        self.parametrization.forward_with(self.layer.weight(), &forward)
    }
}

impl<L: Weighted, P: Parametrization> Module for Parametrized<L, P> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        let list = ParametrizationList {
            weight: self.layer.weight(),
            extra: self.parametrization.original0(),
            parametrization: &self.parametrization,
        };
        visitor.all_but("weight", &mut |visitor| self.layer.visit(visitor));
        visitor.child(
            "parametrizations",
            &Named { name: "weight", title: "ModuleDict", visit: &|visitor| list.visit(visitor) },
        );
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layer.visit_mut(visitor);
        if let Some(parameter) = self.parametrization.original0_mut() {
            visitor.child(parameter);
        }
        self.parametrization.visit_mut(visitor);
    }

    fn title(&self) -> String {
        format!("Parametrized{}", self.layer.title())
    }

    fn details(&self) -> String {
        self.layer.details()
    }
}

impl<L: Weighted, P: Parametrization> fmt::Display for Parametrized<L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self).fmt(f)
    }
}

impl<L: Weighted, P: Parametrization> fmt::Debug for Parametrized<L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The children of PyTorch's `ParametrizationList`.
struct ParametrizationList<'a> {
    weight: &'a Parameter,
    extra: Option<&'a Parameter>,
    parametrization: &'a dyn Module,
}

impl ParametrizationList<'_> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(extra) = self.extra {
            visitor.child("original0", extra);
        }
        visitor.child(if self.extra.is_some() { "original1" } else { "original" }, self.weight);
        visitor.child("0", self.parametrization);
    }
}

/// A module that only adds a name to the path of what `visit` visits.
struct Named<'a> {
    name: &'a str,
    title: &'a str,
    visit: &'a dyn Fn(&mut Visitor<'_>),
}

impl Module for Named<'_> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self.title {
            "ModuleDict" => {
                visitor.child(self.name, &Named { name: "", title: "ParametrizationList", visit: self.visit });
            }
            _ => (self.visit)(visitor),
        }
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn title(&self) -> String {
        self.title.to_owned()
    }
}

/// `g · v / ‖v‖`: lengths and directions are trained separately (Salimans and Kingma, 2016,
/// <https://arxiv.org/abs/1602.07868>).
pub struct WeightNorm {
    /// The lengths, which PyTorch calls `g`.
    original0: Parameter,
    dim: isize,
}

/// The norms over all dimensions but `dim`, which stay with size 1; for −1 one norm over all dimensions, `[]`.
fn norms(weight: &Tensor, dim: isize) -> Result<Tensor> {
    if dim == -1 {
        return weight.norm(2.0, ..);
    }
    let rank = weight.rank() as isize;
    let others: Vec<isize> = (0..rank).filter(|&other| other != dim.rem_euclid(rank.max(1))).collect();
    weight.norm_keepdim(2.0, &others[..])
}

impl Module for WeightNorm {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn title(&self) -> String {
        "_WeightNorm".to_owned()
    }
}

impl Parametrization for WeightNorm {
    fn weight(&self, original: &Tensor) -> Result<Tensor> {
        original.mul(&self.original0.div(&norms(original, self.dim)?)?)
    }

    fn original0(&self) -> Option<&Parameter> {
        Some(&self.original0)
    }

    fn original0_mut(&mut self) -> Option<&mut Parameter> {
        Some(&mut self.original0)
    }
}

/// The layer with [`WeightNorm`], as PyTorch's `parametrizations.weight_norm`: one length for each entry of dimension
/// `dim` of the weight (PyTorch's default is 0). A `dim` of −1 stands for PyTorch's `None`: one length for the whole
/// weight, of shape `[]`; −1 means the same in PyTorch. The weight does not change.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the weight has no such dimension.
///
/// # Examples
/// See [the module](self).
pub fn weight_norm<L: Weighted>(layer: L, dim: isize) -> Result<Parametrized<L, WeightNorm>> {
    layer.weight().size(dim)?; // an error if there is no such dimension
    let original0 = Parameter::new(no_grad(|| norms(layer.weight(), dim))?);
    Ok(Parametrized::new(layer, WeightNorm { original0, dim }))
}

/// The weight divided by its largest singular value, which each forward in training mode estimates by steps of the
/// power method (Miyato et al., 2018, <https://arxiv.org/abs/1802.05957>).
pub struct SpectralNorm {
    /// PyTorch's `_u`.
    left: Buffer,
    /// PyTorch's `_v`.
    right: Buffer,
    mode: Mode,
    options: SpectralNormOptions,
    dim: isize,
}

impl Module for SpectralNorm {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.child("_u", &self.left);
        visitor.child("_v", &self.right);
        visitor.child("mode", &self.mode);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.child(&mut self.left);
        visitor.child(&mut self.right);
    }

    fn title(&self) -> String {
        "_SpectralNorm".to_owned()
    }
}

/// How [`spectral_norm`] computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralNormOptions {
    /// The number of steps of the power method in each forward in training mode.
    pub n_power_iterations: usize,
    /// The lower bound of the norms by which vectors are divided.
    pub eps: f64,
    /// The output dimension of the weight; `None` for the layer's own.
    pub dim: Option<isize>,
}

impl Default for SpectralNormOptions {
    fn default() -> Self {
        Self { n_power_iterations: 1, eps: 1e-12, dim: None }
    }
}

impl SpectralNorm {
    /// The weight as a matrix `[outputs, others]`.
    fn matrix(weight: &Tensor, dim: isize) -> Result<Tensor> {
        weight.movedim(&[dim], &[0])?.flatten(1, -1)
    }

    /// The vectors after `steps` steps of the power method.
    fn power_method(&self, matrix: &Tensor, steps: usize) -> Result<[Tensor; 2]> {
        let unit = |x: Tensor| functional::normalize(&x, 2.0, 0, self.options.eps);
        no_grad(|| {
            let (mut left, mut right) = (self.left.mul_scalar(1.0)?, self.right.mul_scalar(1.0)?);
            for _ in 0..steps {
                left = unit(matvec(matrix, &right)?)?;
                right = unit(matvec(&matrix.t()?, &left)?)?;
            }
            Ok([left, right])
        })
    }

    /// The weight, and the vectors that it was computed with. They are copies, since the next forward changes the
    /// buffers before this one's backward may have used them.
    fn normalized(&self, original: &Tensor) -> Result<(Tensor, [Tensor; 2])> {
        let matrix = Self::matrix(original, self.dim)?;
        let steps = if self.mode.is_training() { self.options.n_power_iterations } else { 0 };
        let [left, right] = self.power_method(&matrix.detach(), steps)?;
        let largest = left.mul(&matvec(&matrix, &right)?)?.sum(..)?;
        Ok((original.div(&largest)?, [left, right]))
    }

    fn update_vectors(&self, [left, right]: &[Tensor; 2]) -> Result<()> {
        match self.mode.is_training() {
            true => no_grad(|| self.left.copy_(left).and_then(|()| self.right.copy_(right))),
            false => Ok(()),
        }
    }
}

/// A matrix times a vector.
fn matvec(matrix: &Tensor, vector: &Tensor) -> Result<Tensor> {
    matrix.matmul(&vector.unsqueeze(1)?)?.squeeze(1)
}

impl Parametrization for SpectralNorm {
    fn weight(&self, original: &Tensor) -> Result<Tensor> {
        let (weight, vectors) = self.normalized(original)?;
        self.update_vectors(&vectors)?;
        Ok(weight)
    }

    fn forward_with(&self, original: &Tensor, forward: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let (weight, vectors) = self.normalized(original)?;
        let y = forward(&weight)?;
        self.update_vectors(&vectors)?;
        Ok(y)
    }
}

/// The layer with [`SpectralNorm`], as PyTorch's `parametrizations.spectral_norm`.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the weight has fewer than two dimensions, or no dimension
/// `dim`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, parametrizations::{SpectralNormOptions, spectral_norm}};
///
/// let layer = spectral_norm(Linear::new(8, 4)?, SpectralNormOptions::default())?;
/// assert!(layer.weight()?.dims() == [4, 8]);
/// assert!(layer.state_dict().get("parametrizations.weight.0._u").is_some());
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn spectral_norm<L: Weighted>(layer: L, options: SpectralNormOptions) -> Result<Parametrized<L, SpectralNorm>> {
    let dim = options.dim.unwrap_or_else(|| layer.output_dim());
    let parametrization = largest_of(layer.weight(), dim, options, default_generator())?;
    Ok(Parametrized::new(layer, parametrization))
}

fn largest_of(
    weight: &Parameter,
    dim: isize,
    options: SpectralNormOptions,
    generator: &Generator,
) -> Result<SpectralNorm> {
    if weight.rank() < 2 {
        return Err(wrong_argument("spectral_norm", "the weight", weight.shape(), "of two dimensions or more"));
    }
    let matrix = SpectralNorm::matrix(&weight.detach(), dim)?;
    let vector = |len: usize| {
        let numbers = Tensor::on(&weight.device()).of(weight.dtype()).randn_with(len, generator)?;
        functional::normalize(&numbers, 2.0, 0, options.eps).map(Buffer::new)
    };
    let (left, right) = (vector(matrix.dims()[0])?, vector(matrix.dims()[1])?);
    let norm = SpectralNorm { left, right, mode: Mode::default(), options, dim };
    norm.update_vectors(&norm.power_method(&matrix, 15)?)?; // as many as PyTorch starts with
    Ok(norm)
}
