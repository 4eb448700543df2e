//! The training loop.

use pagelock_nn::optim::Sgd;
use pagelock_nn::{Dropout, Epoch, Linear, Module, Sequential, evaluate, fit, fit_with, functional as F};
use pagelock_tensor::{Generator, Int, Reduction, Tensor};
use std::io;

/// Batches of 8 points on either side of a line; the batch at `broken` cannot be read.
struct Points {
    batches: usize,
    broken: Option<usize>,
}

impl<'a> IntoIterator for &'a Points {
    type Item = io::Result<(Tensor, Tensor<Int>)>;
    type IntoIter = Box<dyn Iterator<Item = Self::Item> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new((0..self.batches).map(|index| {
            if self.broken == Some(index) {
                return Err(io::Error::other("disk on fire"));
            }
            let points = Tensor::randn_with([8, 2], &Generator::new(index as u64)).unwrap();
            let coordinates: Vec<f32> = points.to_vec().unwrap();
            let sides: Vec<i64> = coordinates.chunks(2).map(|p| i64::from(p[0] + 2.0 * p[1] > 0.0)).collect();
            Ok((points, Tensor::from_vec(sides, 8).unwrap()))
        }))
    }
}

const POINTS: Points = Points { batches: 10, broken: None };

fn model() -> Linear {
    Linear::new_with(2, 2, &Generator::new(0)).unwrap()
}

#[test]
fn fit_lowers_both_losses() {
    let model = model();
    let mut opt = Sgd::new(model.parameters(), 0.5);
    let mut seen = Vec::new();
    let epochs = fit_with(5, &model, F::cross_entropy, &mut opt, &POINTS, &POINTS, |epoch| seen.push(*epoch)).unwrap();

    assert_eq!(epochs, seen);
    assert_eq!(epochs.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(epochs[4].train_loss < epochs[0].train_loss && epochs[4].valid_loss < epochs[0].valid_loss, "{epochs:?}");
    assert!(epochs[4].to_string().starts_with("epoch 4: training loss 0."), "{}", epochs[4]);
}

#[test]
fn fit_can_be_called_without_listening() {
    let model = model();
    let epochs: Vec<Epoch> =
        fit(2, &model, F::cross_entropy, &mut Sgd::new(model.parameters(), 0.5), &POINTS, &POINTS).unwrap();
    assert_eq!(epochs.len(), 2);
}

#[test]
fn losses_are_weighted_by_batch_size() {
    struct Uneven;
    impl IntoIterator for &Uneven {
        type Item = pagelock_tensor::Result<(Tensor, Tensor)>;
        type IntoIter = std::vec::IntoIter<Self::Item>;
        fn into_iter(self) -> Self::IntoIter {
            let batch = |size: usize, value: f32| Ok((Tensor::full([size, 1], value)?, Tensor::zeros([size, 1])?));
            vec![batch(3, 1.0), batch(1, 3.0)].into_iter()
        }
    }
    let identity = Sequential::new(());
    assert_eq!(evaluate(&identity, F::mse_loss, &Uneven).unwrap(), (3.0 * 1.0 + 9.0) / 4.0);
}

#[test]
fn validation_happens_in_evaluation_mode_and_training_in_training_mode() {
    let model = Sequential::new((model(), Dropout::new(0.0)));
    let training = std::cell::Cell::new(Vec::new());
    let loss = |scores: &Tensor, classes: &Tensor<Int>| {
        let mut seen = training.take();
        seen.push((model.is_training(), scores.requires_grad()));
        training.set(seen);
        scores.cross_entropy(classes, Reduction::Mean)
    };
    let once = Points { batches: 1, broken: None };
    fit(2, &model, loss, &mut Sgd::new(model.parameters(), 0.1), &once, &once).unwrap();
    assert_eq!(training.take(), [(true, true), (false, false), (true, true), (false, false)]);
}

#[test]
fn a_batch_that_fails_is_named() {
    let model = model();
    let broken = Points { batches: 5, broken: Some(3) };
    let error = fit(1, &model, F::cross_entropy, &mut Sgd::new(model.parameters(), 0.1), &broken, &POINTS).unwrap_err();
    assert_eq!(error.to_string(), "training batch 3 of epoch 0: disk on fire");
}

#[test]
fn no_batches_are_an_error() {
    let model = model();
    let none = Points { batches: 0, broken: None };
    let error = fit(1, &model, F::cross_entropy, &mut Sgd::new(model.parameters(), 0.1), &POINTS, &none).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the validation batches are empty; check the dataset's length, and `drop_last` against the batch size"
    );
}

#[test]
fn two_runs_from_one_seed_give_the_same_bits() {
    let run = || {
        let model = Sequential::new((model(), Dropout::new_with(0.3, Generator::new(4))));
        fit(3, &model, F::cross_entropy, &mut Sgd::new(model.parameters(), 0.1).momentum(0.9), &POINTS, &POINTS)
            .unwrap();
        let bits = |p: &pagelock_nn::Parameter| p.to_vec().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        model.parameters().iter().map(bits).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn any_number_of_epochs_may_be_asked_for() {
    let model = model();
    let mut opt = Sgd::new(model.parameters(), 0.5);
    for epochs in [1 << 40, usize::MAX] {
        let broken = Points { broken: Some(0), ..POINTS };
        let error = fit(epochs, &model, F::cross_entropy, &mut opt, &broken, &POINTS).unwrap_err();
        assert!(error.to_string().contains("disk on fire"), "{error}");
    }
}
