//! Matrix products whose inner dimension is split between groups of threads, and sums of the gradients of several
//! paths, compared with the CPU.

use pagelock_tensor::{DType, Device, Kernels, Result, Tensor, with_kernels};

use crate::agreement::same;
use crate::common::gpu;
use crate::networks::{agree, random};

#[test]
fn products_with_a_split_inner_dimension_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let shapes: [[&[usize]; 2]; 8] = [
            [&[64, 256], &[256, 1024]],
            [&[100, 259], &[259, 131]], // rows that are not aligned to packs
            [&[128, 130], &[130, 100]],
            [&[300, 64], &[64, 130]],
            [&[301, 63], &[63, 33]],
            [&[129, 1000], &[1000, 96]],
            [&[3, 70, 100], &[100, 90]],
            [&[2, 1, 80, 60], &[3, 60, 84]],
        ];
        for [a, b] in shapes {
            agree(gpu, dtype, bound, &format!("{a:?} · {b:?}"), &[a, b], |x| x[0].matmul(&x[1]));
        }
        agree(gpu, dtype, bound, "transposed", &[&[260, 100], &[128, 260]], |x| x[0].t()?.matmul(&x[1].t()?));
        agree(gpu, dtype, bound, "narrowed", &[&[101, 260], &[260, 131]], |x| {
            x[0].narrow(0, 1, 100)?.narrow(1, 1, 257)?.matmul(&x[1].narrow(0, 3, 257)?.narrow(1, 1, 130)?)
        });
        agree(gpu, dtype, bound, "every second element", &[&[100, 260], &[130, 200]], |x| {
            x[0].slice(1, 0..260, 2)?.matmul(&x[1].slice(1, 0..200, 2)?)
        });
        for shape in [[100, 259, 131], [64, 256, 768], [300, 70, 99]] {
            let [rows, n_in, n_out] = shape;
            agree(
                gpu,
                dtype,
                bound,
                &format!("linear of {shape:?}"),
                &[&[rows, n_in], &[n_out, n_in], &[1, n_out]],
                |x| x[0].linear(&x[1], Some(&x[2].squeeze(0)?)),
            );
        }
    }
    let Some(gpu) = gpu() else { return };
    with_kernels(Kernels::Own, || {
        of(&gpu, DType::F32, 2e-5);
        of(&gpu, DType::F64, 1e-13);
        of(&gpu, DType::F16, 2e-2);
        of(&gpu, DType::BF16, 0.15);
    });
}

#[test]
fn a_product_may_have_more_columns_than_a_grid_has_tiles() {
    let Some(gpu) = gpu() else { return };
    let (column, row) = (Tensor::new([[1.0], [2.0], [3.0]]).unwrap(), Tensor::arange(0, 65_536 * 64 + 1, 1).unwrap());
    let row = row.to_float().unwrap().unsqueeze(0).unwrap();
    let [column, row] = [column, row].map(|x| x.to(&gpu).unwrap());
    let product = with_kernels(Kernels::Own, || column.matmul(&row)).unwrap();
    assert!(product.eq(&(&column * &row).unwrap()).unwrap().all(..).unwrap().item::<bool>().unwrap());
}

#[test]
fn gradients_from_several_paths_agree() {
    let Some(gpu) = gpu() else { return };
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 2e-2), (DType::BF16, 0.15)] {
        agree(&gpu, dtype, bound, "a layer three times", &[&[4, 7], &[7, 7], &[1, 7]], |x| {
            let mut y = x[0].clone();
            for _ in 0..3 {
                y = y.linear(&x[1], Some(&x[2].squeeze(0)?))?.tanh()?;
            }
            Ok(y)
        });
        agree(&gpu, dtype, bound, "more tensors than are added at once", &[&[3, 5][..]; 6], |x| {
            let product = x[1..].iter().try_fold(x[0].clone(), |product, x| product.mul(x))?;
            x.iter().try_fold(product, |sum, x| sum.add(&x.mul(x)?))
        });
        agree(&gpu, dtype, bound, "different memory orders", &[&[6, 9], &[9, 6], &[6, 9]], |x| {
            let sum = x[0].add(&x[1].t()?)?.mul(&x[2])?;
            sum.add(&x[0].t()?.mul(&x[1])?.t()?)?.add(&x[2].mul_scalar(3.0)?)
        });
        agree(&gpu, dtype, bound, "parts with odd offsets", &[&[3, 7], &[3, 7]], |x| {
            let both = Tensor::cat(&[&x[0], &x[1]], 1)?;
            both.narrow(1, 1, 6)?.mul(&both.narrow(1, 5, 6)?)?.add(&x[0].narrow(1, 0, 6)?.mul(&x[1].narrow(1, 1, 6)?)?)
        });
    }
}

/// The gradients of a second backward pass are added to those of the first, for all leaves in few launches.
#[test]
fn gradients_of_two_backward_passes_are_added() {
    let Some(gpu) = gpu() else { return };
    let on = |device: &Device| -> Result<Vec<Tensor>> {
        let shapes: [&[usize]; 6] = [&[5, 9], &[3], &[2, 3, 4, 5], &[1], &[0, 4], &[33, 65]];
        let leaves = shapes.iter().zip(1..).map(|(shape, seed)| random(DType::F32, shape, seed).to(device));
        let leaves: Vec<_> = leaves.map(|x| x.map(|x| x.set_requires_grad(true))).collect::<Result<_>>()?;
        for _ in 0..2 {
            for x in &leaves {
                x.mul(x)?.sum(..)?.backward()?;
            }
            let sums = leaves.iter().map(|x| x.mul_scalar(0.5)?.sum(..)).collect::<Result<Vec<_>>>()?;
            sums.iter().skip(1).try_fold(sums[0].clone(), |sum, x| sum.add(x))?.backward()?;
        }
        Ok(leaves.iter().filter_map(Tensor::grad).collect())
    };
    let (here, there) = (on(&Device::Cpu).unwrap(), on(&gpu).unwrap());
    assert_eq!(there.len(), 6);
    here.iter().zip(&there).for_each(|(here, there)| same(here, there, 1e-6, "gradients of two backward passes"));
}
