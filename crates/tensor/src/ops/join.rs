//! Joining tensors: `cat` along a dimension that they have, `stack` along a new one.
//!
//! These take any number of tensors, so they record a node of their own instead of going through `apply`.

use std::borrow::Borrow;

use bytemuck::Pod;

use crate::all_locked::AllLocked;
use crate::autograd::{GradFn, NodeRef, is_recorded};
use crate::cpu;
use crate::cuda::{COPY, CudaDevice};
use crate::device::{Device, common_device};
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::op::widest;
use crate::profiler;
use crate::shape::{MAX_RANK, Shape};
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::{Raw, Tensor, by_bits};

impl<K: Kind> Tensor<K> {
    /// The tensors one after another along a dimension; all other sizes must be equal.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (a, b) = (Tensor::zeros([2, 3])?, Tensor::ones([1, 3])?);
    /// assert_eq!(Tensor::cat(&[&a, &b], 0)?.shape(), &[3, 3]);
    /// let list = vec![a, b];
    /// assert_eq!(Tensor::cat(&list, 0)?.shape(), &[3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] without tensors, or for tensors that do not fit.
    pub fn cat(tensors: &[impl Borrow<Tensor<K>>], dim: isize) -> Result<Tensor<K>> {
        cat(&raws(tensors), dim).map(Raw::typed)
    }

    /// The tensors one after another along a new dimension; all shapes must be equal.
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    pub fn stack(tensors: &[impl Borrow<Tensor<K>>], dim: isize) -> Result<Tensor<K>> {
        stack(&raws(tensors), dim).map(Raw::typed)
    }
}

fn raws<K: Kind>(tensors: &[impl Borrow<Tensor<K>>]) -> Vec<&Raw> {
    tensors.iter().map(|tensor| tensor.borrow().raw()).collect()
}

pub(crate) fn cat(tensors: &[&Raw], dim: isize) -> Result<Raw> {
    let [first, ..] = tensors else {
        return Err(Error::empty("cat", "the list of tensors", "give at least one"));
    };
    let dim = first.shape().dim("cat", dim)?;
    let mut total = 0;
    for tensor in tensors {
        if tensor.rank() != first.rank() || tensor.shape().with(dim, 0) != first.shape().with(dim, 0) {
            let expected = format!(
                "it must have the shape of the first, {}, except in dimension {dim}; reshape or narrow it",
                first.shape()
            );
            return Err(Error::wrong_shape("cat", "a tensor", tensor.shape(), expected));
        }
        total = tensor.shape()[dim].saturating_add(total); // too large is refused below
    }
    join("cat", tensors, first.shape().with(dim, total), &[dim])
}

pub(crate) fn stack(tensors: &[&Raw], dim: isize) -> Result<Raw> {
    let [first, ..] = tensors else {
        return Err(Error::empty("stack", "the list of tensors", "give at least one"));
    };
    if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != first.shape()) {
        let expected = format!("it must have the shape of the first, {}; reshape or expand it", first.shape());
        return Err(Error::wrong_shape("stack", "a tensor", other.shape(), expected));
    }
    let rows = tensors.iter().map(|tensor| tensor.insert_dim("stack", dim)).collect::<Result<Vec<_>>>()?;
    cat(&rows.iter().collect::<Vec<_>>(), dim)
}

/// The tensors joined into one of that shape, in the widest of their precisions: each begins where the previous one
/// ends, in all of `dims`. With several `dims`, elements that no tensor covers are 0.
pub(super) fn join(op: &'static str, tensors: &[&Raw], shape: Shape, dims: &[usize]) -> Result<Raw> {
    let dtype = widest(op, tensors)?;
    if tensors.iter().any(|tensor| tensor.dtype() != dtype) {
        let tensors = tensors.iter().map(|tensor| tensor.converted(dtype)).collect::<Result<Vec<Raw>>>()?;
        return join(op, &tensors.iter().collect::<Vec<_>>(), shape, dims);
    }
    let device = common_device(op, tensors)?;
    let running = profiler::op(op);
    shape.check_size()?;
    let windows = windows(shape, dims, tensors);
    let out = match device {
        Device::Cpu => {
            let mut out = Fresh::allocate(op, shape, dtype)?;
            by_bits!(dtype, B => fill::<B>(&mut out, tensors, &windows, dims));
            out.share()
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate(op, shape, dtype, device, cuda)?;
            profiler::on_stream(op, || cuda.stream(), || fill_on(op, cuda, &mut out, tensors, &windows))?;
            out.share()
        }
    };
    running.note_result(&tensors.iter().copied().map(Some).collect::<Vec<_>>(), &out, op);
    Ok(record_join(op, out, tensors, dims))
}

