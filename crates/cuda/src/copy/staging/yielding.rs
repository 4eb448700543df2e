//! [`Yielding`]: how a long copy lets the copies of other streams pass.
//!
//! A device does one stream's copies of one direction in a row, for as long as there are any: a small copy of another stream
//! may wait for gigabytes. So a long copy lets the device run out of its copies: after every MiB while other streams copy
//! the same way, and once in a while in case they do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ring::Lease;
use crate::{device_shared::Traffic, driver::EventTiming, error::Result, event::Recorded, stream::StreamCore};

/// See the head of the file.
pub(super) struct Yielding<'a> {
    stream: &'a Arc<StreamCore>,
    traffic: &'a Traffic, // copies of this direction
    is_short: bool,       // soon over: does not yield
    interval: Duration,   // after which it yields if no other stream is known to copy
    yielded_at: Instant,
    seen: u64, // copies of other streams
    others_until: Instant,
    last: Option<Recorded>, // after the last part of a piece that was queued while others copied
}

const OTHERS_FOR: Duration = Duration::from_millis(5); // so long other streams are expected to copy again
const BYTES_BESIDE_OTHERS: usize = 1 << 20; // queued at once meanwhile

impl<'a> Yielding<'a> {
    pub(super) fn new(stream: &'a Arc<StreamCore>, traffic: &'a Traffic, is_short: bool, interval: Duration) -> Self {
        let (now, seen) = (Instant::now(), traffic.of_others(stream.id()));
        Self { stream, traffic, is_short, interval, yielded_at: now, seen, others_until: now, last: None }
    }

    /// Whether to queue nothing yet: until the device has run out of this call's copies, so that those of other streams pass.
    pub(super) fn has_to_wait(&mut self, lease: &Lease<'_>) -> bool {
        if self.is_short {
            return false;
        }
        let (now, others) = (Instant::now(), self.traffic.of_others(self.stream.id()));
        if others != self.seen {
            self.seen = others;
            self.others_until = now + OTHERS_FOR;
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

    /// How much to queue at once, of `len_bytes`.
    pub(super) fn most_at_once(&self, len_bytes: usize) -> usize {
        if self.is_beside_others() { BYTES_BESIDE_OTHERS.min(len_bytes) } else { len_bytes }
    }

    /// To be called when a part was queued.
    pub(super) fn note_queued(&mut self) -> Result<()> {
        self.last =
            if self.is_beside_others() { Some(Recorded::new(self.stream, EventTiming::Untimed)?) } else { None };
        Ok(())
    }

    fn is_beside_others(&self) -> bool {
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

    /// A device that does nothing before it is waited for, or asked.
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
        assert_eq!(yielding.most_at_once(MANY), BYTES_BESIDE_OTHERS);
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
        assert_eq!(yielding.most_at_once(MANY), MANY);
    }

    #[test]
    fn a_short_copy_does_not_yield() {
        let (device, ring) = (lazy(), Ring::new(1 << 10, 2));
        let stream = device.stream().unwrap();
        let (traffic, lease) = (&device.core().shared().downloads, ring.lease(stream.core()));
        let mut yielding = Yielding::new(stream.core(), traffic, true, HOUR);
        traffic.note(OTHER_STREAM);
        assert!(!yielding.has_to_wait(&lease));
        assert_eq!(yielding.most_at_once(MANY), MANY);
    }
}
