//! Random numbers made on a device: the same as on the CPU, bit for bit.

use pagelock_cuda::{Argument, Launch};

use super::{Draw, fill::LANES};
use crate::capture;
use crate::cuda::{Code, CudaDevice, CudaOut, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "random", text: include_str!("random.cu") };

const THREADS: u32 = 128;

impl Draw {
    /// A launch of one thread per counter, and the arguments of its kernel: number of elements, seed, position,
    /// stream.
    pub(crate) fn launch(&self, op: &'static str, elements: usize) -> Result<(Launch, [[u8; 8]; 4])> {
        let counters = elements.div_ceil(LANES * self.rows) * LANES;
        count(op, counters.div_ceil(THREADS as usize))?;
        let numbers = [elements as u64, self.seed, self.position, self.stream].mapped(u64::to_ne_bytes);
        Ok((Launch::covering(counters, THREADS), numbers))
    }

    /// Uniform in [0, 1).
    pub(crate) fn uniform_on(&self, device: &CudaDevice, out: CudaOut<'_>) -> Result<()> {
        self.run(device, "rand", "uniform", out)
    }

    /// From the normal distribution with mean 0 and variance 1.
    pub(crate) fn normal_on(&self, device: &CudaDevice, out: CudaOut<'_>) -> Result<()> {
        self.run(device, "randn", "normal", out)
    }

    /// Calls `launch` with a pointer to the shift that kernels add to the position; null outside of a capture.
    pub(crate) fn with_shift(
        &self,
        device: &CudaDevice,
        launch: impl FnOnce(Argument<'_>) -> Result<()>,
    ) -> Result<()> {
        capture::with_shift(device, self.is_default.then_some(self.position), launch)
    }

    fn run(&self, device: &CudaDevice, op: &'static str, kernel: &'static str, mut out: CudaOut<'_>) -> Result<()> {
        let (launch, numbers) = self.launch(op, out.shape().elements())?;
        let types = [out.dtype(); 2];
        let [n, seed, position, stream] = numbers.each_ref().mapped(|number| Argument::Value(number));
        self.with_shift(device, |shift| {
            // SAFETY: the kernels take these arguments, and write the n elements of `out`.
            unsafe {
                CODE.launch(device, op, (types, kernel), launch, &[out.argument(), n, seed, position, shift, stream])
            }
        })
    }
}
