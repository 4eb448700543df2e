//! Times operations other than products and convolutions on a GPU. `benches/torch_wide.py` times the same rows in PyTorch.
//!
//! ```text
//! cargo bench --bench wide -- [--only sort,topk] [--json]
//! python benches/torch_wide.py        # the same in PyTorch
//! ```
//!
//! Prints the milliseconds of the forward pass, and of the forward and the backward pass, each the best of ten rounds.
//! A round queues about 10 ms of calls and synchronizes once at the end. Before the first row the device works for a
//! second, because an idle device runs slower. The row `copy` copies 8192 × 8192 numbers, which bounds the speed of
//! operations that read and write as many bytes.

use std::time::Instant;

use clap::Parser;
use pagelock::nn::functional::{self as F, *};
use pagelock::nn::optim::Adagrad;
use pagelock::nn::{GRUCell, LSTMCell, RNNCell, RNNOptions};
use pagelock::prelude::*;
use pagelock::tensor::autograd::{Backward, grad};
use pagelock::tensor::{
    BatchNormOptions, ConvTranspose2dOptions, Float32MatmulPrecision, PadMode, Pool2dOptions, Result,
    set_float32_matmul_precision, with_deterministic_algorithms,
};

/// Times operations on a GPU
#[derive(Parser)]
struct Args {
    /// Only rows whose names begin with one of these texts
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    args: Args,
    device: Device,
}

impl Bench {
    /// Whether `--only` selects this row.
    fn is_wanted(&self, name: &str) -> bool {
        self.args.only.is_empty() || self.args.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// The best of ten rounds, in milliseconds.
    fn milliseconds(&self, f: &dyn Fn() -> Result<()>) -> anyhow::Result<f64> {
        let round = |calls: usize| -> anyhow::Result<f64> {
            self.device.synchronize()?;
            let start = Instant::now();
            (0..calls).try_for_each(|_| f())?;
            self.device.synchronize()?;
            Ok(start.elapsed().as_secs_f64() * 1e3 / calls as f64)
        };
        round(3)?;
        let calls = (10.0 / round(3)?).clamp(5.0, 1000.0) as usize;
        (0..10).try_fold(f64::INFINITY, |best, _| Ok(best.min(round(calls)?)))
    }

    /// Keeps the device busy for a second, because a device that was idle runs slower at first.
    fn warm_up(&self) -> anyhow::Result<()> {
        let x = Tensor::on(&self.device).randn([4096, 4096])?;
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 1.0 {
            x.matmul(&x)?;
            self.device.synchronize()?;
        }
        Ok(())
    }

    fn say(&self, name: &str, forward: f64, both: Option<f64>) {
        match self.args.json {
            true => println!("{}", serde_json::json!({ "name": name, "forward": forward, "both": both })),
            false => {
                println!("{name:44} {forward:9.4} {:>9}", both.map_or_else(String::new, |both| format!("{both:.4}")))
            }
        }
    }

    /// Times `f`, which has no backward pass.
    fn alone(&self, name: &str, f: &dyn Fn() -> Result<()>) -> anyhow::Result<()> {
        if self.is_wanted(name) {
            self.say(name, self.milliseconds(f)?, None);
        }
        Ok(())
    }

    /// Times `f` alone, and `f` followed by the gradients with respect to `of`.
    fn pair(&self, name: &str, of: &[&Tensor], f: &dyn Fn() -> Result<Tensor>) -> anyhow::Result<()> {
        if !self.is_wanted(name) {
            return Ok(());
        }
        let gradient = Tensor::on(&self.device).of(f()?.dtype()).randn(f()?.dims())?;
        let forward = self.milliseconds(&|| f().map(drop))?;
        let both = self.milliseconds(&|| {
            let options = Backward { gradient: Some(gradient.clone()), ..Default::default() };
            grad(&[&f()?], of, options).map(drop)
        })?;
        self.say(name, forward, Some(both));
        Ok(())
    }

    fn tensor(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::on(&self.device).of(dtype).randn(dims)?.set_requires_grad(true))
    }

    fn index(&self, high: i64, dims: &[usize]) -> Result<Tensor<Int>> {
        Tensor::<Int>::randint(0, high, dims)?.to(&self.device)
    }
}

