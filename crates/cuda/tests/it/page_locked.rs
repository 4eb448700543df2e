//! Page-locked memory: never over its budget, whatever is stuck in flight.

use std::{sync::mpsc, time::Duration};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Pinned, Stream, Ticket, Uninit,
    driver::Call,
    software::{Effect, Fault, Machine},
};
use pagelock_memory::{Budget, ByteSize, HostBuffer, HugePages, Limited, PageLocked, Pooled, Resource};
use proptest::{collection::vec, prelude::*, strategy::ValueTree, test_runner::TestRunner};

use crate::tools::{lazy, threaded, tries};

/// What a program does with page-locked memory. The numbers are lengths in bytes.
#[derive(Clone, Debug)]
enum Step {
    Hold(usize),
    Release,
    SendAndDrop(usize),
    SendAndKeep(usize),
    Finish,
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![400 => 1..100_000_usize, 99 => 1..3_000_000_usize, 1 => 4_000_000..MOST];
    prop_oneof![
        3 => len().prop_map(Step::Hold),
        3 => Just(Step::Release),
        3 => len().prop_map(Step::SendAndDrop),
        2 => len().prop_map(Step::SendAndKeep),
        1 => Just(Step::Finish),
        1 => Just(Step::Trim),
    ]
}

const LIMIT: ByteSize = ByteSize::mib(12);
const MOST: usize = 9_000_000; // in one block

/// Page-locked memory under a budget of its own, on a device that does nothing before a thread waits for it.
struct World {
    machine: Machine,
    device: Device,
    stream: Stream,
    target: DeviceBuffer<u8>,
    budget: Budget,
    stack: Pooled<Limited<PageLocked>>,
    held: Vec<Pinned<u8>>,
    tickets: Vec<(Ticket<Pinned<u8>>, usize)>, // and the length of each
    dropped: Vec<usize>,                       // lengths of what dropped tickets hold, since the last `Finish`
}

impl World {
    fn new(seed: u64) -> Self {
        let machine = lazy(seed);
        let device = machine.device(0).unwrap();
        let stream = device.stream().unwrap();
        let target = stream.allocate::<u8>(MOST).unwrap();
        let source = PageLocked::new().locked_by(device.page_locker()).huge_pages(HugePages::WhereGranted);
        let budget = Budget::new("page-locked under test", LIMIT);
        let stack = Pooled::new(Limited::new(source, budget.clone()));
        let (held, tickets, dropped) = Default::default();
        Self { machine, device, stream, target, budget, stack, held, tickets, dropped }
    }

    fn take(&self, len: usize) -> Result<Pinned<u8>, Error> {
        Pinned::from_buffer(HostBuffer::allocate(&self.stack, len)?)
    }

    fn send(&mut self, len: usize) -> Option<Ticket<Pinned<u8>>> {
        let pinned = self.take(len).ok()?;
        Some(self.stream.upload(pinned, self.target.slice_mut(..len).unwrap()).unwrap())
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Hold(len) => self.held.extend(self.take(len)),
            Step::Release => drop(self.held.pop()),
            Step::SendAndDrop(len) => {
                if self.send(len).is_some() {
                    self.dropped.push(len);
                }
            }
            Step::SendAndKeep(len) => {
                let sent = self.send(len);
                self.tickets.extend(sent.map(|ticket| (ticket, len)));
            }
            Step::Finish => self.finish(),
            Step::Trim => drop(self.stack.trim()),
        }
    }

    fn finish(&mut self) {
        self.stream.synchronize().unwrap();
        self.tickets.drain(..).for_each(|(ticket, _)| drop(ticket.wait().unwrap()));
        self.device.release_finished();
        self.dropped.clear();
    }

    fn check(&self) {
        let (locked, charged) = (self.machine.page_locked(), self.budget.used());
        assert!(locked <= LIMIT, "{locked} are page-locked, {LIMIT} allowed");
        assert_eq!(locked, charged, "what is locked is what is charged");
        let lens = self.held.iter().map(|pinned| pinned.len()).chain(self.tickets.iter().map(|(_, len)| *len));
        let most: u64 = lens.chain(self.dropped.iter().copied()).map(|len| most_locked_for(len) as u64).sum();
        let idle = self.stack.stats().idle_bytes;
        assert!(locked.0 - idle <= most, "{locked} are page-locked, {idle} bytes of them idle, for at most {most}");
    }

    fn check_that_nothing_is_left(mut self) {
        self.finish();
        self.held.clear();
        self.stack.trim();
        assert_eq!((self.machine.page_locked().0, self.budget.used().0), (0, 0), "something was not given back");
        assert_eq!(self.machine.violations(), [""; 0]);
    }
}

