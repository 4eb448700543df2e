//! Recordings over the same buffers, nested and one after the other, and the graphs made of them.

use pagelock_cuda::{DeviceBuffer, DeviceViewMut, Error, Graph, Recording, Result, Shared, Stream};

use super::{
    model::{Act, Dice, Span, check},
    world::{Slot, World},
};

/// A recording of which no graph is made yet.
pub(super) struct Pending {
    recording: Recording,
    captured: Captured,
}

/// What was captured.
#[derive(Default)]
struct Captured {
    acts: Vec<Act>,
    uses: Vec<u64>, // ids of the slots
    has_own: bool,  // whether it uses a buffer that is dropped
}

/// A graph, and what a launch does. After a failed update, which may have been applied, it does one of several `ways`.
pub(super) struct Replay {
    graph: Kind,
    ways: Vec<Vec<Act>>,
}

enum Kind {
    Shared(Graph<Shared>),
    Owned { graph: Graph<Vec<DeviceBuffer<u8>>>, ids: Vec<u64>, spans: Vec<Span> },
}

const MAX_PENDING: usize = 3;
const MAX_GRAPHS: usize = 4;

impl World {
    pub(super) fn record(&mut self) -> Result<()> {
        let (device, mut captured) = (self.device.clone(), Captured::default());
        self.depth += 1;
        let recording = device.capture(|stream| self.capture_work(stream, &mut captured));
        self.depth -= 1;
        let recording = recording?;
        if self.pending.len() >= MAX_PENDING {
            self.drop_recording()?;
        }
        self.pending.push(Pending { recording, captured });
        Ok(())
    }

    fn capture_work(&mut self, stream: &Stream, captured: &mut Captured) -> Result<()> {
        for _ in 0..1 + self.dice.below(5) {
            match self.dice.below(12) {
                0..4 => self.capture_fill(stream, captured)?,
                4..8 => self.capture_copy(stream, captured)?,
                8 => self.capture_own(stream, captured)?,
                9 => self.capture_own_that_stays(stream, captured)?,
                10 if self.depth < 3 => self.record()?,
                _ if self.depth < 3 => self.step(),
                _ => {}
            }
        }
        Ok(())
    }

    fn capture_fill(&mut self, stream: &Stream, captured: &mut Captured) -> Result<()> {
        let Some(at) = self.dice.at(&self.slots) else { return Ok(()) };
        let value = self.dice.byte();
        let slot = &mut self.slots[at];
        let range = self.dice.range(slot.buffer.len());
        captured.uses(slot);
        stream.fill(slot.buffer.slice_mut(range.clone())?, value)?;
        captured.acts.push(Act::Fill { to: slot.span.part(range), value });
        Ok(())
    }

    fn capture_copy(&mut self, stream: &Stream, captured: &mut Captured) -> Result<()> {
        let Some(pair) = self.dice.two(&self.slots) else { return Ok(()) };
        let Ok([from, to]) = self.slots.get_disjoint_mut(pair) else { return Ok(()) };
        let len = 1 + self.dice.below(from.buffer.len().min(to.buffer.len()));
        [&mut *from, &mut *to].into_iter().for_each(|slot| captured.uses(slot));
        stream.copy(from.buffer.slice(..len)?, to.buffer.slice_mut(..len)?)?;
        captured.acts.push(Act::Copy { from: from.span.part(0..len), to: to.span.part(0..len) });
        Ok(())
    }

    /// Copies through a buffer that is dropped before the capture ends.
    fn capture_own(&mut self, stream: &Stream, captured: &mut Captured) -> Result<()> {
        let Some(pair) = self.dice.two(&self.slots) else { return Ok(()) };
        let Ok([from, to]) = self.slots.get_disjoint_mut(pair) else { return Ok(()) };
        let len = 1 + self.dice.below(from.buffer.len().min(to.buffer.len()));
        let (mut between, span) = (stream.allocate(len)?, Span::unknown(len));
        [&mut *from, &mut *to].into_iter().for_each(|slot| captured.uses(slot));
        captured.has_own = true;
        stream.copy(from.buffer.slice(..len)?, &mut between)?;
        stream.copy(&between, to.buffer.slice_mut(..len)?)?;
        captured.acts.push(Act::Copy { from: from.span.part(0..len), to: span.clone() });
        captured.acts.push(Act::Copy { from: span, to: to.span.part(0..len) });
        Ok(())
    }

