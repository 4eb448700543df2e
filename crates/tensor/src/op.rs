//! How operations run: the traits that describe an operation, and the one function that runs and records it.
//!
//! An operation is a value: its struct holds the arguments that are not differentiated (geometry, indices), its
//! inputs are the tensors that can have a gradient. [`Op`] describes how it runs, and [`CpuKernel`] its kernel on the
//! CPU for one computing type; [`Derivative`] describes how the result is differentiated; a [`View`] only changes the
//! layout. [`apply`] and [`apply_view`] check, convert, allocate, run and record. Operations with optional inputs,
//! and those with a kernel for one device alone, call the parts of `apply`: [`prepared`], [`on_cpu`] or [`on_cuda`],
//! and [`record`](autograd::record).
//!
//! Precision is a value: `apply` brings inputs of different precision to one ([`Precision`]), and [`per_type!`]
//! chooses the kernel. Kernels are compiled here, once for each computing type, and never in the crates of users.

use arrayvec::ArrayVec;
use bytemuck::Pod;
use pagelock_memory::{Holder, HolderScope};

use crate::autocast;
use crate::autograd::{self, Saved};
use crate::cpu::{CpuView, Stored, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::{Device, common_device};
use crate::element::{Computing, DType, Element};
use crate::error::{Error, Result};
use crate::heap;
use crate::inlined::{Array, from_fn};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::memory_order::{in_order, order_of_result};
use crate::profiler;
use crate::shape::Shape;
use crate::storage::{Fresh, FreshCuda, Locked, StorageRef, lock_order};
use crate::tensor::{Raw, Tensor};

/// Which tensors `backward` needs; all others are freed as soon as the user drops them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saves {
    Nothing,
    Inputs,
    /// Each input for which another input needs a gradient.
    OtherInputs,
    Output,
    /// The inputs, with the output in place of the last one.
    OutputForLast,
}

/// The form in which a kernel takes its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// With whatever strides they have.
    AsTheyAre,
    /// Copied where they have gaps.
    WithoutGaps,
    /// Expanded to the result's shape.
    Broadcast,
}

/// The precision in which an operation is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// That of the inputs, which must be the same for all.
    Same,
    /// The widest of the inputs' ([`DType::wider`]).
    Widest,
    /// The computing type of the first input. Other inputs stay in that precision, or in the first input's.
    Computing,
    /// As [`Same`](Self::Same); under autocast in half precision.
    HalfUnderAutocast,
    /// As [`Same`](Self::Same); under autocast in `f32`, if the inputs are narrower.
    F32UnderAutocast,
}

/// An operation on `N` tensors of one kind, and how it runs.
pub(crate) trait Op<const N: usize>: PerType<N> + Sized {
    /// The name in errors, profiles and graphs: that of the method.
    const NAME: &'static str;
    /// What is done to the inputs before the kernel sees them.
    const INPUTS: Inputs = Inputs::AsTheyAre;
    /// How inputs of different precision are converted, and what autocast does.
    const PRECISION: Precision = Precision::Same;
    /// Whether each element is computed from those at the same index, so that `cuda` takes an output of any strides.
    const IS_ELEMENTWISE: bool = false;

    /// The result's shape: by default that of the first input, or to which all broadcast. Only this rejects shapes.
    fn out_shape(&self, inputs: [&Shape; N]) -> Result<Shape> {
        let broadcast = if let Inputs::Broadcast = Self::INPUTS { &inputs[1..] } else { &[] };
        broadcast.iter().try_fold(*inputs[0], |shape, input| Shape::broadcast(Self::NAME, &shape, input))
    }

    /// The number of floating-point operations, for profiles; only products count theirs.
    fn flops(&self, _: [&Shape; N]) -> u64 {
        0
    }

    /// The element type of the result on a device; `usual` is that of [`CpuKernel`].
    fn cuda_dtype(&self, usual: DType) -> DType {
        usual
    }

