//! Layers that set a random part of their input to zero while training: [`Dropout`] and its relatives.

use super::{debug_is_display, number};
use crate::functional::shared::wrong_shape;
use crate::{Forward, Mode, Module, functional, module_scope};
use pagelock_tensor::{Generator, Result, Tensor, default_generator};

/// `dropout! { docs; Name, |x, p, training, generator| output }`
macro_rules! dropout {
    ($(#[$docs:meta])* $name:ident, $drop:expr) => {
        $(#[$docs])*
        #[derive(Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            p: f64,
            mode: Mode,
            generator: Option<Generator>, // none: the default generator
        }

        impl $name {
            /// Drops with probability `p`, with random numbers from the default generator. A `p` outside `0..=1` is
            /// an error of `forward`.
            pub fn new(p: f64) -> Self {
                Self { p, mode: Mode::default(), generator: None }
            }

            /// Drops with probability `p`, with random numbers from `generator`.
            pub fn new_with(p: f64, generator: Generator) -> Self {
                Self { p, mode: Mode::default(), generator: Some(generator) }
            }

            fn describe(&self) -> String {
                format!("p={}, inplace=False", number(self.p))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                let generator = self.generator.as_ref().unwrap_or(default_generator());
                $drop(x, self.p, self.mode.is_training(), generator)
            }
        }

        debug_is_display!($name);
    };
}

dropout! {
    /// While training, sets each element to 0 with probability `p` and scales the others by `1 / (1 − p)`; otherwise
    /// returns its input.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Dropout, Forward, Module};
    /// use pagelock_tensor::Tensor;
    ///
    /// let layer = Dropout::new(0.5);
    /// let x = Tensor::ones(1000)?;
    /// assert!(layer.forward(&x)?.to_vec::<f32>()?.iter().all(|&v| v == 0.0 || v == 2.0));
    /// layer.eval();
    /// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Dropout, functional::dropout
}

dropout! {
    /// While training, sets whole channels of sequences to 0 with probability `p` and scales the others by
    /// `1 / (1 − p)`; otherwise returns its input.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Dropout1d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let y = Dropout1d::new(0.5).forward(&Tensor::ones([3, 2, 4])?)?;
    /// let of_channels = y.flatten(2, -1)?;
    /// assert_eq!(of_channels.max(-1)?.to_vec::<f32>()?, of_channels.min(-1)?.to_vec::<f32>()?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Dropout1d, |x: &Tensor, p, training, generator: &Generator| {
        let layer = ("Dropout1d", 3, "[batch, channels, length] or [channels, length]");
        drop_channels(layer, x, &|x| functional::feature_dropout(x, p, training, generator))
    }
}

dropout! {
    /// While training, sets whole channels of images to 0 with probability `p` and scales the others by
    /// `1 / (1 − p)`; otherwise returns its input.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Dropout2d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let y = Dropout2d::new(0.5).forward(&Tensor::ones([3, 2, 4, 4])?)?;
    /// let of_channels = y.flatten(2, -1)?;
    /// assert_eq!(of_channels.max(-1)?.to_vec::<f32>()?, of_channels.min(-1)?.to_vec::<f32>()?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Dropout2d, |x: &Tensor, p, training, generator: &Generator| {
        let layer = ("Dropout2d", 4, "[batch, channels, height, width] or [channels, height, width]");
        drop_channels(layer, x, &|x| functional::feature_dropout(x, p, training, generator))
    }
}

dropout! {
    /// While training, sets whole channels of volumes to 0 with probability `p` and scales the others by
    /// `1 / (1 − p)`; otherwise returns its input.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Dropout3d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let y = Dropout3d::new(0.5).forward(&Tensor::ones([3, 2, 4, 4, 4])?)?;
    /// let of_channels = y.flatten(2, -1)?;
    /// assert_eq!(of_channels.max(-1)?.to_vec::<f32>()?, of_channels.min(-1)?.to_vec::<f32>()?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Dropout3d, |x: &Tensor, p, training, generator: &Generator| {
        let layer = ("Dropout3d", 5, "[batch, channels, depth, height, width] or [channels, depth, height, width]");
        drop_channels(layer, x, &|x| functional::feature_dropout(x, p, training, generator))
    }
}

/// Drops channels of a batch, or of one sample. The layer is given by its name, the rank of a batch, and its input
/// shapes in words.
fn drop_channels(
    (op, rank, dims): (&str, usize, &str),
    x: &Tensor,
    drop: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match x.rank() {
        batch if batch == rank => drop(x),
        one if one + 1 == rank => drop(&x.unsqueeze(0)?)?.squeeze(0),
        _ => Err(wrong_shape(op, "the input", x.shape(), &format!("it must be {dims}; reshape it"))),
    }
}

dropout! {
    /// Dropout for layers of [`SELU`](crate::SELU): it preserves mean 0 and variance 1; see
    /// [`functional::alpha_dropout`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{AlphaDropout, Forward, Module};
    /// use pagelock_tensor::Tensor;
    ///
    /// let layer = AlphaDropout::new(0.5);
    /// assert_ne!(layer.forward(&Tensor::ones(100)?)?.to_vec::<f32>()?, [1.0; 100]);
    /// layer.eval();
    /// assert_eq!(layer.forward(&Tensor::ones(100)?)?.to_vec::<f32>()?, [1.0; 100]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    AlphaDropout, functional::alpha_dropout
}

dropout! {
    /// [`AlphaDropout`] of whole channels; see [`functional::feature_alpha_dropout`].
    ///
    /// - input: `[batch, channels, ..]`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{FeatureAlphaDropout, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let y = FeatureAlphaDropout::new(0.5).forward(&Tensor::ones([3, 2, 4])?)?;
    /// assert_eq!(y.max(-1)?.to_vec::<f32>()?, y.min(-1)?.to_vec::<f32>()?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    FeatureAlphaDropout, functional::feature_alpha_dropout
}
