//! A thread-local value that is replaced while a function runs.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `f` with `cell` set to `value`, and then restores the previous value, also when `f` unwinds.
pub(crate) fn with_value<T: Copy, R>(cell: &'static LocalKey<Cell<T>>, value: T, f: impl FnOnce() -> R) -> R {
    let _restore = Restore { cell, before: cell.replace(value) };
    f()
}

struct Restore<T: Copy + 'static> {
    cell: &'static LocalKey<Cell<T>>,
    before: T,
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}