    /// Queues what [`CpuKernel::cpu`] computes on a device's stream. `out` is contiguous, unless
    /// [`IS_ELEMENTWISE`](Self::IS_ELEMENTWISE), and holds unspecified values. The inputs are on the device.
    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; N], out: CudaOut<'_>) -> Result<()>;
}

/// How the result of an operation on `N` tensors is differentiated; inputs may be optional.
pub(crate) trait Derivative<const N: usize>: Send + Sync + Sized + 'static {
    const SAVES: Saves = Saves::Nothing;
    /// Whether `backward` also takes the gradient of an `f32` result in half precision, which saves widening it.
    const TAKES_HALF_GRADIENTS: bool = false;

    /// The gradient of each input, given that of the output; `None` where there is none or none is needed
    /// ([`Saved::needs`]). Gradients of broadcast inputs may have the output's shape: they are summed down elsewhere.
    fn backward(&self, saved: &Saved<'_, N>, grad: &Tensor) -> Result<[Option<Tensor>; N]>;

    /// [`backward`](Self::backward) for an output whose gradient is 1, if nobody needs that as a tensor. It is not
    /// recorded. `None` if this saves nothing.
    fn backward_of_one(&self, _: &Saved<'_, N>) -> Option<Result<[Option<Tensor>; N]>> {
        None
    }
}

/// How an operation is computed on the CPU, for inputs that compute in `C`: half types are widened and rounded on the way.
pub(crate) trait CpuKernel<C: Computing, const N: usize> {
    /// The computing type of the result. If it is `C`, the result has the inputs' type, unless
    /// [`IS_WIDE`](Self::IS_WIDE).
    type Out: Computing;
    /// Whether the result is of the computing type even if the inputs are halves.
    const IS_WIDE: bool = false;

    /// Computes every element of `out`, which is contiguous and holds unspecified values.
    /// Fails only for reasons that shapes do not show, such as an index out of range.
    fn cpu(&self, inputs: [CpuView<'_, C>; N], out: StoredMut<'_, Self::Out>) -> Result<()>;

    /// The precision of the result.
    fn out_dtype(input: DType) -> DType {
        if Self::Out::DTYPE == C::DTYPE && !Self::IS_WIDE { input } else { Self::Out::DTYPE }
    }
}

/// An operation that shows the elements of its input differently, without touching them.
pub(crate) trait View: Send + Sync + Sized + 'static {
    /// The name in errors, profiles and graphs.
    const NAME: &'static str;

    /// The result's layout; rejects arguments that do not fit the input's.
    fn layout(&self, input: &Layout) -> Result<Layout>;

    /// The gradient of the input (of shape `input`), given that of the output.
    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor>;

    /// The layout of the result's elements in the input, if they are only a part of it. The result's gradient is then
    /// added to that part of the input's gradient.
    fn part(&self, _input: &Layout) -> Option<Result<Layout>> {
        None
    }
}

/// An operation whose kernels are compiled for every computing type that it has; written by [`per_type!`].
pub(crate) trait PerType<const N: usize> {
    /// The element type of the result, for inputs of `input`.
    fn out_dtype(&self, input: DType) -> DType;

