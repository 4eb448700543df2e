//! Generated digits, split and shuffled into batches.
use pagelock_data::{DataLoader, SyntheticDigits, TensorDataset};

fn main() -> pagelock_data::Result<()> {
    let digits = SyntheticDigits::new(42).train_len(600).test_len(100).generate()?;
    let train_ds = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
    let train_dl = DataLoader::new(train_ds).batch_size(64).shuffle(1);
    let sizes = train_dl.iter().map(|batch| Ok(batch?.1.len())).collect::<pagelock_data::Result<Vec<_>>>()?;
    assert_eq!(sizes.iter().sum::<usize>(), digits.train.len());
    println!("{digits}: batches of {sizes:?}");
    Ok(())
}
