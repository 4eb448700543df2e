//! Random programs over streams, buffers and tickets, and a model that knows what must come out.
//!
//! The model does everything at once and in order. Work that a device does too late or too early shows as a difference:
//! in a buffer that is read, in a download that is waited for, or in page-locked memory that a program holds while an
//! earlier owner's copy is still in flight.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagelock_cuda::{Device, DeviceBuffer, Error, Pinned, Priority, Result, Stream, Ticket, Uninit};
use pagelock_memory::HostBuffer;
use proptest::{collection::vec, prelude::*};

use crate::tools::{forget, pattern};

/// What becomes of a ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Wait,
    Drop,
    Keep,
    Forget,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Allocate { slot: usize, stream: usize, len: usize },
    Fill { slot: usize, stream: usize, seed: u32 },
    Upload { slot: usize, stream: usize, seed: u32, fate: Fate },
    UploadFrozen { slot: usize, stream: usize, seed: u32, fate: Fate },
    UploadPart { slot: usize, stream: usize, seed: u32, part: usize, fate: Fate },
    UploadBuffer { slot: usize, stream: usize, seed: u32, waits: bool },
    UploadStaged { slot: usize, stream: usize, seed: u32 },
    UploadScoped { slot: usize, stream: usize, seed: u32 },
    Copy { from: usize, to: usize, stream: usize },
    Download { slot: usize, stream: usize, fate: Fate },
    DownloadBuffer { slot: usize, stream: usize, waits: bool },
    DownloadScoped { slot: usize, stream: usize },
    DropBuffer { slot: usize },
    ReplaceStream { stream: usize },
    Hold { seed: u32, len: usize },
    Release,
    WaitForKept,
    Trim,
}

const SLOTS: usize = 3;
const STREAMS: usize = 3;

/// Which steps a program may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All steps, but no ticket is forgotten: all memory must be free in the end.
    Tidy,
    /// All steps.
    Forgetful,
    /// No step that borrows memory, since a scope ends the process if the device is lost.
    Owned,
}

pub(crate) fn programs(kind: Kind) -> impl Strategy<Value = Vec<Step>> {
    vec(step(kind), 1..50)
}

fn step(kind: Kind) -> impl Strategy<Value = Step> {
    let (slot, stream) = (0..SLOTS, 0..STREAMS);
    let fates = match kind {
        Kind::Forgetful => vec![Fate::Wait, Fate::Drop, Fate::Keep, Fate::Forget],
        Kind::Tidy | Kind::Owned => vec![Fate::Wait, Fate::Drop, Fate::Keep],
    };
    let at = (slot.clone(), stream.clone(), any::<u32>());
    let fated = (slot.clone(), stream.clone(), any::<u32>(), prop::sample::select(fates));
    prop_oneof![
        3 => (slot.clone(), stream.clone(), 1..300_usize)
            .prop_map(|(slot, stream, len)| Step::Allocate { slot, stream, len }),
        2 => at.clone().prop_map(|(slot, stream, seed)| Step::Fill { slot, stream, seed }),
        4 => fated.clone().prop_map(|(slot, stream, seed, fate)| Step::Upload { slot, stream, seed, fate }),
        1 => fated.clone().prop_map(|(slot, stream, seed, fate)| Step::UploadFrozen { slot, stream, seed, fate }),
        2 => (fated.clone(), 0..300_usize).prop_map(|((slot, stream, seed, fate), part)| {
            Step::UploadPart { slot, stream, seed, part, fate }
        }),
        2 => (at.clone(), any::<bool>())
            .prop_map(|((slot, stream, seed), waits)| Step::UploadBuffer { slot, stream, seed, waits }),
        2 => at.clone().prop_map(|(slot, stream, seed)| Step::UploadStaged { slot, stream, seed }),
        1 => at.clone().prop_map(|(slot, stream, seed)| Step::UploadScoped { slot, stream, seed }),
        3 => (0..SLOTS, 0..SLOTS, stream.clone()).prop_map(|(from, to, stream)| Step::Copy { from, to, stream }),
        4 => fated.prop_map(|(slot, stream, _, fate)| Step::Download { slot, stream, fate }),
        2 => (slot.clone(), stream.clone(), any::<bool>())
            .prop_map(|(slot, stream, waits)| Step::DownloadBuffer { slot, stream, waits }),
        1 => (slot.clone(), stream.clone()).prop_map(|(slot, stream)| Step::DownloadScoped { slot, stream }),
        2 => slot.prop_map(|slot| Step::DropBuffer { slot }),
        1 => stream.prop_map(|stream| Step::ReplaceStream { stream }),
        3 => (any::<u32>(), 1..300_usize).prop_map(|(seed, len)| Step::Hold { seed, len }),
        1 => Just(Step::Release),
        1 => Just(Step::WaitForKept),
        1 => Just(Step::Trim),
    ]
    .prop_map(move |step| if kind == Kind::Owned { step.without_borrowing() } else { step })
}

