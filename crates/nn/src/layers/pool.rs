//! Layers that pool sequences, images and volumes by maximum, mean and power mean, and max unpooling layers.

use super::{Sizes, debug_is_display, number, python, short, tuple};
use crate::functional::{self as F, AvgPoolOptions, MaxPoolOptions};
use crate::setters::setters;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Int, Result, Tensor};

/// `sliding! { Name, dimensions, options }`: the settings of all sliding windows; with `, ceil_mode`, also that.
macro_rules! sliding {
    ($name:ident, $n:literal, $options:ident, ceil_mode) => {
        sliding! { $name, $n, $options }

        setters! { $name,
            /// Whether a last window that reaches beyond the end counts too.
            ceil_mode: bool => geometry.ceil_mode = ceil_mode;
        }
    };
    ($name:ident, $n:literal, $options:ident) => {
        impl $name {
            /// Windows of size `kernel` that do not overlap: one number for all dimensions, or one for each.
            pub fn new(kernel: impl Sizes<$n>) -> Self {
                Self { geometry: $options::new(kernel.into_sizes()) }
            }
        }

        setters! { $name,
            /// The distance between neighboring windows: one number for all dimensions, or one for each.
            stride: impl Sizes<$n> => geometry.stride = stride.into_sizes();
            /// How far windows may reach beyond each end: one number for all dimensions, or one for each.
            padding: impl Sizes<$n> => geometry.padding = padding.into_sizes();
        }
    };
}

/// `max_pool! { Name, dimensions, shape, sizes of an example, function, function with indices }`
macro_rules! max_pool {
    ($name:ident, $n:literal, $shape:literal, $example:literal, $function:ident, $with_indices:ident) => {
        /// The largest element of each window.
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same with `(size + 2·padding − dilation·(kernel − 1) − 1) / stride + 1` in each of these dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{Forward, ", stringify!($name), "};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let (x, pool) = (Tensor::randn([2, 3", $example, "])?, ", stringify!($name), "::new(2));")]
        /// let (y, indices) = pool.forward_with_indices(&x)?;
        /// assert_eq!(pool.forward(&x)?.to_vec::<f32>()?, y.to_vec::<f32>()?);
        /// assert_eq!(indices.shape(), y.shape());
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            geometry: MaxPoolOptions<$n>,
        }

        sliding! { $name, $n, MaxPoolOptions, ceil_mode }

        setters! { $name,
            /// The distance between neighboring elements of a window: one number for all dimensions, or one for each.
            dilation: impl Sizes<$n> => geometry.dilation = dilation.into_sizes();
        }

        impl $name {
            /// The largest elements, and their flat indices in their channel: PyTorch's `return_indices=True`.
            ///
            /// # Errors
            /// As [`forward`](Forward::forward).
            pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor<Int>)> {
                let _scope = module_scope(self);
                F::$with_indices(x, self.geometry)
            }

            fn describe(&self) -> String {
                let of = &self.geometry;
                let (dilation, ceil_mode) = (short(&of.dilation), python(of.ceil_mode));
                format!("{}, dilation={dilation}, ceil_mode={ceil_mode}", windows(&of.kernel, &of.stride, &of.padding))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                F::$function(x, self.geometry)
            }
        }

        debug_is_display!($name);
    };
}

fn windows(kernel: &[usize], stride: &[usize], padding: &[usize]) -> String {
    format!("kernel_size={}, stride={}, padding={}", short(kernel), short(stride), short(padding))
}

max_pool! { MaxPool1d, 1, "length", ", 6", max_pool1d, max_pool1d_with_indices }
max_pool! { MaxPool2d, 2, "height, width", ", 6, 4", max_pool2d, max_pool2d_with_indices }
max_pool! { MaxPool3d, 3, "depth, height, width", ", 4, 6, 2", max_pool3d, max_pool3d_with_indices }

/// `avg_pool! { Name, dimensions, shape, sizes of an example and of its output, function, print }`
macro_rules! avg_pool {
    ($name:ident, $n:literal, $shape:literal, [$example:literal, $output:literal], $function:ident, $shown:path) => {
        /// The mean of each window. Elements beyond the ends count as 0, or not at all.
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same with `(size + 2·padding − kernel) / stride + 1` in each of these dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{Forward, ", stringify!($name), "};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let y = ", stringify!($name), "::new(2).forward(&Tensor::ones([2, 3", $example, "])?)?;")]
        #[doc = concat!("assert_eq!(y.dims(), [2, 3", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            geometry: AvgPoolOptions<$n>,
        }

        sliding! { $name, $n, AvgPoolOptions, ceil_mode }

        impl $name {
            fn describe(&self) -> String {
                let of = &self.geometry;
                let [kernel, stride, padding] = [&of.kernel, &of.stride, &of.padding].map(|sizes| $shown(sizes));
                format!("kernel_size={kernel}, stride={stride}, padding={padding}")
            }
        }

        setters! { $name,
            /// Whether the zeros of the padding count as elements; they do by default.
            count_include_pad: bool => geometry.count_include_pad = count_include_pad;
            /// The divisor of the sums, instead of the number of elements.
            divisor_override: usize => geometry.divisor_override = Some(divisor_override);
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                F::$function(x, self.geometry)
            }
        }

        debug_is_display!($name);
    };
}

