//! The parameters of a kernel, and how typed arguments become [`Argument`]s.

use std::marker::PhantomData;

use super::function::{Argument, ArgumentList};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
};

/// A parameter of a kernel: [`Read`], [`Write`], or a number passed by value.
pub trait KernelParameter: sealed::Lower {}

/// A buffer that a kernel only reads: `const T*`. Its argument is a [`DeviceView`].
pub struct Read<T: DeviceCopy>(PhantomData<T>);

/// A buffer that a kernel reads and writes: `T*`. Its argument is a [`DeviceViewMut`].
pub struct Write<T: DeviceCopy>(PhantomData<T>);

/// All parameters of a kernel: a tuple of up to twelve [`KernelParameter`]s.
pub trait Signature: sealed::LowerAll + 'static {}

pub(super) mod sealed {
    use super::super::function::{Argument, ArgumentList};

    /// How one argument is passed.
    pub trait Lower: 'static {
        /// The type of the argument at a launch.
        type Argument<'a>;
        /// The size of the kernel's parameter in bytes.
        const SIZE: usize;

        /// The untyped argument.
        fn lower<'a>(argument: &'a mut Self::Argument<'_>) -> Argument<'a>;
    }

    /// How all arguments are passed.
    pub trait LowerAll {
        /// The types of the arguments at a launch.
        type Arguments<'a>;
        /// The size of each parameter in bytes.
        const SIZES: &'static [usize];

        /// The untyped arguments.
        fn lower<'a>(arguments: &'a mut Self::Arguments<'_>) -> ArgumentList<Argument<'a>>;
    }
}

impl<T: DeviceCopy> KernelParameter for Read<T> {}

impl<T: DeviceCopy> sealed::Lower for Read<T> {
    type Argument<'a> = DeviceView<'a, T>;
    const SIZE: usize = 8;

    fn lower<'a>(view: &'a mut DeviceView<'_, T>) -> Argument<'a> {
        Argument::Read(view.bytes())
    }
}

impl<T: DeviceCopy> KernelParameter for Write<T> {}

impl<T: DeviceCopy> sealed::Lower for Write<T> {
    type Argument<'a> = DeviceViewMut<'a, T>;
    const SIZE: usize = 8;

    fn lower<'a>(view: &'a mut DeviceViewMut<'_, T>) -> Argument<'a> {
        Argument::Write(view.reborrow().bytes())
    }
}

macro_rules! numbers {
    ($($Number:ty)*) => { $(
        impl KernelParameter for $Number {}

        impl sealed::Lower for $Number {
            type Argument<'a> = $Number;
            const SIZE: usize = size_of::<$Number>();

            fn lower(number: &mut $Number) -> Argument<'_> {
                Argument::Value(bytemuck::bytes_of(number))
            }
        }
    )* };
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

macro_rules! tuples {
    ($(($($P:ident)*))*) => { $(
        impl<$($P: KernelParameter),*> Signature for ($($P,)*) {}

        impl<$($P: KernelParameter),*> sealed::LowerAll for ($($P,)*) {
            type Arguments<'a> = ($($P::Argument<'a>,)*);
            const SIZES: &'static [usize] = &[$($P::SIZE),*];

            fn lower<'a>(arguments: &'a mut Self::Arguments<'_>) -> ArgumentList<Argument<'a>> {
                #[allow(non_snake_case, reason = "named after their parameters")]
                let ($($P,)*) = arguments;
                [$($P::lower($P)),*].into_iter().collect()
            }
        }
    )* };
}

tuples! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) (A B C D E F G H I)
    (A B C D E F G H I J) (A B C D E F G H I J K) (A B C D E F G H I J K L)
}
