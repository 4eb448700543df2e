//! Calls that fail on request.

use crate::driver::{Call, Status};

/// "The n-th call fails": which one, with what, and whether it does its work all the same.
///
/// # Examples
/// ```
/// use pagelock_cuda::{driver::{Call, Status}, software::{Config, Fault, Machine}};
///
/// let machine = Machine::new(Config::default());
/// let device = machine.device(0)?;
/// machine.fail(Fault::at(0).call(Call::CreateStream).status(Status::OUT_OF_MEMORY));
/// assert!(device.stream().is_err());
/// assert!(device.stream().is_ok(), "only that one call failed");
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    skip: u64,
    call: Option<Call>,
    status: Status,
    effect: Effect,
    lasting: bool,
}

/// Whether a call that fails does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only fails.
    None,
    /// It reports the failure of something earlier, as asynchronous drivers do, and has done its own work.
    Done,
}

impl Fault {
    /// The call after `skip` others fails with [`Status::LAUNCH_FAILED`] and does nothing.
    pub fn at(skip: u64) -> Self {
        Self { skip, call: None, status: Status::LAUNCH_FAILED, effect: Effect::None, lasting: false }
    }

    /// Counts only calls of this kind.
    pub fn call(self, call: Call) -> Self {
        Self { call: Some(call), ..self }
    }

    /// Fails with this status.
    pub fn status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    /// Whether the work is done all the same.
    pub fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// From there on every call of any kind fails, and does nothing: the device is lost. What is queued still runs.
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self }
    }
}

/// The faults that are still to come, and what is left of the device.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pending: Vec<Fault>,
    dead: Option<Status>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.pending.push(fault);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether this call fails.
    pub(super) fn strike(&mut self, call: Call) -> Option<(Status, Effect)> {
        if let Some(status) = self.dead {
            return Some((status, Effect::None));
        }
        let concerned = self.pending.iter_mut().filter(|fault| fault.call.is_none_or(|of| of == call));
        let mut due = false;
        for fault in concerned {
            due |= fault.skip == 0;
            fault.skip = fault.skip.wrapping_sub(1);
        }
        if !due {
            return None;
        }
        let at = self.pending.iter().position(|fault| fault.skip == u64::MAX)?;
        let fault = self.pending.remove(at);
        if fault.lasting {
            self.dead = Some(fault.status);
        }
        Some((fault.status, fault.effect))
    }
}
