//! Compares this project's own kernels with NVIDIA's libraries over sizes. The limits in each operation's
//! `library.rs` come from these figures.

use anyhow::Result;
use pagelock::tensor::autograd::Backward;
use pagelock::tensor::{Conv2dOptions, DType, Device, Kernels, with_kernels};

use crate::gemm::random;
use crate::table::milliseconds;

pub(crate) fn measure(device: &Device) -> Result<()> {
    println!("{:56} {:>10} {:>10} {:>9}", "work", "own, µs", "library", "speed");
    for [m, k, n] in [[64, 64, 64], [128; 3], [192; 3], [256; 3], [384; 3], [512; 3], [64, 4096, 16], [64, 784, 128]] {
        product(device, [m, k, n], DType::F32)?;
        product(device, [m, k, n], DType::BF16)?;
    }
    product(device, [4096, 4096, 1], DType::F32)?;
    product(device, [4096, 4096, 8], DType::F32)?;
    product(device, [4096, 16, 4096], DType::F32)?;
    product(device, [8, 65_536, 8], DType::F32)?;
    for (sizes, geometry) in convolutions() {
        for dtype in [DType::F32, DType::BF16] {
            convolution(device, sizes, geometry, dtype)?;
        }
    }
    Ok(())
}

/// `[batch, in_channels, out_channels, side, kernel]`, and what is not 1: the tutorial's layers, the first and later
/// layers of networks for photos, single images, and convolutions in groups.
fn convolutions() -> Vec<([usize; 5], Conv2dOptions)> {
    let plain = Conv2dOptions::new();
    let half = plain.stride(2);
    vec![
        ([64, 1, 16, 28, 3], half),
        ([64, 16, 16, 14, 3], half),
        ([64, 6, 16, 14, 5], plain),
        ([128, 3, 64, 32, 3], plain),
        ([128, 16, 16, 32, 3], plain),
        ([128, 32, 64, 16, 3], half),
        ([128, 64, 64, 8, 3], plain),
        ([64, 24, 144, 28, 1], plain),
        ([32, 3, 64, 224, 7], half),
        ([32, 3, 64, 224, 3], plain),
        ([64, 64, 128, 32, 4], half),
        ([4, 16, 32, 128, 3], plain),
        ([32, 32, 32, 14, 3], plain.dilation(2)),
        ([1, 16, 16, 64, 3], plain),
        ([1, 64, 64, 56, 3], plain),
        ([1, 512, 512, 7, 3], plain),
        ([1, 256, 64, 56, 1], plain),
        ([32, 144, 144, 56, 3], plain.groups(144)),
        ([32, 960, 960, 7, 3], plain.groups(960)),
        ([4, 8, 8, 14, 3], plain.groups(8)),
        ([32, 256, 256, 28, 3], plain.groups(32)),
    ]
}

fn compare(device: &Device, name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let [own, library] =
        [Kernels::Own, Kernels::Library].map(|kernels| with_kernels(kernels, || milliseconds(device, &mut call)));
    match (own, library) {
        (Ok(own), Ok(library)) => println!("{name:56} {:10.1} {:10.1} {:9.2}", own * 1e3, library * 1e3, own / library),
        (own, library) => println!("{name:56} {own:?} {library:?}"),
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

fn convolution(
    device: &Device,
    [batch, ins, outs, side, kernel]: [usize; 5],
    geometry: Conv2dOptions,
    dtype: DType,
) -> Result<()> {
    let Conv2dOptions { stride: [stride, _], dilation: [dilation, _], groups, .. } = geometry;
    let rest: String = [("stride", stride), ("dilation", dilation), ("groups", groups)]
        .iter()
        .filter(|(_, value)| *value > 1)
        .map(|(name, value)| format!(", {name} {value}"))
        .collect();
    let name = format!("{batch} of {ins} to {outs}, {side}², {kernel}×{kernel}{rest} {dtype}");
    let geometry = geometry.padding(kernel / 2);
    let image = random(device, dtype, &[batch, ins, side, side])?;
    let weight = random(device, dtype, &[outs, ins / groups, kernel, kernel])?;
    compare(device, &name, || {
        drop(image.conv2d(&weight, None, geometry)?);
        Ok(())
    })?;
    for (of, is_of_image) in [("image", true), ("weight", false)] {
        let image = image.detach().set_requires_grad(is_of_image);
        let weight = weight.detach().set_requires_grad(!is_of_image);
        let result = image.conv2d(&weight, None, geometry)?;
        let gradient = random(device, dtype, result.shape())?;
        compare(device, &format!("    gradient of the {of}"), || {
            let gradient = Some(gradient.clone());
            result.backward_with(Backward { gradient, retain_graph: true, ..Backward::default() })?;
            image.zero_grad();
            weight.zero_grad();
            Ok(())
        })?;
    }
    Ok(())
}