    /// Runs the kernel for the inputs' computing type.
    fn run_on_cpu(&self, inputs: &LockedInputs<'_, N>, out: &mut Fresh) -> Result<()>;
}

/// `per_type! { Exp[1]: Real }`: the operation `Exp` of one tensor is compiled for every computing type that is `Real`.
macro_rules! per_type {
    ($op:ty[$n:literal]: Num) => { $crate::op::per_type! { $op[$n]: [f32 F32, f64 F64, i64 I64, i32 I32, u8 U8] } };
    ($op:ty[$n:literal]: Real) => { $crate::op::per_type! { $op[$n]: [f32 F32, f64 F64] } };
    ($op:ty[$n:literal]: [$($element:ident $dtype:ident),+]) => {
        impl $crate::op::PerType<$n> for $op {
            fn out_dtype(&self, input: $crate::element::DType) -> $crate::element::DType {
                match input.computing() {
                    $($crate::element::DType::$dtype => <Self as $crate::op::CpuKernel<$element, $n>>::out_dtype(input),)+
                    other => unreachable!("the operation's kind excludes {other}"),
                }
            }

            fn run_on_cpu(&self, inputs: &$crate::op::LockedInputs<'_, $n>, out: &mut $crate::storage::Fresh) -> $crate::error::Result<()> {
                match inputs.dtype().computing() {
                    $($crate::element::DType::$dtype => {
                        $crate::op::CpuKernel::<$element, $n>::cpu(self, inputs.views(), out.stored())
                    })+
                    other => unreachable!("the operation's kind excludes {other}"),
                }
            }
        }
    };
}
pub(crate) use per_type;

/// An operation that moves elements on the CPU, as bits `B`. The result has the input's precision.
pub(crate) trait Mover {
    /// As [`CpuKernel::cpu`].
    fn cpu<B: Pod + Send + Sync>(&self, x: CpuView<'_, B>, out: &mut [B]) -> Result<()>;
}

/// `by_size! { Contiguous }`: an operation that only moves elements is compiled for every size of them.
macro_rules! by_size {
    ($op:ty) => {
        impl $crate::op::PerType<1> for $op {
            fn out_dtype(&self, input: $crate::element::DType) -> $crate::element::DType {
                input
            }

            fn run_on_cpu(&self, inputs: &$crate::op::LockedInputs<'_, 1>, out: &mut $crate::storage::Fresh) -> $crate::error::Result<()> {
                $crate::tensor::by_bits!(inputs.dtype(), B => {
                    let [x] = inputs.bits::<B>();
                    $crate::op::Mover::cpu(self, x, out.bits())
                })
            }
        }
    };
}
pub(crate) use by_size;

/// Runs an operation: check, convert, allocate, compute, record.
pub(crate) fn apply<K: Kind, O: Op<N> + Derivative<N>, const N: usize>(
    op: O,
    inputs: [&Tensor<K>; N],
) -> Result<Tensor<K>> {
    apply_raw(op, inputs.mapped(Tensor::raw)).map(Raw::typed)
}

/// [`apply`] where the result is of another kind.
pub(crate) fn apply_into<R: Kind, K: Kind, O: Op<N> + Derivative<N>, const N: usize>(
    op: O,
    inputs: [&Tensor<K>; N],
) -> Result<Tensor<R>> {
    apply_raw(op, inputs.mapped(Tensor::raw)).map(Raw::typed)
}

/// [`apply`] of tensors without their kind.
pub(crate) fn apply_raw<O: Op<N> + Derivative<N>, const N: usize>(op: O, inputs: [&Raw; N]) -> Result<Raw> {
    let converted = in_one_precision(O::NAME, O::PRECISION, inputs)?;
    let inputs = converted.as_ref().map_or(inputs, <[Raw; N]>::each_ref);
    let (prepared, out) = compute(&op, inputs)?;
    let inputs = prepared.as_ref().map_or(inputs, <[Raw; N]>::each_ref);
    Ok(autograd::record(O::NAME, op, inputs.mapped(Some), out))
}

/// Runs an operation that is never recorded, because its result has no gradient or is a gradient that nobody differentiates.
pub(crate) fn run_unrecorded<O: Op<N>, const N: usize>(op: &O, inputs: [&Raw; N]) -> Result<Raw> {
    let converted = in_one_precision(O::NAME, O::PRECISION, inputs)?;
    let (_, out) = compute(op, converted.as_ref().map_or(inputs, <[Raw; N]>::each_ref))?;
    autograd::is_recorded(O::NAME, inputs.iter().map(|input| input.node.as_ref()), out.dtype()); // for a running audit
    Ok(out)
}

/// What [`compute`] needs of an operation, so that it is compiled once for each number of inputs.
trait Compute<const N: usize> {
    /// Name, form of the inputs, and whether it is elementwise.
    fn properties(&self) -> (&'static str, Inputs, bool);
    fn out_shape(&self, inputs: [&Shape; N]) -> Result<Shape>;
    fn out_dtype(&self, input: DType) -> DType;
    fn flops(&self, inputs: [&Shape; N]) -> u64;
    fn cuda_dtype(&self, usual: DType) -> DType;
    fn cpu(&self, inputs: &LockedInputs<'_, N>, out: &mut Fresh) -> Result<()>;
    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; N], out: CudaOut<'_>) -> Result<()>;
}

impl<O: Op<N>, const N: usize> Compute<N> for O {
    fn properties(&self) -> (&'static str, Inputs, bool) {
        (O::NAME, O::INPUTS, O::IS_ELEMENTWISE)
    }

