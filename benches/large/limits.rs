//! This project's own kernels against libraries, over sizes: where the limits in `library.rs` of the operations are from.

use anyhow::Result;
use half::bf16;
use pagelock::tensor::autograd::Backward;
use pagelock::tensor::{Conv2dOptions, Device, Float, Kernels, with_kernels};

use crate::gemm::random;
use crate::table::milliseconds;

pub(crate) fn measure(device: &Device) -> Result<()> {
    println!("{:44} {:>10} {:>10} {:>9}", "work", "own, µs", "library", "speed");
    for [m, k, n] in [[64, 64, 64], [128; 3], [192; 3], [256; 3], [384; 3], [512; 3], [64, 4096, 16], [64, 784, 128]] {
        product::<f32>(device, [m, k, n], "float32")?;
        product::<bf16>(device, [m, k, n], "bfloat16")?;
    }
    product::<f32>(device, [4096, 4096, 1], "float32")?;
    product::<f32>(device, [4096, 4096, 8], "float32")?;
    product::<f32>(device, [4096, 16, 4096], "float32")?;
    product::<f32>(device, [8, 65_536, 8], "float32")?;
    for sizes in
        [[64, 16, 16, 14, 3], [64, 16, 32, 14, 5], [64, 32, 32, 16, 3], [64, 32, 64, 16, 3], [64, 64, 64, 8, 3]]
    {
        convolution::<f32>(device, sizes, "float32")?;
        convolution::<bf16>(device, sizes, "bfloat16")?;
    }
    for sizes in
        [[512, 3, 64, 32, 3], [512, 64, 128, 32, 1], [16, 64, 64, 32, 3], [256, 64, 64, 32, 3], [256, 8, 8, 32, 3]]
    {
        convolution::<f32>(device, sizes, "float32")?;
        convolution::<bf16>(device, sizes, "bfloat16")?;
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

fn product<T: Float>(device: &Device, [m, k, n]: [usize; 3], number: &str) -> Result<()> {
    let (a, b) = (random::<T>(device, &[m, k])?, random::<T>(device, &[k, n])?);
    compare(device, &format!("[{m}, {k}] · [{k}, {n}] {number}"), || {
        drop(a.matmul(&b)?);
        Ok(())
    })
}

fn convolution<T: Float>(device: &Device, [batch, ins, outs, side, kernel]: [usize; 5], number: &str) -> Result<()> {
    let name = format!("{batch} of {ins} to {outs}, {side}², {kernel}×{kernel} {number}");
    let (image, weight) =
        (random::<T>(device, &[batch, ins, side, side])?, random::<T>(device, &[outs, ins, kernel, kernel])?);
    let geometry = Conv2dOptions::new().padding(kernel / 2);
    compare(device, &name, || {
        drop(image.conv2d(&weight, None, geometry)?);
        Ok(())
    })?;
    let (image, weight) = (image.set_requires_grad(true), weight.set_requires_grad(true));
    let result = image.conv2d(&weight, None, geometry)?;
    let gradient = random::<T>(device, result.shape())?;
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
