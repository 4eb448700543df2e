//! Layers that normalize each sample alone: [`LayerNorm`], [`RMSNorm`], [`GroupNorm`], [`LocalResponseNorm`].

use super::{debug_is_display, number, python, tuple};
use crate::functional::shared::{wrong_argument, wrong_shape};
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Forward, Module, Parameter, functional, module_scope};
use pagelock_tensor::{IntoShape, Result, Shape, Tensor};

/// Normalizes the last dimensions to mean 0 and variance 1, then applies `weight` and `bias` elementwise, as
/// PyTorch's `nn.LayerNorm`.
///
/// - input: `[.., normalized]`
/// - output: the same
///
/// The weight is initialized to ones, the bias to zeros.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, LayerNorm};
/// use pagelock_tensor::Tensor;
///
/// let layer = LayerNorm::new(2)?;
/// let y = layer.forward(&Tensor::new([[1.0, 3.0], [0.0, 100.0]])?)?;
/// assert_eq!(format!("{:.2}", y.detach()), "tensor([[-1.00,  1.00],\n        [-1.00,  1.00]])");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct LayerNorm {
    /// Of the shape `normalized`, if there is one.
    pub weight: Option<Parameter>,
    /// Of the shape `normalized`, if there is one.
    pub bias: Option<Parameter>,
    #[module(skip)]
    normalized: Shape,
    #[module(skip)]
    eps: f64,
}

impl LayerNorm {
    /// A layer that normalizes the last dimensions. `normalized` is their sizes, such as `768` or `[3, 4]`.
    ///
    /// # Errors
    /// The parameters do not fit the memory budget.
    pub fn new(normalized: impl IntoShape) -> Result<Self> {
        Self::of(normalized.into_shape()?)
    }

    fn of(normalized: Shape) -> Result<Self> {
        let _charged = charged();
        let weight = Parameter::new(Tensor::ones(normalized)?);
        let bias = Parameter::new(Tensor::zeros(normalized)?);
        Ok(Self { weight: Some(weight), bias: Some(bias), normalized, eps: 1e-5 })
    }

    fn describe(&self) -> String {
        let sizes = tuple(&self.normalized);
        let affine = python(self.weight.is_some());
        let (eps, bias) = (number(self.eps), python(self.bias.is_some()));
        format!("{sizes}, eps={eps}, elementwise_affine={affine}, bias={bias}")
    }
}

setters! { LayerNorm,
    /// What is added to the variance; 1e-5 by default.
    eps: f64;
    /// The layer without its bias.
    without_bias => bias = None;
    /// The layer without weight and bias.
    without_affine => weight = None, bias = None;
}

impl Forward for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.layer_norm(self.normalized, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

debug_is_display!(LayerNorm);

/// The last dimensions divided by the root of the mean of their squares, then times `weight`, as PyTorch's `nn.RMSNorm`.
///
/// - input: `[.., normalized]`
/// - output: the same
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, RMSNorm};
/// use pagelock_tensor::Tensor;
///
/// let y = RMSNorm::new(2)?.forward(&Tensor::new([3.0, -3.0])?)?;
/// assert_eq!(y.detach().to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct RMSNorm {
    /// Of the shape `normalized`, if there is one; initialized to ones.
    pub weight: Option<Parameter>,
    #[module(skip)]
    normalized: Shape,
    #[module(skip)]
    eps: Option<f64>,
}

impl RMSNorm {
    /// A layer that normalizes the last dimensions. `normalized` is their sizes, such as `768` or `[3, 4]`.
    ///
    /// # Errors
    /// The weight does not fit the memory budget.
    pub fn new(normalized: impl IntoShape) -> Result<Self> {
        Self::of(normalized.into_shape()?)
    }

    fn of(normalized: Shape) -> Result<Self> {
        let _charged = charged();
        Ok(Self { weight: Some(Parameter::new(Tensor::ones(normalized)?)), normalized, eps: None })
    }

    fn describe(&self) -> String {
        let (sizes, eps) = (tuple(&self.normalized), self.eps.map_or("None".to_owned(), number));
        format!("{sizes}, eps={eps}, elementwise_affine={}", python(self.weight.is_some()))
    }
}

