//! [`Manners`]: how a long copy lets the copies of other streams go before it.
//!
//! A device does one stream's copies of one direction in a row, for as long as there are any. So a long copy lets it run
//! out of them: after every MiB while other streams want their turn, and now and then in case they do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ring::Share;
use crate::{base::Traffic, driver::EventTiming, error::Result, event::Recorded, stream::StreamCore};

/// See the head of the file.
pub(super) struct Manners<'a> {
    stream: &'a Arc<StreamCore>,
    traffic: &'a Traffic,
    is_short: bool, // soon over: makes way for nobody
    at_most_busy: Duration,
    yielded_at: Instant,
    seen: u64, // copies of other streams
    polite_until: Instant,
    last: Option<Recorded>, // after the last part of a piece that was queued politely
}

const POLITE_FOR: Duration = Duration::from_millis(5);
const POLITE_BYTES: usize = 1 << 20; // at once, while others wait for their turn

impl<'a> Manners<'a> {
    /// For one copy among `traffic`, the copies of its direction. After `at_most_busy` the device runs out even if nobody
    /// is known to wait.
    pub(super) fn new(
        stream: &'a Arc<StreamCore>,
        traffic: &'a Traffic,
        is_short: bool,
        at_most_busy: Duration,
    ) -> Self {
        let (now, seen) = (Instant::now(), traffic.of_others(stream.id()));
        Self { stream, traffic, is_short, at_most_busy, yielded_at: now, seen, polite_until: now, last: None }
    }

    /// Whether to queue nothing yet: until the device has run out of this call's copies, so that those of other streams
    /// get their turn.
    pub(super) fn has_to_wait(&mut self, share: &Share<'_>) -> bool {
        if self.is_short {
            return false;
        }
        let (now, others) = (Instant::now(), self.traffic.of_others(self.stream.id()));
        if others != self.seen {
            self.seen = others;
            self.polite_until = now + POLITE_FOR;
        }
        let is_due = now < self.polite_until || now > self.yielded_at + self.at_most_busy;
        if is_due && !self.has_run_out(share) {
            return true;
        }
        if is_due {
            self.yielded_at = now;
        }
        false
    }

    fn has_run_out(&self, share: &Share<'_>) -> bool {
        let is_reached = |last: &Recorded| last.is_reached().unwrap_or(true);
        share.all_have_landed() && self.last.as_ref().is_none_or(is_reached)
    }

    /// How much to queue at once, of `usual`.
    pub(super) fn most_at_once(&self, usual: usize) -> usize {
        if self.is_polite() { POLITE_BYTES.min(usual) } else { usual }
    }

    /// Notes that a part was queued.
    pub(super) fn note_queued(&mut self) -> Result<()> {
        self.last = if self.is_polite() { Some(Recorded::new(self.stream, EventTiming::Untimed)?) } else { None };
        Ok(())
    }

    fn is_polite(&self) -> bool {
        !self.is_short && Instant::now() < self.polite_until
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ring::Ring, *};
    use crate::{
        device::Device,
        software::{Config, Schedule},
    };

    const OTHER_STREAM: u64 = u64::MAX;
    const MANY: usize = 64 << 20;
    const HOUR: Duration = Duration::from_secs(3_600);

    /// A device on which nothing is done before somebody waits for it, or asks.
    fn lazy() -> Device {
        Device::software(Config { schedule: Schedule::Stepped { haste: 0 }, ..Config::default() }).unwrap()
    }

    #[test]
    fn while_others_copy_little_is_queued_at_once_and_nothing_before_that_is_done() {
        let (device, ring) = (lazy(), Ring::new(1 << 10, 2));
        let stream = device.stream().unwrap();
        let (traffic, share) = (&device.core().base().downloads, ring.share(stream.core()));
        let mut manners = Manners::new(stream.core(), traffic, false, HOUR);

        traffic.note(OTHER_STREAM);
        assert!(!manners.has_to_wait(&share), "nothing is queued");
        manners.polite_until += HOUR;
        assert_eq!(manners.most_at_once(MANY), POLITE_BYTES);
        let _zeros = stream.zeros::<u8>(10).unwrap();
        manners.note_queued().unwrap();
        assert!(manners.has_to_wait(&share), "the first part is queued, and not done");
        stream.synchronize().unwrap();
        assert!(!manners.has_to_wait(&share), "the first part is done");
    }

    #[test]
    fn nobody_makes_way_for_his_own_stream() {
        let device = lazy();
        let stream = device.stream().unwrap();
        let traffic = &device.core().base().downloads;
        let manners = Manners::new(stream.core(), traffic, false, HOUR);
        let seen = traffic.of_others(stream.core().id());
        traffic.note(stream.core().id());
        assert_eq!(traffic.of_others(stream.core().id()), seen);
        assert_eq!(manners.most_at_once(MANY), MANY);
    }

    #[test]
    fn a_short_copy_makes_way_for_nobody() {
        let (device, ring) = (lazy(), Ring::new(1 << 10, 2));
        let stream = device.stream().unwrap();
        let (traffic, share) = (&device.core().base().downloads, ring.share(stream.core()));
        let mut manners = Manners::new(stream.core(), traffic, true, HOUR);
        traffic.note(OTHER_STREAM);
        assert!(!manners.has_to_wait(&share));
        assert_eq!(manners.most_at_once(MANY), MANY);
    }
}
