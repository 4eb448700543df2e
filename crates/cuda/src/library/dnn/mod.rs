//! [`Dnn`]: convolutions by cuDNN.
//!
//! What is asked once for a [`Convolution`] is kept: a plan that is deterministic and as exact as was asked for, the first
//! that the library proposes or the fastest. `descriptor.rs` has the library's one kind of object, `plan.rs` what is made
//! of them, `measure.rs` finds the fastest.

mod descriptor;
mod measure;
mod plan;

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    fmt,
    sync::{Arc, OnceLock},
};

use self::plan::{Key, Plan};
use super::{
    DataType, Exactness, alignment,
    load::{Wanted, functions},
    work::{self, Handle, Refusal},
};
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    device::Device,
    error::{Error, LibraryAbsence, Result},
    stream::{Access, Stream},
    sync::{Mutex, lock},
};

const LIBRARY: &str = "cuDNN";

const WANTED: Wanted = Wanted {
    name: LIBRARY,
    files: &["libcudnn.so.9", "libcudnn.so"],
    variable: "PAGELOCK_CUDNN",
    in_packages: &["nvidia/cudnn/lib"],
    install: "install cuDNN 9 or `pip install nvidia-cudnn-cu13`",
};

functions! {
    "cuDNN";
    create = "cudnnCreate" (*mut *mut c_void);
    set_stream = "cudnnSetStream" (*mut c_void, *mut c_void);
    create_descriptor = "cudnnBackendCreateDescriptor" (c_int, *mut *mut c_void);
    destroy_descriptor = "cudnnBackendDestroyDescriptor" (*mut c_void);
    finalize = "cudnnBackendFinalize" (*mut c_void);
    set = "cudnnBackendSetAttribute" (*mut c_void, c_int, c_int, i64, *const c_void);
    get = "cudnnBackendGetAttribute" (*mut c_void, c_int, c_int, i64, *mut i64, *mut c_void);
    execute = "cudnnBackendExecute" (*mut c_void, *mut c_void, *mut c_void);
}

/// The functions, and the library's version.
fn api() -> Result<&'static (Api, usize), LibraryAbsence> {
    static API: OnceLock<Result<(Api, usize), LibraryAbsence>> = OnceLock::new();
    let load = || {
        // Some of cuDNN uses these, and finds them once they are loaded; without them it does without.
        let _ = (crate::kernel::compiler_version(), super::blas::is_there());
        let library = WANTED.open()?;
        let api = Api::load(&library)?;
        // SAFETY: the library's header declares the function with these types.
        let version = unsafe { library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0") };
        let version = version.map_err(|_| LibraryAbsence::NoSymbol { library: LIBRARY, name: "cudnnGetVersion" })?;
        // SAFETY: no precondition.
        let version = unsafe { version() };
        std::mem::forget(library); // its functions are used for the life of the process
        Ok((api, version))
    };
    API.get_or_init(load).as_ref().map_err(LibraryAbsence::clone)
}

/// The most scratch memory that a plan may ask for.
const MOST_SCRATCH_BYTES: usize = 1 << 30;

/// Which of the three convolutions: each has two of image, weight and result, and makes the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// The result, from image and weight.
    Forward,
    /// The image's gradient, from the result's and the weight.
    ImageGrad,
    /// The weight's gradient, from the image and the result's gradient.
    WeightGrad,
}

/// The sizes of four dimensions, and elements from one index to the next of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout4 {
    /// `[batch, channels, height, width]`, or of a weight `[out, in / groups, height, width]`.
    pub sizes: [usize; 4],
    /// For each of these.
    pub strides: [usize; 4],
}

/// Which of the library's algorithms computes a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The one that the library proposes first: the same on all devices of a kind, with one version of it.
    #[default]
    First,
    /// The fastest of those that it proposes, measured when it is first asked for and kept on disk: in `$PAGELOCK_PLAN_CACHE`,
    /// else in `pagelock/plans` in the user's cache folder. Another user of the same device may get another one. In a
    /// capture, where nothing can be measured, it is the first.
    Measured,
}

