//! Compares this project's own kernels with NVIDIA's libraries over sizes. The limits in each operation's
//! `library.rs` come from these figures.

use anyhow::Result;
use pagelock::tensor::autograd::Backward;
use pagelock::tensor::{Conv2dOptions, DType, Device, Kernels, with_kernels};

use crate::gemm::random;
use crate::table::milliseconds;

pub(crate) fn measure(device: &Device) -> Result<()> {
    println!("{:44} {:>10} {:>10} {:>9}", "work", "own, µs", "library", "speed");
    for [m, k, n] in [[64, 64, 64], [128; 3], [192; 3], [256; 3], [384; 3], [512; 3], [64, 4096, 16], [64, 784, 128]] {
        product(device, [m, k, n], DType::F32)?;
        product(device, [m, k, n], DType::BF16)?;
    }
    product(device, [4096, 4096, 1], DType::F32)?;
    product(device, [4096, 4096, 8], DType::F32)?;
    product(device, [4096, 16, 4096], DType::F32)?;
    product(device, [8, 65_536, 8], DType::F32)?;
    for sizes in
        [[64, 16, 16, 14, 3], [64, 16, 32, 14, 5], [64, 32, 32, 16, 3], [64, 32, 64, 16, 3], [64, 64, 64, 8, 3]]
    {
        convolution(device, sizes, DType::F32)?;
        convolution(device, sizes, DType::BF16)?;
    }
    for sizes in
        [[512, 3, 64, 32, 3], [512, 64, 128, 32, 1], [16, 64, 64, 32, 3], [256, 64, 64, 32, 3], [256, 8, 8, 32, 3]]
    {
        convolution(device, sizes, DType::F32)?;
        convolution(device, sizes, DType::BF16)?;
    }
    Ok(())
}

fn compare(device: &Device, name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let [own, library] =
        [Kernels::Own, Kernels::Library].map(|kernels| with_kernels(kernels, || milliseconds(device, &mut call)));
    match (own, library) {
        (Ok(own), Ok(library)) => println!("{name:44} {:10.1} {:10.1} {:9.2}", own * 1e3, library * 1e3, own / library),
        (own, library) => println!("{name:44} {own:?} {library:?}"),
    }
    Ok(())
}

fn product(device: &Device, [m, k, n]: [usize; 3], dtype: DType) -> Result<()> {
    let (a, b) = (random(device, dtype, &[m, k])?, random(device, dtype, &[k, n])?);
    compare(device, &format!("[{m}, {k}] · [{k}, {n}] {dtype}"), || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

fn convolution(device: &Device, [batch, ins, outs, side, kernel]: [usize; 5], dtype: DType) -> Result<()> {
    let name = format!("{batch} of {ins} to {outs}, {side}², {kernel}×{kernel} {dtype}");
    let image = random(device, dtype, &[batch, ins, side, side])?;
    let weight = random(device, dtype, &[outs, ins, kernel, kernel])?;
    let geometry = Conv2dOptions::new().padding(kernel / 2);
    compare(device, &name, || {
        drop(image.conv2d(&weight, None, geometry)?);
        Ok(())
    })?;
    let (image, weight) = (image.set_requires_grad(true), weight.set_requires_grad(true));
    let result = image.conv2d(&weight, None, geometry)?;
    let gradient = random(device, dtype, result.shape())?;
    compare(device, &format!("{name}, gradients"), || {
        result.backward_with(Backward {
            gradient: Some(gradient.clone()),
            retain_graph: true,
            ..Backward::default()
        })?;
        image.zero_grad();
        weight.zero_grad();
        Ok(())
    })
}
