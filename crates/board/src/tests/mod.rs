//! Tests that read event files as TensorBoard does: complete ones, which are compared with PyTorch's (`golden.rs`),
//! truncated ones, continued ones, and those after failed writes.

mod calls;
#[cfg(feature = "figures")]
mod figures;
mod files;
mod golden;
mod refusals;
mod threads;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::proto::{Content, Event, Summary, What};
use crate::record::events;
use crate::{SummaryWriter, WriterOptions};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn writer(folder: &TempDir) -> SummaryWriter {
    SummaryWriter::new(folder.path()).unwrap()
}

/// Options with a flush interval that no test reaches.
fn options(folder: &TempDir) -> WriterOptions {
    SummaryWriter::options().log_dir(folder.path()).flush_interval(std::time::Duration::from_secs(100_000))
}

/// Event files of a folder, in the order in which TensorBoard reads them.
fn event_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("events"));
    files.sort();
    files
}

/// The events of all files of a folder.
fn read(folder: &Path) -> Vec<Event> {
    event_files(folder).into_iter().flat_map(|path| events(&fs::read(path).unwrap())).collect()
}

/// Steps and values of scalars.
fn scalars(events: &[Event]) -> Vec<(i64, f32)> {
    let scalar = |event: &Event| match &event.what {
        Some(What::Summary(Summary { value })) => match value[0].content {
            Some(Content::Scalar(value)) => Some((event.step, value)),
            _ => None,
        },
        _ => None,
    };
    events.iter().filter_map(scalar).collect()
}
