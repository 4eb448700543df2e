//! The first 100 losses of the tutorial's two models, from PyTorch's weights and in PyTorch's batch order.
//!
//! `../golden/make.py` trained PyTorch; `pseudo` and `rows` are its functions of the same names.

use crate::{cnn, pytorch};
use pagelock_data::Mnist;
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::{Forward, Linear, Module, functional as F};
use pagelock_tensor::{Tensor, no_grad};
use std::io::Write;

const STEPS: usize = 100;
const BATCH: usize = 64;
const BOUND: f32 = 1e-4;

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

    /// MNIST, or nothing where it is not on this machine, which is said even where tests are quiet.
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

    fn batch(&self, step: usize, shape: &[usize]) -> (Tensor, Tensor<i64>) {
        let count = self.labels.len();
        let rows = (step * BATCH..(step + 1) * BATCH).map(|i| i * 7919 % count);
        let images: Vec<f32> = rows.clone().flat_map(|row| &self.images[row * 784..][..784]).copied().collect();
        let labels: Vec<i64> = rows.map(|row| self.labels[row]).collect();
        (Tensor::from_vec(images, &[&[BATCH], shape].concat()[..]).unwrap(), Tensor::from_vec(labels, BATCH).unwrap())
    }
}

fn losses_agree(name: &str, kind: &str, data: &Data) {
    let golden = pytorch::training();
    let weights = pytorch::under(&golden, &format!("{name}.{kind}.weights."));
    let expected = golden.get(&format!("{name}.{kind}.losses")).unwrap().to_vec().unwrap();
    let losses = match name {
        "logistic" => {
            let model = Linear::new(784, 10).unwrap();
            model.load_state_dict(&weights).unwrap();
            train(&model, Sgd::new(model.parameters(), 0.5), data, &[784])
        }
        _ => {
            let model = cnn().unwrap();
            model.load_state_dict(&weights).unwrap();
            train(&model, Sgd::new(model.parameters(), 0.1).momentum(0.9), data, &[1, 28, 28])
        }
    };
    let errors = losses.iter().zip(&expected).map(|(ours, theirs)| (ours - theirs).abs());
    let worst = errors.fold(0.0, f32::max);
    println!("{name} on {kind}: loss {:.4} to {:.4}, at most {worst:.1e} from PyTorch's", losses[0], losses[STEPS - 1]);
    assert_eq!(expected.len(), STEPS);
    assert!(worst <= BOUND, "{name} on {kind}: {worst}");
}

/// The loss of each batch after the step on it.
fn train(model: &impl Forward, mut opt: Sgd, data: &Data, shape: &[usize]) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (xb, yb) = data.batch(step, shape);
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
    losses_agree("logistic", "pseudo", &Data::pseudo(1000));
}

#[test]
fn the_cnn_goes_down_as_in_pytorch_on_pseudo_images() {
    losses_agree("cnn", "pseudo", &Data::pseudo(1000));
}

#[test]
fn the_logistic_model_goes_down_as_in_pytorch_on_mnist() {
    if let Some(data) = Data::mnist() {
        losses_agree("logistic", "mnist", &data);
    }
}

#[test]
fn the_cnn_goes_down_as_in_pytorch_on_mnist() {
    if let Some(data) = Data::mnist() {
        losses_agree("cnn", "mnist", &data);
    }
}
