//! The layers, one file for each kind. All implement [`Module`](crate::Module); those with one input and one output
//! also implement [`Forward`](crate::Forward).
//!
//! Chained methods change the settings of a new layer, as in `Conv2d::new(1, 16, 3)?.stride(2).padding(1)`. `new`
//! draws weights from the default generator (`manual_seed`); `new_with` takes a generator. Both create weights of the
//! default precision ([`set_default_dtype`](pagelock_tensor::set_default_dtype));
//! [`to_dtype`](crate::Module::to_dtype) converts them.

mod activation;
mod attention;
mod batch_norm;
mod bilinear;
mod conv;
mod conv_transpose;
mod distance;
mod dropout;
mod embedding;
mod embedding_bag;
mod flatten;
mod fold;
mod fractional;
mod hooks;
mod instance_norm;
mod lambda;
mod linear;
mod lists;
mod norm;
mod padding;
mod pool;
mod prelu;
mod recurrent;
mod sequential;
mod shuffle;
mod transformer;
mod upsample;

pub use activation::{
    CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, LogSoftmax, Mish, ReLU,
    ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink,
    Threshold,
};
pub use attention::{MultiheadAttention, MultiheadOptions, OutProjection, TransformerEncoderLayer};
pub use batch_norm::{BatchNorm1d, BatchNorm2d, BatchNorm3d};
pub use bilinear::Bilinear;
pub use conv::{Conv1d, Conv2d, Conv3d};
pub use conv_transpose::{ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use distance::{CosineSimilarity, PairwiseDistance};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout};
pub use embedding::Embedding;
pub use embedding_bag::EmbeddingBag;
pub use flatten::{Flatten, Identity, Unflatten};
pub use fold::{Fold, Unfold};
pub use fractional::FractionalMaxPool2d;
pub use hooks::{HookHandle, Hooked};
pub use instance_norm::{InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};
pub use lambda::Lambda;
pub use linear::Linear;
pub use lists::{ModuleDict, ModuleList, ParameterDict, ParameterList};
pub use norm::{GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm};
pub use padding::{
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, Padding, ReflectionPad1d,
    ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, ZeroPad1d, ZeroPad2d,
    ZeroPad3d,
};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AvgPool1d, AvgPool2d, AvgPool3d, LPPool1d, LPPool2d, LPPool3d, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool1d,
    MaxUnpool2d, MaxUnpool3d,
};
pub use prelu::{PReLU, RReLU};
pub use recurrent::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell, RNNNonlinearity, RNNOptions};
pub use sequential::{IntoLayers, Sequential};
pub use shuffle::{ChannelShuffle, PixelShuffle, PixelUnshuffle};
pub use transformer::{DecoderMasks, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder};
pub use upsample::{Upsample, UpsamplingBilinear2d, UpsamplingNearest2d};

/// Implements `Debug` of a layer by its `Display`.
macro_rules! debug_is_display {
    ($layer:ident) => {
        impl std::fmt::Debug for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use debug_is_display;

/// `one_setting! { docs; Name { setting: type }, docs of new, function }`: a layer that calls `function(x, setting)`.
macro_rules! one_setting {
    ($(#[$docs:meta])* $name:ident { $setting:ident: $type:ty }, $docs_of_new:literal, $function:path) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            $setting: $type,
        }

        impl $name {
            #[doc = $docs_of_new]
            pub fn new($setting: $type) -> Self {
                Self { $setting }
            }

            fn describe(&self) -> String {
                format!(concat!(stringify!($setting), "={}"), self.$setting)
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                $function(x, self.$setting)
            }
        }

        debug_is_display!($name);
    };
}
use one_setting;

/// One size for each of `N` dimensions: given as one number for all, or as an array or a tuple.
///
/// ```
/// use pagelock_nn::MaxPool2d;
///
/// assert_eq!(MaxPool2d::new(2).to_string(), MaxPool2d::new([2, 2]).to_string());
/// ```
pub trait Sizes<const N: usize> {
    /// One size for each dimension.
    fn into_sizes(self) -> [usize; N];
}

impl<const N: usize> Sizes<N> for usize {
    fn into_sizes(self) -> [usize; N] {
        [self; N]
    }
}

impl<const N: usize> Sizes<N> for [usize; N] {
    fn into_sizes(self) -> [usize; N] {
        self
    }
}

impl Sizes<2> for (usize, usize) {
    fn into_sizes(self) -> [usize; 2] {
        self.into()
    }
}

impl Sizes<3> for (usize, usize, usize) {
    fn into_sizes(self) -> [usize; 3] {
        self.into()
    }
}

/// Sizes as PyTorch prints them: one number where all are equal.
fn short(sizes: &[usize]) -> String {
    match sizes {
        [first, others @ ..] if others.iter().all(|other| other == first) => first.to_string(),
        _ => tuple(sizes),
    }
}

/// Sizes as Python's `repr` of a tuple.
fn tuple(sizes: &[usize]) -> String {
    match sizes {
        [one] => format!("({one},)"),
        _ => format!("({})", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A number as Python's `repr` of a `float`: with a decimal point, or with an exponent of a sign and at least two
/// digits.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{value:e}");
    let Some((digits, power)) = text.split_once('e') else { return text }; // infinities
    match power.parse::<i32>() {
        Ok(-4..16) => format!("{value:?}"),
        Ok(power) => format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs()),
        Err(_) => text,
    }
}

/// `True` or `False`, as PyTorch prints it.
fn python(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_printed_as_python_prints_them() {
        let printed = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e-3, "0.001"),
            (1e-4, "0.0001"),
            (1.25e-4, "0.000125"),
            (1e-5, "1e-05"),
            (9.99e-5, "9.99e-05"),
            (-1.5e-12, "-1.5e-12"),
            (1e-100, "1e-100"),
            (5e-324, "5e-324"),
            (123_456.0, "123456.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (1e22, "1e+22"),
            (f64::MAX, "1.7976931348623157e+308"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (value, expected) in printed {
            assert_eq!(number(value), expected);
        }
    }
}
