//! Lines so long that a GPU splits them into parts, or processes all their elements at once, compared with the CPU.

use pagelock_tensor::{DType, Device, Error, Int, Kind, Result, ScatterReduce, Tensor};

use crate::common::{devices, gpu, gpu_alone};
use crate::networks::agree;

/// Whole numbers of both signs, which wrap around in products.
fn integers(dims: &[usize]) -> Result<Tensor<Int>> {
    let n = dims.iter().product::<usize>() as i64;
    Tensor::from_vec((0..n).map(|i| i.wrapping_mul(2_654_435_761) % 1009 - 504).collect(), dims)
}

/// Indices below `n`, some of which occur often and some never.
fn places(dims: &[usize], n: i64) -> Result<Tensor<Int>> {
    integers(dims)?.mul_scalar(77)?.remainder_scalar(n)
}

fn same<K: Kind>(here: &Tensor<K>, there: &Tensor<K>, case: &str) -> Result<()> {
    assert_eq!(here.dims(), there.dims(), "{case}");
    assert!(here.equal(&there.to(&Device::Cpu)?)?, "{case}");
    Ok(())
}

#[test]
fn scans_agree() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let shapes: [(&[usize], isize); 6] =
        [(&[100_003], 0), (&[3, 70_001], 1), (&[5000, 3], 0), (&[2, 4099, 5], 1), (&[1023], 0), (&[1_100_000], 0)];
    for (dims, dim) in shapes {
        let x = integers(dims)?;
        let there = x.to(&gpu)?;
        same(&x.cumsum(dim)?, &there.cumsum(dim)?, &format!("cumsum of {dims:?}"))?;
        let odd = |x: &Tensor<Int>| x.mul_scalar(2)?.add_scalar(1);
        same(&odd(&x)?.cumprod(dim)?, &odd(&there)?.cumprod(dim)?, &format!("cumprod of {dims:?}"))?;
        agree(&gpu, DType::F64, 1e-10, &format!("cumsum of {dims:?}"), &[dims], |x| x[0].cumsum(dim));
        agree(&gpu, DType::BF16, 2e-2, &format!("cumsum of {dims:?}"), &[dims], |x| x[0].cumsum(dim));
    }
    Ok(())
}

#[test]
fn the_last_of_several_elements_stays() -> Result<()> {
    fn of<K: Kind>(gpu: &Device, convert: impl Fn(&Tensor<Int>) -> Result<Tensor<K>>) -> Result<()> {
        let few_and_long = [(vec![70_001], 5000, 0), (vec![4000, 3], 700, 0), (vec![2, 3000, 2], 100, 1)];
        let many = [(vec![300, 3000], 20, 0), (vec![1, 5000], 7, 0), (vec![40, 1, 90], 3, 1), (vec![5000, 40], 30, 1)];
        for (dims, n, dim) in few_and_long.into_iter().chain(many) {
            let mut into = dims.clone();
            into[dim] = n;
            let [x, source] = [convert(&integers(&into)?)?, convert(&integers(&dims)?.add_scalar(1)?)?];
            let (index, of_entries) = (places(&dims, n as i64)?, places(&[dims[dim]], n as i64)?);
            let on = |device: &Device| -> Result<[Tensor<K>; 2]> {
                let (x, source, at) = (x.to(device)?, source.to(device)?, dim as isize);
                Ok([x.scatter(at, &index.to(device)?, &source)?, x.index_copy(at, &of_entries.to(device)?, &source)?])
            };
            let ([scattered, copied], [scattered_there, copied_there]) = (on(&Device::Cpu)?, on(gpu)?);
            same(&scattered, &scattered_there, &format!("scatter of {dims:?}"))?;
            same(&copied, &copied_there, &format!("index_copy of {dims:?}"))?;
            let [here, there] =
                [Device::Cpu, gpu.clone()].map(|device| written(&x, dim, &of_entries, &source, &device));
            same(&here?, &there?, &format!("put_ into {dims:?}"))?;
        }
        Ok(())
    }
    let Some(gpu) = gpu() else { return Ok(()) };
    of(&gpu, |x| Ok(x.clone()))?;
    of(&gpu, |x| x.to_float_of(DType::F32))?;
    of(&gpu, |x| x.to_float_of(DType::F16))?;
    of(&gpu, |x| x.gt_scalar(3))
}

/// A copy of `x` on a device, after entries of it were written in place.
fn written<K: Kind>(x: &Tensor<K>, dim: usize, at: &Tensor<Int>, source: &Tensor<K>, on: &Device) -> Result<Tensor<K>> {
    let (x, at, source) = (x.to(on)?.deep_clone()?, &at.to(on)?, &source.to(on)?);
    match dim {
        0 => x.put_(at, source)?,
        _ => x.put_((.., at), source)?,
    }
    Ok(x)
}

