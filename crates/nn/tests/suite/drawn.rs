//! What `gumbel_softmax` and `FractionalMaxPool2d` draw, and what `AdaptiveLogSoftmaxWithLoss` predicts.

use pagelock_nn::functional as F;
use pagelock_nn::*;
use pagelock_tensor::{Generator, Result, Tensor};

#[test]
fn gumbel_softmax_draws_what_its_probabilities_say() {
    let (n, scores) = (20_000_usize, [0.0, 1.0, -1.0, 2.0]);
    let logits = Tensor::new([scores]).unwrap().expand([n, 4]).unwrap();
    let hard = F::gumbel_softmax(&logits, 0.7, true, -1, &Generator::new(3)).unwrap();
    let drawn: Vec<f64> = hard.sum(0).unwrap().to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    let sum: f64 = scores.iter().map(|score: &f64| score.exp()).sum();
    for (times, score) in drawn.iter().zip(scores) {
        let p = score.exp() / sum;
        let bound = 4.0 * (p * (1.0 - p) * n as f64).sqrt();
        assert!((times - p * n as f64).abs() < bound, "{times} of {n} with probability {p}");
    }
    let ones = hard.to_vec::<f32>().unwrap();
    assert!(ones.iter().all(|x| x.abs() < 1e-6 || (x - 1.0).abs() < 1e-6));
}

#[test]
fn gumbel_softmax_is_replayed_and_its_hard_draws_have_the_soft_gradient() {
    let draw = |hard: bool, dim: isize| {
        let x = Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap().div_scalar(10.0).unwrap();
        let x = x.set_requires_grad(true);
        let y = F::gumbel_softmax(&x, 0.5, hard, dim, &Generator::new(11)).unwrap();
        let weights = Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap();
        y.mul(&weights).unwrap().sum(..).unwrap().backward().unwrap();
        (y.detach(), x.grad().unwrap().to_vec::<f32>().unwrap())
    };
    for dim in [0, 1, 2, -1, -2, -3] {
        let ((soft, of_soft), (hard, of_hard)) = (draw(false, dim), draw(true, dim));
        assert_eq!(soft.to_vec::<f32>().unwrap(), draw(false, dim).0.to_vec::<f32>().unwrap());
        assert_eq!(of_soft, of_hard);
        assert!(of_soft.iter().any(|slope| slope.abs() > 1e-3));
        let (places, largest) = (hard.argmax(dim).unwrap(), soft.argmax(dim).unwrap());
        assert_eq!(places.to_vec::<i64>().unwrap(), largest.to_vec::<i64>().unwrap());
        for sums in [soft.sum(dim).unwrap(), hard.sum(dim).unwrap()] {
            assert!(sums.to_vec::<f32>().unwrap().iter().all(|sum| (sum - 1.0).abs() < 1e-5));
        }
    }
    let refused = F::gumbel_softmax(&Tensor::zeros([2, 2]).unwrap(), 0.0, false, -1, &Generator::new(0)).unwrap_err();
    assert_eq!(refused.to_string(), "gumbel_softmax: tau is 0, but it must be above 0");
}

#[test]
fn adaptive_softmax_predicts_the_most_probable_class_and_refuses_what_does_not_fit() {
    let loss = AdaptiveLogSoftmaxWithLoss::new_with([8, 12], &[3, 7], 2.0, true, &Generator::new(1)).unwrap();
    let x = Tensor::randn_with([6, 8], &Generator::new(2)).unwrap();
    let all = loss.log_prob(&x).unwrap();
    let sums = all.exp().unwrap().sum(1).unwrap().to_vec::<f32>().unwrap();
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{sums:?}");
    let predicted = loss.predict(&x).unwrap();
    assert_eq!(predicted.to_vec::<i64>().unwrap(), all.argmax(1).unwrap().to_vec::<i64>().unwrap());
    let text = |made: Result<(Tensor, Tensor)>| made.unwrap_err().to_string();
    for (classes, expected) in
        [([0, 1, 2, 3, 4, 12], "class 5 of the target is 12"), ([-1; 6], "class 0 of the target is -1")]
    {
        let refused = text(loss.forward(&x, &Tensor::new(classes).unwrap()));
        assert!(refused.contains(expected), "{refused}");
    }
    let few = text(loss.forward(&x, &Tensor::new([0]).unwrap()));
    assert!(few.contains("the target is [1], but the input [6, 8]"), "{few}");
    for cutoffs in [&[][..], &[0, 4], &[4, 4], &[5, 3], &[3, 12]] {
        let refused = AdaptiveLogSoftmaxWithLoss::new(8, 12, cutoffs).unwrap_err().to_string();
        assert!(
            refused.contains("but it must be increasing numbers above 0 and below n_classes, which is 12"),
            "{refused}"
        );
    }
    let narrow = AdaptiveLogSoftmaxWithLoss::new(8, 12, &[2, 4, 6]).unwrap_err().to_string();
    assert!(
        narrow
            .contains("div_value is 4, but it must be small enough that each cluster keeps at least one of 8 features"),
        "{narrow}"
    );
}

#[test]
fn fractional_pools_are_replayed_and_refuse_what_does_not_fit() {
    let x = Tensor::randn_with([2, 3, 9, 11], &Generator::new(1)).unwrap();
    let pool = |seed| F::fractional_max_pool2d(&x, [2, 2], [5, 6], &Generator::new(seed)).unwrap();
    let values = |y: &Tensor| y.to_vec::<f32>().unwrap();
    assert_eq!(values(&pool(4)), values(&pool(4)));
    assert_ne!(values(&pool(4)), values(&pool(5)));
    let (y, places) = FractionalMaxPool2d::with_output_ratio(2, [0.6, 0.6]).forward_with_indices(&x).unwrap();
    assert_eq!(y.dims(), [2, 3, 5, 6]);
    let at_places = x.flatten(2, 3).unwrap().gather(2, &places.flatten(2, 3).unwrap()).unwrap();
    assert_eq!(values(&at_places), values(&y));
    let text = |made: Result<Tensor>| made.unwrap_err().to_string();
    for (made, expected) in [
        (FractionalMaxPool2d::new(2, [9, 3]).forward(&x), "output_size is 9, but it must be from 1 to 9 − 2 + 1"),
        (FractionalMaxPool2d::new(2, [0, 3]).forward(&x), "output_size is 0"),
        (FractionalMaxPool2d::new([2, 0], 3).forward(&x), "kernel is 0, but it must be at least 1"),
        (FractionalMaxPool2d::with_output_ratio(2, [0.5, 1.0]).forward(&x), "output_ratio is 1"),
        (
            FractionalMaxPool2d::new(2, 2).forward(&x.flatten(0, 2).unwrap()),
            "it must be [batch, channels, height, width]",
        ),
    ] {
        let text = text(made);
        assert!(text.contains(expected), "`{expected}` is not in: {text}");
    }
}
