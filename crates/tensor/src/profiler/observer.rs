//! [`Observer`]: told of all that profiles record, while it goes on.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Category, scopes, switch};
use crate::error::{Error, Result};

/// Told of operations, derivatives, calls of modules, waits for loaders and steps of optimizers, when they begin and when they
/// end: what a library for spans is fed with. `pagelock` has spans of the crate `tracing` ready, behind its feature `tracing`.
///
/// It is called on the thread on which things go on, between the parts of an operation, so it should return soon. It may not
/// compute with tensors: it would be told of that.
///
/// # Examples
/// ```standalone_crate
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pagelock_tensor::{Tensor, profiler::{self, Category, Observer}};
///
/// #[derive(Default)]
/// struct Counter(AtomicU64);
///
/// impl Observer for Counter {
///     fn begin(&self, name: &str, _: Category) -> u64 {
///         self.0.fetch_add(u64::from(name == "exp"), Ordering::Relaxed);
///         0
///     }
///     fn end(&self, _: u64) {}
/// }
/// static COUNTER: Counter = Counter(AtomicU64::new(0));
///
/// let observed = profiler::observe(&COUNTER)?;
/// Tensor::ones([2])?.exp()?;
/// drop(observed);
/// Tensor::ones([2])?.exp()?;
/// assert_eq!(COUNTER.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub trait Observer: Sync {
    /// Something begins: an operation by its name, a derivative by that of its operation, a call of a module by its path and type
    /// (`layers.0 (Conv2d)`), a step of an optimizer by that of its type. What it returns is given to [`end`](Self::end).
    fn begin(&self, name: &str, category: Category) -> u64;

    /// It ends, on the same thread, also if it did so after the observing had ended.
    fn end(&self, begun: u64);
}

/// The one of the process, once there was one.
static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();
/// Whether it is told of anything now.
static IS_ON: Mutex<bool> = Mutex::new(false);

/// Tells `observer` of what goes on in the whole process, until the result is dropped. Beside profiles and graphs, which it does
/// not disturb. While nothing is observed or recorded, an operation costs one look at an atomic number.
///
/// # Errors
/// [`Error::Argument`] if something is observed already, or another observer was given before: a process has one.
///
/// # Examples
/// See [`Observer`].
pub fn observe(observer: &'static dyn Observer) -> Result<Observed> {
    let mut is_on = IS_ON.lock().unwrap_or_else(PoisonError::into_inner);
    let known = *OBSERVER.get_or_init(|| observer);
    if *is_on || !std::ptr::addr_eq(known, observer) {
        let fix = "end the other one, and give the same observer each time";
        return Err(Error::Argument(format!("observe: another observer is told of what goes on; {fix}")));
    }
    *is_on = true;
    switch::begin(switch::OBSERVED);
    Ok(Observed { on: PhantomData })
}

/// While this is there, an observer is told of what goes on; see [`observe`].
#[must_use = "dropping it ends the observing"]
pub struct Observed {
    on: PhantomData<()>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        let mut is_on = IS_ON.lock().unwrap_or_else(PoisonError::into_inner);
        *is_on = false;
        switch::end(switch::OBSERVED);
    }
}

thread_local! {
    /// The operation that this thread is in, if that is the innermost thing that the observer was told of.
    static INNERMOST: Cell<&'static str> = const { Cell::new("") };
}

/// What the observer was told of, until [`end`].
pub(super) struct Told {
    begun: u64,
    before: &'static str,
}

/// Tells it that something begins, but not of an `operation` inside another of the same name, which is a part of that one; empty
/// for what is none. A module is called by where this thread is.
pub(super) fn begin(name: &str, operation: &'static str, category: Category) -> Option<Told> {
    let observer = OBSERVER.get()?;
    if !operation.is_empty() && INNERMOST.get() == operation {
        return None;
    }
    let begun = match category {
        Category::ModuleCall => observer.begin(&scopes::find(scopes::current())?.text, category),
        _ => observer.begin(name, category),
    };
    Some(Told { begun, before: INNERMOST.replace(operation) })
}

pub(super) fn end(told: &Told) {
    INNERMOST.set(told.before);
    if let Some(observer) = OBSERVER.get() {
        observer.end(told.begun);
    }
}
