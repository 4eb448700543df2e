//! Threads that share buffers and graphs: a launch is seen whole or not at all.
//!
//! A graph first fills what it writes with [`MIDDLE`]: a thread that finds this value has seen the middle of a launch.
//! Graphs that write the pair write the same value to both halves, so one launch that copies both finds them equal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pagelock_cuda::{Device, DeviceBuffer, Graph, Result, Shared, Stream, Uninit};

use super::world::World;

const MIDDLE: u8 = 255;
const LEN: usize = 16_000; // long enough for others to run in the middle
const WRITERS: usize = 4;

/// What the threads share.
pub(super) struct Crowd {
    device: Device,
    trio: RwLock<Trio>,
    writers: Mutex<Vec<Arc<Graph<Shared>>>>,
    owned: RwLock<Option<Graph<Vec<DeviceBuffer<u8>>>>>,
}

struct Trio {
    pair: [DeviceBuffer<u8>; 2], // only graphs write them
    one: DeviceBuffer<u8>,       // threads write it too
}

/// A graph that copies the pair, and its targets.
pub(super) struct Observer {
    graph: Graph<Shared>,
    seen: [DeviceBuffer<u8>; 2],
}

impl Crowd {
    pub(super) fn new(device: &Device) -> Self {
        let stream = device.stream().unwrap();
        let trio = RwLock::new(Trio::new(&stream, 1).unwrap());
        let owned = RwLock::new(Some(owned(device, &stream, 1).unwrap()));
        Self { device: device.clone(), trio, writers: Mutex::default(), owned }
    }

    /// One random operation on what is shared.
    pub(super) fn step(&self, world: &mut World, observer: &mut Option<Observer>) -> Result<()> {
        let (stream, value) = (world.stream(), world.dice.byte() % MIDDLE);
        match world.dice.below(40) {
            0..12 => self.launch(&stream, world),
            12..16 => self.write(world, value),
            16..24 => self.observe(&stream, world, observer),
            24..29 => self.look(&stream, world),
            29..31 => stream.fill(&mut write(&self.trio).one, value),
            31 => self.replace(&stream, value),
            32..36 => self.launch_owned(&stream, world),
            36..38 => self.update_owned(world, value),
            38 => self.rebuild_owned(&stream, value),
            _ => {
                let writers = std::mem::take(&mut *lock(&self.writers));
                drop(writers); // without the lock
                Ok(())
            }
        }
    }

    fn launch(&self, stream: &Stream, world: &mut World) -> Result<()> {
        world.note("launch what is shared");
        let writers = lock(&self.writers).clone();
        let Some(at) = world.dice.at(&writers) else { return Ok(()) };
        writers[at].launch(stream)
    }

    /// Makes a graph that writes all three buffers. Other threads may capture the same buffers before it is shared.
    fn write(&self, world: &mut World, value: u8) -> Result<()> {
        world.note("record a write of what is shared");
        let recording = {
            let Trio { pair: [left, right], one } = &mut *write(&self.trio);
            self.device.capture(|stream| {
                for value in [MIDDLE, value] {
                    stream.fill(&mut *left, value)?;
                    stream.fill(&mut *right, value)?;
                    stream.fill(&mut *one, value)?;
                }
                Ok(())
            })?
        };
        std::thread::yield_now();
        let graph = Arc::new(recording.shared()?);
        let at = world.dice.below(WRITERS);
        let mut writers = lock(&self.writers);
        let _before = if at < writers.len() { Some(writers.swap_remove(at)) } else { None };
        writers.push(graph);
        drop(writers);
        Ok(())
    }

    /// Copies the pair by one launch, and compares both copies.
    fn observe(&self, stream: &Stream, world: &mut World, observer: &mut Option<Observer>) -> Result<()> {
        world.note("observe the pair");
        if observer.is_none() || world.dice.one_in(6) {
            let mut seen = [stream.allocate(LEN)?, stream.allocate(LEN)?];
            let recording = {
                let Trio { pair, .. } = &*read(&self.trio);
                self.device
                    .capture(|stream| pair.iter().zip(&mut seen).try_for_each(|(half, seen)| stream.copy(half, seen)))?
            };
            *observer = Some(Observer { graph: recording.shared()?, seen });
        }
        let Some(Observer { graph, seen: [left, right] }) = observer else { return Ok(()) };
        graph.launch(stream)?;
        let (left, right) = (stream.read(&*left)?, stream.read(&*right)?);
        assert_eq!(whole(&left), whole(&right), "one launch wrote both, and another saw one of them");
        Ok(())
    }