impl Step {
    /// The same copy without a scope.
    fn without_borrowing(self) -> Self {
        match self {
            Step::UploadScoped { slot, stream, seed } => Step::UploadBuffer { slot, stream, seed, waits: true },
            Step::DownloadScoped { slot, stream } => Step::DownloadBuffer { slot, stream, waits: true },
            other => other,
        }
    }
}

/// A buffer, and what it must hold: `None` before the first write, and after a failure that leaves it unknown.
struct Slot {
    buffer: DeviceBuffer<u32>,
    expected: Option<Vec<u32>>,
}

/// A ticket, and what it must return, or `None` if that is unknown.
struct Kept {
    ticket: Ticket<Pinned<u32>>,
    expected: Option<Vec<u32>>,
}

/// A program that runs.
pub(crate) struct World {
    device: Device,
    streams: Vec<Stream>,
    slots: [Option<Slot>; SLOTS],
    kept: Vec<Kept>,
    held: Vec<(Pinned<u32>, Vec<u32>)>,
    has_faults: bool, // calls of the driver fail, so the device may be lost
}

impl World {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let streams = (0..STREAMS).map(|_| device.stream()).collect::<Result<_>>()?;
        let (slots, kept, held) = ([const { None }; SLOTS], Vec::new(), Vec::new());
        Ok(Self { device: device.clone(), streams, slots, kept, held, has_faults: false })
    }

    /// The same program, during which calls of the driver fail.
    pub(crate) fn with_faults(self) -> Self {
        Self { has_faults: true, ..self }
    }

    /// Runs the steps. After an error, the contents that the failed call may have written are unknown.
    pub(crate) fn run(&mut self, steps: &[Step], mut on_error: impl FnMut(Error)) {
        for step in steps {
            if let Err(error) = self.step(step) {
                on_error(error);
            }
        }
    }

    /// Checks everything that the program has. The device must work again.
    pub(crate) fn check(&mut self) {
        self.wait_for_kept().unwrap();
        let stream = self.device.stream().unwrap();
        for slot in self.slots.iter().flatten() {
            let found = stream.read(&slot.buffer).unwrap();
            assert!(slot.expected.as_ref().is_none_or(|expected| *expected == found), "a buffer holds something else");
        }
        self.check_held();
    }

    /// Checks that no late copy wrote to what the program holds.
    pub(crate) fn check_held(&self) {
        for (held, expected) in &self.held {
            assert_eq!(**held, **expected, "a late copy wrote to page-locked memory of a new owner");
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Allocate { slot, stream, len } => {
                self.slots[slot] = None;
                let buffer = self.streams[stream].allocate(len)?;
                self.slots[slot] = Some(Slot { buffer, expected: None });
                Ok(())
            }
            Step::Fill { slot, stream, seed } => {
                self.write(slot, |world, buffer| world[stream].fill(buffer, seed), |old| vec![seed; old])
            }
            Step::Upload { slot, stream, seed, fate } => self.upload(slot, stream, seed, 0, fate),
            Step::UploadPart { slot, stream, seed, part, fate } => self.upload(slot, stream, seed, part, fate),
            Step::UploadFrozen { slot, stream, seed, fate } => self.upload_frozen(slot, stream, seed, fate),
            Step::UploadBuffer { slot, stream, seed, waits } => self.upload_from(slot, stream, seed, waits),
            Step::UploadStaged { slot, stream, seed } => self.write(
                slot,
                |streams, buffer| {
                    let mut source = pattern(seed, buffer.len());
                    let uploaded = streams[stream].upload_from(&source, buffer);
                    source.fill(0xEEEE);
                    uploaded
                },
                |len| pattern(seed, len),
            ),
            Step::UploadScoped { slot, stream, seed } => self.write(
                slot,
                |streams, buffer| {
                    let source = pattern(seed, buffer.len());
                    streams[stream].scope(|scope| scope.upload(&source, buffer))
                },
                |len| pattern(seed, len),
            ),
            Step::Copy { from, to, stream } => self.copy(from, to, stream),
            Step::Download { slot, stream, fate } => self.download(slot, stream, fate),
            Step::DownloadBuffer { slot, stream, waits } => self.download_to(slot, stream, waits),
            Step::DownloadScoped { slot, stream } => self.download_scoped(slot, stream),
            Step::DropBuffer { slot } => {
                self.slots[slot] = None;
                Ok(())
            }
            Step::ReplaceStream { stream } => {
                let priority = if stream == 0 { Priority::High } else { Priority::Normal };
                self.streams[stream] = self.device.stream_with_priority(priority)?;
                Ok(())
            }
            Step::Hold { seed, len } => {
                let expected = pattern(seed, len);
                self.held.push((Pinned::from_slice(&self.device, &expected)?, expected));
                Ok(())
            }
            Step::Release => {
                self.check_held();
                self.held.clear();
                Ok(())
            }
            Step::WaitForKept => self.wait_for_kept(),
            Step::Trim => self.device.trim().map(|_| ()),
        }
    }

    /// Writes a slot's buffer, and notes what it must hold then.
    fn write(
        &mut self,
        slot: usize,
        write: impl FnOnce(&[Stream], &mut DeviceBuffer<u32>) -> Result<()>,
        expected: impl FnOnce(usize) -> Vec<u32>,
    ) -> Result<()> {
        let Some(slot) = &mut self.slots[slot] else { return Ok(()) };
        slot.expected = None;
        write(&self.streams, &mut slot.buffer)?;
        slot.expected = Some(expected(slot.buffer.len()));
        Ok(())
    }

    fn upload(&mut self, slot: usize, stream: usize, seed: u32, part: usize, fate: Fate) -> Result<()> {
        let Some(slot) = &mut self.slots[slot] else { return Ok(()) };
        let start = part % slot.buffer.len();
        let source = pattern(seed, slot.buffer.len() - start);
        let before = slot.expected.take();
        let pinned = Pinned::from_slice(&self.device, &source)?;
        let ticket = self.streams[stream].upload(pinned, slot.buffer.slice_mut(start..)?)?;
        slot.expected = match (before, start) {
            (_, 0) => Some(source.clone()),
            (before, start) => before.map(|before| [&before[..start], &source].concat()),
        };
        self.meet(Kept { ticket, expected: Some(source) }, fate)
    }

    fn upload_frozen(&mut self, slot: usize, stream: usize, seed: u32, fate: Fate) -> Result<()> {
        let Some(slot) = &mut self.slots[slot] else { return Ok(()) };
        slot.expected = None;
        let source = pattern(seed, slot.buffer.len());
        let frozen = Pinned::from_slice(&self.device, &source)?.freeze();
        let ticket = self.streams[stream].upload(frozen.clone(), &mut slot.buffer)?;
        assert_eq!(*frozen, *source, "what is frozen does not change");
        slot.expected = Some(source);
        match fate {
            Fate::Wait => drop(ticket.wait()?),
            Fate::Forget => forget(ticket),
            Fate::Drop | Fate::Keep => drop(ticket),
        }
        Ok(())
    }

    /// Overwrites the host's buffer at once, which waits for the copy, or drops it without waiting.
    fn upload_from(&mut self, slot: usize, stream: usize, seed: u32, waits: bool) -> Result<()> {
        let Some(slot) = &mut self.slots[slot] else { return Ok(()) };
        slot.expected = None;
        let source = pattern(seed, slot.buffer.len());
        let mut host = HostBuffer::allocate(self.device.page_locked(), slot.buffer.size().0 as usize)?;
        host.bytes_mut()?.copy_from_slice(bytemuck::cast_slice(&source));
        let uploaded = self.streams[stream].upload_from(&host, &mut slot.buffer);
        if !waits {
            drop(host.drop_without_waiting());
        } else if !matches!(uploaded, Err(Error::Lost { .. })) {
            access(self.has_faults, || host.bytes_mut().map(|bytes| bytes.fill(0xEE))).transpose()?;
        }
        uploaded?;
        slot.expected = Some(source);
        Ok(())
    }

    fn copy(&mut self, from: usize, to: usize, stream: usize) -> Result<()> {
        let Ok([Some(from), Some(to)]) = self.slots.get_disjoint_mut([from, to]) else { return Ok(()) };
        let len = from.buffer.len().min(to.buffer.len());
        let before = to.expected.take();
        self.streams[stream].copy(from.buffer.slice(..len)?, to.buffer.slice_mut(..len)?)?;
        to.expected = match (&from.expected, before) {
            (Some(from), _) if to.buffer.len() == len => Some(from[..len].to_vec()),
            (Some(from), Some(before)) => Some([&from[..len], &before[len..]].concat()),
            _ => None,
        };
        Ok(())
    }

    fn download(&mut self, slot: usize, stream: usize, fate: Fate) -> Result<()> {
        let Some(slot) = &self.slots[slot] else { return Ok(()) };
        let target = Uninit::new(&self.device, slot.buffer.len())?;
        let ticket = self.streams[stream].download(&slot.buffer, target)?;
        let expected = slot.expected.clone();
        self.meet(Kept { ticket, expected }, fate)
    }

    fn download_to(&mut self, slot: usize, stream: usize, waits: bool) -> Result<()> {
        let Some(slot) = &self.slots[slot] else { return Ok(()) };
        let mut host = HostBuffer::allocate(self.device.page_locked(), slot.buffer.size().0 as usize)?;
        self.streams[stream].download_to(&slot.buffer, &mut host)?;
        if !waits {
            drop(host.drop_without_waiting());
            return Ok(());
        }
        let found = access(self.has_faults, || host.bytes().to_vec());
        if let (Some(found), Some(expected)) = (found, &slot.expected) {
            assert_eq!(found, bytemuck::cast_slice::<u32, u8>(expected), "a buffer was read before its download");
        }
        Ok(())
    }

    fn download_scoped(&mut self, slot: usize, stream: usize) -> Result<()> {
        let Some(slot) = &self.slots[slot] else { return Ok(()) };
        let found = self.streams[stream].read(&slot.buffer)?;
        assert!(slot.expected.as_ref().is_none_or(|expected| *expected == found), "a scope ended before its download");
        Ok(())
    }

    fn meet(&mut self, kept: Kept, fate: Fate) -> Result<()> {
        match fate {
            Fate::Wait => kept.wait()?,
            Fate::Drop => drop(kept.ticket),
            Fate::Keep => self.kept.push(kept),
            Fate::Forget => forget(kept.ticket),
        }
        Ok(())
    }

    fn wait_for_kept(&mut self) -> Result<()> {
        self.kept.drain(..).try_for_each(Kept::wait)
    }
}

/// The result of an access to a host buffer. `None` if the buffer refused it because the device was lost, which only a
/// program with faults may see.
fn access<R>(has_faults: bool, access: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let is_lost = panic.downcast_ref::<&str>().is_some_and(|text| text.starts_with("a device was lost"));
            if has_faults && is_lost { None } else { resume_unwind(panic) }
        }
    }
}

impl Kept {
    fn wait(self) -> Result<()> {
        let found = self.ticket.wait()?;
        assert!(self.expected.is_none_or(|expected| *expected == *found), "a ticket gave back something else");
        Ok(())
    }
}
