//! What a program does with its time and memory: profiles as `torch.profiler` makes them, and graphs of operations.
//!
//! ```
//! use pagelock_tensor::{Tensor, profiler::{self, SortBy}};
//!
//! let w = Tensor::randn([256, 256])?.set_requires_grad(true);
//! let profile = profiler::profile(|| -> pagelock_tensor::Result<()> {
//!     for _ in 0..3 {
//!         let x = profiler::record_function("make data", || Tensor::randn([64, 256]))?;
//!         x.matmul(&w)?.relu()?.sum(..)?.backward()?;
//!     }
//!     Ok(())
//! })?;
//! let table = profile.key_averages().sort_by(SortBy::SelfHostTime);
//! println!("{table}");
//! let matmul = table.get("matmul").expect("there were matrix products");
//! assert_eq!((matmul.calls, matmul.flops), (6, 6 * 2 * 64 * 256 * 256)); // one forward, one backward
//! let folder = tempfile::tempdir()?;
//! profile.export_chrome_trace(folder.path().join("trace.json"))?; // for chrome://tracing or ui.perfetto.dev
//! profile.export_memory_timeline(folder.path().join("memory.svg"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A profile covers the whole process: all threads, from [`Profiler::start`] to [`ActiveProfiler::stop`]. One profile
//! is recorded at a time. While none is recorded, an operation costs one load of an atomic number.
//!
//! A profile contains operations with the module that called them, derivatives (`matmul backward`) with the module of
//! their forward, waits for a loader, copies between host and devices, steps of optimizers, launches of captured
//! steps, and activities that the program names with [`record_function`]. On a GPU, the work that an operation queues
//! is timed by two events on its stream. A captured step is a single launch there, so its kernels are not visible.

// Reading order: this file, `hooks.rs` (the calls that operations make), `session.rs` (the logs), `scopes.rs`
// (modules), `profile.rs` and `table.rs` (the results), `memory.rs`; `graph.rs` and `observer.rs`, the other users of
// the hooks; `switch.rs`.

mod graph;
mod hooks;
mod memory;
mod observer;
mod profile;
mod scopes;
mod session;
mod switch;
mod table;

use std::borrow::Cow;
use std::sync::Arc;

pub use graph::{GraphRecorder, NodeSource, RecordedGraph, RecordedNode};
pub use hooks::{Running, module_scope, span};
pub(crate) use hooks::{backward, count_bytes, count_flops, on_stream, op};
pub use memory::{HeldMemory, MemorySample};
pub use observer::{Observed, Observer, observe};
pub use profile::{FunctionEvent, Profile};
pub use scopes::ModuleNames;
pub(crate) use scopes::current as current_scope;
pub use table::{KeyAverage, KeyAverages, SortBy};

use crate::error::{Error, Result};
use session::Session;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Category {
    /// An operation on tensors.
    Operation,
    /// The derivative of an operation.
    Backward,
    /// A call of a module.
    ModuleCall,
    /// Work of a loader, or the program's wait for it.
    Loading,
    /// A step of an optimizer, after which the event is named: `Optimizer.step#Sgd`.
    OptimizerStep,
    /// An activity that the program named with [`record_function`].
    User,
}

impl Category {
    /// The name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Category::Operation => "operation",
            Category::Backward => "backward",
            Category::ModuleCall => "module",
            Category::Loading => "loader",
            Category::OptimizerStep => "optimizer",
            Category::User => "user",
        }
    }
}

/// Profiles `work`, as [`Profiler::profile`] with the default settings.
///
/// # Errors
/// As [`Profiler::profile`].
pub fn profile<E: From<Error>>(work: impl FnOnce() -> Result<(), E>) -> Result<Profile, E> {
    Profiler::new().profile(work)
}

/// Runs `work` under a name in the profile, if one is recorded.
///
/// # Examples
/// ```
/// use pagelock_tensor::profiler;
///
/// let answer = profiler::record_function("think", || 42);
/// assert_eq!(answer, 42);
/// ```
pub fn record_function<R>(name: impl Into<Cow<'static, str>>, work: impl FnOnce() -> R) -> R {
    let _running = hooks::span_named(name, Category::User);
    work()
}

/// The settings of a profile.
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, profiler::Profiler};
///
/// let active = Profiler::new().max_events(10_000).start()?;
/// Tensor::<pagelock_tensor::Float>::ones([2])?.exp()?;
/// let profile = active.stop()?;
/// assert_eq!(profile.key_averages().get("exp").unwrap().calls, 1);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[must_use = "`start` or `profile` begins"]
pub struct Profiler<'m> {
    max_events: usize,
    with_memory: bool,
    names: ModuleNames<'m>,
}

impl Default for Profiler<'_> {
    fn default() -> Self {
        Self { max_events: 1_000_000, with_memory: true, names: ModuleNames::new() }
    }
}

impl<'m> Profiler<'m> {
    /// A million events at most, with memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many events are recorded at most; each takes some 330 bytes of the host's budget. A recording that is full
    /// stops, and its table says so. Rounded up to a multiple of 1024.
    pub fn max_events(mut self, max_events: usize) -> Self {
        self.max_events = max_events;
        self
    }

    /// Whether memory is sampled, at most every tenth of a millisecond.
    pub fn profile_memory(mut self, with_memory: bool) -> Self {
        self.with_memory = with_memory;
        self
    }

    /// Names modules, so that operations are attributed to `layers.0 (Conv2d)` and not to `(Conv2d)`:
    /// `with_modules(model.module_names())`. Children of a `Sequential` have their positions in any case.
    pub fn with_modules(mut self, names: ModuleNames<'m>) -> Self {
        self.names.extend(names);
        self
    }

    /// Starts recording, until the result is stopped. If the result is dropped, the recording is discarded.
    ///
    /// # Errors
    /// [`Error::Argument`] if a profile is being recorded already.
    pub fn start(self) -> Result<ActiveProfiler<'m>> {
        let session = Session::start(self.max_events, self.with_memory, self.names)?;
        Ok(ActiveProfiler { session: Some(session), modules: std::marker::PhantomData })
    }

    /// Runs `work` and records it.
    ///
    /// # Errors
    /// Those of `work`, and then there is no profile; those of [`start`](Self::start) and [`stop`](ActiveProfiler::stop).
    pub fn profile<E: From<Error>>(self, work: impl FnOnce() -> Result<(), E>) -> Result<Profile, E> {
        let active = self.start()?;
        work()?;
        Ok(active.stop()?)
    }
}

/// A profile that is being recorded.
#[must_use = "dropping it ends the profile"]
pub struct ActiveProfiler<'m> {
    session: Option<Arc<Session>>,
    modules: std::marker::PhantomData<&'m ()>,
}

impl ActiveProfiler<'_> {
    /// Ends the recording. Waits for work that streams have not finished.
    ///
    /// # Errors
    /// [`Error::Cuda`] if a device cannot say how long it took.
    pub fn stop(mut self) -> Result<Profile> {
        let session = self.session.take().unwrap_or_else(|| unreachable!("only this takes the session"));
        let recorded = session.stop();
        let spans = session.timeline().spans().map_err(|source| Error::cuda("profiler", source))?;
        Ok(Profile::new(recorded, spans, session.memory().take()))
    }
}

impl Drop for ActiveProfiler<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(session.stop());
        }
    }
}
