//! `PAGELOCK_SANITIZE=1`: finds races of programs that access the memory of a copy with `unsafe` code.
//!
//! Safe code cannot race with a copy and needs none of this. Without the variable, nothing here runs. With it, every
//! device's driver is wrapped in another driver (`driver.rs`), which watches the host memory of copies in flight
//! (`watch.rs`):
//!
//! - checksums of a source are computed when the copy is queued and again when the device is done;
//! - a target is filled with [`CANARY`] first, so that an early read finds obviously wrong values. The copy is made a
//!   second time to other memory, so that an early write is found.
//!
//! A race (`race.rs`) is printed at once, and returned by the next call that waits for the device. `site.rs` records
//! which line of the program started a copy, and which line accessed a buffer's bytes last.

mod driver;
mod race;
mod site;
mod watch;

use std::{
    env,
    sync::{Arc, LazyLock},
};

use self::driver::Watched;
pub(crate) use self::watch::Watch;
pub use self::{
    race::{HostAccess, Race, RaceKind},
    site::{Here, here},
};
use crate::driver::Driver;

/// The content of a target until its copy has written it: NaN as an `f64`, and as each of two `f32`.
pub(crate) const CANARY: [u8; 8] = 0x7FF4_CA4A_7FB4_CA4A_u64.to_le_bytes();

/// Whether `PAGELOCK_SANITIZE` enables the search for races.
pub(crate) fn is_enabled() -> bool {
    static ENABLED: LazyLock<bool> = LazyLock::new(|| {
        let value = env::var_os("PAGELOCK_SANITIZE").unwrap_or_default();
        let value = value.to_string_lossy();
        parse_switch(&value).unwrap_or_else(|| {
            eprintln!("$PAGELOCK_SANITIZE is `{value}`, which is neither `1` nor `0`: the search for races is on");
            true
        })
    });
    *ENABLED
}

/// Whether this value enables the search for races; `None` for an unknown value.
fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "1" | "true" | "yes" | "on" => Some(true),
        "" | "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Wraps a driver, and returns the wrapper and its watch.
pub(crate) fn watched(driver: Arc<dyn Driver>) -> (Arc<dyn Driver>, Arc<Watch>) {
    site::start();
    let watch = Arc::new(Watch::new(driver.clone()));
    (Arc::new(Watched::new(driver, watch.clone())), watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn races_are_looked_for_unless_the_variable_says_no() {
        assert_eq!(["1", "true", "yes", "on"].map(parse_switch), [Some(true); 4]);
        assert_eq!(["", "0", "false", "no", "off"].map(parse_switch), [Some(false); 5]);
        assert_eq!(["2", "y e s", "\u{fffd}"].map(parse_switch), [None; 3]);
    }
}
