//! Refused calls: the texts of their errors, and that they leave nothing behind.
//!
//! [`refuses`] checks an error's text, and that the bytes in use are what they were before. The ledger is global to
//! the process, so every test holds the lock of [`alone`].

mod autograd;
mod budget;
mod creation;
mod images;
mod operations;
mod views;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelock_memory::ledger;
use pagelock_tensor::{Error, Int, Result, Tensor};

/// Keeps other tests of this binary from allocating.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that `attempt` fails with this text and leaves no bytes behind. Only inside [`alone`].
#[track_caller]
fn refuses<R>(attempt: impl FnOnce() -> Result<R>, text: &str) {
    let before = ledger().live_bytes();
    let error = match attempt() {
        Ok(_) => panic!("nothing was refused; expected: {text}"),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), text);
    drop(error);
    // Threads of other tests may end meanwhile and free the memory that they kept.
    assert!(ledger().live_bytes() <= before, "bytes are left after: {text}");
}

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(shape).unwrap()
}

fn indices(values: &[i64]) -> Tensor<Int> {
    Tensor::from_slice(values, values.len()).unwrap()
}

#[test]
fn errors_are_small_and_can_be_sent() {
    fn is_an_error<E: std::error::Error + Send + Sync + 'static>() {}
    is_an_error::<Error>();
    assert!(size_of::<Error>() <= 256, "{}", size_of::<Error>());
}
