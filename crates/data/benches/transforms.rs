//! How long transforms of a photo take on one core. This is our half; torchvision's is `transforms.py` in this folder.
//!
//! ```text
//! cargo bench -p pagelock-data --bench transforms; python crates/data/benches/transforms.py
//! ```
//! Prints a line for each transform: the least and the median time of a call, in milliseconds. Run both alternately.

use std::hint::black_box;
use std::time::Instant;

use pagelock_data::Result;
use pagelock_data::transforms::{RandomResizedCrop, Resize, Transform};
use pagelock_tensor::{Generator, Int, Tensor};

fn main() -> Result<()> {
    pagelock_tensor::set_num_threads(1);
    let random = Generator::new(7);
    let bytes: Vec<u8> = (0..3 * 375 * 500).map(|_| (random.next_u64() >> 56) as u8).collect();
    let photo = Tensor::from_slice(&bytes, [3, 375, 500])?;
    let resize = Resize::new([224, 224]);
    let crop = RandomResizedCrop::new([224, 224]);
    time("Resize 224 bilinear", &mut || resize.apply(photo.clone(), &random))?;
    time("RandomResizedCrop 224", &mut || crop.apply(photo.clone(), &random))
}

fn time(name: &str, work: &mut dyn FnMut() -> Result<Tensor<Int>>) -> Result<()> {
    let mut times = Vec::new();
    for _round in 0..300 {
        let start = Instant::now();
        black_box(work()?);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{name:<24}{:>8.3} ms least {:>8.3} ms median", times[0], times[times.len() / 2]);
    Ok(())
}
