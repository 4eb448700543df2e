//! [`Scalar`]: a number of any element type.

use std::fmt;

/// A number on its way from one element type to another; see [`Element::cast`](super::Element::cast).
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// An integer or a truth value.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Int(value) => write!(f, "{value}"),
            Scalar::Float(value) => write!(f, "{value:?}"),
        }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::Float(value)
    }
}

impl From<i32> for Scalar {
    fn from(value: i32) -> Scalar {
        Scalar::Int(i64::from(value))
    }
}

impl Scalar {
    /// With the other sign; integers wrap.
    pub(crate) fn negated(self) -> Scalar {
        match self {
            Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
            Scalar::Float(value) => Scalar::Float(-value),
        }
    }

    /// Whether all bytes of the value are 0.
    pub(crate) fn is_positive_zero(self) -> bool {
        match self {
            Scalar::Int(value) => value == 0,
            Scalar::Float(value) => value.to_bits() == 0,
        }
    }

    /// As a floating-point number, rounded.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }
}
