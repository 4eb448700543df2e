//! [`Plan`]: the library's descriptors of a product, and the algorithm for it.

use std::{
    ffi::{c_int, c_void},
    mem, ptr,
};

use super::{Api, Matrices, Product};
use crate::library::work::{Handle, Refusal, check_status};
use crate::library::{DataType, Exactness};

/// The key of a cached plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) product: Product,
    /// The alignments of the addresses of the factors and the result.
    pub(super) alignments: [u32; 3],
}

/// The most scratch memory that an algorithm may use.
const MAX_SCRATCH_BYTES: usize = 32 << 20;

/// `cublasLtMatmulAlgo_t`.
pub(super) type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Proposal {
    algorithm: Algorithm,
    scratch_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(mem::size_of::<Proposal>() == 96);

// From `cublasLt.h`.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const EPILOGUE_BIAS: c_int = 4;
const BATCH_COUNT: c_int = 5;
const BATCH_OFFSET: c_int = 6;
const MAX_SCRATCH: c_int = 1;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
const NOT_SUPPORTED: c_int = 15;

pub(super) struct Plan {
    api: &'static Api,
    description: Handle,
    layouts: [Handle; 3], // of the right and the left matrices, and of the results
    algorithm: Algorithm,
    scratch_bytes: usize,
    is_double: bool,
}

/// An object of the library that no plan owns yet. Dropping this destroys the object.
struct OwnedHandle {
    api: &'static Api,
    handle: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl OwnedHandle {
    fn into_handle(self) -> Handle {
        let handle = Handle::new(self.handle);
        mem::forget(self);
        handle
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used after this.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// The leading dimension of a matrix for cuBLASLt, and whether it must be transposed. `None` if neither of its
/// dimensions is contiguous.
fn leading_dimension(matrices: Matrices, [rows, columns]: [usize; 2]) -> Option<(usize, bool)> {
    let leading_of = |inner: usize, len: usize, outer: usize, count: usize| {
        let packed = inner == 1 || len == 1;
        (packed && (outer >= len || count == 1)).then_some(if count == 1 { len } else { outer })
    };
    leading_of(matrices.column, columns, matrices.row, rows)
        .map(|stride| (stride, false))
        .or_else(|| leading_of(matrices.row, rows, matrices.column, columns).map(|stride| (stride, true)))
}

impl Plan {
    pub(super) fn new(api: &'static Api, library: *mut c_void, key: &Key) -> Result<Plan, Refusal> {
        let product = &key.product;
        let [m, n, k] = product.sizes;
        let unsupported = Refusal { call: "Blas::multiply", status: NOT_SUPPORTED };
        let (right_ld, right_transposed) = leading_dimension(product.right, [k, n]).ok_or(unsupported)?;
        let (left_ld, left_transposed) = leading_dimension(product.left, [m, k]).ok_or(unsupported)?;
        let description = describe(api, product, [right_transposed, left_transposed])?;
        let size = |size: usize| size as u64;
        let shape = |[rows, columns]: [usize; 2], is_transposed| match is_transposed {
            true => [columns, rows].map(size),
            false => [rows, columns].map(size),
        };
        let factor = |shape, ld, batch| create_layout(api, product, product.factors, shape, ld, batch);
        let right = factor(shape([n, k], right_transposed), right_ld, product.right.batch)?;
        let left = factor(shape([k, m], left_transposed), left_ld, product.left.batch)?;
        let result = create_layout(api, product, product.results, [n, m].map(size), n, m * n)?;
        let layouts = [&right, &left, &result].map(|layout| layout.handle);
        let proposal = propose(api, library, key, description.handle, layouts)?;
        Ok(Plan {
            api,
            description: description.into_handle(),
            layouts: [right, left, result].map(OwnedHandle::into_handle),
            algorithm: proposal.algorithm,
            scratch_bytes: proposal.scratch_bytes,
            is_double: product.factors == DataType::F64,
        })
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Queues the product of the matrices at these addresses, and returns the library's status.
    ///
    /// # Safety
    /// The addresses are those of the left, the right and the result matrices of the plan's product, with the
    /// alignments of the plan's key. If the plan needs them, there are a bias, and scratch memory of the plan's size.
    /// The device is current, and the stream's work may use all of this memory.
    pub(super) unsafe fn run(
        &self,
        library: *mut c_void,
        [left, right, result]: [u64; 3],
        bias: Option<u64>,
        scratch: u64,
        stream: *mut c_void,
    ) -> c_int {
        if let Some(bias) = bias
            && let Err(refusal) = set(self.api, self.description.get(), BIAS_POINTER, bias)
        {
            return refusal.status;
        }
        let (single, double) = ([1.0_f32, 0.0], [1.0_f64, 0.0]);
        let [one, zero]: [*const c_void; 2] = match self.is_double {
            true => double.each_ref().map(|number| ptr::from_ref(number).cast()),
            false => single.each_ref().map(|number| ptr::from_ref(number).cast()),
        };
        let [left, right, result, scratch] =
            [left, right, result, scratch].map(|address| ptr::without_provenance_mut::<c_void>(address as usize));
        let [right_layout, left_layout, result_layout] = self.layouts.map(Handle::get);
        // SAFETY: the plan owns the handles; the caller vouches for the rest.
        unsafe {
            (self.api.multiply)(
                library,
                self.description.get(),
                one,
                right,
                right_layout,
                left,
                left_layout,
                zero,
                result,
                result_layout,
                result,
                result_layout,
                &self.algorithm,
                scratch,
                self.scratch_bytes,
                stream,
            )
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let layouts = self.layouts.map(|layout| (layout, self.api.destroy_layout));
        for (handle, destroy) in layouts.into_iter().chain([(self.description, self.api.destroy)]) {
            drop(OwnedHandle { api: self.api, handle: handle.get(), destroy });
        }
    }
}

/// The library's descriptor of the operation. `transposed` says whether the right and the left matrices are transposed.
fn describe(api: &'static Api, product: &Product, transposed: [bool; 2]) -> Result<OwnedHandle, Refusal> {
    let (compute, scale) = match (product.factors, product.exactness) {
        (DataType::F64, _) => (70, code(DataType::F64)), // CUBLAS_COMPUTE_64F
        (DataType::F32, Exactness::Tf32) => (77, code(DataType::F32)), // CUBLAS_COMPUTE_32F_FAST_TF32
        (DataType::F32, Exactness::Bf16) => (75, code(DataType::F32)), // CUBLAS_COMPUTE_32F_FAST_16BF
        _ => (68, code(DataType::F32)),                  // CUBLAS_COMPUTE_32F
    };
    let mut handle = ptr::null_mut();
    // SAFETY: writes one handle.
    check_status("cublasLtMatmulDescCreate", unsafe { (api.describe)(&mut handle, compute, scale) })?;
    let descriptor = OwnedHandle { api, handle, destroy: api.destroy };
    set(descriptor.api, handle, TRANSPOSE_A, i32::from(transposed[0]))?;
    set(descriptor.api, handle, TRANSPOSE_B, i32::from(transposed[1]))?;
    if product.has_bias {
        set(descriptor.api, handle, EPILOGUE, EPILOGUE_BIAS)?;
    }
    Ok(descriptor)
}

/// The library's code of a type.
fn code(data_type: DataType) -> c_int {
    match data_type {
        DataType::F32 => 0,
        DataType::F64 => 1,
        DataType::F16 => 2,
        DataType::Bf16 => 14,
    }
}

/// The library's descriptor of column-major matrices with these rows and columns.
fn create_layout(
    api: &'static Api,
    product: &Product,
    data_type: DataType,
    [rows, columns]: [u64; 2],
    leading_dimension: usize,
    batch: usize,
) -> Result<OwnedHandle, Refusal> {
    let mut handle = ptr::null_mut();
    // SAFETY: writes one handle.
    let status = unsafe { (api.create_layout)(&mut handle, code(data_type), rows, columns, leading_dimension as i64) };
    check_status("cublasLtMatrixLayoutCreate", status)?;
    let descriptor = OwnedHandle { api, handle, destroy: api.destroy_layout };
    if product.batches > 1 {
        set_layout(api, handle, BATCH_COUNT, product.batches as i32)?;
        set_layout(api, handle, BATCH_OFFSET, batch as i64)?;
    }
    Ok(descriptor)
}

/// The library's first proposal.
fn propose(
    api: &'static Api,
    library: *mut c_void,
    key: &Key,
    description: *mut c_void,
    [right, left, result]: [*mut c_void; 3],
) -> Result<Proposal, Refusal> {
    let mut handle = ptr::null_mut();
    // SAFETY: writes one handle.
    check_status("cublasLtMatmulPreferenceCreate", unsafe { (api.create_preference)(&mut handle) })?;
    let preference = OwnedHandle { api, handle, destroy: api.destroy_preference };
    set_preference(api, handle, MAX_SCRATCH, MAX_SCRATCH_BYTES)?;
    let [left_alignment, right_alignment, result_alignment] = key.alignments;
    let alignments = [right_alignment, left_alignment, result_alignment, result_alignment];
    for (attribute, alignment) in ALIGNMENTS.into_iter().zip(alignments) {
        set_preference(api, handle, attribute, alignment)?;
    }
    let (mut proposal, mut count) = (Proposal::default(), 0);
    // SAFETY: all handles are the library's; writes one proposal and their number.
    let status = unsafe {
        (api.propose)(
            library,
            description,
            right,
            left,
            result,
            result,
            preference.handle,
            1,
            &mut proposal,
            &mut count,
        )
    };
    check_status("cublasLtMatmulAlgoGetHeuristic", status)?;
    match (count, proposal.status) {
        (1.., 0) => Ok(proposal),
        (0, _) => Err(Refusal { call: "cublasLtMatmulAlgoGetHeuristic", status: NOT_SUPPORTED }),
        (_, status) => Err(Refusal { call: "cublasLtMatmulAlgoGetHeuristic", status }),
    }
}

/// Defines a function that sets an attribute.
macro_rules! setter {
    ($name:ident, $call:literal) => {
        fn $name<V: bytemuck::Pod>(api: &Api, handle: *mut c_void, attribute: c_int, value: V) -> Result<(), Refusal> {
            // SAFETY: the handle is the library's, which copies `size_of::<V>()` bytes.
            let status = unsafe { (api.$name)(handle, attribute, ptr::from_ref(&value).cast(), mem::size_of::<V>()) };
            check_status($call, status)
        }
    };
}

setter!(set, "cublasLtMatmulDescSetAttribute");
setter!(set_layout, "cublasLtMatrixLayoutSetAttribute");
setter!(set_preference, "cublasLtMatmulPreferenceSetAttribute");
