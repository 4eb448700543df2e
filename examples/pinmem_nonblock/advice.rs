//! Advice for this machine in plain words, derived from its figures.

use pagelock::prelude::ByteSize;

use crate::{
    Guide,
    factors::{BySize, Factors},
    figures::{AS_ONE, Figure, ONCE, PIN, PIN_TO, PINNED_TO, TO},
    report::millis,
};

/// One piece of advice: what to do, and the figures behind it.
pub(crate) struct Advice {
    pub(crate) what: String,
    pub(crate) because: String,
}

/// All advice, the most general first.
pub(crate) fn advice(guide: &Guide) -> Vec<Advice> {
    let all = [pinning_first(guide), reuse(guide), together(guide), gather(&guide.factors), cores(&guide.factors)];
    all.into_iter().flatten().chain([streams(guide), flags(guide)]).collect()
}

fn median(figure: &Figure, way: &str) -> Option<f64> {
    figure.way(way).map(|way| way.time.median_ms)
}

/// Whether to page-lock a tensor only to copy it once.
fn pinning_first(guide: &Guide) -> Option<Advice> {
    let [direct, pin, pin_first] = [TO, PIN, PIN_TO].map(|way| median(&guide.one, way));
    let (direct, pin, pin_first) = (direct?, pin?, pin_first?);
    let figures = format!(
        "`to` alone takes {}, `pin_memory().to` takes {}, of which page-locking is {}",
        millis(direct),
        millis(pin_first),
        millis(pin)
    );
    Some(if direct <= pin_first {
        Advice {
            what: "Write `x.to(&gpu)`, and do not page-lock a tensor only to copy it.".to_owned(),
            because: format!(
                "For one large tensor, {figures}. `pin_memory` and `to` copy the bytes one after the other; `to` alone \
                 overlaps both copies."
            ),
        }
    } else {
        Advice {
            what: "Page-lock large tensors before they are copied.".to_owned(),
            because: format!("For one large tensor, {figures}."),
        }
    })
}

/// After how many copies page-locking a buffer has saved more time than it took.
fn reuse(guide: &Guide) -> Option<Advice> {
    let (direct, pinned) = (median(&guide.one, TO)?, median(&guide.one, PINNED_TO)?);
    let fresh = guide.machine.locking.last()?;
    let bytes_per_lock = (fresh.mib << 20) as f64;
    let lock_ms = (fresh.lock_ms + fresh.unlock_ms) * guide.one.bytes as f64 / bytes_per_lock;
    let saved_ms = direct - pinned;
    Some(if saved_ms <= 0.02 * direct {
        Advice {
            what: "Do not page-lock tensors for speed.".to_owned(),
            because: format!(
                "Copying a large tensor takes {} if it is page-locked already, and {} if it is not.",
                millis(pinned),
                millis(direct)
            ),
        }
    } else {
        Advice {
            what: format!(
                "Page-lock a tensor that is copied {:.0} times or more.",
                (lock_ms / saved_ms).ceil().max(2.0)
            ),
            because: format!(
                "Copying a large tensor takes {} instead of {} if it is page-locked already; locking and unlocking \
                 new memory of that size takes {}. The loader's `pin_memory` reuses its page-locked buffers.",
                millis(pinned),
                millis(direct),
                millis(lock_ms)
            ),
        }
    })
}

/// Whether to move many tensors in one call.
fn together(guide: &Guide) -> Option<Advice> {
    let (apart, as_one) = (median(&guide.small, ONCE)?, median(&guide.small, AS_ONE)?);
    let (large_apart, map) = (median(&guide.large, ONCE)?, guide.map.fastest().time.median_ms);
    (as_one < apart).then(|| Advice {
        what: "Move many tensors in one call.".to_owned(),
        because: format!(
            "The small tensors take {} one by one and {} in one call: {:.0} times as fast. The large ones take {} one \
             by one and {} as a map.",
            millis(apart),
            millis(as_one),
            apart / as_one,
            millis(large_apart),
            millis(map)
        ),
    })
}

/// From which size on copies reach half of the highest rate.
fn gather(factors: &Factors) -> Option<Advice> {
    let rate = |size: &BySize| size.rate(size.pageable_ms);
    let best = factors.sizes.iter().map(rate).fold(0.0, f64::max);
    let enough = factors.sizes.iter().find(|size| rate(size) > best / 2.0)?;
    let least = factors.sizes.first()?;
    Some(Advice {
        what: format!("Copy at least {} at a time.", ByteSize(enough.bytes as u64)),
        because: format!(
            "From that size on, a copy reaches more than half of the highest rate, {best:.1} GB/s. A copy of only {} \
             takes {}.",
            ByteSize(least.bytes as u64),
            millis(least.pageable_ms)
        ),
    })
}

/// How many cores copies can use.
fn cores(factors: &Factors) -> Option<Advice> {
    let both = |rates: &crate::factors::Cores| rates.to_gpu.min(rates.from_gpu);
    let best = factors.cores.iter().map(both).fold(0.0, f64::max);
    let enough = factors.cores.iter().find(|cores| both(cores) > 0.95 * best)?;
    let alone = factors.cores.first()?;
    Some(Advice {
        what: match enough.threads {
            0 => "Do not reserve cores for copies: the calling thread is enough.".to_owned(),
            threads => format!("Reserve {} cores for large copies of ordinary memory.", threads + 1),
        },
        because: match enough.threads {
            0 => format!(
                "It alone reaches {:.1} GB/s to the device and {:.1} from it, and helping threads add nothing.",
                alone.to_gpu, alone.from_gpu
            ),
            threads => format!(
                "With {threads} helping threads, copies reach {:.1} GB/s to the device and {:.1} from it; without \
                 them, {:.1} and {:.1}.",
                enough.to_gpu, enough.from_gpu, alone.to_gpu, alone.from_gpu
            ),
        },
    })
}

fn streams(guide: &Guide) -> Advice {
    let [pageable, page_locked] = [false, true].map(|page_locked| {
        let own = guide.traces.iter().find(|trace| trace.own_stream && trace.page_locked == page_locked);
        own.map_or(0.0, |trace| 100.0 * trace.overlap())
    });
    Advice {
        what: "Copy the data of the next step on a separate stream.".to_owned(),
        because: format!(
            "There, copies and computing overlapped {pageable:.0} % of the possible time for ordinary memory, and \
             {page_locked:.0} % for page-locked memory; on one stream, they never overlap."
        ),
    }
}

fn flags(guide: &Guide) -> Advice {
    let tries: usize = guide.races.tried.iter().map(|race| race.tries).sum();
    Advice {
        what: "Correctness needs no flag and no `synchronize()`.".to_owned(),
        because: format!(
            "Copies run in the background, and every access to their memory waits: none of {tries} attempts to \
             corrupt a copy succeeded. `synchronize()` is only needed to measure times."
        ),
    }
}
