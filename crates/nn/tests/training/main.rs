//! The first 100 steps of the tutorial's two models, from PyTorch's weights and in PyTorch's batch order: losses and
//! trained weights. On the CPU, and on a GPU if there is one.
//!
//! `../golden/make.py` trained the same models in PyTorch. Its functions `pseudo` and `rows` compute the same images
//! and batches.

#[path = "../networks/mod.rs"]
mod networks;
mod nlp;
#[expect(dead_code, reason = "other tests read other files with it")]
#[path = "../suite/pytorch.rs"]
mod pytorch;

use pagelock_data::Mnist;
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::{Forward, Linear, Module, functional as F};
use pagelock_tensor::{Device, Int, Tensor, no_grad};
use std::io::Write;

use networks::cnn;
use pytorch::devices;

const STEPS: usize = 100;
const BATCH: usize = 64;
const LOSS_BOUND: f64 = 1e-4;
const WEIGHT_BOUND: f64 = 1e-3;

/// Images `[count, 784]` with values in `0..1`, and labels.
struct Data {
    images: Vec<f32>,
    labels: Vec<i64>,
}

impl Data {
    fn pseudo(count: usize) -> Self {
        let pixel = |place: usize| {
            let (i, row, column) = (place / 784, place / 28 % 28, place % 28);
            let label = i * 7 % 10;
            let (top, left) = (2 + label / 5 * 11 + i % 3, 1 + label % 5 * 4 + i * i % 5);
            let inside = (top..top + 11).contains(&row) && (left..left + 7).contains(&column);
            let shade = 64 + ((place * 2_654_435_761 % (1 << 32)) >> 24) * 3 / 4;
            if inside { shade as f32 / 256.0 } else { 0.0 }
        };
        let images = (0..count * 784).map(pixel).collect();
        Self { images, labels: (0..count).map(|i| (i * 7 % 10) as i64).collect() }
    }

    /// MNIST, or `None` if it is not on this machine. The reason is written to the real standard error, which the
    /// test harness does not capture.
    fn mnist() -> Option<Self> {
        match Mnist::new().offline(true).open() {
            Ok(digits) => {
                let images = digits.train.image_bytes().iter().map(|&byte| f32::from(byte) / 256.0).collect();
                Some(Self { images, labels: digits.train.label_bytes().iter().map(|&label| label.into()).collect() })
            }
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "skipped on MNIST: {why}");
                None
            }
        }
    }

    fn batch(&self, step: usize, shape: &[usize]) -> (Tensor, Tensor<Int>) {
        let count = self.labels.len();
        let rows = (step * BATCH..(step + 1) * BATCH).map(|i| i * 7919 % count);
        let images: Vec<f32> = rows.clone().flat_map(|row| &self.images[row * 784..][..784]).copied().collect();
        let labels: Vec<i64> = rows.map(|row| self.labels[row]).collect();
        (Tensor::from_vec(images, &[&[BATCH], shape].concat()[..]).unwrap(), Tensor::from_vec(labels, BATCH).unwrap())
    }
}

fn training_agrees(name: &str, kind: &str, data: &Data) {
    let weights = pytorch::under(&pytorch::training(), &format!("{name}.{kind}.weights."));
    for device in devices() {
        match name {
            "logistic" => {
                let model = Linear::new(784, 10).unwrap();
                model.load_state_dict(&weights).unwrap();
                let model = model.to(&device).unwrap();
                let opt = Sgd::new(model.parameters(), 0.5);
                agrees(name, kind, &model, train(&model, opt, data, &[784], &device), &device);
            }
            _ => {
                let model = cnn().unwrap();
                model.load_state_dict(&weights).unwrap();
                let model = model.to(&device).unwrap();
                let opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
                agrees(name, kind, &model, train(&model, opt, data, &[1, 28, 28], &device), &device);
            }
        }
    }
}

/// Compares the losses of all steps, and the weights after the last step.
fn agrees(name: &str, kind: &str, model: &impl Module, losses: Vec<f32>, device: &Device) {
    let golden = pytorch::training();
    let expected: Vec<f32> = golden.get(&format!("{name}.{kind}.losses")).unwrap().to_vec().unwrap();
    assert_eq!((losses.len(), expected.len()), (STEPS, STEPS));
    let worst = pytorch::largest(losses.iter().zip(&expected).map(|(ours, theirs)| f64::from((ours - theirs).abs())));
    let trained = pytorch::under(&golden, &format!("{name}.{kind}.trained."));
    let state = model.state_dict();
    assert_eq!(state.iter().count(), trained.iter().count());
    let difference = |key| pytorch::difference(&state.get(key).unwrap(), &trained.get(key).unwrap());
    let of_weights = pytorch::largest(trained.names().map(difference));
    println!(
        "{name} on {kind}, {device}: loss {:.4} to {:.4}, at most {worst:.1e} from PyTorch's, weights {of_weights:.1e}",
        losses[0],
        losses[STEPS - 1]
    );
    assert!(worst <= LOSS_BOUND, "{name} on {kind}, {device}: {worst}");
    assert!(of_weights <= WEIGHT_BOUND, "{name} on {kind}, {device}: {of_weights}");
}

/// The loss of each batch, computed after the step on that batch.
fn train(model: &impl Forward, mut opt: Sgd, data: &Data, shape: &[usize], device: &Device) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (xb, yb) = data.batch(step, shape);
        let (xb, yb) = (xb.to(device).unwrap(), yb.to(device).unwrap());
        F::cross_entropy(&model.forward(&xb).unwrap(), &yb).unwrap().backward().unwrap();
        opt.step().unwrap();
        opt.zero_grad();
        let loss = no_grad(|| F::cross_entropy(&model.forward(&xb)?, &yb)).unwrap();
        losses.push(loss.item().unwrap());
    }
    losses
}

#[test]
fn the_logistic_model_goes_down_as_in_pytorch_on_pseudo_images() {
    training_agrees("logistic", "pseudo", &Data::pseudo(1000));
}

#[test]
fn the_cnn_goes_down_as_in_pytorch_on_pseudo_images() {
    training_agrees("cnn", "pseudo", &Data::pseudo(1000));
}

#[test]
fn the_logistic_model_goes_down_as_in_pytorch_on_mnist() {
    if let Some(data) = Data::mnist() {
        training_agrees("logistic", "mnist", &data);
    }
}

#[test]
fn the_cnn_goes_down_as_in_pytorch_on_mnist() {
    if let Some(data) = Data::mnist() {
        training_agrees("cnn", "mnist", &data);
    }
}
