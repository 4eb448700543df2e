//! A program of one thread with its streams, device buffers and tickets, and what it must find in them.

use std::thread;

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Pinned, Result, Stream, Ticket, Uninit,
    driver::{Call, Status},
    software::{Effect, Fault, Machine},
};

use super::{
    captures::{Pending, Replay},
    hosts::Host,
    model::{Bytes, Dice, Span, check, known},
};
use crate::tools::forget;

/// A buffer, and what it must hold.
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) buffer: DeviceBuffer<u8>,
    pub(super) span: Span,
    pub(super) cut: Option<(u64, usize)>, // id of its whole, and index of the part
    pub(super) was_captured: bool,
}

struct Kept {
    ticket: Ticket<Pinned<u8>>,
    expected: Bytes,
}

/// A program that runs.
pub(super) struct World {
    pub(super) device: Device,
    pub(super) dice: Dice,
    seed: u64,
    fails: Option<Machine>, // whose calls fail now and then
    pub(super) may_fail: bool,
    pub(super) streams: Vec<Stream>,
    pub(super) slots: Vec<Slot>,
    pub(super) hosts: Vec<Host>,
    pub(super) pending: Vec<Pending>,
    pub(super) graphs: Vec<Replay>,
    kept: Vec<Kept>,
    held: Vec<(Pinned<u8>, Vec<u8>)>,
    pub(super) depth: usize,        // captures that are going on
    pub(super) has_forgotten: bool, // something that is never freed
    ids: u64,
    done: Vec<&'static str>, // all steps so far
}

/// A step: its name, its weight, and what it does.
type Step = (&'static str, usize, fn(&mut World) -> Result<()>);

const STEPS: &[Step] = &[
    ("allocate", 6, World::allocate),
    ("fill", 8, World::fill),
    ("upload", 6, World::upload),
    ("upload staged", 3, World::upload_from),
    ("copy", 8, World::copy),
    ("download", 6, World::download),
    ("read", 6, World::read),
    ("drop a buffer", 5, World::drop_slot),
    ("split", 4, World::split),
    ("replace a stream", 2, World::replace_stream),
    ("synchronize", 2, World::synchronize),
    ("hold", 3, World::hold),
    ("wait for tickets", 1, World::wait_for_kept),
    ("make a host buffer", 4, World::new_host),
    ("split a host buffer", 5, World::split_host),
    ("write a host buffer", 5, World::write_host),
    ("read a host buffer", 3, World::read_host),
    ("upload a host buffer", 4, World::upload_host),
    ("upload host parts", 6, World::upload_host_parts),
    ("upload all", 3, World::upload_all),
    ("download to a host buffer", 4, World::download_host),
    ("download parts", 3, World::download_parts),
    ("drop a host buffer", 2, World::drop_host),
    ("record", 7, World::record),
    ("share a recording", 4, World::share),
    ("give a recording its buffers", 4, World::give),
    ("drop a recording", 1, World::drop_recording),
    ("launch", 12, World::launch),
    ("update", 4, World::update),
    ("use a graph's buffer", 5, World::use_owned),
    ("drop a graph", 2, World::drop_graph),
    ("take a graph apart", 2, World::take_apart),
    ("fail", 3, World::fail),
];

/// Calls that queue work or query it. When they fail, they may have done their work all the same.
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
    Call::LaunchGraph,
    Call::UpdateGraph,
    Call::BeginCapture,
];

/// Calls that do nothing when they fail.
const SYNCHRONOUS: &[Call] =
    &[Call::Allocate, Call::Register, Call::CreateEvent, Call::CreateStream, Call::Instantiate, Call::EndCapture];

const MAX_SLOTS: usize = 8;

impl World {
    /// This program makes calls of the machine `fails` fail. `may_fail`: whether another program does. A failure prints
    /// `seed`, from which the dice of all threads were made: `SEED` runs them again.
    pub(super) fn new(device: &Device, seed: u64, dice: Dice, fails: Option<Machine>, may_fail: bool) -> Self {
        let streams = (0..3).map(|_| device.stream().unwrap()).collect();
        Self {
            device: device.clone(),
            dice,
            seed,
            may_fail: may_fail || fails.is_some(),
            fails,
            streams,
            slots: Vec::new(),
            hosts: Vec::new(),
            pending: Vec::new(),
            graphs: Vec::new(),
            kept: Vec::new(),
            held: Vec::new(),
            depth: 0,
            has_forgotten: false,
            ids: 0,
            done: Vec::new(),
        }
    }

