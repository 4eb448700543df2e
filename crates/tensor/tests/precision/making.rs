//! Making, reading and converting tensors.

use half::{bf16, f16};
use pagelock_tensor::{AnyTensor, Bool, DType, Device, Error, Float, Generator, Int, Result, Tensor, default_dtype};

use crate::common::{FLOATS, INTS};

#[test]
fn without_a_precision_floats_are_f32_and_integers_i64() -> Result<()> {
    assert_eq!(default_dtype(), DType::F32);
    let generator = Generator::new(1);
    let floats = [
        Tensor::new([1.0, 2.0])?,
        Tensor::new([1.0_f64])?,
        Tensor::new([[f16::ONE], [f16::ZERO]])?,
        Tensor::new(vec![0.5_f32; 3])?,
        Tensor::new([0.0; 0])?,
        Tensor::zeros([2])?,
        Tensor::ones(())?,
        Tensor::rand([2])?,
        Tensor::randn([2])?,
        Tensor::rand_with([2], &generator)?,
        Tensor::randn_with([2], &generator)?,
        Tensor::eye(2)?,
        Tensor::full([2], 1.5)?,
        Tensor::full([2], 1.5_f64)?,
        Tensor::scalar(2.5)?,
        Tensor::arange(0.0, 1.0, 0.25)?,
        Tensor::on(&Device::Cpu).zeros([2])?,
        Tensor::on(&Device::Cpu).full([2], 0.5)?,
    ];
    assert!(floats.iter().all(|x| x.dtype() == DType::F32));
    let ints: [Tensor<Int>; 10] = [
        Tensor::new([1, 2])?,
        Tensor::new([1_u8])?,
        Tensor::new([[1_i32], [2]])?,
        Tensor::new([0_i64; 0])?,
        Tensor::full([2], 0)?,
        Tensor::full([2], 7_u8)?,
        Tensor::scalar(3)?,
        Tensor::arange(0, 10, 3)?,
        Tensor::randperm(4)?,
        Tensor::on(&Device::Cpu).full([2], 1)?,
    ];
    assert!(ints.iter().all(|x| x.dtype() == DType::I64));
    let truths: [Tensor<Bool>; 4] =
        [Tensor::new([true])?, Tensor::new([[true], [false]])?, Tensor::full([2], false)?, Tensor::scalar(true)?];
    assert!(truths.iter().all(|x| x.dtype() == DType::Bool));
    Ok(())
}

#[test]
fn slices_keep_the_precision_of_their_elements() -> Result<()> {
    let floats = [
        Tensor::from_slice(&[0.1_f32], 1)?,
        Tensor::from_slice(&[0.1_f64], 1)?,
        Tensor::from_slice(&[f16::ONE], 1)?,
        Tensor::from_vec(vec![bf16::ONE], 1)?,
        Tensor::build(2, |out: &mut [f64]| out.fill(0.1))?,
    ];
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::F64];
    assert_eq!(floats.each_ref().map(Tensor::dtype), dtypes);
    assert_eq!(floats[1].item::<f64>()?, 0.1);
    assert_eq!(floats[4].to_vec::<f64>()?, [0.1; 2]);
    let ints: [Tensor<Int>; 3] =
        [Tensor::from_slice(&[1_i64], 1)?, Tensor::from_vec(vec![1_i32], 1)?, Tensor::from_slice(&[1_u8], 1)?];
    assert_eq!(ints.each_ref().map(Tensor::dtype), [DType::I64, DType::I32, DType::U8]);
    let truths: Tensor<Bool> = Tensor::from_slice(&[true, false], 2)?;
    assert_eq!(truths.to_vec::<bool>()?, [true, false]);
    Ok(())
}

