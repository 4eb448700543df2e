//! Pictures of clothes: Fashion-MNIST where it is, else generated digits, which have the same form.

use anyhow::Result;
use pagelock::data::Origin;
use pagelock::prelude::*;

use super::options::Options;

const CLOTHES: [&str; 10] =
    ["T-Shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle Boot"];
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// How Fashion-MNIST's labels to test with begin; the files of MNIST have the same names.
const FIRST_CLOTHES: [u8; 5] = [9, 2, 1, 1, 6];

/// Pictures `[1, 28, 28]` with the names of their ten classes; prints what they are.
pub(crate) fn open(options: &Options) -> Result<(DigitSet, [&'static str; 10])> {
    let mut set = find(options)?;
    if options.quick {
        set.train = set.train.slice(0..set.train.len().min(2_560))?;
        set.test = set.test.slice(0..set.test.len().min(512))?;
    }
    println!("{set}");
    let classes = if matches!(set.origin, Origin::Fashion { .. }) { CLOTHES } else { DIGITS };
    Ok((set, classes))
}

/// A folder that was named has Fashion-MNIST or MNIST. Nothing is downloaded.
fn find(options: &Options) -> Result<DigitSet> {
    let Some(folder) = &options.data else {
        let generated = || {
            let (train, test) = (options.pick(3_072, 60_000), options.pick(512, 10_000));
            SyntheticDigits::new(options.seed).train_len(train).test_len(test).generate()
        };
        return Ok(Mnist::fashion().offline(true).open().or_else(|_| generated())?);
    };
    let fashion = Mnist::fashion().folder(folder).offline(true).open();
    match fashion {
        Ok(fashion) if fashion.test.label_bytes().starts_with(&FIRST_CLOTHES) => Ok(fashion),
        _ => Ok(Mnist::new().folder(folder).offline(true).open()?),
    }
}
