//! What needs a process of its own: an exit with copies in flight, an abort where going on would not be safe, a limit
//! of page-locked memory, and environment variables.

use std::{
    env,
    process::{self, Command, Output},
};

use pagelock_cuda::{
    Device, Pinned, Uninit,
    driver::Status,
    page_locked_budget,
    software::{Fault, Machine},
};
use pagelock_memory::{ByteSize, HostBuffer};

use crate::tools::{Delay, gpu, lazy, threaded};

const LEN: usize = 1 << 20;

/// Runs `child` in a process of its own.
fn run_child(what: &str) -> Output {
    run_child_with(what, &[])
}

/// The same, with these variables in its environment.
fn run_child_with(what: &str, variables: &[(&str, &str)]) -> Output {
    let this_test_binary = env::current_exe().unwrap();
    let child = Command::new(this_test_binary)
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .env("PAGELOCK_TEST_CHILD", what)
        .env_remove("PAGELOCK_SANITIZE") // only `variables` set it
        .envs(variables.iter().copied())
        .output();
    child.unwrap()
}

/// What `run_child` runs in the other process. Among the other tests it does nothing.
#[test]
fn child() {
    match env::var("PAGELOCK_TEST_CHILD").as_deref() {
        Ok("exit lazy") => exit_in_flight(&lazy(1).device(0).unwrap()),
        Ok("exit threaded") => exit_in_flight(&threaded(1).device(0).unwrap()),
        Ok("exit cuda") => exit_in_flight(&gpu().unwrap()),
        Ok("lose a scope") => lose_a_scope(&lazy(1)),
        Ok("short of memory") => be_short_of_memory(&lazy(1).device(0).unwrap()),
        Ok("race") => race(&lazy(1).device(0).unwrap()),
        Ok(other) => panic!("a child does not know `{other}`"),
        Err(_) => {}
    }
}

fn exit_in_flight(device: &Device) {
    let stream = device.stream().unwrap();
    let mut target = stream.zeros::<u32>(LEN).unwrap();
    let mut delay = Delay::new(&stream);
    delay.queue(&stream);
    let up = stream.upload(Pinned::zeroed(device, LEN).unwrap(), &mut target).unwrap();
    let down = stream.download(&target, Uninit::new(device, LEN).unwrap()).unwrap();
    std::mem::forget(up);
    drop(down);
    process::exit(0);
}

fn lose_a_scope(machine: &Machine) {
    let stream = machine.device(0).unwrap().stream().unwrap();
    let on_device = stream.zeros::<u8>(3).unwrap();
    let mut target = [0; 3];
    stream.scope(|scope| {
        scope.download(&on_device, &mut target).unwrap();
        machine.fail(Fault::at(0).status(Status::ILLEGAL_ADDRESS).lasting());
    });
    println!("the scope ended");
}

/// Drops more buffers in flight than page-locked memory has space for.
fn be_short_of_memory(device: &Device) {
    page_locked_budget().set_limit(ByteSize::mib(9));
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u8>(4 << 20).unwrap();
    for round in 0..10 {
        let mut source = HostBuffer::allocate(device.page_locked(), 4 << 20).unwrap().drop_without_waiting();
        source.bytes_mut().unwrap().fill(round);
        stream.upload_from(&source, &mut target).unwrap();
    }
    println!("arrived {}", stream.read(target.slice(..1).unwrap()).unwrap()[0]);
}

/// Changes a source in flight, as only `unsafe` code can.
fn race(device: &Device) {
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u8>(1_000).unwrap();
    let mut source = Pinned::from_slice(device, &[1_u8; 1_000]).unwrap();
    let pointer = source.as_mut_ptr();
    let ticket = stream.upload(source, &mut target).unwrap();
    // SAFETY: the memory lives, and the device copies on this very thread, so not now.
    unsafe { pointer.write(2) };
    match ticket.wait() {
        Ok(_) => println!("the race was not noticed"),
        Err(error) => println!("the race was {error}"),
    }
}

#[test]
fn dropped_buffers_in_flight_are_waited_for_when_page_locked_memory_is_short() {
    assert_eq!(said(&run_child("short of memory"), "arrived"), "9");
}

/// What a child printed after that word.
fn said(output: &Output, word: &str) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = printed.lines().find_map(|line| Some(line.split_once(word)?.1.trim().to_owned()));
    said.unwrap_or_else(|| panic!("nothing about `{word}` in {output:?}"))
}

#[test]
fn races_are_looked_for_where_the_environment_asks_for_it() {
    assert_eq!(said(&run_child("race"), "the race was"), "not noticed");
    assert_eq!(said(&run_child_with("race", &[("PAGELOCK_SANITIZE", "0")]), "the race was"), "not noticed");

    let output = run_child_with("race", &[("PAGELOCK_SANITIZE", "1")]);

    let found = said(&output, "the race was");
    assert!(found.starts_with("race: the source of the copy at"), "{found}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("pagelock: {found}")), "{output:?}");
}

#[test]
fn a_process_can_exit_with_copies_in_flight() {
    for device in ["lazy", "threaded"] {
        let output = run_child(&format!("exit {device}"));
        assert!(output.status.success(), "{device}: {output:?}");
    }
}

#[test]
fn a_scope_ends_the_process_rather_than_giving_back_memory_that_a_lost_device_may_write() {
    let output = run_child("lose a scope");
    let (printed, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && !printed.contains("the scope ended"), "{printed}");
    assert!(complaint.contains("cannot say whether it is done with memory borrowed by `Stream::scope`"), "{complaint}");
}

mod cuda {
    use super::*;

    #[test]
    fn a_process_can_exit_with_copies_in_flight() {
        if gpu().is_some() {
            let output = run_child("exit cuda");
            assert!(output.status.success(), "{output:?}");
        }
    }
}
