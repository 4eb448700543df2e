use pagelock_data::{DataLoader, Result, Stack, TensorDataset};
use pagelock_tensor::Tensor;

struct SimpleCustomBatch {
    inp: Tensor,
}

fn main() -> Result<()> {
    let dataset = TensorDataset::new(Tensor::zeros([10, 5])?)?;
    let collate = |samples: Vec<Tensor>| Ok(SimpleCustomBatch { inp: Stack::stack(samples)? });
    for sample in &DataLoader::with_collate(dataset, collate).batch_size(2).pin_memory(true) {
        println!("{}", sample?.inp.is_pinned());
    }
    Ok(())
}