fn attention(bench: &Bench) -> anyhow::Result<()> {
    for [b, h, t, d] in [[16, 12, 1024, 64], [4, 16, 4096, 128], [1, 16, 16384, 128]] {
        for (causal, what) in [(true, "causal"), (false, "full")] {
            let name = format!("attention.{b}x{h}x{t}x{d}.{what}");
            let [q, k, v] = [(); 3].map(|()| bench.tensor(DType::BF16, &[b, h, t, d]));
            let (q, k, v) = (q?, k?, v?);
            let options = || AttentionOptions::new().is_causal(causal);
            let attend = || F::scaled_dot_product_attention(&q, &k, &v, options());
            bench.pair(&name, &[&q, &k, &v], &|| with_deterministic_algorithms(false, attend))?;
            bench.pair(&format!("{name}.deterministic"), &[&q, &k, &v], &attend)?;
        }
    }
    Ok(())
}

fn vocabulary(bench: &Bench) -> anyhow::Result<()> {
    let (weight, index) = (bench.tensor(DType::F32, &[50304, 768])?, bench.index(50304, &[16, 1024])?);
    bench.pair("embedding.50304x768.16x1024", &[&weight], &|| F::embedding(&index, &weight, None))?;
    for dtype in [DType::F32, DType::BF16] {
        let (scores, classes) = (bench.tensor(dtype, &[16384, 50304])?, bench.index(50304, &[16384])?);
        let name = format!("cross_entropy.16384x50304.{}", dtype.name());
        bench.pair(&name, &[&scores], &|| F::cross_entropy(&scores, &classes))?;
    }
    Ok(())
}

fn square(bench: &Bench) -> anyhow::Result<()> {
    const SIDE: usize = 8192;
    let x = bench.tensor(DType::F32, &[SIDE, SIDE])?;
    let tenth = Tensor::on(&bench.device).full([1], 0.1)?;
    let index = bench.index(SIDE as i64, &[SIDE, SIDE])?;
    let positive = x.detach().gt(&tenth.zeros_like()?)?;
    let generator = Generator::new(0);
    let pair = |name: &str, f: &dyn Fn() -> Result<Tensor>| bench.pair(&format!("{name}.{SIDE}x{SIDE}"), &[&x], f);
    bench.alone("copy.8192x8192", &|| x.detach().deep_clone().map(drop))?;
    pair("gelu", &|| F::gelu(&x, Approximate::None))?;
    pair("gelu_tanh", &|| F::gelu(&x, Approximate::Tanh))?;
    pair("silu", &|| F::silu(&x))?;
    pair("softplus", &|| F::softplus(&x, 1.0, 20.0))?;
    pair("clamp", &|| x.clamp(-1.0, 1.0))?;
    pair("dropout", &|| F::dropout(&x, 0.1, true, &generator))?;
    pair("rms_norm", &|| F::rms_norm(&x, [SIDE], None, None))?;
    pair("cumsum", &|| x.cumsum(1))?;
    pair("logsumexp", &|| x.logsumexp(1))?;
    pair("where", &|| x.where_cond(&positive, &tenth))?;
    pair("sort", &|| Ok(x.sort(1, false)?.0))?;
    pair("topk", &|| Ok(x.topk(50, 1, true)?.0))?;
    pair("var", &|| x.var(1))?;
    pair("norm", &|| x.norm(2.0, 1))?;
    pair("prod", &|| x.prod(1))?;
    pair("flip", &|| x.flip(&[1]))?;
    pair("roll", &|| x.roll(&[17], &[1]))?;
    pair("gather", &|| x.gather(1, &index))?;
    pair("tril", &|| x.tril(0))
}

fn convolutions(bench: &Bench) -> anyhow::Result<()> {
    let x = bench.tensor(DType::F32, &[64, 256, 32, 32])?;
    let weight = bench.tensor(DType::F32, &[256, 128, 4, 4])?;
    let doubling = ConvTranspose2dOptions::new().stride(2).padding(1);
    bench
        .pair("conv_transpose2d.64x256x32x32.k4s2", &[&x, &weight], &|| x.conv_transpose2d(&weight, None, doubling))?;
    let bilinear = InterpolateOptions::mode(InterpolationMode::Bilinear);
    bench.pair("interpolate.bilinear.x2", &[&x], &|| F::interpolate(&x, Scale::Factor(&[2.0, 2.0]), bilinear))?;
    bench.pair("group_norm.64x256x32x32.g32", &[&x], &|| F::group_norm(&x, 32, None, None, 1e-5))?;
    let (x, weight) = (bench.tensor(DType::F32, &[64, 256, 4096])?, bench.tensor(DType::F32, &[256, 256, 5])?);
    let padded = Conv1dOptions { padding: 2, ..Default::default() };
    bench.pair("conv1d.64x256x4096.k5", &[&x, &weight], &|| F::conv1d(&x, &weight, None, padded))
}

