//! Sorting on a GPU, compared with the CPU: lines that one block sorts and longer ones, contiguous and strided, with
//! equal elements and NaN.

use pagelock_tensor::{DType, Device, Int, Result, Tensor};

use crate::common::gpu;

const SIZES: [usize; 10] = [1, 2, 255, 257, 1000, 4097, 8192, 8193, 20_000, 70_000];

/// Few different values, so that many are equal. Every 97th is NaN, infinite, a zero with a sign, or tiny.
fn floats(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, -f32::NAN, 6e-8, -6e-8];
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|i| match i % 97 {
            0 => special[i / 97 % special.len()],
            _ => (i.wrapping_mul(2_654_435_761) % 1009) as f32 - 504.0,
        })
        .collect();
    Tensor::from_slice(&values, dims)?.to_dtype(dtype)
}

fn integers(dims: &[usize]) -> Result<Tensor<Int>> {
    let values: Vec<i64> = (0..dims.iter().product())
        .map(|i| (i as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> (i % 64))
        .collect();
    Tensor::<Int>::from_slice(&values, dims)
}

#[test]
fn orders_are_those_of_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for size in SIZES {
        for (dims, dim) in [(vec![3, size], 1), (vec![2, size, 3], 1)] {
            for dtype in [DType::F32, DType::BF16, DType::F64, DType::F16] {
                let x = floats(&dims, dtype)?;
                let there = x.to(&device)?;
                for descending in [false, true] {
                    let case = format!("{dtype:?} {dims:?}, descending: {descending}");
                    let (here, there_) = (x.argsort(dim, descending)?, there.argsort(dim, descending)?);
                    assert_eq!(there_.to_vec::<i64>()?, here.to_vec::<i64>()?, "{case}");
                    for k in [1, size.div_ceil(3), 50.min(size), (size / 4).min(512)] {
                        let (here, there_) = (x.topk(k, dim, descending)?.1, there.topk(k, dim, descending)?.1);
                        assert_eq!(there_.to_vec::<i64>()?, here.to_vec::<i64>()?, "{case}, the first {k}");
                    }
                }
            }
            for dtype in [DType::I64, DType::I32, DType::U8] {
                let x = integers(&dims)?.to_dtype(dtype)?;
                let (here, there) = (x.sort(dim, false)?, x.to(&device)?.sort(dim, false)?);
                assert_eq!(there.0.to_vec::<i64>()?, here.0.to_vec::<i64>()?, "{dtype:?} {dims:?}");
                assert_eq!(there.1.to_vec::<i64>()?, here.1.to_vec::<i64>()?, "{dtype:?} {dims:?}");
            }
        }
    }
    Ok(())
}

/// Lines of one, of three and of up to 300 distinct values, which share their leading digits. Equal elements are told
/// apart by their position alone.
#[test]
fn the_first_few_of_equal_elements_are_those_in_front() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let n = 20_000;
    for kinds in [1, 3, 300] {
        let numbers: Vec<i64> = (0..2 * n).map(|i: i64| 1_000_000 + i * i % kinds).collect();
        let x = Tensor::<Int>::from_vec(numbers, [2, n as usize])?;
        for (dtype, k) in [(DType::I64, 7), (DType::I32, 512), (DType::U8, 50), (DType::F32, 300), (DType::F16, 2)] {
            for largest in [false, true] {
                let case = format!("{kinds} kinds of {dtype:?}, {k} of them, largest: {largest}");
                let places = |device: &Device| match dtype.is_float() {
                    true => {
                        x.to_dtype(DType::I32)?.to_float_of(dtype)?.to(device)?.topk(k, 1, largest)?.1.to_vec::<i64>()
                    }
                    false => x.to_dtype(dtype)?.to(device)?.topk(k, 1, largest)?.1.to_vec::<i64>(),
                };
                assert_eq!(places(&device)?, places(&Device::Cpu)?, "{case}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_long_line_in_reverse_is_turned() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let device: &Device = &device;
    let n = 100_000;
    let (values, order) = Tensor::<Int>::arange(0, n, 1)?.to(device)?.neg()?.sort(0, false)?;
    assert_eq!(values.to_vec::<i64>()?, (0..n).map(|i| i + 1 - n).collect::<Vec<_>>());
    assert_eq!(order.to_vec::<i64>()?, (0..n).rev().collect::<Vec<_>>());
    Ok(())
}
