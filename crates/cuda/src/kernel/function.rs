//! [`KernelFunction`]: a kernel whose parameters are known only at run time, for code that generates its kernels.
//!
//! A [`Kernel`](super::Kernel) has its parameters in its type, and is safe to launch. A `KernelFunction` takes
//! untyped arguments, which include plain structs, and its launch is unsafe. A launch allocates no host memory.

use std::{ffi::c_void, fmt, ptr, sync::Arc};

use arrayvec::ArrayVec;

use super::{launch::Launch, module::KernelModule, repeat::Repeats};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device::Device,
    driver::{FunctionHandle, Start},
    error::{Error, OnDevice, Result},
    host_function,
    stream::{Access, Stream},
};

/// The most arguments of a [`KernelFunction`].
pub const MAX_ARGUMENTS: usize = 24;

const MAX_EARLY_BLOCKS: u128 = 1024;
const DEFAULT_SHARED_BYTES: u32 = 48 << 10; // needs no attribute
const MAX_SHARED_ATTRIBUTE: u32 = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

/// A list with one entry per argument, on the stack.
pub(super) type ArgumentList<T> = ArrayVec<T, MAX_ARGUMENTS>;

/// A kernel, without the types of its parameters. Cheap to clone.
#[derive(Clone)]
pub struct KernelFunction {
    device: Device, // keeps the module loaded
    handle: FunctionHandle,
    name: Arc<str>,
    sizes: Option<Box<[usize]>>, // of the parameters, if the driver knows them
    is_dependent: bool,          // whether it executes `griddepcontrol.wait`; see `with_dependent_launch`
    repeats: Arc<Repeats>,
}

/// The argument of a [`KernelFunction`] for one parameter.
#[derive(Debug)]
pub enum Argument<'a> {
    /// A buffer that the kernel only reads, passed as a pointer to its first byte.
    Read(DeviceView<'a, u8>),
    /// A buffer that the kernel reads and writes, passed as a pointer to its first byte.
    Write(DeviceViewMut<'a, u8>),
    /// The bytes of a number or of a struct, passed by value.
    Value(&'a [u8]),
}

impl Argument<'_> {
    fn size(&self) -> usize {
        match self {
            Argument::Read(_) | Argument::Write(_) => 8,
            Argument::Value(bytes) => bytes.len(),
        }
    }

    /// The kernel's access to the buffer, if the argument is one.
    fn access(&self) -> Option<Access<'_>> {
        match self {
            Argument::Read(view) => Some(view.access()),
            Argument::Write(view) => Some(view.access()),
            Argument::Value(_) => None,
        }
    }

    fn check_same_device(&self, stream: &Stream) -> Result<()> {
        match self {
            Argument::Read(view) => view.check_same_device(stream.core()),
            Argument::Write(view) => view.check_same_device(stream.core()),
            Argument::Value(_) => Ok(()),
        }
    }

    fn address(&self) -> u64 {
        match self {
            Argument::Read(view) => view.address().0,
            Argument::Write(view) => view.address().0,
            Argument::Value(_) => 0,
        }
    }
}

impl KernelModule {
    /// A kernel of the module, for launches with arguments of any types.
    ///
    /// # Errors
    /// [`Error::Argument`] if the module has no kernel of that name, [`Error::Driver`].
    pub fn function(&self, name: &str) -> Result<KernelFunction> {
        let handle = self.find(name)?;
        let sizes = self.parameter_sizes(handle)?.map(Vec::into_boxed_slice);
        let (device, repeats) = (self.device().clone(), Arc::new(Repeats::new(self.device().clone(), handle)));
        Ok(KernelFunction { device, handle, name: name.into(), sizes, is_dependent: false, repeats })
    }
}

impl KernelFunction {
    /// The name of the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device on which the kernel is loaded.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same kernel with CUDA's programmatic dependent launch, if the device supports it and the grid is small:
    /// the kernel starts while the kernel before it on its stream still runs. That saves a quarter of the time from
    /// one small kernel to the next.
    ///
    /// # Safety
    /// If `__CUDA_ARCH__` is 900 or more, the kernel executes `griddepcontrol.wait` before it touches memory.
    #[must_use]
    pub unsafe fn with_dependent_launch(self) -> Self {
        let is_dependent = self.device.properties().compute_capability >= (9, 0);
        Self { is_dependent, ..self }
    }

    /// Whether to start early. Larger grids gain nothing: their waiting blocks would take the place of blocks of the
    /// kernel before them.
    fn start(&self, launch: &Launch) -> Start {
        let blocks: u128 = launch.grid.iter().map(|&blocks| u128::from(blocks)).product();
        if self.is_dependent && blocks <= MAX_EARLY_BLOCKS { Start::Early } else { Start::InTurn }
    }

