//! What other operations already say: one short function each.

use crate::element::Float;
use crate::error::{Error, Result};
use crate::random::Generator;
use crate::tensor::Tensor;

impl<T: Float> Tensor<T> {
    /// Zeroes each element with probability `p` and divides the others by `1 − p`, so that the mean stays
    /// (inverted dropout: Srivastava et al., 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `p` ≤ 1.
    pub fn dropout(&self, p: f64, generator: &Generator) -> Result<Tensor<T>> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::BadArgument {
                op: "dropout",
                argument: "p",
                value: p.to_string(),
                expected: "it must be a probability, 0 to 1".into(),
            });
        }
        if p == 1.0 {
            return self.mul_scalar(T::ZERO);
        }
        let kept = crate::Tensor::<f32>::rand_with(self.shape(), generator)?.ge(&Tensor::scalar(p as f32)?)?;
        let kept = kept.to(&self.device())?;
        self.mul(&kept.cast::<T>()?.scaled(1.0 / (1.0 - p))?)
    }
}
