//! [`Race`]: the report of a race.

use std::{fmt, ops::Range, panic::Location};

/// A race between a copy and code that accessed the copy's memory while it was in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Race {
    /// The kind of race.
    pub kind: RaceKind,
    /// The line that started the copy, if it is known.
    pub copy: Option<&'static Location<'static>>,
    /// The last access to the bytes, if it is known.
    pub access: Option<HostAccess>,
    /// The range from the first to the last wrong byte in the copy's host memory.
    pub bytes: Range<usize>,
    /// The length of the copy's host memory in bytes.
    pub len_bytes: usize,
}

/// A conflicting access to memory that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaceKind {
    /// A source was changed while a device may have been reading it.
    SourceChanged,
    /// A target was written while a device may have been writing it.
    TargetWritten,
}

/// A call that returned a pointer or slice through which a buffer's bytes can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostAccess {
    /// The line of the call.
    pub at: &'static Location<'static>,
    /// Whether it was made after the copy was started.
    pub in_flight: bool,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, copy, access, bytes: Range { start, end }, len_bytes } = self;
        let (end_of_copy, what, verb) = match kind {
            RaceKind::SourceChanged => ("source", "changed", "read"),
            RaceKind::TargetWritten => ("target", "written", "wrote"),
        };
        let copy = copy.map_or("a copy".to_owned(), |site| format!("the copy at {site}"));
        write!(
            f,
            "race: the {end_of_copy} of {copy} was {what} while the device {verb} it (bytes {start}..{end} of \
             {len_bytes}); "
        )?;
        match access {
            Some(HostAccess { at, in_flight: true }) => write!(f, "{at} accessed the buffer during the copy; ")?,
            Some(HostAccess { at, in_flight: false }) => write!(f, "the last access before the copy was at {at}; ")?,
            None => f.write_str("the access to these bytes is unknown; ")?,
        }
        write!(f, "wait for the copy's ticket, event or scope before its {end_of_copy} is {what}")
    }
}