#[test]
fn elements_with_one_index_are_combined() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let shapes: [(&[usize], i64, usize); 9] = [
        (&[70_001], 5000, 0),
        (&[300_007], 3, 0),
        (&[5000], 1, 0),
        (&[2, 40_000], 2, 1),
        (&[4096], 4, 0),
        (&[4000, 3], 700, 0),
        (&[2, 3000, 2], 100, 1),
        (&[300, 2100], 50, 0),
        (&[2500, 200], 90, 1),
    ];
    for (dims, n, dim) in shapes {
        let mut into = dims.to_vec();
        into[dim] = n as usize;
        let (x, source) = (integers(&into)?, integers(dims)?.add_scalar(1)?);
        let (index, of_entries) = (places(dims, n)?, places(&[dims[dim]], n)?);
        let on = |device: &Device| -> Result<Vec<Tensor<Int>>> {
            let (x, source, at) = (x.to(device)?, source.to(device)?, dim as isize);
            let (index, of_entries) = (index.to(device)?, of_entries.to(device)?);
            let mut made = vec![x.scatter_add(at, &index, &source)?, x.index_add(at, &of_entries, &source)?];
            for how in [ScatterReduce::Prod, ScatterReduce::Amax, ScatterReduce::Amin, ScatterReduce::Mean] {
                made.push(x.scatter_reduce(at, &index, &source, how, true)?);
                made.push(x.scatter_reduce(at, &index, &source, how, false)?);
            }
            Ok(made)
        };
        for (i, (here, there)) in on(&Device::Cpu)?.iter().zip(&on(&gpu)?).enumerate() {
            same(here, there, &format!("{dims:?} into {n}, number {i}"))?;
        }
        for (dtype, bound) in [(DType::F32, 1e-4), (DType::F64, 1e-12)] {
            agree(&gpu, dtype, bound, &format!("gather {dims:?}"), &[&into], |x| {
                x[0].gather(dim as isize, &index.to(&x[0].device())?)?.div_scalar(100.0)
            });
        }
    }
    Ok(())
}

/// An index that repeats along some dimensions is not copied there, and lines that share it are sorted once.
#[test]
fn an_index_that_repeats_is_as_good_as_its_copy() -> Result<()> {
    let cases: [(&[usize], &[usize], usize, i64); 8] = [
        (&[2, 1, 5000], &[2, 3, 5000], 2, 900),
        (&[1, 3, 5000], &[2, 3, 5000], 2, 900),
        (&[1, 1, 5000], &[4, 2, 5000], 2, 3),
        (&[2, 3000, 1], &[2, 3000, 4], 1, 50),
        (&[2, 3, 1], &[2, 3, 70], 2, 9),
        (&[1, 1], &[4, 5], 1, 6),
        (&[40, 1], &[40, 3], 0, 7),
        (&[3, 1, 2, 60], &[3, 2, 2, 60], 3, 4),
    ];
    for device in devices() {
        for (once, whole, dim, n) in cases {
            let mut into = whole.to_vec();
            into[dim] = n as usize;
            let (x, source) = (integers(&into)?.to_float()?.to(&device)?, integers(whole)?.to_float()?.to(&device)?);
            let repeated = places(once, n)?.to(&device)?.expand(whole)?;
            let on = |index: &Tensor<Int>| -> Result<Vec<Tensor>> {
                let (x, source) = (x.clone().set_requires_grad(true), source.clone().set_requires_grad(true));
                let at = dim as isize;
                let picked = x.gather(at, index)?;
                picked.mul(&source)?.sum(..)?.backward()?;
                let mut made = vec![picked.detach(), x.grad().unwrap()];
                x.scatter_add(at, index, &source)?.mul(&x)?.sum(..)?.backward()?;
                made.extend([
                    x.grad().unwrap(),
                    source.grad().unwrap(),
                    x.detach().scatter(at, index, &source.detach())?,
                ]);
                for how in [ScatterReduce::Amax, ScatterReduce::Mean] {
                    made.push(x.detach().scatter_reduce(at, index, &source.detach(), how, true)?);
                }
                Ok(made)
            };
            for (i, (one, other)) in on(&repeated)?.iter().zip(&on(&repeated.contiguous()?)?).enumerate() {
                same(&one.to(&Device::Cpu)?, other, &format!("{once:?} to {whole:?}, number {i} on {device}"))?;
            }
        }
        let x = integers(&[4, 3])?.to(&device)?;
        let zero = Tensor::full([1], 2)?.to(&device)?.expand([5])?;
        same(&x.index_select(0, &zero.contiguous()?)?.to(&Device::Cpu)?, &x.index_select(0, &zero)?, "index_select")?;
    }
    Ok(())
}

#[test]
fn sums_of_one_place_have_the_same_bits_each_time() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let source = integers(&[200_003])?.to_float()?.mul_scalar(0.1)?.to(&gpu)?;
    for n in [1, 40, 10_000] {
        let index = places(&[200_003], n)?.to(&gpu)?;
        let sums = || Tensor::on(&gpu).zeros([n as usize])?.scatter_add(0, &index, &source);
        let first = sums()?;
        for _ in 0..5 {
            assert!(first.equal(&sums()?)?, "{n} places");
        }
    }
    Ok(())
}

