//! Arguments at the edge of what datasets and transforms accept.

use std::sync::Arc;

use pagelock_data::transforms::{Affine, Interpolation, RandomErasing, RandomResizedCrop, Transform, functional as F};
use pagelock_data::{CsvTable, Dataset, Result, Standardize, random_split_fractions};
use pagelock_tensor::{DType, Generator, Int, Tensor};

fn refused<T>(result: Result<T>) -> String {
    result.map(drop).unwrap_err().to_string()
}

#[test]
fn a_constant_column_is_only_shifted_in_every_precision() {
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let x = Tensor::new([[0.1, 1e9], [0.1, 1e9], [0.1, 1e9]]).unwrap();
        let x = x.div(&Tensor::new([1.0, 1e7]).unwrap()).unwrap().to_dtype(dtype).unwrap();
        let standardize = Standardize::fit(&x).unwrap();
        let shifted = standardize.apply(&x.add_scalar(0.5).unwrap()).unwrap().to_vec::<f64>().unwrap();
        assert!(shifted.iter().all(|shifted| (shifted - 0.5).abs() < 0.1), "{dtype}: {shifted:?}");
    }
}

#[test]
fn transforms_refuse_sizes_beyond_memory_and_settings_without_an_inverse() {
    let image = Tensor::zeros([1, 4, 4]).unwrap();
    for wide in [1 << 40, 1 << 61] {
        assert!(F::center_crop(&image, [0, wide]).is_err());
        assert!(F::resize(&Tensor::zeros([0, 4, 4]).unwrap(), [1, wide], Interpolation::Nearest, false).is_err());
    }
    let affine = |affine| F::affine(&image, &affine, Interpolation::Nearest, None);
    assert!(refused(affine(Affine { scale: 0.0, ..Affine::default() })).contains("a scale that is not 0"));
    assert!(affine(Affine { angle: f64::NAN, ..Affine::default() }).is_err());
    assert!(refused(F::rotate(&image, f64::INFINITY, Interpolation::Nearest, true, None)).contains("the angle is inf"));
    let random = Generator::new(1);
    let erasing = RandomErasing { p: 1.0, ratio: 0.0..=1.0, ..RandomErasing::default() };
    assert!(refused(erasing.apply(image.clone(), &random)).contains("the ratio is from 0 to 1"));
    let crop = RandomResizedCrop { ratio: -1.0..=1.0, ..RandomResizedCrop::new([2, 2]) };
    assert!(crop.apply(image, &random).is_err());
}

#[test]
fn a_fill_that_does_not_fit_its_column_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "n,m\n1,2\n,3\n").unwrap();
    let table = CsvTable::open(file.path()).unwrap().fill_missing(0.5);
    let text = refused(table.numbers::<Int>(&["n"]));
    assert!(text.contains("is missing, and 0.5 is not a number of type int64; give `fill_missing` one"), "{text}");
}

#[cfg(all(unix, feature = "images"))]
#[test]
fn a_picture_that_cannot_be_looked_at_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("cats")).unwrap();
    std::os::unix::fs::symlink("nowhere.png", folder.path().join("cats/gone.png")).unwrap();
    assert!(refused(pagelock_data::ImageFolder::open(folder.path()).map(drop)).contains("gone.png"));
}

/// A dataset of numbers.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        Ok(index as i64)
    }
}

#[test]
fn fractions_slightly_above_one_give_no_more_than_there_is() {
    let fractions = [0.500_000_4, 0.500_000_4];
    let numbers = Arc::new(Numbers(10_000_000));
    let [one, other] = random_split_fractions::<Numbers, 2>(numbers, fractions, &Generator::new(1)).unwrap();
    assert_eq!(one.len() + other.len(), 10_000_000);
}
