//! Autocast: products and convolutions in half precision, operations that lose bits in `f32`, all others in the
//! precision of their operands.

use half::bf16;
use pagelock_memory::{holder, ledger};
use pagelock_tensor::{
    BatchNormOptions, Conv2dOptions, DType, Generator, Half, Reduction, Result, Tensor, autocast, autocast_type,
    no_autocast, no_grad,
};

const HALVES: [(Half, DType); 2] = [(Half::BF16, DType::BF16), (Half::F16, DType::F16)];

fn random<const N: usize>(shape: [usize; N], seed: u64) -> Result<Tensor> {
    Tensor::randn_with(shape, &Generator::new(seed))
}

fn variable<const N: usize>(shape: [usize; N], seed: u64) -> Result<Tensor> {
    Ok(random(shape, seed)?.set_requires_grad(true))
}

#[track_caller]
fn equal(found: &Tensor, expected: &Tensor) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
    assert_eq!(found.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
}

#[test]
fn operands_of_any_precision_but_f64_meet_in_the_half_type() -> Result<()> {
    let (x, w) = (random([4, 6], 1)?, random([6, 3], 2)?);
    for (half, dtype) in HALVES {
        for other in [DType::F32, DType::F16, DType::BF16] {
            let product = autocast(half, || x.to_dtype(other)?.matmul(&w))?;
            equal(&product, &x.to_dtype(other)?.to_dtype(dtype)?.matmul(&w.to_dtype(dtype)?)?);
        }
        let exact = autocast(half, || x.to_dtype(DType::F64)?.matmul(&w.to_dtype(DType::F64)?))?;
        assert_eq!(exact.dtype(), DType::F64, "as in PyTorch");
    }
    let ints = autocast(Half::BF16, || Tensor::full([2, 2], 3)?.matmul(&Tensor::full([2, 2], 5)?))?;
    assert_eq!(ints.to_vec::<i64>()?, [30; 4]);
    Ok(())
}

#[test]
fn f32_weights_of_half_products_get_f32_gradients() -> Result<()> {
    for (half, dtype) in HALVES {
        let (x, w, b) = (random([4, 6], 1)?, variable([3, 6], 2)?, variable([3], 3)?);
        let (image, kernel) = (variable([2, 2, 6, 6], 4)?, variable([3, 2, 3, 3], 5)?);
        let loss = autocast(half, || -> Result<Tensor> {
            let y = x.linear(&w, Some(&b))?.sum(..)?;
            y + image.conv2d(&kernel, None, Conv2dOptions::new())?.sum(..)?
        })?;
        assert_eq!(loss.dtype(), DType::F32);
        loss.backward()?;
        // By hand: everything in half precision, since the incoming gradient is half, then converted to f32.
        let ones = Tensor::of(dtype).ones([4, 3])?;
        equal(&w.grad().unwrap(), &ones.t()?.matmul(&x.to_dtype(dtype)?)?.to_dtype(DType::F32)?);
        assert_eq!(b.grad().unwrap().to_vec::<f32>()?, [4.0; 3]);
        for x in [&w, &b, &image, &kernel] {
            assert_eq!(x.grad().unwrap().dtype(), DType::F32);
        }
    }
    Ok(())
}

#[test]
fn half_weights_get_half_gradients() -> Result<()> {
    let w = random([6, 3], 2)?.to_dtype(DType::BF16)?.set_requires_grad(true);
    autocast(Half::BF16, || random([4, 6], 1)?.matmul(&w)?.mse_loss(&random([4, 3], 3)?, Reduction::Mean))?
        .backward()?;
    assert_eq!(w.grad().unwrap().dtype(), DType::BF16);
    Ok(())
}

#[test]
fn a_network_trains_under_autocast() -> Result<()> {
    let [w1, w2] = [variable([8, 4], 1)?, variable([2, 8], 2)?];
    let (weight, bias) = (Tensor::ones([8])?.set_requires_grad(true), Tensor::zeros([8])?.set_requires_grad(true));
    let (x, labels) = (random([32, 4], 3)?, Tensor::from_vec((0..32).map(|i| i % 2).collect::<Vec<i64>>(), 32)?);
    let mut losses = Vec::new();
    for _ in 0..60 {
        let loss = autocast(Half::BF16, || -> Result<Tensor> {
            let h = x.linear(&w1, None)?;
            let h = h.layer_norm(8, Some(&weight), Some(&bias), 1e-5)?.relu()?;
            h.linear(&w2, None)?.cross_entropy(&labels, Reduction::Mean)
        })?;
        loss.backward()?;
        for parameter in [&w1, &w2, &weight, &bias] {
            let grad = parameter.grad().unwrap();
            assert_eq!((parameter.dtype(), grad.dtype()), (DType::F32, DType::F32));
            pagelock_tensor::no_grad(|| parameter.add_scaled_(&grad, -0.5))?;
            parameter.zero_grad();
        }
        losses.push(loss.item::<f32>()?);
    }
    assert!(losses[59] < 0.8 * losses[0], "{losses:?}");
    Ok(())
}

