//! The switch: one atomic number says whether anything is recorded, so that an operation checks once.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::scopes;

/// Bits for a profile and for an observer; the bits above them count the graphs that are recorded. Relaxed: it guards
/// no other memory, and records are found under locks.
static RECORDING: AtomicU32 = AtomicU32::new(0);

pub(super) const PROFILE: u32 = 1;
pub(super) const OBSERVED: u32 = 2;
pub(super) const GRAPH: u32 = 4;

static RECORDINGS: Mutex<u32> = Mutex::new(0); // how many there are, also those that are full

/// Whether anything is recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    RECORDING.load(Relaxed) != 0
}

/// Whether a profile is recorded.
#[inline]
pub(crate) fn is_profiling() -> bool {
    RECORDING.load(Relaxed) & PROFILE != 0
}

/// Whether an observer is active.
#[inline]
pub(super) fn is_observed() -> bool {
    RECORDING.load(Relaxed) & OBSERVED != 0
}

/// Whether a profile is recorded or an observer is active.
#[inline]
pub(super) fn is_followed() -> bool {
    RECORDING.load(Relaxed) & (PROFILE | OBSERVED) != 0
}

/// Whether a graph is recorded, on any thread.
pub(super) fn is_recording_graphs() -> bool {
    RECORDING.load(Relaxed) >= GRAPH
}

/// Begins a recording: a profile, an observer, or one more graph.
pub(super) fn begin(what: u32) {
    let mut recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if *recordings == 0 {
        scopes::clear();
    }
    *recordings += 1;
    RECORDING.fetch_add(what, Relaxed);
}

/// Stops recording the profile, which is full or over.
pub(super) fn pause_profile() {
    RECORDING.fetch_and(!PROFILE, Relaxed);
}

/// Ends a recording that [`begin`] began.
pub(super) fn end(what: u32) {
    let mut recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    match what {
        PROFILE | OBSERVED => RECORDING.fetch_and(!what, Relaxed),
        graph => RECORDING.fetch_sub(graph, Relaxed),
    };
    *recordings -= 1;
    if *recordings == 0 {
        scopes::clear();
    }
}