#[test]
fn a_precision_that_is_named_is_that_of_every_constructor() -> Result<()> {
    let generator = Generator::new(2);
    for &dtype in FLOATS {
        let of = || Tensor::of(dtype);
        let made = [
            of().zeros([2])?,
            of().ones([2])?,
            of().eye(2)?,
            of().rand([2])?,
            of().randn([2])?,
            of().rand_with([2], &generator)?,
            of().randn_with([2], &generator)?,
            of().full([2], 0.5)?,
            of().arange(0.0, 1.0, 0.25)?,
            of().new([[0.5, 1.0]])?,
            of().from_slice(&[0.5_f64, 1.0], 2)?,
            of().on(&Device::Cpu).zeros([2])?,
            Tensor::on(&Device::Cpu).of(dtype).zeros([2])?,
        ];
        assert!(made.iter().all(|x| x.dtype() == dtype), "{dtype}");
        let x = of().new([0.5, 3.0])?;
        let like = [x.zeros_like()?, x.ones_like()?, x.full_like(0.25)?, x.full_like(2)?];
        assert!(like.iter().all(|x| x.dtype() == dtype), "{dtype}");
        assert_eq!(like[2].to_vec::<f32>()?, [0.25; 2]);
        assert_eq!(made[8].to_vec::<f64>()?, [0.0, 0.25, 0.5, 0.75]);
        assert_eq!(made[9].to_vec::<f64>()?, [0.5, 1.0]);
    }
    for &dtype in INTS {
        let of = || Tensor::of(dtype);
        let made = [of().full([2], 7)?, of().arange(1, 7, 2)?, of().new([[1], [2]])?, of().from_slice(&[3_i64], 1)?];
        assert!(made.iter().all(|x| x.dtype() == dtype), "{dtype}");
        assert_eq!(made[1].to_vec::<i64>()?, [1, 3, 5]);
        assert_eq!([made[0].zeros_like()?, made[0].full_like(9)?].map(|x| x.dtype()), [dtype; 2]);
    }
    Ok(())
}

#[test]
fn numbers_are_rounded_once_to_the_precision_that_they_are_given() -> Result<()> {
    let third = 1.0 / 3.0;
    assert_eq!(Tensor::of(DType::F64).new([third])?.item::<f64>()?, third);
    assert_eq!(Tensor::of(DType::F64).full(1, third)?.item::<f64>()?, third);
    assert_eq!(Tensor::new([third])?.item::<f64>()?, f64::from(third as f32));
    assert_eq!(Tensor::of(DType::F16).new([third])?.item::<f16>()?, f16::from_f64(third));
    // Just above the midpoint of two bf16 numbers. Converted by way of f32, it would become the midpoint, and round
    // to even.
    let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(Tensor::of(DType::BF16).from_slice(&[above], 1)?.item::<f64>()?, 1.0 + 2f64.powi(-7));
    let x = Tensor::from_slice(&[above], 1)?;
    assert_eq!(x.to_dtype(DType::BF16)?.item::<f64>()?, 1.0 + 2f64.powi(-7));
    assert_eq!(x.item::<bf16>()?, bf16::from_f64(1.0 + 2f64.powi(-7)));
    Ok(())
}

#[test]
fn a_precision_of_another_kind_is_refused_by_name() {
    let refused = |result: Result<Tensor>| match result.unwrap_err() {
        Error::WrongKind { dtype, kind: "float", .. } => dtype,
        other => panic!("{other}"),
    };
    assert_eq!(refused(Tensor::of(DType::I64).zeros([2])), DType::I64);
    assert_eq!(refused(Tensor::of(DType::Bool).rand([2])), DType::Bool);
    assert_eq!(refused(Tensor::of(DType::U8).new([0.5])), DType::U8);
    assert_eq!(refused(Tensor::zeros([2]).unwrap().to_dtype(DType::I32)), DType::I32);
    let ints = Tensor::new([1, 2]).unwrap();
    assert!(matches!(ints.to_dtype(DType::F32), Err(Error::WrongKind { dtype: DType::F32, kind: "integer", .. })));
    let truths = Tensor::new([true]).unwrap();
    assert!(matches!(truths.to_dtype(DType::I64), Err(Error::WrongKind { dtype: DType::I64, kind: "bool", .. })));
    let text = ints.to_dtype(DType::F32).unwrap_err().to_string();
    assert!(text.ends_with(
        "float32 is not a precision of integer tensors; to_float, to_int and to_bool convert between kinds"
    ));
}