#[test]
fn an_index_out_of_range_is_found_among_many() -> Result<()> {
    let Some(gpu) = gpu_alone() else { return Ok(()) };
    let (x, source) = (Tensor::zeros([10])?.to(&gpu)?, Tensor::ones([1000])?.to(&gpu)?);
    let mut index: Vec<i64> = (0..1000).map(|i| i % 10).collect();
    index[777] = 10;
    let written = x.scatter(0, &Tensor::from_vec(index, 1000)?.to(&gpu)?, &source)?;
    let error = written.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::IndexOutOfRange { index: 10, dim: 0, .. }), "{error}");
    let index = Tensor::from_vec((0..1000).map(|i| if i == 555 { -1 } else { i % 10 }).collect(), 1000)?.to(&gpu)?;
    let error = x.scatter_add(0, &index, &source)?.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::IndexOutOfRange { index: -1, dim: 0, .. }), "{error}");
    Ok(())
}

#[test]
fn nonzero_masked_select_and_unique_agree() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for dims in [vec![100_003], vec![300, 401], vec![3, 0], vec![5, 7, 11], vec![]] {
        let (x, case) = (integers(&dims)?, format!("{dims:?}"));
        let on = |device: &Device| -> Result<[Tensor<Int>; 4]> {
            let x = x.to(device)?;
            let mask = x.gt_scalar(300)?;
            let chosen = x.masked_select(&mask)?;
            let replaced = x.masked_scatter(&mask, &chosen.neg()?)?;
            Ok([mask.nonzero()?, chosen, replaced, x.unique()?])
        };
        for (here, there) in on(&Device::Cpu)?.iter().zip(&on(&gpu)?) {
            same(here, there, &case)?;
        }
        if dims.contains(&0) || dims.is_empty() {
            continue;
        }
        agree(&gpu, DType::F32, 0.0, &case, &[&dims], |x| x[0].masked_select(&x[0].detach().gt_scalar(0.5)?));
        let none = x.to(&gpu)?.gt_scalar(1_000_000)?;
        assert_eq!(none.nonzero()?.dims(), [0, dims.len()], "{case}");
        let nothing = x.to(&gpu)?.to_float()?.set_requires_grad(true);
        nothing.masked_select(&none)?.sum(..)?.backward()?;
        let grad = nothing.grad().expect("a gradient");
        assert_eq!(grad.abs()?.sum(..)?.item::<f32>()?, 0.0, "{case}");
    }
    Ok(())
}

#[test]
fn searches_agree() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for right in [false, true] {
        for (rows, n, m) in [(1, 1, 3), (1, 5000, 10_000), (3, 777, 900)] {
            let (sorted, values) = (integers(&[rows, n])?.sort(1, false)?.0, integers(&[rows, m])?.add_scalar(1)?);
            let here = sorted.searchsorted(&values, right)?;
            let there = sorted.to(&gpu)?.searchsorted(&values.to(&gpu)?, right)?;
            same(&here, &there, &format!("{rows} rows of {n}, {right}"))?;
            let halves = |x: &Tensor<Int>| x.to_float_of(DType::BF16);
            let there = halves(&sorted)?.to(&gpu)?.searchsorted(&halves(&values)?.to(&gpu)?, right)?;
            same(&halves(&sorted)?.searchsorted(&halves(&values)?, right)?, &there, "halves")?;
        }
    }
    Ok(())
}

#[test]
fn inner_products_of_long_vectors_agree() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let n: &[usize] = &[100_003];
    for (dtype, bound) in [(DType::F32, 1e-4), (DType::F64, 1e-12), (DType::BF16, 2e-2), (DType::F16, 2e-2)] {
        agree(&gpu, dtype, bound, "dot", &[n, n], |x| x[0].dot(&x[1])?.div_scalar(1000.0));
    }
    Ok(())
}

#[test]
fn ranges_have_the_same_bits() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (start, end, step) in [(0.1, 7.0, 0.1), (5.0, -300.0, -0.7), (1.0, 1.0, 1.0), (0.0, 2000.0, 1.0)] {
            let on = |device: &Device| Tensor::on(device).of(dtype).arange(start, end, step);
            same(&on(&Device::Cpu)?, &on(&gpu)?, &format!("{dtype} from {start} to {end}"))?;
        }
        for n in [0, 1, 7, 100] {
            same(&Tensor::of(dtype).eye(n)?, &Tensor::on(&gpu).of(dtype).eye(n)?, &format!("eye({n}) of {dtype}"))?;
        }
    }
    for dtype in [DType::I64, DType::I32, DType::U8] {
        for (start, end, step) in [(0, 200, 3), (250, 0, -1), (3, 3, 1), (0, 100_000, 999)] {
            let on = |device: &Device| Tensor::on(device).of(dtype).arange(start, end, step);
            same(&on(&Device::Cpu)?, &on(&gpu)?, &format!("{dtype} from {start} to {end}"))?;
        }
    }
    let on = |device: &Device| Tensor::on(device).arange(i64::MIN, i64::MAX, i64::MAX);
    same(&on(&Device::Cpu)?, &on(&gpu)?, "all of i64")
}
