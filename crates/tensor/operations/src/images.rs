//! Convolutions and pools of images.

use pagelock_tensor::DType;
use serde_json::{Value, json};

use super::call::run;
use super::input::{Input, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    let with_bias = "F.conv2d(x, y, inputs[2] if len(inputs) > 2 else None, stride, padding, dilation, groups)";
    let relu = "F.relu(F.conv2d(x, y, inputs[2] if len(inputs) > 2 else None, stride, padding, dilation, groups))";
    let convolution = |name, torch, run: Run| {
        Operation::new(name, torch, run)
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples(convolutions())
            .special(special_convolutions)
            .large(large_convolutions)
    };
    let pool = |name, torch, run: Run| {
        Operation::new(name, torch, run).samples(pools()).special(special_pools).large(large_pools)
    };
    vec![
        convolution("conv2d", with_bias, run! { floats |c| c.x().conv2d(c.y(), c.optional(2), c.conv2d()) }),
        convolution("conv2d_relu", relu, run! { floats |c| c.x().conv2d_relu(c.y(), c.optional(2), c.conv2d()) }),
        Operation::new(
            "conv_transpose2d",
            "F.conv_transpose2d(x, y, inputs[2] if len(inputs) > 2 else None, stride, padding, output_padding, groups, dilation)",
            run! { floats |c| c.x().conv_transpose2d(c.y(), c.optional(2), c.conv_transpose2d()) },
        )
        .autocast(Autocast::Half)
        .mixed(Mixed::Refuses)
        .samples(transposed_convolutions())
        .special(special_transposed_convolutions)
        .large(large_transposed_convolutions),
        pool(
            "max_pool2d",
            "F.max_pool2d(x, kernel, stride, padding)",
            run! { floats |c| c.x().max_pool2d(c.pool2d()) },
        )
        .exact(),
        pool(
            "avg_pool2d",
            "F.avg_pool2d(x, kernel, stride, padding)",
            run! { floats |c| c.x().avg_pool2d(c.pool2d()) },
        )
        .summed_dim(1),
        Operation::new(
            "adaptive_avg_pool2d",
            "F.adaptive_avg_pool2d(x, size)",
            run! { floats |c| c.x().adaptive_avg_pool2d(c.pair("size")) },
        )
        .samples(adaptive_pools())
        .special(|dtype| vec![sample([special::planes(dtype)]).args(json!({ "size": [1, 3] }))])
        .large(|n| vec![sample([images(n, 4, 32)]).args(json!({ "size": [3, 3] }))]),
        Operation::new(
            "channels_last",
            "x.contiguous(memory_format=torch.channels_last)",
            run! { elements |c| c.x().channels_last() },
        )
        .exact()
        .samples([
            sample([signed([2, 3, 4, 5])]).in_every_precision(),
            sample([signed([2, 4, 3, 5]).view(json!(["transpose", 1, 2]))]),
        ])
        .moves()
        .large(|n| vec![sample([images(n, 4, 32)]), sample([images(n, 64, 16)])]),
    ]
}

fn geometry(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) -> Value {
    json!({ "stride": stride, "padding": padding, "dilation": dilation, "groups": groups })
}

fn plain() -> Value {
    geometry([1, 1], [0, 0], [1, 1], 1)
}

fn convolutions() -> Vec<Sample> {
    let cases: [(&[usize], &[usize], Value); 9] = [
        (&[2, 2, 3, 4], &[2, 2, 2, 3], plain()),
        (&[1, 1, 3, 3], &[1, 1, 2, 2], plain()),
        (&[1, 2, 4, 3], &[2, 2, 3, 3], geometry([1, 1], [1, 1], [1, 1], 1)),
        (&[1, 1, 5, 4], &[2, 1, 2, 2], geometry([2, 2], [0, 0], [1, 1], 1)),
        (&[1, 1, 5, 5], &[1, 1, 2, 2], geometry([1, 1], [1, 1], [2, 2], 1)),
        (&[1, 4, 3, 3], &[2, 2, 2, 2], geometry([1, 1], [0, 0], [1, 1], 2)),
        (&[2, 4, 4, 4], &[4, 1, 3, 3], geometry([1, 1], [1, 1], [1, 1], 4)),
        (&[1, 2, 4, 4], &[2, 1, 3, 2], geometry([2, 1], [1, 2], [1, 2], 2)),
        (&[2, 3, 1, 1], &[2, 3, 1, 1], plain()),
    ];
    let mut samples = Vec::new();
    for (image, weight, args) in cases {
        samples.push(sample([signed(image), signed(weight)]).args(args.clone()));
        samples.push(sample([signed(image), signed(weight), signed([weight[0]])]).args(args));
    }
    samples[0].every_precision = true;
    let last = signed([2, 3, 4, 2]).view(json!(["transpose", 1, 3]));
    samples.push(sample([last, signed([3, 2, 2, 2])]).args(plain()).in_every_precision());
    let cut = signed([1, 2, 8, 4]).view(json!(["slice", 2, 0, 8, 2]));
    samples.push(sample([cut, signed([2, 2, 2, 2]).view(json!(["transpose", 2, 3]))]).args(plain()));
    samples
}

fn transposed(args: Value, output_padding: [usize; 2]) -> Value {
    let mut args = args;
    args["output_padding"] = json!(output_padding);
    args
}

