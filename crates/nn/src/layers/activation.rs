//! Layers without parameters that change each element alone.

use super::debug_is_display;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

macro_rules! activation {
    ($(#[$docs:meta])* $name:ident, $method:ident, is_relu: $is_relu:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Default, Module)]
        pub struct $name;

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                x.$method()
            }

            fn is_relu(&self) -> bool {
                $is_relu
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
    ReLU, relu, is_relu: true
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
    Tanh, tanh, is_relu: false
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
    Sigmoid, sigmoid, is_relu: false
}
