//! [`CapturedStep`]: a step of a training loop that is captured once, as a graph, and then launched with new inputs.
//!
//! The first calls run eagerly. Then a call is captured as a graph (`pagelock_cuda::Graph`). Meanwhile
//! `CudaDevice::stream` is the capturing stream, so operations queue and allocate there; nothing else about them
//! changes. Each later call copies its inputs to where the graph reads them, and launches the graph.
//!
//! A small step is captured three times, and the graphs take turns: while one runs, the inputs of the next are copied
//! on a separate stream. A large step is captured once: copies take little of its time, and further graphs would take
//! much memory.
//!
//! A copy must not overwrite inputs while a graph reads them. By default, `cuda` makes a copy wait for all earlier
//! launches. Here a copy overlaps with the latest launch, so it waits for an event that was recorded before that
//! launch. One event for two launches is enough:
//!
//! ```text
//! call     0        1        2                 3        4
//! graph    A        B        C                 A        B
//! copies                     wait for event 0           wait for event 2
//! event    0                 2                          4
//! ```
//!
//! With two graphs, each launch would need an event.
//!
//! Invariants: a graph keeps its buffers alive; a result that the program still holds is never overwritten
//! (`Outputs`).

mod current;
mod tensors;

use std::iter::zip;
use std::panic::resume_unwind;

use pagelock_cuda::{Event, Graph, Shared, Stream};
use pagelock_memory::ByteSize;

use self::current::{Captured, Draws};
pub(crate) use self::current::{note_made, note_write, number, outside, refuse, stream_on, with_shift};
pub use self::tensors::Tensors;
pub(crate) use self::tensors::visit;
use self::tensors::{are_on_host, copy_from_devices, detached, fit, on};
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::profiler;
use crate::storage::StorageRef;
use crate::transfer::many::{allocate_like, upload_to};

/// A step of a loop that is repeated with inputs of the same shapes: on a GPU, with a single launch.
///
/// [`run`](CapturedStep::run) returns what the step returns. On a GPU, the first two calls with inputs of some shapes
/// run the step. The third call captures the step's work as a graph, and for small steps the fourth and the fifth do.
/// Later calls launch the graph: the same kernels with the same arguments give the same bits. Other shapes, and other
/// orders of the dimensions in memory, have graphs of their own, so a smaller last batch needs nothing special. In all
/// calls on a GPU the step sees inputs without gaps and repeated elements. On the CPU every call runs the step.
///
/// Inputs on the host are copied while the GPU still runs the previous step, and the program does not wait for copies
/// from page-locked memory. So the inputs of a call are kept until the next call. Small inputs, of at most 256 KiB,
/// are kept for up to four calls, since querying whether a copy is done takes longer than the copy.
///
/// What this means for the step:
/// - Tensors that it changes, such as parameters and the state of an optimizer, are changed by every call, and can be
///   read, changed and saved in between. They must stay the same tensors: a model that was moved to another device
///   needs a new `CapturedStep`.
/// - What it decides on the host is decided once: loops, conditions, numbers that become arguments of operations,
///   `train` or `eval`. [`forget`](CapturedStep::forget) lets it decide again.
/// - Operations that need the host are refused during the capture: reading an element (`item`), copies to and from
///   the GPU. Return the tensors that you want to read. Random numbers come from the default generator, which
///   advances with each call.
/// - Its results have no gradient. Other tensors that it makes and that outlive it, such as one in a variable of the
///   program or the gradient of a parameter, are written by each launch, as a change in place.
///
/// # Examples
/// ```
/// use pagelock_tensor::{CapturedStep, Device, Result, Tensor, no_grad};
///
/// let device = Device::best();
/// let w = Tensor::zeros([2])?.to(&device)?.set_requires_grad(true);
/// let target = Tensor::new([2.0, -1.0])?.to(&device)?;
/// let mut step = CapturedStep::new(&device);
/// let mut loss = Tensor::zeros(())?;
/// for _ in 0..200 {
///     let x = Tensor::randn([64, 2])?; // from the host, each time
///     loss = step.run(x, |x| -> Result<Tensor> {
///         let loss = (x.matmul(&w)? - x.matmul(&target)?)?.pow(2.0)?.mean(..)?;
///         loss.backward()?;
///         if let Some(grad) = w.grad() {
///             no_grad(|| w.add_scaled_(&grad, -0.1))?;
///         }
///         w.zero_grad();
///         Ok(loss)
///     })?;
/// }
/// assert!(loss.item::<f32>()? < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct CapturedStep<I: Tensors, O: Tensors> {
    device: Device,
    copy_stream: Option<Stream>, // made when the first step is captured
    by_shape: Vec<ByShape<I, O>>,
    /// The inputs of the latest calls. Dropping one waits for its copy.
    recent_inputs: Vec<I>,
}

