//! Softmax, normalizations, losses and dropout.

use pagelock_tensor::Tensor;
use serde_json::{Value, json};

use super::call::run;
use super::input::{index, ones, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    [softmaxes(), norms(), losses()].into_iter().flatten().collect()
}

fn softmaxes() -> Vec<Operation> {
    let along = |name, torch, run: Run| {
        let shapes: [(&[usize], isize); 7] =
            [(&[3, 4], 1), (&[4], 0), (&[2, 3], 0), (&[2, 3, 2], 0), (&[2, 3, 2], 1), (&[2, 3, 2], 2), (&[], -1)];
        let mut samples: Vec<_> =
            shapes.iter().map(|(shape, dim)| sample([signed(*shape)]).args(json!({ "dim": dim }))).collect();
        samples[0].every_precision = true;
        // Columns side by side, of few rows and of many.
        samples.extend(
            [[2, 3, 18], [1, 67, 16]]
                .map(|shape| sample([signed(shape)]).args(json!({ "dim": 1 })).in_every_precision()),
        );
        let turned = signed([5, 3]).view(json!(["transpose", 0, 1]));
        samples.push(sample([turned]).args(json!({ "dim": -1 })).in_every_precision());
        let special = |dtype| special::with(special::rows(dtype), &[json!({ "dim": 1 })]);
        let operation = Operation::new(name, torch, run).autocast(Autocast::F32).samples(samples).special(special);
        operation.summed_dim(1).large(|n| {
            let case = |shape: &[usize], dim: isize| sample([signed(shape)]).args(json!({ "dim": dim }));
            vec![case(&[n / 128, 128], 1), case(&[2, n / 2], 1), case(&[n / 128, 128], 0), case(&[4, 16, n / 64], 1)]
        })
    };
    let dropout = Operation::new(
        "dropout",
        "F.dropout(x, p)",
        run! { floats |c| {
            c.x().dropout(c.float("p"), &pagelock_tensor::Generator::new(5))
        } },
    );
    vec![
        along("softmax", "F.softmax(x, dim)", run! { floats |c| c.x().softmax(c.int("dim")) }),
        along("log_softmax", "F.log_softmax(x, dim)", run! { floats |c| c.x().log_softmax(c.int("dim")) }),
        // PyTorch draws other numbers, so only probabilities of 0 and 1 can be compared.
        dropout
            .samples([0.0, 1.0].map(|p| sample([signed([3, 4])]).args(json!({ "p": p })).in_every_precision()))
            .large(|n| vec![sample([signed([n])]).args(json!({ "p": 0.5 }))]),
    ]
}

/// Passes the weight and the bias that the sample has.
const LAYER_NORM: &str = "F.layer_norm(x, normalized, *(inputs[1:] + [None, None])[:2], eps)";
const RMS_NORM: &str = "F.rms_norm(x, normalized, *(inputs[1:] + [None])[:1], eps)";
const BATCH_NORM: &str =
    "F.batch_norm(x, *running_of(x, running), *(inputs[1:] + [None, None])[:2], training, momentum, eps)";
const BATCH_NORM_RELU: &str =
    "F.relu(F.batch_norm(x, *running_of(x, running), *(inputs[1:] + [None, None])[:2], training, momentum, eps))";

fn norms() -> Vec<Operation> {
    let batch = |name, torch, run: Run| {
        let special = |dtype| {
            let args = [true, false].map(|training| batch_norm(training, true, 1e-5));
            special::with(special::columns(dtype), &args)
        };
        let operation = Operation::new(name, torch, run).mixed(Mixed::Refuses).samples(batch_norms());
        operation.special(special).summed_dim(0).large(large_batch_norms)
    };
    let layer_norm = run! { floats |c| {
        c.x().layer_norm(&c.sizes("normalized")[..], c.optional(1), c.optional(2), c.float("eps"))
    } };
    let rms_norm = run! { floats |c| {
        c.x().rms_norm(&c.sizes("normalized")[..], c.optional(1), c.optional_float("eps"))
    } };
    let batch_norm = run! { floats |c| {
        let running = c.running()?;
        let running = running.as_ref().map(<[_; 2]>::each_ref);
        c.x().batch_norm(running, c.optional(1), c.optional(2), c.batch_norm())
    } };
    let batch_norm_relu = run! { floats |c| {
        let running = c.running()?;
        let running = running.as_ref().map(<[_; 2]>::each_ref);
        c.x().batch_norm_relu(running, c.optional(1), c.optional(2), c.batch_norm())
    } };
    vec![
        Operation::new("layer_norm", LAYER_NORM, layer_norm)
            .autocast(Autocast::F32)
            .mixed(Mixed::Refuses)
            .samples(layer_norms())
            .special(|dtype| {
                let samples = special::rows(dtype).into_iter().chain(special::rows_with_parameters(dtype)).collect();
                special::with(samples, &[json!({ "normalized": [4], "eps": 1e-5 })])
            })
            .summed_dim(1)
            .large(large_layer_norms),
        Operation::new("rms_norm", RMS_NORM, rms_norm)
            .autocast(Autocast::F32)
            .mixed(Mixed::Refuses)
            .samples(rms_norms())
            .special(|dtype| special::with(special::rows(dtype), &[json!({ "normalized": [4], "eps": 1e-5 })]))
            .summed_dim(1)
            .large(large_rms_norms),
        batch("batch_norm", BATCH_NORM, batch_norm),
        batch("batch_norm_relu", BATCH_NORM_RELU, batch_norm_relu),
        batch_norm_running(),
    ]
}

