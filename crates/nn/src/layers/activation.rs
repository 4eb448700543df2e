//! Activation layers without parameters, elementwise or along one dimension.

use super::{debug_is_display, number, one_setting};
use crate::functional::shared::wrong_shape;
use crate::functional::{self as F, Approximate};
use crate::setters::{default_is_new, setters};
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

macro_rules! activation {
    ($(#[$docs:meta])* $name:ident, $function:path, is_relu: $is_relu:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Default, Module)]
        pub struct $name;

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                $function(x)
            }

            fn is_relu(&self) -> bool {
                $is_relu
            }
        }

        debug_is_display!($name);
    };
    ($(#[$docs:meta])* $name:ident, $function:path) => {
        activation! { $(#[$docs])* $name, $function, is_relu: false }
    };
}

/// `with_settings! { docs; Name { docs; setting: type = default, .. }, |layer, x| output, |layer| details }`
macro_rules! with_settings {
    (
        $(#[$docs:meta])* $name:ident { $($(#[$of_setting:meta])* $setting:ident: $type:ty = $default:expr),+ $(,)? },
        |$layer:ident, $x:ident| $output:expr, |$shown:ident| $details:expr
    ) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            $(#[module(skip)] $setting: $type),+
        }

        impl $name {
            /// The layer with PyTorch's settings.
            pub fn new() -> Self {
                Self { $($setting: $default),+ }
            }

            fn describe(&self) -> String {
                let $shown = self;
                $details
            }
        }

        setters! { $name, $($(#[$of_setting])* $setting: $type;)+ }

        default_is_new!($name);

        impl Forward for $name {
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                let $layer = self;
                $output
            }
        }

        debug_is_display!($name);
    };
}

activation! {
    /// `max(x, 0)`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReLU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReLU.forward(&Tensor::new([-1.0, 2.0])?)?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReLU, F::relu, is_relu: true
}

activation! {
    /// The hyperbolic tangent.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Tanh};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tanh.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Tanh, F::tanh
}

activation! {
    /// `1 / (1 + exp(−x))`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Sigmoid};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Sigmoid.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Sigmoid, F::sigmoid
}

activation! {
    /// `x · sigmoid(x)`, also called swish.
    ///
    /// ```
    /// use pagelock_nn::{Forward, SiLU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(SiLU.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    SiLU, F::silu
}

activation! {
    /// [`ELU`] with the constants that keep mean 0 and variance 1; see [`F::selu`].
    ///
    /// ```
    /// use pagelock_nn::{Forward, SELU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(SELU.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    SELU, F::selu
}

activation! {
    /// x clamped to `0..=6`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReLU6};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReLU6.forward(&Tensor::new([-1.0, 2.0, 9.0])?)?.to_vec::<f32>()?, [0.0, 2.0, 6.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReLU6, F::relu6
}

activation! {
    /// `relu6(x + 3) / 6`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Hardsigmoid};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Hardsigmoid.forward(&Tensor::new([-4.0, 0.0, 4.0])?)?.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Hardsigmoid, F::hardsigmoid
}

activation! {
    /// `x · relu6(x + 3) / 6`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Hardswish};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Hardswish.forward(&Tensor::new([-4.0, 0.0, 4.0])?)?.to_vec::<f32>()?, [0.0, 0.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Hardswish, F::hardswish
}

activation! {
    /// `log(1 / (1 + exp(−x)))`, without overflow.
    ///
    /// ```
    /// use pagelock_nn::{Forward, LogSigmoid};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(LogSigmoid.forward(&Tensor::new([-1000.0])?)?.to_vec::<f32>()?, [-1000.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    LogSigmoid, F::logsigmoid
}

activation! {
    /// `x / (1 + |x|)`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Softsign};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Softsign.forward(&Tensor::new([-1.0, 3.0])?)?.to_vec::<f32>()?, [-0.5, 0.75]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Softsign, F::softsign
}

activation! {
    /// `x · tanh(log(1 + exp(x)))`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Mish};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Mish.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Mish, F::mish
}

activation! {
    /// `x − tanh(x)`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Tanhshrink};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tanhshrink.forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Tanhshrink, F::tanhshrink
}

with_settings! {
    /// x · Φ(x), where Φ is the cumulative distribution function of the standard normal distribution.
    ///
    /// ```
    /// use pagelock_nn::{Forward, GELU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(GELU::new().forward(&Tensor::new([0.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    GELU {
        /// How it is computed; exactly by default.
        approximate: Approximate = Approximate::None,
    },
    |layer, x| F::gelu(x, layer.approximate),
    |layer| match layer.approximate {
        Approximate::None => "approximate='none'".to_owned(),
        Approximate::Tanh => "approximate='tanh'".to_owned(),
    }
}

with_settings! {
    /// x above 0, `negative_slope · x` elsewhere.
    ///
    /// ```
    /// use pagelock_nn::{Forward, LeakyReLU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(LeakyReLU::new().negative_slope(0.5).forward(&Tensor::new([-1.0, 2.0])?)?.to_vec::<f32>()?, [-0.5, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    LeakyReLU {
        /// The slope below 0; 0.01 by default.
        negative_slope: f64 = 0.01,
    },
    |layer, x| F::leaky_relu(x, layer.negative_slope),
    |layer| format!("negative_slope={}", number(layer.negative_slope))
}

with_settings! {
    /// x above 0, `alpha · (exp(x) − 1)` elsewhere.
    ///
    /// ```
    /// use pagelock_nn::{Forward, ELU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ELU::new().forward(&Tensor::new([0.0, 2.0])?)?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ELU {
        /// How far the output goes below 0; 1 by default.
        alpha: f64 = 1.0,
    },
    |layer, x| F::elu(x, layer.alpha),
    |layer| format!("alpha={}", number(layer.alpha))
}

with_settings! {
    /// x above 0, `alpha · (exp(x / alpha) − 1)` elsewhere.
    ///
    /// ```
    /// use pagelock_nn::{Forward, CELU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(CELU::new().forward(&Tensor::new([0.0, 2.0])?)?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CELU {
        /// How far the output goes below 0; 1 by default.
        alpha: f64 = 1.0,
    },
    |layer, x| F::celu(x, layer.alpha),
    |layer| format!("alpha={}", number(layer.alpha))
}

