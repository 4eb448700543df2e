//! The queue and its worker, with files that fail.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::queue::{FileId, FileSink, Queue, Sink};

/// Longer than any test runs.
const NEVER: Duration = Duration::from_secs(100_000);

/// A file in memory. The number says how many of the next writes fail.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

impl Disk {
    fn fail(&self, times: usize) {
        self.0.lock().unwrap().0 = times;
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().1.clone()
    }
}

impl Sink for Disk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (failures, file) = &mut *self.0.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(io::Error::other("disk full"));
        }
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("runs/events")
    }
}

fn queue(limit_bytes: usize) -> (Queue, Disk, FileId) {
    let (queue, disk) = (Queue::new(limit_bytes, NEVER).unwrap(), Disk::default());
    let file = queue.add_file(Box::new(disk.clone()));
    (queue, disk, file)
}

#[test]
fn an_error_is_returned_once_and_nothing_is_lost() {
    let (queue, disk, file) = queue(1_000);
    disk.fail(1);
    queue.append(file, b"first ").unwrap();
    let error = queue.flush().unwrap_err();
    let text = "cannot write `runs/events`: disk full; queued events stay queued, and the next call tries again";
    assert_eq!(error.to_string(), text);
    queue.append(file, b"second").unwrap();
    queue.flush().unwrap();
    assert_eq!(disk.bytes(), b"first second");
}

#[test]
fn an_error_of_the_worker_is_returned_by_the_next_call() {
    let (queue, disk, file) = queue(10);
    disk.fail(1);
    queue.append(file, b"more than half").unwrap(); // so the worker writes it
    let error = queue.append(file, b"waits for room").unwrap_err();
    assert!(matches!(error, Error::Write { .. }), "{error}");
    queue.append(file, b", again").unwrap();
    drop(queue);
    assert_eq!(disk.bytes(), b"more than half, again");
}

#[test]
fn a_disk_that_stays_full_makes_every_waiting_call_return() {
    let (queue, disk, file) = queue(10);
    disk.fail(usize::MAX);
    queue.append(file, b"kept").unwrap();
    queue.append(file, b"kept").unwrap();
    for _ in 0..20 {
        queue.append(file, b"no room for this").unwrap_err();
        queue.flush().unwrap_err();
    }
    disk.fail(0);
    while queue.flush().is_err() {} // an earlier error may still be pending
    assert_eq!(disk.bytes(), b"keptkept");
}

#[test]
fn a_file_that_fails_keeps_no_other_from_being_written() {
    let (queue, broken, file) = queue(1_000);
    let whole = Disk::default();
    let other = queue.add_file(Box::new(whole.clone()));
    broken.fail(1);
    queue.append(file, b"broken").unwrap();
    queue.append(other, b"whole").unwrap();
    queue.flush().unwrap_err();
    assert_eq!(whole.bytes(), b"whole");
    queue.flush().unwrap();
    assert_eq!(broken.bytes(), b"broken");
}

#[test]
fn a_full_queue_makes_calls_wait_and_each_record_arrives_once() {
    let (queue, disk, file) = queue(64);
    thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let queue = &queue;
            scope.spawn(move || (0..1_000).for_each(|_| queue.append(file, &[letter; 10]).unwrap()));
        }
        let flushes = || (0..200).for_each(|_| queue.flush().unwrap());
        scope.spawn(flushes);
    });
    queue.flush().unwrap();
    let bytes = disk.bytes();
    assert_eq!(bytes.len(), 4 * 1_000 * 10);
    assert!(bytes.chunks(10).all(|record| record.iter().all(|letter| *letter == record[0])));
}

#[test]
fn what_waits_is_written_after_the_interval() {
    let (queue, disk) = (Queue::new(1_000, Duration::ZERO).unwrap(), Disk::default());
    let file = queue.add_file(Box::new(disk.clone()));
    queue.append(file, b"unasked").unwrap();
    while disk.bytes().is_empty() {
        thread::yield_now();
    }
    assert_eq!(disk.bytes(), b"unasked");
}

#[test]
fn an_interval_beyond_the_clock_is_one_like_others() {
    let queue = Queue::new(1 << 20, Duration::MAX).unwrap();
    let disk = Disk::default();
    let file = queue.add_file(Box::new(disk.clone()));
    queue.append(file, b"one").unwrap();
    queue.flush().unwrap();
    queue.append(file, b"two").unwrap();
    queue.flush().unwrap();
    assert_eq!(disk.bytes(), b"onetwo");
}

#[test]
fn a_queue_without_room_passes_records_on_one_by_one() {
    let (queue, disk, file) = queue(0);
    (0..100).for_each(|_| queue.append(file, b"record").unwrap());
    drop(queue);
    assert_eq!(disk.bytes(), b"record".repeat(100));
}

#[test]
fn what_a_failed_write_left_in_the_file_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let mut sink = FileSink { file: File::create_new(&path).unwrap(), path: path.clone(), len: 0 };
    sink.append(b"whole ").unwrap();
    fs::write(&path, "whole and a part of what follows").unwrap();
    sink.append(b"again").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"whole again");

    let file = File::open(&path).unwrap(); // opened for reading only
    let mut sink = FileSink { file, path: path.clone(), len: 11 };
    sink.append(b"more").unwrap_err();
    assert_eq!((fs::read(&path).unwrap().as_slice(), sink.len), (&b"whole again"[..], 11));
}
