//! Makes panics of workers print nothing.

use std::sync::Once;

/// Makes panics of workers print nothing, since printing a backtrace takes longer than the tests allow for a fault.
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
