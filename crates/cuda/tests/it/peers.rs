//! Copies from one device to another are ordered with the work of both.

use pagelock_cuda::{
    Device,
    software::{Config, Execution, Machine},
};

use crate::tools::{Delay, gpu, pattern, tries};

const LEN: usize = 10_000;

/// Overwrites and drops the source on its own device right after its copy was queued on the other device.
fn a_copy_to_another_device_takes_what_was_there(here: &Device, there: &Device) {
    here.enable_peer(there).unwrap();
    let (to, from) = (here.stream().unwrap(), there.stream().unwrap());
    let mut delay = Delay::new(&to);
    for round in 0..tries() {
        let numbers = pattern(round, LEN);
        let mut source = from.allocate_from(&numbers).unwrap();
        let mut target = to.allocate::<u32>(LEN).unwrap();
        delay.queue(&to);
        to.copy(&source, &mut target).unwrap();
        from.fill(&mut source, u32::MAX).unwrap();
        drop(source);
        let mut reused = from.allocate::<u32>(LEN).unwrap();
        from.fill(&mut reused, 0).unwrap();
        assert_eq!(to.read(&target).unwrap(), numbers);
        assert!(from.read(&target).is_err(), "a stream reads memory of its own device only");
    }
    assert_eq!((here.leaked().count, there.leaked().count), (0, 0));
}

#[test]
fn software_devices_copy_from_each_other_in_order() {
    for execution in [Execution::Stepped { haste: 0 }, Execution::Stepped { haste: 100 }, Execution::Threads(3)] {
        let machine = Machine::new(Config { devices: 2, execution, ..Config::default() });
        let [here, there] = [0, 1].map(|ordinal| machine.device(ordinal).unwrap());
        a_copy_to_another_device_takes_what_was_there(&here, &there);
        assert_eq!(machine.violations(), [""; 0]);
    }
}

mod cuda {
    use super::*;

    #[test]
    fn gpus_copy_from_each_other_in_order() {
        let Some(here) = gpu() else { return };
        match Device::cuda(1) {
            Ok(there) => a_copy_to_another_device_takes_what_was_there(&here, &there),
            Err(missing) => eprintln!("SKIPPED: {missing}"),
        }
    }
}
