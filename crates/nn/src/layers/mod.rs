//! The layers: one file each. All are [`Module`](crate::Module) and [`Forward`](crate::Forward).
//!
//! What a layer is made with can be changed until it is used, as in `Conv2d::new(1, 16, 3)?.stride(2).padding(1)`.
//! `new` draws weights from the default generator (`manual_seed`); `new_with` takes a generator. Both make weights of the
//! default precision ([`set_default_dtype`](pagelock_tensor::set_default_dtype)); [`to_dtype`](crate::Module::to_dtype)
//! gives others.

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod flatten;
mod instance_norm;
mod lambda;
mod linear;
mod lists;
mod norm;
mod pool;
mod recurrent;
mod resizing;
mod sequence;
mod sequential;

pub use activation::{
    CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, LogSoftmax, Mish, PReLU,
    ReLU, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold,
};
pub use attention::{MultiheadAttention, MultiheadOptions, OutProjection, TransformerEncoderLayer};
pub use batch_norm::{BatchNorm1d, BatchNorm2d, BatchNorm3d};
pub use conv::Conv2d;
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::Embedding;
pub use flatten::{Flatten, Identity, Unflatten};
pub use instance_norm::{InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};
pub use lambda::Lambda;
pub use linear::Linear;
pub use lists::{ModuleDict, ModuleList, ParameterList};
pub use norm::{GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm};
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use recurrent::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell, RNNNonlinearity, RNNOptions};
pub use resizing::{
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, Padding, PixelShuffle,
    PixelUnshuffle, ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d,
    ReplicationPad3d, Upsample, ZeroPad1d, ZeroPad2d, ZeroPad3d,
};
pub use sequence::{AdaptiveAvgPool1d, AvgPool1d, Conv1d, MaxPool1d};
pub use sequential::{IntoLayers, Sequential};

/// `Debug` for layers: as `Display`.
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

/// A height and a width: given as one number for both, or as a pair.
///
/// ```
/// use pagelock_nn::MaxPool2d;
///
/// assert_eq!(MaxPool2d::new(2).to_string(), MaxPool2d::new([2, 2]).to_string());
/// ```
pub trait Pair {
    /// `[height, width]`
    fn into_pair(self) -> [usize; 2];
}

impl Pair for usize {
    fn into_pair(self) -> [usize; 2] {
        [self; 2]
    }
}

impl Pair for [usize; 2] {
    fn into_pair(self) -> [usize; 2] {
        self
    }
}

impl Pair for (usize, usize) {
    fn into_pair(self) -> [usize; 2] {
        self.into()
    }
}

/// A pair as PyTorch prints it: one number where both are equal.
fn short(pair: [usize; 2]) -> String {
    let [height, width] = pair;
    if height == width { height.to_string() } else { format!("({height}, {width})") }
}

/// Sizes as Python's `repr` of a tuple.
fn tuple(sizes: &[usize]) -> String {
    match sizes {
        [one] => format!("({one},)"),
        _ => format!("({})", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A number as Python's `repr` of a `float`: always with a point or a power of ten, which has a sign and two digits.
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