setters! { RMSNorm,
    /// What is added to the mean of squares; the machine epsilon of the precision by default.
    eps: f64 => eps = Some(eps);
    /// The layer without its weight.
    without_affine => weight = None;
}

impl Forward for RMSNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::rms_norm(x, self.normalized, self.weight.as_deref(), self.eps)
    }
}

debug_is_display!(RMSNorm);

/// Normalizes each group of a sample's channels to mean 0 and variance 1, then applies `weight` and `bias`, as
/// PyTorch's `nn.GroupNorm`.
///
/// - input: `[batch, channels, ..]`
/// - output: the same
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, GroupNorm};
/// use pagelock_tensor::Tensor;
///
/// assert_eq!(GroupNorm::new(2, 6)?.forward(&Tensor::randn([4, 6, 8, 8])?)?.dims(), [4, 6, 8, 8]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct GroupNorm {
    /// `[channels]`, if there is one; initialized to ones.
    pub weight: Option<Parameter>,
    /// `[channels]`, if there is one; initialized to zeros.
    pub bias: Option<Parameter>,
    #[module(skip)]
    num_groups: usize,
    #[module(skip)]
    channels: usize,
    #[module(skip)]
    eps: f64,
}

impl GroupNorm {
    /// A layer with weight and bias.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `num_groups` does not divide `channels`; the parameters do not
    /// fit the memory budget.
    pub fn new(num_groups: usize, channels: usize) -> Result<Self> {
        if channels.checked_rem(num_groups) != Some(0) {
            let expected = format!("a divisor of the {channels} channels");
            return Err(wrong_argument("GroupNorm", "num_groups", num_groups, &expected));
        }
        let _charged = charged();
        let (weight, bias) = (Parameter::new(Tensor::ones(channels)?), Parameter::new(Tensor::zeros(channels)?));
        Ok(Self { weight: Some(weight), bias: Some(bias), num_groups, channels, eps: 1e-5 })
    }

    fn describe(&self) -> String {
        let (groups, channels, eps) = (self.num_groups, self.channels, number(self.eps));
        let affine = python(self.weight.is_some());
        format!("{groups}, {channels}, eps={eps}, affine={affine}, bias={affine}")
    }
}

setters! { GroupNorm,
    /// What is added to variances; 1e-5 by default.
    eps: f64;
    /// The layer without weight and bias.
    without_affine => weight = None, bias = None;
}

impl Forward for GroupNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        if x.dims().get(1) != Some(&self.channels) {
            let expected = format!("it must be [batch, {}, ..]; reshape it", self.channels);
            return Err(wrong_shape("GroupNorm", "the input", x.shape(), &expected));
        }
        functional::group_norm(x, self.num_groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

debug_is_display!(GroupNorm);

/// Each element divided by `(k + alpha · mean)^beta`, where the mean is that of the squares of neighboring channels,
/// as PyTorch's `nn.LocalResponseNorm`; see [`functional::local_response_norm`].
///
/// - input: `[batch, channels, ..]`
/// - output: the same
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, LocalResponseNorm};
/// use pagelock_tensor::Tensor;
///
/// assert_eq!(LocalResponseNorm::new(2).forward(&Tensor::randn([4, 6, 8])?)?.dims(), [4, 6, 8]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct LocalResponseNorm {
    #[module(skip)]
    size: usize,
    #[module(skip)]
    alpha: f64,
    #[module(skip)]
    beta: f64,
    #[module(skip)]
    k: f64,
}

impl LocalResponseNorm {
    /// Over `size` channels.
    pub fn new(size: usize) -> Self {
        Self { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    fn describe(&self) -> String {
        let Self { size, alpha, beta, k } = *self;
        format!("{size}, alpha={}, beta={}, k={}", number(alpha), number(beta), number(k))
    }
}

setters! { LocalResponseNorm,
    /// What the mean of squares is multiplied by; 1e-4 by default.
    alpha: f64;
    /// The exponent; 0.75 by default.
    beta: f64;
    /// What is added to the scaled mean of squares; 1 by default.
    k: f64;
}

impl Forward for LocalResponseNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::local_response_norm(x, self.size, self.alpha, self.beta, self.k)
    }
}

debug_is_display!(LocalResponseNorm);