/// A convolution (cross-correlation, zero padding) with as many groups as the image has more channels than the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// What is computed.
    pub kind: ConvolutionKind,
    /// The type of all numbers; sums are `f32`, or `f64` of those.
    pub data_type: DataType,
    /// How exactly `f32` factors are taken.
    pub exactness: Exactness,
    /// Which algorithm computes it.
    pub choice: Choice,
    /// Where the image's numbers are.
    pub image: Layout4,
    /// Where the weight's are.
    pub weight: Layout4,
    /// Where the result's are.
    pub result: Layout4,
    /// Vertical and horizontal.
    pub stride: [usize; 2],
    /// On each side.
    pub padding: [usize; 2],
    /// Between taps.
    pub dilation: [usize; 2],
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Convolution { kind, image, weight, data_type, .. } = self;
        write!(f, "{kind:?} of image {:?} and weight {:?} of {data_type:?}", image.sizes, weight.sizes)
    }
}

/// cuDNN for one device.
pub struct Dnn {
    device: Device,
    api: &'static Api,
    version: usize,
    handle: Mutex<Handle>, // guards that one thread at a time uses it
    plans: Mutex<HashMap<Key, Result<Arc<Mutex<Plan>>, Refusal>>>, // guards what is known
}

impl Dnn {
    /// The library, loaded at the first call.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] says where it was looked for and what to install; [`Error::Driver`].
    pub fn new(device: &Device) -> Result<Dnn> {
        let (api, version) = api()?;
        work::make_current(device, LIBRARY)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which is kept for the life of the process.
        match unsafe { (api.create)(&mut handle) } {
            0 => Ok(Dnn {
                device: device.clone(),
                api,
                version: *version,
                handle: Mutex::new(Handle::new(handle)),
                plans: Mutex::new(HashMap::new()),
            }),
            status => Err(LibraryAbsence::NotStarted { library: LIBRARY, status }.into()),
        }
    }

    /// Queues the convolution: `inputs` are the two of image, weight and result that are there, in this order, and `out`
    /// is the third.
    ///
    /// # Errors
    /// [`Error::Library`] if the library has no plan for it. [`Error::Range`] if a tensor reaches beyond its buffer,
    /// [`Error::OtherDevice`], [`Error::OutOfMemory`] for scratch memory, [`Error::Driver`].
    pub fn convolve(
        &self,
        stream: &Stream,
        convolution: &Convolution,
        inputs: [DeviceView<'_, u8>; 2],
        out: DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        work::check(&self.device, stream)?;
        let addresses = convolution.in_order(inputs.map(|input| input.address().0), out.address().0);
        convolution.check(convolution.in_order(inputs.map(|input| input.len()), out.len()))?;
        inputs.iter().try_for_each(|view| view.check_beside(stream.core()))?;
        out.check_beside(stream.core())?;
        let call = Call { addresses, accesses: [inputs[0].access(), inputs[1].access(), out.access()] };
        let (plan, scratch) = self.plan_and_scratch(stream, convolution, &call)?;
        let done = self.run(stream, &lock(&plan), scratch.as_ref(), &call)?;
        done.map_err(|status| convolution.refused("cudnnBackendExecute", status))
    }

    /// Queues what a plan computes; the library's status if it refuses.
    fn run(
        &self,
        stream: &Stream,
        plan: &Plan,
        scratch: Option<&DeviceBuffer<u8>>,
        call: &Call<'_>,
    ) -> Result<Result<(), c_int>> {
        let [one, other, out] = call.accesses;
        let scratch_access = scratch.map_or(one, |scratch| scratch.view().access());
        let scratch = scratch.map_or(0, |scratch| scratch.address().0);
        let handle = lock(&self.handle);
        work::queue(stream, &[one, other, out, scratch_access], |stream| {
            // SAFETY: the library's handle, which no other thread uses now, and a stream of its device.
            match unsafe { (self.api.set_stream)(handle.get(), stream) } {
                // SAFETY: the addresses are of what the plan's convolution describes (`convolve` checked it), aligned as
                // the plan was made for; the buffers are ordered by `queue`.
                0 => unsafe { plan.run(handle.get(), call.addresses, scratch) },
                status => status,
            }
        })
    }

    /// What was found out about the convolution, and scratch memory; with less of that if there is no more.
    fn plan_and_scratch(
        &self,
        stream: &Stream,
        convolution: &Convolution,
        call: &Call<'_>,
    ) -> Result<(Arc<Mutex<Plan>>, Option<DeviceBuffer<u8>>)> {
        let alignments = call.addresses.map(alignment);
        let key = |scratch_bytes| Key { convolution: *convolution, alignments, scratch_bytes };
        let plan = self.plan(stream, key(MOST_SCRATCH_BYTES), call)?;
        let scratch_bytes = lock(&plan).scratch_bytes();
        if scratch_bytes == 0 {
            return Ok((plan, None));
        }
        match stream.allocate::<u8>(scratch_bytes) {
            Ok(scratch) => Ok((plan, Some(scratch))),
            Err(shortage @ (Error::OutOfMemory { .. } | Error::Memory(_))) => {
                self.plan(stream, key(0), call).map(|plan| (plan, None)).map_err(|_| shortage)
            }
            Err(other) => Err(other),
        }
    }

    fn plan(&self, stream: &Stream, mut key: Key, call: &Call<'_>) -> Result<Arc<Mutex<Plan>>> {
        if let Some(known) = lock(&self.plans).get(&key) {
            return known.clone().map_err(|refusal| key.convolution.refused(refusal.call, refusal.status));
        }
        if stream.core().is_capturing() {
            key.convolution.choice = Choice::First;
        }
        work::make_current(&self.device, LIBRARY)?;
        let made = match key.convolution.choice {
            Choice::First => Plan::first(self.api, lock(&self.handle).get(), &key),
            Choice::Measured => self.fastest(stream, &key, call)?,
        };
        let made = made.map(|plan| Arc::new(Mutex::new(plan)));
        // It stays for the life of the process, as graphs need what it has loaded.
        let kept = lock(&self.plans).entry(key).or_insert(made).clone();
        kept.map_err(|refusal| key.convolution.refused(refusal.call, refusal.status))
    }
}

/// Where image, weight and result are, and what is done with the inputs and what is made.
struct Call<'a> {
    addresses: [u64; 3],
    accesses: [Access<'a>; 3],
}

impl fmt::Debug for Dnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dnn(on {:?})", self.device)
    }
}