avg_pool! { AvgPool1d, 1, "length", [", 6", ", 3"], avg_pool1d, tuple }
avg_pool! { AvgPool2d, 2, "height, width", [", 6, 4", ", 3, 2"], avg_pool2d, short }
avg_pool! { AvgPool3d, 3, "depth, height, width", [", 4, 6, 2", ", 2, 3, 1"], avg_pool3d, short }

/// `adaptive! { what it computes; Name, dimensions, shape, sizes of an example and of its output, function }`
macro_rules! adaptive {
    ($what:literal, $name:ident, $n:literal, $shape:literal, [$example:literal, $output:literal], $function:expr) => {
        #[doc = concat!("The ", $what, " of windows that cover an input of any size evenly, one window for each element of the output.")]
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same with the given sizes in these dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{", stringify!($name), ", Forward};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let y = ", stringify!($name), "::new(2).forward(&Tensor::ones([2, 3", $example, "])?)?;")]
        #[doc = concat!("assert_eq!(y.dims(), [2, 3", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            size: [usize; $n],
        }

        impl $name {
            /// The sizes of the output: one number for all dimensions, or one for each.
            pub fn new(size: impl Sizes<$n>) -> Self {
                Self { size: size.into_sizes() }
            }

            fn describe(&self) -> String {
                format!("output_size={}", short(&self.size))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                $function(x, self.size)
            }
        }

        debug_is_display!($name);
    };
}

adaptive! { "means", AdaptiveAvgPool1d, 1, "length", [", 5", ", 2"], |x, [size]: [usize; 1]| F::adaptive_avg_pool1d(x, size) }
adaptive! { "means", AdaptiveAvgPool2d, 2, "height, width", [", 5, 3", ", 2, 2"], F::adaptive_avg_pool2d }
adaptive! {
    "means", AdaptiveAvgPool3d, 3, "depth, height, width", [", 4, 5, 3", ", 2, 2, 2"], F::adaptive_avg_pool3d
}
adaptive! { "largest elements", AdaptiveMaxPool1d, 1, "length", [", 5", ", 2"], F::adaptive_max_pool1d }
adaptive! { "largest elements", AdaptiveMaxPool2d, 2, "height, width", [", 5, 3", ", 2, 2"], F::adaptive_max_pool2d }
adaptive! {
    "largest elements", AdaptiveMaxPool3d, 3, "depth, height, width", [", 4, 5, 3", ", 2, 2, 2"], F::adaptive_max_pool3d
}

/// `with_indices! { Name, function }`
macro_rules! with_indices {
    ($($name:ident $function:ident)+) => {$(
        impl $name {
            /// The largest elements, and their flat indices in their channel: PyTorch's `return_indices=True`.
            ///
            /// # Errors
            /// As [`forward`](Forward::forward).
            pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor<Int>)> {
                let _scope = module_scope(self);
                F::$function(x, self.size)
            }
        }
    )+};
}

with_indices! {
    AdaptiveMaxPool1d adaptive_max_pool1d_with_indices
    AdaptiveMaxPool2d adaptive_max_pool2d_with_indices
    AdaptiveMaxPool3d adaptive_max_pool3d_with_indices
}

