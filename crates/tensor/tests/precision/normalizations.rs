//! Normalizations of half precision with weights, biases and running statistics in `f32`.

use pagelock_tensor::{BatchNormOptions, DType, Device, Generator, Result, Tensor};

use super::common::{devices, gpu};

const HALVES: [(DType, f64); 2] = [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)];

/// Numbers of a precision on a device.
fn random(device: &Device, dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::randn_with(shape, &Generator::new(seed))?.to_dtype(dtype)?.to(device)
}

/// Checks that two tensors are equal within `bound`, relative to the largest number.
#[track_caller]
fn close(what: &str, found: &Tensor, expected: &Tensor, bound: f64) {
    let [found, expected] = [found, expected].map(|x| x.to_vec::<f64>().unwrap());
    let largest = expected.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= bound * largest, "{what}[{i}] is {found:e}, not {expected:e}");
    }
}

/// The result of a normalization, and the gradients of `x`, weight and bias.
struct Found {
    y: Tensor,
    grads: Vec<Tensor>,
}

fn found(inputs: &[Tensor], upstream: &Tensor, f: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<Found> {
    let inputs: Vec<Tensor> = inputs.iter().map(|x| x.detach().set_requires_grad(true)).collect();
    let y = f(&inputs)?;
    y.mul(&upstream.to_dtype(y.dtype())?)?.sum(..)?.backward()?;
    Ok(Found { y: y.detach(), grads: inputs.iter().map(|x| x.grad().unwrap()).collect() })
}

/// Checks that `f` of a half `x` and `f32` parameters is the rounded result for `x` in `f32`, and that gradients of
/// parameters are `f32`.
fn agrees(name: &str, (dtype, unit): (DType, f64), inputs: &[Tensor], f: &dyn Fn(&[Tensor]) -> Result<Tensor>) {
    let device = inputs[0].device();
    let upstream = random(&device, dtype, inputs[0].shape(), 9).unwrap();
    let mut wide = inputs.to_vec();
    wide[0] = inputs[0].to_dtype(DType::F32).unwrap();

    let (mixed, exact) = (found(inputs, &upstream, f).unwrap(), found(&wide, &upstream, f).unwrap());

    assert_eq!((mixed.y.dtype(), mixed.grads[0].dtype()), (dtype, dtype), "{name}");
    close(&format!("{name}: y"), &mixed.y, &exact.y, unit);
    close(&format!("{name}: the gradient of x"), &mixed.grads[0], &exact.grads[0], unit);
    for (mixed, exact) in mixed.grads[1..].iter().zip(&exact.grads[1..]) {
        assert_eq!(mixed.dtype(), DType::F32, "{name}");
        close(&format!("{name}: the gradient of a parameter"), mixed, exact, 1e-5);
    }
}

#[test]
fn batch_norm_of_half_numbers_beside_f32_parameters_is_computed_in_f32() -> Result<()> {
    for device in devices() {
        let parameter = |seed| random(&device, DType::F32, &[6], seed);
        let running = [parameter(4)?, parameter(5)?.abs()?];
        for half in HALVES {
            let x = |shape: &[usize]| random(&device, half.0, shape, 1);
            let images = x(&[4, 5, 3, 6])?.permute([0, 3, 1, 2])?;
            for x in [x(&[40, 6])?, x(&[4, 6, 3, 5])?, images] {
                for (training, relu) in [(true, false), (true, true), (false, false), (false, true)] {
                    let options = BatchNormOptions { training, momentum: 0.0, ..BatchNormOptions::default() };
                    let normalized = |x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>| match relu {
                        true => x.batch_norm_relu(Some(running.each_ref()), weight, bias, options),
                        false => x.batch_norm(Some(running.each_ref()), weight, bias, options),
                    };
                    let name = format!("{:?}, training: {training}, relu: {relu}, on {device}", x.shape());
                    let inputs = [x.clone(), parameter(2)?, parameter(3)?];
                    agrees(&name, half, &inputs, &|x| normalized(&x[0], Some(&x[1]), Some(&x[2])));
                    agrees(&name, half, &inputs[..2], &|x| normalized(&x[0], Some(&x[1]), None));
                    agrees(&name, half, &inputs[..2], &|x| normalized(&x[0], None, Some(&x[1])));
                    agrees(&name, half, &inputs[..1], &|x| normalized(&x[0], None, None));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn layer_norm_of_half_numbers_beside_f32_parameters_is_computed_in_f32() -> Result<()> {
    for device in devices() {
        let parameter = |seed| random(&device, DType::F32, &[6], seed);
        for half in HALVES {
            let inputs = [random(&device, half.0, &[8, 6], 1)?, parameter(2)?, parameter(3)?];
            let name = format!("layer_norm on {device}");
            agrees(&name, half, &inputs, &|x| x[0].layer_norm(6, Some(&x[1]), Some(&x[2]), 1e-5));
            agrees(&name, half, &inputs[..2], &|x| x[0].layer_norm(6, Some(&x[1]), None, 1e-5));
            agrees(&name, half, &inputs[..2], &|x| x[0].layer_norm(6, None, Some(&x[1]), 1e-5));
        }
    }
    Ok(())
}

#[test]
fn running_statistics_of_half_numbers_are_f32_and_move_as_those_of_f32_numbers() -> Result<()> {
    for device in devices() {
        for (half, _) in HALVES {
            let x = random(&device, half, &[4, 3, 2, 2], 1)?.add_scalar(100.0)?;
            let moved = |x: &Tensor| -> Result<[Tensor; 2]> {
                let on = || Tensor::on(&device).of(DType::F32);
                let running = [on().zeros(3)?, on().ones(3)?];
                x.batch_norm(Some(running.each_ref()), None, None, BatchNormOptions::default())?;
                Ok(running)
            };
            for (mixed, exact) in moved(&x)?.iter().zip(&moved(&x.to_dtype(DType::F32)?)?) {
                close("a running statistic", mixed, exact, 1e-6);
            }
        }
    }
    Ok(())
}

/// The sum of the numbers overflows, but their mean does not.
#[test]
fn channels_of_the_largest_numbers_have_a_finite_mean_on_a_gpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on = |dtype| Tensor::on(&device).of(dtype);
    let options = BatchNormOptions { momentum: 1.0, ..BatchNormOptions::default() };
    for (dtype, most) in [(DType::F32, f64::from(f32::MAX)), (DType::BF16, 3.3895e38)] {
        for shape in [&[3, 2][..], &[300, 2], &[20_000, 8], &[2, 2, 3], &[40, 2, 16, 16]] {
            let same = on(dtype).full(shape, most)?;
            let opposite = Tensor::cat(&[&same.narrow(0, 0, 1)?, &same.narrow(0, 1, shape[0] - 1)?.neg()?], 0)?;
            for (x, has_mean) in [(same, true), (opposite, false)] {
                let running = [on(DType::F32).zeros(shape[1])?, on(DType::F32).ones(shape[1])?];
                let y = x.batch_norm(Some(running.each_ref()), None, None, options)?;
                let (expected, means) = (x.to_vec::<f64>()?[0], running[0].to_vec::<f64>()?);
                let as_expected = |mean: f64| if has_mean { mean == expected } else { mean.is_finite() };
                assert!(means.iter().all(|&mean| as_expected(mean)), "{shape:?} of {dtype}: {means:?}");
                // As in PyTorch, a variance that overflows makes all results 0.
                assert!(y.to_vec::<f64>()?.iter().all(|&y| y == 0.0), "{shape:?} of {dtype}");
            }
        }
    }
    Ok(())
}
