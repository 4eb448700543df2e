//! Times the three passes of some convolutions, and shows the peak rate of multiply-adds of the machine beside them.
//!
//! ```text
//! cargo bench -p pagelock-tensor --bench conv2d -- [--threads N] [NAME]
//! ```
//! Only useful operations are counted, two per multiply-add: none for padding or for lanes without a channel. The
//! derivatives are timed as calls of `grad` on a recorded convolution, so about 2 µs of each are autograd's.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{Conv2dOptions, Result, Tensor, set_num_threads};
use pulp::{Arch, Simd, WithSimd};

/// The name, the image's `[batch, channels, height, width]`, the output channels, the kernel size and the geometry.
type Case = (&'static str, [usize; 4], usize, usize, Conv2dOptions);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |name: &str| args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1));
    let threads = value_of("--threads").and_then(|n| n.parse().ok()).unwrap_or(1);
    let only = args.iter().find(|arg| !arg.starts_with('-') && arg.parse::<usize>().is_err());
    set_num_threads(threads);

    println!("{:26} {:>9} {:>12} {:>12}   ({threads} threads)", "case", "", "µs", "GFLOP/s");
    println!("{:26} {:>9} {:>12} {:12.0}", "multiply-adds", "1 thread", "", peak());
    for case in cases().into_iter().filter(|case| only.is_none_or(|name| case.0.contains(name.as_str()))) {
        for (pass, time, operations) in measure_case(&case)? {
            let rate = operations as f64 / 1e9 / time.as_secs_f64();
            println!("{:26} {pass:>9} {:12.1} {rate:12.0}", case.0, time.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}

/// The tutorial's convolutions, LeNet's, and some of larger networks.
fn cases() -> Vec<Case> {
    let half = Conv2dOptions::new().stride(2).padding(1);
    let same = Conv2dOptions::new().padding(1);
    vec![
        ("mnist 1→16 /2", [64, 1, 28, 28], 16, 3, half),
        ("mnist 16→16 /2", [64, 16, 14, 14], 16, 3, half),
        ("mnist 16→10 /2", [64, 16, 7, 7], 10, 3, half),
        ("lenet 1→16", [64, 1, 28, 28], 16, 5, Conv2dOptions::new().padding(2)),
        ("lenet 16→32", [64, 16, 14, 14], 32, 5, Conv2dOptions::new().padding(2)),
        ("64→64 of 28x28", [8, 64, 28, 28], 64, 3, same),
        ("64→128 1x1 of 14x14", [16, 64, 14, 14], 128, 1, Conv2dOptions::new()),
        ("3→32 7x7/2 of 112x112", [4, 3, 112, 112], 32, 7, Conv2dOptions::new().stride(2).padding(3)),
        ("depthwise 64 of 28x28", [8, 64, 28, 28], 64, 3, Conv2dOptions::new().padding(1).groups(64)),
    ]
}

fn measure_case(&(_, image, outputs, kernel, geometry): &Case) -> Result<[(&'static str, Duration, usize); 3]> {
    let channels = image[1] / geometry.groups;
    let [image, weight] = [Tensor::randn(image)?, Tensor::randn([outputs, channels, kernel, kernel])?];
    let bias = Tensor::randn(outputs)?;
    let forward = || image.conv2d(&weight, Some(&bias), geometry);
    let gradient = Tensor::randn(forward()?.shape())?;
    let derivative = |image: &Tensor, weight: &Tensor, input: &Tensor| {
        let result = image.conv2d(weight, None, geometry)?;
        let options = || Backward { gradient: Some(gradient.clone()), retain_graph: true, ..Backward::default() };
        measure(|| grad(&[&result], &[input], options()))
    };
    let [image_leaf, weight_leaf] = [&image, &weight].map(|leaf| leaf.detach().set_requires_grad(true));
    let operations = 2 * gradient.len() * channels * kernel * kernel;
    Ok([
        ("forward", measure(forward)?, operations),
        ("image", derivative(&image_leaf, &weight, &image_leaf)?, operations),
        ("weight", derivative(&image, &weight_leaf, &weight_leaf)?, operations),
    ])
}

/// The time of one call in the fastest of several batches: the one that other programs disturbed least.
fn measure<R>(run: impl Fn() -> Result<R>) -> Result<Duration> {
    let batch = |calls: u32| -> Result<Duration> {
        let start = Instant::now();
        (0..calls).try_for_each(|_| run().map(|result| drop(black_box(result))))?;
        Ok(start.elapsed() / calls)
    };
    run()?;
    let once = batch(3)?;
    let calls = (Duration::from_millis(3).as_nanos() / once.as_nanos().max(1)).clamp(1, 10_000) as u32;
    (0..20).try_fold(once, |fastest, _| Ok(fastest.min(batch(calls)?)))
}

/// The peak rate of independent `f32` multiply-adds, in operations per nanosecond.
fn peak() -> f64 {
    const ROUNDS: usize = 1 << 20;
    let run = || Ok(Arch::new().dispatch(MultiplyAdds { rounds: ROUNDS, start: black_box(1.0) }));
    let lanes = run().map_or(0, |(_, lanes)| lanes);
    let time = measure(run).map_or(f64::NAN, |time| time.as_secs_f64() * 1e9);
    (2 * MultiplyAdds::CHAINS * lanes * ROUNDS) as f64 / time
}

/// Independent chains of multiply-adds. Returns their sum, which keeps them from being optimized away, and the number
/// of lanes.
struct MultiplyAdds {
    rounds: usize,
    start: f32,
}

impl MultiplyAdds {
    const CHAINS: usize = 12;
}

impl WithSimd for MultiplyAdds {
    type Output = (f32, usize);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let factor = simd.splat_f32s(self.start);
        let mut sums = [factor; MultiplyAdds::CHAINS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add_e_f32s(*sum, factor, factor);
            }
        }
        let total = sums.into_iter().reduce(|a, b| simd.add_f32s(a, b)).map_or(0.0, |sum| simd.reduce_sum_f32s(sum));
        (total, S::F32_LANES)
    }
}