    pub(super) fn step(&mut self) {
        let mut at = self.dice.below(STEPS.iter().map(|(_, weight, _)| weight).sum());
        let chosen = STEPS.iter().find(|(_, weight, _)| {
            let is_chosen = at < *weight;
            at = at.wrapping_sub(*weight);
            is_chosen
        });
        let Some((name, _, step)) = chosen else { unreachable!("the number is below the sum of the weights") };
        self.done.push(name);
        if let Err(error) = step(self) {
            self.allow(error);
        }
    }

    /// Notes a step of the crowd.
    pub(super) fn note(&mut self, name: &'static str) {
        self.done.push(name);
    }

    /// Panics on an error that no injected failure explains.
    #[track_caller]
    pub(super) fn allow(&self, error: Error) {
        let is_captured = self.depth > 0 && matches!(error, Error::Capturing); // a buffer that a capture allocated
        assert!(self.may_fail || is_captured, "no call was told to fail: {error}");
    }

    /// Checks everything that the program has. No call may fail any more.
    pub(super) fn check(&mut self) {
        self.wait_for_kept().unwrap();
        self.check_held();
        self.check_hosts();
        let stream = self.device.stream().unwrap();
        for slot in &self.slots {
            check("a buffer", &stream.read(&slot.buffer).unwrap(), &slot.span.get());
        }
        self.check_owned(&stream);
    }

    fn check_held(&self) {
        for (held, expected) in &self.held {
            check("page-locked memory of a new owner", held, &known(expected));
        }
    }

    pub(super) fn stream(&mut self) -> Stream {
        let at = self.dice.below(self.streams.len());
        self.streams[at].clone()
    }

    pub(super) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn add_slot(&mut self, buffer: DeviceBuffer<u8>, span: Span, cut: Option<(u64, usize)>) {
        let id = self.id();
        while self.slots.len() >= MAX_SLOTS {
            let at = self.dice.below(self.slots.len());
            self.slots.swap_remove(at);
        }
        self.slots.push(Slot { id, buffer, span, cut, was_captured: false });
    }

    fn allocate(&mut self) -> Result<()> {
        let len = 1 + self.dice.below(200);
        let buffer = self.stream().allocate(len)?;
        self.add_slot(buffer, Span::unknown(len), None);
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let (stream, value) = (self.stream(), self.dice.byte());
        let slot = &mut self.slots[at];
        let range = self.dice.range(slot.buffer.len());
        let span = slot.span.part(range.clone());
        span.fill(None);
        stream.fill(slot.buffer.slice_mut(range)?, value)?;
        span.fill(Some(value));
        Ok(())
    }

    fn upload(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let slot = &mut self.slots[at];
        let range = self.dice.range(slot.buffer.len());
        let source = self.dice.bytes(range.len());
        let span = slot.span.part(range.clone());
        let pinned = Pinned::from_slice(&self.device, &source)?;
        span.fill(None);
        let ticket = stream.upload(pinned, slot.buffer.slice_mut(range)?)?;
        span.set(&known(&source));
        self.meet(Kept { ticket, expected: known(&source) })
    }

    fn upload_from(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let slot = &mut self.slots[at];
        let mut source = self.dice.bytes(slot.buffer.len());
        slot.span.fill(None);
        let expected = known(&source);
        let uploaded = stream.upload_from(&source, &mut slot.buffer);
        source.fill(0xEE);
        uploaded?;
        slot.span.set(&expected);
        Ok(())
    }

