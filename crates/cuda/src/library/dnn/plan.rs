//! [`Plan`]: the library's plan to compute a graph.

use std::{
    ffi::{c_int, c_void},
    fmt,
    sync::Arc,
};

use super::{
    Api, Attention, AttentionGrads, Choice, Convolution, Layout4, attention, convolution,
    descriptor::{Descriptor, Values},
    header::*,
};
use crate::library::work::Refusal;
use crate::library::{DataType, Exactness};

/// A requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "a value is copied only once or twice per call")]
pub(super) enum Operation {
    /// With the alignments of the addresses of image, weight and result.
    Convolution(Convolution, [u32; 3]),
    Attention(Attention),
    AttentionGrads(AttentionGrads),
}

/// The library has proposed up to 37. For `f32`, it lists engines with tensor cores first, so a lower limit might cut
/// off all exact engines.
const MAX_PROPOSALS: usize = 128;
pub(super) const UNSUPPORTED: Refusal = Refusal { call: "cudnnBackendFinalize of any plan", status: 3000 };

pub(super) struct Plan {
    api: &'static Api,
    plan: Descriptor,
    scratch_bytes: usize,
    _parts: (Arc<OperationGraph>, Descriptor), // the objects that the plan refers to
}

/// A graph and the objects that it refers to.
pub(super) struct OperationGraph {
    descriptor: Descriptor,
    _others: Vec<Descriptor>,
}

impl OperationGraph {
    /// The graph of these operations, which refer to the objects `others`.
    pub(super) fn new(
        api: &'static Api,
        library: *mut c_void,
        operations: Vec<Descriptor>,
        others: Vec<Descriptor>,
    ) -> Result<OperationGraph, Refusal> {
        let all: Vec<&Descriptor> = operations.iter().collect();
        let attributes = [
            (CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Values::Library(library)),
            (CUDNN_ATTR_OPERATIONGRAPH_OPS, Values::Descriptors(&all)),
        ];
        let descriptor = Descriptor::with(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &attributes)?;
        Ok(OperationGraph { descriptor, _others: others.into_iter().chain(operations).collect() })
    }
}

impl Operation {
    pub(super) fn choice_mut(&mut self) -> &mut Choice {
        match self {
            Operation::Convolution(convolution, _) => &mut convolution.choice,
            Operation::Attention(attention) => &mut attention.choice,
            Operation::AttentionGrads(grads) => &mut grads.of.choice,
        }
    }

    /// The most scratch memory that a plan may use. Attention has no limit here, since its gradients are computed in
    /// parts.
    pub(super) fn max_scratch_bytes(&self) -> usize {
        match self {
            Operation::Convolution(..) => 1 << 30,
            Operation::Attention(_) | Operation::AttentionGrads(_) => usize::MAX,
        }
    }

    fn graph(&self, api: &'static Api, library: *mut c_void) -> Result<OperationGraph, Refusal> {
        match self {
            Operation::Convolution(convolution, alignments) => {
                convolution::graph(api, library, convolution, *alignments)
            }
            Operation::Attention(attention) => attention::graph(api, library, attention),
            Operation::AttentionGrads(grads) => attention::graph_of_grads(api, library, grads),
        }
    }

    /// The properties that an engine must not have: results that differ from run to run, or a lower precision than
    /// requested.
    fn refused_notes(&self) -> &'static [c_int] {
        match self {
            Operation::Convolution(Convolution { data_type: DataType::F32, exactness, .. }, _) => match exactness {
                Exactness::Exact => &[
                    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                    CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                    CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                    CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                ],
                Exactness::Tf32 | Exactness::Bf16 => &[
                    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                    CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                    CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                ],
            },
            Operation::AttentionGrads(AttentionGrads { is_deterministic: false, .. }) => &[],
            _ => &[CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC],
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Convolution(convolution, _) => convolution.fmt(f),
            Operation::Attention(attention) => attention.fmt(f),
            Operation::AttentionGrads(grads) => write!(f, "gradients of {}", grads.of),
        }
    }
}

impl Plan {
    /// The first suitable plan that the library proposes.
    pub(super) fn first(api: &'static Api, library: *mut c_void, operation: &Operation) -> Result<Plan, Refusal> {
        Plan::all(api, library, operation, |_| true)?.next().map(|(_, plan)| plan).ok_or(UNSUPPORTED)
    }

