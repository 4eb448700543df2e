//! Faults for tests: a function that is called before a step, and makes it fail or ends the process as a crash would.

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

/// While `act` runs, `fault` is called before each such step on this thread.
pub(crate) fn with<R>(step: Step, fault: impl FnMut() -> io::Result<()> + 'static, act: impl FnOnce() -> R) -> R {
    FAULT.set(Some((step, Box::new(fault))));
    let result = act();
    FAULT.set(None);
    result
}

/// What the code under test calls before each step.
pub(crate) fn at(step: Step) -> io::Result<()> {
    FAULT.with_borrow_mut(|fault| match fault {
        Some((there, fault)) if *there == step => fault(),
        _ => Ok(()),
    })
}
