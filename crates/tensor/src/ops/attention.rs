//! Attention by one cuDNN kernel on Hopper, which never writes the scores of queries and keys to memory.

use pagelock_cuda::library::{Attention as Description, AttentionGrads, Layout4};

use crate::autocast;
use crate::autograd::{Saved, SavedTensor, is_grad_enabled, record};
use crate::cuda::{CudaDevice, CudaOut, Work, choice, data_type};
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::device::Device;
use crate::element::DType;
use crate::error::Result;
use crate::inlined::{Array, Slice};
use crate::layout::Layout;
use crate::op::{Derivative, LockedInputs, Precision, Saves, on_cuda_in_layout};
use crate::profiler;
use crate::shape::Shape;
use crate::storage::FreshCuda;
use crate::tensor::{Raw, Tensor};

const OP: &str = "fused_attention";
const GRADIENT: &str = "fused_attention's gradient";

/// The library is used for at least this many multiplications in the product of queries and keys. It needs a tenth of
/// a second for each new size; text that is generated token by token would pay that for each token.
const LARGE: usize = 1 << 26;

/// The most features of a query and of a value.
const MAX_FEATURES: usize = 128;

impl Tensor {
    /// softmax(`self` · `key`ᵀ · scale) · `value` by one kernel, which does not store the scores; `None` where there
    /// is no such kernel. With `is_causal`, query `i` attends only to keys up to `i`.
    ///
    /// The kernel needs a Hopper GPU and cuDNN 9.15.1, or 9.10.2 if the number of keys is a multiple of 128. It takes
    /// half precision, also by [`autocast`](crate::autocast), and up to 128 features, a multiple of 8. Short
    /// sequences give `None`, too. Gradients have the same bits in every run, and up to 2 GiB of the scores'
    /// gradients are in memory at once. See [`with_deterministic_algorithms`](crate::with_deterministic_algorithms)
    /// for faster gradients.
    ///
    /// `pagelock_nn::functional::scaled_dot_product_attention` uses this kernel where it can, and other operations
    /// elsewhere.
    ///
    /// - `self`: `[.., queries, features]`, of at most 4 dimensions
    /// - `key`: `[.., keys, features]`
    /// - `value`: `[.., keys, value_features]`
    /// - result: `[.., queries, value_features]`; in memory, the heads of a token are adjacent if they are adjacent
    ///   in `self`
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::randn([2, 4, 10, 16])?; // batch, heads, words, features
    /// assert!(x.fused_attention(&x, &x, false, 0.25)?.is_none()); // on the CPU
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceMemory`](crate::Error::DeviceMemory); [`Error::Library`](crate::Error::Library) if
    /// [`Kernels::Library`](crate::Kernels::Library) is set and the library refuses.
    pub fn fused_attention(&self, key: &Tensor, value: &Tensor, is_causal: bool, scale: f64) -> Result<Option<Tensor>> {
        let Device::Cuda(device) = &self.device() else { return Ok(None) };
        let inputs = [self, key, value].mapped(Tensor::raw);
        let precision = Precision::HalfUnderAutocast;
        let autocast_dtype = autocast::wanted(precision, &inputs);
        let dtype = autocast_dtype.unwrap_or(self.dtype());
        let is_one_dtype = autocast_dtype.is_some() || inputs.iter().all(|input| input.dtype() == dtype);
        let is_deterministic = are_deterministic_algorithms_enabled();
        let attention = Attention { is_causal, scale, is_deterministic, kept: None };
        if !is_one_dtype || !attention.suits(inputs, dtype) || !attention.is_wanted(device, inputs, dtype)? {
            return Ok(None);
        }
        let [query, key, value] = inputs.mapped(|input| readable(autocast::prepared_raw(precision, input)?));
        attention.run(device, [&query?, &key?, &value?]).map(|out| out.map(Raw::typed))
    }
}

/// The operation, whose inputs are query, key and value.
struct Attention {
    is_causal: bool,
    scale: f64,
    /// Whether gradients have the same bits each time.
    is_deterministic: bool,
    /// Saved for the gradients: the result, and the logarithm of each row's sum of exponentials.
    kept: Option<(SavedTensor, Raw)>,
}

impl Attention {
    fn suits(&self, [query, key, value]: [&Raw; 3], dtype: DType) -> bool {
        let (rank, device) = (query.shape().rank(), query.storage.device());
        let fits = |other: &&Raw| other.shape().rank() == rank && other.storage.device() == device;
        let others_fit = [key, value].iter().all(fits);
        if !(2..=4).contains(&rank) || !others_fit || !matches!(dtype, DType::F16 | DType::BF16) {
            return false;
        }
        let (q, k, v) = (sizes(query), sizes(key), sizes(value));
        let features_fit = [q[3], v[3]].iter().all(|&size| size.is_multiple_of(8) && size <= MAX_FEATURES);
        let is_square = !self.is_causal || q[2] == k[2];
        let sizes_match = q[..2] == k[..2] && k[..3] == v[..3] && q[3] == k[3];
        let are_nonempty = q.iter().chain(&v).all(|&size| size > 0);
        features_fit && is_square && sizes_match && are_nonempty
    }

    /// Whether the library should compute it.
    fn is_wanted(&self, device: &CudaDevice, [query, key, _]: [&Raw; 3], dtype: DType) -> Result<bool> {
        let is_hopper = device.cuda().properties().compute_capability.0 == 9;
        let multiplications = query.shape().elements().saturating_mul(sizes(key)[2]);
        let sizes = || format!("queries {} and keys {} of {dtype}", query.shape(), key.shape());
        let work = Work { op: OP, is_large: is_hopper && multiplications >= LARGE, sizes: &sizes };
        Ok(is_hopper && device.dnn_for(&work)?.is_some())
    }

    /// `None` if the library refuses.
    fn run(mut self, device: &CudaDevice, inputs: [&Raw; 3]) -> Result<Option<Raw>> {
        let [query, key, value] = inputs;
        let (dtype, on) = (query.dtype(), query.storage.device());
        let shape = with_last_size(query.shape(), sizes(value)[3])?;
        let layout = layout_like(query.layout, shape);
        let log_sums_shape = with_last_size(query.shape(), 1)?;
        let mut log_sums = FreshCuda::allocate(OP, log_sums_shape, DType::F32, on, device)?;
        let mut is_done = false;
        let out = on_cuda_in_layout(OP, device, inputs.mapped(Some), (layout, dtype), &mut |inputs, out| {
            is_done = self.forward(device, inputs, out, log_sums.out())?;
            Ok(())
        })?;
        if !is_done {
            return Ok(None);
        }
        profiler::count_flops(|| 4 * (query.shape().elements() * sizes(key)[2]) as u64);
        let is_recorded = is_grad_enabled() && inputs.iter().any(|input| input.node.is_some());
        self.kept = is_recorded.then(|| (SavedTensor::new(out.clone()), log_sums.share()));
        Ok(Some(record(OP, self, inputs.mapped(Some), out)))
    }

    fn forward(
        &self,
        device: &CudaDevice,
        inputs: &LockedInputs<'_, 3>,
        out: CudaOut<'_>,
        log_sums: CudaOut<'_>,
    ) -> Result<bool> {
        let inputs = inputs.cuda_views();
        let description = self.describe(inputs.mapped(|input| input.layout()), out.layout(), out.dtype());
        let sizes = || description.to_string();
        let work = Work { op: OP, is_large: true, sizes: &sizes };
        let Some(dnn) = device.dnn_for(&work)? else { return Ok(false) };
        let (stream, inputs) = (device.stream(), inputs.mapped(|input| input.bytes()));
        let scale = self.scale as f32;
        work.is_done(dnn.attend(&stream, &description, scale, inputs, out.into_bytes(), log_sums.into_bytes()))
    }

    fn describe(&self, [query, key, value]: [&Layout; 3], result: &Layout, dtype: DType) -> Description {
        let data_type = data_type(dtype).unwrap_or_else(|| unreachable!("`suits` refuses {dtype}"));
        let [query, key, value, result] = [query, key, value, result].mapped(layout4);
        Description { data_type, is_causal: self.is_causal, choice: choice(), query, key, value, result }
    }

    /// The gradients of query, key and value by the library; `None` if it refuses.
    fn fused_grads(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<Option<[Tensor; 3]>> {
        let (Device::Cuda(device), Some((out, log_sums))) = (&grad.device(), &self.kept) else { return Ok(None) };
        let [query, key, value] = [0, 1, 2].mapped(|i| saved.input(i).raw());
        let (out, grad) = (out.get(OP)?, readable(grad.raw().without_node())?);
        let (dtype, on) = (query.dtype(), query.storage.device());
        let fresh = |operand: &Raw| -> Result<FreshCuda<'_>> {
            let layout = layout_like(operand.layout, *operand.shape());
            Ok(FreshCuda::allocate(GRADIENT, *operand.shape(), dtype, on, device)?.with_layout(layout))
        };
        let (mut key_grad, mut value_grad) = (fresh(key)?, fresh(value)?);
        let inputs = [query, key, value, &out, log_sums, &grad].mapped(Some);
        let mut is_done = false;
        let query_layout = layout_like(query.layout, *query.shape());
        let query_grad =
            on_cuda_in_layout(GRADIENT, device, inputs, (query_layout, dtype), &mut |inputs, query_grad| {
                let [query, key, value, result, log_sums, grad] = inputs.cuda_views();
                let outs = [query_grad, key_grad.out(), value_grad.out()];
                let of = self.describe([query.layout(), key.layout(), value.layout()], result.layout(), dtype);
                let [query_layout, key_layout, value_layout] = outs.each_ref().mapped(|out| layout4(out.layout()));
                let grads = AttentionGrads {
                    of,
                    result: layout4(grad.layout()),
                    query: query_layout,
                    key: key_layout,
                    value: value_layout,
                    is_deterministic: self.is_deterministic,
                };
                let sizes = || of.to_string();
                let work = Work { op: GRADIENT, is_large: true, sizes: &sizes };
                let Some(dnn) = device.dnn_for(&work)? else { return Ok(()) };
                let inputs = [query, key, value].mapped(|input| input.bytes());
                let kept = [result, log_sums, grad].mapped(|kept| kept.bytes());
                let outs = outs.mapped(CudaOut::into_bytes);
                let scale = self.scale as f32;
                is_done = work.is_done(dnn.attend_grads(&device.stream(), &grads, scale, inputs, kept, outs))?;
                Ok(())
            })?;
        Ok(is_done.then(|| [query_grad, key_grad.share(), value_grad.share()].mapped(Raw::typed)))
    }

    /// The gradients from other operations: if they are to be differentiated, or the library refuses.
    fn composed_grads(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let [query, key, value] = [0, 1, 2].mapped(|i| saved.input(i));
        let mut scores = query.mul_scalar(self.scale)?.matmul(&key.transpose(-2, -1)?)?;
        if self.is_causal {
            let positions = |count: usize| Tensor::on(&query.device()).arange(0_i64, count as i64, 1);
            let is_later = positions(sizes(query.raw())[2])?.unsqueeze(1)?.lt(&positions(sizes(key.raw())[2])?)?;
            scores = scores.masked_fill(&is_later, f64::NEG_INFINITY)?;
        }
        let weights = scores.softmax(-1)?.to_dtype(query.dtype())?;
        let weights_grad = grad.matmul(&value.transpose(-2, -1)?)?;
        let dots = weights_grad.mul(&weights)?.sum_keepdim(-1)?.to_dtype(query.dtype())?;
        let scores_grad = weights_grad.sub(&dots)?.mul(&weights)?.mul_scalar(self.scale)?;
        let transposed = scores_grad.transpose(-2, -1)?;
        Ok([scores_grad.matmul(key)?, transposed.matmul(query)?, weights.transpose(-2, -1)?.matmul(grad)?])
    }
}

impl Derivative<3> for Attention {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let fused = if is_grad_enabled() { None } else { self.fused_grads(saved, grad)? };
        let grads = fused.map_or_else(|| autocast::no_autocast(|| self.composed_grads(saved, grad)), Ok)?;
        Ok(saved.wanted(grads))
    }
}

/// Batch, heads, words and features; missing dimensions are 1.
fn sizes(tensor: &Raw) -> [usize; 4] {
    layout4(&tensor.layout).sizes
}

fn layout4(layout: &Layout) -> Layout4 {
    let rank = layout.shape().rank();
    let mut all = Layout4 { sizes: [1; 4], strides: [layout.span().next_multiple_of(8); 4] };
    all.sizes[4 - rank..].copy_from(layout.shape());
    all.strides[4 - rank..].copy_from(layout.strides());
    all
}

fn with_last_size(shape: &Shape, last: usize) -> Result<Shape> {
    let mut sizes = shape.to_vec();
    if let Some(size) = sizes.last_mut() {
        *size = last;
    }
    Shape::new(&sizes)
}

/// The tensor, copied if the library cannot read it with its strides and alignment.
fn readable(tensor: Raw) -> Result<Raw> {
    if Description::takes(&layout4(&tensor.layout)) && tensor.layout.offset().is_multiple_of(8) {
        return Ok(tensor);
    }
    Ok(Raw { node: tensor.node.clone(), ..tensor.detached_copy(OP)? })
}

/// A layout without gaps, in which the heads of a word are adjacent if they are so in `layout`.
fn layout_like(layout: Layout, shape: Shape) -> Layout {
    let permuted = |order: [usize; 4]| Shape::new(&order.mapped(|dim| shape[dim])).map(Layout::contiguous);
    let strides = layout.strides();
    match shape.rank() {
        4 if strides[1] < strides[2] && shape[1] > 1 => {
            permuted([0, 2, 1, 3]).map_or_else(|_| Layout::contiguous(shape), |layout| layout.permute(&[0, 2, 1, 3]))
        }
        _ => Layout::contiguous(shape),
    }
}