fn fill<B: Pod + Send + Sync>(out: &mut Fresh, tensors: &[&Raw], windows: &[Layout], dims: &[usize]) {
    let (locked, out) = (AllLocked::new(tensors), out.bits::<B>());
    if elements(windows) < out.len() {
        cpu::fill(out, B::zeroed());
    }
    if let ([a, b], [_, behind]) = (tensors, windows)
        && behind.offset() == 1
        && 2 * a.shape().elements() == out.len()
    {
        return cpu::interleave_two(locked.get(0).bits(&a.layout), locked.get(1).bits(&b.layout), out);
    }
    let views = tensors.iter().enumerate().map(|(i, tensor)| locked.get(i).bits(&tensor.layout));
    if let &[dim] = dims
        && cpu::join_rows(views.clone(), dim, out)
    {
        return;
    }
    for (window, view) in windows.iter().zip(views) {
        let to = &mut out[window.offset()..][..window.span()];
        cpu::copy_strided(to, window.strides(), view);
    }
}

fn fill_on(
    op: &'static str,
    device: &CudaDevice,
    out: &mut FreshCuda<'_>,
    tensors: &[&Raw],
    windows: &[Layout],
) -> Result<()> {
    if elements(windows) < out.out().shape().elements() {
        let zeroed = device.stream().fill(out.out().into_bytes(), 0);
        zeroed.map_err(|source| Error::cuda(op, source))?;
    }
    for (window, tensor) in windows.iter().zip(tensors) {
        let locked = tensor.storage.lock();
        COPY.run(device, op, &[locked.cuda(&tensor.layout, tensor.dtype())], &[], out.window(window))?;
    }
    Ok(())
}

/// The parts of a contiguous result into which the tensors are copied.
fn windows(whole: Shape, dims: &[usize], tensors: &[&Raw]) -> Vec<Layout> {
    let mut starts = [0; MAX_RANK];
    let part = |tensor: &&Raw| {
        dims.iter().fold(Layout::contiguous(whole), |part, &dim| {
            let (start, len) = (starts[dim], tensor.shape()[dim]);
            starts[dim] += len;
            part.slice(dim, start, len, 1)
        })
    };
    tensors.iter().map(part).collect()
}

fn elements(windows: &[Layout]) -> usize {
    windows.iter().map(|window| window.shape().elements()).sum()
}

fn record_join(op: &'static str, out: Raw, tensors: &[&Raw], dims: &[usize]) -> Raw {
    if !is_recorded(op, tensors.iter().map(|tensor| tensor.node.as_ref()), out.dtype()) {
        return out;
    }
    let edges = tensors.iter().map(|tensor| tensor.node.clone()).collect();
    let sizes = dims.iter().map(|&dim| (dim, tensors.iter().map(|tensor| tensor.shape()[dim]).collect())).collect();
    let node = NodeRef::new(out.dtype(), *out.shape(), Joined { op, edges, sizes });
    Raw { node: Some(node), ..out }
}

/// The node of [`join`]: each input's gradient is its part of the output's gradient.
struct Joined {
    op: &'static str,
    edges: Vec<Option<NodeRef>>,
    sizes: Vec<(usize, Vec<usize>)>, // the joined dimensions, and the inputs' sizes along them
}

impl GradFn for Joined {
    fn name(&self) -> &'static str {
        self.op
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edges
    }

    fn backward(&self, _this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        let mut starts = [0; MAX_RANK];
        for input in 0..self.edges.len() {
            let part = self.sizes.iter().try_fold(grad.clone(), |part, (dim, sizes)| {
                let start = starts[*dim];
                starts[*dim] += sizes[input];
                part.narrow(*dim as isize, start, sizes[input])
            })?;
            send(input, part)?;
        }
        Ok(())
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edges.iter_mut().filter_map(Option::take));
    }
}