with_settings! {
    /// `log(1 + exp(beta · x)) / beta`, and x where `beta · x` is above `threshold`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Softplus};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Softplus::new().forward(&Tensor::new([100.0])?)?.to_vec::<f32>()?, [100.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Softplus {
        /// The sharpness of the bend; 1 by default.
        beta: f64 = 1.0,
        /// The value of `beta · x` above which the output is x; 20 by default.
        threshold: f64 = 20.0,
    },
    |layer, x| F::softplus(x, layer.beta, layer.threshold),
    |layer| format!("beta={}, threshold={}", number(layer.beta), number(layer.threshold))
}

with_settings! {
    /// x clamped to `min_val..=max_val`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Hardtanh};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Hardtanh::new().forward(&Tensor::new([-3.0, 0.5, 3.0])?)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Hardtanh {
        /// The lower bound; −1 by default.
        min_val: f64 = -1.0,
        /// The upper bound; 1 by default.
        max_val: f64 = 1.0,
    },
    |layer, x| F::hardtanh(x, layer.min_val, layer.max_val),
    |layer| format!("min_val={}, max_val={}", number(layer.min_val), number(layer.max_val))
}

with_settings! {
    /// x moved towards 0 by `lambda`; 0 where |x| is at most `lambda`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Softshrink};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Softshrink::new().forward(&Tensor::new([-2.0, 0.25])?)?.to_vec::<f32>()?, [-1.5, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Softshrink {
        /// By how much x moves; 0.5 by default.
        lambda: f64 = 0.5,
    },
    |layer, x| F::softshrink(x, layer.lambda),
    |layer| number(layer.lambda)
}

with_settings! {
    /// x where |x| is above `lambda`, 0 elsewhere.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Hardshrink};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Hardshrink::new().forward(&Tensor::new([-2.0, 0.25])?)?.to_vec::<f32>()?, [-2.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Hardshrink {
        /// The largest magnitude that becomes 0; 0.5 by default.
        lambda: f64 = 0.5,
    },
    |layer, x| F::hardshrink(x, layer.lambda),
    |layer| number(layer.lambda)
}

with_settings! {
    /// The first half of a dimension times the sigmoid of the second.
    ///
    /// ```
    /// use pagelock_nn::{Forward, GLU};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(GLU::new().forward(&Tensor::new([3.0, 0.0])?)?.to_vec::<f32>()?, [1.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    GLU {
        /// The dimension; the last by default.
        dim: isize = -1,
    },
    |layer, x| F::glu(x, layer.dim),
    |layer| format!("dim={}", layer.dim)
}

one_setting! {
    /// Exponentials along a dimension, scaled to the sum 1.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Softmax};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Softmax::new(0).forward(&Tensor::new([1.0, 1.0])?)?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Softmax { dim: isize }, "Along dimension `dim`; a negative `dim` counts from the end.", F::softmax
}

one_setting! {
    /// The logarithm of [`Softmax`], computed without overflow.
    ///
    /// ```
    /// use pagelock_nn::{Forward, LogSoftmax};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(LogSoftmax::new(0).forward(&Tensor::new([7.0])?)?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    LogSoftmax { dim: isize }, "Along dimension `dim`; a negative `dim` counts from the end.", F::log_softmax
}

one_setting! {
    /// [`Softmax`] of −x.
    ///
    /// ```
    /// use pagelock_nn::{Forward, Softmin};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Softmin::new(0).forward(&Tensor::new([1.0, 1.0])?)?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Softmin { dim: isize }, "Along dimension `dim`; a negative `dim` counts from the end.", F::softmin
}

/// x above `threshold`, and `value` elsewhere.
///
/// ```
/// use pagelock_nn::{Forward, Threshold};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Threshold::new(0.5, -1.0).forward(&Tensor::new([0.25, 2.0])?)?.to_vec::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct Threshold {
    #[module(skip)]
    threshold: f64,
    #[module(skip)]
    value: f64,
}

impl Threshold {
    /// Elements that are not above `threshold` become `value`.
    pub fn new(threshold: f64, value: f64) -> Self {
        Self { threshold, value }
    }

    fn describe(&self) -> String {
        format!("threshold={}, value={}", number(self.threshold), number(self.value))
    }
}

impl Forward for Threshold {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::threshold(x, self.threshold, self.value)
    }
}

debug_is_display!(Threshold);

/// [`Softmax`] over the channels of each pixel, as PyTorch's `nn.Softmax2d`.
///
/// - input: `[batch, channels, height, width]`, or one sample without `batch`
/// - output: the same
///
/// ```
/// use pagelock_nn::{Forward, Softmax2d};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Softmax2d.forward(&Tensor::zeros([1, 2, 1, 1])?)?.to_vec::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Default, Module)]
pub struct Softmax2d;

impl Forward for Softmax2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        if x.rank() != 3 && x.rank() != 4 {
            let expected = "it must be [batch, channels, height, width] or [channels, height, width]; reshape it";
            return Err(wrong_shape("Softmax2d", "the input", x.shape(), expected));
        }
        x.softmax(-3)
    }
}

debug_is_display!(Softmax2d);
