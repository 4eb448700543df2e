//! Arguments of a kernel, in a list on the stack.

use pagelock_cuda::{Argument, MAX_ARGUMENTS};

/// At most [`MAX_ARGUMENTS`] of them.
pub(crate) struct Arguments<'a> {
    list: [Argument<'a>; MAX_ARGUMENTS],
    len: usize,
}

impl<'a> Arguments<'a> {
    pub(crate) fn of(arguments: impl Iterator<Item = Argument<'a>>) -> Arguments<'a> {
        let mut list = [const { Argument::Value(&[]) }; MAX_ARGUMENTS];
        let mut len = 0;
        for argument in arguments {
            list[len] = argument;
            len += 1;
        }
        Arguments { list, len }
    }

    pub(crate) fn get(&self) -> &[Argument<'a>] {
        &self.list[..self.len]
    }
}

/// Constants, each a `u64` of the kernel.
pub(crate) fn values(constants: &[u64]) -> impl Iterator<Item = Argument<'_>> {
    constants.iter().map(|constant| Argument::Value(bytemuck::bytes_of(constant)))
}
