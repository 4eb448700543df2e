//! Page-locked memory: never over its budget, whatever is stuck in flight.

use pagelock_cuda::{Error, Pinned, Ticket, Uninit};
use pagelock_memory::{Budget, ByteSize, HostBuffer, HugePages, Limited, PageLocked, Pooled, Resource};
use proptest::{collection::vec, prelude::*};

use crate::tools::lazy;

/// Something a program does with page-locked memory of that length.
#[derive(Clone, Debug)]
enum Step {
    Hold(usize),
    Release,
    SendAndDrop(usize),
    SendAndKeep(usize),
    Finish,
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![4 => 1..100_000_usize, 1 => 1..3_000_000_usize];
    let step = prop_oneof![
        3 => len().prop_map(Step::Hold),
        2 => Just(Step::Release),
        3 => len().prop_map(Step::SendAndDrop),
        2 => len().prop_map(Step::SendAndKeep),
        1 => Just(Step::Finish),
        1 => Just(Step::Trim),
    ];
    vec(step, 1..80)
}

const LIMIT: ByteSize = ByteSize::mib(6);

proptest! {
    #[test]
    fn page_locked_memory_is_never_over_its_budget_while_events_are_stuck(steps in steps(), seed in any::<u64>()) {
        let machine = lazy(seed); // nothing is ever done before somebody waits
        let device = machine.device(0).unwrap();
        let stream = device.stream().unwrap();
        let mut target = stream.allocate::<u8>(3_000_000).unwrap();
        let source = PageLocked::new().locked_by(device.page_locker()).huge_pages(HugePages::WhereGranted);
        let budget = Budget::new("page-locked under test", LIMIT);
        let stack = Pooled::new(Limited::new(source, budget.clone()));
        let (mut held, mut tickets): (Vec<Pinned<u8>>, Vec<Ticket<Pinned<u8>>>) = Default::default();
        let take = |len| -> Result<Pinned<u8>, Error> { Pinned::from_buffer(HostBuffer::allocate(&stack, len)?) };

        for step in steps {
            match step {
                Step::Hold(len) => held.extend(take(len)),
                Step::Release => drop(held.pop()),
                Step::SendAndDrop(len) | Step::SendAndKeep(len) => {
                    let Ok(pinned) = take(len) else { continue };
                    let ticket = stream.upload(pinned, target.slice_mut(..len).unwrap()).unwrap();
                    if matches!(step, Step::SendAndKeep(_)) {
                        tickets.push(ticket);
                    }
                }
                Step::Finish => {
                    tickets.drain(..).for_each(|ticket| drop(ticket.wait().unwrap()));
                    device.reap();
                }
                Step::Trim => drop(stack.trim()),
            }
            let locked = machine.page_locked();
            prop_assert!(locked <= LIMIT && budget.used() <= LIMIT, "{locked} are page-locked, {LIMIT} allowed");
            prop_assert_eq!(locked, budget.used(), "what is locked is what is charged");
        }
        stream.synchronize().unwrap();
        drop((held, tickets));
        device.reap();
        stack.trim();
        prop_assert_eq!((machine.page_locked().0, budget.used().0), (0, 0), "something was not given back");
        prop_assert_eq!(machine.violations(), [""; 0]);
    }
}

#[test]
fn a_large_block_locks_at_most_one_percent_more_than_asked() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let asked = (256 << 20) + 12_345;
    let large = Uninit::<u8>::new(&device, asked).unwrap();
    let locked = machine.page_locked().0 as usize;
    assert!(locked >= asked && locked - asked <= asked / 100, "{locked} for {asked}");
    drop(large);
}
