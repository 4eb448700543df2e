//! Layers that normalize each channel of each sample: [`InstanceNorm1d`], [`InstanceNorm2d`], [`InstanceNorm3d`].

use super::{debug_is_display, number, python};
use crate::functional::affine;
use crate::functional::shared::{shaped, signed, wrong_shape};
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Buffer, Counter, Forward, Mode, Module, Parameter, functional, module_scope};
use pagelock_tensor::{BatchNormOptions, Result, Tensor, no_grad};

/// `instance_norm! { docs; Name, what it takes, its rank }`
macro_rules! instance_norm {
    ($(#[$docs:meta])* $name:ident, $words:literal, $rank:literal) => {
        $(#[$docs])*
        #[derive(Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            /// `[channels]`, if there is one; initialized to ones.
            pub weight: Option<Parameter>,
            /// `[channels]`, if there is one; initialized to zeros.
            pub bias: Option<Parameter>,
            /// `[channels]`, if there is one; initialized to zeros.
            pub running_mean: Option<Buffer>,
            /// `[channels]`, if there is one; initialized to ones.
            pub running_var: Option<Buffer>,
            /// In the state as in PyTorch, which does not count batches here: it stays 0.
            pub num_batches_tracked: Option<Counter>,
            #[module(skip)]
            channels: usize,
            mode: Mode,
            #[module(skip)]
            momentum: f64,
            #[module(skip)]
            eps: f64,
        }

        impl $name {
            /// A layer without weight, bias and running statistics, which is PyTorch's default.
            pub fn new(channels: usize) -> Self {
                Self {
                    weight: None,
                    bias: None,
                    running_mean: None,
                    running_var: None,
                    num_batches_tracked: None,
                    channels,
                    mode: Mode::default(),
                    momentum: 0.1,
                    eps: 1e-5,
                }
            }

            /// The layer with weight and bias.
            ///
            /// # Errors
            /// They do not fit the memory budget.
            pub fn affine(mut self) -> Result<Self> {
                let _charged = charged();
                self.weight = Some(Parameter::new(Tensor::ones(self.channels)?));
                self.bias = Some(Parameter::new(Tensor::zeros(self.channels)?));
                Ok(self)
            }

            /// The layer with running statistics, which it uses in evaluation mode.
            ///
            /// # Errors
            /// They do not fit the memory budget.
            pub fn track_running_stats(mut self) -> Result<Self> {
                let _charged = charged();
                self.running_mean = Some(Buffer::new(Tensor::zeros(self.channels)?));
                self.running_var = Some(Buffer::new(Tensor::ones(self.channels)?));
                self.num_batches_tracked = Some(Counter::new()?);
                Ok(self)
            }

            fn describe(&self) -> String {
                let (affine, running) = (python(self.weight.is_some()), python(self.running_mean.is_some()));
                let (channels, eps, momentum) = (self.channels, number(self.eps), number(self.momentum));
                format!(
                    "{channels}, eps={eps}, momentum={momentum}, affine={affine}, bias={affine}, track_running_stats={running}"
                )
            }
        }

        setters! { $name,
            /// What is added to variances; 1e-5 by default.
            eps: f64;
            /// The fraction by which the running statistics move towards those of a batch; 0.1 by default.
            momentum: f64;
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                let instances = Instances {
                    op: stringify!($name),
                    words: $words,
                    rank: $rank,
                    channels: self.channels,
                    affine: [self.weight.as_deref(), self.bias.as_deref()],
                    running: self.running_mean.as_deref().zip(self.running_var.as_deref()),
                    options: BatchNormOptions { training: self.mode.is_training(), momentum: self.momentum, eps: self.eps },
                };
                instances.normalized(x)
            }
        }

        debug_is_display!($name);
    };
}

