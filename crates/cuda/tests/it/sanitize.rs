//! What `PAGELOCK_SANITIZE=1` finds: races of `unsafe` code that accesses the memory of a copy.
//!
//! The software device does nothing before a thread waits for it, and then works on that thread. So what races on a GPU
//! happens in a known order here.

use std::{panic::Location, path::Path};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Pinned, Race, RaceKind, RowLayout, Stream, Ticket, Uninit,
    software::{Config, Execution, Machine},
};
use pagelock_memory::{Budget, ByteSize, HostBuffer, Limited, PageLocked};

const LEN: usize = 1_000;

fn device(sanitize: bool) -> Device {
    let execution = Execution::Stepped { haste: 0 };
    Machine::new(Config { execution, sanitize, ..Config::default() }).device(0).unwrap()
}

/// A buffer whose memory no other test reuses.
fn page_locked(device: &Device, len_bytes: usize) -> HostBuffer {
    let source = PageLocked::new().locked_by(device.page_locker());
    HostBuffer::allocate(&Limited::new(source, Budget::new("test", ByteSize::mib(64))), len_bytes).unwrap()
}

/// Writes one element of memory that a copy uses, as only `unsafe` code can.
fn write(start: *mut f32, index: usize, value: f32) {
    // SAFETY: tests pass memory that lives and is this long; the device copies on this very thread, so not now.
    unsafe { start.wrapping_add(index).write(value) };
}

fn race(result: Result<impl Sized, Error>) -> Race {
    match result.err() {
        Some(Error::Raced(race)) => *race,
        Some(other) => panic!("no race, but: {other}"),
        None => panic!("no race was found"),
    }
}

/// Whether `site` is `lines` lines above the caller.
#[track_caller]
fn is_lines_above(lines: u32, site: &Location<'_>) -> bool {
    Path::new(site.file()) == Path::new(file!()) && site.line() + lines == Location::caller().line()
}

#[test]
fn a_source_that_is_changed_in_flight_is_reported_with_the_lines_of_the_copy_and_of_the_pointer() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(LEN).unwrap();
    let mut source = Pinned::from_slice(&device, &[1.0; LEN]).unwrap();
    let pointer = source.as_mut_ptr();
    let ticket = stream.upload(source, &mut target).unwrap();
    write(pointer, 500, 2.0);
    let race = race(ticket.wait());
    assert_eq!((race.kind, race.len_bytes), (RaceKind::SourceChanged, 4 * LEN));
    assert!(race.bytes.contains(&2_000), "{race}");
    assert!(is_lines_above(5, race.copy.unwrap()), "{race}");
    let access = race.access.unwrap();
    assert!(is_lines_above(8, access.at) && !access.in_flight, "{race}");
}

#[test]
fn a_copy_that_a_library_makes_for_its_user_is_of_the_users_line() {
    #[track_caller]
    fn send(stream: &Stream, source: Pinned<f32>, target: &mut DeviceBuffer<f32>) -> Ticket<Pinned<f32>> {
        let _here = pagelock_cuda::here();
        stream.upload(source, target).unwrap()
    }
    let device = device(true);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(LEN).unwrap();
    let mut source = Pinned::from_slice(&device, &[1.0; LEN]).unwrap();
    let pointer = source.as_mut_ptr();
    let ticket = send(&stream, source, &mut target);
    write(pointer, 500, 2.0);
    let race = race(ticket.wait());
    assert!(is_lines_above(3, race.copy.unwrap()), "{race}");
}

#[test]
fn the_text_says_what_happened_where_and_what_to_do() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(4).unwrap();
    let mut source = Pinned::from_slice(&device, &[1.0; 4]).unwrap();
    let pointer = source.as_mut_ptr();
    let ticket = stream.upload(source, &mut target).unwrap();
    write(pointer, 0, 2.0);

    let error = ticket.wait().unwrap_err();

    let text = error.to_string().replace(file!(), "FILE");
    let text: String = text.chars().filter(|character| !character.is_ascii_digit()).collect();
    assert_eq!(
        text,
        "race: the source of the copy at FILE:: was changed while the device read it (bytes .. of ); the last \
         access before the copy was at FILE::; wait for the copy's ticket, event or scope before its source is changed"
    );
}

#[test]
fn an_access_to_a_buffer_in_flight_is_named() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u8>(4 * LEN).unwrap();
    let source = page_locked(&device, 4 * LEN);
    stream.upload_from(&source, &mut target).unwrap();
    let pointer = source.as_ptr();
    write(pointer.as_ptr().cast(), 0, 2.0);
    let race = race(stream.synchronize());
    assert!(is_lines_above(4, race.copy.unwrap()), "{race}");
    let access = race.access.unwrap();
    assert!(is_lines_above(5, access.at) && access.in_flight, "{race}");
}

