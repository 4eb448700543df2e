//! Choosing between the elements of two tensors by truth values.

mod cuda;

use super::elementwise::formula;
use crate::autograd::{Saved, SavedTensor, record};
use crate::cpu;
use crate::create::filled;
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::device::{Device, common_device};
use crate::element::{DType, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::kind::{Bool, Kind, Number};
use crate::op::{Derivative, Inputs, LockedInputs, Op, PerType, on_cpu, on_cuda, run_unrecorded, widest};
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor, by_bits, by_computing};

impl<K: Kind> Tensor<K> {
    /// The elements of this tensor where `condition` is true, those of `other` elsewhere; all three broadcast.
    /// PyTorch's `torch.where(condition, self, other)`; `where` is a keyword of Rust.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([-1.0, 2.0])?;
    /// let y = x.where_cond(&x.gt_scalar(0.0)?, &Tensor::zeros(())?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit; [`Error::Memory`](crate::Error::Memory) if the
    /// result does not fit the budget.
    pub fn where_cond(&self, condition: &Tensor<Bool>, other: &Tensor<K>) -> Result<Tensor<K>> {
        where_cond("where", condition.raw(), self.raw(), other.raw()).map(Raw::typed)
    }

    /// The elements, with `value` where `mask` is true. The mask broadcasts.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let scores = Tensor::new([1.0, 2.0])?;
    /// let hidden = scores.masked_fill(&Tensor::new([false, true])?, f32::NEG_INFINITY)?;
    /// assert_eq!(hidden.softmax(0)?.to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::where_cond`].
    pub fn masked_fill(&self, mask: &Tensor<Bool>, value: impl Number<K>) -> Result<Tensor<K>> {
        let value = number_like("masked_fill", self.raw(), value.scalar())?;
        where_cond("masked_fill", mask.raw(), &value, self.raw()).map(Raw::typed)
    }
}

/// A number of shape `[]`, on the device and in the precision of `x`.
pub(crate) fn number_like(op: &'static str, x: &Raw, value: Scalar) -> Result<Raw> {
    filled(x.storage.device(), op, Shape::SCALAR, x.dtype(), value)
}

/// The elements of `yes` where `condition` is true, those of `no` elsewhere, recorded.
pub(crate) fn where_cond(op: &'static str, condition: &Raw, yes: &Raw, no: &Raw) -> Result<Raw> {
    common_device(op, &[condition, yes, no])?;
    let dtype = widest(op, &[yes, no])?;
    let (yes, no) = (yes.converted(dtype)?, no.converted(dtype)?);
    chosen(op, condition, &yes, &no)
}

/// [`choose`] of two tensors in one precision.
fn chosen(op: &'static str, condition: &Raw, yes: &Raw, no: &Raw) -> Result<Raw> {
    if let Some(out) = chosen_contiguous(op, condition, yes, no)? {
        return Ok(record(op, Chosen::new(op, condition), [Some(yes), Some(no)], out));
    }
    let condition = condition.converted(yes.dtype())?;
    let out = run_unrecorded(&Choose, [&condition, &yes.without_node(), &no.without_node()])?;
    Ok(record(op, Chosen::new(op, &condition), [Some(yes), Some(no)], out))
}

/// The same, unrecorded, if the condition is contiguous and each side is contiguous with its shape or a single
/// number; else `None`.
fn chosen_contiguous(op: &'static str, condition: &Raw, yes: &Raw, no: &Raw) -> Result<Option<Raw>> {
    let fits = |x: &Raw| x.layout.is_contiguous() && x.shape() == condition.shape();
    let is_number = |x: &Raw| x.shape().elements() == 1 && x.shape().rank() <= condition.shape().rank();
    let is_simple = fits(condition) && [yes, no].iter().all(|x| fits(x) || is_number(x));
    if !is_simple || condition.dtype() != DType::Bool {
        return Ok(None);
    }
    let (inputs, shape_and_dtype) = ([Some(yes), Some(condition), Some(no)], (*condition.shape(), yes.dtype()));
    match condition.storage.device() {
        Device::Cpu => on_cpu(Choose::NAME, inputs, shape_and_dtype, &mut |inputs, out| {
            by_bits!(inputs.dtype(), B => {
                let sides = [0, 2].mapped(|i| inputs.bits_of::<B>(i).data.plain());
                cpu::where_cond(inputs.bits_of::<u8>(1).data.plain(), sides, out.bits());
            });
            Ok(())
        }),
        Device::Cuda(device) => on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
            cuda::where_cond(device, op, inputs.cuda_views(), out)
        }),
    }
    .map(Some)
}

/// `condition ≠ 0 ? yes : no`
struct Choose;

impl Op<3> for Choose {
    const NAME: &'static str = "where";
    const INPUTS: Inputs = Inputs::Broadcast;

    fn out_shape(&self, [condition, yes, no]: [&Shape; 3]) -> Result<Shape> {
        Shape::broadcast("where", condition, &Shape::broadcast("where", yes, no)?)
    }

    formula! { 3, "where", [condition, yes, no], |_| [], "condition != R(0) ? yes : no" }
}

impl PerType<3> for Choose {
    fn out_dtype(&self, input: DType) -> DType {
        input
    }

    fn run_on_cpu(&self, inputs: &LockedInputs<'_, 3>, out: &mut Fresh) -> Result<()> {
        by_computing!(inputs.dtype(), C => {
            let [condition, yes, no] = inputs.views::<C>();
            let zero = <C as crate::element::Element>::ZERO;
            cpu::map3(condition, yes, no, out.stored::<C>(), move |if_: C, yes: C, no: C| if if_ != zero { yes } else { no });
        });
        Ok(())
    }
}

/// The derivative: each side gets the gradient where it was chosen.
struct Chosen {
    op: &'static str,
    condition: SavedTensor,
}

impl Chosen {
    fn new(op: &'static str, condition: &Raw) -> Chosen {
        Chosen { op, condition: SavedTensor::new(condition.without_node()) }
    }
}

impl Derivative<2> for Chosen {
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, condition) = (grad.raw(), self.condition.get(self.op)?);
        let zero = number_like(self.op, grad, Scalar::Int(0))?;
        let of = |yes, no| chosen(self.op, &condition, yes, no).map(Raw::typed);
        Ok([saved.grad_of(0, || of(grad, &zero))?, saved.grad_of(1, || of(&zero, grad))?])
    }
}
