//! Convolution and pooling.

use pagelock_tensor::{Conv2dOptions, Pool2dOptions, Result, Tensor};

use super::{alone, refuses, zeros};

#[test]
fn convolutions_of_other_shapes() {
    let _alone = alone();
    let weight = zeros([4, 2, 3, 3]);
    let conv = |image: Tensor, geometry| image.conv2d(&weight, None, geometry);
    refuses(
        || conv(zeros([2, 5, 5]), Conv2dOptions::new()),
        "conv2d: the image is [2, 5, 5], but it must be [batch, channels, height, width]; reshape or unsqueeze it",
    );
    refuses(
        || zeros([1, 2, 5, 5]).conv2d(&zeros([2, 9]), None, Conv2dOptions::new()),
        "conv2d: the weight is [2, 9], but it must be [out_channels, in_channels / groups, kernel_h, kernel_w]",
    );
    refuses(
        || conv(zeros([1, 3, 5, 5]), Conv2dOptions::new()),
        "conv2d: the image is [1, 3, 5, 5], but with groups 1 and the weight [4, 2, 3, 3] it must have 2 channels in dimension 1; permute it, or change the weight",
    );
    refuses(
        || conv(zeros([1, 6, 5, 5]), Conv2dOptions::new().groups(3)),
        "conv2d: the weight is [4, 2, 3, 3], but with groups 3 it must begin with a multiple of 3",
    );
    refuses(
        || zeros([1, 2, 5, 5]).conv2d(&weight, Some(&zeros([3])), Conv2dOptions::new()),
        "conv2d: the bias is [3], but with the weight [4, 2, 3, 3] it must be [4]",
    );
}

#[test]
fn kernels_that_do_not_fit_the_image() {
    let _alone = alone();
    let weight = zeros([4, 2, 3, 3]);
    let conv = |image: Tensor, geometry| image.conv2d(&weight, None, geometry);
    refuses(
        || conv(zeros([1, 2, 2, 5]), Conv2dOptions::new()),
        "conv2d: the weight is [4, 2, 3, 3], but its kernel (dilated by [1, 1]) must not be empty and must fit the image [1, 2, 2, 5] padded by [0, 0]",
    );
    refuses(
        || conv(zeros([1, 2, 5, 5]), Conv2dOptions::new().dilation(3)),
        "conv2d: the weight is [4, 2, 3, 3], but its kernel (dilated by [3, 3]) must not be empty and must fit the image [1, 2, 5, 5] padded by [0, 0]",
    );
    refuses(
        || conv(zeros([1, 2, 5, 5]), Conv2dOptions::new().padding(usize::MAX)),
        "conv2d: the weight is [4, 2, 3, 3], but its kernel (dilated by [1, 1]) must not be empty and must fit the image [1, 2, 5, 5] padded by [18446744073709551615, 18446744073709551615]",
    );
    refuses(
        || conv(zeros([1, 2, 5, 5]), Conv2dOptions::new().dilation(usize::MAX)),
        "conv2d: the weight is [4, 2, 3, 3], but its kernel (dilated by [18446744073709551615, 18446744073709551615]) must not be empty and must fit the image [1, 2, 5, 5] padded by [0, 0]",
    );
    refuses(
        || zeros([1, 2, 5, 5]).conv2d(&zeros([4, 2, 0, 3]), None, Conv2dOptions::new()),
        "conv2d: the weight is [4, 2, 0, 3], but its kernel (dilated by [1, 1]) must not be empty and must fit the image [1, 2, 5, 5] padded by [0, 0]",
    );
    refuses(
        || conv(zeros([1, 2, 5, 5]), Conv2dOptions::new().padding(1 << 40)),
        "shape [1, 4, 2199023255555, 2199023255555] needs more bytes than memory can address (2^63); check the sizes",
    );
    for (argument, geometry) in [
        ("stride", Conv2dOptions::new().stride(0)),
        ("dilation", Conv2dOptions::new().dilation(0)),
        ("groups", Conv2dOptions::new().groups(0)),
    ] {
        let text = format!("conv2d: {argument} is 0, but it must be at least 1");
        refuses(|| conv(zeros([1, 2, 5, 5]), geometry), &text);
    }
    refuses(
        || conv(zeros([1, 2, 5, 5]), Conv2dOptions::new().groups(usize::MAX)),
        "conv2d: the weight is [4, 2, 3, 3], but with groups 18446744073709551615 it must begin with a multiple of 18446744073709551615",
    );
}

