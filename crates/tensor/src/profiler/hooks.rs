//! The hooks that operations call. While nothing is recorded, they only read the switch.

use std::borrow::Cow;
use std::marker::PhantomData;

use pagelock_cuda::Stream;

use super::graph;
use super::observer;
use super::session::{self, Open, OpenSpan};
use super::switch::{is_followed, is_observed, is_on, is_profiling, is_recording_graphs};
use super::{Category, scopes};
use crate::tensor::Raw;

/// A running activity, which ends when this is dropped.
#[must_use = "the activity ends when this is dropped"]
pub struct Running {
    is_on: bool,
    open: Option<Open>,
    observed: Option<observer::Begun>,
    is_in_graph: bool,
    /// The module that this thread was in before.
    scope_before: Option<u32>,
    on_this_thread: PhantomData<*const ()>,
}

impl Running {
    const INACTIVE: Running = Running {
        is_on: false,
        open: None,
        observed: None,
        is_in_graph: false,
        scope_before: None,
        on_this_thread: PhantomData,
    };

    #[cold]
    fn begin(name: Cow<'static, str>, category: Category) -> Running {
        let mut running = Running::INACTIVE;
        running.is_on = true;
        let operation = match (category, &name) {
            (Category::Operation, Cow::Borrowed(name)) => *name,
            _ => "",
        };
        running.observed = if is_observed() { observer::begin(&name, operation, category) } else { None };
        running.open = if is_profiling() { session::begin(name, category) } else { None };
        running
    }

    /// Notes the operation's inputs and result in the recorded graphs.
    #[inline]
    pub(crate) fn note_result(&self, inputs: &[Option<&Raw>], out: &Raw, op: &'static str) {
        if self.is_in_graph {
            graph::note(op, inputs, out);
        }
    }

    /// Discards the record of this activity, if no other one was recorded inside it.
    pub(crate) fn discard(mut self) {
        if let Some(open) = self.open.take() {
            open.discard();
        }
    }

    #[cold]
    fn end(&mut self) {
        if self.is_in_graph {
            graph::leave();
        }
        if let Some(open) = self.open.take() {
            open.end();
        }
        if let Some(begun) = &self.observed {
            observer::end(begun);
        }
        if let Some(before) = self.scope_before {
            scopes::replace(before);
        }
    }
}

impl Drop for Running {
    #[inline]
    fn drop(&mut self) {
        if self.is_on {
            self.end();
        }
    }
}

/// Begins an operation.
#[inline]
pub(crate) fn op(name: &'static str) -> Running {
    if is_on() { begin_op(name) } else { Running::INACTIVE }
}

#[cold]
fn begin_op(name: &'static str) -> Running {
    let mut running = Running::begin(Cow::Borrowed(name), Category::Operation);
    running.is_in_graph = is_recording_graphs() && graph::enter();
    running
}

/// Begins the derivative of an operation, in the module that ran the operation.
#[inline]
pub(crate) fn backward(name: &'static str, scope: u32) -> Running {
    if is_followed() { begin_backward(name, scope) } else { Running::INACTIVE }
}

#[cold]
fn begin_backward(name: &'static str, scope: u32) -> Running {
    let before = scopes::replace(scope);
    let mut running = Running::begin(Cow::Borrowed(name), Category::Backward);
    running.scope_before = Some(before);
    running
}

/// Begins an activity of another crate of the project, such as a wait for a batch or a step of an optimizer. It ends
/// when the result is dropped.
///
/// # Examples
/// ```
/// use pagelock_tensor::profiler::{self, Category};
///
/// let profile = profiler::profile(|| -> pagelock_tensor::Result<()> {
///     let _loading = profiler::span("read a file", Category::Loading);
///     Ok(())
/// })?;
/// assert_eq!(profile.key_averages().get("read a file").unwrap().calls, 1);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[inline]
pub fn span(name: &'static str, category: Category) -> Running {
    if is_followed() { Running::begin(Cow::Borrowed(name), category) } else { Running::INACTIVE }
}

/// [`span`] with a name that may be made at run time.
#[inline]
pub(super) fn span_named(name: impl Into<Cow<'static, str>>, category: Category) -> Running {
    if is_followed() { Running::begin(name.into(), category) } else { Running::INACTIVE }
}

/// Enters a module until the result is dropped: operations are attributed to it, in profiles and graphs.
///
/// `address` identifies the module, `position` is its index in a list of modules, `title` returns the name of its
/// type. A call inside a call of the same module is part of that call.
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, profiler};
///
/// struct Double;
///
/// let double = Double;
/// let x = Tensor::ones([2])?;
/// let profile = profiler::profile(|| -> pagelock_tensor::Result<()> {
///     let _inside = profiler::module_scope((&raw const double).addr(), Some(0), &|| "Double".to_owned());
///     (&x * 2.0).map(drop)
/// })?;
/// assert_eq!(profile.key_averages_by_module()[0].module.as_deref(), Some("0 (Double)"));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[inline]
pub fn module_scope(address: usize, position: Option<usize>, title: &dyn Fn() -> String) -> Running {
    if is_on() { enter_module(address, position, title) } else { Running::INACTIVE }
}

#[cold]
fn enter_module(address: usize, position: Option<usize>, title: &dyn Fn() -> String) -> Running {
    let before = scopes::current();
    if scopes::enter(address, position, title).is_none() {
        return Running::INACTIVE;
    }
    let mut running = Running::begin(Cow::Borrowed(""), Category::ModuleCall);
    running.scope_before = Some(before);
    running
}

/// Counts memory that the current operation takes for a tensor.
#[inline]
pub(crate) fn count_bytes(len_bytes: usize) {
    if is_profiling() {
        session::count(len_bytes as u64, 0);
    }
}

/// Counts floating-point operations of the current operation.
#[inline]
pub(crate) fn count_flops(flops: impl FnOnce() -> u64) {
    if is_profiling() {
        session::count(0, flops());
    }
}

/// Times the work that `work` queues on a stream, as a part of the current operation.
#[inline]
pub(crate) fn on_stream<R>(name: &'static str, stream: impl FnOnce() -> Stream, work: impl FnOnce() -> R) -> R {
    let span = if is_profiling() { begin_on(stream) } else { None };
    let result = work();
    if let Some(span) = span {
        span.end(name);
    }
    result
}

#[inline]
fn begin_on(stream: impl FnOnce() -> Stream) -> Option<OpenSpan> {
    session::begin_on(&stream())
}
