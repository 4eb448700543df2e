//! The registered ranges of host memory, by which copies are split that cross from one registration to another.
//!
//! Page-locked memory is registered in chunks, so a copy of a large buffer may cross from one chunk to the next, and
//! CUDA refuses such a copy. That is rare, so the ranges are looked up only after the driver has refused a copy.

use std::{
    collections::BTreeMap,
    ops::Range,
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

use crate::driver::{Failure, Result, Status};

/// Start and length of each registered range. Registrations are portable, so there is one list for all devices.
static REGISTERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub(super) fn insert(start: NonNull<u8>, len_bytes: usize) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).insert(start.addr().get(), len_bytes);
}

pub(super) fn remove(start: NonNull<u8>) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).remove(&start.addr().get());
}

/// Copies from or to host memory in one call. If the driver refuses because the range crosses from one registration
/// to another, copies each registration's part in a call of its own.
pub(super) fn in_parts(host: usize, len_bytes: usize, copy: impl Fn(Range<usize>) -> Result<()>) -> Result<()> {
    match copy(0..len_bytes) {
        Err(Failure { status: Status::INVALID_VALUE, .. }) => parts(host, len_bytes).into_iter().try_for_each(copy),
        other => other,
    }
}

/// Splits the `len_bytes` bytes from `start` on into parts that are each inside one registration or outside all.
/// Returns their offsets.
fn parts(start: usize, len_bytes: usize) -> Vec<Range<usize>> {
    cut(&REGISTERED.lock().unwrap_or_else(PoisonError::into_inner), start, len_bytes)
}

fn cut(registered: &BTreeMap<usize, usize>, start: usize, len_bytes: usize) -> Vec<Range<usize>> {
    let end = start.saturating_add(len_bytes);
    let before = registered.range(..=start).next_back();
    let overlapping = before.into_iter().chain(registered.range(start.saturating_add(1)..end));
    let mut cuts: Vec<usize> = overlapping.flat_map(|(&from, &len)| [from, from + len]).collect();
    cuts.retain(|&cut| start < cut && cut < end);
    cuts.dedup();
    let starts = [start].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([end]);
    starts.zip(ends).map(|(from, to)| from - start..to - start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_registrations_start_or_end() {
        let registered = BTreeMap::from([(100, 50), (150, 50), (300, 10)]);
        let cuts = |start, len| cut(&registered, start, len).iter().map(|part| part.end).collect::<Vec<_>>();
        assert_eq!(cuts(110, 20), [20]);
        assert_eq!(cuts(110, 60), [40, 60]);
        assert_eq!(cuts(150, 50), [50]);
        assert_eq!(cuts(90, 230), [10, 60, 110, 210, 220, 230]);
        assert_eq!(cuts(400, 5), [5]);
    }
}