    /// The suitable plans at the `wanted` positions of the library's proposals, with their positions.
    pub(super) fn all<'a>(
        api: &'static Api,
        library: *mut c_void,
        operation: &'a Operation,
        wanted: impl Fn(usize) -> bool + 'a,
    ) -> Result<impl Iterator<Item = (usize, Plan)> + 'a, Refusal> {
        let graph = Arc::new(operation.graph(api, library)?);
        let of_mode = {
            let graph = graph.clone();
            move |mode| proposals(api, &graph.descriptor, mode).unwrap_or_default()
        };
        // Engines sorted by a model of their speed, then engines that support all operations.
        let modes = [CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK];
        let configurations = modes.into_iter().flat_map(of_mode).enumerate();
        let plan = move |(position, configuration): (usize, Descriptor)| {
            if !wanted(position) || !is_acceptable(&configuration, operation).unwrap_or(false) {
                return None;
            }
            let attributes = [
                (CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Values::Library(library)),
                (CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, Values::Descriptors(&[&configuration])),
            ];
            let plan = Descriptor::with(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &attributes).ok()?;
            let scratch_bytes = plan.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE).ok()?.max(0) as usize;
            let plan = Plan { api, plan, scratch_bytes, _parts: (graph.clone(), configuration) };
            (scratch_bytes <= operation.max_scratch_bytes()).then_some((position, plan))
        };
        Ok(configurations.filter_map(plan))
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Queues the plan's work for the tensors with these UIDs and addresses, on the stream that was set. Returns the
    /// library's status.
    ///
    /// # Safety
    /// The addresses are those of the graph's tensors, and there is scratch memory of the plan's size. The device is
    /// current, no other thread uses the handle, and the stream's work may use all of this memory.
    pub(super) unsafe fn run(&self, library: *mut c_void, tensors: &[(i64, u64)], scratch: u64) -> c_int {
        let (uids, addresses): (Vec<i64>, Vec<u64>) = tensors.iter().copied().unzip();
        let attributes = [
            (CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Values::Addresses(&addresses)),
            (CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Values::Integers(&uids)),
            (CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Values::Addresses(&[scratch])),
        ];
        match Descriptor::with(self.api, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &attributes) {
            // SAFETY: the objects belong to the library; the rest is the caller's promise.
            Ok(pack) => unsafe { (self.api.execute)(library, self.plan.get(), pack.get()) },
            Err(refusal) => refusal.status,
        }
    }
}

/// The library's code for a type.
pub(super) fn code(data_type: DataType) -> c_int {
    match data_type {
        DataType::F32 => CUDNN_DATA_FLOAT,
        DataType::F64 => CUDNN_DATA_DOUBLE,
        DataType::F16 => CUDNN_DATA_HALF,
        DataType::Bf16 => CUDNN_DATA_BFLOAT16,
    }
}

/// A tensor with additional attributes. Each call passes its address under this UID.
pub(super) fn tensor(
    api: &'static Api,
    data_type: c_int,
    layout: &Layout4,
    uid: i64,
    alignment: u32,
    attributes: &[(c_int, Values<'_>)],
) -> Result<Descriptor, Refusal> {
    let [sizes, strides] = [layout.sizes, layout.strides].map(|sizes| sizes.map(|size| size as i64));
    let tensor = Descriptor::new(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, &Values::Enum(CUDNN_TYPE_DATA_TYPE, data_type))?;
    tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, &Values::Integers(&sizes))?;
    tensor.set(CUDNN_ATTR_TENSOR_STRIDES, &Values::Integers(&strides))?;
    tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, &Values::Integers(&[uid]))?;
    tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &Values::Integers(&[i64::from(alignment)]))?;
    attributes.iter().try_for_each(|(name, values)| tensor.set(*name, values))?;
    tensor.finalized()
}

/// The configurations that the library proposes for a graph, the best first.
fn proposals(api: &'static Api, graph: &Descriptor, mode: c_int) -> Result<Vec<Descriptor>, Refusal> {
    let attributes = [
        (CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, Values::Descriptors(&[graph])),
        (CUDNN_ATTR_ENGINEHEUR_MODE, Values::Enum(CUDNN_TYPE_HEUR_MODE, mode)),
    ];
    match Descriptor::with(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &attributes) {
        Ok(heuristic) => {
            heuristic.descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, MAX_PROPOSALS)
        }
        Err(_) => Ok(Vec::new()),
    }
}

/// Whether the configuration has the requested precision and determinism.
fn is_acceptable(configuration: &Descriptor, operation: &Operation) -> Result<bool, Refusal> {
    let engines = configuration.descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?;
    let Some(engine) = engines.first() else { return Ok(false) };
    let notes = engine.enums(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE)?;
    Ok(!notes.iter().any(|note| operation.refused_notes().contains(note)))
}
