//! Layer and batch normalization.

use pagelock_tensor::{BatchNormOptions, Tensor};

use super::{checked_twice, positive, signed};

#[test]
fn layer_norm_with_and_without_weight_and_bias() {
    for (shape, normalized) in [(&[3, 4][..], &[4][..]), (&[2, 2, 3], &[2, 3]), (&[2, 5], &[5]), (&[4, 1, 3], &[3])] {
        let inputs = [signed(shape, 0), signed(normalized, 3), signed(normalized, 5)];
        checked_twice(|x| x[0].layer_norm(normalized, None, None, 1e-2), &inputs[..1]);
        checked_twice(|x| x[0].layer_norm(normalized, Some(&x[1]), None, 1e-2), &inputs[..2]);
        checked_twice(|x| x[0].layer_norm(normalized, Some(&x[1]), Some(&x[2]), 1e-2), &inputs);
        checked_twice(|x| x[0].layer_norm(normalized, None, Some(&x[1]), 1e-2), &inputs[..2]);
    }
}

#[test]
fn layer_norm_of_what_has_no_gradient() {
    let inputs = [signed(&[3, 4], 0), signed(&[4], 3)];
    checked_twice(|x| inputs[0].to(&x[0].device())?.layer_norm([4], Some(&x[0]), None, 1e-2), &inputs[1..]);
}

#[test]
fn batch_norm_of_a_batch_and_with_running_statistics() {
    let options = |training| BatchNormOptions { training, momentum: 0.0, eps: 1e-2 };
    for shape in [&[4, 3][..], &[2, 2, 3], &[2, 3, 2, 2]] {
        let channels = [shape[1]];
        let inputs = [signed(shape, 0), signed(&channels, 3), signed(&channels, 5)];
        for training in [true, false] {
            let running = [signed(&channels, 7), positive(&channels, 8)];
            let run = |x: &[Tensor], relu: bool, affine: bool| {
                let running = running.each_ref().map(|numbers| numbers.to(&x[0].device()).unwrap());
                let parameters = if affine { [Some(&x[1]), Some(&x[2])] } else { [None, None] };
                let [weight, bias] = parameters;
                match relu {
                    true => x[0].batch_norm_relu(Some(running.each_ref()), weight, bias, options(training)),
                    false => x[0].batch_norm(Some(running.each_ref()), weight, bias, options(training)),
                }
            };
            for relu in [false, true] {
                checked_twice(|x| run(x, relu, true), &inputs);
                checked_twice(|x| run(x, relu, false), &inputs[..1]);
            }
        }
    }
}

#[test]
fn batch_norm_with_a_weight_or_a_bias_alone() {
    let inputs = [signed(&[4, 3], 0), signed(&[3], 3)];
    let options = BatchNormOptions { eps: 1e-2, ..BatchNormOptions::default() };
    checked_twice(|x| x[0].batch_norm(None, Some(&x[1]), None, options), &inputs);
    checked_twice(|x| x[0].batch_norm(None, None, Some(&x[1]), options), &inputs);
}