    fn out_shape(&self, inputs: [&Shape; N]) -> Result<Shape> {
        Op::out_shape(self, inputs)
    }

    fn out_dtype(&self, input: DType) -> DType {
        PerType::out_dtype(self, input)
    }

    fn flops(&self, inputs: [&Shape; N]) -> u64 {
        Op::flops(self, inputs)
    }

    fn cuda_dtype(&self, usual: DType) -> DType {
        Op::cuda_dtype(self, usual)
    }

    fn cpu(&self, inputs: &LockedInputs<'_, N>, out: &mut Fresh) -> Result<()> {
        self.run_on_cpu(inputs, out)
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; N], out: CudaOut<'_>) -> Result<()> {
        Op::cuda(self, device, inputs, out)
    }
}

/// Runs an operation, unrecorded. Returns the inputs in the kernel's form, if that differs from theirs, and the
/// result.
fn compute<const N: usize>(op: &dyn Compute<N>, inputs: [&Raw; N]) -> Result<(Option<[Raw; N]>, Raw)> {
    let (name, form, is_elementwise) = op.properties();
    let running = profiler::op(name);
    let given = inputs;
    let device = common_device(name, &inputs)?;
    let shape = op.out_shape(inputs.mapped(Raw::shape))?;
    let prepared = match form {
        Inputs::AsTheyAre => None,
        Inputs::WithoutGaps => without_gaps(inputs)?,
        Inputs::Broadcast => broadcast(name, inputs, &shape)?,
    };
    let inputs = prepared.as_ref().map_or(inputs, <[Raw; N]>::each_ref);
    let dtype = op.out_dtype(inputs[0].dtype());
    let has_other_order = is_elementwise && inputs.iter().any(|input| !input.is_contiguous());
    let order = if has_other_order { order_of_result(inputs, &shape) } else { None };
    let out = match device {
        Device::Cpu if has_other_order => {
            let order = order.as_deref();
            in_order(name, order, inputs, (shape, dtype), &mut |inputs, out| op.cpu(inputs, out))?
        }
        Device::Cpu => on_cpu(name, inputs.mapped(Some), (shape, dtype), &mut |inputs, out| op.cpu(inputs, out))?,
        Device::Cuda(cuda) => {
            let _charged = charged(&inputs.mapped(Some));
            let mut out = FreshCuda::allocate(name, shape, op.cuda_dtype(dtype), device, cuda)?;
            if let Some(order) = &order {
                out = out.with_layout(Layout::in_order(shape, order));
            }
            enqueue(name, cuda, inputs.mapped(Some), out, &mut |inputs, out| op.cuda(cuda, inputs.cuda_views(), out))?
        }
    };
    profiler::count_flops(|| op.flops(inputs.mapped(Raw::shape)));
    running.note_result(&given.mapped(Some), &out, name);
    Ok((prepared, out))
}

/// Runs a kernel of the CPU, unrecorded. Inputs are on the host and may be missing, but for the first one.
pub(crate) fn on_cpu<const N: usize>(
    op: &'static str,
    inputs: [Option<&Raw>; N],
    (shape, dtype): (Shape, DType),
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>, &mut Fresh) -> Result<()>,
) -> Result<Raw> {
    let running = profiler::op(op);
    let _charged = charged(&inputs);
    let mut out = Fresh::allocate(op, shape, dtype)?;
    with_locked(inputs, &mut |inputs| kernel(inputs, &mut out))?;
    let out = out.share();
    running.note_result(&inputs, &out, op);
    Ok(out)
}

/// Queues a kernel on the device of the inputs, unrecorded. A result without elements needs no kernel.
pub(crate) fn on_cuda<const N: usize>(
    op: &'static str,
    cuda: &CudaDevice,
    inputs: [Option<&Raw>; N],
    (shape, dtype): (Shape, DType),
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>, CudaOut<'_>) -> Result<()>,
) -> Result<Raw> {
    on_cuda_in_layout(op, cuda, inputs, (Layout::contiguous(shape), dtype), kernel)
}

/// [`on_cuda`] with a result of this layout, which has no gaps.
pub(crate) fn on_cuda_in_layout<const N: usize>(
    op: &'static str,
    cuda: &CudaDevice,
    inputs: [Option<&Raw>; N],
    (layout, dtype): (Layout, DType),
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>, CudaOut<'_>) -> Result<()>,
) -> Result<Raw> {
    let running = profiler::op(op);
    let device = Device::Cuda(cuda.clone());
    let _charged = charged(&inputs);
    let shape = *layout.shape();
    let out = FreshCuda::allocate(op, shape, dtype, &device, cuda)?.with_layout(layout);
    let out = if shape.elements() == 0 { out.share() } else { enqueue(op, cuda, inputs, out, kernel)? };
    running.note_result(&inputs, &out, op);
    Ok(out)
}

/// Charges the memory of a result whose gradient may be requested to activations, until the scope drops.
fn charged(inputs: &[Option<&Raw>]) -> Option<HolderScope> {
    keeps_for_gradient(inputs).then(|| Holder::ACTIVATIONS.by_default())
}

/// Whether the gradient of a result of these inputs may be requested.
pub(crate) fn keeps_for_gradient(inputs: &[Option<&Raw>]) -> bool {
    autograd::is_grad_enabled() && inputs.iter().flatten().any(|input| input.node.is_some())
}

fn enqueue<const N: usize>(
    op: &'static str,
    cuda: &CudaDevice,
    inputs: [Option<&Raw>; N],
    mut out: FreshCuda<'_>,
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>, CudaOut<'_>) -> Result<()>,
) -> Result<Raw> {
    let enqueued =
        profiler::on_stream(op, || cuda.stream(), || with_locked(inputs, &mut |inputs| kernel(inputs, out.out())));
    enqueued.map_err(|error| error.with_inputs(&inputs))?;
    Ok(out.share())
}

/// Inputs that may be missing, in the form that kernels of rows and images take: on one device, in one precision,
/// without gaps, each with its node in the graph.
pub(crate) fn prepared<const N: usize>(
    op: &'static str,
    precision: Precision,
    inputs: [Option<&Raw>; N],
) -> Result<[Option<Raw>; N]> {
    let given: ArrayVec<&Raw, N> = inputs.into_iter().flatten().collect();
    common_device(op, &given)?;
    let wanted = common_precision(op, precision, &given)?;
    let mut all = inputs.mapped(|input| input.cloned());
    for input in all.iter_mut().flatten() {
        if let Some(dtype) = wanted.filter(|&dtype| dtype != input.dtype()) {
            *input = autocast::converted(input, dtype)?;
        }
        if !input.is_contiguous() {
            *input = input.gap_free_in_graph()?;
        }
    }
    Ok(all)
}

/// The inputs in the precision that the operation is computed in, unless they all have it. Conversions are recorded.
fn in_one_precision<const N: usize>(
    op: &'static str,
    precision: Precision,
    inputs: [&Raw; N],
) -> Result<Option<[Raw; N]>> {
    let Some(wanted) = common_precision(op, precision, &inputs)? else { return Ok(None) };
    if inputs.iter().all(|input| input.dtype() == wanted) {
        return Ok(None);
    }
    let mut converted = inputs.mapped(Clone::clone);
    for input in &mut converted {
        if input.dtype() != wanted {
            *input = autocast::converted(input, wanted)?;
        }
    }
    Ok(Some(converted))
}

/// The precision to which all inputs are converted; `None` if the kernel takes them as they are.
fn common_precision(op: &'static str, precision: Precision, inputs: &[&Raw]) -> Result<Option<DType>> {
    if let Some(wanted) = autocast::wanted(precision, inputs) {
        return Ok(Some(wanted));
    }
    let first = inputs[0].dtype();
    let Some(other) = inputs.iter().find(|input| input.dtype() != first) else { return Ok(None) };
    match precision {
        Precision::Widest => widest(op, inputs).map(Some),
        Precision::Computing => {
            let computing = [first, first.computing()];
            let other = inputs.iter().find(|input| !computing.contains(&input.dtype()));
            other.map_or(Ok(None), |other| Err(mixed(op, first, other.dtype())))
        }
        _ => Err(mixed(op, first, other.dtype())),
    }
}

/// The precision that holds the values of all inputs.
pub(crate) fn widest(op: &'static str, inputs: &[&Raw]) -> Result<DType> {
    let first = inputs.first().map_or(DType::F32, |input| input.dtype());
    inputs.iter().try_fold(first, |wide, input| wide.wider(input.dtype()).ok_or_else(|| mixed(op, wide, input.dtype())))
}

/// The one precision of all inputs; an error if they differ.
pub(crate) fn same_precision(op: &'static str, inputs: &[&Raw]) -> Result<DType> {
    let first = inputs.first().map_or(DType::F32, |input| input.dtype());
    match inputs.iter().find(|input| input.dtype() != first) {
        None => Ok(first),
        Some(other) => Err(mixed(op, first, other.dtype())),
    }
}

fn mixed(op: &'static str, left: DType, right: DType) -> Error {
    Error::MixedTypes { op, left, right, wider: left.wider(right).unwrap_or(left) }
}

/// The inputs of a kernel, locked; some may be missing, the first is not.
pub(crate) struct LockedInputs<'a, const N: usize> {
    inputs: [Option<&'a Raw>; N],
    locks: &'a [Option<Locked<'a>>; N],
    first: [usize; N], // for each input, the one that locked its storage
}