/// The step for inputs of some shapes.
struct ByShape<I: Tensors, O: Tensors> {
    /// The number of eager calls before one is captured: eager calls compile kernels and create what persists.
    eager_calls: usize,
    turns: Vec<Turn<I, O>>, // never empty
    now: usize,             // the index of the current turn
    launches: usize,
    /// The end of the latest launch with an even number.
    launched: Option<Event>,
}

/// One of the graphs of a step, and the inputs that it reads.
struct Turn<I: Tensors, O: Tensors> {
    slots: I,
    replay: Option<Replay<O>>,
}

/// A captured graph, with its results.
struct Replay<O: Tensors> {
    graph: Graph<Shared>,
    outputs: Outputs<O>,
    /// The storages that each launch writes and that the program can see, except for results.
    written: Vec<StorageRef>,
    draws: Option<Draws>,
}

/// The results of the step, which the graph writes.
///
/// A result that the program holds does not change: before the next launch, its storage gets a copy in other memory,
/// and the graph's memory gets a new storage. A result that is also another tensor, such as a parameter, is not
/// copied.
struct Outputs<O: Tensors> {
    tensors: O,
    /// For each result: how many of the results share its storage, or 0 if the program held the storage before the
    /// first launch.
    sharing: Vec<usize>,
}

/// Eager calls before one is captured: the first may create an optimizer's state, the second runs like all later
/// ones.
const EAGER_CALLS: usize = 2;

/// The most shapes for which a step is captured. Calls with further shapes stay eager.
const MAX_SHAPES: usize = 8;

/// A step that needs no more memory than this between its operations is captured [`TURNS`] times.
const SMALL: ByteSize = ByteSize::mib(64);
const TURNS: usize = 3;

/// The inputs of this many calls are kept, if those of a call take no more than [`SMALL_INPUTS`].
const MAX_RECENT: usize = 4;
const SMALL_INPUTS: ByteSize = ByteSize::kib(256);

