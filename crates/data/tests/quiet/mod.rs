//! Panics of workers that print nothing.

use std::sync::Once;

/// Panics of workers print nothing: finding the lines of a backtrace takes longer than a fault may.
pub(crate) fn without_backtraces() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !std::thread::current().name().is_some_and(|name| name.starts_with("loader ")) {
                print(info);
            }
        }));
    });
}
