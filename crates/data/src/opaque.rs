//! [`Opaque`]: keeps what is compiled here out of programs that use a generic type around it.

use std::borrow::BorrowMut;
use std::ops::{Deref, DerefMut};

/// A value of ours in a type that is generic: dropping and moving it is compiled here, not again in every program.
pub(crate) struct Opaque<'a, T>(Box<dyn BorrowMut<T> + Send + Sync + 'a>);

impl<'a, T: Send + Sync + 'a> Opaque<'a, T> {
    /// Not for callers that are generic.
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
