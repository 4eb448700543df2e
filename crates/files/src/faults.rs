//! Fault injection for tests: a function that runs before a step and returns an error, or aborts the process like a
//! crash.

use std::cell::RefCell;
use std::io;

/// A step of writing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Lock,
    Write,
    Permissions,
    SyncFile,
    Rename,
    SyncFolder,
}

impl Step {
    pub(crate) const ALL: [Step; 7] =
        [Step::Create, Step::Lock, Step::Write, Step::Permissions, Step::SyncFile, Step::Rename, Step::SyncFolder];
}

type Fault = Box<dyn FnMut() -> io::Result<()>>;

thread_local! {
    static FAULT: RefCell<Option<(Step, Fault)>> = const { RefCell::new(None) };
}

/// Calls `fault` before each step of the kind `step` on this thread, while `act` runs.
pub(crate) fn with<R>(step: Step, fault: impl FnMut() -> io::Result<()> + 'static, act: impl FnOnce() -> R) -> R {
    FAULT.set(Some((step, Box::new(fault))));
    let result = act();
    FAULT.set(None);
    result
}

/// Called by the code under test before each step.
pub(crate) fn at(step: Step) -> io::Result<()> {
    FAULT.with_borrow_mut(|fault| match fault {
        Some((faulty_step, fault)) if *faulty_step == step => fault(),
        _ => Ok(()),
    })
}
