//! [`Kernel`]: a kernel with its parameters in its type, and the size of a launch.

use std::fmt;

use super::{
    function::KernelFunction,
    signature::{Signature, sealed::LowerAll},
};
use crate::{
    driver,
    error::{Error, Result},
    stream::Stream,
};

/// The size of a launch: the number of blocks, and the threads and shared memory of a block.
pub type Launch = driver::Launch;

/// A condition for launches, and its text in errors.
type Requirement<S> = (&'static str, for<'a> fn(&<S as LowerAll>::Arguments<'a>) -> bool);

/// A kernel with the parameters of its signature; see [`KernelModule`](super::KernelModule) for an example. Cheap to
/// clone.
pub struct Kernel<S: Signature> {
    function: KernelFunction,
    requirements: Vec<Requirement<S>>,
}

impl Launch {
    /// As many blocks of `threads` threads as `len` elements need. Without elements there are no blocks, and nothing
    /// is launched.
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

    /// Gives each block `bytes` bytes of dynamic shared memory, in addition to the shared memory that the kernel
    /// declares.
    pub fn shared_bytes(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

impl<S: Signature> Kernel<S> {
    pub(super) fn new(function: KernelFunction) -> Result<Self> {
        function.check_sizes(S::SIZES.iter().copied())?;
        Ok(Self { function, requirements: Vec::new() })
    }

    /// Refuses launches whose arguments do not meet a condition, for example on the lengths of buffers. Errors show
    /// `text`.
    pub fn requires(mut self, text: &'static str, met: for<'a> fn(&S::Arguments<'a>) -> bool) -> Self {
        self.requirements.push((text, met));
        self
    }

    /// The name of the kernel.
    pub fn name(&self) -> &str {
        self.function.name()
    }

    /// Launches the kernel, and returns at once.
    ///
    /// After some launches of one size, the kernel is launched as a graph with one node, which takes half the time.
    /// Profilers may show that graph; `nsys profile --cuda-graph-trace=node` shows the kernel.
    ///
    /// # Errors
    /// [`Error::Argument`] if the arguments do not meet a requirement, or if the device does not support the size of the
    /// blocks; [`Error::OtherDevice`], [`Error::Driver`].
    pub fn launch(&self, stream: &Stream, launch: Launch, mut arguments: S::Arguments<'_>) -> Result<()> {
        if let Some((requirement, _)) = self.requirements.iter().find(|(_, met)| !met(&arguments)) {
            return Err(Error::Argument(format!("kernel `{}` requires that {requirement}", self.name())));
        }
        // SAFETY: the arguments match the signature, for which the author vouched in `KernelModule::kernel`.
        unsafe { self.function.launch(stream, launch, &S::lower(&mut arguments)) }
    }

    /// How many blocks of that size one multiprocessor runs concurrently.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        self.function.blocks_per_multiprocessor(threads, shared_bytes)
    }

    /// A launch for a kernel with a grid-stride loop over `len` elements: as many blocks of `threads` threads as the
    /// device runs concurrently, or fewer if these cover all elements.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn filling(&self, len: usize, threads: u32) -> Result<Launch> {
        let resident_blocks = self.blocks_per_multiprocessor(threads, 0)?.max(1);
        let resident_blocks = resident_blocks.saturating_mul(self.function.device().properties().multiprocessors);
        let covering = Launch::covering(len, threads);
        Ok(Launch { grid: [covering.grid[0].min(resident_blocks), 1, 1], ..covering })
    }
}

impl<S: Signature> Clone for Kernel<S> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), requirements: self.requirements.clone() }
    }
}

impl<S: Signature> fmt::Debug for Kernel<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {:?})", self.name(), self.function.device())
    }
}