#[test]
fn elements_are_read_as_any_type_of_the_kind() -> Result<()> {
    let numbers = [1.0, -2.5, 0.1, 70_000.0];
    for &dtype in FLOATS {
        let x = Tensor::of(dtype).new(numbers)?;
        let exact: Vec<f64> = match dtype {
            DType::F64 => numbers.to_vec(),
            DType::F32 => numbers.map(|x| f64::from(x as f32)).to_vec(),
            DType::F16 => numbers.map(|x| f16::from_f64(x).to_f64()).to_vec(),
            _ => numbers.map(|x| bf16::from_f64(x).to_f64()).to_vec(),
        };
        assert_eq!(x.to_vec::<f64>()?, exact, "{dtype}");
        assert_eq!(x.to_vec::<f32>()?, exact.iter().map(|&x| x as f32).collect::<Vec<_>>(), "{dtype}");
        assert_eq!(x.to_vec::<f16>()?, exact.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>(), "{dtype}");
        assert_eq!(x.to_vec::<bf16>()?, exact.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(), "{dtype}");
        let mut out = [0.0_f64; 4];
        x.copy_to_slice(&mut out)?;
        assert_eq!(out[..], exact);
        let mut out = [0.0_f32; 2];
        x.slice(0, .., 2)?.copy_to_slice(&mut out)?;
        assert_eq!(out, [exact[0] as f32, exact[2] as f32], "a view with gaps, of {dtype}");
        assert_eq!(x.select(0, 1)?.item::<f64>()?, -2.5);
        assert_eq!(x.select(0, 1)?.item::<bf16>()?, bf16::from_f32(-2.5));
    }
    for &dtype in INTS {
        let x = Tensor::of(dtype).new([[1, 2], [200, 4]])?;
        assert_eq!(x.to_vec::<i64>()?, [1, 2, 200, 4]);
        assert_eq!(x.to_vec::<i32>()?, [1, 2, 200, 4]);
        assert_eq!(x.t()?.to_vec::<u8>()?, [1, 200, 2, 4]);
        assert_eq!((x.sum(..)?.item::<i32>()?, x.max(..)?.item::<u8>()?), (207, 200));
    }
    Ok(())
}

#[test]
fn a_conversion_within_the_kind_keeps_what_fits() -> Result<()> {
    let numbers = [0.0, -0.0, 1.5, -0.1, 1e5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for &from in FLOATS {
        let x = Tensor::of(from).new(numbers)?;
        for &to in FLOATS {
            let y = x.to_dtype(to)?;
            assert_eq!(y.dtype(), to);
            let expected: Vec<f64> = match to {
                DType::F64 => x.to_vec::<f64>()?,
                DType::F32 => x.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
                DType::F16 => x.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
                _ => x.to_vec::<bf16>()?.into_iter().map(f64::from).collect(),
            };
            let bits = |numbers: Vec<f64>| numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(y.to_vec()?)[..7], bits(expected)[..7], "{from} to {to}");
            assert!(y.select(0, 7)?.item::<f32>()?.is_nan());
        }
    }
    let x = Tensor::new([300, -1, (1_i64 << 40) + 5])?;
    assert_eq!(x.to_dtype(DType::U8)?.to_vec::<i64>()?, [44, 255, 5], "PyTorch's");
    assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i64>()?, [300, -1, 5], "PyTorch's");
    assert_eq!(x.to_vec::<u8>()?, [44, 255, 5]);
    Ok(())
}

