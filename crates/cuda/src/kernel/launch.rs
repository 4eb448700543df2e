//! [`Kernel`]: a function of a module, and how it is launched.

use std::{fmt, sync::Arc};

use super::{
    repeat::Repeats,
    signature::{Signature, sealed::LowerAll},
};
use crate::{
    device::Device,
    driver::{self, FunctionHandle, Start},
    error::{Error, OnDevice, Result},
    host_function,
    stream::Stream,
};

/// The size of a launch: blocks, threads of a block, and shared memory of a block.
pub type Launch = driver::Launch;

/// A condition for launches, and its text in errors.
type Requirement<S> = (&'static str, for<'a> fn(&<S as LowerAll>::Arguments<'a>) -> bool);

/// A kernel that takes what its signature says; see [`KernelModule`](super::KernelModule) for an example. Cheap to clone.
pub struct Kernel<S: Signature> {
    device: Device, // keeps the module
    function: FunctionHandle,
    name: Arc<str>,
    requirements: Vec<Requirement<S>>,
    repeats: Arc<Repeats>,
}

impl Launch {
    /// Enough blocks of `threads` threads for `len` elements; none for no elements, which launches nothing.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::Launch;
    ///
    /// assert_eq!(Launch::covering(1_000, 256).grid, [4, 1, 1]);
    /// ```
    pub fn covering(len: usize, threads: u32) -> Self {
        let blocks = len.div_ceil(threads.max(1) as usize).min(i32::MAX as usize);
        Self { grid: [blocks as u32, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Gives each block `bytes` of shared memory more than the kernel declares.
    pub fn shared_bytes(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

impl<S: Signature> Kernel<S> {
    pub(super) fn new(device: Device, function: FunctionHandle, name: &str) -> Self {
        let repeats = Arc::new(Repeats::new(device.clone(), function));
        Self { device, function, name: name.into(), requirements: Vec::new(), repeats }
    }

    /// Refuses launches whose arguments do not meet a condition, such as one about the lengths of buffers. Errors show `text`.
    pub fn requires(mut self, text: &'static str, met: for<'a> fn(&S::Arguments<'a>) -> bool) -> Self {
        self.requirements.push((text, met));
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Launches it, and returns at once.
    ///
    /// A kernel that is launched often with one size is launched as a graph with one node, which takes half the time.
    /// Profilers may show that graph; `nsys profile --cuda-graph-trace=node` shows the kernel.
    ///
    /// # Errors
    /// [`Error::Arguments`] if they do not meet a requirement, [`Error::Launch`] if the size is not one that the device
    /// can do, [`Error::OtherDevice`], [`Error::Driver`].
    pub fn launch(&self, stream: &Stream, launch: Launch, arguments: S::Arguments<'_>) -> Result<()> {
        if let Some((requirement, _)) = self.requirements.iter().find(|(_, met)| !met(&arguments)) {
            return Err(Error::Arguments { kernel: self.name.to_string(), requirement });
        }
        check(&self.device, stream, &launch)?;
        let lowered = S::lower(arguments, stream)?;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        allow_shared(&self.device, self.function, launch.shared_bytes)?;
        let (mut pointers, count) = lowered.pointers();
        let number = stream.core().number_unless_capturing();
        let queued = stream.core().enqueue_on_device(lowered.accesses(), |driver, stream| {
            // SAFETY: the module stays loaded while its device lives, which its streams hold; the arguments are those
            // of the signature, which the author vouched for in `KernelModule::kernel`; `enqueue` orders the buffers.
            unsafe { self.repeats.launch((driver, stream, number), &launch, Start::InTurn, &mut pointers[..count]) }
        });
        Ok(queued?)
    }

    /// How many blocks of that size one multiprocessor runs at once.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        blocks_per_multiprocessor(&self.device, self.function, threads, shared_bytes)
    }

    /// A launch for a kernel with a grid-stride loop over `len` elements: as many blocks of `threads` threads as the
    /// device runs at once, or fewer where that covers all elements.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn filling(&self, len: usize, threads: u32) -> Result<Launch> {
        let at_once = self.blocks_per_multiprocessor(threads, 0)?.max(1);
        let at_once = at_once.saturating_mul(self.device.properties().multiprocessors);
        let covering = Launch::covering(len, threads);
        Ok(Launch { grid: [covering.grid[0].min(at_once), 1, 1], ..covering })
    }
}

/// An error if the stream is another device's than the kernel, or a block has no thread or too many.
pub(super) fn check(device: &Device, stream: &Stream, launch: &Launch) -> Result<()> {
    stream.core().check_is_of(device.core().base(), OnDevice::Kernel)?;
    let most = device.properties().max_threads_per_block;
    let threads = launch.block.iter().fold(1, |threads: u64, &more| threads.saturating_mul(more.into()));
    if threads == 0 || threads > most.into() {
        return Err(Error::Launch { block: launch.block, most });
    }
    Ok(())
}

/// Lets blocks of a kernel have `bytes` of shared memory, if that is more than every kernel may use.
pub(super) fn allow_shared(device: &Device, function: FunctionHandle, bytes: u32) -> Result<()> {
    if bytes <= ALWAYS_SHARED {
        return Ok(());
    }
    host_function::refuse_inside()?;
    // SAFETY: the function's module is loaded.
    unsafe { device.core().base().driver.set_function_attribute(function, MAX_SHARED, bytes as i32) }?;
    Ok(())
}

pub(super) fn blocks_per_multiprocessor(
    device: &Device,
    function: FunctionHandle,
    threads: u32,
    shared_bytes: u32,
) -> Result<u32> {
    host_function::refuse_inside()?;
    // SAFETY: the function's module is loaded.
    Ok(unsafe { device.core().base().driver.occupancy(function, threads, shared_bytes as usize) }?)
}

const ALWAYS_SHARED: u32 = 48 << 10; // without asking
const MAX_SHARED: u32 = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

impl<S: Signature> Clone for Kernel<S> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            function: self.function,
            name: self.name.clone(),
            requirements: self.requirements.clone(),
            repeats: self.repeats.clone(),
        }
    }
}

impl<S: Signature> fmt::Debug for Kernel<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {:?})", self.name, self.device)
    }
}
