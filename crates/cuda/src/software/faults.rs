//! [`Fault`]: makes a call of the driver fail.

use crate::driver::{Call, Status};

/// A call that fails: which call, with which status, and whether it does its work all the same.
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
    /// It fails without doing its work.
    None,
    /// It does its work and reports the failure of earlier work, as asynchronous drivers do.
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

    /// Sets whether the call does its work all the same.
    pub fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// Makes all later calls of any kind fail and do nothing, as if the device was lost. Work that is already queued
    /// still runs.
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self }
    }
}

/// The pending faults, and the status of all calls if the device is lost.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pending: Vec<Fault>,
    lost: Option<Status>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.pending.push(fault);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether this call fails.
    pub(super) fn next_failure(&mut self, call: Call) -> Option<(Status, Effect)> {
        if let Some(status) = self.lost {
            return Some((status, Effect::None));
        }
        let matching = self.pending.iter_mut().filter(|fault| fault.call.is_none_or(|of| of == call));
        let mut due = false;
        for fault in matching {
            due |= fault.skip == 0;
            fault.skip = fault.skip.wrapping_sub(1);
        }
        if !due {
            return None;
        }
        let at = self.pending.iter().position(|fault| fault.skip == u64::MAX)?;
        let fault = self.pending.remove(at);
        if fault.lasting {
            self.lost = Some(fault.status);
        }
        Some((fault.status, fault.effect))
    }
}