    /// Fills a buffer that outlives the capture.
    fn capture_own_that_stays(&mut self, stream: &Stream, captured: &mut Captured) -> Result<()> {
        let (len, value) = (1 + self.dice.below(100), self.dice.byte());
        let (mut buffer, span) = (stream.allocate(len)?, Span::unknown(len));
        stream.fill(&mut buffer, value)?;
        captured.acts.push(Act::Fill { to: span.clone(), value });
        self.add_slot(buffer, span, None);
        self.slots.last_mut().into_iter().for_each(|slot| captured.uses(slot));
        Ok(())
    }

    fn take_pending(&mut self) -> Option<Pending> {
        let at = self.dice.at(&self.pending)?;
        Some(self.pending.swap_remove(at))
    }

    pub(super) fn drop_recording(&mut self) -> Result<()> {
        self.take_pending();
        Ok(())
    }

    pub(super) fn share(&mut self) -> Result<()> {
        let Some(Pending { recording, captured }) = self.take_pending() else { return Ok(()) };
        let graph = Kind::Shared(recording.shared()?);
        self.add_graph(Replay { graph, ways: vec![captured.acts] })
    }

    /// Makes a graph of a recording and those of its buffers that still exist, and perhaps of another buffer.
    pub(super) fn give(&mut self) -> Result<()> {
        let Some(Pending { recording, captured }) = self.take_pending() else { return Ok(()) };
        let is_used = |slot: &Slot| captured.uses.contains(&slot.id);
        let used = self.slots.iter().filter(|slot| is_used(slot)).count();
        let is_all = used == captured.uses.len() && !captured.has_own;
        let other = self.dice.at(&self.slots).map(|at| self.slots[at].id).filter(|_| self.dice.one_in(3));
        let given: Vec<_> = self.slots.extract_if(.., |slot| is_used(slot) || Some(slot.id) == other).collect();
        let (mut buffers, mut ids, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for Slot { id, buffer, span, .. } in given {
            buffers.push(buffer);
            ids.push(id);
            spans.push(span);
        }
        match recording.with(buffers) {
            Ok(graph) => {
                assert!(is_all, "a graph does not own all that it uses");
                self.add_graph(Replay { graph: Kind::Owned { graph, ids, spans }, ways: vec![captured.acts] })
            }
            Err(Error::NotOwned { used, given }) => {
                assert!(!is_all, "a recording was given all that it uses: {used}, of which it knows {given}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn add_graph(&mut self, replay: Replay) -> Result<()> {
        if self.graphs.len() >= MAX_GRAPHS {
            self.drop_graph()?;
        }
        self.graphs.push(replay);
        Ok(())
    }

    pub(super) fn drop_graph(&mut self) -> Result<()> {
        if let Some(at) = self.dice.at(&self.graphs) {
            self.graphs.swap_remove(at);
        }
        Ok(())
    }

    pub(super) fn take_apart(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.graphs) else { return Ok(()) };
        let Kind::Owned { graph, ids, spans } = self.graphs.swap_remove(at).graph else { return Ok(()) };
        for (buffer, (id, span)) in graph.into_buffers().into_iter().zip(ids.into_iter().zip(spans)) {
            self.slots.push(Slot { id, buffer, span, cut: None, was_captured: true });
        }
        Ok(())
    }

    pub(super) fn launch(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.graphs) else { return Ok(()) };
        let stream = self.stream();
        let replay = &self.graphs[at];
        let launched = match &replay.graph {
            Kind::Shared(graph) => graph.launch(&stream),
            Kind::Owned { graph, .. } => graph.launch(&stream),
        };
        match &replay.ways[..] {
            [acts] if launched.is_ok() => acts.iter().for_each(Act::happen),
            ways => ways.iter().flatten().for_each(|act| act.to().fill(None)),
        }
        launched
    }

    /// Replaces the work of a graph by other work, mostly of the same shape.
    pub(super) fn update(&mut self) -> Result<()> {
        let (device, dice) = (self.device.clone(), &mut self.dice);
        let Some(at) = dice.at(&self.graphs) else { return Ok(()) };
        let Replay { graph: Kind::Owned { graph, spans, .. }, ways } = &mut self.graphs[at] else { return Ok(()) };
        let mut copies: Vec<_> = ways[0].iter().map(|act| matches!(act, Act::Copy { .. })).collect();
        let is_longer = !spans.is_empty() && dice.one_in(6);
        copies.extend(is_longer.then_some(false));
        let mut acts = Vec::new();
        let recording = device.capture(|stream| {
            let mut views = graph.views_mut();
            copies.iter().try_for_each(|&copies| {
                acts.push(capture_again(stream, &mut views, spans, dice, copies)?);
                Ok(())
            })
        })?;
        match graph.update(recording) {
            Ok(()) => {
                assert!(!is_longer, "a graph became another");
                *ways = vec![acts];
                Ok(())
            }
            Err(Error::GraphShape) if is_longer => Ok(()),
            Err(error) => {
                ways.push(acts);
                Err(error)
            }
        }
    }

    pub(super) fn use_owned(&mut self) -> Result<()> {
        let stream = self.stream();
        let Some(at) = self.dice.at(&self.graphs) else { return Ok(()) };
        let Kind::Owned { graph, spans, .. } = &mut self.graphs[at].graph else { return Ok(()) };
        let Some(at) = self.dice.at(spans) else { return Ok(()) };
        if self.dice.one_in(2) {
            check("a graph's buffer", &stream.read(&graph[at])?, &spans[at].get());
            return Ok(());
        }
        let value = self.dice.byte();
        spans[at].fill(None);
        stream.fill(graph.views_mut().swap_remove(at), value)?;
        spans[at].fill(Some(value));
        Ok(())
    }

    pub(super) fn check_owned(&self, stream: &Stream) {
        for replay in &self.graphs {
            let Kind::Owned { graph, spans, .. } = &replay.graph else { continue };
            for (buffer, span) in graph.iter().zip(spans) {
                check("a graph's buffer", &stream.read(buffer).unwrap(), &span.get());
            }
        }
    }
}

impl Captured {
    fn uses(&mut self, slot: &mut Slot) {
        slot.was_captured = true;
        if !self.uses.contains(&slot.id) {
            self.uses.push(slot.id);
        }
    }
}

/// A fill or a copy of a graph's buffers.
fn capture_again(
    stream: &Stream,
    views: &mut [DeviceViewMut<'_, u8>],
    spans: &[Span],
    dice: &mut Dice,
    copies: bool,
) -> Result<Act> {
    if !copies {
        let at = dice.below(views.len());
        let (range, value) = (dice.range(spans[at].len), dice.byte());
        stream.fill(views[at].reborrow().slice(range.clone())?, value)?;
        return Ok(Act::Fill { to: spans[at].part(range), value });
    }
    let Some(pair) = dice.two(spans) else { unreachable!("a graph that copies has two buffers") };
    let Ok([from, to]) = views.get_disjoint_mut(pair) else { unreachable!("they are two") };
    let len = 1 + dice.below(from.len().min(to.len()));
    stream.copy(from.reborrow().slice(..len)?, to.reborrow().slice(..len)?)?;
    Ok(Act::Copy { from: spans[pair[0]].part(0..len), to: spans[pair[1]].part(0..len) })
}
