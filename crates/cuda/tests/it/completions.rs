//! Page-locked buffers whose users add [`Completion`]s of their own beside those of copies.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use pagelock_memory::{Completion, HostBuffer};

use crate::tools::lazy;

#[test]
fn a_completion_that_panics_hides_no_reader_of_another_buffer() {
    struct Panics;
    impl Completion for Panics {
        fn is_done(&self) -> bool {
            panic!("asked whether it is done")
        }

        fn wait(&self) {}
    }

    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let [first, mut second] = [0; 2].map(|_| {
        let mut buffer = HostBuffer::allocate(device.page_locked(), 64).unwrap();
        buffer.bytes_mut().unwrap().fill(1);
        buffer
    });
    let [mut to_first, mut to_second] = [0; 2].map(|_| stream.allocate::<u8>(64).unwrap());
    first.add_reader(Arc::new(Panics));
    let each = [(&first, &mut to_first), (&second, &mut to_second)];
    assert!(catch_unwind(AssertUnwindSafe(|| stream.upload_each(each))).is_err());

    second.bytes_mut().unwrap().fill(9); // waits for the copy

    assert_eq!(stream.read(&to_second).unwrap(), [1; 64]);
}
