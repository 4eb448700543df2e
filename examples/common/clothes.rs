//! Pictures of clothes: Fashion-MNIST where it is, else generated digits, which have the same form.

use std::path::Path;

use anyhow::Result;
use pagelock::data::Origin;
use pagelock::prelude::*;

use super::options::Options;

const CLOTHES: [&str; 10] =
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle Boot"];
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// How Fashion-MNIST's labels to test with begin; the files of MNIST have the same names.
const FIRST_CLOTHES: [u8; 5] = [9, 2, 1, 1, 6];

/// Pictures `[1, 28, 28]` with the names of their ten classes; prints what they are. Nothing is downloaded.
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

/// A folder that was named has Fashion-MNIST, or else `mnist`. Without one it is Fashion-MNIST where that is, or `otherwise`.
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