#[test]
fn kinds_are_converted_by_name() -> Result<()> {
    let x = Tensor::new([0.5, 1.5, 2.5, -1.7, 0.0])?;
    assert_eq!(x.to_int()?.to_vec::<i64>()?, [0, 1, 2, -1, 0], "PyTorch's");
    assert_eq!(x.to_bool()?.to_vec::<bool>()?, [true, true, true, true, false]);
    for &dtype in FLOATS {
        assert_eq!(x.to_dtype(dtype)?.to_int()?.dtype(), DType::I64);
        assert_eq!(x.to_dtype(dtype)?.to_float()?.dtype(), dtype, "a float tensor stays as it is");
    }
    for &dtype in INTS {
        let ints = Tensor::of(dtype).new([0, 3, 200])?;
        let floats = ints.to_float()?;
        assert_eq!((floats.dtype(), floats.to_vec::<f32>()?), (DType::F32, vec![0.0, 3.0, 200.0]));
        assert_eq!(ints.to_bool()?.to_vec::<bool>()?, [false, true, true]);
        assert_eq!(ints.to_int()?.to_vec::<i64>()?, [0, 3, 200]);
    }
    let mask = Tensor::new([true, false])?;
    let (floats, ints) = (mask.to_float()?, mask.to_int()?);
    assert_eq!((floats.dtype(), floats.to_vec::<f32>()?), (DType::F32, vec![1.0, 0.0]));
    assert_eq!((ints.dtype(), ints.to_vec::<i64>()?), (DType::I64, vec![1, 0]));
    assert_eq!(mask.to_bool()?.to_vec::<bool>()?, [true, false]);
    Ok(())
}

#[test]
fn whole_numbers_of_any_size_side_by_side_are_rounded_once() -> Result<()> {
    // Numbers near ties of both half types, which are all small, or one of which is large.
    let ties = (0..4_000).map(|i: i32| i * 97 % 70_000 + (i % 3 - 1));
    for large in [None, Some(3_003), Some(0)] {
        let numbers: Vec<i32> = ties
            .clone()
            .enumerate()
            .map(|(i, x)| if Some(i) == large { (1 << 30) + (1 << 22) + 1 } else { x })
            .collect();
        let ints = Tensor::from_slice(&numbers, [numbers.len()])?;
        for dtype in [DType::F16, DType::BF16] {
            let through_f64 = ints.to_float_of(DType::F64)?.to_dtype(dtype)?;
            assert_eq!(ints.to_float_of(dtype)?.to_vec::<f32>()?, through_f64.to_vec::<f32>()?, "{dtype}, {large:?}");
        }
    }
    Ok(())
}

#[test]
fn the_results_of_comparisons_and_searches_are_of_their_own_kinds() -> Result<()> {
    let x = Tensor::of(DType::BF16).new([[1.0, 3.0], [5.0, 2.0]])?;
    let larger: Tensor<Bool> = x.gt(&x.t()?)?;
    assert_eq!(larger.to_vec::<bool>()?, [false, false, true, false]);
    let places: Tensor<Int> = x.argmax(1)?;
    assert_eq!((places.dtype(), places.to_vec::<i64>()?), (DType::I64, vec![1, 0]));
    for &dtype in INTS {
        let index = places.to_dtype(dtype)?;
        assert_eq!(x.index_select(0, &index)?.to_vec::<f32>()?, [5.0, 2.0, 1.0, 3.0], "an index of {dtype}");
        assert_eq!(x.gather(1, &index.unsqueeze(1)?)?.to_vec::<f32>()?, [3.0, 5.0], "an index of {dtype}");
        let loss = x.to_dtype(DType::F32)?.cross_entropy(&index, pagelock_tensor::Reduction::Sum)?;
        assert!((loss.item::<f64>()? - (0.126_928 + 0.048_587)).abs() < 1e-5, "{dtype}: {loss}");
    }
    Ok(())
}

#[test]
fn a_tensor_of_any_kind_says_which_it_is() -> Result<()> {
    let any: [AnyTensor; 3] = [
        Tensor::of(DType::F16).ones([2])?.into(),
        Tensor::of(DType::U8).full([2], 3)?.into(),
        Tensor::scalar(true)?.into(),
    ];
    assert_eq!(any.each_ref().map(AnyTensor::dtype), [DType::F16, DType::U8, DType::Bool]);
    assert_eq!(any[0].float()?.to_vec::<f32>()?, [1.0; 2]);
    assert_eq!(any[1].int()?.to_vec::<i32>()?, [3; 2]);
    assert!(any[2].bool()?.item::<bool>()?);
    assert!(any[0].kind::<Float>().is_ok() && any[0].kind::<Int>().is_err() && any[0].kind::<Bool>().is_err());
    assert!(matches!(any[1].float(), Err(Error::ElementType { .. })));
    assert_eq!(any[0].to_dtype(DType::F64)?.float()?.dtype(), DType::F64);
    Ok(())
}
