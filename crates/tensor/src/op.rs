//! The contract of operations, and the one function that runs them.
//!
//! An operation is a value: its struct holds what is not differentiated (geometry, indices), its inputs are tensors
//! that can have a gradient. [`Op`] has kernels of its own; [`View`] only changes the layout. [`apply`] and [`apply_view`]
//! check, allocate, run and record; nothing else in the crate does.

use crate::autograd::{self, Saved};
use crate::cpu::CpuView;
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::{Device, common_device};
use crate::element::{DType, Element};
use crate::error::Result;
use crate::heap;
use crate::layout::Layout;
use crate::shape::Shape;
use crate::storage::{Fresh, FreshCuda, Locked, StorageRef, lock_order};
use crate::tensor::{Raw, Tensor};

/// Which tensors `backward` will ask for; anything else is freed as soon as the user drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saves {
    Nothing,
    Inputs,
    Output,
    /// The inputs, but in place of the last one the output.
    OutputForLast,
}

/// How a kernel wants its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// With whatever strides they have.
    AsTheyAre,
    /// Copied where they have gaps.
    WithoutGaps,
    /// Expanded to the result's shape.
    Broadcast,
}

/// An operation on `N` tensors of `T` that makes one tensor of `Out`.
pub(crate) trait Op<T: Element, const N: usize>: Send + Sync + Sized + 'static {
    /// The element type of the result.
    type Out: Element;
    /// The name in errors, profiles and graphs: that of the method.
    const NAME: &'static str;
    const SAVES: Saves;
    /// What `apply` does to the inputs before the kernel sees them.
    const INPUTS: Inputs = Inputs::AsTheyAre;
    /// Whether each element is computed from those at its place, so that `cuda` takes an output of any strides.
    const IS_ELEMENTWISE: bool = false;

    /// The result's shape: the only place where shapes are rejected.
    fn out_shape(&self, inputs: [&Shape; N]) -> Result<Shape>;

    /// Computes every element of `out`, which is contiguous and holds unspecified values.
    /// Fails only on what shapes cannot tell, such as an index out of range.
    fn cpu(&self, inputs: [CpuView<'_, T>; N], out: &mut [Self::Out]) -> Result<()>;

    /// The same on a device, queued on its stream: `out` is contiguous, unless [`IS_ELEMENTWISE`](Self::IS_ELEMENTWISE), and
    /// holds unspecified values.
    ///
    /// The inputs are on the device and are elements of `T`, which is known as [`CudaView::dtype`]: what is written here
    /// is compiled once for each type, so it should only pass things on.
    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; N], out: CudaOut<'_>) -> Result<()>;

    /// The gradient of each input, given that of the output; `None` where there is none or none is needed
    /// ([`Saved::needs`]). Gradients of broadcast inputs may have the output's shape: they are summed down elsewhere.
    fn backward(&self, saved: &Saved<'_, T, Self::Out, N>, grad: &Tensor<Self::Out>) -> Result<[Option<Tensor<T>>; N]>;

    /// [`backward`](Self::backward), unrecorded, if the gradient of the output is 1 and nobody needs that as a tensor; `None`
    /// if that saves nothing.
    fn backward_of_one(&self, _: &Saved<'_, T, Self::Out, N>) -> Option<Result<[Option<Tensor<T>>; N]>> {
        None
    }
}

/// An operation that shows the elements of its input differently, without touching them.
pub(crate) trait View<T: Element>: Send + Sync + Sized + 'static {
    /// The name in errors, profiles and graphs.
    const NAME: &'static str;

    /// The result's layout; rejects arguments that do not fit the input's.
    fn layout(&self, input: &Layout) -> Result<Layout>;

    /// The gradient of the input (of shape `input`), given that of the output.
    fn backward(&self, input: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>>;
}

/// An operation that is compiled in this crate, for every element type that it has; written by [`per_type!`].
pub(crate) trait PerType<const N: usize>: Sized {
    /// [`apply_as`] for the element type `dtype`, which is that of the inputs.
    fn apply_to(self, dtype: DType, inputs: [&Raw; N]) -> Result<Raw>;
}

/// `per_type! { Exp[1]: Float }`: the operation `Exp` of one tensor is compiled for every type that is `Float`.
macro_rules! per_type {
    ($op:ty[$n:literal]: Element) => { $crate::op::per_type! { $op[$n]: [f32 F32, f64 F64, f16 F16, bf16 BF16, i64 I64, i32 I32, u8 U8, bool Bool] } };
    ($op:ty[$n:literal]: Num) => { $crate::op::per_type! { $op[$n]: [f32 F32, f64 F64, f16 F16, bf16 BF16, i64 I64, i32 I32, u8 U8] } };
    ($op:ty[$n:literal]: Float) => { $crate::op::per_type! { $op[$n]: [f32 F32, f64 F64, f16 F16, bf16 BF16] } };
    ($op:ty[$n:literal]: [$($element:ident $dtype:ident),+]) => {
        impl $crate::op::PerType<$n> for $op {
            fn apply_to(self, dtype: $crate::element::DType, inputs: [&$crate::tensor::Raw; $n]) -> $crate::error::Result<$crate::tensor::Raw> {
                #[allow(unused_imports, reason = "not every operation has the half types")]
                use half::{bf16, f16};
                match dtype {
                    $($crate::element::DType::$dtype => $crate::op::apply_as::<$element, Self, $n>(self, inputs),)+
                    #[allow(unreachable_patterns, reason = "some operations have every element type")]
                    other => unreachable!("the operation's bound excludes {other}"),
                }
            }
        }
    };
}
pub(crate) use per_type;

/// Runs an operation: check, allocate, compute, record.
pub(crate) fn apply<T, O, const N: usize>(op: O, inputs: [&Tensor<T>; N]) -> Result<Tensor<O::Out>>
where
    T: Element,
    O: Op<T, N> + PerType<N>,
{
    op.apply_to(T::DTYPE, inputs.map(Tensor::raw)).map(Raw::typed)
}

/// [`apply`] where the element type is known. Compiled for each operation and type, so what need not be is elsewhere.
pub(crate) fn apply_as<T: Element, O: Op<T, N>, const N: usize>(op: O, inputs: [&Raw; N]) -> Result<Raw> {
    let device = common_device(O::NAME, &inputs)?;
    let shape = op.out_shape(inputs.map(Raw::shape))?;
    let prepared = match O::INPUTS {
        Inputs::AsTheyAre => None,
        Inputs::WithoutGaps => without_gaps::<T, N>(inputs)?,
        Inputs::Broadcast => broadcast(O::NAME, inputs, &shape)?,
    };
    let inputs = prepared.as_ref().map_or(inputs, <[Raw; N]>::each_ref);
    let out = match device {
        Device::Cpu => {
            let mut out = Fresh::<O::Out>::allocate(O::NAME, shape)?;
            run(inputs, &mut |locks, first| {
                op.cpu(std::array::from_fn(|i| locked(locks, first[i]).cpu(&inputs[i].layout)), out.elements())
            })?;
            Tensor::from_fresh(out)
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate(O::NAME, shape, O::Out::DTYPE, device, cuda)?;
            if O::IS_ELEMENTWISE && keeps_channels_last(inputs, &shape) {
                out = out.laid(Layout::channels_last(shape));
            }
            on_cuda(inputs, &mut |views| op.cuda(cuda, views, out.out()))
                .map_err(|error| error.with_inputs(&inputs))?;
            Tensor::from_fresh_cuda(out)
        }
    };
    Ok(autograd::record::<T, O, N>(op, inputs, out.into_raw()))
}

/// Whether the inputs, but those that are repeated, have the channels of a pixel next to each other, so that the output
/// should.
fn keeps_channels_last<const N: usize>(inputs: [&Raw; N], shape: &Shape) -> bool {
    let is_last = |input: &Raw| input.shape() == shape && input.layout.is_channels_last();
    let is_one = inputs.iter().any(|input| !input.layout.is_contiguous() && is_last(input));
    is_one && inputs.iter().all(|input| is_last(input) || input.layout.overlaps())
}

/// The inputs as contiguous tensors, unless they all are.
fn without_gaps<T: Element, const N: usize>(inputs: [&Raw; N]) -> Result<Option<[Raw; N]>> {
    if inputs.iter().all(|input| input.layout.is_contiguous()) {
        return Ok(None);
    }
    stand_ins(inputs, &|input| Ok(input.clone().typed::<T>().gap_free()?.into_raw())).map(Some)
}

/// The inputs expanded to `shape`, unless they all have it.
fn broadcast<const N: usize>(op: &'static str, inputs: [&Raw; N], shape: &Shape) -> Result<Option<[Raw; N]>> {
    if inputs.iter().all(|input| input.shape() == shape) {
        return Ok(None);
    }
    stand_ins(inputs, &|input| input.broadcast_to(op, shape)).map(Some)
}

/// Inputs in another form, each at its place in the graph: gradients of broadcast ones are summed down there.
fn stand_ins<const N: usize>(inputs: [&Raw; N], form: &dyn Fn(&Raw) -> Result<Raw>) -> Result<[Raw; N]> {
    let mut forms = inputs.map(Clone::clone);
    for (stand_in, input) in forms.iter_mut().zip(inputs) {
        *stand_in = Raw { node: input.node.clone(), ..form(input)? };
    }
    Ok(forms)
}

/// Locks each input's storage once, however many inputs share it, and runs the kernel.
fn run<const N: usize>(
    inputs: [&Raw; N],
    kernel: &mut dyn FnMut(&[Option<Locked<'_>>; N], [usize; N]) -> Result<()>,
) -> Result<()> {
    let storages = inputs.map(|input| &input.storage);
    let first = first_of_storage(storages);
    let mut locks = [const { None }; N];
    for i in lock_order(storages) {
        locks[i] = (first[i] == i).then(|| inputs[i].storage.lock());
    }
    kernel(&locks, first)
}

/// [`run`] for kernels of a device, which do not depend on the element type.
fn on_cuda<const N: usize>(inputs: [&Raw; N], kernel: &mut dyn FnMut([CudaView<'_>; N]) -> Result<()>) -> Result<()> {
    run(inputs, &mut |locks, first| {
        kernel(std::array::from_fn(|i| locked(locks, first[i]).cuda(&inputs[i].layout, inputs[i].dtype())))
    })
}

/// The lock of the storage that input number `first` is the first to use.
pub(crate) fn locked<'a, 'l, const N: usize>(locks: &'a [Option<Locked<'l>>; N], first: usize) -> &'a Locked<'l> {
    let lock = locks[first].as_ref();
    lock.unwrap_or_else(|| unreachable!("the first of the inputs that share a storage locks it"))
}

/// For each storage, the position of the first that is the same: the one to lock.
pub(crate) fn first_of_storage<const N: usize>(storages: [&StorageRef; N]) -> [usize; N] {
    std::array::from_fn(|i| (0..i).find(|&j| storages[j].is(storages[i])).unwrap_or(i))
}

/// Makes a view: check, share, record.
pub(crate) fn apply_view<T: Element, V: View<T>>(op: V, input: &Tensor<T>) -> Result<Tensor<T>> {
    heap::check_for_node(V::NAME)?;
    let out = input.with_layout(op.layout(input.layout())?);
    Ok(autograd::record_view(op, input, out))
}
