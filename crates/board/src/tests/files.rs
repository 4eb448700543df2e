//! Files that are cut off, continued or filled by many threads.

use std::fs;
use std::thread;

use super::{event_files, events, folder, options, read, scalars, writer};
use crate::proto::{Event, SESSION_START, SessionLog, What};
use crate::{Array, SummaryWriter};

#[test]
fn a_file_cut_off_at_any_byte_is_read_up_to_its_last_whole_event() {
    let folder = folder();
    let writer = writer(&folder);
    for step in 0..5 {
        writer.add_scalar("loss", f64::from(step), step).unwrap();
        writer.add_text("note", &"text ".repeat(step as usize), step).unwrap();
    }
    writer.close().unwrap();
    let file = fs::read(&event_files(folder.path())[0]).unwrap();
    let whole = events(&file);
    assert_eq!(whole.len(), 11);

    let mut n_read = 0;
    for len in 0..=file.len() {
        let prefix = events(&file[..len]);
        assert_eq!(prefix, whole[..prefix.len()], "the first {len} bytes");
        assert!(prefix.len() == n_read || prefix.len() == n_read + 1);
        n_read = prefix.len();
    }
    assert_eq!(n_read, whole.len());
}

#[test]
fn a_damaged_byte_ends_the_file_there() {
    let folder = folder();
    let writer = writer(&folder);
    (0..3).for_each(|step| writer.add_scalar("loss", 1.0, step).unwrap());
    writer.close().unwrap();
    let file = fs::read(&event_files(folder.path())[0]).unwrap();
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 4;
        assert!(events(&damaged).len() < 4, "byte {at}");
    }
}

#[test]
fn what_a_killed_program_had_flushed_is_there() {
    let folder = folder();
    let writer = options(&folder).open().unwrap();
    writer.add_scalar("loss", 0.5, 7).unwrap();
    writer.flush().unwrap();
    writer.add_scalar("loss", 0.25, 8).unwrap();
    std::mem::forget(writer); // killed
    assert_eq!(scalars(&read(folder.path())), [(7, 0.5)]);
}

#[test]
fn a_dropped_writer_writes_what_is_queued() {
    let folder = folder();
    let writer = options(&folder).open().unwrap();
    (0..1000).for_each(|step| writer.add_scalar("loss", step, step).unwrap());
    drop(writer);
    let expected: Vec<(i64, f32)> = (0..1000).map(|step| (step, step as f32)).collect();
    assert_eq!(scalars(&read(folder.path())), expected);
}

#[test]
fn a_resumed_run_hides_the_steps_that_it_does_again() {
    let folder = folder();
    let first = writer(&folder);
    (0..6).for_each(|step| first.add_scalars("loss", &[("train", 1.0)], step).unwrap());
    first.close().unwrap();
    let resumed = options(&folder).purge_step(4).open().unwrap();
    (4..8).for_each(|step| resumed.add_scalars("loss", &[("train", 2.0)], step).unwrap());
    resumed.close().unwrap();

    for run in [folder.path().to_owned(), folder.path().join("loss_train")] {
        let files = event_files(&run);
        assert_eq!(files.len(), 2, "the resumed run has a file of its own, read after the first one");
        let begin: Vec<Event> = events(&fs::read(&files[1]).unwrap()).drain(..3).collect();
        assert_eq!((begin[1].step, begin[2].step), (4, 4));
        assert_eq!(begin[2].what, Some(What::SessionLog(SessionLog { status: SESSION_START })));
    }
    // As in TensorBoard: a session start removes the events of its step and of later steps.
    let mut shown: Vec<(i64, f32)> = Vec::new();
    for event in read(&folder.path().join("loss_train")) {
        if matches!(event.what, Some(What::SessionLog(_))) {
            shown.retain(|(step, _)| *step < event.step);
        }
        shown.extend(scalars(&[event]));
    }
    let expected: Vec<(i64, f32)> = (0..8).map(|step| (step, if step < 4 { 1.0 } else { 2.0 })).collect();
    assert_eq!(shown, expected);
}

#[test]
fn many_threads_lose_no_event_and_keep_their_order() {
    let folder = folder();
    let writer = options(&folder).queue_bytes(2_000).open().unwrap(); // so that calls have to wait
    thread::scope(|scope| {
        for thread in 0..4 {
            let writer = &writer;
            scope.spawn(move || (0..500).for_each(|step| writer.add_scalar("loss", thread, step).unwrap()));
        }
    });
    writer.close().unwrap();
    let written = scalars(&read(folder.path()));
    for thread in 0..4 {
        let steps: Vec<i64> = written.iter().filter(|(_, of)| *of == thread as f32).map(|(step, _)| *step).collect();
        assert_eq!(steps, (0..500).collect::<Vec<i64>>());
    }
}

#[test]
fn a_picture_larger_than_the_queue_is_written() {
    let folder = folder();
    let writer = options(&folder).queue_bytes(100).open().unwrap();
    let pixels: Vec<u8> = (0..30_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for step in 0..3 {
        writer.add_image("noise", &Array::new(&pixels, [3, 100, 100]).unwrap(), step).unwrap();
    }
    writer.close().unwrap();
    assert_eq!(read(folder.path()).len(), 4);
}

#[test]
fn embeddings_of_earlier_runs_stay_and_those_that_are_made_again_are_listed_once() {
    let folder = folder();
    let config = || fs::read_to_string(folder.path().join("projector_config.pbtxt")).unwrap();
    let points = Array::new(&[0.5f32; 6], [3, 2]).unwrap();
    let embedding = crate::Embedding::new(&points).unwrap();
    let first = writer(&folder);
    first.add_embedding("a \"quoted\"\n", &embedding, 1).unwrap();
    first.add_embedding("b", &embedding, 1).unwrap();
    let both = config();
    first.close().unwrap();
    SummaryWriter::new(folder.path()).unwrap().add_embedding("b", &embedding, 1).unwrap();
    assert_eq!(config(), both);
    assert!(both.contains(r#"tensor_name: "a \"quoted\"\012:00001""#), "{both}");
    assert_eq!(both.matches("embeddings {").count(), 2);
}