/// `lp_pool! { Name, dimensions, shape, sizes of an example and of its output, function }`
macro_rules! lp_pool {
    ($name:ident, $n:literal, $shape:literal, [$example:literal, $output:literal], $function:ident) => {
        /// `(Σ xᵖ)^(1/p)` of each window.
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same with `(size − kernel) / stride + 1` in each of these dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{Forward, ", stringify!($name), "};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let y = ", stringify!($name), "::new(2.0, 2).forward(&Tensor::ones([2, 3", $example, "])?)?;")]
        #[doc = concat!("assert_eq!(y.dims(), [2, 3", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            norm_type: f64,
            #[module(skip)]
            kernel: [usize; $n],
            #[module(skip)]
            stride: Option<[usize; $n]>,
            #[module(skip)]
            ceil_mode: bool,
        }

        impl $name {
            /// Windows of size `kernel` that do not overlap, with `norm_type` as the power p.
            pub fn new(norm_type: f64, kernel: impl Sizes<$n>) -> Self {
                Self { norm_type, kernel: kernel.into_sizes(), stride: None, ceil_mode: false }
            }

            fn describe(&self) -> String {
                let stride = self.stride.map_or_else(|| "None".to_owned(), |stride| short(&stride));
                let (norm, kernel, ceil) = (number(self.norm_type), short(&self.kernel), python(self.ceil_mode));
                format!("norm_type={norm}, kernel_size={kernel}, stride={stride}, ceil_mode={ceil}")
            }
        }

        setters! { $name,
            /// The distance between neighboring windows: one number for all dimensions, or one for each.
            stride: impl Sizes<$n> => stride = Some(stride.into_sizes());
            /// Whether a last window that reaches beyond the end counts too.
            ceil_mode: bool;
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                F::$function(x, self.norm_type, self.kernel, self.stride, self.ceil_mode)
            }
        }

        debug_is_display!($name);
    };
}

lp_pool! { LPPool1d, 1, "length", [", 6", ", 3"], lp_pool1d }
lp_pool! { LPPool2d, 2, "height, width", [", 6, 4", ", 3, 2"], lp_pool2d }
lp_pool! { LPPool3d, 3, "depth, height, width", [", 4, 6, 2", ", 2, 3, 1"], lp_pool3d }

/// `max_unpool! { Name, dimensions, shape, pool, sizes of an example, function }`
macro_rules! max_unpool {
    ($name:ident, $n:literal, $shape:literal, $pool:ident, $example:literal, $function:ident) => {
        #[doc = concat!("A partial inverse of [`", stringify!($pool), "`]: each element at its index, and zeros elsewhere.")]
        ///
        #[doc = concat!("- inputs: elements and indices, `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same with `(size − 1)·stride − 2·padding + kernel` in each of these dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{", stringify!($pool), ", ", stringify!($name), "};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let x = Tensor::rand([2, 3", $example, "])?;")]
        #[doc = concat!("let (y, indices) = ", stringify!($pool), "::new(2).forward_with_indices(&x)?;")]
        #[doc = concat!("assert_eq!(", stringify!($name), "::new(2).forward(&y, &indices)?.shape(), x.shape());")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            geometry: MaxPoolOptions<$n>,
        }

        sliding! { $name, $n, MaxPoolOptions }

        impl $name {
            /// The elements at their indices.
            ///
            /// # Errors
            #[doc = concat!("As [`functional::", stringify!($function), "`](crate::functional::", stringify!($function), ").")]
            pub fn forward(&self, x: &Tensor, indices: &Tensor<Int>) -> Result<Tensor> {
                let lead = x.rank().saturating_sub($n);
                let mut size = [0; $n];
                for (axis, size) in size.iter_mut().enumerate() {
                    let from = x.dims().get(lead + axis).map_or(0, |from| from.saturating_sub(1));
                    let MaxPoolOptions { kernel, stride, padding, .. } = &self.geometry;
                    *size = (from.saturating_mul(stride[axis]).saturating_add(kernel[axis]))
                        .saturating_sub(padding[axis].saturating_mul(2));
                }
                self.forward_sized(x, indices, size)
            }

            /// As [`forward`](Self::forward), with an output of a given size.
            ///
            /// # Errors
            /// As [`forward`](Self::forward).
            pub fn forward_sized(
                &self,
                x: &Tensor,
                indices: &Tensor<Int>,
                output_size: impl Sizes<$n>,
            ) -> Result<Tensor> {
                let _scope = module_scope(self);
                F::$function(x, indices, output_size.into_sizes())
            }

            fn describe(&self) -> String {
                let of = &self.geometry;
                let [kernel, stride, padding] = [&of.kernel, &of.stride, &of.padding].map(|sizes| tuple(sizes));
                format!("kernel_size={kernel}, stride={stride}, padding={padding}")
            }
        }

        debug_is_display!($name);
    };
}

max_unpool! { MaxUnpool1d, 1, "length", MaxPool1d, ", 6", max_unpool1d }
max_unpool! { MaxUnpool2d, 2, "height, width", MaxPool2d, ", 6, 4", max_unpool2d }
max_unpool! { MaxUnpool3d, 3, "depth, height, width", MaxPool3d, ", 4, 6, 2", max_unpool3d }
