//! Comparisons, which make `bool` tensors, and casts between element types.

use std::marker::PhantomData;

use half::{bf16, f16};

use crate::autograd::Saved;
use crate::cpu::{self, CpuView};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{DType, Element};
use crate::error::Result;
use crate::op::{Inputs, Op, PerType, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

/// `comparison! { Struct, method, operator, doc }`
macro_rules! comparison {
    ($name:ident, $method:ident, $operator:tt, $doc:literal) => {
        struct $name;

        per_type! { $name[2]: Element }

        impl<T: Element> Op<T, 2> for $name {
            type Out = bool;
            const NAME: &'static str = stringify!($method);
            const SAVES: Saves = Saves::Nothing;
            const INPUTS: Inputs = Inputs::Broadcast;

            fn out_shape(&self, [a, b]: [&Shape; 2]) -> Result<Shape> {
                Shape::broadcast(stringify!($method), a, b)
            }

            fn cpu(&self, [a, b]: [CpuView<'_, T>; 2], out: &mut [bool]) -> Result<()> {
                cpu::map2(a, b, out, |a: T, b: T| a $operator b);
                Ok(())
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
                static FORMULA: Formula = Formula {
                    name: stringify!($method),
                    inputs: &["a", "b"],
                    constants: &[],
                    text: concat!("a ", stringify!($operator), " b"),
                    changes: false,
                };
                FORMULA.run(device, stringify!($method), &inputs, &[], out)
            }

            fn backward(&self, _: &Saved<'_, T, bool, 2>, _: &Tensor<bool>) -> Result<[Option<Tensor<T>>; 2]> {
                Ok([None, None]) // truth values do not change smoothly
            }
        }

        impl<T: Element> Tensor<T> {
            #[doc = $doc]
            ///
            /// # Errors
            /// [`Error::Broadcast`](crate::Error::Broadcast) if the shapes do not fit.
            pub fn $method(&self, other: &Tensor<T>) -> Result<Tensor<bool>> {
                apply($name, [self, other])
            }
        }
    };
}

comparison!(Eq, eq, ==, "Where `self == other`, elementwise, broadcasting.");
comparison!(Ne, ne, !=, "Where `self != other`, elementwise, broadcasting.");
comparison!(Lt, lt, <, "Where `self < other`, elementwise, broadcasting.");
comparison!(Le, le, <=, "Where `self <= other`, elementwise, broadcasting.");
comparison!(Gt, gt, >, "Where `self > other`, elementwise, broadcasting.");
comparison!(Ge, ge, >=, "Where `self >= other`, elementwise, broadcasting.");

/// A conversion to `U`.
struct Cast<U>(PhantomData<U>);

per_type! { Cast<f32>[1]: Element }
per_type! { Cast<f64>[1]: Element }
per_type! { Cast<f16>[1]: Element }
per_type! { Cast<bf16>[1]: Element }
per_type! { Cast<i64>[1]: Element }
per_type! { Cast<i32>[1]: Element }
per_type! { Cast<u8>[1]: Element }
per_type! { Cast<bool>[1]: Element }

impl<T: Element, U: Element> Op<T, 1> for Cast<U> {
    type Out = U;
    const NAME: &'static str = "cast";
    const SAVES: Saves = Saves::Nothing;
    const IS_ELEMENTWISE: bool = true;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [U]) -> Result<()> {
        cpu::map1(x, out, |x: T| x.cast());
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        static CAST: Formula = Formula { name: "cast", inputs: &["x"], constants: &[], text: "x", changes: false };
        CAST.run(device, "cast", &inputs, &[], out)
    }

    fn backward(&self, _: &Saved<'_, T, U, 1>, grad: &Tensor<U>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(grad.cast()?)])
    }
}

impl<T: Element> Tensor<T> {
    /// Every element converted to `U`, as Rust's `as` does: floats become integers by truncation (saturating),
    /// anything but zero becomes `true`. Between float types gradients flow back, converted.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let right = Tensor::new([1.0, 2.0])?.eq(&Tensor::new([1.0, 3.0])?)?;
    /// assert_eq!(right.cast::<f32>()?.mean(..)?.item()?, 0.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn cast<U: Element>(&self) -> Result<Tensor<U>> {
        let (dtype, input) = (T::DTYPE, [self.raw()]);
        let out = match U::DTYPE {
            DType::F32 => Cast::<f32>(PhantomData).apply_to(dtype, input),
            DType::F64 => Cast::<f64>(PhantomData).apply_to(dtype, input),
            DType::F16 => Cast::<f16>(PhantomData).apply_to(dtype, input),
            DType::BF16 => Cast::<bf16>(PhantomData).apply_to(dtype, input),
            DType::I64 => Cast::<i64>(PhantomData).apply_to(dtype, input),
            DType::I32 => Cast::<i32>(PhantomData).apply_to(dtype, input),
            DType::U8 => Cast::<u8>(PhantomData).apply_to(dtype, input),
            DType::Bool => Cast::<bool>(PhantomData).apply_to(dtype, input),
        };
        out.map(Raw::typed)
    }
}

/// Bytes as `f32`, each times a number.
struct Scaled(f32);

per_type! { Scaled[1]: [u8 U8] }

impl Op<u8, 1> for Scaled {
    type Out = f32;
    const NAME: &'static str = "scaled";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cpu(&self, [x]: [CpuView<'_, u8>; 1], out: &mut [f32]) -> Result<()> {
        cpu::map1(x, out, |x: u8| f32::from(x) * self.0);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        static SCALED: Formula =
            Formula { name: "scaled", inputs: &["x"], constants: &["by"], text: "Q(x) * by", changes: false };
        SCALED.run(device, "scaled", &inputs, &[constant(self.0)], out)
    }

    fn backward(&self, _: &Saved<'_, u8, f32, 1>, _: &Tensor<f32>) -> Result<[Option<Tensor<u8>>; 1]> {
        Ok([None]) // bytes have no gradient
    }
}

impl Tensor<u8> {
    /// Every byte as a float, times `factor`: the pixels of images in one pass.
    ///
    /// ```
    /// # use pagelock_tensor::{Create, Tensor};
    /// let pixels = Tensor::<u8>::new([0, 64, 255])?;
    /// assert_eq!(pixels.scaled(1.0 / 256.0)?.to_vec()?, [0.0, 0.25, 0.99609375]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn scaled(&self, factor: f32) -> Result<Tensor> {
        apply(Scaled(factor), [self])
    }
}
