//! Times of elementwise operations, reductions and softmax, beside a plain `memcpy` of as many bytes.
//!
//! ```text
//! cargo bench -p pagelock-tensor --bench loops -- [--threads N] [--json] [NAME]
//! ```
//! The bytes of a case are those that it has to read and write. Large cases run at the speed of memory if their last
//! column is near 1; small ones show the cost of a call. `loops_torch.py` shows PyTorch's times beside these.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pagelock_tensor::{Result, Tensor, set_num_threads};

/// An operation, and how many bytes it has to move.
struct Case {
    name: &'static str,
    bytes: usize,
    run: Box<dyn Fn() -> Result<()>>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |name: &str| args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1));
    let threads = value_of("--threads").and_then(|n| n.parse().ok()).unwrap_or(1);
    let only = args.iter().find(|arg| !arg.starts_with('-') && arg.parse::<usize>().is_err());
    set_num_threads(threads);

    let mut rows = vec![];
    for case in cases()?.into_iter().filter(|case| only.is_none_or(|name| case.name.contains(name.as_str()))) {
        let (time, copy) = (measure(|| (case.run)())?, measure_copy(case.bytes, threads)?);
        rows.push((case, time, copy));
    }
    if args.iter().any(|arg| arg == "--json") {
        let cases = rows.iter().map(|(case, time, copy)| {
            serde_json::json!({ "name": case.name, "bytes": case.bytes, "seconds": time.as_secs_f64(), "memcpy_seconds": copy.as_secs_f64() })
        });
        println!("{}", serde_json::json!({ "threads": threads, "cases": cases.collect::<Vec<_>>() }));
        return Ok(());
    }
    println!("{:34} {:>10} {:>8} {:>14}   ({threads} threads)", "case", "µs", "GB/s", "memcpy's time");
    for (case, time, copy) in rows {
        let gigabytes = case.bytes as f64 / 1e9 / time.as_secs_f64();
        let ratio = copy.as_secs_f64() / time.as_secs_f64();
        println!("{:34} {:10.2} {gigabytes:8.1} {ratio:14.2}", case.name, time.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// Cases of ten million floats, and of the sizes of a small training step.
fn cases() -> Result<Vec<Case>> {
    const N: usize = 10_000_000;
    let [a, b, out] = [Tensor::rand(N)?, Tensor::rand(N)?, Tensor::zeros(N)?];
    let [matrix, wide] = [Tensor::rand([10_000, 1_000])?, Tensor::rand([100, 100_000])?];
    let narrow = Tensor::rand([1_000_000, 10])?;
    let image = Tensor::rand([100, 32, 56, 56])?;
    let part = Tensor::rand(4_096)?;
    let [row, channel] = [Tensor::rand(1_000)?, Tensor::rand([32, 1, 1])?];
    let [scores, bias, grad] = [Tensor::randn([64, 10])?, Tensor::randn(10)?, Tensor::randn([784, 10])?];
    let mut cases = vec![];
    let mut case = |name, bytes, run: Box<dyn Fn() -> Result<()>>| cases.push(Case { name, bytes, run });
    macro_rules! case {
        ($name:literal, $floats:expr, [$($tensor:ident),+], $run:expr) => {{
            $(let $tensor = $tensor.clone();)+
            case($name, 4 * $floats, Box::new(move || { black_box($run?); Ok(()) }));
        }};
    }
    case!("10M add", 3 * N, [a, b], a.add(&b));
    case!("10M mul", 3 * N, [a, b], a.mul(&b));
    case!("10M mul by a number", 2 * N, [a], a.mul_scalar(2.0));
    case!("10M relu", 2 * N, [a], a.relu());
    case!("10M sqrt", 2 * N, [a], a.sqrt());
    case!("10M exp", 2 * N, [a], a.exp());
    case!("10M log", 2 * N, [a], a.log());
    case!("10M tanh", 2 * N, [a], a.tanh());
    case!("10M sigmoid", 2 * N, [a], a.sigmoid());
    case!("10M add in place", 3 * N, [out, b], out.add_(&b));
    case!("10M add a row", 2 * N, [matrix, row], matrix.add(&row));
    case!("10M add channels", 2 * N, [image, channel], image.add(&channel));
    case!("10M add transposed", 3 * N, [matrix], matrix.t()?.add(&matrix.t()?));
    case!("10M transpose", 2 * N, [matrix], matrix.t()?.contiguous());
    case!("10M channels last", 2 * N, [image], image.permute([0, 2, 3, 1])?.contiguous());
    case!("10M sum", N, [a], a.sum(..));
    case!("10M mean", N, [a], a.mean(..));
    case!("10M max", N, [a], a.max(..));
    case!("10M sum of rows", N, [matrix], matrix.sum(-1));
    case!("10M sum of columns", N, [matrix], matrix.sum(0));
    case!("10M sum of few rows", N, [wide], wide.sum(-1));
    case!("10M sum of many columns", N, [wide], wide.sum(0));
    case!("10M sum of ten columns", N, [narrow], narrow.sum(0));
    case!("10M sum of rows of ten", N, [narrow], narrow.sum(-1));
    case!("10M sum over batch and image", N, [image], image.sum([0, 2, 3]));
    case!("10M max of rows", N, [matrix], matrix.max(-1));
    case!("10M argmax of rows", N, [matrix], matrix.argmax(-1));
    case!("10M softmax of rows", 2 * N, [matrix], matrix.softmax(-1));
    case!("10M log_softmax of rows of ten", 2 * N, [narrow], narrow.log_softmax(-1));
    case!("4k add", 3 * 4_096, [part], part.add(&part));
    case!("4k mul by a number", 2 * 4_096, [part], part.mul_scalar(2.0));
    case!("4k exp", 2 * 4_096, [part], part.exp());
    case!("4k log", 2 * 4_096, [part], part.log());
    case!("4k tanh", 2 * 4_096, [part], part.tanh());
    case!("4k sigmoid", 2 * 4_096, [part], part.sigmoid());
    case!("4k sum", 4_096, [part], part.sum(..));
    case!("4k softmax", 2 * 4_096, [part], part.softmax(-1));
    case!("64x10 add", 3 * 640, [scores], scores.add(&scores));
    case!("64x10 add a row", 2 * 640, [scores, bias], scores.add(&bias));
    case!("64x10 relu", 2 * 640, [scores], scores.relu());
    case!("64x10 sum", 640, [scores], scores.sum(..));
    case!("64x10 sum of columns", 640, [scores], scores.sum(0));
    case!("64x10 argmax of rows", 640, [scores], scores.argmax(-1));
    case!("64x10 softmax", 2 * 640, [scores], scores.softmax(-1));
    case!("64x10 log_softmax", 2 * 640, [scores], scores.log_softmax(-1));
    case!("784x10 add in place", 3 * 7_840, [grad], grad.add_scaled_(&grad, 1e-9));
    Ok(cases)
}

/// The time of one call in the fastest of several batches: the one that other programs disturbed least.
fn measure(run: impl Fn() -> Result<()>) -> Result<Duration> {
    let batch = |calls: u32| -> Result<Duration> {
        let start = Instant::now();
        (0..calls).try_for_each(|_| run())?;
        Ok(start.elapsed() / calls)
    };
    run()?;
    let once = batch(3)?.max(Duration::from_nanos(10));
    let calls = (Duration::from_millis(2).as_nanos() / once.as_nanos()).clamp(1, 100_000) as u32;
    (0..30).try_fold(once, |fastest, _| Ok(fastest.min(batch(calls)?)))
}

/// The time of a `memcpy` on `threads` threads that reads and writes `bytes / 2` bytes each.
fn measure_copy(bytes: usize, threads: usize) -> Result<Duration> {
    let part = bytes / 2 / threads;
    let (from, to) = (vec![1_u8; part * threads], vec![0_u8; part * threads]);
    let to = std::cell::RefCell::new(to);
    measure(|| {
        let mut to = to.borrow_mut();
        if threads == 1 || bytes < 1 << 20 {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
            return Ok(());
        }
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                scope.spawn(|| black_box(to).copy_from_slice(black_box(from)));
            }
        });
        Ok(())
    })
}
