//! Dropout on a device: the kernel of `dropout.cu`.

use pagelock_cuda::Argument;

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView};
use crate::error::Result;
use crate::inlined::Array;
use crate::random::Draw;

static CODE: Code =
    Code { name: "dropout", text: concat!(include_str!("../../random/random.cu"), include_str!("dropout.cu")) };

/// Computes every element of `out`; both tensors are contiguous.
pub(super) fn run(
    device: &CudaDevice,
    draw: Draw,
    p: f32,
    scale: u64,
    x: CudaView<'_>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let n = out.shape().elements();
    let (launch, numbers) = draw.launch("dropout", n)?;
    let [n, seed, position, stream] = numbers.each_ref().mapped(|number| Argument::Value(number));
    let (p, scale) = (p.to_ne_bytes(), scale.to_ne_bytes());
    let [p, scale] = [&p[..], &scale].mapped(Argument::Value);
    draw.with_shift(device, |shift| {
        let arguments = [out.argument(), x.argument(), n, seed, position, shift, stream, p, scale];
        // SAFETY: the kernel takes these, and uses n elements of both tensors.
        unsafe { CODE.launch(device, "dropout", ([x.dtype(); 2], "dropout"), launch, &arguments) }
    })
}
