//! The cost of moving a thousand tensors at once: copying their bytes, and making a thousand handles.
//!
//! ```sh
//! cargo bench -p pagelock-tensor --bench many              # of some bytes, and of 4 kB
//! cargo bench -p pagelock-tensor --bench many -- --large   # of 4 MB
//! cargo bench -p pagelock-tensor --bench many -- all_to    # only the rows with this in their names
//! ```
//! Without a GPU, a software device stands in. The times of its copies mean nothing, but short tensors still show the
//! cost of the handles. Times are in microseconds for all tensors together: the median and the minimum until
//! everything has arrived, the median of dropping the result, and the median of both, which the guide to page-locked
//! memory also measures.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use pagelock_cuda as cuda;
use pagelock_cuda::software::{Config, Execution};
use pagelock_tensor::{Device, Tensor, TensorMap};

const N: usize = 1_000;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let cuda = match cuda::Device::cuda(0) {
        Ok(device) => device,
        Err(_) => cuda::Device::software(Config { execution: Execution::Threads(1), ..Default::default() })?,
    };
    println!("{}, {N} tensors", cuda.properties().name);
    println!("{:>12} {:42} {:>9} {:>9} {:>9} {:>9}", "floats each", "", "median", "least", "dropping", "both");
    if std::env::args().any(|argument| argument == "--large") {
        return measure(&cuda, 1_000_000, 10);
    }
    measure(&cuda, 16, 200)?;
    measure(&cuda, 1_000, 200)
}

fn measure(cuda: &cuda::Device, len: usize, runs: usize) -> Result<()> {
    let (gpu, stream) = (Device::try_from(cuda)?, cuda.stream()?);
    let tensors = (0..N).map(|i| Tensor::full([len], i as f32)).collect::<Result<Vec<_>, _>>()?;
    let slices: Vec<Vec<f32>> = (0..N).map(|i| vec![i as f32; len]).collect();
    let slices: Vec<&[f32]> = slices.iter().map(|slice| &slice[..]).collect();
    let mut map = TensorMap::new([len])?;
    for (i, tensor) in tensors.iter().enumerate() {
        map.set(&format!("tensor {i}"), tensor.clone())?;
    }

    let row = Row { len, runs };
    let mut kept = slices.iter().map(|slice| stream.allocate::<f32>(slice.len())).collect::<Result<Vec<_>, _>>()?;
    row.measure("stream.upload_each to what is there", || {
        stream.upload_each(slices.iter().copied().zip(&mut kept))?;
        Ok(stream.synchronize()?)
    })?;
    drop(kept);
    row.measure("stream.upload_packed(&slices)", || {
        let packed = stream.upload_packed(&slices)?;
        stream.synchronize()?;
        Ok(packed)
    })?;
    row.measure("Tensor::all_to(&tensors, &gpu)", || {
        let moved = Tensor::all_to(&tensors, &gpu)?;
        gpu.synchronize()?;
        Ok(moved)
    })?;
    row.measure("map.to(&gpu)", || {
        let moved = map.to(&gpu)?;
        gpu.synchronize()?;
        Ok(moved)
    })?;
    let there = Tensor::all_to(&tensors, &gpu)?;
    row.measure("Tensor::all_to(&there, &cpu)", || Ok(Tensor::all_to(&there, &Device::Cpu)?))
}

struct Row {
    len: usize,
    runs: usize,
}

impl Row {
    fn measure<T>(&self, name: &str, mut work: impl FnMut() -> Result<T>) -> Result<()> {
        let (len, runs, warm) = (self.len, self.runs, 3);
        if !std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).all(|only| name.contains(&only)) {
            return Ok(());
        }
        let [mut making, mut dropping, mut both] = [(); 3].map(|()| Vec::with_capacity(runs));
        for run in 0..runs + warm {
            let start = Instant::now();
            let made = black_box(work()?);
            let made_at = Instant::now();
            drop(made);
            if run >= warm {
                making.push((made_at - start).as_secs_f64() * 1e6);
                dropping.push(made_at.elapsed().as_secs_f64() * 1e6);
                both.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        [&mut making, &mut dropping, &mut both].iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let [median, dropping, both] = [&making, &dropping, &both].map(|times| times[runs / 2]);
        println!("{len:12} {name:42} {median:9.1} {:9.1} {dropping:9.1} {both:9.1}", making[0]);
        Ok(())
    }
}
