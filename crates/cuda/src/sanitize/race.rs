//! [`Race`]: what was found, in words.

use std::{fmt, ops::Range, panic::Location};

/// A race between a copy and code that got at the copy's memory all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Race {
    /// What was done.
    pub kind: RaceKind,
    /// Where the copy was asked for, where that is known.
    pub copy: Option<&'static Location<'static>>,
    /// Who got at the bytes last, where that is known.
    pub access: Option<HostAccess>,
    /// Which bytes of the copy's host memory are not what they should be, from the first such to the last.
    pub bytes: Range<usize>,
    /// How many there are.
    pub len_bytes: usize,
}

/// What must not be done to memory that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaceKind {
    /// A source was changed while a device may have been reading it.
    SourceChanged,
    /// A target was written while a device may have been writing it.
    TargetWritten,
}

/// A call that gave out a way to write a buffer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostAccess {
    /// Where the call is.
    pub at: &'static Location<'static>,
    /// Whether it was made after the copy was asked for.
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
            Some(HostAccess { at, in_flight: true }) => write!(f, "{at} got at these bytes while it was in flight; ")?,
            Some(HostAccess { at, in_flight: false }) => write!(f, "{at} got at these bytes last, before it; ")?,
            None => f.write_str("who got at these bytes is not known; ")?,
        }
        write!(f, "wait for the copy's ticket, event or scope before its {end_of_copy} is {what}")
    }
}
