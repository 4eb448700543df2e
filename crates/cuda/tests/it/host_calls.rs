//! Functions that streams call on the host.

use std::sync::mpsc;

use pagelock_cuda::{Error, driver::Call, software::Effect, software::Fault};

use crate::tools::lazy;

#[test]
fn a_panic_ends_in_the_call_and_comes_out_of_waiting() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    let call = stream.call(|| -> u32 { std::panic::resume_unwind(Box::new("on purpose")) }).unwrap();
    assert_eq!(call.wait().unwrap_err().to_string(), "a host function panicked: on purpose");
    assert_eq!(stream.call(|| 7).unwrap().wait().unwrap(), 7);
}

#[test]
fn a_host_function_cannot_use_devices() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let (inside, buffer) = (stream.clone(), stream.zeros::<u8>(10).unwrap());
    let call = stream.call(move || {
        let refused = inside.read(&buffer).is_err_and(|error| matches!(error, Error::InsideHostFunction));
        let ticketless = matches!(inside.synchronize(), Err(Error::InsideHostFunction));
        drop(buffer); // which needs no call of the driver
        refused && ticketless
    });
    assert!(call.unwrap().wait().unwrap());
    assert_eq!(device.leaked().count, 0);
}

#[test]
fn a_short_upload_is_refused_there_and_leaves_those_before_it_alone() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let [mut first, mut second] = [0; 2].map(|_| stream.zeros::<u32>(10).unwrap());
    stream.upload_staged(&[1; 10], &mut first).unwrap(); // its slot has room for more
    let inside = stream.clone();
    let call = stream.call(move || inside.upload_staged(&[2; 10], &mut second).unwrap_err());
    assert!(matches!(call.unwrap().wait().unwrap(), Error::InsideHostFunction));
    assert_eq!((device.leaked().count, stream.read(&first).unwrap()), (0, vec![1; 10]));
}

#[test]
fn a_call_that_is_refused_drops_its_function_and_one_that_may_happen_happens_once() {
    for effect in [Effect::None, Effect::Done] {
        let machine = lazy(0);
        let stream = machine.device(0).unwrap().stream().unwrap();
        let (send, receive) = mpsc::channel();
        machine.fail(Fault::at(0).call(Call::CallHost).effect(effect));
        assert!(stream.call(move || send.send(()).unwrap()).is_err());
        machine.run_all();
        let calls = receive.iter().count(); // ends only when the function is gone
        assert_eq!(calls, usize::from(effect == Effect::Done));
    }
}

#[test]
fn nobody_has_to_wait_for_a_call() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let (send, receive) = mpsc::channel();
    drop(stream.call(move || send.send(7).unwrap()).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(receive.recv(), Ok(7));
}
