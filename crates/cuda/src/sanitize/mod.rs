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
    static WANTED: LazyLock<bool> = LazyLock::new(|| env::var("PAGELOCK_SANITIZE").is_ok_and(|value| value == "1"));
    *WANTED
}

/// A driver around that one, and what it watches.
pub(crate) fn watched(driver: Arc<dyn Driver>) -> (Arc<dyn Driver>, Arc<Watch>) {
    site::start();
    let watch = Arc::new(Watch::new(driver.clone()));
    (Arc::new(Watched::new(driver, watch.clone())), watch)
}