impl<'a, const N: usize> LockedInputs<'a, N> {
    /// `first` says for each input which one locked its storage.
    pub(crate) fn new(inputs: [Option<&'a Raw>; N], locks: &'a [Option<Locked<'a>>; N], first: [usize; N]) -> Self {
        LockedInputs { inputs, locks, first }
    }

    /// The element type of the first input.
    pub(crate) fn dtype(&self) -> DType {
        self.get(0).0.dtype()
    }

    fn get(&self, i: usize) -> (&'a Raw, &'a Locked<'a>) {
        self.find(i).unwrap_or_else(|| unreachable!("input {i} of {N} is there"))
    }

    fn find(&self, i: usize) -> Option<(&'a Raw, &'a Locked<'a>)> {
        let locked = self.locks[self.first[i]].as_ref();
        self.inputs[i].zip(locked)
    }

    /// All inputs as a kernel of the CPU sees them; their computing type is `C`.
    pub(crate) fn views<C: Computing>(&self) -> [CpuView<'_, C>; N] {
        from_fn(|i| self.view(i))
    }

    /// One input as a kernel of the CPU sees it.
    pub(crate) fn view<C: Computing>(&self, i: usize) -> CpuView<'_, C> {
        let (input, locked) = self.get(i);
        locked.stored(&input.layout, input.dtype())
    }

    /// The elements of a contiguous input, if it is present.
    pub(crate) fn data<C: Computing>(&self, i: usize) -> Option<Stored<'_, C>> {
        self.find(i).map(|(input, locked)| locked.stored(&input.layout, input.dtype()).data)
    }