/// The running mean and variance that a batch norm leaves.
fn batch_norm_running() -> Operation {
    let run = run! { floats |c| {
        let running = c.running()?.expect("the samples have running statistics");
        c.x().batch_norm(Some(running.each_ref()), c.optional(1), c.optional(2), c.batch_norm())?;
        Tensor::stack(&running.each_ref(), 0)
    } };
    let args = || [batch_norm(true, true, 1e-5)];
    let shapes: [&[usize]; 3] = [&[4, 3], &[2, 2, 3], &[2, 3, 2, 2]];
    let samples = shapes.iter().map(|shape| sample([signed(*shape)]).in_every_precision()).collect();
    Operation::new("batch_norm_running", "running_after(x, training, momentum, eps)", run)
        .methods(&["batch_norm"])
        .without_derivative()
        .samples(special::with(samples, &args()))
        .special(move |dtype| special::with(special::columns(dtype), &args()))
}

fn layer_norms() -> Vec<Sample> {
    let shapes: [(&[usize], &[usize]); 4] =
        [(&[3, 4], &[4]), (&[2, 2, 3], &[2, 3]), (&[2, 5], &[5]), (&[4, 1, 3], &[3])];
    let mut samples = Vec::new();
    for (shape, normalized) in shapes {
        let args = json!({ "normalized": normalized, "eps": 1e-2 });
        samples.push(sample([signed(shape), signed(normalized), signed(normalized)]).args(args.clone()));
        samples.push(sample([signed(shape), signed(normalized)]).args(args.clone()));
        samples.push(sample([signed(shape)]).args(args));
    }
    samples[0].every_precision = true;
    samples[2].every_precision = true;
    samples
}

/// Samples with a given `eps` and with the default one.
fn rms_norms() -> Vec<Sample> {
    let shapes: [(&[usize], &[usize], Value); 3] =
        [(&[3, 4], &[4], json!(1e-2)), (&[2, 2, 3], &[2, 3], json!(null)), (&[4, 1, 3], &[3], json!(1e-2))];
    let mut samples = Vec::new();
    for (shape, normalized, eps) in shapes {
        let args = json!({ "normalized": normalized, "eps": eps });
        samples.push(sample([signed(shape), signed(normalized)]).args(args.clone()));
        samples.push(sample([signed(shape)]).args(args));
    }
    samples[0].every_precision = true;
    samples[3].every_precision = true;
    samples
}

fn large_rms_norms(n: usize) -> Vec<Sample> {
    let case = |len: usize| {
        sample([signed([n / len, len]), positive([len])]).args(json!({ "normalized": [len], "eps": 1e-5 }))
    };
    vec![case(64), case(1024), case(n / 64)]
}

fn large_layer_norms(n: usize) -> Vec<Sample> {
    let case = |len: usize| {
        sample([signed([n / len, len]), positive([len]), signed([len])])
            .args(json!({ "normalized": [len], "eps": 1e-5 }))
    };
    vec![case(64), case(1024), case(n / 64)]
}

fn batch_norm(training: bool, running: bool, eps: f64) -> Value {
    json!({ "training": training, "momentum": 0.25, "eps": eps, "running": running })
}

fn batch_norms() -> Vec<Sample> {
    let mut samples = Vec::new();
    for shape in [&[4, 3][..], &[2, 2, 3], &[2, 3, 2, 2]] {
        let channels = [shape[1]];
        for (training, running) in [(true, false), (true, true), (false, true)] {
            let args = batch_norm(training, running, 1e-2);
            samples.push(sample([signed(shape), signed(channels), signed(channels)]).args(args.clone()));
            samples.push(sample([signed(shape)]).args(args));
        }
    }
    samples[0].every_precision = true;
    let last = signed([2, 3, 2, 4]).view(json!(["transpose", 1, 3]));
    samples.push(sample([last, signed([4]), signed([4])]).args(batch_norm(true, false, 1e-2)).in_every_precision());
    samples
}

