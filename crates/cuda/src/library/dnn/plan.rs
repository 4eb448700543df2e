//! What is found out once about a convolution: its description in the library's words, and a plan to compute it.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use super::{
    Api, Convolution, ConvolutionKind, Layout4,
    descriptor::{Descriptor, Values},
};
use crate::library::work::Refusal;
use crate::library::{DataType, Exactness};

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) convolution: Convolution,
    /// Of the addresses of image, weight and result.
    pub(super) alignments: [u32; 3],
    /// The most scratch memory.
    pub(super) scratch_bytes: usize,
}

// Kinds of objects: `cudnnBackendDescriptorType_t`.
const CONVOLUTION: c_int = 1;
const ENGINE: c_int = 2;
const CONFIGURATION: c_int = 3;
const HEURISTIC: c_int = 4;
const PLAN: c_int = 5;
const GRAPH: c_int = 15;
const PACK: c_int = 16;
const TENSOR: c_int = 17;

// Types of attributes: `cudnnBackendAttributeType_t`.
const DATA_TYPE: c_int = 1;
const MODE: c_int = 7;
const HEURISTIC_MODE: c_int = 8;
const NOTE: c_int = 11;

// `cudnnBackendNumericalNote_t`.
const TENSOR_CORE: c_int = 0;
const ROUNDS_INPUTS: c_int = 1;
const REDUCED_SUMS: c_int = 2;
const NONDETERMINISTIC: c_int = 4;

// `cudnnBackendHeurMode_t`: a model of how fast engines are, and engines that work for everything.
const BY_SPEED: c_int = 3;
const FOR_EVERYTHING: c_int = 2;

/// More than there are: the model has named up to 37, and of `f32` those that use tensor cores come first.
const MOST_PROPOSALS: usize = 128;
pub(super) const UNSUPPORTED: Refusal = Refusal { call: "cudnnBackendFinalize of any plan", status: 3000 };

pub(super) struct Plan {
    api: &'static Api,
    plan: Descriptor,
    scratch_bytes: usize,
    _parts: (Arc<Parts>, Descriptor), // what the plan was made of
}

/// The graph of a convolution, and what that consists of.
struct Parts {
    graph: Descriptor,
    _others: Vec<Descriptor>,
}

impl Plan {
    /// The first that suits, of those that the library proposes.
    pub(super) fn first(api: &'static Api, library: *mut c_void, key: &Key) -> Result<Plan, Refusal> {
        Plan::all(api, library, key, |_| true)?.next().map(|(_, plan)| plan).ok_or(UNSUPPORTED)
    }

    /// Those that suit, of those that the library proposes and whose numbers are `wanted`, with their numbers.
    pub(super) fn all<'a>(
        api: &'static Api,
        library: *mut c_void,
        key: &'a Key,
        wanted: impl Fn(usize) -> bool + 'a,
    ) -> Result<impl Iterator<Item = (usize, Plan)> + 'a, Refusal> {
        let parts = Arc::new(graph(api, library, key)?);
        let of_mode = {
            let parts = parts.clone();
            move |mode| proposals(api, &parts.graph, mode).unwrap_or_default()
        };
        let configurations = [BY_SPEED, FOR_EVERYTHING].into_iter().flat_map(of_mode).enumerate();
        let plan = move |(number, configuration): (usize, Descriptor)| {
            if !wanted(number) || !is_acceptable(&configuration, &key.convolution).unwrap_or(false) {
                return None;
            }
            let attributes = [(400, Values::Library(library)), (401, Values::Descriptors(&[&configuration]))];
            let plan = Descriptor::with(api, PLAN, &attributes).ok()?;
            let scratch_bytes = plan.integer(402).ok()?.max(0) as usize;
            let plan = Plan { api, plan, scratch_bytes, _parts: (parts.clone(), configuration) };
            (scratch_bytes <= key.scratch_bytes).then_some((number, plan))
        };
        Ok(configurations.filter_map(plan))
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Asks for the convolution of what is at these addresses, on the stream that was set; the library's status.
    ///
    /// # Safety
    /// There are such image, weight and result, and where it is for the plan, scratch memory. The device is current, no
    /// other thread uses the handle, and they are used as the stream's work may use them.
    pub(super) unsafe fn run(&self, library: *mut c_void, addresses: [u64; 3], scratch: u64) -> c_int {
        let attributes = [
            (1001, Values::Addresses(&addresses)),
            (1000, Values::Integers(&UIDS)),
            (1003, Values::Addresses(&[scratch])),
        ];
        match Descriptor::with(self.api, PACK, &attributes) {
            // SAFETY: the library's own objects; what the caller promises.
            Ok(pack) => unsafe { (self.api.execute)(library, self.plan.get(), pack.get()) },
            Err(refusal) => refusal.status,
        }
    }
}