#[test]
fn a_batch_norm_of_half_activations_takes_f32_weights_and_statistics() -> Result<()> {
    let (image, kernel) = (random([4, 2, 6, 6], 1)?, random([3, 2, 3, 3], 2)?);
    let (weight, bias) = (variable([3], 3)?, variable([3], 4)?);
    let running = [Tensor::zeros([3])?, Tensor::ones([3])?];
    let y = autocast(Half::BF16, || {
        let y = image.conv2d(&kernel, None, Conv2dOptions::new())?;
        y.batch_norm(Some(running.each_ref()), Some(&weight), Some(&bias), BatchNormOptions::default())
    })?;
    y.to_dtype(DType::F32)?.pow(2.0)?.sum(..)?.backward()?;
    assert_eq!([&weight, &bias].map(|x| x.grad().unwrap().dtype()), [DType::F32; 2]);
    assert!(running[0].to_vec::<f32>()?.iter().all(|&mean| mean != 0.0));
    Ok(())
}

#[test]
fn no_autocast_is_exact_again_and_scopes_end_where_they_end() -> Result<()> {
    let (x, w) = (random([4, 6], 1)?, random([6, 3], 2)?);
    assert_eq!(autocast_type(), None);
    autocast(Half::F16, || -> Result<()> {
        assert_eq!(autocast_type(), Some(Half::F16));
        assert_eq!(x.matmul(&w)?.dtype(), DType::F16);
        let exact = no_autocast(|| x.matmul(&w))?;
        assert_eq!(exact.dtype(), DType::F32);
        let other = std::thread::scope(|scope| scope.spawn(|| x.matmul(&w)).join().unwrap())?;
        equal(&other, &exact);
        autocast(Half::BF16, || assert_eq!(autocast_type(), Some(Half::BF16)));
        assert_eq!(autocast_type(), Some(Half::F16));
        Ok(())
    })?;
    let panicked = std::panic::catch_unwind(|| autocast(Half::BF16, || panic!("in the middle")));
    assert!(panicked.is_err());
    assert_eq!(autocast_type(), None);
    assert_eq!(x.matmul(&w)?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn a_weight_that_is_changed_within_the_scope_is_rounded_again() -> Result<()> {
    let (x, w) = (random([4, 6], 1)?, variable([6, 3], 2)?);
    autocast(Half::BF16, || -> Result<()> {
        let before = x.matmul(&w)?;
        equal(&x.matmul(&w)?, &before);
        pagelock_tensor::no_grad(|| w.mul_scalar_(2.0))?;
        equal(&x.matmul(&w)?, &(before * 2.0)?);
        // The memory of a dropped weight may be reused by another, which must be rounded anew.
        for i in 0..20_u8 {
            let w = Tensor::full([6, 3], f64::from(i))?.set_requires_grad(true);
            assert_eq!(Tensor::ones([1, 6])?.matmul(&w)?.to_vec::<f32>()?, [6.0 * f32::from(i); 3]);
        }
        Ok(())
    })
}

#[test]
fn a_weight_may_be_used_twice_and_gets_both_gradients() -> Result<()> {
    let (x, w) = (Tensor::new([[1.0, 2.0]])?, Tensor::new([[1.0, 0.0], [0.0, 1.0]])?.set_requires_grad(true));
    for round in 1..3_u8 {
        let loss = autocast(Half::BF16, || x.matmul(&w)?.matmul(&w)?.sum(..))?;
        loss.backward()?;
        let twice = [2.0, 2.0, 4.0, 4.0].map(|by: f32| by * f32::from(round));
        assert_eq!(w.grad().unwrap().to_vec::<f32>()?, twice);
    }
    let frozen = autocast(Half::BF16, || pagelock_tensor::no_grad(|| x.matmul(&w)))?;
    assert!(!frozen.requires_grad());
    let tracked = autocast(Half::BF16, || {
        pagelock_tensor::no_grad(|| x.matmul(&w))?; // rounds the weight outside the graph
        x.matmul(&w)
    })?;
    assert!(tracked.requires_grad());
    Ok(())
}

#[test]
fn backward_needs_no_scope_and_is_the_same_inside_one() -> Result<()> {
    let gradient = |inside: bool| -> Result<Tensor> {
        let (x, w) = (random([4, 6], 1)?, variable([6, 3], 2)?);
        let loss = autocast(Half::BF16, || x.matmul(&w)?.pow(2.0)?.sum(..))?;
        if inside {
            autocast(Half::BF16, || loss.backward())?;
        } else {
            loss.backward()?;
        }
        Ok(w.grad().unwrap())
    };
    equal(&gradient(true)?, &gradient(false)?);
    Ok(())
}

#[test]
fn a_product_is_rounded_once_to_the_half_type() -> Result<()> {
    let x = Tensor::new([[1.0, 1.0 / 3.0]])?;
    let product = autocast(Half::BF16, || x.matmul(&x.t()?))?;
    assert_eq!(product.item::<bf16>()?, bf16::from_f32(1.109_375), "1 + 1/9 is 1.1111…");
    Ok(())
}

#[test]
fn a_scope_around_a_training_loop_keeps_one_rounded_copy_of_a_parameter() -> Result<()> {
    const NAME: &str = "a training loop under autocast";
    let _holder = holder(NAME);
    let (x, w) = (random([1, 256], 1)?, variable([256, 256], 2)?);
    autocast(Half::BF16, || {
        for _ in 0..20 {
            x.matmul(&w)?.sum(..)?.backward()?;
            no_grad(|| w.mul_scalar_(0.5))?;
        }
        let all = ledger().resources.into_iter().flat_map(|resource| resource.holders);
        let held: u64 = all.filter(|held| held.name == NAME).map(|held| held.bytes.0).sum();
        assert!(
            held <= 6 * 2 * 256 * 256,
            "{held} bytes, but a rounded weight has 131,072, and weight and gradient 4 times that"
        );
        Ok(())
    })
}
