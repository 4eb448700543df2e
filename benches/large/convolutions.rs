//! The 3×3 convolutions of a ResNet on a batch of 256: the forward pass, and the gradients of image and weight.

use anyhow::Result;
use pagelock::tensor::autograd::Backward;
use pagelock::tensor::{
    Conv2dOptions, DType, Float32MatmulPrecision as Precision, Tensor, set_float32_matmul_precision,
};

use crate::gemm::random;
use crate::table::{BF16, F32, TF32, Table, Work};

const BATCH: usize = 256;

pub(crate) fn measure(table: &Table<'_>) -> Result<()> {
    for last in [false, true] {
        for size in [(64, 32), (128, 16), (256, 8), (512, 4)] {
            convolution(table, size, last, DType::F32, "float32", F32)?;
            set_float32_matmul_precision(Precision::High);
            convolution(table, size, last, DType::F32, "tf32", TF32)?;
            set_float32_matmul_precision(Precision::Highest);
            convolution(table, size, last, DType::BF16, "bfloat16", BF16)?;
        }
    }
    Ok(())
}

/// `last` selects the channels-last layout.
fn convolution(
    table: &Table<'_>,
    (channels, side): (usize, usize),
    last: bool,
    dtype: DType,
    number: &str,
    most_per_second: f64,
) -> Result<()> {
    let suffix = if last { " channels_last" } else { "" };
    let name = |what: &str| format!("conv3x3 {channels} {number} {what}{suffix}");
    let laid = |x: Tensor| if last { x.channels_last() } else { Ok(x) };
    let device = table.device;
    let image = laid(random(device, dtype, &[BATCH, channels, side, side])?)?;
    let weight = laid(random(device, dtype, &[channels, channels, 3, 3])?)?;
    let geometry = Conv2dOptions::new().padding(1);
    let count = 2.0 * (BATCH * side * side) as f64 * (channels * channels * 9) as f64;
    let work = Work::Flops { count, most_per_second };
    table.row(&name("forward"), work, || {
        drop(image.conv2d(&weight, None, geometry)?);
        Ok(())
    })?;
    for (what, of_image) in [("image grad", true), ("weight grad", false)] {
        if !table.wants(&name(what)) {
            continue;
        }
        let image = image.detach().set_requires_grad(of_image);
        let weight = weight.detach().set_requires_grad(!of_image);
        let result = image.conv2d(&weight, None, geometry)?;
        let gradient = laid(random(device, dtype, result.shape())?)?;
        table.row(&name(what), work, || {
            let gradient = Some(gradient.clone());
            result.backward_with(Backward { gradient, retain_graph: true, ..Backward::default() })?;
            image.zero_grad();
            weight.zero_grad();
            Ok(())
        })?;
    }
    Ok(())
}
