//! Attention: its description, and its graphs for cuDNN.
//!
//! The forward pass never writes a head's scores to memory. The backward pass computes them again, with the logarithm
//! of each row's sum of exponentials, which the forward pass saves. The gradients of the queries are sums over keys.
//! If they must be deterministic, the library writes the gradients of the scores to scratch memory and adds them up
//! in a fixed order. Otherwise it adds them up with atomic operations, which is faster. Dao et al. 2022,
//! "FlashAttention", <https://arxiv.org/abs/2205.14135>.

use std::{ffi::c_void, fmt};

use super::{
    Api, Call, Choice, Dnn, Layout4,
    graph::{ALIGNMENT, GraphBuilder, Node},
    header::*,
    plan::{Operation, OperationGraph, code},
    unsupported,
};
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    error::Result,
    library::{
        DataType,
        work::{self, Refusal},
    },
    stream::Stream,
};

// Some versions compute wrong results. NVIDIA's cudnn-frontend lists them, and refuses them too.
/// Older versions are refused.
const MIN_VERSION: usize = 9_10_02;
/// Older versions are refused if the number of keys is not a multiple of 128.
const MIN_VERSION_FOR_ANY_KEYS: usize = 9_15_01;

/// The most scratch memory for the gradients of scores. If they need more, the batches, or the heads of a single
/// batch, are computed in several parts.
const MAX_SCORE_BYTES: usize = 2 << 30;

// The UIDs of tensors.
const QUERY: i64 = 1;
const KEY: i64 = 2;
const VALUE: i64 = 3;
const RESULT: i64 = 4;
const LOG_SUMS: i64 = 5;
const SCALE: i64 = 6;
const MASKED_SCORE: i64 = 7;
const ONE: i64 = 8;
const GRAD: i64 = 9;
const DOTS: i64 = 10;
const QUERY_GRAD: i64 = 11;
const KEY_GRAD: i64 = 12;
const VALUE_GRAD: i64 = 13;
const QUERY_SUMS: i64 = 14;

/// softmax(query · keyᵀ · scale) · value of each head, on Hopper. Sums are `f32`. The strides of features are 1, all
/// other strides are multiples of 8, and addresses are multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The type of all numbers: `f16` or `bf16`.
    pub data_type: DataType,
    /// Whether query `i` attends only to keys `0..=i`.
    pub is_causal: bool,
    /// Which algorithm computes the attention and its gradients.
    pub choice: Choice,
    /// The layout of the queries: `[batch, heads, queries, features]`.
    pub query: Layout4,
    /// The layout of the keys: `[batch, heads, keys, features]`.
    pub key: Layout4,
    /// The layout of the values: `[batch, heads, keys, value features]`.
    pub value: Layout4,
    /// The layout of the results: `[batch, heads, queries, value features]`.
    pub result: Layout4,
}

/// The gradients of an [`Attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGrads {
    /// The attention.
    pub of: Attention,
    /// The layout of the result's gradient.
    pub result: Layout4,
    /// The layout of the queries' gradient.
    pub query: Layout4,
    /// The layout of the keys' gradient.
    pub key: Layout4,
    /// The layout of the values' gradient.
    pub value: Layout4,
    /// Whether the gradients have the same bits each time.
    pub is_deterministic: bool,
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attention { query, key, value, data_type, .. } = self;
        write!(f, "attention of query {:?}, key {:?}, value {:?} in {data_type:?}", query.sizes, key.sizes, value.sizes)
    }
}

