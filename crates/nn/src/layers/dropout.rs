//! [`Dropout`]: forgets a part of what it is given, while training.

use super::{debug_is_display, number};
use crate::{Forward, Mode, Module, functional, module_scope};
use pagelock_tensor::{Generator, Result, Tensor, default_generator};

/// While training, sets each element to 0 with probability `p` and scales the others by `1 / (1 − p)`; otherwise passes
/// its input on.
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
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Dropout {
    #[module(skip)]
    p: f64,
    mode: Mode,
    #[module(skip)]
    generator: Option<Generator>, // none: the default generator
}

impl Dropout {
    /// Drops with probability `p`, decided by the default generator. A `p` outside `0..=1` is an error of `forward`.
    pub fn new(p: f64) -> Self {
        Self { p, mode: Mode::default(), generator: None }
    }

    /// Drops with probability `p`, decided by a generator of its own.
    pub fn new_with(p: f64, generator: Generator) -> Self {
        Self { p, mode: Mode::default(), generator: Some(generator) }
    }

    fn describe(&self) -> String {
        format!("p={}, inplace=False", number(self.p))
    }
}

impl Forward for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        match &self.generator {
            Some(generator) => functional::dropout(x, self.p, self.mode.is_training(), generator),
            None => functional::dropout(x, self.p, self.mode.is_training(), default_generator()),
        }
    }
}

debug_is_display!(Dropout);
