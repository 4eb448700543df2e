//! [`Yielding`]: lets the copies of other streams go before the rest of a long copy.
//!
//! A device executes queued copies of one stream and direction in a row, for as long as there are any. So a small
//! copy of another stream might wait for gigabytes. To prevent that, a long copy lets the device run out of its
//! copies: after every MiB while other streams copy in the same direction, and else from time to time, in case they
//! begin to.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ring::Lease;
use crate::{device_shared::Traffic, driver::EventTiming, error::Result, event::Recorded, stream::StreamCore};

pub(super) struct Yielding<'a> {
    stream: &'a Arc<StreamCore>,
    traffic: &'a Traffic, // copies of this direction
    is_short: bool,       // a short copy does not yield
    interval: Duration,   // after which it yields if no other stream is known to copy
    yielded_at: Instant,
    seen: u64,              // the last value of `Traffic::of_others`
    others_until: Instant,  // until then other streams are expected to copy
    last: Option<Recorded>, // behind the last part that was queued, if other streams were expected to copy
}

/// How long after a copy of another stream the next one is expected.
const OTHERS_EXPECTED_FOR: Duration = Duration::from_millis(5);
const MAX_BYTES_WITH_OTHERS: usize = 1 << 20; // queued at once while other streams are expected to copy

impl<'a> Yielding<'a> {
    pub(super) fn new(stream: &'a Arc<StreamCore>, traffic: &'a Traffic, is_short: bool, interval: Duration) -> Self {
        let (now, seen) = (Instant::now(), traffic.of_others(stream.id()));
        Self { stream, traffic, is_short, interval, yielded_at: now, seen, others_until: now, last: None }
    }

    /// Whether to wait before queueing more, until the device has run out of these copies and executes other streams'.
    pub(super) fn has_to_wait(&mut self, lease: &Lease<'_>) -> bool {
        if self.is_short {
            return false;
        }
        let (now, others) = (Instant::now(), self.traffic.of_others(self.stream.id()));
        if others != self.seen {
            self.seen = others;
            self.others_until = now + OTHERS_EXPECTED_FOR;
        }
        if now >= self.others_until && now <= self.yielded_at + self.interval {
            return false;
        }
        if !lease.all_are_done() || self.last.as_ref().is_some_and(|last| !last.is_reached().unwrap_or(true)) {
            return true;
        }
        self.yielded_at = now;
        false
    }

    pub(super) fn max_at_once(&self, len_bytes: usize) -> usize {
        if self.others_are_copying() { MAX_BYTES_WITH_OTHERS.min(len_bytes) } else { len_bytes }
    }

    /// Must be called after each part is queued.
    pub(super) fn note_queued(&mut self) -> Result<()> {
        self.last =
            if self.others_are_copying() { Some(Recorded::new(self.stream, EventTiming::Untimed)?) } else { None };
        Ok(())
    }

    fn others_are_copying(&self) -> bool {
        !self.is_short && Instant::now() < self.others_until
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ring::Ring, *};
    use crate::{
        device::Device,
        software::{Config, Execution},
    };

    const OTHER_STREAM: u64 = u64::MAX;
    const MANY: usize = 64 << 20;
    const HOUR: Duration = Duration::from_secs(3_600);

    /// A device that executes nothing before it is waited for or queried.
    fn lazy() -> Device {
        Device::software(Config { execution: Execution::Stepped { haste: 0 }, ..Config::default() }).unwrap()
    }

    #[test]
    fn while_others_copy_little_is_queued_at_once_and_nothing_before_that_is_done() {
        let (device, ring) = (lazy(), Ring::new(1 << 10, 2));
        let stream = device.stream().unwrap();
        let (traffic, lease) = (&device.core().shared().downloads, ring.lease(stream.core()));
        let mut yielding = Yielding::new(stream.core(), traffic, false, HOUR);

        traffic.note(OTHER_STREAM);
        assert!(!yielding.has_to_wait(&lease), "nothing is queued");
        yielding.others_until += HOUR;
        assert_eq!(yielding.max_at_once(MANY), MAX_BYTES_WITH_OTHERS);
        let _zeros = stream.zeros::<u8>(10).unwrap();
        yielding.note_queued().unwrap();
        assert!(yielding.has_to_wait(&lease), "the first part is queued, and not done");
        stream.synchronize().unwrap();
        assert!(!yielding.has_to_wait(&lease), "the first part is done");
    }

    #[test]
    fn a_copy_does_not_yield_to_its_own_stream() {
        let device = lazy();
        let stream = device.stream().unwrap();
        let traffic = &device.core().shared().downloads;
        let yielding = Yielding::new(stream.core(), traffic, false, HOUR);
        let seen = traffic.of_others(stream.core().id());
        traffic.note(stream.core().id());
        assert_eq!(traffic.of_others(stream.core().id()), seen);
        assert_eq!(yielding.max_at_once(MANY), MANY);
    }

    #[test]
    fn a_short_copy_does_not_yield() {
        let (device, ring) = (lazy(), Ring::new(1 << 10, 2));
        let stream = device.stream().unwrap();
        let (traffic, lease) = (&device.core().shared().downloads, ring.lease(stream.core()));
        let mut yielding = Yielding::new(stream.core(), traffic, true, HOUR);
        traffic.note(OTHER_STREAM);
        assert!(!yielding.has_to_wait(&lease));
        assert_eq!(yielding.max_at_once(MANY), MANY);
    }
}
