//! Losses as values: [`CrossEntropyLoss`], [`NLLLoss`], [`MSELoss`]. The same as functions: [`functional`](crate::functional).

use pagelock_tensor::{Int, Reduction, Result, Tensor};
use std::fmt;

macro_rules! loss {
    ($(#[$docs:meta])* $name:ident, $method:ident, $target:ty) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            reduction: Reduction,
        }

        impl $name {
            /// The mean over the batch.
            pub fn new() -> Self {
                Self { reduction: Reduction::Mean }
            }

            /// Another way to make one number of the batch: the sum, or no reduction.
            #[must_use]
            pub fn reduction(self, reduction: Reduction) -> Self {
                Self { reduction }
            }

            /// The loss of `input` given `target`.
            ///
            /// # Errors
            /// The shapes do not fit each other, or a class is out of range.
            pub fn forward(&self, input: &Tensor, target: &$target) -> Result<Tensor> {
                input.$method(target, self.reduction)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}()", stringify!($name))
            }
        }
    };
}

loss! {
    /// Cross entropy of scores (before any softmax) and classes.
    ///
    /// - `input`: `[batch, classes]`
    /// - `target`: `[batch]`, each at least 0 and below `classes`
    /// - result: one number, or `[batch]` with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::CrossEntropyLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let undecided = Tensor::zeros([4, 10])?;
    /// let loss = CrossEntropyLoss::new().forward(&undecided, &Tensor::new([3, 1, 4, 1])?)?;
    /// assert!((loss.item::<f32>()? - 10f32.ln()).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CrossEntropyLoss, cross_entropy, Tensor<Int>
}

loss! {
    /// Negative log likelihood of log probabilities and classes.
    ///
    /// - `input`: `[batch, classes]`, as `log_softmax(-1)` gives them
    /// - `target`: `[batch]`, each at least 0 and below `classes`
    /// - result: one number, or `[batch]` with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::NLLLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let log_probabilities = Tensor::new([[-0.5, -2.0], [-1.0, -0.25]])?;
    /// let loss = NLLLoss::new().forward(&log_probabilities, &Tensor::new([0, 1])?)?;
    /// assert_eq!(loss.item::<f32>()?, (0.5 + 0.25) / 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    NLLLoss, nll_loss, Tensor<Int>
}

loss! {
    /// Squared difference, averaged over all elements.
    ///
    /// - `input`, `target`: of one shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::MSELoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = MSELoss::new().forward(&Tensor::new([1.0, 2.0])?, &Tensor::new([1.0, 5.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, 4.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MSELoss, mse_loss, Tensor
}