    fn look(&self, stream: &Stream, world: &mut World) -> Result<()> {
        world.note("look at what is shared");
        let trio = read(&self.trio);
        let buffer = [&trio.pair[0], &trio.pair[1], &trio.one][world.dice.below(3)];
        if world.dice.one_in(2) {
            whole(&stream.read(buffer)?);
        } else {
            let ticket = stream.download(buffer, Uninit::new(&self.device, LEN)?)?;
            drop(trio);
            whole(&ticket.wait()?);
        }
        Ok(())
    }

    /// Graphs keep using the buffers that are dropped here.
    fn replace(&self, stream: &Stream, value: u8) -> Result<()> {
        let mut trio = write(&self.trio);
        let before = std::mem::replace(&mut *trio, Trio::new(stream, value)?);
        drop(trio);
        drop(before);
        Ok(())
    }

    fn launch_owned(&self, stream: &Stream, world: &mut World) -> Result<()> {
        world.note("launch and read what a graph owns");
        let Some(graph) = &*read(&self.owned) else { return Ok(()) };
        if world.dice.one_in(2) {
            graph.launch(stream)?;
        }
        whole(&stream.read(&graph[world.dice.below(2)])?);
        Ok(())
    }

    fn update_owned(&self, world: &mut World, value: u8) -> Result<()> {
        world.note("update what a graph owns");
        let Some(graph) = &mut *write(&self.owned) else { return Ok(()) };
        let recording = self.device.capture(|stream| {
            let mut views = graph.views_mut();
            [MIDDLE, value].into_iter().try_for_each(|value| fill_all(stream, &mut views, value))
        })?;
        graph.update(recording)
    }

    fn rebuild_owned(&self, stream: &Stream, value: u8) -> Result<()> {
        let mut place = write(&self.owned);
        drop(place.take().map(Graph::into_buffers));
        *place = Some(owned(&self.device, stream, value)?);
        Ok(())
    }

    /// Checks that no buffer holds a part of a launch in the end. No call may fail any more.
    pub(super) fn check(&self) {
        let stream = self.device.stream().unwrap();
        let Trio { pair: [left, right], one } = &*read(&self.trio);
        let [left, right, _] = [left, right, one].map(|buffer| whole(&stream.read(buffer).unwrap()));
        assert_eq!(left, right);
    }
}

impl Trio {
    fn new(stream: &Stream, value: u8) -> Result<Self> {
        let [mut left, mut right, mut one] = [stream.allocate(LEN)?, stream.allocate(LEN)?, stream.allocate(LEN)?];
        [&mut left, &mut right, &mut one].into_iter().try_for_each(|buffer| stream.fill(buffer, value))?;
        Ok(Self { pair: [left, right], one })
    }
}

/// A graph that fills two buffers of its own.
fn owned(device: &Device, stream: &Stream, value: u8) -> Result<Graph<Vec<DeviceBuffer<u8>>>> {
    let mut buffers = vec![stream.allocate(LEN)?, stream.allocate(LEN)?];
    buffers.iter_mut().try_for_each(|buffer| stream.fill(buffer, value))?;
    let recording = device.capture(|stream| {
        [MIDDLE, value]
            .into_iter()
            .try_for_each(|value| buffers.iter_mut().try_for_each(|buffer| stream.fill(buffer, value)))
    });
    recording?.with(buffers)
}

fn fill_all(stream: &Stream, views: &mut [pagelock_cuda::DeviceViewMut<'_, u8>], value: u8) -> Result<()> {
    views.iter_mut().try_for_each(|view| stream.fill(view.reborrow(), value))
}

/// The value of all bytes. Panics if they differ, or if a launch was seen in the middle.
#[track_caller]
fn whole(found: &[u8]) -> u8 {
    let first = found[0];
    let other = found.iter().position(|&byte| byte != first);
    assert!(first != MIDDLE && other.is_none(), "a read saw a part of a launch: {first}, and another at {other:?}");
    first
}

fn lock<X>(shared: &Mutex<X>) -> MutexGuard<'_, X> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<X>(shared: &RwLock<X>) -> RwLockReadGuard<'_, X> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<X>(shared: &RwLock<X>) -> RwLockWriteGuard<'_, X> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
