//! The same seed gives the same bits from run to run, and for any number of threads.

use pagelock_data::{DataLoader, SyntheticDigits, TensorDataset};
use pagelock_nn::optim::{Adam, Optimizer, Sgd};
use pagelock_nn::{
    AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, Forward, Linear, MaxPool2d, Module, ReLU, Sequential, functional as F,
};
use pagelock_tensor::{Generator, set_num_threads};

use crate::lock_threads;

/// The bits of all parameters after an epoch of 1,200 images, whose last batch is smaller than the others.
fn after_an_epoch(n_threads: usize, model: Sequential, mut opt: impl Optimizer) -> Vec<Vec<u32>> {
    set_num_threads(n_threads);
    let digits = SyntheticDigits::new(3).train_len(1_200).test_len(1).generate().unwrap();
    let dataset = TensorDataset::new((digits.train.planes().unwrap(), digits.train.labels().unwrap())).unwrap();
    for batch in &DataLoader::new(dataset).batch_size(64).shuffle(5) {
        let (xb, yb) = batch.unwrap();
        F::cross_entropy(&model.forward(&xb).unwrap(), &yb).unwrap().backward().unwrap();
        opt.step().unwrap();
        opt.zero_grad();
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    model.parameters().iter().map(|parameter| bits(parameter.to_vec().unwrap())).collect()
}

fn tutorial(n_threads: usize) -> Vec<Vec<u32>> {
    let generator = Generator::new(1); // all tests of this process share the default one
    let conv = |from, to| Conv2d::new_with(from, to, 3, &generator).unwrap().stride(2).padding(1);
    let model = Sequential::new((
        conv(1, 16),
        ReLU,
        conv(16, 16),
        ReLU,
        conv(16, 10),
        ReLU,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
    ));
    let opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    after_an_epoch(n_threads, model, opt)
}

/// Large products, 5×5 convolutions, maxima and dropout, which the tutorial's model lacks.
fn lenet(n_threads: usize) -> Vec<Vec<u32>> {
    let generator = Generator::new(2);
    let model = Sequential::new((
        Conv2d::new_with(1, 16, 5, &generator).unwrap().padding(2),
        ReLU,
        MaxPool2d::new(2),
        Conv2d::new_with(16, 32, 5, &generator).unwrap(),
        ReLU,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new_with(800, 128, &generator).unwrap(),
        ReLU,
        Dropout::new_with(0.3, Generator::new(4)),
        Linear::new_with(128, 10, &generator).unwrap(),
    ));
    let opt = Adam::new(model.parameters(), 1e-3);
    after_an_epoch(n_threads, model, opt)
}

#[test]
fn an_epoch_of_the_tutorials_model_gives_the_same_bits_again_and_on_1_2_and_5_threads() {
    let _threads = lock_threads();
    let once = tutorial(1);
    for n_threads in [1, 2, 5] {
        assert!(tutorial(n_threads) == once, "{n_threads} threads");
    }
}

#[test]
fn an_epoch_of_lenet_gives_the_same_bits_on_1_2_and_5_threads() {
    let _threads = lock_threads();
    let once = lenet(1);
    for n_threads in [2, 5] {
        assert!(lenet(n_threads) == once, "{n_threads} threads");
    }
}
