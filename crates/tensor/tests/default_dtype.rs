//! The default precision of floats. It is global to the process, so this test has a program of its own.

use pagelock_tensor::{DType, Error, Half, Reduction, Result, Tensor, autocast, default_dtype, set_default_dtype};

#[test]
fn the_default_precision_is_that_of_what_names_none() -> Result<()> {
    assert_eq!((default_dtype(), Tensor::zeros([1])?.dtype()), (DType::F32, DType::F32));
    for dtype in [DType::F64, DType::F16, DType::BF16, DType::F32] {
        set_default_dtype(dtype)?;
        assert_eq!(default_dtype(), dtype);
        let made = [
            Tensor::new([1.0, 2.0])?,
            Tensor::new([1.0_f32])?,
            Tensor::zeros([2])?,
            Tensor::ones([2])?,
            Tensor::rand([2])?,
            Tensor::randn([2])?,
            Tensor::eye(2)?,
            Tensor::full([2], 0.5)?,
            Tensor::scalar(0.5)?,
            Tensor::arange(0.0, 1.0, 0.5)?,
            Tensor::on(&pagelock_tensor::Device::Cpu).zeros([2])?,
            Tensor::new([1, 2])?.to_float()?,
            Tensor::new([true])?.to_float()?,
        ];
        assert!(made.iter().all(|x| x.dtype() == dtype), "{dtype}");
        let named = [
            Tensor::from_slice(&[1.0_f32], 1)?,
            Tensor::of(DType::F32).zeros([1])?,
            Tensor::of(DType::F32).new([1.0])?.zeros_like()?,
            Tensor::of(DType::F32).new([1.0])?.to_float()?,
            Tensor::of(DType::U8).new([255])?.scaled(0.5)?,
        ];
        assert!(named.iter().all(|x| x.dtype() == DType::F32), "{dtype}");
        assert_eq!((Tensor::new([1, 2])?.dtype(), Tensor::full([1], 0)?.dtype()), (DType::I64, DType::I64));
        let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?.set_requires_grad(true);
        x.matmul(&x)?.cross_entropy(&Tensor::new([0, 1])?, Reduction::Mean)?.backward()?;
        assert_eq!(x.grad().unwrap().dtype(), dtype);
        let w = Tensor::of(DType::F32).ones([2, 2])?;
        assert_eq!(autocast(Half::BF16, || w.matmul(&w))?.dtype(), DType::BF16, "whatever the default is");
    }
    for dtype in [DType::I64, DType::Bool] {
        assert!(matches!(set_default_dtype(dtype), Err(Error::WrongKind { .. })));
    }
    assert_eq!(default_dtype(), DType::F32);
    Ok(())
}