/// For a large block, a hundredth more than requested. For a small one, an eighth and a page more.
fn most_locked_for(len: usize) -> usize {
    if len > LARGE { len + len / 100 } else { len + len / 8 + 4_096 }
}

const LARGE: usize = 4 << 20;

proptest! {
    #[test]
    fn page_locked_memory_is_never_over_its_budget_while_events_are_stuck(
        steps in vec(step(), 1..80), seed in any::<u64>(),
    ) {
        let mut world = World::new(seed);
        for step in &steps {
            world.run(step);
            world.check();
        }
        world.check_that_nothing_is_left();
    }

    #[test]
    fn a_large_block_locks_at_most_a_hundredth_more_than_asked(len in LARGE + 1..1 << 40) {
        let locked = lazy(0).device(0).unwrap().page_locked().footprint(len);
        prop_assert!(locked >= len && locked <= most_locked_for(len), "{locked} for {len}");
    }
}

/// Runs 200 operations for each of `$TRIES`: 50,000 tries are ten million operations.
#[test]
fn page_locked_memory_is_never_over_its_budget_in_a_long_run() {
    let mut runner = TestRunner::deterministic();
    let mut world = World::new(1);
    for _ in 0..200 * tries() {
        let step = step().new_tree(&mut runner).unwrap().current();
        world.run(&step);
        world.check();
    }
    world.check_that_nothing_is_left();
}

#[test]
fn a_device_locks_what_the_footprint_of_a_large_block_says() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let asked = (5 << 20) + 12_345;
    let large = Uninit::<u8>::new(&device, asked).unwrap();
    let locked = machine.page_locked().0 as usize;
    assert_eq!(locked, device.page_locked().footprint(asked));
    drop(large);
}

/// Page-locked memory of a device under a budget of its own, which has space for one block of `LEN` bytes.
fn small(device: &Device) -> (Budget, Limited<PageLocked>) {
    let budget = Budget::new("page-locked under test", LEN as u64);
    let memory = Limited::new(PageLocked::new().locked_by(device.page_locker()), budget.clone());
    (budget, memory)
}

const LEN: usize = 64 << 10;

#[test]
fn a_block_that_is_dropped_in_a_host_function_is_charged_until_it_is_unlocked() {
    let machine = threaded(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let (budget, memory) = small(&device);
    let pool = Pooled::new(memory);
    let buffer = HostBuffer::allocate(&pool, LEN).unwrap();
    let ((dropped, is_dropped), (go, gate)) = (mpsc::channel(), mpsc::channel::<()>());
    let trims = pool.clone();
    let call = stream.call(move || {
        drop(buffer);
        trims.trim();
        dropped.send(()).unwrap();
        gate.recv()
    });
    is_dropped.recv().unwrap();

    let refused = HostBuffer::allocate(&pool, LEN).is_err();
    assert_eq!((refused, machine.page_locked().0, budget.used().0), (true, LEN as u64, LEN as u64));

    go.send(()).unwrap();
    call.unwrap().wait().unwrap().unwrap();
    let _all = budget.reserve_timeout(LEN as u64, Duration::from_secs(20)).unwrap();
    assert_eq!(machine.page_locked().0, 0);
}

#[test]
fn a_block_that_cannot_be_unlocked_stays_charged_and_is_counted_as_leaked() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let (budget, memory) = small(&device);
    let buffer = HostBuffer::allocate(&memory, LEN).unwrap();
    machine.fail(Fault::at(0).call(Call::Unregister));

    drop(buffer);

    assert_eq!((machine.page_locked().0, budget.used().0), (LEN as u64, LEN as u64));
    let leaked = device.leaked();
    assert_eq!((leaked.count, leaked.memory.0), (1, LEN as u64));
}

#[test]
fn pages_that_were_registered_although_the_call_failed_are_unregistered_before_they_are_unmapped() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let (budget, memory) = small(&device);
    machine.fail(Fault::at(0).call(Call::Register).effect(Effect::Done));

    assert!(HostBuffer::allocate(&memory, LEN).is_err());

    assert_eq!((machine.page_locked().0, budget.used().0, device.leaked().count), (0, 0, 0));
}
