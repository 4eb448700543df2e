//! How many JPEG pictures one core decodes per second. This is our half of `compare_torch.py pictures`.
//!
//! ```text
//! cargo bench -p pagelock-data --features images --bench pictures -- FOLDER [ROUNDS]
//! ```
//! Prints one JSON object: pictures per second in each round, and the sum of all bytes of all pictures.

use std::time::Instant;

use pagelock_data::{Dataset, ImageFolder, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(folder) = arguments.next() else {
        println!("SKIPPED: name a folder of folders of pictures");
        return Ok(());
    };
    let n_rounds: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(5);
    pagelock_tensor::set_num_threads(1);
    let pictures = ImageFolder::open(folder)?;
    let mut sum = 0;
    for index in 0..pictures.len() {
        sum += pictures.get(index)?.0.to_vec::<u8>()?.into_iter().map(u64::from).sum::<u64>();
    }
    let mut per_second = Vec::new();
    for _round in 0..n_rounds {
        let start = Instant::now();
        for index in 0..pictures.len() {
            std::hint::black_box(pictures.get(index)?);
        }
        per_second.push((pictures.len() as f64 / start.elapsed().as_secs_f64()).to_string());
    }
    println!(r#"{{"program": "Pagelock, images", "sum": {sum}, "per_second": [{}]}}"#, per_second.join(", "));
    Ok(())
}