/// What image, weight and result are called.
const UIDS: [i64; 3] = [1, 2, 3];

/// The library's number for a type.
fn code(data_type: DataType) -> Values<'static> {
    let code = match data_type {
        DataType::F32 => 0,
        DataType::F64 => 1,
        DataType::F16 => 2,
        DataType::Bf16 => 9,
    };
    Values::Choice(DATA_TYPE, code)
}

fn tensor(
    api: &'static Api,
    data_type: DataType,
    layout: &Layout4,
    uid: i64,
    alignment: u32,
) -> Result<Descriptor, Refusal> {
    let [sizes, strides] = [layout.sizes, layout.strides].map(|sizes| sizes.map(|size| size as i64));
    let attributes = [
        (901, code(data_type)),
        (902, Values::Integers(&sizes)),
        (903, Values::Integers(&strides)),
        (906, Values::Integers(&[uid])),
        (900, Values::Integers(&[i64::from(alignment.max(data_type.size_bytes() as u32))])),
    ];
    Descriptor::with(api, TENSOR, &attributes)
}

/// The operation as a graph.
fn graph(api: &'static Api, library: *mut c_void, key: &Key) -> Result<Parts, Refusal> {
    let c = &key.convolution;
    let tensor = |i: usize, layout| tensor(api, c.data_type, layout, UIDS[i], key.alignments[i]);
    let (image, weight, result) = (tensor(0, &c.image)?, tensor(1, &c.weight)?, tensor(2, &c.result)?);
    let sums = if c.data_type == DataType::F64 { DataType::F64 } else { DataType::F32 };
    let [stride, padding, dilation] = [c.stride, c.padding, c.dilation].map(|both| both.map(|size| size as i64));
    let geometry = [
        (100, code(sums)),
        (101, Values::Choice(MODE, 1)), // cross-correlation
        (102, Values::Integers(&dilation)),
        (103, Values::Integers(&stride)),
        (104, Values::Integers(&padding)),
        (105, Values::Integers(&padding)),
        (106, Values::Integers(&[2])),
    ];
    let geometry = Descriptor::with(api, CONVOLUTION, &geometry)?;
    // The kind of object, and its attributes for image, weight, result, geometry, and the factors of old and new result.
    let (kind, names) = match c.kind {
        ConvolutionKind::Forward => (10, [704, 703, 705, 702, 700, 701]),
        ConvolutionKind::ImageGrad => (12, [710, 709, 711, 708, 706, 707]),
        ConvolutionKind::WeightGrad => (11, [716, 715, 717, 714, 712, 713]),
    };
    let factor = |value: f32| match sums {
        DataType::F64 => Values::DoubleNumber(value.into()),
        _ => Values::Number(value),
    };
    let operation = [
        (names[0], Values::Descriptors(&[&image])),
        (names[1], Values::Descriptors(&[&weight])),
        (names[2], Values::Descriptors(&[&result])),
        (names[3], Values::Descriptors(&[&geometry])),
        (names[4], factor(1.0)),
        (names[5], factor(0.0)),
    ];
    let operation = Descriptor::with(api, kind, &operation)?;
    let attributes = [(800, Values::Library(library)), (801, Values::Descriptors(&[&operation]))];
    let graph = Descriptor::with(api, GRAPH, &attributes)?;
    Ok(Parts { graph, _others: vec![image, weight, result, geometry, operation] })
}

/// How the library would compute a graph, the best first.
fn proposals(api: &'static Api, graph: &Descriptor, mode: c_int) -> Result<Vec<Descriptor>, Refusal> {
    let attributes = [(201, Values::Descriptors(&[graph])), (200, Values::Choice(HEURISTIC_MODE, mode))];
    match Descriptor::with(api, HEURISTIC, &attributes) {
        Ok(heuristic) => heuristic.descriptors(202, CONFIGURATION, MOST_PROPOSALS),
        Err(_) => Ok(Vec::new()),
    }
}

/// Whether it gives the same bits each time, and is as exact as asked for.
fn is_acceptable(configuration: &Descriptor, convolution: &Convolution) -> Result<bool, Refusal> {
    let engines = configuration.descriptors(300, ENGINE, 1)?;
    let Some(engine) = engines.first() else { return Ok(false) };
    let notes = engine.choices(1303, NOTE)?;
    let is_f32 = convolution.data_type == DataType::F32;
    let refused: &[c_int] = match convolution.exactness {
        Exactness::Exact if is_f32 => &[NONDETERMINISTIC, REDUCED_SUMS, ROUNDS_INPUTS, TENSOR_CORE],
        _ if is_f32 => &[NONDETERMINISTIC, REDUCED_SUMS, ROUNDS_INPUTS],
        _ => &[NONDETERMINISTIC],
    };
    Ok(!notes.iter().any(|note| refused.contains(note)))
}
