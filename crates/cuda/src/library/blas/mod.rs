//! [`Blas`]: products of matrices by cuBLASLt.
//!
//! The descriptors of a [`Product`], and the algorithm that the library proposes first, are cached. cuBLASLt's
//! matrices are column-major, so it computes the transpose of the result: rightᵀ · leftᵀ.

mod plan;

use std::{
    ffi::{c_int, c_void},
    fmt,
    sync::{Arc, OnceLock},
};

use self::plan::{Key, Plan};
use super::{
    DataType, Exactness, alignment,
    load::{LibrarySpec, functions},
    work::{self, Handle, PlanCache, Refusal},
};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device::Device,
    error::{Error, LibraryAbsence, Result},
    stream::Stream,
    sync::{Mutex, lock},
};

const LIBRARY: &str = "cuBLASLt";

const SPEC: LibrarySpec = LibrarySpec {
    name: LIBRARY,
    files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    variable: "PAGELOCK_CUBLAS",
    package_folders: &["nvidia/cu13/lib", "nvidia/cublas/lib"],
    install: "install the CUDA toolkit or `pip install nvidia-cublas`",
    dependencies: &[],
};

functions! {
    c_int;
    create = "cublasLtCreate" (*mut *mut c_void);
    describe = "cublasLtMatmulDescCreate" (*mut *mut c_void, c_int, c_int);
    destroy = "cublasLtMatmulDescDestroy" (*mut c_void);
    set = "cublasLtMatmulDescSetAttribute" (*mut c_void, c_int, *const c_void, usize);
    create_layout = "cublasLtMatrixLayoutCreate" (*mut *mut c_void, c_int, u64, u64, i64);
    destroy_layout = "cublasLtMatrixLayoutDestroy" (*mut c_void);
    set_layout = "cublasLtMatrixLayoutSetAttribute" (*mut c_void, c_int, *const c_void, usize);
    create_preference = "cublasLtMatmulPreferenceCreate" (*mut *mut c_void);
    destroy_preference = "cublasLtMatmulPreferenceDestroy" (*mut c_void);
    set_preference = "cublasLtMatmulPreferenceSetAttribute" (*mut c_void, c_int, *const c_void, usize);
    propose = "cublasLtMatmulAlgoGetHeuristic" (
        *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, c_int,
        *mut plan::Proposal, *mut c_int,
    );
    multiply = "cublasLtMatmul" (
        *mut c_void, *mut c_void, *const c_void, *const c_void, *mut c_void, *const c_void, *mut c_void, *const c_void,
        *const c_void, *mut c_void, *mut c_void, *mut c_void, *const plan::Algorithm, *mut c_void, usize, *mut c_void,
    );
}

fn api() -> Result<&'static Api, LibraryAbsence> {
    static API: OnceLock<Result<Api, LibraryAbsence>> = OnceLock::new();
    API.get_or_init(|| SPEC.load(Api::load).map(|(api, _)| api)).as_ref().map_err(LibraryAbsence::clone)
}

/// Loads the library, and returns whether it exists.
pub(super) fn is_available() -> bool {
    api().is_ok()
}

/// The strides of a batch of matrices: element `[b, i, j]` is at index `b · batch + i · row + j · column`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrices {
    /// The stride from one row to the next, in elements.
    pub row: usize,
    /// The stride from one column to the next.
    pub column: usize,
    /// The stride from one matrix to the next; 0 if all batches use the same matrix.
    pub batch: usize,
}

/// `batches` products of an `[m, k]` and a `[k, n]` matrix. The results are contiguous: `[batches, m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// `[m, n, k]`, none of them 0.
    pub sizes: [usize; 3],
    /// The number of products; not 0.
    pub batches: usize,
    /// The `[m, k]` matrices.
    pub left: Matrices,
    /// The `[k, n]` matrices.
    pub right: Matrices,
    /// The type of the factors.
    pub factors: DataType,
    /// The type of the results: that of the factors, or `f32`.
    pub results: DataType,
    /// How `f32` factors are rounded.
    pub exactness: Exactness,
    /// Whether a bias is added: one number per column, of the results' type, for all rows.
    pub has_bias: bool,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.sizes;
        write!(f, "[{m}, {k}] · [{k}, {n}] of {:?}", self.factors)?;
        if self.batches > 1 { write!(f, ", {} times", self.batches) } else { Ok(()) }
    }
}

/// cuBLASLt for one device.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, library::{Blas, DataType, Exactness, Matrices, Product}};
///
/// # fn main() -> Result<(), pagelock_cuda::Error> {
/// let Ok(device) = Device::cuda(0) else { return Ok(()) };
/// let blas = match Blas::new(&device) {
///     Ok(blas) => blas,
///     Err(missing) => return Ok(println!("{missing}")),
/// };
/// let stream = device.stream()?;
/// let (a, mut out) = (stream.zeros::<f32>(64 * 64)?, stream.allocate::<f32>(64 * 64)?);
/// let square = Matrices { row: 64, column: 1, batch: 0 };
/// let product = Product {
///     sizes: [64, 64, 64],
///     batches: 1,
///     left: square,
///     right: square,
///     factors: DataType::F32,
///     results: DataType::F32,
///     exactness: Exactness::Exact,
///     has_bias: false,
/// };
/// blas.multiply(&stream, &product, [a.view().bytes(), a.view().bytes()], None, out.view_mut().bytes())?;
/// assert_eq!(stream.read(&out)?, [0.0; 64 * 64]);
/// # Ok(())
/// # }
/// ```
pub struct Blas {
    device: Device,
    api: &'static Api,
    handle: Handle, // thread-safe
    plans: PlanCache<Key, Plan>,
}