    /// The bits of the elements of all inputs, which have the size of a `B`.
    pub(crate) fn bits<B: Pod>(&self) -> [CpuView<'_, B>; N] {
        from_fn(|i| self.bits_of(i))
    }

    pub(crate) fn bits_of<B: Pod>(&self, i: usize) -> CpuView<'_, B> {
        self.get(i).1.bits(&self.get(i).0.layout)
    }

    /// All inputs as a kernel of a device sees them.
    pub(crate) fn cuda_views(&self) -> [CudaView<'_>; N] {
        from_fn(|i| self.cuda_view(i))
    }

    pub(crate) fn cuda_view(&self, i: usize) -> CudaView<'_> {
        let (input, locked) = self.get(i);
        locked.cuda(&input.layout, input.dtype())
    }

    /// The inputs as a kernel of a device sees them; `None` for those that are missing.
    pub(crate) fn optional_cuda_views(&self) -> [Option<CudaView<'_>>; N] {
        from_fn(|i| self.find(i).map(|(input, locked)| locked.cuda(&input.layout, input.dtype())))
    }
}

/// The inputs as contiguous tensors, unless they all are.
fn without_gaps<const N: usize>(inputs: [&Raw; N]) -> Result<Option<[Raw; N]>> {
    if inputs.iter().all(|input| input.layout.is_contiguous()) {
        return Ok(None);
    }
    stand_ins(inputs, &Raw::gap_free).map(Some)
}