impl<I: Tensors, O: Tensors> CapturedStep<I, O> {
    /// For steps on `device`. Inputs that are elsewhere are copied to it.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), copy_stream: None, by_shape: Vec::new(), recent_inputs: Vec::new() }
    }

    /// The results of `step` for these inputs, by calling it or by launching its graph.
    ///
    /// A step that fails or panics has done what precedes the failure, captured or not.
    ///
    /// # Errors
    /// Those of `step`; [`Error::Captured`] if it uses something that cannot be captured; [`Error::DeviceMemory`],
    /// [`Error::Cuda`].
    pub fn run<E: From<Error>>(&mut self, inputs: I, step: impl FnOnce(&I) -> Result<O, E>) -> Result<O, E> {
        self.drop_recent_inputs();
        let device = self.device.clone();
        let _running = profiler::op(NAME);
        let Some((cuda, copy_stream, known)) = self.turn(&inputs)? else {
            return Ok(detached(step(&on(&inputs, &device)?)?)?);
        };
        known.wait(copy_stream)?;
        let turn = &mut known.turns[known.now];
        turn.copy_inputs(&inputs, copy_stream)?;
        let results = match turn.replay.as_mut().filter(|replay| replay.is_current()) {
            Some(replay) => replay.relaunch(&cuda)?,
            None => {
                let step = || Ok::<O, E>(results_apart_from(&turn.slots, step(&turn.slots)?)?);
                turn.replay.insert(Replay::capture(&cuda, step)?).launch_first(&cuda)?
            }
        };
        known.note_launch(&cuda)?;
        self.recent_inputs.push(inputs);
        Ok(results)
    }

    /// Drops the inputs of earlier calls if they are large, or if those of `MAX_RECENT` calls are kept. Drops the
    /// latest first: once its copy is done, all earlier copies are done too.
    fn drop_recent_inputs(&mut self) {
        let mut len_bytes = 0;
        if let Some(latest) = self.recent_inputs.last() {
            visit(latest, &mut |input| len_bytes += input.shape().elements() * input.dtype().size());
        }
        if self.recent_inputs.len() == MAX_RECENT || ByteSize(len_bytes as u64) > SMALL_INPUTS {
            while self.recent_inputs.pop().is_some() {}
        }
    }

    /// The step for inputs of these shapes, advanced to its next turn, and the stream for copies. `None` if this call
    /// runs eagerly.
    fn turn(&mut self, inputs: &I) -> Result<Option<(CudaDevice, &Stream, &mut ByShape<I, O>)>> {
        let Device::Cuda(cuda) = &self.device else { return Ok(None) };
        let Some(known) = self.by_shape.iter().position(|known| fit(inputs, &known.turns[0].slots)) else {
            if self.by_shape.len() < MAX_SHAPES {
                let turns = vec![Turn::with_slots_like(inputs, &self.device, cuda)?];
                let eager_calls = EAGER_CALLS - 1;
                self.by_shape.push(ByShape { eager_calls, turns, now: 0, launches: 0, launched: None });
            }
            return Ok(None);
        };
        let known = &mut self.by_shape[known];
        if known.eager_calls > 0 {
            known.eager_calls -= 1;
            return Ok(None);
        }
        let is_small =
            |turn: &Turn<I, O>| turn.replay.as_ref().is_some_and(|replay| replay.graph.kept_memory() <= SMALL);
        if known.turns.len() < TURNS && are_on_host(inputs) && known.turns.iter().all(is_small) {
            known.turns.push(Turn::with_slots_like(inputs, &self.device, cuda)?);
            known.now = known.turns.len() - 1;
        } else {
            known.now = (known.now + 1) % known.turns.len();
        }
        if self.copy_stream.is_none() {
            self.copy_stream = Some(cuda.cuda().stream().map_err(|source| Error::cuda(NAME, source))?);
        }
        Ok(self.copy_stream.as_ref().map(|copy_stream| (cuda.clone(), copy_stream, known)))
    }

    /// Forgets what was captured: the next calls run the step again.
    pub fn forget(&mut self) {
        self.by_shape.clear();
    }

    /// Whether the step was captured for inputs of these shapes.
    pub fn is_captured(&self, inputs: &I) -> bool {
        let known = self.by_shape.iter().find(|known| fit(inputs, &known.turns[0].slots));
        known.is_some_and(|known| known.turns.iter().any(|turn| turn.replay.is_some()))
    }
}

/// The results, with copies of those that share memory with an input: later inputs are written there.
fn results_apart_from<I: Tensors, O: Tensors>(inputs: &I, mut results: O) -> Result<O> {
    results.visit_mut(&mut |result| {
        let mut is_input = false;
        visit(inputs, &mut |input| is_input |= input.storage.is(&result.storage));
        if is_input {
            *result = result.detached_copy(NAME)?;
        }
        Ok(())
    })?;
    Ok(results)
}

impl<I: Tensors, O: Tensors> ByShape<I, O> {
    /// Makes copies wait for the launches before the latest one, unless they do already. See the head of the file.
    fn wait(&self, copy_stream: &Stream) -> Result<()> {
        match &self.launched {
            Some(launched) if self.launches.is_multiple_of(2) => {
                copy_stream.wait_for(launched).map_err(|source| Error::cuda(NAME, source))
            }
            _ => Ok(()),
        }
    }

    fn note_launch(&mut self, cuda: &CudaDevice) -> Result<()> {
        if self.turns.len() > 1 && self.launches.is_multiple_of(2) {
            self.launched = Some(cuda.stream().record().map_err(|source| Error::cuda(NAME, source))?);
        }
        self.launches += 1;
        Ok(())
    }
}

impl<I: Tensors, O: Tensors> Turn<I, O> {
    fn with_slots_like(inputs: &I, device: &Device, cuda: &CudaDevice) -> Result<Self> {
        let mut like = Vec::new();
        visit(inputs, &mut |input| like.push(input.clone()));
        let mut allocated = allocate_like(&like, device, cuda)?.into_iter();
        let mut slots = inputs.clone();
        slots.visit_mut(&mut |slot| {
            *slot = allocated.next().unwrap_or_else(|| unreachable!("there is a slot for each"));
            Ok(())
        })?;
        Ok(Self { slots, replay: None })
    }

    /// Copies the inputs to where the graph reads them.
    fn copy_inputs(&self, inputs: &I, copy_stream: &Stream) -> Result<()> {
        upload_to(&copy_from_devices(inputs, &self.slots)?, copy_stream)
    }
}

