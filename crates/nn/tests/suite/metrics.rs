//! Metrics against scikit-learn's, whose values `../golden/metrics.py` wrote.

use crate::pytorch::{self, devices};
use pagelock_nn::metrics::{Accuracy, Auroc, Averaging, ConfusionMatrix, MeanMetric};
use pagelock_nn::{Module, Result};
use pagelock_tensor::{CapturedStep, DType, Device, Half, Int, Tensor, autocast};
use serde_json::Value;

const BATCHES: [usize; 4] = [7, 64, 1, 129];
const CLASSES: usize = 5;
const THRESHOLDS: usize = 101;

/// The script's pseudo-random numbers in [0, 1).
fn noise(i: usize, salt: u32) -> f64 {
    let mut x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(salt * 40_503).wrapping_add(12_345);
    x ^= x >> 15;
    x = x.wrapping_mul(2_246_822_519);
    x ^= x >> 13;
    f64::from(x) / 4_294_967_296.0
}

/// Scores `[n, CLASSES]` of `f64` and labels `[n]` of the `n` samples from `start` on.
fn samples(start: usize, n: usize, device: &Device) -> (Tensor, Tensor<Int>) {
    let labels: Vec<i64> = (start..start + n).map(|i| (noise(i, 1) * CLASSES as f64) as i64).collect();
    let score = |i: usize, class: usize| {
        noise(i * CLASSES + class, 2) + if labels[i - start] == class as i64 { 0.4 } else { 0.0 }
    };
    let scores: Vec<f64> =
        (start..start + n).flat_map(|i| (0..CLASSES).map(move |class| (i, class))).map(|(i, c)| score(i, c)).collect();
    let scores = Tensor::of(DType::F64).from_slice(&scores, [n, CLASSES]).unwrap();
    (scores.to(device).unwrap(), Tensor::from_vec(labels, [n]).unwrap().to(device).unwrap())
}

fn batches(device: &Device) -> Vec<(Tensor, Tensor<Int>)> {
    let starts = BATCHES.iter().scan(0, |start, n| Some(std::mem::replace(start, *start + n)));
    starts.zip(BATCHES).map(|(start, n)| samples(start, n, device)).collect()
}

fn assert_close(found: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() < 1e-12, "{what}: {found} instead of {expected}");
}

#[test]
fn accuracies_are_scikit_learns() {
    let golden = pytorch::json("metrics.json");
    for device in devices() {
        for (k, name) in [(1, "accuracy"), (2, "top_2"), (3, "top_3")] {
            let metric = Accuracy::new().unwrap().top_k(k).to(&device).unwrap();
            for (scores, labels) in batches(&device) {
                metric.update(&scores, &labels).unwrap();
            }
            assert_close(metric.compute().unwrap(), &golden[name], name);
        }
    }
}

#[test]
fn confusion_and_what_is_made_of_it_are_scikit_learns() {
    let golden = pytorch::json("metrics.json");
    for device in devices() {
        let confusion = ConfusionMatrix::new(CLASSES).unwrap().to(&device).unwrap();
        for (scores, labels) in batches(&device) {
            autocast(Half::BF16, || confusion.update(&scores, &labels)).unwrap();
        }
        let counts = confusion.counts().to_vec::<i64>().unwrap();
        let expected: Vec<i64> = serde_json::from_value(golden["confusion"].clone()).unwrap();
        assert_eq!(counts, expected);
        assert_close(confusion.accuracy().unwrap(), &golden["accuracy"], "accuracy");
        let averagings = [(Averaging::Micro, "micro"), (Averaging::Macro, "macro"), (Averaging::Weighted, "weighted")];
        for (averaging, name) in averagings {
            assert_close(confusion.precision(averaging).unwrap(), &golden["precision"][name], name);
            assert_close(confusion.recall(averaging).unwrap(), &golden["recall"][name], name);
            assert_close(confusion.f1(averaging).unwrap(), &golden["f1"][name], name);
        }
        for (class, scores) in confusion.per_class().unwrap().into_iter().enumerate() {
            assert_close(scores.f1, &golden["f1_of_classes"][class], "f1 of a class");
        }
    }
}

/// Each of `values` rounded down to a threshold, as in the script.
fn steps(values: &[f64]) -> Tensor {
    let thresholds: Vec<f32> = (0..THRESHOLDS).map(|i| i as f32 / (THRESHOLDS - 1) as f32).collect();
    let floor = |value: &f64| thresholds[thresholds.partition_point(|&threshold| threshold <= *value as f32) - 1];
    Tensor::from_vec(values.iter().map(floor).collect::<Vec<f32>>(), values.len()).unwrap()
}

