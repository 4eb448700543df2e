//! Joining tensors: `cat` along a dimension that they have, `stack` along a new one.
//!
//! These take any number of tensors, so they record a node of their own instead of going through `apply`.

use bytemuck::Pod;

use crate::autograd::{GradFn, NodeRef, is_recorded};
use crate::cpu;
use crate::cuda::{COPY, CudaDevice};
use crate::device::{Device, common_device};
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::op::widest;
use crate::profiler;
use crate::shape::Shape;
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::{Raw, Tensor, by_bits};

impl<K: Kind> Tensor<K> {
    /// The tensors one after another along a dimension; all other sizes must be equal.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (a, b) = (Tensor::zeros([2, 3])?, Tensor::ones([1, 3])?);
    /// assert_eq!(Tensor::cat(&[&a, &b], 0)?.shape(), &[3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] without tensors, or for tensors that do not fit.
    pub fn cat(tensors: &[&Tensor<K>], dim: isize) -> Result<Tensor<K>> {
        cat(&raws(tensors), dim).map(Raw::typed)
    }

    /// The tensors one after another along a new dimension; all shapes must be equal.
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    pub fn stack(tensors: &[&Tensor<K>], dim: isize) -> Result<Tensor<K>> {
        stack(&raws(tensors), dim).map(Raw::typed)
    }
}

fn raws<'a, K: Kind>(tensors: &[&'a Tensor<K>]) -> Vec<&'a Raw> {
    tensors.iter().map(|tensor| tensor.raw()).collect()
}

/// [`Tensor::cat`].
pub(crate) fn cat(tensors: &[&Raw], dim: isize) -> Result<Raw> {
    let [first, ..] = tensors else {
        return Err(Error::empty("cat", "the list of tensors", "give at least one"));
    };
    let dim = first.shape().dim("cat", dim)?;
    let mut total = 0;
    for tensor in tensors {
        if tensor.rank() != first.rank() || tensor.shape().with(dim, 0) != first.shape().with(dim, 0) {
            let expected =
                format!("it must be like the first, {}, but for dimension {dim}; reshape or narrow it", first.shape());
            return Err(Error::wrong_shape("cat", "a tensor", tensor.shape(), expected));
        }
        total = tensor.shape()[dim].saturating_add(total); // too large is refused below
    }
    join(tensors, first.shape().with(dim, total), dim)
}

/// [`Tensor::stack`].
pub(crate) fn stack(tensors: &[&Raw], dim: isize) -> Result<Raw> {
    let [first, ..] = tensors else {
        return Err(Error::empty("stack", "the list of tensors", "give at least one"));
    };
    if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != first.shape()) {
        let expected = format!("it must be like the first, {}; reshape or expand it", first.shape());
        return Err(Error::wrong_shape("stack", "a tensor", other.shape(), expected));
    }
    let rows = tensors.iter().map(|tensor| tensor.with_place("stack", dim)).collect::<Result<Vec<_>>>()?;
    cat(&rows.iter().collect::<Vec<_>>(), dim)
}

/// The tensors in one of that shape, in the widest of their precisions.
fn join(tensors: &[&Raw], shape: Shape, dim: usize) -> Result<Raw> {
    let dtype = widest("cat", tensors)?;
    if tensors.iter().any(|tensor| tensor.dtype() != dtype) {
        let tensors = tensors.iter().map(|tensor| tensor.converted(dtype)).collect::<Result<Vec<Raw>>>()?;
        return join(&tensors.iter().collect::<Vec<_>>(), shape, dim);
    }
    let device = common_device("cat", tensors)?;
    let running = profiler::op("cat");
    let out = match device {
        Device::Cpu => {
            let mut out = Fresh::allocate("cat", shape, dtype)?;
            by_bits!(dtype, B => fill::<B>(&mut out, tensors, dim)?);
            out.share()
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate("cat", shape, dtype, device, cuda)?;
            profiler::on_stream("cat", || cuda.stream(), || fill_on(cuda, &mut out, tensors, &shape, dim))?;
            out.share()
        }
    };
    running.made(&tensors.iter().copied().map(Some).collect::<Vec<_>>(), &out, "cat");
    Ok(record_cat(out, tensors, dim))
}

fn fill<B: Pod + Send + Sync>(out: &mut Fresh, tensors: &[&Raw], dim: usize) -> Result<()> {
    let sizes = tensors.iter().map(|tensor| tensor.shape()[dim]);
    for (window, tensor) in windows(*out.shape(), dim, sizes).zip(tensors) {
        let to = &mut out.bits::<B>()[window.offset()..][..window.span()];
        cpu::place(to, window.strides(), tensor.host("cat")?.bits(&tensor.layout));
    }
    Ok(())
}

fn fill_on(device: &CudaDevice, out: &mut FreshCuda<'_>, tensors: &[&Raw], shape: &Shape, dim: usize) -> Result<()> {
    let sizes = tensors.iter().map(|tensor| tensor.shape()[dim]);
    for (window, tensor) in windows(*shape, dim, sizes).zip(tensors) {
        let locked = tensor.storage.lock();
        COPY.run(device, "cat", &[locked.cuda(&tensor.layout, tensor.dtype())], &[], out.window(&window))?;
    }
    Ok(())
}

/// Parts of a contiguous tensor, one after another along a dimension.
fn windows(whole: Shape, dim: usize, sizes: impl Iterator<Item = usize>) -> impl Iterator<Item = Layout> {
    let whole = Layout::contiguous(whole);
    sizes.scan(0, move |start, len| {
        let window = whole.slice(dim, *start, len, 1);
        *start += len;
        Some(window)
    })
}

fn record_cat(out: Raw, tensors: &[&Raw], dim: usize) -> Raw {
    if !is_recorded("cat", tensors.iter().map(|tensor| tensor.node.as_ref()), out.dtype()) {
        return out;
    }
    let edges = tensors.iter().map(|tensor| tensor.node.clone()).collect();
    let sizes = tensors.iter().map(|tensor| tensor.shape()[dim]).collect();
    let node = NodeRef::new(out.dtype(), *out.shape(), Cat { edges, sizes, dim });
    Raw { node: Some(node), ..out }
}

/// The node of `cat`: each input's gradient is its part of the output's.
struct Cat {
    edges: Vec<Option<NodeRef>>,
    sizes: Vec<usize>, // of each input along `dim`
    dim: usize,
}

impl GradFn for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edges
    }

    fn backward(&self, _this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        let grad: Tensor = grad.typed();
        let mut start = 0;
        for (input, &len) in self.sizes.iter().enumerate() {
            send(input, grad.narrow(self.dim as isize, start, len)?.into_raw())?;
            start += len;
        }
        Ok(())
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edges.iter_mut().filter_map(Option::take));
    }
}
