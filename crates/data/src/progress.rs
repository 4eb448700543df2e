//! [`Progress`]: callbacks during a download. [`TerminalBar`] draws a bar.

#[cfg(feature = "progress")]
use std::sync::Mutex;

#[cfg(feature = "progress")]
use crate::panics::lock;

/// Receives the progress of a download. All methods are called from the thread that downloads.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use pagelock_data::Progress;
///
/// /// Counts bytes, for a progress bar of your own.
/// #[derive(Default)]
/// struct Counter(AtomicU64);
///
/// impl Progress for Counter {
///     fn start(&self, _file_name: &str, _len_bytes: u64) {}
///     fn advance(&self, n_bytes: u64) {
///         self.0.fetch_add(n_bytes, Ordering::Relaxed);
///     }
///     fn finish(&self) {}
/// }
///
/// let mnist = pagelock_data::Mnist::new().progress(Counter::default()); // or `Silent`, or `TerminalBar::default()`
/// # let _ = mnist;
/// ```
pub trait Progress: Send + Sync + 'static {
    /// A file of `len_bytes` bytes begins. Called again if another mirror has to be tried.
    fn start(&self, file_name: &str, len_bytes: u64);
    /// Another `n_bytes` bytes have arrived.
    fn advance(&self, n_bytes: u64);
    /// The file is complete, or the attempt failed.
    fn finish(&self);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _file_name: &str, _len_bytes: u64) {}
    fn advance(&self, _n_bytes: u64) {}
    fn finish(&self) {}
}

/// A bar with bytes, speed and remaining time on standard error. It draws nothing if standard error is not a
/// terminal.
#[cfg(feature = "progress")]
#[derive(Default)]
pub struct TerminalBar {
    bar: Mutex<Option<indicatif::ProgressBar>>, // guards which bar is on the screen
}

#[cfg(feature = "progress")]
impl Progress for TerminalBar {
    fn start(&self, file_name: &str, len_bytes: u64) {
        let template = "{msg:28} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = indicatif::ProgressStyle::with_template(template)
            .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
        let bar = indicatif::ProgressBar::new(len_bytes).with_style(style).with_message(file_name.to_owned());
        *lock(&self.bar) = Some(bar);
    }

    fn advance(&self, n_bytes: u64) {
        if let Some(bar) = &*lock(&self.bar) {
            bar.inc(n_bytes);
        }
    }

    fn finish(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }
}

/// Where downloads report their progress by default.
pub(crate) fn default_progress() -> std::sync::Arc<dyn Progress> {
    #[cfg(feature = "progress")]
    let progress = TerminalBar::default();
    #[cfg(not(feature = "progress"))]
    let progress = Silent;
    std::sync::Arc::new(progress)
}