#[test]
fn areas_under_curves_are_scikit_learns() {
    let golden = pytorch::json("metrics.json");
    for device in devices() {
        let binary = Auroc::binary(THRESHOLDS).unwrap().to(&device).unwrap();
        let multiclass = Auroc::multiclass(CLASSES, THRESHOLDS).unwrap().to(&device).unwrap();
        for (scores, labels) in batches(&Device::Cpu) {
            let rows = scores.to_vec::<f64>().unwrap();
            let of_one: Vec<f64> = rows.chunks(CLASSES).map(|row| row[1].clamp(0.0, 1.0)).collect();
            let is_one = labels.eq(&labels.ones_like().unwrap()).unwrap().to_int().unwrap();
            binary.update(&steps(&of_one).to(&device).unwrap(), &is_one.to(&device).unwrap()).unwrap();
            let shares: Vec<f64> =
                rows.chunks(CLASSES).flat_map(|row| row.iter().map(|x| x / row.iter().sum::<f64>())).collect();
            let shares = steps(&shares).reshape([-1, CLASSES as isize]).unwrap().to(&device).unwrap();
            multiclass.update(&shares, &labels.to(&device).unwrap()).unwrap();
        }
        assert_close(binary.compute().unwrap(), &golden["auroc_binary"], "binary");
        for (class, area) in multiclass.per_class().unwrap().into_iter().enumerate() {
            assert_close(area.unwrap(), &golden["auroc_of_classes"][class], "one against the others");
        }
    }
}

#[test]
fn means_are_weighted_and_added_up_in_f64() {
    for device in devices() {
        let mean = MeanMetric::new().unwrap().to(&device).unwrap();
        let value = Tensor::new(0.1).unwrap().to_dtype(DType::BF16).unwrap().to(&device).unwrap();
        (0..1000).for_each(|_| mean.update(&value).unwrap());
        let exact = value.item::<f64>().unwrap();
        assert!((mean.compute().unwrap() - exact).abs() < 1e-15, "rounded as in bf16");
        mean.reset().unwrap();
        mean.update_weighted(&Tensor::new([1.0, 3.0]).unwrap().to(&device).unwrap(), 2.0).unwrap();
        mean.update_weighted(&Tensor::new(8.0).unwrap().to(&device).unwrap(), 4.0).unwrap();
        assert_eq!(mean.compute().unwrap(), 5.0);
        assert!(mean.update_weighted(&value, f64::NAN).unwrap_err().to_string().contains("NaN"));
    }
}

#[test]
fn padding_is_left_out_and_labels_that_are_no_classes_are_refused() {
    let (scores, labels) =
        (Tensor::new([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]]).unwrap(), Tensor::new([0, -100, 1]).unwrap());
    let accuracy = |k| Accuracy::new().unwrap().top_k(k).ignore_index(-100);
    for (k, expected) in [(1, 0.5), (2, 1.0)] {
        let metric = accuracy(k);
        metric.update(&scores, &labels).unwrap();
        assert_eq!(metric.compute().unwrap(), expected);
    }
    let confusion = ConfusionMatrix::new(2).unwrap().ignore_index(-100);
    confusion.update(&scores, &labels).unwrap();
    assert_eq!(confusion.counts().to_vec::<i64>().unwrap(), [1, 0, 1, 0]);
    assert_eq!(confusion.accuracy().unwrap(), 0.5);
    let auroc = Auroc::binary(11).unwrap().ignore_index(-100);
    auroc.update(&Tensor::new([0.2, 0.1, 0.9]).unwrap(), &labels).unwrap();
    assert_eq!(auroc.compute().unwrap(), 1.0);

    for k in [1, 2] {
        let refused = Accuracy::new().unwrap().top_k(k).update(&scores, &labels).unwrap_err().to_string();
        assert!(refused.contains("label -100 in row 1 is not one of 2 classes"), "{refused}");
    }
    let strict = ConfusionMatrix::new(2).unwrap();
    strict.update(&scores, &labels).unwrap();
    let refused = strict.accuracy().unwrap_err().to_string();
    assert!(refused.contains("1 of 3 samples") && refused.contains("0..2"), "{refused}");
    for auroc in [Auroc::binary(11).unwrap(), Auroc::multiclass(3, 11).unwrap()] {
        let probabilities =
            if auroc.to_string().contains("n_classes") { Tensor::ones([1, 3]) } else { Tensor::ones([1]) };
        auroc.update(&probabilities.unwrap(), &Tensor::new([7]).unwrap()).unwrap();
        assert!(auroc.compute().unwrap_err().to_string().contains("1 of 1 samples"));
    }
}

#[test]
fn ties_and_nans_of_top_k_are_as_documented() {
    let right = |scores: [f32; 3], label: i64, k: usize| {
        let metric = Accuracy::new().unwrap().top_k(k);
        let scores = Tensor::from_slice(&scores, [1, 3]).unwrap();
        metric.update(&scores, &Tensor::from_slice(&[label], [1]).unwrap()).unwrap();
        metric.compute().unwrap() == 1.0
    };
    assert_eq!([0, 1, 2].map(|label| right([1.0; 3], label, 1)), [true, false, false]);
    assert_eq!([0, 1, 2].map(|label| right([1.0; 3], label, 2)), [true, true, false]);
    assert_eq!([0, 1, 2].map(|label| right([1.0; 3], label, 3)), [true; 3]);
    assert_eq!([0, 1, 2].map(|label| right([f32::NAN, 2.0, 1.0], label, 2)), [false, true, false]);
}