#[test]
fn a_target_that_is_written_in_flight_is_reported() {
    let machine = Machine::new(Config { sanitize: true, ..Config::default() });
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let on_device = stream.zeros::<f32>(LEN).unwrap();
    let mut target = Pinned::<f32>::zeroed(&device, LEN).unwrap();
    let pointer = target.as_mut_ptr();
    let ticket = stream.download(&on_device, target.into_uninit()).unwrap();
    machine.run_all(); // the copy is done, but no call has waited for it yet
    write(pointer, 7, 2.0);
    let race = race(ticket.wait());
    assert_eq!((race.kind, race.bytes.clone()), (RaceKind::TargetWritten, 31..32), "{race}"); // 2.0 is 00 00 00 40
}

#[test]
fn who_reads_a_target_early_sees_nothing_that_looks_right() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let on_device = stream.zeros::<f32>(LEN).unwrap();
    let mut target = Pinned::from_slice(&device, &[1.0_f32; LEN]).unwrap();
    let pointer = target.as_mut_ptr();
    let ticket = stream.download(&on_device, target.into_uninit()).unwrap();

    // SAFETY: the memory lives, and the device copies on this very thread, so not now.
    let early = unsafe { std::slice::from_raw_parts(pointer, LEN) }.to_vec();

    assert!(early.iter().all(|element| element.is_nan()));
    assert!(ticket.wait().unwrap().iter().all(|&element| element == 0.0));
}

#[test]
fn a_target_is_unchanged_if_its_copy_is_refused_inside_a_host_function() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let on_device = stream.zeros::<u8>(64).unwrap();
    let mut target = page_locked(&device, 64);
    target.bytes_mut().unwrap().fill(7);
    let inside = stream.clone();
    let call = stream.call(move || {
        let refused = inside.download_to(&on_device, &mut target);
        assert!(matches!(refused, Err(Error::InsideHostFunction)), "{refused:?}");
        target.bytes().to_vec()
    });
    assert_eq!(call.unwrap().wait().unwrap(), [7; 64]);
}

#[test]
fn rows_are_checked_and_what_lies_between_them_is_not() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(6).unwrap();
    let rows = RowLayout { rows: 3, width: 2, stride: 4 };
    for (index, is_copied) in [(1, true), (3, false), (9, true)] {
        let mut source = Pinned::from_slice(&device, &[1.0; 12]).unwrap();
        let pointer = source.as_mut_ptr();
        let ticket = stream.upload(source, target.view_mut().in_rows(RowLayout::dense(3, 2), rows)).unwrap();
        write(pointer, index, 2.0);
        assert_eq!(ticket.wait().is_err(), is_copied, "element {index}");
    }
}

#[test]
fn programs_without_races_run_as_ever() {
    let device = device(true);
    let stream = device.stream().unwrap();
    let numbers: Vec<u32> = (0..300_000).collect();
    let mut on_device = stream.allocate::<u32>(numbers.len()).unwrap();

    stream.upload_from(&numbers, &mut on_device).unwrap();
    let mut back = vec![0; numbers.len()];
    stream.download_to(&on_device, &mut back).unwrap();
    assert_eq!(back, numbers);
    let mut source =
        stream.upload(Pinned::from_slice(&device, &numbers).unwrap(), &mut on_device).unwrap().wait().unwrap();
    source[0] = 7; // after the wait
    let target = stream.download(&on_device, Uninit::new(&device, numbers.len()).unwrap()).unwrap();
    assert_eq!(*target.wait().unwrap(), numbers[..]);
    let mut buffer = page_locked(&device, 4_000);
    buffer.bytes_mut().unwrap().fill(1);
    stream.upload_from(&buffer, on_device.slice_mut(..1_000).unwrap()).unwrap();
    buffer.bytes_mut().unwrap().fill(2); // waits
    assert_eq!(stream.read(on_device.slice(..1_000).unwrap()).unwrap(), [0x0101_0101; 1_000]);
    let packed = stream.upload_packed(&[&numbers[..10], &numbers[10..20_000]]).unwrap();
    assert_eq!(stream.read(packed.buffer.slice(packed.ranges[1].clone()).unwrap()).unwrap(), numbers[10..20_000]);

    stream.synchronize().unwrap();
    device.synchronize().unwrap();
}

#[test]
fn nobody_looks_unless_asked_to() {
    let device = device(false);
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(LEN).unwrap();
    let mut source = Pinned::from_slice(&device, &[1.0; LEN]).unwrap();
    let pointer = source.as_mut_ptr();
    let ticket = stream.upload(source, &mut target).unwrap();
    write(pointer, 500, 2.0);
    let is_asked = std::env::var_os("PAGELOCK_SANITIZE").is_some_and(|value| value == "1");
    assert_eq!(ticket.wait().is_err(), is_asked);
}