impl Blas {
    /// Starts the library for a device. The first call loads the library.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] lists the places that were searched, and what to install; [`Error::Driver`].
    pub fn new(device: &Device) -> Result<Blas> {
        let api = api()?;
        work::make_current(device, LIBRARY)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which is kept until the process exits.
        match unsafe { (api.create)(&mut handle) } {
            0 => Ok(Blas { device: device.clone(), api, handle: Handle::new(handle), plans: PlanCache::new() }),
            status => Err(LibraryAbsence::NotStarted { library: LIBRARY, status }.into()),
        }
    }

    /// Queues the products. `factors` are the left and the right matrices.
    ///
    /// # Errors
    /// [`Error::Library`] if the library has no algorithm for such matrices, for example because both strides of a
    /// factor are above 1; [`Error::Unsupported`] for an empty product; [`Error::Argument`] if matrices reach beyond
    /// their buffers, [`Error::OtherDevice`], [`Error::Driver`].
    pub fn multiply(
        &self,
        stream: &Stream,
        product: &Product,
        factors: [DeviceView<'_, u8>; 2],
        bias: Option<DeviceView<'_, u8>>,
        out: DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        work::check_device(&self.device, stream)?;
        product.check(factors.map(|factor| factor.len()), bias.map(|bias| bias.len()), out.len())?;
        factors.iter().chain(&bias).try_for_each(|view| view.check_same_device(stream.core()))?;
        out.check_same_device(stream.core())?;
        let addresses = [factors[0].address().0, factors[1].address().0, out.address().0];
        let plan = self.plan(Key { product: *product, alignments: addresses.map(alignment) })?;
        let scratch_bytes = lock(&plan).scratch_bytes();
        let scratch = work::scratch(stream, scratch_bytes)?;
        let plan = lock(&plan);
        let bias_address = bias.map(|bias| bias.address().0);
        let mut accesses = [factors[0].access(); 5];
        accesses[1] = factors[1].access();
        accesses[2] = out.access();
        accesses[3] = bias.map_or(accesses[0], |bias| bias.access());
        accesses[4] = scratch.as_ref().map_or(accesses[0], |scratch| scratch.view().access());
        let scratch = scratch.as_ref().map_or(0, |scratch| scratch.address().0);
        let result = work::enqueue(stream, &accesses, |stream| {
            // SAFETY: the addresses are those of the matrices that `product` describes (checked), with the alignments
            // of the plan; `enqueue` orders the buffers.
            unsafe { plan.run(self.handle.get(), addresses, bias_address, scratch, stream) }
        })?;
        result.map_err(|status| product.refused("cublasLtMatmul", status))
    }

    fn plan(&self, key: Key) -> Result<Arc<Mutex<Plan>>> {
        let plan = self.plans.get(key, || {
            work::make_current(&self.device, LIBRARY)?;
            Ok(Plan::new(self.api, self.handle.get(), &key))
        })?;
        plan.map_err(|Refusal { call, status }| key.product.refused(call, status))
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blas(on {:?})", self.device)
    }
}

impl Product {
    fn refused(&self, call: &'static str, status: i32) -> Error {
        Error::Library { library: LIBRARY, what: self.to_string(), call, status }
    }

    /// An error unless the product is valid and all matrices are inside buffers of these lengths in bytes.
    fn check(&self, factors: [usize; 2], bias: Option<usize>, out: usize) -> Result<()> {
        let [m, n, k] = self.sizes;
        let (size, result_size) = (self.factors.size_bytes(), self.results.size_bytes());
        let last = |matrices: Matrices, [rows, columns]: [usize; 2]| {
            let at = (self.batches - 1).checked_mul(matrices.batch)?;
            let at = at.checked_add((rows - 1).checked_mul(matrices.row)?)?;
            at.checked_add((columns - 1).checked_mul(matrices.column)?)
        };
        let inside = |end: Option<usize>, size: usize, len: usize| {
            let end = end.and_then(|last| last.checked_add(1)?.checked_mul(size)).unwrap_or(usize::MAX);
            if end <= len { Ok(()) } else { Err(Error::range(0, end, len)) }
        };
        let has_batches = (1..=i32::MAX as usize).contains(&self.batches);
        if self.sizes.contains(&0) || !has_batches || self.has_bias != bias.is_some() {
            let requirement = "sizes and batches must be at least 1, and a bias is given exactly if `has_bias`";
            return Err(Error::Unsupported { library: LIBRARY, what: self.to_string(), requirement });
        }
        inside(last(self.left, [m, k]), size, factors[0])?;
        inside(last(self.right, [k, n]), size, factors[1])?;
        let all = self.batches.checked_mul(m).and_then(|rows| Some(rows.checked_mul(n)? - 1));
        inside(all, result_size, out)?;
        bias.map_or(Ok(()), |bias| inside(Some(n - 1), result_size, bias))
    }
}
