//! [`Opaque`]: keeps code of this crate from being compiled again in programs that use a generic type around it.

use std::borrow::BorrowMut;
use std::ops::{Deref, DerefMut};

/// A value of this crate inside a generic type: the code that drops and moves it is compiled here, not again in every
/// program.
pub(crate) struct Opaque<'a, T>(Box<dyn BorrowMut<T> + Send + Sync + 'a>);

impl<'a, T: Send + Sync + 'a> Opaque<'a, T> {
    /// Must not be called from generic code, which every program would compile again.
    pub(crate) fn new(value: T) -> Self {
        Self(Box::new(value))
    }
}

impl<T> Deref for Opaque<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        (*self.0).borrow()
    }
}

impl<T> DerefMut for Opaque<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        (*self.0).borrow_mut()
    }
}