#[test]
fn what_does_not_fit_is_refused_and_counts_nothing() {
    let (scores, labels) = (Tensor::zeros([2, 3]).unwrap(), Tensor::new([0, 1]).unwrap());
    let accuracy = Accuracy::new().unwrap();
    assert!(accuracy.compute().unwrap_err().to_string().contains("no samples"));
    assert!(accuracy.update(&scores, &Tensor::new([0]).unwrap()).unwrap_err().to_string().contains("2, 3"));
    assert!(Accuracy::new().unwrap().top_k(4).update(&scores, &labels).is_err());
    assert!(Accuracy::new().unwrap().top_k(2).update(&scores, &Tensor::new([0, 3]).unwrap()).is_err());
    let confusion = ConfusionMatrix::new(2).unwrap();
    assert!(confusion.update(&scores, &labels).unwrap_err().to_string().contains("3 classes"));
    assert!(confusion.accuracy().unwrap_err().to_string().contains("no samples"));
    assert!(ConfusionMatrix::new(0).is_err() && Auroc::binary(1).is_err() && Auroc::multiclass(1, 9).is_err());
    let auroc = Auroc::binary(9).unwrap();
    auroc.update(&Tensor::ones([2]).unwrap(), &Tensor::new([1, 1]).unwrap()).unwrap();
    assert!(auroc.compute().unwrap_err().to_string().contains("one label"));
    assert!(MeanMetric::new().unwrap().compute().is_err());
}

#[test]
fn large_batches_are_counted_in_pieces() {
    let n = 300_000; // with 5 classes, more elements than one chunk has
    let labels = Tensor::from_vec((0..n).map(|i| i as i64 % 5).collect::<Vec<_>>(), [n]).unwrap();
    let confusion = ConfusionMatrix::new(5).unwrap();
    confusion.update_predictions(&labels, &labels).unwrap();
    assert_eq!(confusion.accuracy().unwrap(), 1.0);
    assert_eq!(confusion.per_class().unwrap()[3].support, 60_000);
}

#[test]
fn counts_are_saved_and_go_on_after_loading() {
    let (first, second) = (Accuracy::new().unwrap(), Accuracy::new().unwrap());
    let all = batches(&Device::Cpu);
    first.update(&all[0].0, &all[0].1).unwrap();
    second.load_state_dict(&first.state_dict()).unwrap();
    for metric in [&first, &second] {
        metric.update(&all[1].0, &all[1].1).unwrap();
    }
    assert_eq!(first.state_dict().names().collect::<Vec<_>>(), ["correct", "total"]);
    assert_eq!(second.compute().unwrap(), first.compute().unwrap());
    assert_eq!(format!("{}", Accuracy::new().unwrap().top_k(5)), "Accuracy(top_k=5)");
}

#[test]
fn updates_can_be_part_of_a_captured_step() {
    for device in devices() {
        let all = || -> Result<_> {
            let accuracies = (Accuracy::new()?.to(&device)?, Accuracy::new()?.top_k(2).ignore_index(1).to(&device)?);
            let curves = Auroc::multiclass(CLASSES, THRESHOLDS)?.to(&device)?;
            Ok((accuracies, ConfusionMatrix::new(CLASSES)?.to(&device)?, curves, MeanMetric::new()?.to(&device)?))
        };
        let update =
            |((top_1, top_2), confusion, curves, mean): &((Accuracy, Accuracy), ConfusionMatrix, Auroc, MeanMetric),
             scores: &Tensor,
             labels: &Tensor<Int>| {
                top_1.update(scores, labels)?;
                top_2.update(scores, labels)?;
                confusion.update(scores, labels)?;
                curves.update(scores, labels)?;
                mean.update(scores)
            };
        let (eager, captured) = (all().unwrap(), all().unwrap());
        let mut step = CapturedStep::new(&device);
        for start in 0..6 {
            let (scores, labels) = samples(64 * start, 64, &device);
            update(&eager, &scores, &labels).unwrap();
            step.run((scores, labels), |(scores, labels)| update(&captured, scores, labels)).unwrap();
        }
        assert_eq!(captured.0.0.compute().unwrap(), eager.0.0.compute().unwrap());
        assert_eq!(captured.0.1.compute().unwrap(), eager.0.1.compute().unwrap());
        assert_eq!(captured.1.counts().to_vec::<i64>().unwrap(), eager.1.counts().to_vec::<i64>().unwrap());
        assert_eq!(captured.2.per_class().unwrap(), eager.2.per_class().unwrap());
        assert_eq!(captured.3.compute().unwrap(), eager.3.compute().unwrap());
    }
}

#[test]
fn counts_of_a_checkpoint_that_overflow_are_refused() {
    let matrix = ConfusionMatrix::new(2).unwrap();
    matrix.update_predictions(&Tensor::full([3], 0).unwrap(), &Tensor::full([3], 0).unwrap()).unwrap();
    matrix.counts().copy_(&Tensor::new([[i64::MAX, i64::MAX], [2, 3]]).unwrap()).unwrap(); // 2⁶⁴ + 3 in all
    assert!(matrix.accuracy().unwrap_err().to_string().contains("have a label or a prediction outside"));
}
