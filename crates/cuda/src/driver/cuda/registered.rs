//! Which host pages were registered, for copies across the ends of registrations: the driver refuses those.
//!
//! Page-locked memory is registered in chunks, so that a copy of a large buffer may cross from one to the next. That is
//! rare, and the driver says so; nothing is looked up here before it does.

use std::{
    collections::BTreeMap,
    ops::Range,
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

/// Start and length of what is registered, by any device: registrations are for all.
static REGISTERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub(super) fn note(start: NonNull<u8>, len_bytes: usize) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).insert(start.addr().get(), len_bytes);
}

pub(super) fn forget(start: NonNull<u8>) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).remove(&start.addr().get());
}

/// The parts of `len_bytes` bytes from `start` on, each inside or outside one registration; offsets.
pub(super) fn parts(start: usize, len_bytes: usize) -> Vec<Range<usize>> {
    cut(&REGISTERED.lock().unwrap_or_else(PoisonError::into_inner), start, len_bytes)
}

fn cut(registered: &BTreeMap<usize, usize>, start: usize, len_bytes: usize) -> Vec<Range<usize>> {
    let end = start.saturating_add(len_bytes);
    let before = registered.range(..=start).next_back();
    let near = before.into_iter().chain(registered.range(start.saturating_add(1)..end));
    let mut cuts: Vec<usize> = near.flat_map(|(&from, &len)| [from, from + len]).collect();
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