    /// Launches the kernel, and returns at once. After some launches of one size it becomes a graph, as with
    /// [`Kernel::launch`](super::Kernel::launch). A grid without blocks launches nothing.
    ///
    /// # Errors
    /// [`Error::Argument`] if the number or the sizes of the arguments differ from those of the kernel's parameters
    /// (checked only with drivers of CUDA 12.4 or newer), or if the device does not support the size of the blocks;
    /// [`Error::OtherDevice`], [`Error::Driver`].
    ///
    /// # Panics
    /// With more than [`MAX_ARGUMENTS`] arguments.
    ///
    /// # Safety
    /// The kernel's parameters have the types and the order of the arguments. Launched with these arguments in this
    /// grid, it reads only elements of the buffers, writes only to those of [`Argument::Write`], and ends.
    pub unsafe fn launch(&self, stream: &Stream, launch: Launch, arguments: &[Argument<'_>]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, launch, arguments, stream.core().id_unless_capturing()) }
    }

    /// Like [`launch`](Self::launch), for a kernel that is queued behind work which keeps the device busy for longer
    /// than the call takes on the host. Such a launch never becomes a graph, since a graph saves time on the host but
    /// starts later on the device.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Panics
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    pub unsafe fn launch_behind_long_work(
        &self,
        stream: &Stream,
        launch: Launch,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, launch, arguments, None) }
    }

    /// `number` is that of the stream; `None` if the launch must not become a graph.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn enqueue(
        &self,
        stream: &Stream,
        launch: Launch,
        arguments: &[Argument<'_>],
        number: Option<u64>,
    ) -> Result<()> {
        assert!(arguments.len() <= MAX_ARGUMENTS, "{} arguments for `{}`", arguments.len(), self.name);
        self.check_sizes(arguments.iter().map(Argument::size))?;
        self.check_launch(stream, &launch)?;
        arguments.iter().try_for_each(|argument| argument.check_same_device(stream))?;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.allow_shared_bytes(launch.shared_bytes)?;
        // Filled in place, since `collect` would copy the whole lists.
        let (mut addresses, mut pointers) = (ArgumentList::new(), ArgumentList::new());
        let mut accesses = ArgumentList::new();
        addresses.extend(arguments.iter().map(Argument::address));
        pointers.extend(arguments.iter().zip(&addresses).map(|(argument, address)| match argument {
            Argument::Value(bytes) => bytes.as_ptr().cast_mut().cast::<c_void>(),
            Argument::Read(_) | Argument::Write(_) => ptr::from_ref(address).cast_mut().cast(),
        }));
        accesses.extend(arguments.iter().filter_map(Argument::access));
        let start = self.start(&launch);
        let queued = stream.core().enqueue_on_device(&accesses, |driver, stream| {
            // SAFETY: the module stays loaded while its device exists, which its streams keep alive; the caller
            // vouches for the arguments; `enqueue` orders the buffers.
            unsafe { self.repeats.launch((driver, stream, number), &launch, start, &mut pointers) }
        });
        Ok(queued?)
    }

    /// An error if the kernel's parameters do not have the declared sizes, as far as the driver knows the sizes.
    pub(super) fn check_sizes(&self, declared: impl Iterator<Item = usize> + Clone) -> Result<()> {
        match &self.sizes {
            Some(sizes) if !declared.clone().eq(sizes.iter().copied()) => {
                let (kernel, declared): (_, Vec<usize>) = (&self.name, declared.collect());
                Err(Error::Argument(format!(
                    "kernel `{kernel}` has parameters of {sizes:?} bytes, its signature declares {declared:?}: make them \
                     agree, 8 bytes for a buffer"
                )))
            }
            _ => Ok(()),
        }
    }

    /// An error if stream and kernel are on different devices, or if a block has no threads or too many.
    fn check_launch(&self, stream: &Stream, launch: &Launch) -> Result<()> {
        stream.core().check_device(self.device.core().shared(), OnDevice::Kernel)?;
        let most = self.device.properties().max_threads_per_block;
        let threads = launch.block.iter().fold(1, |threads: u64, &more| threads.saturating_mul(more.into()));
        if threads == 0 || threads > most.into() {
            return Err(Error::Argument(format!(
                "a block of {:?} threads cannot be launched: the device allows 1 to {most}; use more and smaller blocks",
                launch.block
            )));
        }
        Ok(())
    }

    /// Allows the kernel's blocks `bytes` of shared memory, if that is more than every kernel may use.
    fn allow_shared_bytes(&self, bytes: u32) -> Result<()> {
        if bytes <= DEFAULT_SHARED_BYTES {
            return Ok(());
        }
        host_function::refuse_inside()?;
        let driver = &self.device.core().shared().driver;
        // SAFETY: the function's module is loaded.
        let allowed_bytes = || unsafe { driver.function_attribute(self.handle, MAX_SHARED_ATTRIBUTE) };
        if allowed_bytes()? >= bytes as i32 {
            return Ok(());
        }
        // All launches of the kernel share the attribute, so it is only raised.
        let _lock = self.device.core().modules().lock();
        if allowed_bytes()? < bytes as i32 {
            // SAFETY: the function's module is loaded.
            unsafe { driver.set_function_attribute(self.handle, MAX_SHARED_ATTRIBUTE, bytes as i32) }?;
        }
        Ok(())
    }

    /// How many blocks of that size one multiprocessor runs concurrently.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        host_function::refuse_inside()?;
        // SAFETY: the function's module is loaded.
        Ok(unsafe { self.device.core().shared().driver.occupancy(self.handle, threads, shared_bytes as usize) }?)
    }
}

impl fmt::Debug for KernelFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelFunction({} on {:?})", self.name, self.device)
    }
}
