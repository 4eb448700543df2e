//! What a kernel takes: parameters, and how arguments become what the driver passes on.

use std::{ffi::c_void, marker::PhantomData, ptr};

use crate::{
    buffer::{DeviceView, DeviceViewMut},
    element::Element,
    error::Result,
    stream::{Access, Stream},
};

/// A parameter of a kernel: [`Read`], [`Write`], or a number passed by value.
pub trait KernelParameter: sealed::Lower {}

/// A buffer that a kernel only reads: `const T*`. Its argument is a [`DeviceView`].
pub struct Read<T: Element>(PhantomData<T>);

/// A buffer that a kernel reads and writes: `T*`. Its argument is a [`DeviceViewMut`].
pub struct Write<T: Element>(PhantomData<T>);

/// All parameters of a kernel: a tuple of up to twelve [`KernelParameter`]s.
pub trait Signature: sealed::LowerAll + 'static {}

/// The most parameters of a signature.
pub(super) const MOST: usize = 12;

/// Arguments as the driver takes them.
pub struct Lowered<'a> {
    values: [u64; MOST],
    count: usize,
    accesses: Vec<Access<'a>>,
}

pub(super) mod sealed {
    use super::{Lowered, Result, Stream};

    /// How one argument is passed.
    pub trait Lower: 'static {
        /// What is given at a launch.
        type Argument<'a>;
        /// Bytes of the kernel's parameter.
        const SIZE: usize;

        /// Adds it.
        fn lower<'a>(argument: Self::Argument<'a>, to: &mut Lowered<'a>, stream: &Stream) -> Result<()>;
    }

    /// How all arguments are passed.
    pub trait LowerAll {
        /// What is given at a launch.
        type Arguments<'a>;

        /// Bytes of each parameter.
        fn sizes() -> Vec<usize>;

        /// All of them.
        fn lower<'a>(arguments: Self::Arguments<'a>, stream: &Stream) -> Result<Lowered<'a>>;
    }
}

impl<'a> Lowered<'a> {
    fn new() -> Self {
        Self { values: [0; MOST], count: 0, accesses: Vec::with_capacity(MOST) }
    }

    fn push(&mut self, bytes: &[u8]) {
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        self.values[self.count] = u64::from_ne_bytes(value); // in memory the bytes come first, in their order
        self.count += 1;
    }

    pub(super) fn accesses(&self) -> &[Access<'a>] {
        &self.accesses
    }

    /// One pointer for each argument, for as long as this is borrowed.
    pub(super) fn pointers(&self) -> ([*mut c_void; MOST], usize) {
        let mut pointers = [ptr::null_mut(); MOST];
        for (pointer, value) in pointers.iter_mut().zip(&self.values) {
            *pointer = ptr::from_ref(value).cast_mut().cast();
        }
        (pointers, self.count)
    }
}

macro_rules! buffers {
    ($($Parameter:ident: $View:ident)*) => { $(
        impl<T: Element> KernelParameter for $Parameter<T> {}

        impl<T: Element> sealed::Lower for $Parameter<T> {
            type Argument<'a> = $View<'a, T>;
            const SIZE: usize = 8;

            fn lower<'a>(view: $View<'a, T>, to: &mut Lowered<'a>, stream: &Stream) -> Result<()> {
                view.check_beside(stream.core())?;
                to.push(&view.address().0.to_ne_bytes());
                to.accesses.push(view.access());
                Ok(())
            }
        }
    )* };
}

buffers! { Read: DeviceView Write: DeviceViewMut }

macro_rules! numbers {
    ($($Number:ty)*) => { $(
        impl KernelParameter for $Number {}

        impl sealed::Lower for $Number {
            type Argument<'a> = $Number;
            const SIZE: usize = size_of::<$Number>();

            fn lower(number: $Number, to: &mut Lowered<'_>, _: &Stream) -> Result<()> {
                to.push(&number.to_ne_bytes());
                Ok(())
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

            fn sizes() -> Vec<usize> {
                vec![$($P::SIZE),*]
            }

            fn lower<'a>(arguments: Self::Arguments<'a>, stream: &Stream) -> Result<Lowered<'a>> {
                let mut lowered = Lowered::new();
                #[allow(non_snake_case, reason = "named after their parameters")]
                let ($($P,)*) = arguments;
                $($P::lower($P, &mut lowered, stream)?;)*
                Ok(lowered)
            }
        }
    )* };
}

tuples! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) (A B C D E F G H I)
    (A B C D E F G H I J) (A B C D E F G H I J K) (A B C D E F G H I J K L)
}
