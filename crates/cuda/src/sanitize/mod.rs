//! `PAGELOCK_SANITIZE=1`: finds races of programs that get at a copy's memory with `unsafe` of their own.
//!
//! Safe code cannot race with a copy, so nothing here is needed for it, and without the variable nothing here runs.
//! With it, every device gets a driver around its driver (`driver.rs`), which watches the host memory of copies in
//! flight (`watch.rs`):
//!
//! - of a source, checksums are taken when the copy is queued and again when the device is done;
//! - a target is filled with [`CANARY`] first, so that who reads it early finds nothing that looks right, and what
//!   arrives is kept a second time, so that who writes it early is found.
//!
//! What is found (`race.rs`) is printed at once, and returned by the next call that waits for the device. `site.rs`
//! knows which line asked for a copy, and which line got at a buffer's bytes last.

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

/// What a target holds until its copy has written it: not a number, as `f64`, and as either `f32` of it.
pub(crate) const CANARY: [u8; 8] = 0x7FF4_CA4A_7FB4_CA4A_u64.to_le_bytes();

/// Whether the environment asks for it.
pub(crate) fn is_wanted() -> bool {
    static WANTED: LazyLock<bool> = LazyLock::new(|| {
        let value = env::var_os("PAGELOCK_SANITIZE").unwrap_or_default();
        let value = value.to_string_lossy();
        says_yes(&value).unwrap_or_else(|| {
            eprintln!("$PAGELOCK_SANITIZE is `{value}`, which is neither `1` nor `0`: races are looked for");
            true
        })
    });
    *WANTED
}

/// Whether that asks for races to be found; none if it says nothing that is known.
fn says_yes(value: &str) -> Option<bool> {
    match value {
        "1" | "true" | "yes" | "on" => Some(true),
        "" | "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A driver around that one, and what it watches.
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
        assert_eq!(["1", "true", "yes", "on"].map(says_yes), [Some(true); 4]);
        assert_eq!(["", "0", "false", "no", "off"].map(says_yes), [Some(false); 5]);
        assert_eq!(["2", "y e s", "\u{fffd}"].map(says_yes), [None; 3]);
    }
}