/// The inputs expanded to `shape`, unless they all have it.
fn broadcast<const N: usize>(op: &'static str, inputs: [&Raw; N], shape: &Shape) -> Result<Option<[Raw; N]>> {
    if inputs.iter().all(|input| input.shape() == shape) {
        return Ok(None);
    }
    stand_ins(inputs, &|input| input.broadcast_to(op, shape)).map(Some)
}

/// The inputs in another form, each with its node in the graph, where gradients of broadcast ones are summed.
fn stand_ins<const N: usize>(inputs: [&Raw; N], form: &dyn Fn(&Raw) -> Result<Raw>) -> Result<[Raw; N]> {
    let mut forms = inputs.mapped(Clone::clone);
    for (stand_in, input) in forms.iter_mut().zip(inputs) {
        *stand_in = Raw { node: input.node.clone(), ..form(input)? };
    }
    Ok(forms)
}

/// Locks each input's storage once, however many inputs share it, and runs the kernel.
pub(crate) fn with_locked<const N: usize>(
    inputs: [Option<&Raw>; N],
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>) -> Result<()>,
) -> Result<()> {
    let storages = inputs.mapped(|input| input.map(|input| &input.storage));
    let first = first_of_storage(storages);
    let mut locks = [const { None }; N];
    for i in lock_order(storages) {
        locks[i] = storages[i].filter(|_| first[i] == i).map(|storage| storage.lock());
    }
    kernel(&LockedInputs::new(inputs, &locks, first))
}

/// For each storage, the index of the first input that has the same one: the input that locks it.
pub(crate) fn first_of_storage<const N: usize>(storages: [Option<&StorageRef>; N]) -> [usize; N] {
    let is_same = |i: usize, j: usize| storages[i].zip(storages[j]).is_some_and(|(one, other)| one.is(other));
    from_fn(|i| (0..i).find(|&j| is_same(i, j)).unwrap_or(i))
}

/// Makes a view: check, share, record.
pub(crate) fn apply_view<K: Kind, V: View>(op: V, input: &Tensor<K>) -> Result<Tensor<K>> {
    view_raw(op, input.raw()).map(Raw::typed)
}

/// [`apply_view`] of a tensor without its kind.
pub(crate) fn view_raw<V: View>(op: V, input: &Raw) -> Result<Raw> {
    heap::check_for_node(V::NAME)?;
    let running = profiler::op(V::NAME);
    let out = input.with_layout(op.layout(&input.layout)?);
    running.note_result(&[Some(input)], &out, V::NAME);
    Ok(autograd::record_view(op, input, out))
}
