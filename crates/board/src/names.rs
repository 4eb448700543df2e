//! Names of folders and event files.
//!
//! TensorBoard reads the event files of a folder in the order of their names, and never goes back. So a name begins
//! with the time, and the time in a new name is later than those of all files in the folder, even if a run is resumed
//! within the same second or after the clock was set back.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, create_error};
use crate::step::now;

const PREFIX: &str = "events.out.tfevents.";

/// The largest number of ten digits. A name that has it is not a time that a new name could follow.
const LAST: u64 = 9_999_999_999;

/// A new file in `folder`: `events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER`, and the suffix.
pub(crate) fn new_event_file(folder: &Path, suffix: &str) -> Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0); // Relaxed: it guards no other memory.
    let (host, process) = (host(), std::process::id());
    let mut seconds = (now() as u64).max(newest(folder).map_or(0, |newest| newest.saturating_add(1)));
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{PREFIX}{seconds:010}.{host}.{process}.{number}{suffix}"));
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => seconds = seconds.saturating_add(1),
            Err(error) => return Err(create_error(&path)(error)),
        }
    }
}

/// The latest time in the names of the event files in `folder`.
fn newest(folder: &Path) -> Option<u64> {
    let names = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // Ten digits sort as text in the order of the numbers. A writer's names never have more.
    let seconds = names.filter_map(|name| name.strip_prefix(PREFIX)?.split('.').next()?.get(..10)?.parse().ok());
    seconds.filter(|&seconds| seconds < LAST).max()
}

/// `runs/Nov23_19-10-44_hostCOMMENT`, in UTC.
pub(crate) fn default_log_dir(comment: &str) -> PathBuf {
    PathBuf::from(format!("runs/{}_{}{comment}", time_name(now() as i64), host()))
}

/// `Nov23_19-10-44`, as `strftime("%b%d_%H-%M-%S")` gives it.
fn time_name(seconds: i64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (mut year, mut day) = (1970, days);
    let year_days = |year: i64| if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 };
    while day < 0 {
        year -= 1;
        day += year_days(year);
    }
    while day >= year_days(year) {
        day -= year_days(year);
        year += 1;
    }
    let month_days = [31, year_days(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= month_days[month] {
        day -= month_days[month];
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{}{:02}_{hour:02}-{minute:02}-{second:02}", MONTHS[month], day + 1)
}

/// The name of this machine, made safe for file names.
fn host() -> String {
    let host = hostname::get().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
    let host = host.replace(['/', '\\', '\0'], "_");
    if host.is_empty() { "localhost".to_owned() } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_folders_are_named_as_pytorch_names_them() {
        let known = [(0, "Jan01_00-00-00"), (951_782_400, "Feb29_00-00-00"), (1_795_461_044, "Nov23_19-10-44")];
        for (seconds, name) in known {
            assert_eq!(time_name(seconds), name);
        }
        assert_eq!(time_name(-1), "Dec31_23-59-59");
    }

    #[test]
    fn a_new_file_sorts_after_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("{PREFIX}9000000000.z.1.0")), "").unwrap();
        fs::write(folder.path().join(format!("{PREFIX}x")), "").unwrap();
        let (_, path) = new_event_file(folder.path(), ".end").unwrap();
        fs::write(folder.path().join(format!("{PREFIX}9999999999.x")), "").unwrap();
        assert!(new_event_file(folder.path(), "").unwrap().1.to_string_lossy().contains(".9000000002."));
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents.9000000001.") && name.ends_with(".end"), "{name}");
    }
}
