//! Driver calls fail: in random programs one call, or all calls from one on; in a fixed program each call in turn. No
//! memory of another owner is touched, every wrong result is reported, and nothing leaks but memory that the device may
//! still use.

use pagelock_cuda::{
    Error, Pinned, Uninit,
    driver::{Call, Status},
    software::{Effect, Fault},
};
use proptest::prelude::*;

use crate::{
    program::{Kind, Step, World, programs},
    tools::{lazy, moody, not_given_back},
};

fn effects() -> impl Strategy<Value = Effect> {
    prop_oneof![Just(Effect::None), Just(Effect::Done)]
}

/// Calls that queue work or query it. In CUDA, they may report an error of earlier work although they did their own.
const ASYNCHRONOUS: &[Call] = &[
    Call::CopyToDevice,
    Call::CopyToHost,
    Call::CopyOnDevice,
    Call::Fill,
    Call::RecordEvent,
    Call::WaitEvent,
    Call::QueryEvent,
    Call::SynchronizeEvent,
    Call::SynchronizeStream,
    Call::QueryStream,
];

fn run_with(steps: &[Step], seed: u64, fault: Fault) {
    let machine = moody(seed);
    let device = machine.device(0).unwrap();
    let mut world = World::new(&device).unwrap().with_faults();
    machine.fail(fault);
    world.run(steps, |_| {});
    machine.heal();
    world.check();
    machine.run_all();
    world.check_held();
    assert_eq!(machine.violations(), [""; 0]);
    drop(world);
    assert_eq!(device.leaked().count, 0, "after one failed call, nothing may leak: waiting is enough");
    drop(device);
    assert_eq!(not_given_back(&machine), (0, 0), "something was not given back");
}

proptest! {
    #[test]
    fn one_call_that_fails_breaks_nothing_and_leaks_nothing(
        steps in programs(Kind::Tidy),
        seed in any::<u64>(),
        skip in 0..30_u64,
        call in prop::sample::select(ASYNCHRONOUS),
        effect in effects(),
    ) {
        run_with(&steps, seed, Fault::at(skip).call(call).effect(effect));
    }

    #[test]
    fn memory_that_is_refused_breaks_nothing_and_leaks_nothing(
        steps in programs(Kind::Tidy),
        seed in any::<u64>(),
        skip in 0..6_u64,
        call in prop::sample::select(&[Call::Allocate, Call::Register, Call::CreateEvent, Call::CreateStream]),
    ) {
        run_with(&steps, seed, Fault::at(skip).call(call).status(Status::OUT_OF_MEMORY));
    }

    #[test]
    fn a_device_that_is_lost_writes_to_nobody_s_memory(
        steps in programs(Kind::Owned),
        seed in any::<u64>(),
        skip in 0..150_u64,
    ) {
        let machine = lazy(seed);
        let device = machine.device(0).unwrap();
        let mut world = World::new(&device).unwrap().with_faults();
        machine.fail(Fault::at(skip).status(Status::ILLEGAL_ADDRESS).lasting());
        world.run(&steps, |_| {});
        machine.run_all(); // what was queued before the device was lost may still run
        world.check_held();
        prop_assert_eq!(machine.violations(), [""; 0]);
        drop(world);
        drop(device);
        machine.run_all();
        prop_assert_eq!(machine.violations(), [""; 0]);
    }
}