#[test]
fn an_empty_batch_is_accepted() {
    let _alone = alone();
    let (weight, images) = (zeros([4, 2, 3, 3]), zeros([0, 2, 5, 5]));
    let features = images.conv2d(&weight, None, Conv2dOptions::new().padding(1)).unwrap();
    assert_eq!(features.shape(), &[0, 4, 5, 5]);
    assert_eq!(features.max_pool2d(Pool2dOptions::new(2)).unwrap().shape(), &[0, 4, 2, 2]);
    assert_eq!(features.avg_pool2d(Pool2dOptions::new(2)).unwrap().shape(), &[0, 4, 2, 2]);
    assert_eq!(features.adaptive_avg_pool2d([1, 1]).unwrap().shape(), &[0, 4, 1, 1]);
}

#[test]
fn pooling_windows_that_do_not_fit() {
    let _alone = alone();
    let pools: [(&str, fn(&Tensor, Pool2dOptions) -> Result<Tensor>); 2] =
        [("max_pool2d", Tensor::max_pool2d), ("avg_pool2d", Tensor::avg_pool2d)];
    for (op, pool) in pools {
        refuses(
            || pool(&zeros([5, 5]), Pool2dOptions::new(2)),
            &format!(
                "{op}: the image is [5, 5], but it must be [batch, channels, height, width] or [channels, height, width]"
            ),
        );
        refuses(
            || pool(&zeros([1, 3, 5]), Pool2dOptions::new(4)),
            &format!(
                "{op}: the image is [1, 3, 5], but it must have pixels and, padded by [0, 0], be at least as large as the kernel [4, 4]"
            ),
        );
        refuses(
            || pool(&zeros([1, 0, 5]), Pool2dOptions::new(2).padding(1)),
            &format!(
                "{op}: the image is [1, 0, 5], but it must have pixels and, padded by [1, 1], be at least as large as the kernel [2, 2]"
            ),
        );
        refuses(
            || pool(&zeros([1, 5, 5]), Pool2dOptions::new(0)),
            &format!("{op}: kernel is 0, but it must be at least 1"),
        );
        refuses(
            || pool(&zeros([1, 5, 5]), Pool2dOptions::new(2).stride(0)),
            &format!("{op}: stride is 0, but it must be at least 1"),
        );
        refuses(
            || pool(&zeros([1, 5, 5]), Pool2dOptions::new(3).padding(2)),
            &format!("{op}: padding is 2, but it must be at most half of the kernel, which is 3"),
        );
        refuses(
            || pool(&zeros([1, 5, 5]), Pool2dOptions::new(usize::MAX).padding(usize::MAX / 2)),
            &format!(
                "{op}: the image is [1, 5, 5], but it must have pixels and, padded by [9223372036854775807, 9223372036854775807], be at least as large as the kernel [18446744073709551615, 18446744073709551615]"
            ),
        );
    }
}

#[test]
fn adaptive_sizes_that_cannot_be() {
    let _alone = alone();
    refuses(
        || zeros([5, 5]).adaptive_avg_pool2d([1, 1]),
        "adaptive_avg_pool2d: the image is [5, 5], but it must be [batch, channels, height, width] or [channels, height, width]",
    );
    refuses(
        || zeros([1, 5, 5]).adaptive_avg_pool2d([0, 1]),
        "adaptive_avg_pool2d: size is [0, 1], but it must be at least 1 in both dimensions",
    );
    refuses(
        || zeros([1, 5, 0]).adaptive_avg_pool2d([1, 1]),
        "adaptive_avg_pool2d: the image is empty; give it at least one pixel",
    );
    refuses(
        || zeros([1, 5, 5]).adaptive_avg_pool2d([usize::MAX, 2]),
        "shape [1, 18446744073709551615, 2] needs more bytes than memory can address (2^63); check the sizes",
    );
}
