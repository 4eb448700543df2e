//! Products of square matrices of random numbers, and a linear layer.

use anyhow::Result;
use pagelock::tensor::{DType, Device, Float32MatmulPrecision as Precision, Tensor, set_float32_matmul_precision};

use crate::table::{BF16, F32, TF32, Table, Work};

pub(crate) fn measure(table: &Table<'_>) -> Result<()> {
    for n in [4096, 8192] {
        square(table, n, DType::F32, "float32", F32)?;
        set_float32_matmul_precision(Precision::High);
        square(table, n, DType::F32, "tf32", TF32)?;
        set_float32_matmul_precision(Precision::Medium);
        square(table, n, DType::F32, "float32 as bf16", BF16)?;
        set_float32_matmul_precision(Precision::Highest);
        square(table, n, DType::BF16, "bfloat16", BF16)?;
        square(table, n, DType::F16, "float16", BF16)?;
    }
    linear(table)
}

fn square(table: &Table<'_>, n: usize, dtype: DType, name: &str, most_per_second: f64) -> Result<()> {
    let (a, b) = (random(table.device, dtype, &[n, n])?, random(table.device, dtype, &[n, n])?);
    let work = Work::Flops { count: 2.0 * (n as f64).powi(3), most_per_second };
    table.row(&format!("gemm {n} {name}"), work, || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

/// A linear layer with a bias, and a batch of products.
fn linear(table: &Table<'_>) -> Result<()> {
    let random = |shape: &[usize]| random(table.device, DType::BF16, shape);
    let (x, weight, bias) = (random(&[8192, 4096])?, random(&[4096, 4096])?, random(&[4096])?);
    let work = Work::Flops { count: 2.0 * 8192.0 * 4096.0 * 4096.0, most_per_second: BF16 };
    table.row("linear 8192x4096 to 4096 bfloat16", work, || {
        drop(pagelock::nn::functional::linear(&x, &weight, Some(&bias))?);
        Ok(())
    })?;
    let (a, b) = (random(&[64, 1024, 1024])?, random(&[64, 1024, 1024])?);
    let work = Work::Flops { count: 64.0 * 2.0 * 1024_f64.powi(3), most_per_second: BF16 };
    table.row("64 products of 1024 bfloat16", work, || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

pub(crate) fn random(device: &Device, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::on(device).of(dtype).randn(shape)?)
}