impl Convolution {
    fn refused(&self, call: &'static str, status: i32) -> Error {
        Error::Library { library: LIBRARY, what: self.to_string(), call, status }
    }

    /// What belongs to the image, the weight and the result.
    fn in_order<X>(&self, [one, other]: [X; 2], out: X) -> [X; 3] {
        match self.kind {
            ConvolutionKind::Forward => [one, other, out],
            ConvolutionKind::ImageGrad => [out, one, other],
            ConvolutionKind::WeightGrad => [one, out, other],
        }
    }

    /// An error unless image, weight and result are inside buffers of `len_bytes`, and their sizes belong together.
    fn check(&self, len_bytes: [usize; 3]) -> Result<()> {
        let (image, weight, result) = (self.image.sizes, self.weight.sizes, self.result.sizes);
        let belong = |axis: usize| {
            let reach = self.dilation[axis].checked_mul(weight[2 + axis].checked_sub(1)?)?.checked_add(1)?;
            let padded = image[2 + axis].checked_add(self.padding[axis].checked_mul(2)?)?;
            Some(padded.checked_sub(reach)?.checked_div(self.stride[axis])? + 1 == result[2 + axis])
        };
        let sizes_fit = [image, weight, result].iter().flatten().all(|&size| size > 0 && size <= i32::MAX as usize)
            && image[0] == result[0]
            && weight[0] == result[1]
            && image[1].is_multiple_of(weight[1])
            && weight[0].is_multiple_of(image[1] / weight[1]);
        if !sizes_fit || belong(0) != Some(true) || belong(1) != Some(true) {
            return Err(self.refused("Dnn::convolve", 0));
        }
        for (layout, len) in [self.image, self.weight, self.result].into_iter().zip(len_bytes) {
            let last = layout
                .sizes
                .iter()
                .zip(layout.strides)
                .try_fold(0_usize, |last, (&size, stride)| last.checked_add((size - 1).checked_mul(stride)?));
            let end = last.and_then(|last| last.checked_add(1)?.checked_mul(self.data_type.size_bytes()));
            let end = end.unwrap_or(usize::MAX);
            if end > len {
                return Err(Error::Range { start: 0, end, len });
            }
        }
        Ok(())
    }
}