/// Operations between the convolutions of networks that classify or segment photos.
fn photos(bench: &Bench) -> anyhow::Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let pair = |name: &str, of: &[&Tensor], f: &dyn Fn() -> Result<Tensor>| {
            bench.pair(&format!("photos.{name}.{}", dtype.name()), of, f)
        };
        let x = bench.tensor(dtype, &[32, 64, 112, 112])?;
        let (weight, bias) = (bench.tensor(DType::F32, &[64])?, bench.tensor(DType::F32, &[64])?);
        let normalize = || F::batch_norm(&x, None, Some(&weight), Some(&bias), BatchNormOptions::default());
        pair("batch_norm", &[&x, &weight, &bias], &normalize)?;
        pair("relu", &[&x], &|| x.relu())?;
        pair("max_pool2d.k3s2", &[&x], &|| x.max_pool2d(Pool2dOptions::new(3).stride(2).padding(1)))?;
        pair("avg_pool2d.k2", &[&x], &|| x.avg_pool2d(Pool2dOptions::new(2)))?;
        pair("instance_norm", &[&x], &|| F::instance_norm(&x, None, None, 1e-5))?;
        pair("channels_last", &[&x], &|| x.channels_last())?;
        let x = bench.tensor(dtype, &[32, 2048, 7, 7])?;
        pair("adaptive_avg_pool2d", &[&x], &|| x.adaptive_avg_pool2d([1, 1]))?;
        let x = bench.tensor(dtype, &[8, 64, 128, 128])?;
        pair("cat", &[&x], &|| Tensor::cat(&[&x, &x], 1))?;
        pair("pad.reflect", &[&x], &|| x.pad(&[3, 3, 3, 3], PadMode::Reflect))?;
        pair("pixel_shuffle", &[&x], &|| F::pixel_shuffle(&x, 2))?;
        pair("interpolate.nearest", &[&x], &|| {
            F::interpolate(&x, Scale::Factor(&[2.0, 2.0]), InterpolateOptions::default())
        })?;
        let bilinear = InterpolateOptions::mode(InterpolationMode::Bilinear);
        pair("interpolate.bilinear", &[&x], &|| F::interpolate(&x, Scale::Factor(&[2.0, 2.0]), bilinear))?;
        let grid = bench.tensor(dtype, &[8, 128, 128, 2])?;
        pair("grid_sample", &[&x, &grid], &|| F::grid_sample(&x, &grid, GridSampleOptions::default()))?;
        let kernel = bench.tensor(dtype, &[64, 32, 2, 2])?;
        let doubling = ConvTranspose2dOptions::new().stride(2);
        pair("conv_transpose2d.k2s2", &[&x, &kernel], &|| x.conv_transpose2d(&kernel, None, doubling))?;
        let (scores, classes) = (bench.tensor(dtype, &[8, 21, 256, 256])?, bench.index(21, &[8, 256, 256])?);
        pair("softmax.of_channels", &[&scores], &|| scores.softmax(1))?;
        pair("cross_entropy.of_pixels", &[&scores], &|| F::cross_entropy(&scores, &classes))?;
        bench.alone(&format!("photos.argmax.of_channels.{}", dtype.name()), &|| scores.argmax(1).map(drop))?;
        let x = bench.tensor(dtype, &[32, 3136, 96])?;
        let (weight, bias) = (bench.tensor(dtype, &[96])?, bench.tensor(dtype, &[96])?);
        let normalize = || F::layer_norm(&x, [96], Some(&weight), Some(&bias), 1e-5);
        pair("layer_norm.96", &[&x, &weight, &bias], &normalize)?;
        let matrix = bench.tensor(dtype, &[384, 96])?;
        pair("linear.96to384", &[&x, &matrix], &|| F::linear(&x, &matrix, None))?;
        let (x, matrix) = (bench.tensor(dtype, &[32, 25088])?, bench.tensor(dtype, &[4096, 25088])?);
        pair("linear.25088to4096", &[&x, &matrix], &|| F::linear(&x, &matrix, None))?;
    }
    Ok(())
}

/// An input, if there is one, and the parameters.
fn tensors<'a>(input: Option<&'a Tensor>, parameters: &'a [Parameter]) -> Vec<&'a Tensor> {
    input.into_iter().chain(parameters.iter().map(|parameter| parameter.as_tensor())).collect()
}

