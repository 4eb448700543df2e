//! Pictures of clothes: Fashion-MNIST if its files are there, else generated digits of the same shape.

use std::path::Path;

use anyhow::Result;
use pagelock::data::Origin;
use pagelock::prelude::*;

use super::options::Options;

const CLOTHES: [&str; 10] =
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle Boot"];
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// The first test labels of Fashion-MNIST. They distinguish it from MNIST, whose files have the same names.
const FIRST_CLOTHES: [u8; 5] = [9, 2, 1, 1, 6];

/// Pictures `[1, 28, 28]` and the names of their ten classes. Prints the name of the data set. Downloads nothing.
pub(crate) fn open(options: &Options) -> Result<(DigitSet, [&'static str; 10])> {
    let generated = || {
        let (train, test) = (options.pick(3_072, 60_000), options.pick(512, 10_000));
        Ok(SyntheticDigits::new(options.seed).train_len(train).test_len(test).generate()?)
    };
    let mut set = find(options.data.as_deref(), Mnist::new().offline(true), generated)?;
    if options.quick {
        set.train = set.train.slice(0..set.train.len().min(2_560))?;
        set.test = set.test.slice(0..set.test.len().min(512))?;
    }
    println!("{set}");
    let classes = classes(&set);
    Ok((set, classes))
}

/// Opens `folder` as Fashion-MNIST if it has that data set, else as `mnist`. Without a folder, opens Fashion-MNIST if
/// its files are in the usual place, else returns `otherwise()`.
pub(crate) fn find(
    folder: Option<&Path>,
    mnist: Mnist,
    otherwise: impl FnOnce() -> Result<DigitSet>,
) -> Result<DigitSet> {
    let fashion = Mnist::fashion().offline(true);
    let Some(folder) = folder else { return fashion.open().or_else(|_| otherwise()) };
    match fashion.folder(folder).open() {
        Ok(fashion) if fashion.test.label_bytes().starts_with(&FIRST_CLOTHES) => Ok(fashion),
        _ => Ok(mnist.folder(folder).open()?),
    }
}

/// The names of the ten classes.
pub(crate) fn classes(set: &DigitSet) -> [&'static str; 10] {
    if matches!(set.origin, Origin::Fashion { .. }) { CLOTHES } else { DIGITS }
}