fn large_batch_norms(n: usize) -> Vec<Sample> {
    let case = |shape: &[usize], training: bool| {
        sample([signed(shape), positive([shape[1]]), signed([shape[1]])]).args(batch_norm(training, !training, 1e-5))
    };
    let images = [n.div_ceil(16 * 256), 16, 16, 16];
    vec![case(&images, true), case(&images, false), case(&[n / 64, 64], true)]
}

const REDUCTIONS: [&str; 3] = ["mean", "sum", "none"];

fn losses() -> Vec<Operation> {
    let of_classes = |name, torch, run: Run| {
        let shapes: [(&[usize], &[usize]); 3] = [(&[4, 3], &[4]), (&[2, 2, 1, 2], &[2, 1, 2]), (&[5, 7], &[5])];
        let mut samples = Vec::new();
        for reduction in REDUCTIONS {
            for (shape, labels) in shapes {
                let inputs = [signed(shape), index(shape[1] as i64, labels)];
                samples.push(sample(inputs).args(json!({ "reduction": reduction })));
            }
        }
        samples[0].every_precision = true;
        let special = |dtype| {
            let all = REDUCTIONS.map(|reduction| json!({ "reduction": reduction }));
            let [around, near] =
                special::labeled_rows(dtype).try_into().unwrap_or_else(|_| unreachable!("two samples"));
            special::with(vec![near], &all).into_iter().chain(special::with(vec![around], &all[2..])).collect()
        };
        let operation = Operation::new(name, torch, run).autocast(Autocast::F32).samples(samples).special(special);
        operation.large(|n| {
            let case = |rows: usize, classes: usize| {
                sample([signed([rows, classes]), index(classes as i64, [rows])]).args(json!({ "reduction": "mean" }))
            };
            vec![case(n.div_ceil(10), 10), case(n / 1024, 1024), case(4, n / 4)]
        })
    };
    let squares = REDUCTIONS.map(|reduction| {
        sample([signed([2, 3]), positive([2, 3])]).args(json!({ "reduction": reduction })).in_every_precision()
    });
    vec![
        of_classes(
            "nll_loss",
            "F.nll_loss(x, y, reduction=reduction)",
            run! { floats |c| c.x().nll_loss(c.index(), c.reduction()) },
        ),
        of_classes(
            "cross_entropy",
            "F.cross_entropy(x, y, reduction=reduction)",
            run! { floats |c| c.x().cross_entropy(c.index(), c.reduction()) },
        )
        .summed_dim(1),
        Operation::new(
            "mse_loss",
            "F.mse_loss(x, y, reduction=reduction)",
            run! { floats |c| c.x().mse_loss(c.y(), c.reduction()) },
        )
        .autocast(Autocast::F32)
        .mixed(Mixed::Promotes)
        .samples(squares)
        .special(|dtype| {
            let sums = [
                sample([values([3], [1.0, 300.0, -0.25]), values([3], [0.5, -20.0, -0.5])]),
                sample([values([2], [f64::INFINITY, 1.0]), values([2], [0.5, 2.0])]),
            ];
            let all = REDUCTIONS.map(|reduction| json!({ "reduction": reduction }));
            let each = special::with(special::pairs(dtype), &all[2..]);
            special::with(sums.into(), &all[..2]).into_iter().chain(each).collect()
        })
        .large(|n| vec![sample([signed([n]), ones([n])]).args(json!({ "reduction": "mean" }))]),
        huber(
            "huber_loss",
            "F.huber_loss(x, y, delta=s, reduction=reduction)",
            run! { floats |c| c.x().huber_loss(c.y(), c.float("s"), c.reduction()) },
        ),
        huber(
            "smooth_l1_loss",
            "F.smooth_l1_loss(x, y, beta=s, reduction=reduction)",
            run! { floats |c| c.x().smooth_l1_loss(c.y(), c.float("s"), c.reduction()) },
        ),
    ]
}

fn huber(name: &'static str, torch: &'static str, run: Run) -> Operation {
    let settings = [("mean", 1.0), ("sum", 0.5), ("none", 1.25)];
    let arguments = settings.map(|(reduction, s)| json!({ "reduction": reduction, "s": s }));
    let samples = arguments
        .clone()
        .map(|arguments| sample([signed([2, 3]), positive([2, 3])]).args(arguments).in_every_precision());
    Operation::new(name, torch, run)
        .autocast(Autocast::F32)
        .mixed(Mixed::Untested)
        .samples(samples)
        .special(move |dtype| special::with(special::pairs(dtype), &arguments[2..]))
        .large(|n| vec![sample([signed([n]), ones([n])]).args(json!({ "reduction": "mean", "s": 1.0 }))])
}
