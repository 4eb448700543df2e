//! What models look like in print.

use crate::{cnn, normalizing, pytorch};
use pagelock_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d, Conv2d, CrossEntropyLoss, Dropout, Flatten, Lambda, LayerNorm, Linear,
    MaxPool2d, ReLU, Sequential, Sigmoid, Tanh,
};

fn expected(model: &str) -> String {
    pytorch::json("models.json")[model]["print"].as_str().unwrap().to_owned()
}

#[test]
fn models_print_as_in_pytorch() {
    let mixed = Sequential::new((
        Conv2d::grouped(4, 6, [3, 5], 2).unwrap().stride(2).padding([1, 2]).dilation([1, 2]).without_bias(),
        Tanh,
        MaxPool2d::new(2),
        Sigmoid,
        AvgPool2d::new([2, 3]).stride([1, 2]).padding(1),
        AdaptiveAvgPool2d::new([2, 3]),
        Flatten::new(),
        Dropout::new(0.3),
        Sequential::new((Linear::new(36, 8).unwrap().without_bias(), ReLU)),
        Linear::new(8, 2).unwrap(),
    ));
    assert_eq!(mixed.to_string(), expected("mixed"));
    assert_eq!(cnn().unwrap().to_string(), expected("cnn"));
    assert_eq!(normalizing::model().unwrap().to_string(), expected("normalizing"));
    assert_eq!(format!("{:?}", Linear::new(784, 10).unwrap()), expected("logistic"));
}

#[test]
fn numbers_print_as_pythons_floats() {
    assert_eq!(Dropout::new(1.0).to_string(), "Dropout(p=1.0, inplace=False)");
    assert_eq!(
        LayerNorm::new(3).unwrap().eps(1.0).to_string(),
        "LayerNorm((3,), eps=1.0, elementwise_affine=True, bias=True)"
    );
    assert_eq!(
        LayerNorm::new(3).unwrap().eps(1e16).to_string(),
        "LayerNorm((3,), eps=1e+16, elementwise_affine=True, bias=True)"
    );
    assert_eq!(
        BatchNorm1d::new(3).unwrap().eps(2.0).momentum(1.0).to_string(),
        "BatchNorm1d(3, eps=2.0, momentum=1.0, affine=True, bias=True, track_running_stats=True)"
    );
}

#[test]
fn layers_without_arguments_print_their_name() {
    let model = Sequential::new((Lambda::new(|x| x.relu()),));
    assert_eq!(model.to_string(), "Sequential(\n  (0): Lambda()\n)");
    assert_eq!(Sequential::new(()).to_string(), "Sequential()");
    assert_eq!(CrossEntropyLoss::new().to_string(), "CrossEntropyLoss()");
}