    fn copy(&mut self) -> Result<()> {
        let Some(pair) = self.dice.two(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let Ok([from, to]) = self.slots.get_disjoint_mut(pair) else { return Ok(()) };
        let len = 1 + self.dice.below(from.buffer.len().min(to.buffer.len()));
        let start = self.dice.below(to.buffer.len() - len + 1);
        let (source, target) = (from.span.part(0..len), to.span.part(start..start + len));
        target.fill(None);
        stream.copy(from.buffer.slice(..len)?, to.buffer.slice_mut(start..start + len)?)?;
        target.set(&source.get());
        Ok(())
    }

    fn download(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let slot = &self.slots[at];
        let target = Uninit::new(&self.device, slot.buffer.len())?;
        let ticket = stream.download(&slot.buffer, target)?;
        let expected = slot.span.get();
        self.meet(Kept { ticket, expected })
    }

    fn read(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let slot = &self.slots[at];
        check("what was read", &stream.read(&slot.buffer)?, &slot.span.get());
        Ok(())
    }

    fn drop_slot(&mut self) -> Result<()> {
        if let Some(at) = self.dice.at(&self.slots) {
            self.slots.swap_remove(at);
        }
        Ok(())
    }

    /// Splits a device buffer, which may be a part itself, into up to three parts.
    fn split(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let Slot { buffer, span, was_captured, .. } = self.slots.swap_remove(at);
        let (first, gap) = (1 + self.dice.below(buffer.len()), self.dice.below(3));
        let middle = (first + gap).min(buffer.len());
        let last = middle + self.dice.below(buffer.len() - middle + 1);
        let ranges = [0..first, middle..last, last..buffer.len()];
        let whole = self.id();
        let parts = match buffer.split(ranges.clone()) {
            Ok(parts) => parts,
            Err(Error::Shared) if was_captured => return Ok(()), // perhaps a graph has it
            Err(error) => return Err(error),
        };
        for (index, (part, range)) in
            parts.into_iter().zip(ranges).enumerate().filter(|(_, (_, range))| !range.is_empty())
        {
            self.add_slot(part, span.part(range), Some((whole, index)));
            self.slots.last_mut().into_iter().for_each(|slot| slot.was_captured = was_captured);
        }
        Ok(())
    }

    fn replace_stream(&mut self) -> Result<()> {
        let at = self.dice.below(self.streams.len());
        self.streams[at] = self.device.stream()?;
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        let (first, second) = (self.stream(), self.stream());
        match self.dice.below(6) {
            0 => first.synchronize(),
            1 => self.device.synchronize(),
            2 => self.device.trim().map(drop),
            3 => first.wait_for(&second.record()?),
            4 => first.record()?.wait(),
            _ => {
                self.device.release_finished();
                Ok(())
            }
        }
    }

    /// Holds page-locked memory that copies of earlier owners must not write, or checks that they did not.
    fn hold(&mut self) -> Result<()> {
        if self.held.len() < 4 {
            let len = 1 + self.dice.below(200);
            let bytes = self.dice.bytes(len);
            self.held.push((Pinned::from_slice(&self.device, &bytes)?, bytes));
        } else {
            self.check_held();
            self.held.clear();
        }
        Ok(())
    }

    fn meet(&mut self, kept: Kept) -> Result<()> {
        match self.dice.below(8) {
            0..3 => kept.wait()?,
            3..6 => self.kept.push(kept),
            6 if self.dice.one_in(16) => {
                self.has_forgotten = true;
                forget(kept.ticket);
            }
            _ => drop(kept.ticket),
        }
        Ok(())
    }

    fn wait_for_kept(&mut self) -> Result<()> {
        self.kept.drain(..).try_for_each(Kept::wait)
    }

    /// Makes one of the next calls fail.
    fn fail(&mut self) -> Result<()> {
        let Some(machine) = &self.fails else { return Ok(()) };
        machine.heal(); // one at a time: waiting recovers from any single failure
        let skip = self.dice.below(10) as u64;
        let fault = if self.dice.one_in(3) {
            Fault::at(skip).call(self.dice.pick(SYNCHRONOUS)).status(Status::OUT_OF_MEMORY)
        } else {
            let effect = self.dice.pick(&[Effect::None, Effect::Done]);
            Fault::at(skip).call(self.dice.pick(ASYNCHRONOUS)).effect(effect)
        };
        machine.fail(fault);
        Ok(())
    }
}

impl Kept {
    fn wait(self) -> Result<()> {
        check("what came out of a ticket", &self.ticket.wait()?, &self.expected);
        Ok(())
    }
}

impl Drop for World {
    /// Prints how to reproduce a failure.
    fn drop(&mut self) {
        if thread::panicking() {
            let (count, last) = (self.done.len(), self.done.len().saturating_sub(40));
            eprintln!("seed {}, in operation {count}; the last: {}", self.seed, self.done[last..].join(", "));
        }
    }
}