/// Every call of one fixed program fails in turn.
#[test]
fn whichever_call_fails_what_comes_out_is_right_or_an_error() {
    let steps = || -> Vec<Step> {
        use crate::program::Fate::{Drop, Keep, Wait};
        vec![
            Step::Allocate { slot: 0, stream: 0, len: 100 },
            Step::Allocate { slot: 1, stream: 1, len: 100 },
            Step::Upload { slot: 0, stream: 0, seed: 1, fate: Drop },
            Step::Hold { seed: 2, len: 100 },
            Step::Copy { from: 0, to: 1, stream: 1 },
            Step::Download { slot: 1, stream: 2, fate: Keep },
            Step::UploadScoped { slot: 0, stream: 2, seed: 3 },
            Step::DropBuffer { slot: 1 },
            Step::Allocate { slot: 1, stream: 2, len: 100 },
            Step::Fill { slot: 1, stream: 2, seed: 4 },
            Step::DownloadScoped { slot: 1, stream: 0 },
            Step::UploadBuffer { slot: 1, stream: 1, seed: 5, waits: true },
            Step::UploadBuffer { slot: 1, stream: 1, seed: 6, waits: false },
            Step::UploadStaged { slot: 1, stream: 1, seed: 7 },
            Step::DownloadBuffer { slot: 1, stream: 1, waits: false },
            Step::DownloadBuffer { slot: 1, stream: 1, waits: true },
            Step::ReplaceStream { stream: 1 },
            Step::Download { slot: 0, stream: 1, fate: Wait },
            Step::Trim,
        ]
    };
    for effect in [Effect::None, Effect::Done] {
        for skip in 0.. {
            let machine = lazy(skip);
            let device = machine.device(0).unwrap();
            let mut world = World::new(&device).unwrap().with_faults();
            let before = machine.calls();
            machine.fail(Fault::at(skip).effect(effect));
            let mut errors = 0;
            world.run(&steps(), |_| errors += 1);
            let calls = machine.calls() - before;
            machine.heal();
            world.check();
            machine.run_all();
            world.check_held();
            assert_eq!(machine.violations(), [""; 0], "call {skip} failed");
            assert!(device.leaked().count <= 1, "call {skip} failed");
            if skip >= calls {
                assert_eq!(errors, 0);
                break;
            }
        }
    }
}

#[test]
fn memory_of_a_copy_that_was_refused_but_queued_comes_back_after_the_copy() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let on_device = stream.zeros::<u32>(1_000).unwrap();
    machine.fail(Fault::at(0).call(Call::CopyToHost).effect(Effect::Done));

    let refused = stream.download(&on_device, Uninit::new(&device, 1_000).unwrap()).unwrap_err();
    let mine_again = refused.into_parts().0.unwrap().fill_with(|_| 7);
    machine.run_all();

    assert_eq!(*mine_again, [7; 1_000], "the copy came after its memory was given back");
}

#[test]
fn what_is_parked_when_a_device_ends_and_cannot_say_that_it_is_done_stays_page_locked() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let on_device = stream.zeros::<u32>(1_000).unwrap();
    drop(stream.download(&on_device, Uninit::new(&device, 1_000).unwrap()).unwrap());
    drop((on_device, stream));
    machine.fail(Fault::at(0).call(Call::SynchronizeEvent));
    machine.fail(Fault::at(0).call(Call::Synchronize));

    drop(device);
    machine.run_all();

    assert_eq!(machine.violations(), [""; 0]);
    assert!(machine.page_locked().0 > 0 && machine.allocated().0 > 0, "a device that may be busy keeps its memory");
}

#[test]
fn a_ticket_of_a_lost_device_leaks_what_it_holds_and_says_so() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut target = stream.allocate::<u32>(1_000).unwrap();
    let source = Pinned::from_slice(&device, &[7; 1_000]).unwrap();
    let ticket = stream.upload(source, &mut target).unwrap();
    machine.fail(Fault::at(0).status(Status::ILLEGAL_ADDRESS).lasting());

    let error = ticket.wait().unwrap_err();

    assert!(matches!(error, Error::Lost { .. }));
    assert_eq!(
        error.to_string(),
        "3.91 KiB were leaked, because the driver cannot say whether the device is done with them: cuEventSynchronize \
         failed: CUDA_ERROR_ILLEGAL_ADDRESS (700); a kernel accessed an invalid address: restart the program under \
         compute-sanitizer"
    );
    assert_eq!((device.leaked().count, device.leaked().memory.0), (1, 4_000));
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
}
