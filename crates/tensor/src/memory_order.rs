//! Elementwise operations on tensors whose dimensions are in another order in memory, as after `permute`. They visit
//! the elements in the memory order of the first input, and give the result the same order, as PyTorch does
//! (<https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.memory_format>).

use arrayvec::ArrayVec;

use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::layout::Layout;
use crate::op::{LockedInputs, on_cpu};
use crate::shape::{MAX_RANK, Shape};
use crate::storage::Fresh;
use crate::tensor::Raw;

/// The dimensions of the result from the outermost to the innermost in memory: those of the first input whose
/// elements are not repeated. `None` if they are in ascending order.
pub(crate) fn order_of_result<const N: usize>(inputs: [&Raw; N], shape: &Shape) -> Option<ArrayVec<usize, MAX_RANK>> {
    if inputs.iter().any(|input| input.shape() != shape) {
        return None;
    }
    inputs.into_iter().find(|input| !input.layout.overlaps())?.layout.order()
}

/// [`on_cpu`] for an elementwise operation on inputs that are not all contiguous. The dimensions of the result are in
/// the given order in memory.
pub(crate) fn in_order<const N: usize>(
    op: &'static str,
    order: Option<&[usize]>,
    inputs: [&Raw; N],
    (shape, dtype): (Shape, DType),
    kernel: &mut dyn FnMut(&LockedInputs<'_, N>, &mut Fresh) -> Result<()>,
) -> Result<Raw> {
    let layout = order.map_or(Layout::contiguous(shape), |order| Layout::in_order(shape, order));
    let permuted = |layout: &Layout| order.map_or(*layout, |order| layout.permute(order));
    let inputs = inputs.mapped(|input| Raw { layout: permuted(&input.layout), ..input.clone() });
    let out = on_cpu(op, inputs.each_ref().mapped(Some), (*permuted(&layout).shape(), dtype), kernel)?;
    Ok(out.with_layout(layout))
}

#[cfg(test)]
mod tests {
    use crate::element::DType;
    use crate::error::Result;
    use crate::tensor::Tensor;

    fn numbers(shape: &[usize]) -> Result<Tensor> {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i * 37 % 1_009) as f32 - 500.0).collect();
        Tensor::from_slice(&numbers, shape)
    }

    /// The strides of `result`, whose elements must equal those of `expected`.
    fn strides(result: Result<Tensor>, expected: Result<Tensor>) -> Vec<usize> {
        let (result, expected) = (result.unwrap(), expected.unwrap());
        assert_eq!(result.shape(), expected.shape());
        assert_eq!(result.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        result.raw().layout.strides().to_vec()
    }

    #[test]
    fn results_lie_as_the_first_input_that_is_not_repeated() -> Result<()> {
        for size in [1, 9] {
            let shape = [2 * size, 3, 5 * size, 7];
            let permuted = numbers(&shape)?.permute([0, 2, 3, 1])?;
            let plain = permuted.contiguous()?;
            let (row, other) = (numbers(&[3])?, numbers(plain.dims())?);
            let as_permuted = permuted.raw().layout.strides();
            let as_plain = plain.raw().layout.strides();

            assert_eq!(strides(permuted.neg(), plain.neg()), as_permuted);
            assert_eq!(strides(permuted.mul(&row), plain.mul(&row)), as_permuted);
            assert_eq!(strides(row.sub(&permuted), row.sub(&plain)), as_permuted);
            assert_eq!(strides(permuted.sub(&permuted), plain.sub(&plain)), as_permuted);
            assert_eq!(strides(permuted.sub(&other), plain.sub(&other)), as_permuted);
            assert_eq!(strides(other.sub(&permuted), other.sub(&plain)), as_plain);
            let [is_large, same] = [permuted.gt_scalar(0.0)?, plain.gt_scalar(0.0)?];
            assert_eq!(strides(permuted.where_cond(&is_large, &other), plain.where_cond(&same, &other)), as_permuted);
            assert_eq!(strides(permuted.to_dtype(DType::F64)?.to_dtype(DType::F32), Ok(plain.clone())), as_permuted);
            assert_eq!(strides(permuted.flip(&[1, 3]), plain.flip(&[1, 3])), as_permuted);
            assert_eq!(strides(permuted.zeros_like(), plain.zeros_like()), as_permuted);
        }
        Ok(())
    }

    #[test]
    fn parts_of_permuted_tensors_become_results_without_gaps() -> Result<()> {
        let permuted = numbers(&[40, 30, 50])?.permute([2, 0, 1])?;
        let part = permuted.narrow(0, 3, 17)?.narrow(2, 1, 28)?;
        let plain = part.contiguous()?;
        assert_eq!(strides(part.exp(), plain.exp()), [1, 28 * 17, 17]);
        assert_eq!(strides(part.add(&plain), plain.add(&plain)), [1, 28 * 17, 17]);
        assert_eq!(strides(plain.add(&part), plain.add(&plain)), [40 * 28, 28, 1]);
        // Dimensions of size 1 and dimensions of repeated elements have no order.
        let one = permuted.narrow(1, 2, 1)?;
        assert_eq!(strides(one.neg(), one.contiguous()?.neg()), [1, 30 * 50, 50]);
        let repeated = numbers(&[6, 1])?.expand([6, 5])?;
        assert_eq!(strides(repeated.neg(), repeated.contiguous()?.neg()), [5, 1]);
        Ok(())
    }

    #[test]
    fn gradients_of_permuted_tensors_are_those_of_plain_ones() -> Result<()> {
        let weight = numbers(&[10, 20, 30])?;
        let [permuted, plain] = [false, true].map(|is_plain| -> Result<Vec<f32>> {
            let x = numbers(&[20, 30, 10])?.mul_scalar(0.01)?.set_requires_grad(true);
            let permuted = x.permute([2, 0, 1])?;
            let permuted = if is_plain { permuted.contiguous()? } else { permuted };
            permuted.exp()?.mul(&weight)?.sub(&permuted)?.sum(..)?.backward()?;
            x.grad().map_or(Ok(Vec::new()), |grad| grad.to_vec::<f32>())
        });
        assert_eq!(permuted?, plain?);
        Ok(())
    }
}
