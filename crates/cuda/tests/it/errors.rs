//! What is refused, and the text of each error.

use pagelock_cuda::{Device, Pinned, RowLayout, Uninit, software::Config, software::Machine};
use pagelock_memory::{HostBuffer, Pageable};

use crate::tools::lazy;

#[test]
fn lengths_that_differ_are_refused_and_the_source_comes_back() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<f32>(4).unwrap();
    let refused = stream.upload(Pinned::from_slice(&device, &[1.0; 3]).unwrap(), &mut target).unwrap_err();
    let (source, error) = refused.into_parts();
    assert_eq!(*source.unwrap(), [1.0; 3]);
    assert_eq!(error.to_string(), "cannot copy 3 elements to 4: the lengths differ; take a slice of the longer one");
    let refused = stream.download(&target, Uninit::new(&device, 5).unwrap()).unwrap_err();
    assert_eq!(refused.into_parts().0.unwrap().len(), 5);
}

#[test]
fn a_buffer_of_another_device_is_refused() {
    let machine = Machine::new(Config { devices: 2, ..Config::default() });
    let (here, there) = (machine.device(0).unwrap().stream().unwrap(), machine.device(1).unwrap().stream().unwrap());
    let buffer = there.zeros::<u8>(3).unwrap();
    assert_eq!(
        here.read(&buffer).unwrap_err().to_string(),
        "the buffer is on device 1, the stream on device 0: use a stream of the buffer's device, or copy the buffer to \
         the other device with `Stream::copy`"
    );
}

#[test]
fn elapsed_time_needs_two_timed_events_of_one_device() {
    let machine = Machine::new(Config { devices: 2, ..Config::default() });
    let (here, there) = (machine.device(0).unwrap().stream().unwrap(), machine.device(1).unwrap().stream().unwrap());
    let (start, end) = (here.record_timed().unwrap(), there.record_timed().unwrap());
    assert_eq!(
        end.elapsed_since(&start).unwrap_err().to_string(),
        "one event is of device 0, the other of device 1, and their clocks differ: record both on one device, or use a \
         `Timeline`, which compares clocks"
    );
    assert_eq!(
        here.record().unwrap().elapsed_since(&start).unwrap_err().to_string(),
        "the event was recorded without its time: record it with `Stream::record_timed`"
    );
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let matrix = stream.zeros::<u8>(11).unwrap();
    let refuse = |rows: RowLayout| {
        let target = Uninit::new(&device, rows.rows * rows.width).unwrap();
        let refused = stream.download(matrix.view().in_rows(rows, RowLayout::dense(rows.rows, rows.width)), target);
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        refuse(RowLayout { rows: 3, width: 4, stride: 4 }),
        "3 rows of 4 elements with stride 4 need 12 elements, but there are 11; the stride must be at least the width"
    );
    assert!(refuse(RowLayout { rows: 2, width: 4, stride: 3 }).contains("with stride 3 need 7 elements"));
    assert!(refuse(RowLayout { rows: 2, width: 1, stride: usize::MAX }).contains("but there are 11"));
}

#[test]
fn ranges_outside_a_buffer_are_refused() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    let buffer = stream.zeros::<u8>(10).unwrap();
    assert_eq!(buffer.slice(5..11).unwrap_err().to_string(), "the range 5..11 is not inside a buffer of 10 elements");
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    let reversed = buffer.slice(6..5);
    assert!(reversed.is_err() && buffer.view().split_at(11).is_err() && buffer.slice(..=usize::MAX).is_err());
    assert_eq!(buffer.slice(10..).unwrap().len(), 0);
}

#[test]
fn memory_that_is_not_page_locked_is_refused() {
    let pageable = HostBuffer::allocate(&Pageable, 8).unwrap();
    assert_eq!(
        Pinned::<u8>::from_buffer(pageable).unwrap_err().to_string(),
        "the buffer is pageable: only page-locked memory can be copied asynchronously"
    );
}

#[test]
fn a_device_that_does_not_exist_is_refused() {
    let machine = Machine::new(Config { devices: 2, ..Config::default() });
    assert_eq!(
        machine.device(2).unwrap_err().to_string(),
        "there is no device 2: the driver sees 2, numbers 0 to 1; check CUDA_VISIBLE_DEVICES"
    );
}

#[test]
fn without_a_gpu_the_error_says_what_is_missing() {
    if let Err(error) = Device::cuda(0) {
        let text = error.to_string();
        assert!(text.starts_with("CUDA is not available: ") && text.contains(';'), "{text}");
    }
}