impl Dnn {
    /// Queues the attention of `inputs`: query, key and value. It also writes `log_sums`, `[batch, heads, queries]`,
    /// which [`attend_grads`](Self::attend_grads) needs.
    ///
    /// # Errors
    /// [`Error::Library`](crate::Error::Library) if the library has no plan for it;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if it is older than 9.10.2, or older than 9.15.1 while the
    /// number of keys is not a multiple of 128, or if sizes do not match;
    /// [`Error::Argument`](crate::Error::Argument) if a tensor reaches beyond its buffer,
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::OutOfMemory`](crate::Error::OutOfMemory) for
    /// scratch memory, [`Error::Driver`](crate::Error::Driver).
    pub fn attend(
        &self,
        stream: &Stream,
        attention: &Attention,
        scale: f32,
        inputs: [DeviceView<'_, u8>; 3],
        mut out: DeviceViewMut<'_, u8>,
        mut log_sums: DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        work::check_device(&self.device, stream)?;
        attention.check(self.version)?;
        let layouts = [attention.query, attention.key, attention.value];
        layouts.iter().zip(inputs).try_for_each(|(layout, view)| attention.check_view(stream, layout, view))?;
        attention.check_view(stream, &attention.result, out.reborrow().into())?;
        attention.check_rows(stream, log_sums.reborrow().into())?;
        let numbers = Numbers::new(scale);
        let [query, key, value] = inputs.map(|view| view.address().0);
        let tensors = [
            (QUERY, query),
            (KEY, key),
            (VALUE, value),
            (RESULT, out.address().0),
            (LOG_SUMS, log_sums.address().0),
            (SCALE, address(&numbers.scale)),
            (MASKED_SCORE, address(&numbers.masked_score)),
        ];
        let tensors = if attention.is_causal { &tensors[..] } else { &tensors[..6] };
        let [query, key, value] = inputs.map(|view| view.access());
        let call = Call { tensors, accesses: &[query, key, value, out.access(), log_sums.access()] };
        self.compute(stream, Operation::Attention(*attention), &call)
    }

    /// Queues the gradients of `inputs` (query, key and value), which are written to `outs`. The other three views
    /// are the attention's result, its `log_sums`, and the result's gradient.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn attend_grads(
        &self,
        stream: &Stream,
        grads: &AttentionGrads,
        scale: f32,
        inputs: [DeviceView<'_, u8>; 3],
        [result, log_sums, grad]: [DeviceView<'_, u8>; 3],
        outs: [DeviceViewMut<'_, u8>; 3],
    ) -> Result<()> {
        work::check_device(&self.device, stream)?;
        grads.check(self.version)?;
        let [query, key, value] = inputs;
        self.grads_in_parts(stream, grads, scale, [query, key, value, result, grad, log_sums], outs)
    }

    /// The gradients, as many batches or heads at a time as scratch memory allows. `inputs` is as for
    /// [`grads_of_part`](Self::grads_of_part).
    fn grads_in_parts(
        &self,
        stream: &Stream,
        grads: &AttentionGrads,
        scale: f32,
        inputs: [DeviceView<'_, u8>; 6],
        mut outs: [DeviceViewMut<'_, u8>; 3],
    ) -> Result<()> {
        let (dim, len, fitting_len) = grads.of.parts();
        let max_len = if grads.is_deterministic { fitting_len } else { len };
        for start in (0..len).step_by(max_len) {
            let part = Part { dim, start, len: max_len.min(len - start) };
            let (of, size) = (&grads.of, grads.of.data_type.size_bytes());
            let [query, key, value, result, grad, log_sums] = inputs;
            let inputs = [
                query.slice(part.offset(&of.query, size)..)?,
                key.slice(part.offset(&of.key, size)..)?,
                value.slice(part.offset(&of.value, size)..)?,
                result.slice(part.offset(&of.result, size)..)?,
                grad.slice(part.offset(&grads.result, size)..)?,
                log_sums.slice(part.offset(&of.rows(), DataType::F32.size_bytes())..)?,
            ];
            let [query, key, value] = &mut outs;
            let outs = [
                query.reborrow().slice(part.offset(&grads.query, size)..)?,
                key.reborrow().slice(part.offset(&grads.key, size)..)?,
                value.reborrow().slice(part.offset(&grads.value, size)..)?,
            ];
            let grads = &grads.part(part);
            let may_be_split = grads.is_deterministic && len > 1 && part.len == 1 && dim == 0;
            match may_be_split {
                true => self.grads_in_parts(stream, grads, scale, inputs, outs)?, // by heads
                false => self.grads_of_part(stream, grads, scale, inputs, outs)?,
            }
        }
        Ok(())
    }

    /// The gradients of one part of the heads. `inputs` is query, key, value, result, the result's gradient, and
    /// `log_sums`.
    fn grads_of_part(
        &self,
        stream: &Stream,
        grads: &AttentionGrads,
        scale: f32,
        inputs: [DeviceView<'_, u8>; 6],
        mut outs: [DeviceViewMut<'_, u8>; 3],
    ) -> Result<()> {
        let of = &grads.of;
        let layouts = [of.query, of.key, of.value, of.result, grads.result];
        layouts.iter().zip(inputs).try_for_each(|(layout, view)| of.check_view(stream, layout, view))?;
        of.check_rows(stream, inputs[5])?;
        let layouts = [grads.query, grads.key, grads.value];
        let mut views = layouts.iter().zip(&mut outs);
        views.try_for_each(|(layout, view)| of.check_view(stream, layout, view.reborrow().into()))?;
        let mut dots = stream.allocate::<f32>(of.rows().sizes.iter().product())?;
        let dots = dots.view_mut();
        // The library sets them to zero itself, since version 9.6.
        let mut sums = if grads.is_deterministic { None } else { Some(stream.allocate::<f32>(of.sums_len())?) };
        let sums = sums.as_mut().map(DeviceBuffer::view_mut);
        let numbers = Numbers::new(scale);
        let [query, key, value, result, grad, log_sums] = inputs.map(|view| view.address().0);
        let [query_grad, key_grad, value_grad] = outs.each_ref().map(|view| view.address().0);
        let mut tensors = vec![
            (QUERY, query),
            (KEY, key),
            (VALUE, value),
            (RESULT, result),
            (GRAD, grad),
            (LOG_SUMS, log_sums),
            (DOTS, dots.address().0),
            (QUERY_GRAD, query_grad),
            (KEY_GRAD, key_grad),
            (VALUE_GRAD, value_grad),
            (SCALE, address(&numbers.scale)),
            (ONE, address(&numbers.one)),
        ];
        tensors.extend(of.is_causal.then(|| (MASKED_SCORE, address(&numbers.masked_score))));
        tensors.extend(sums.as_ref().map(|sums| (QUERY_SUMS, sums.address().0)));
        let read = inputs.map(|view| view.access());
        let written = outs.each_ref().map(|view| view.access());
        let sums = sums.as_ref().map(|sums| sums.access());
        let accesses: Vec<_> = read.into_iter().chain(written).chain([dots.access()]).chain(sums).collect();
        self.compute(stream, Operation::AttentionGrads(*grads), &Call { tensors: &tensors, accesses: &accesses })
    }
}

/// Numbers that are passed to kernels by value.
struct Numbers {
    scale: f32,
    /// The score of a masked key.
    masked_score: f32,
    one: f32,
}

impl Numbers {
    fn new(scale: f32) -> Numbers {
        Numbers { scale, masked_score: f32::NEG_INFINITY, one: 1.0 }
    }
}

/// The host address of a number, which the library reads before its call returns.
fn address(number: &f32) -> u64 {
    std::ptr::from_ref(number).expose_provenance() as u64
}

/// A range of batches, or of the heads of a single batch.
#[derive(Clone, Copy)]
struct Part {
    dim: usize,
    start: usize,
    len: usize,
}

impl Part {
    /// The offset of the part's first element, in bytes.
    fn offset(self, layout: &Layout4, size_bytes: usize) -> usize {
        layout.strides[self.dim].saturating_mul(self.start).saturating_mul(size_bytes)
    }

    fn of(self, layout: &Layout4) -> Layout4 {
        let mut part = *layout;
        part.sizes[self.dim] = self.len;
        part
    }
}

impl Attention {
    fn unsupported(&self) -> crate::Error {
        let requirement = "it takes halves of matching sizes, features and outer strides that are multiples of 8, addresses \
                           that are multiples of 16, and more than one query or key; it must be of version 9.15.1, or of \
                           9.10.2 if the number of keys is a multiple of 128";
        unsupported(self, requirement)
    }

    /// An error unless the sizes match each other and the library supports the strides.
    fn check(&self, version: usize) -> Result<()> {
        let [query, key, value, result] = [self.query, self.key, self.value, self.result].map(|layout| layout.sizes);
        let sizes_fit = query[..2] == key[..2]
            && key[..3] == value[..3]
            && query[3] == key[3]
            && result == [query[0], query[1], query[2], value[3]]
            && query.iter().chain(&value).all(|&size| size > 0 && size <= i32::MAX as usize)
            && query[3].is_multiple_of(8)
            && value[3].is_multiple_of(8);
        let layouts = [&self.query, &self.key, &self.value, &self.result];
        let is_half = matches!(self.data_type, DataType::F16 | DataType::Bf16);
        let is_old = version < MIN_VERSION_FOR_ANY_KEYS && !key[2].is_multiple_of(128);
        let is_one = query[2] == 1 && key[2] == 1; // the library has no gradients for it
        let fits = version >= MIN_VERSION
            && !is_old
            && !is_one
            && is_half
            && sizes_fit
            && layouts.into_iter().all(Attention::takes);
        if fits { Ok(()) } else { Err(self.unsupported()) }
    }

    /// Whether the library supports the strides of this layout.
    pub fn takes(layout: &Layout4) -> bool {
        let is_outer = |dim: usize| layout.sizes[dim] == 1 || layout.strides[dim].is_multiple_of(8);
        layout.strides[3] == 1 && (0..3).all(is_outer)
    }

    /// An error unless the tensor is inside its buffer, on the stream's device, and aligned for vector loads.
    fn check_view(&self, stream: &Stream, layout: &Layout4, view: DeviceView<'_, u8>) -> Result<()> {
        layout.check(self.data_type, view.len())?;
        self.check_device_and_alignment(stream, view)
    }

    /// Like [`check_view`](Self::check_view), for one `f32` per query of each head.
    fn check_rows(&self, stream: &Stream, view: DeviceView<'_, u8>) -> Result<()> {
        self.rows().check(DataType::F32, view.len())?;
        self.check_device_and_alignment(stream, view)
    }

    fn check_device_and_alignment(&self, stream: &Stream, view: DeviceView<'_, u8>) -> Result<()> {
        view.check_same_device(stream.core())?;
        if view.address().0.is_multiple_of(ALIGNMENT.into()) { Ok(()) } else { Err(self.unsupported()) }
    }

    /// The layout of one number per query of each head.
    fn rows(&self) -> Layout4 {
        let [batch, heads, queries, _] = self.query.sizes;
        Layout4::without_gaps([batch, heads, queries, 1])
    }

    /// The length of the buffer in which the library adds up the queries' gradients. The library adds whole tiles, so
    /// the sizes are rounded up.
    fn sums_len(&self) -> usize {
        let [batch, heads, queries, features] = self.query.sizes;
        batch * heads * queries.next_multiple_of(128) * features.next_multiple_of(16)
    }

    /// The layout of one number per query and key of each head.
    fn scores(&self) -> Layout4 {
        let [batch, heads, queries, _] = self.query.sizes;
        Layout4::without_gaps([batch, heads, queries, self.key.sizes[2]])
    }

    /// The dimension that is split into parts, its length, and the length of a part.
    fn parts(&self) -> (usize, usize, usize) {
        let dim = if self.query.sizes[0] > 1 { 0 } else { 1 };
        let len = self.query.sizes[dim];
        let [batch, heads, queries, keys] = self.scores().sizes.map(|size| size as u128);
        let bytes = 2 * batch * heads * queries.next_multiple_of(64) * keys.next_multiple_of(64);
        let fits = MAX_SCORE_BYTES as u128 * len as u128 / bytes.max(1);
        (dim, len, usize::try_from(fits).unwrap_or(len).clamp(1, len))
    }
}

impl AttentionGrads {
    fn check(&self, version: usize) -> Result<()> {
        self.of.check(version)?;
        let layouts = [self.result, self.query, self.key, self.value];
        let of = [self.of.result, self.of.query, self.of.key, self.of.value];
        let sizes_fit = layouts.iter().zip(&of).all(|(layout, of)| layout.sizes == of.sizes);
        if sizes_fit && layouts.iter().all(Attention::takes) { Ok(()) } else { Err(self.of.unsupported()) }
    }

    fn part(&self, part: Part) -> AttentionGrads {
        let of = Attention {
            query: part.of(&self.of.query),
            key: part.of(&self.of.key),
            value: part.of(&self.of.value),
            result: part.of(&self.of.result),
            ..self.of
        };
        let [result, query, key, value] =
            [self.result, self.query, self.key, self.value].map(|layout| part.of(&layout));
        AttentionGrads { of, result, query, key, value, ..*self }
    }
}

/// The layout with its last two dimensions swapped.
fn transposed(layout: &Layout4) -> Layout4 {
    let swap = |[batch, heads, rows, columns]: [usize; 4]| [batch, heads, columns, rows];
    Layout4 { sizes: swap(layout.sizes), strides: swap(layout.strides) }
}

/// The scores, and the node of the scale. The scores are query · keyᵀ · scale, minus `log_sums` if given, and −∞ for
/// masked keys.
fn scores(
    b: &mut GraphBuilder,
    of: &Attention,
    [query, key]: [Node; 2],
    log_sums: Option<Node>,
) -> Result<(Node, Node), Refusal> {
    let all = of.scores();
    let product = b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?;
    b.matmul(query, key, product)?;
    let (scale, scaled) = (b.scalar(SCALE)?, b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?);
    let mut scores = b.pointwise(CUDNN_POINTWISE_MUL, product, &[scale], scaled)?;
    if let Some(log_sums) = log_sums {
        let shifted = b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?;
        scores = b.pointwise(CUDNN_POINTWISE_SUB, scores, &[log_sums], shifted)?;
    }
    if of.is_causal {
        let masked_score = b.scalar(MASKED_SCORE)?;
        scores = b.lower_triangle(scores, masked_score, &all)?;
    }
    Ok((scores, scale))
}

/// The graph of the forward pass.
pub(super) fn graph(api: &'static Api, library: *mut c_void, of: &Attention) -> Result<OperationGraph, Refusal> {
    let mut b = GraphBuilder::new(api);
    let (half, all, rows) = (code(of.data_type), of.scores(), of.rows());
    let (query, key) = (b.tensor(QUERY, half, &of.query)?, b.tensor(KEY, half, &transposed(&of.key))?);
    let (value, result) = (b.tensor(VALUE, half, &of.value)?, b.tensor(RESULT, half, &of.result)?);
    let (scores, _) = scores(&mut b, of, [query, key], None)?;
    let (largest, shifted, exps) = (
        b.virtual_tensor(CUDNN_DATA_FLOAT, &rows)?,
        b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?,
        b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?,
    );
    b.reduction(CUDNN_REDUCE_TENSOR_MAX, scores, largest)?;
    b.pointwise(CUDNN_POINTWISE_SUB, scores, &[largest], shifted)?;
    b.pointwise(CUDNN_POINTWISE_EXP, shifted, &[], exps)?;
    let (sums, log) = (b.virtual_tensor(CUDNN_DATA_FLOAT, &rows)?, b.virtual_tensor(CUDNN_DATA_FLOAT, &rows)?);
    b.reduction(CUDNN_REDUCE_TENSOR_ADD, exps, sums)?;
    b.pointwise(CUDNN_POINTWISE_LOG, sums, &[], log)?;
    let log_sums = b.tensor(LOG_SUMS, CUDNN_DATA_FLOAT, &rows)?;
    b.pointwise(CUDNN_POINTWISE_ADD, largest, &[log], log_sums)?;
    let weights = b.virtual_tensor(half, &all)?;
    b.pointwise(CUDNN_POINTWISE_DIV, exps, &[sums], weights)?;
    b.matmul(weights, value, result)?;
    b.finish(library)
}

/// The graph of the backward pass.
pub(super) fn graph_of_grads(
    api: &'static Api,
    library: *mut c_void,
    grads: &AttentionGrads,
) -> Result<OperationGraph, Refusal> {
    let mut b = GraphBuilder::new(api);
    let of = &grads.of;
    let (half, all, rows) = (code(of.data_type), of.scores(), of.rows());
    let (query, key) = (b.tensor(QUERY, half, &of.query)?, b.tensor(KEY, half, &transposed(&of.key))?);
    let (value, result) = (b.tensor(VALUE, half, &transposed(&of.value))?, b.tensor(RESULT, half, &of.result)?);
    let (grad, log_sums) = (b.tensor(GRAD, half, &grads.result)?, b.tensor(LOG_SUMS, CUDNN_DATA_FLOAT, &rows)?);
    // The dot product of each row's result with its gradient.
    let products = b.virtual_tensor(CUDNN_DATA_FLOAT, &Layout4::without_gaps(of.result.sizes))?;
    let sums = b.virtual_tensor(CUDNN_DATA_FLOAT, &rows)?;
    b.pointwise(CUDNN_POINTWISE_MUL, grad, &[result], products)?;
    b.reduction(CUDNN_REDUCE_TENSOR_ADD, products, sums)?;
    let (one, dots) = (b.scalar(ONE)?, b.tensor(DOTS, CUDNN_DATA_FLOAT, &rows)?);
    b.pointwise(CUDNN_POINTWISE_MUL, sums, &[one], dots)?;
    // The weights, and from them the values' gradient.
    let (scores, scale) = scores(&mut b, of, [query, key], Some(log_sums))?;
    let weights = b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?;
    b.pointwise(CUDNN_POINTWISE_EXP, scores, &[], weights)?;
    let weights_t = b.virtual_tensor(half, &transposed(&all))?;
    let value_grad = b.tensor(VALUE_GRAD, half, &grads.value)?;
    b.reshape(weights, weights_t)?;
    b.matmul(weights_t, grad, value_grad)?;
    // The scores' gradient, and from it those of queries and keys.
    let (of_weights, shifted, raw) = (
        b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?,
        b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?,
        b.virtual_tensor(CUDNN_DATA_FLOAT, &all)?,
    );
    b.matmul(grad, value, of_weights)?;
    b.pointwise(CUDNN_POINTWISE_SUB, of_weights, &[dots], shifted)?;
    b.pointwise(CUDNN_POINTWISE_MUL, shifted, &[weights], raw)?;
    let (of_scores, of_scores_t) = (b.virtual_tensor(half, &all)?, b.virtual_tensor(half, &transposed(&all))?);
    b.pointwise(CUDNN_POINTWISE_MUL, raw, &[scale], of_scores)?;
    b.reshape(of_scores, of_scores_t)?;
    let (key_grad, query_grad) = (b.tensor(KEY_GRAD, half, &grads.key)?, b.tensor(QUERY_GRAD, half, &grads.query)?);
    b.matmul(of_scores_t, query, key_grad)?;
    let plain_key = b.virtual_tensor(half, &of.key)?;
    b.reshape(key, plain_key)?;
    if grads.is_deterministic {
        b.matmul(of_scores, plain_key, query_grad)?;
    } else {
        let sums = b.reordered(QUERY_SUMS, CUDNN_DATA_FLOAT, &Layout4::without_gaps(of.query.sizes))?;
        b.matmul(of_scores, plain_key, sums)?;
        b.pointwise(CUDNN_POINTWISE_IDENTITY, sums, &[], query_grad)?;
    }
    b.finish(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attention(batch: usize, heads: usize, words: usize) -> Attention {
        let layout = Layout4::without_gaps([batch, heads, words, 64]);
        Attention {
            data_type: DataType::Bf16,
            is_causal: true,
            choice: Choice::First,
            query: layout,
            key: layout,
            value: layout,
            result: layout,
        }
    }

    #[test]
    fn parts_of_heads_are_as_large_as_scratch_memory_allows() {
        assert_eq!(attention(16, 12, 1024).parts(), (0, 16, 16)); // 384 MiB
        assert_eq!(attention(4, 16, 4096).parts(), (0, 4, 4)); // 2 GiB
        assert_eq!(attention(1, 16, 16384).parts(), (1, 16, 4)); // 8 GiB
        assert_eq!(attention(1, 1, 1 << 20).parts(), (1, 1, 1)); // never shifted than a head
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let right = attention(2, 3, 100);
        let now = MIN_VERSION_FOR_ANY_KEYS;
        assert!(right.check(now).is_ok() && right.check(now - 1).is_err());
        assert!(attention(2, 3, 256).check(MIN_VERSION).is_ok());
        assert!(attention(2, 3, 256).check(MIN_VERSION - 1).is_err());
        let wrong = [
            Attention { data_type: DataType::F32, ..right },
            Attention { key: Layout4::without_gaps([2, 3, 99, 64]), ..right },
            attention(2, 3, 1),
            Attention { result: Layout4::without_gaps([2, 3, 100, 32]), ..right },
            Attention { query: transposed(&right.query), ..right },
        ];
        assert!(wrong.iter().all(|wrong| wrong.check(now).is_err()));
        let odd = Layout4::without_gaps([2, 3, 100, 12]);
        assert!(Attention { query: odd, key: odd, ..right }.check(now).is_err());
    }
}