/// Recurrent networks of two layers, on 64 sequences of 128 steps.
fn layers(bench: &Bench) -> anyhow::Result<()> {
    let options = RNNOptions::new().num_layers(2).batch_first(true);
    for (hidden, dtype) in [(1024, DType::F32), (1024, DType::BF16), (128, DType::F32)] {
        let x = bench.tensor(dtype, &[64, 128, hidden])?;
        macro_rules! row {
            ($layer:ident) => {{
                let mut layer = $layer::with(hidden, hidden, options)?;
                layer.to_dtype_(dtype)?;
                layer.to_(&bench.device)?;
                let parameters = layer.parameters();
                let name = format!("{}.2x{hidden}.64x128.{}", stringify!($layer), dtype.name());
                bench.pair(&name, &tensors(Some(&x), &parameters), &|| Ok(layer.forward(&x)?.0))?;
            }};
        }
        row!(LSTM);
        row!(GRU);
        row!(RNN);
    }
    Ok(())
}

/// Twenty steps of a cell, one after the other.
fn cells(bench: &Bench) -> anyhow::Result<()> {
    let x = bench.tensor(DType::F32, &[1, 128])?.detach();
    macro_rules! row {
        ($cell:ident, $first:expr, |$model:ident, $state:ident| $next:expr, $h:expr) => {{
            let mut $model = $cell::new(128, 128)?;
            $model.to_(&bench.device)?;
            let parameters = $model.parameters();
            bench.pair(concat!(stringify!($cell), ".128.20"), &tensors(None, &parameters), &|| {
                let mut $state = $first;
                for _ in 0..20 {
                    $state = $next?;
                }
                Ok($h)
            })?;
        }};
    }
    row!(LSTMCell, (x.clone(), x.clone()), |cell, state| cell.forward_with(&x, (&state.0, &state.1)), state.0);
    row!(GRUCell, x.clone(), |cell, state| cell.forward_with(&x, &state), state);
    row!(RNNCell, x.clone(), |cell, state| cell.forward_with(&x, &state), state);
    Ok(())
}

fn optimizers(bench: &Bench) -> anyhow::Result<()> {
    let block = [[2304, 768], [768, 768], [3072, 768], [768, 3072]];
    let shapes = std::iter::once([50304, 768]).chain(std::iter::repeat_n(block, 12).flatten());
    let parameters: Vec<Parameter> = shapes
        .map(|shape| {
            let parameter = Parameter::new(Tensor::on(&bench.device).randn(shape)?);
            parameter.set_grad(Some(Tensor::on(&bench.device).randn(shape)?))?;
            Ok(parameter)
        })
        .collect::<Result<_>>()?;
    let step = |name: &str, optimizer: &mut dyn Optimizer| -> anyhow::Result<()> {
        let optimizer = std::cell::RefCell::new(optimizer);
        bench.alone(&format!("optimizer.{name}.124M"), &|| {
            optimizer.borrow_mut().step().expect("the step succeeds");
            Ok(())
        })
    };
    step("sgd", &mut Sgd::new(parameters.clone(), 1e-3).momentum(0.9))?;
    step("adamw", &mut AdamW::new(parameters.clone(), 1e-3))?;
    step("adagrad", &mut Adagrad::new(parameters.clone(), 1e-3))?;
    step("rmsprop", &mut RmsProp::new(parameters.clone(), 1e-3))?;
    bench.alone("clip_grad_norm.124M", &|| {
        clip_grad_norm_(parameters.iter().cloned(), 1.0).map(drop).expect("clipping succeeds");
        Ok(())
    })
}

fn transformer(bench: &Bench) -> anyhow::Result<()> {
    let mut layer = TransformerEncoderLayer::new(512, 8, 2048)?.batch_first(true).dropout(0.0);
    layer.to_dtype_(DType::BF16)?;
    layer.to_(&bench.device)?;
    let x = bench.tensor(DType::BF16, &[64, 256, 512])?;
    let parameters = layer.parameters();
    bench.pair("TransformerEncoderLayer.512.64x256.bf16", &tensors(Some(&x), &parameters), &|| layer.forward(&x))
}

fn main() -> anyhow::Result<()> {
    let bench = Bench { args: Args::parse(), device: Device::best() };
    if bench.device.is_cpu() {
        println!("nothing to measure: there is no GPU");
        return Ok(());
    }
    set_float32_matmul_precision(Float32MatmulPrecision::High); // as PyTorch's convolutions do
    bench.warm_up()?;
    attention(&bench)?;
    vocabulary(&bench)?;
    square(&bench)?;
    convolutions(&bench)?;
    photos(&bench)?;
    layers(&bench)?;
    cells(&bench)?;
    optimizers(&bench)?;
    transformer(&bench)
}