impl Replay<()> {
    fn without_results(graph: Graph<Shared>, written: Vec<StorageRef>, draws: Option<Draws>) -> Self {
        Self { graph, outputs: Outputs { tensors: (), sharing: Vec::new() }, written, draws }
    }
}

impl<O: Tensors> Replay<O> {
    /// The work of `step`. If that fails or panics, what it queued before is launched, since it would have been done
    /// in an eager call: tensors that outlive the call get their values.
    fn capture<E: From<Error>>(device: &CudaDevice, step: impl FnOnce() -> Result<O, E>) -> Result<Self, E> {
        let Captured { recording, result, written, draws } = current::capture(device, step)?;
        let graph = recording.and_then(|recording| recording.shared().map_err(|source| Error::cuda(NAME, source)));
        match result {
            Ok(Ok(result)) => {
                let (outputs, written) = Outputs::new(detached(result)?, written);
                Ok(Self { graph: graph?, outputs, written, draws })
            }
            Ok(Err(failure)) => {
                Replay::without_results(graph?, written, draws).launch_first(device)?;
                Err(failure)
            }
            Err(panic) => {
                // The panic is reported, not a failure of the launch.
                let _ = graph.and_then(|graph| Replay::without_results(graph, written, draws).launch_first(device));
                resume_unwind(panic)
            }
        }
    }

    /// Whether a launch still does what the step would do.
    fn is_current(&self) -> bool {
        self.draws.as_ref().is_none_or(Draws::are_current)
    }

    /// The launch that follows the capture.
    fn launch_first(&mut self, device: &CudaDevice) -> Result<O> {
        self.draws.as_mut().map_or(Ok(()), Draws::begin)?;
        self.launch(device)
    }

    /// A later launch.
    fn relaunch(&mut self, device: &CudaDevice) -> Result<O> {
        self.outputs.detach_results(device)?;
        self.draws.as_ref().map_or(Ok(()), Draws::draw_again)?;
        self.launch(device)
    }

    fn launch(&self, device: &CudaDevice) -> Result<O> {
        let stream = device.stream();
        let launched = profiler::on_stream(NAME, || stream.clone(), || self.graph.launch(&stream));
        launched.map_err(|source| Error::cuda(NAME, source))?;
        self.written.iter().for_each(|storage| storage.note_write());
        Ok(self.outputs.tensors.clone())
    }
}

impl<O: Tensors> Outputs<O> {
    /// From the results of a capture and the storages that it writes; returns those of the latter that the program can
    /// see.
    fn new(tensors: O, mut written: Vec<StorageRef>) -> (Self, Vec<StorageRef>) {
        let mut storages: Vec<StorageRef> = Vec::new();
        visit(&tensors, &mut |output| storages.push(output.storage.clone()));
        let sharing = storages.iter().map(|storage| {
            let of_results = storages.iter().filter(|other| other.is(storage)).count();
            let of_written = written.iter().filter(|other| other.is(storage)).count();
            // Each result is in `tensors` and in `storages`.
            if storage.handles() == Some(2 * of_results + of_written) { of_results } else { 0 }
        });
        let sharing: Vec<usize> = sharing.collect();
        let is_own =
            |storage: &StorageRef| zip(&storages, &sharing).any(|(result, &sharing)| sharing > 0 && result.is(storage));
        written.retain(|storage| !storage.is_unique() && !is_own(storage));
        (Self { tensors, sharing }, written)
    }

    /// Moves the results that the program still holds to other memory. After an error, results that share a storage
    /// still do.
    fn detach_results(&mut self, device: &CudaDevice) -> Result<()> {
        let mut sharing = self.sharing.iter();
        let mut moved: Vec<[StorageRef; 2]> = Vec::new(); // from where, and where to
        let mut outcome = Ok(());
        self.tensors.visit_mut(&mut |output| {
            let Some(&sharing) = sharing.next() else { return Ok(()) };
            let is_held = output.storage.handles().is_some_and(|handles| sharing > 0 && handles > sharing);
            if let Some([_, to]) = moved.iter().find(|[from, _]| from.is(&output.storage)) {
                output.storage = to.clone();
            } else if is_held && outcome.is_ok() {
                match output.storage.with_other_memory(device) {
                    Ok(to) => moved.push([std::mem::replace(&mut output.storage, to.clone()), to]),
                    Err(error) => outcome = Err(error),
                }
            }
            Ok(())
        })?;
        outcome
    }
}

const NAME: &str = "captured step";
