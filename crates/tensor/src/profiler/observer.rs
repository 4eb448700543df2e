//! [`Observer`]: is told of everything that profiles record, as it happens.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Category, scopes, switch};
use crate::error::{Error, Result};

/// Is told when operations, derivatives, calls of modules, waits for loaders and steps of optimizers begin and end,
/// for example to feed a library for spans. `pagelock` has spans of the crate `tracing` ready, behind its feature
/// `tracing`.
///
/// It is called on the thread of the activity, between the parts of an operation, so it should return soon. It must
/// not compute with tensors, since it would be told of that.
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
    /// An activity begins. `name` is that of an operation, of a derivative's operation, of a called module (its path
    /// and type, `layers.0 (Conv2d)`), or of an optimizer's type. The returned number is passed to
    /// [`end`](Self::end).
    fn begin(&self, name: &str, category: Category) -> u64;

    /// The activity ends, on the same thread. This is called even if the observing has ended before.
    fn end(&self, begun: u64);
}

/// The observer of the process, once one was given.
static OBSERVER: OnceLock<&'static dyn Observer> = OnceLock::new();
/// Whether the observer is active.
static IS_ON: Mutex<bool> = Mutex::new(false);

/// Tells `observer` of the activities of the whole process, until the result is dropped. Profiles and graphs can be
/// recorded at the same time. While nothing is observed or recorded, an operation costs one load of an atomic number.
///
/// # Errors
/// [`Error::Argument`] if an observer is active already, or a different one was given before: a process has only one.
///
/// # Examples
/// See [`Observer`].
pub fn observe(observer: &'static dyn Observer) -> Result<Observed> {
    let mut is_on = IS_ON.lock().unwrap_or_else(PoisonError::into_inner);
    let known = *OBSERVER.get_or_init(|| observer);
    if *is_on || !std::ptr::addr_eq(known, observer) {
        let fix = "drop its `Observed` first, and give the same observer each time";
        return Err(Error::Argument(format!("observe: an observer is active already; {fix}")));
    }
    *is_on = true;
    switch::begin(switch::OBSERVED);
    Ok(Observed { on: PhantomData })
}

/// An observer is active while this exists; see [`observe`].
#[must_use = "dropping it ends the observation"]
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
    /// The operation that this thread is in, if that is the innermost activity that the observer was told of; else
    /// empty.
    static INNERMOST: Cell<&'static str> = const { Cell::new("") };
}

/// An activity that the observer was told of, until [`end`].
pub(super) struct Begun {
    id: u64,
    outer: &'static str,
}

/// Tells the observer that an activity begins. An operation inside another one of the same name is a part of that
/// one, and is not told. `operation` is empty for other activities. A module's name is that of the scope that this
/// thread is in.
pub(super) fn begin(name: &str, operation: &'static str, category: Category) -> Option<Begun> {
    let observer = OBSERVER.get()?;
    if !operation.is_empty() && INNERMOST.get() == operation {
        return None;
    }
    let id = match category {
        Category::ModuleCall => observer.begin(&scopes::find(scopes::current())?.text, category),
        _ => observer.begin(name, category),
    };
    Some(Begun { id, outer: INNERMOST.replace(operation) })
}

pub(super) fn end(begun: &Begun) {
    INNERMOST.set(begun.outer);
    if let Some(observer) = OBSERVER.get() {
        observer.end(begun.id);
    }
}
