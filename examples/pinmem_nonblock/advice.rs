//! What to do on this machine, in plain words, as its figures say.

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

/// All of it, the most general first.
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
                "For one large tensor {figures}: the bytes are copied twice on the way, one after the other, where \
                 `to` does both at once."
            ),
        }
    } else {
        Advice {
            what: "Page-lock large tensors before they are copied.".to_owned(),
            because: format!("For one of them {figures}."),
        }
    })
}

/// After how many copies page-locking a buffer has paid for itself.
fn reuse(guide: &Guide) -> Option<Advice> {
    let (direct, pinned) = (median(&guide.one, TO)?, median(&guide.one, PINNED_TO)?);
    let fresh = guide.machine.locking.last()?;
    let bytes_per_lock = (fresh.mib << 20) as f64;
    let lock_ms = (fresh.lock_ms + fresh.unlock_ms) * guide.one.bytes as f64 / bytes_per_lock;
    let saved_ms = direct - pinned;
    Some(if saved_ms <= 0.02 * direct {
        Advice {
            what: "Page-lock nothing for the sake of speed alone.".to_owned(),
            because: format!(
                "A large tensor that is page-locked already arrives after {}, one that is not after {}.",
                millis(pinned),
                millis(direct)
            ),
        }
    } else {
        Advice {
            what: format!(
                "Page-lock what is copied again and again: {:.0} times or more.",
                (lock_ms / saved_ms).ceil().max(2.0)
            ),
            because: format!(
                "A large tensor that is page-locked already arrives after {} instead of {}; locking and unlocking \
                 fresh memory of that size takes {}. The loader's `pin_memory` does this, with buffers that it uses \
                 again.",
                millis(pinned),
                millis(direct),
                millis(lock_ms)
            ),
        }
    })
}

/// Whether many tensors are to move together.
fn together(guide: &Guide) -> Option<Advice> {
    let (apart, as_one) = (median(&guide.small, ONCE)?, median(&guide.small, AS_ONE)?);
    let (large_apart, map) = (median(&guide.large, ONCE)?, guide.map.fastest().time.median_ms);
    (as_one < apart).then(|| Advice {
        what: "Move many tensors as one.".to_owned(),
        because: format!(
            "The small ones take {} one by one and {} as one, {:.0} times less; the large ones take {} and, as a map, \
             {}.",
            millis(apart),
            millis(as_one),
            apart / as_one,
            millis(large_apart),
            millis(map)
        ),
    })
}

/// From which size copies are as fast as they get.
fn gather(factors: &Factors) -> Option<Advice> {
    let rate = |size: &BySize| size.rate(size.pageable_ms);
    let best = factors.sizes.iter().map(rate).fold(0.0, f64::max);
    let enough = factors.sizes.iter().find(|size| rate(size) > best / 2.0)?;
    let least = factors.sizes.first()?;
    Some(Advice {
        what: format!("Copy at least {} at a time.", ByteSize(enough.bytes as u64)),
        because: format!(
            "From there on a copy reaches more than half of the {best:.1} GB/s that the fastest reach, whereas one of \
             {} takes {} all the same.",
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
            0 => "Give copies no more than the calling thread.".to_owned(),
            threads => format!("Leave {} cores to large copies of ordinary memory.", threads + 1),
        },
        because: match enough.threads {
            0 => format!(
                "It reaches {:.1} GB/s to the device and {:.1} from it, and helpers add nothing.",
                alone.to_gpu, alone.from_gpu
            ),
            threads => format!(
                "With {threads} helping threads they reach {:.1} GB/s to the device and {:.1} from it, without {:.1} \
                 and {:.1}.",
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
        what: "Copy on a stream of its own what the next step needs.".to_owned(),
        because: format!(
            "There {pageable:.0} % of the time that copying and computing could share was shared for ordinary memory, \
             {page_locked:.0} % for page-locked memory; on one stream none."
        ),
    }
}

fn flags(guide: &Guide) -> Advice {
    let tries: usize = guide.races.tried.iter().map(|race| race.tries).sum();
    Advice {
        what: "Set no flag, and call no `synchronize()` to be right.".to_owned(),
        because: format!(
            "Copies go on in the background, and whoever touches their memory waits: {tries} tries to corrupt one \
             corrupted none. `synchronize()` is for stopwatches."
        ),
    }
}
