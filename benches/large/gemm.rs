//! Products of square matrices of random numbers.

use anyhow::Result;
use half::{bf16, f16};
use pagelock::tensor::{Device, Float, Float32MatmulPrecision as Precision, Tensor, set_float32_matmul_precision};

use crate::table::{BF16, F32, TF32, Table, Work};

pub(crate) fn measure(table: &Table<'_>) -> Result<()> {
    for n in [4096, 8192] {
        square::<f32>(table, n, "float32", F32)?;
        set_float32_matmul_precision(Precision::High);
        square::<f32>(table, n, "tf32", TF32)?;
        set_float32_matmul_precision(Precision::Medium);
        square::<f32>(table, n, "float32 as bf16", BF16)?;
        set_float32_matmul_precision(Precision::Highest);
        square::<bf16>(table, n, "bfloat16", BF16)?;
        square::<f16>(table, n, "float16", BF16)?;
    }
    linear(table)
}

fn square<T: Float>(table: &Table<'_>, n: usize, name: &str, most_per_second: f64) -> Result<()> {
    let (a, b) = (random::<T>(table.device, &[n, n])?, random::<T>(table.device, &[n, n])?);
    let work = Work::Flops { count: 2.0 * (n as f64).powi(3), most_per_second };
    table.row(&format!("gemm {n} {name}"), work, || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

/// A layer's product with a transposed weight and a bias, and a batch of products.
fn linear(table: &Table<'_>) -> Result<()> {
    let device = table.device;
    let (x, weight) = (random::<bf16>(device, &[8192, 4096])?, random::<bf16>(device, &[4096, 4096])?);
    let bias = random::<bf16>(device, &[4096])?;
    let work = Work::Flops { count: 2.0 * 8192.0 * 4096.0 * 4096.0, most_per_second: BF16 };
    table.row("linear 8192x4096 to 4096 bfloat16", work, || {
        drop(pagelock::nn::functional::linear(&x, &weight, Some(&bias))?);
        Ok(())
    })?;
    let (a, b) = (random::<bf16>(device, &[64, 1024, 1024])?, random::<bf16>(device, &[64, 1024, 1024])?);
    let work = Work::Flops { count: 64.0 * 2.0 * 1024_f64.powi(3), most_per_second: BF16 };
    table.row("64 products of 1024 bfloat16", work, || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

pub(crate) fn random<T: Float>(device: &Device, shape: &[usize]) -> Result<Tensor<T>> {
    Ok(Tensor::on(device).randn(shape)?.cast()?)
}