fn transposed_convolutions() -> Vec<Sample> {
    let cases: [(&[usize], &[usize], Value); 5] = [
        (&[2, 3, 3, 4], &[3, 2, 2, 3], transposed(plain(), [0, 0])),
        (&[1, 2, 3, 2], &[2, 1, 3, 3], transposed(geometry([2, 2], [1, 1], [1, 1], 1), [1, 1])),
        (&[1, 4, 2, 3], &[4, 1, 2, 2], transposed(geometry([2, 3], [0, 1], [2, 1], 2), [0, 2])),
        (&[1, 2, 4, 4], &[2, 1, 4, 4], transposed(geometry([2, 2], [1, 1], [1, 1], 2), [0, 0])),
        (&[2, 3, 1, 1], &[3, 2, 1, 1], transposed(plain(), [0, 0])),
    ];
    let mut samples = Vec::new();
    for (image, weight, args) in cases {
        let channels = weight[1] * args["groups"].as_u64().unwrap() as usize;
        samples.push(sample([signed(image), signed(weight)]).args(args.clone()));
        samples.push(sample([signed(image), signed(weight), signed([channels])]).args(args));
    }
    samples[0].every_precision = true;
    let last = signed([2, 3, 4, 2]).view(json!(["transpose", 1, 3]));
    samples.push(sample([last, signed([2, 3, 2, 2])]).args(transposed(plain(), [0, 0])));
    samples
}

fn special_transposed_convolutions(dtype: DType) -> Vec<Sample> {
    let kernel = [1.0, 0.5, -2.0, 0.25, -1.0, 0.5, 2.0, -0.25];
    let of = |skip: usize| {
        let weight = values([1, 2, 2, 2], kernel);
        sample([special::images(dtype, skip), weight, values([2], [0.5, -0.25])]).args(transposed(plain(), [0, 0]))
    };
    // As in `special_convolutions`, gradients are compared only without NaN and infinities.
    vec![of(0).without_gradients(), of(5)]
}

/// Layers that double the size of images, with few and with many channels.
fn large_transposed_convolutions(n: usize) -> Vec<Sample> {
    let case = |channels: usize, out: usize, side: usize| {
        let args = transposed(geometry([2; 2], [1; 2], [1; 2], 1), [0; 2]);
        sample([images(n / 4, channels, side), signed([channels, out, 4, 4]), signed([out])]).args(args)
    };
    vec![case(16, 8, 16), case(64, 32, 16)]
}

fn special_convolutions(dtype: DType) -> Vec<Sample> {
    let kernel = [1.0, 0.5, -2.0, 0.25, -1.0, 0.5, 2.0, -0.25];
    let of = |skip: usize| {
        let images = special::images(dtype, skip);
        sample([images, values([2, 1, 2, 2], kernel), values([2], [0.5, -0.25])]).args(plain())
    };
    // A NaN or infinity of a pixel may reach the gradients of more kernel weights than it must, so these gradients
    // are not compared.
    vec![of(0).without_gradients(), of(5)]
}

fn special_pools(dtype: DType) -> Vec<Sample> {
    let of = |args: Value| sample([special::planes(dtype)]).args(args);
    vec![of(window([2, 2], [2, 2], [0, 0])), of(window([2, 3], [1, 1], [1, 1]))]
}

/// Images of `channels` channels, with about `n` numbers in all.
fn images(n: usize, channels: usize, side: usize) -> Input {
    signed([n.div_ceil(channels * side * side), channels, side, side])
}

/// Few and many channels, groups, depthwise, and stride 2.
fn large_convolutions(n: usize) -> Vec<Sample> {
    let case = |[channels, out, groups]: [usize; 3], kernel: usize, stride: usize, side: usize| {
        let weight = signed([out, channels / groups, kernel, kernel]);
        let args = geometry([stride; 2], [kernel / 2; 2], [1; 2], groups);
        sample([images(n / 4, channels, side), weight, signed([out])]).args(args)
    };
    vec![
        case([4, 16, 1], 3, 1, 32),
        case([16, 16, 1], 3, 2, 16),
        case([64, 64, 1], 3, 1, 16),
        case([64, 64, 1], 1, 1, 16),
        case([32, 32, 4], 3, 1, 16),
        case([32, 32, 32], 3, 1, 16),
    ]
}

fn pools() -> Vec<Sample> {
    let geometries = [
        window([2, 2], [2, 2], [0, 0]),
        window([3, 3], [1, 1], [0, 0]),
        window([2, 2], [2, 2], [1, 1]),
        window([2, 3], [1, 2], [1, 0]),
    ];
    let mut samples = Vec::new();
    for args in geometries {
        samples.push(sample([signed([1, 2, 4, 5])]).args(args.clone()).in_every_precision());
        samples.push(sample([signed([2, 4, 4])]).args(args.clone()));
        samples.push(sample([signed([2, 5, 4, 2]).view(json!(["transpose", 1, 3]))]).args(args));
    }
    samples
}

fn large_pools(n: usize) -> Vec<Sample> {
    let args = |kernel: usize, stride: usize, padding: usize| window([kernel; 2], [stride; 2], [padding; 2]);
    vec![
        sample([images(n, 4, 32)]).args(args(2, 2, 0)),
        sample([images(n, 4, 32)]).args(args(3, 1, 1)),
        sample([signed([1, 1, 4, n / 4])]).args(args(2, 2, 0)),
    ]
}

fn adaptive_pools() -> Vec<Sample> {
    let mut samples: Vec<_> = [[1, 1], [2, 2], [3, 2], [4, 5], [6, 7]]
        .map(|size: [usize; 2]| sample([signed([2, 1, 4, 5])]).args(json!({ "size": size })))
        .into();
    samples[1].every_precision = true;
    samples.push(sample([values([1, 1, 1, 2], [1.0, 2.0])]).args(json!({ "size": [1, 1] })));
    samples
}

fn window(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Value {
    json!({ "kernel": kernel, "stride": stride, "padding": padding })
}
