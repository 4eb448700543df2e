//! [`CapturedStep`]: a step of a training loop that a device is given once, and then does again with new inputs.
//!
//! The first calls run eagerly. Then a call is taken down for a graph (`pagelock_cuda::Graph`): operations find the
//! capturing stream in the place of their device's (`CudaDevice::stream`), so they queue and allocate there, and nothing
//! else about them changes. From then on a call copies its inputs to where the graph reads them, and launches it.
//!
//! Invariants: what the graph uses is kept by the graph; a result that somebody still has is never written again
//! (`Outputs`).

mod current;
mod tensors;

use pagelock_cuda::{Graph, Shared};

use self::current::{Draws, Taken};
pub(crate) use self::current::{note_write, refuse, stream_on, with_shift};
pub use self::tensors::Tensors;
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::storage::StorageRef;

/// A step of a loop, done again and again with inputs of the same shapes: on a GPU at the price of one launch.
///
/// [`run`](CapturedStep::run) gives what the step returns, as if it was called each time. On a GPU the first two calls
/// with inputs of some shapes do call it; the third takes down what the step asks of the GPU, and all later ones let the
/// GPU do that again: the same kernels with the same arguments, so the same bits. Each shape has a step of its own, so a
/// last batch that is smaller needs nothing special. On the CPU every call calls the step.
///
/// What this means for the step:
/// - Tensors that it changes, such as parameters and what an optimizer keeps, are changed by every call, and can be
///   read, changed and saved in between. They must stay the same tensors: a model that was moved to another device needs
///   a new `CapturedStep`.
/// - What it decides on the host is decided once: loops, conditions, numbers that become arguments of operations,
///   `train` or `eval`. [`forget`](CapturedStep::forget) lets it decide again.
/// - What needs the host is refused while it is taken down: reading an element (`item`), copies to and from the GPU.
///   Return what is to be read. Random numbers are those of the default generator, which goes on from call to call.
/// - Its results have no gradient.
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
/// assert!(loss.item()? < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct CapturedStep<I: Tensors, O: Tensors> {
    device: Device,
    by_shape: Vec<ByShape<I, O>>,
}

/// The step for inputs of some shapes.
struct ByShape<I: Tensors, O: Tensors> {
    slots: I,
    state: State<O>,
}

enum State<O: Tensors> {
    /// So many calls until one is taken down: the first ones compile kernels and make what is made once.
    Eager(usize),
    Captured(Box<Replay<O>>),
}

/// What was taken down.
struct Replay<O: Tensors> {
    graph: Graph<Shared>,
    outputs: Outputs<O>,
    /// What it changes in place and somebody else has.
    written: Vec<StorageRef>,
    draws: Option<Draws>,
}

/// What the graph writes and the step returns.
///
/// Whoever keeps a result keeps its values: before the next launch its storage gets other memory, with a copy, and the
/// graph's memory a new storage. A result that is also something else, such as a parameter, stays that.
struct Outputs<O: Tensors> {
    tensors: O,
    is_own: Vec<bool>, // of each, whether nobody else had it when the step returned it
}

/// Eager calls before one is taken down: the first may make what an optimizer keeps, the second is like all later ones.
const EAGER_CALLS: usize = 2;

/// Shapes for which a step is taken down; others stay eager.
const MOST_SHAPES: usize = 8;

impl<I: Tensors, O: Tensors> CapturedStep<I, O> {
    /// For steps on that device, to which inputs are copied if they are elsewhere.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), by_shape: Vec::new() }
    }

    /// What `step` returns for these inputs, by calling it or by doing again what it did.
    ///
    /// # Errors
    /// Those of `step`; [`Error::Captured`] if it asks for something that cannot be taken down;
    /// [`Error::DeviceMemory`], [`Error::Cuda`].
    pub fn run<E: From<Error>>(&mut self, inputs: I, step: impl FnOnce(&I) -> Result<O, E>) -> Result<O, E> {
        let Device::Cuda(cuda) = &self.device else { return Ok(step(&inputs.on(&self.device)?)?.detached()) };
        let Some(known) = self.by_shape.iter().position(|known| inputs.fits(&known.slots)) else {
            if self.by_shape.len() < MOST_SHAPES {
                let slots = inputs.slots_on(&self.device)?;
                self.by_shape.push(ByShape { slots, state: State::Eager(EAGER_CALLS - 1) });
            }
            return Ok(step(&inputs.on(&self.device)?)?.detached());
        };
        let ByShape { slots, state } = &mut self.by_shape[known];
        if let State::Eager(left @ 1..) = state {
            *left -= 1;
            return Ok(step(&inputs.on(&self.device)?)?.detached());
        }
        inputs.copy_to(slots)?;
        if let State::Captured(replay) = state
            && replay.draws.as_ref().is_none_or(Draws::are_current)
        {
            replay.outputs.leave_to_others(cuda)?;
            replay.draws.as_ref().map_or(Ok(()), Draws::go_on)?;
            return Ok(replay.launch(cuda)?);
        }
        let mut replay = Replay::capture(cuda, || step(slots))?;
        replay.draws.as_mut().map_or(Ok(()), Draws::begin)?;
        let results = replay.launch(cuda)?;
        *state = State::Captured(Box::new(replay));
        Ok(results)
    }

    /// Forgets what was taken down: the next calls call the step again.
    pub fn forget(&mut self) {
        self.by_shape.clear();
    }

    /// Whether the step for such inputs was taken down.
    pub fn is_captured(&self, inputs: &I) -> bool {
        let known = self.by_shape.iter().find(|known| inputs.fits(&known.slots));
        known.is_some_and(|known| matches!(known.state, State::Captured(_)))
    }
}

impl<O: Tensors> Replay<O> {
    fn capture<E: From<Error>>(device: &CudaDevice, step: impl FnOnce() -> Result<O, E>) -> Result<Self, E> {
        let Taken { recording, result, written, draws } = current::capture(device, step)?;
        let outputs = result.detached();
        drop(result);
        let graph = recording.shared().map_err(|source| Error::cuda(NAME, source))?;
        let mut is_own = Vec::new();
        outputs.visit(&mut |output| is_own.push(output.is_unique()));
        // What nobody else has is the graph's own business.
        let written = written.into_iter().filter(|storage| !storage.is_unique()).collect();
        Ok(Self { graph, outputs: Outputs { tensors: outputs, is_own }, written, draws })
    }

    fn launch(&self, device: &CudaDevice) -> Result<O> {
        self.graph.launch(&device.stream()).map_err(|source| Error::cuda(NAME, source))?;
        self.written.iter().for_each(|storage| storage.note_write());
        Ok(self.outputs.tensors.clone())
    }
}

impl<O: Tensors> Outputs<O> {
    /// Gives other memory to those that somebody has.
    fn leave_to_others(&mut self, device: &CudaDevice) -> Result<()> {
        let mut is_own = self.is_own.iter();
        self.tensors.visit_mut(&mut |output| {
            if is_own.next() == Some(&true) && !output.is_unique() { output.leave_to_others(device) } else { Ok(()) }
        })
    }
}

const NAME: &str = "captured step";
