//! Layers are made in the default precision. There is only one test, since the default is global to the process.

use pagelock_nn::{BatchNorm2d, Conv2d, Forward, LayerNorm, Linear, Module};
use pagelock_tensor::{DType, Tensor, set_default_dtype};

#[test]
fn layers_begin_in_the_default_precision_and_stay_in_theirs() -> pagelock_nn::Result<()> {
    let before = Linear::new(3, 2)?;
    set_default_dtype(DType::F64)?;
    let layers = (Linear::new(3, 2)?, Conv2d::new(1, 1, 3)?, LayerNorm::new(4)?, BatchNorm2d::new(4)?);
    assert!(layers.parameters().iter().all(|parameter| parameter.dtype() == DType::F64));
    let dtypes: Vec<DType> = layers.buffers().iter().map(|buffer| buffer.dtype()).collect();
    assert_eq!(dtypes, [DType::F64, DType::F64, DType::I64]);
    assert_eq!(layers.0.forward(&Tensor::ones([1, 3])?)?.dtype(), DType::F64);
    assert_eq!(before.weight.dtype(), DType::F32);
    Ok(())
}
