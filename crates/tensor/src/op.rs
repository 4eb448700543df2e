//! The contract of operations, and the one function that runs them.
//!
//! An operation is a value: its struct holds what is not differentiated (geometry, indices), its inputs are tensors
//! that can have a gradient. [`Op`] has kernels of its own; [`View`] only changes the layout. [`apply`] and [`apply_view`]
//! check, allocate, run and record; nothing else in the crate does.

use crate::autograd::{self, Saved};
use crate::cpu::CpuView;
use crate::element::Element;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::Shape;
use crate::storage::{Fresh, lock_order};
use crate::tensor::{Tensor, view};

/// Which tensors `backward` will ask for; anything else is freed as soon as the user drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saves {
    Nothing,
    Inputs,
    Output,
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

    /// The result's shape: the only place where shapes are rejected.
    fn out_shape(&self, inputs: [&Shape; N]) -> Result<Shape>;

    /// Computes every element of `out`, which is contiguous and holds unspecified values.
    /// Fails only on what shapes cannot tell, such as an index out of range.
    fn cpu(&self, inputs: [CpuView<'_, T>; N], out: &mut [Self::Out]) -> Result<()>;

    /// The gradient of each input, given that of the output; `None` where there is none or none is needed
    /// ([`Saved::needs`]). Gradients of broadcast inputs may have the output's shape: they are summed down elsewhere.
    fn backward(&self, saved: &Saved<'_, T, Self::Out, N>, grad: &Tensor<Self::Out>) -> Result<[Option<Tensor<T>>; N]>;
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

/// Runs an operation: check, allocate, compute, record.
pub(crate) fn apply<T: Element, O: Op<T, N>, const N: usize>(op: O, inputs: [&Tensor<T>; N]) -> Result<Tensor<O::Out>> {
    let shape = op.out_shape(inputs.map(Tensor::shape))?;
    let prepared;
    let inputs = match O::INPUTS {
        Inputs::WithoutGaps if !inputs.iter().all(|input| input.is_contiguous()) => {
            prepared = stand_ins(inputs, Tensor::gap_free)?;
            prepared.each_ref()
        }
        Inputs::Broadcast if !inputs.iter().all(|input| *input.shape() == shape) => {
            prepared = stand_ins(inputs, |input| input.broadcast_to(O::NAME, shape))?;
            prepared.each_ref()
        }
        _ => inputs,
    };
    let mut out = Fresh::<O::Out>::allocate(O::NAME, shape)?;
    run(&op, inputs, &mut out)?;
    Ok(autograd::record(op, inputs, Tensor::from_fresh(out)))
}

/// Inputs in another form, each at its place in the graph: gradients of broadcast ones are summed down there.
fn stand_ins<T: Element, const N: usize>(
    inputs: [&Tensor<T>; N],
    form: impl Fn(&Tensor<T>) -> Result<Tensor<T>>,
) -> Result<[Tensor<T>; N]> {
    let mut forms = inputs.map(Clone::clone);
    for (stand_in, input) in forms.iter_mut().zip(inputs) {
        *stand_in = form(input)?.with_node(input.node().cloned());
    }
    Ok(forms)
}

/// Locks each input's storage once, however many inputs share it, and runs the kernel.
fn run<T: Element, O: Op<T, N>, const N: usize>(
    op: &O,
    inputs: [&Tensor<T>; N],
    out: &mut Fresh<O::Out>,
) -> Result<()> {
    let first = first_of_storage(inputs);
    let mut locks = [const { None }; N];
    for i in lock_order(inputs.map(Tensor::storage)) {
        locks[i] = (first[i] == i).then(|| inputs[i].read());
    }
    let views = std::array::from_fn(|i| match &locks[first[i]] {
        Some(lock) => view(lock, inputs[i].layout()),
        None => unreachable!("the first of the inputs that share a storage locks it"),
    });
    op.cpu(views, out.elements())
}

/// For each tensor, the position of the first that shares its storage: the one to lock.
pub(crate) fn first_of_storage<T: Element, const N: usize>(tensors: [&Tensor<T>; N]) -> [usize; N] {
    std::array::from_fn(|i| (0..i).find(|&j| tensors[j].shares_storage(tensors[i])).unwrap_or(i))
}

/// Makes a view: check, share, record.
pub(crate) fn apply_view<T: Element, V: View<T>>(op: V, input: &Tensor<T>) -> Result<Tensor<T>> {
    let out = input.with_layout(op.layout(input.layout())?);
    Ok(autograd::record_view(op, input, out))
}