/// The computation that the instance norms of all ranks share.
struct Instances<'a> {
    op: &'static str,
    words: &'static str,
    /// The rank of a batch; one sample has one dimension less.
    rank: usize,
    channels: usize,
    affine: [Option<&'a Tensor>; 2],
    running: Option<(&'a Tensor, &'a Tensor)>,
    options: BatchNormOptions,
}

impl Instances<'_> {
    fn normalized(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() + 1 == self.rank {
            return self.of_batch(&x.unsqueeze(0)?)?.squeeze(0);
        }
        self.of_batch(x)
    }

    fn of_batch(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != self.rank || x.dims()[1] != self.channels {
            let expected = format!("it must be {} with {} channels; reshape it", self.words, self.channels);
            return Err(wrong_shape(self.op, "the input", x.shape(), &expected));
        }
        let [weight, bias] = self.affine;
        match self.running {
            None => functional::instance_norm(x, weight, bias, self.options.eps),
            Some((mean, var)) if !self.options.training => x.batch_norm(Some([mean, var]), weight, bias, self.options),
            Some((mean, var)) => self.tracked(x, [mean, var]),
        }
    }

    /// Normalizes the channels of all samples like the channels of one sample, and moves the running statistics
    /// towards the means over the samples.
    fn tracked(&self, x: &Tensor, running: [&Tensor; 2]) -> Result<Tensor> {
        let (batch, channels) = (x.dims()[0], self.channels);
        let len = x.dims()[2..].iter().product::<usize>();
        let rows = x.reshape([1, batch * channels, len].map(signed))?;
        let [mean, var] = running.map(|one| one.expand([batch, channels])?.reshape([-1])?.contiguous());
        let (mean, var) = (mean?, var?);
        let of_rows = [mean.mul_scalar(1.0)?, var.mul_scalar(1.0)?]; // copies, which batch_norm changes
        let y = rows.batch_norm(Some([&of_rows[0], &of_rows[1]]), None, None, self.options)?;
        let [mean, var] = of_rows.each_ref().map(|rows| rows.reshape([batch, channels].map(signed))?.mean(0));
        let moved = [mean?, var?];
        let [weight, bias] = self.affine;
        let y = affine(&shaped(&y, x.shape())?, weight, bias)?;
        if x.is_empty() {
            return Ok(y); // there are no statistics
        }
        // Last, so that a forward that fails changes nothing.
        no_grad(|| running.into_iter().zip(&moved).try_for_each(|(one, moved)| one.copy_(moved)))?;
        Ok(y)
    }
}

instance_norm! {
    /// Normalizes each channel of each sample of sequences to mean 0 and variance 1, as PyTorch's
    /// `nn.InstanceNorm1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Forward, InstanceNorm1d};
    /// use pagelock_tensor::Tensor;
    ///
    /// assert_eq!(InstanceNorm1d::new(2).affine()?.forward(&Tensor::randn([4, 2, 8])?)?.dims(), [4, 2, 8]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    InstanceNorm1d, "[batch, channels, length]", 3
}

instance_norm! {
    /// Normalizes each channel of each sample of images to mean 0 and variance 1, as PyTorch's `nn.InstanceNorm2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Forward, InstanceNorm2d};
    /// use pagelock_tensor::Tensor;
    ///
    /// assert_eq!(InstanceNorm2d::new(2).affine()?.forward(&Tensor::randn([4, 2, 8, 8])?)?.dims(), [4, 2, 8, 8]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    InstanceNorm2d, "[batch, channels, height, width]", 4
}

instance_norm! {
    /// Normalizes each channel of each sample of volumes to mean 0 and variance 1, as PyTorch's `nn.InstanceNorm3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Forward, InstanceNorm3d};
    /// use pagelock_tensor::Tensor;
    ///
    /// assert_eq!(InstanceNorm3d::new(2).affine()?.forward(&Tensor::randn([4, 2, 3, 3, 3])?)?.dims(), [4, 2, 3, 3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    InstanceNorm3d, "[batch, channels, depth, height, width]", 5
}
