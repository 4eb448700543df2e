//! Convolution and pooling.

use pagelock_tensor::{Conv2dOptions, Pool2dOptions};

use super::{checked, checked_twice, positive, signed};

#[test]
fn conv2d_with_every_geometry() {
    let plain = Conv2dOptions::new();
    let cases: [(&[usize], &[usize], Conv2dOptions); 8] = [
        (&[1, 1, 3, 3], &[1, 1, 2, 2], plain),
        (&[2, 2, 3, 4], &[2, 2, 2, 3], plain),
        (&[1, 2, 4, 3], &[2, 2, 3, 3], plain.padding(1)),
        (&[1, 1, 5, 4], &[2, 1, 2, 2], plain.stride(2)),
        (&[1, 1, 5, 5], &[1, 1, 2, 2], plain.dilation(2).padding(1)),
        (&[1, 4, 3, 3], &[2, 2, 2, 2], plain.groups(2)),
        (&[1, 2, 4, 4], &[2, 1, 3, 2], Conv2dOptions { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 2 }),
        (&[2, 3, 1, 1], &[2, 3, 1, 1], plain),
    ];
    for (image, weight, geometry) in cases {
        checked_twice(|x| x[0].conv2d(&x[1], None, geometry), &[signed(image, 0), signed(weight, 3)]);
    }
}

#[test]
fn conv2d_with_bias() {
    let inputs = [signed(&[2, 2, 3, 3], 0), signed(&[3, 2, 2, 2], 1), signed(&[3], 2)];
    checked_twice(|x| x[0].conv2d(&x[1], Some(&x[2]), Conv2dOptions::new().padding(1).stride(2)), &inputs);
}

#[test]
fn conv2d_relu() {
    let inputs = [signed(&[2, 2, 3, 3], 0), signed(&[3, 2, 2, 2], 1), signed(&[3], 2)];
    let geometry = Conv2dOptions::new().padding(1).stride(2);
    checked_twice(|x| x[0].conv2d_relu(&x[1], Some(&x[2]), geometry), &inputs);
    checked_twice(|x| x[0].conv2d_relu(&x[1], None, geometry), &inputs[..2]);
    // Where the image has no gradient, those of weight and bias are made of the result and its whole gradient.
    checked_twice(|x| inputs[0].to(&x[0].device())?.conv2d_relu(&x[0], Some(&x[1]), geometry), &inputs[1..]);
}

#[test]
fn max_pool2d() {
    for geometry in [Pool2dOptions::new(2), Pool2dOptions::new(3).stride(1), Pool2dOptions::new(2).padding(1).stride(2)]
    {
        checked(|x| x[0].max_pool2d(geometry), &[signed(&[1, 2, 4, 5], 0)]);
        checked_twice(|x| x[0].max_pool2d(geometry)?.pow(2.0), &[signed(&[2, 4, 4], 0)]);
    }
}

#[test]
fn avg_pool2d() {
    let uneven = Pool2dOptions { kernel: [2, 3], stride: [1, 2], padding: [1, 0] };
    for geometry in
        [Pool2dOptions::new(2), Pool2dOptions::new(3).stride(1), Pool2dOptions::new(2).padding(1).stride(2), uneven]
    {
        checked_twice(|x| x[0].avg_pool2d(geometry)?.pow(2.0), &[signed(&[1, 2, 4, 5], 0)]);
    }
}

#[test]
fn adaptive_avg_pool2d() {
    for size in [[1, 1], [2, 2], [3, 2], [4, 5], [6, 7]] {
        checked_twice(|x| x[0].adaptive_avg_pool2d(size)?.pow(2.0), &[signed(&[2, 1, 4, 5], 0)]);
    }
}

#[test]
fn a_small_network_of_images() {
    let inputs = [positive(&[2, 1, 6, 6], 0), signed(&[2, 1, 3, 3], 1), signed(&[2], 2), signed(&[3, 2], 3)];
    checked_twice(
        |x| {
            let features = x[0].conv2d(&x[1], Some(&x[2]), Conv2dOptions::new().stride(2).padding(1))?.tanh()?;
            let pooled = features.avg_pool2d(Pool2dOptions::new(3))?.flatten(1, -1)?;
            pooled.matmul(&x[3].t()?)?.log_softmax(-1)
        },
        &inputs,
    );
}
