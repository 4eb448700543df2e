//! Arguments at the edge of what datasets and transforms accept.

use std::sync::Arc;

use pagelock_data::transforms::{
    Affine, Interpolation, Normalize, RandomErasing, RandomPerspective, RandomResizedCrop, Transform, functional as F,
};
use pagelock_data::{
    BucketSampler, CsvTable, Dataset, DistributedSampler, FixedSampler, Place, RandomSampler, Result, Sampler,
    SequentialSampler, Standardize, SubsetRandomSampler, WeightedSampler, random_split_fractions,
};
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

/// The picture, as it is after the first of the two passes, would take terabytes.
#[test]
fn a_resize_whose_middle_step_is_beyond_memory_is_refused() {
    let tall = Tensor::of(DType::U8).full([1, 4_000_000, 1], 0).unwrap();
    for antialias in [false, true] {
        let text = refused(F::resize(&tall, [1, 4_000_000], Interpolation::Bilinear, antialias));
        assert!(text.contains("cannot take "), "{text}");
    }
}

#[test]
fn a_distortion_scale_outside_0_to_1_is_refused() {
    let image = Tensor::zeros([1, 8, 8]).unwrap();
    for distortion_scale in [f64::INFINITY, f64::NAN, -0.5, 1.5] {
        for p in [0.0, 1.0] {
            let perspective = RandomPerspective { distortion_scale, p, ..RandomPerspective::default() };
            let text = refused(perspective.apply(image.clone(), &Generator::new(1)));
            let problem = format!("the distortion scale is {distortion_scale}, but must be from 0 to 1");
            assert_eq!(text, format!("random_perspective: {problem}"));
        }
    }
    for distortion_scale in [0.0, 1.0] {
        let perspective = RandomPerspective { distortion_scale, p: 1.0, ..RandomPerspective::default() };
        assert!(perspective.apply(image.clone(), &Generator::new(1)).is_ok());
    }
}

#[test]
fn a_standard_deviation_of_0_or_not_finite_is_refused() {
    let image = Tensor::zeros([2, 4, 4]).unwrap();
    for std in [0.0, -0.0, f32::NAN, f32::INFINITY] {
        let normalize = Normalize { mean: [0.5; 2], std: [0.25, std] };
        assert_eq!(
            refused(normalize.apply(image.clone(), &Generator::new(0))),
            format!("normalize: the standard deviations are [0.25, {std:?}], but each must be finite and not 0")
        );
    }
}

#[test]
fn weights_below_the_smallest_normal_number_are_drawn_in_proportion() {
    let draws = |weights: &[f64]| {
        let mut indices = vec![0; 4_000];
        let sampler = WeightedSampler::new(weights.iter().copied(), indices.len(), 3).unwrap();
        sampler.fill(Place { epoch: 0, position: 0, n_samples: weights.len() }, &mut indices);
        indices
    };
    let smallest = 5e-324;
    assert_eq!(draws(&[smallest, 0.0, 0.0, 0.0]), [0; 4_000]);
    assert_eq!(draws(&[0.0, smallest, 0.0, 3.0 * smallest]), draws(&[0.0, 1.0, 0.0, 3.0]));
}

#[test]
fn a_position_past_the_end_of_an_order_has_an_index_that_no_dataset_has() {
    let index = |sampler: &dyn Sampler, position, n_samples| {
        let mut indices = [0; 3];
        sampler.fill(Place { epoch: 1, position, n_samples }, &mut indices);
        indices
    };
    let samplers: [(&dyn Sampler, usize); 5] = [
        (&SequentialSampler, 5),
        (&RandomSampler::new(3), 5),
        (&SubsetRandomSampler::new([0, 1], 3).unwrap(), 2),
        (&FixedSampler::new([0, 1]).unwrap(), 2),
        (&BucketSampler::new(&[1, 2, 3], 2, 3).unwrap(), 3),
    ];
    for (sampler, len) in samplers {
        for position in [len, len + 1, 1_000, usize::MAX] {
            let indices = index(sampler, position, 5);
            assert!(indices.iter().all(|&index| index >= 5), "{}: {indices:?}", sampler.identity());
        }
        index(sampler, 0, 0);
    }
    let none = DistributedSampler::new(RandomSampler::new(3), 1, 2).unwrap();
    assert_eq!(index(&none, 0, 0), [0; 3]);
    let endless = WeightedSampler::new([0.0, 1.0], usize::MAX, 3).unwrap();
    assert_eq!(index(&DistributedSampler::new(endless, 1, 2).unwrap(), usize::MAX / 2, 2), [1; 3]);
    for sampler in [SubsetRandomSampler::new([], 3), SubsetRandomSampler::new([7], 3)].map(Result::unwrap) {
        assert!(index(&sampler, 1, 5).iter().all(|&index| index >= 5));
    }
}

#[test]
fn a_column_is_found_by_the_name_in_the_header_with_and_without_spaces() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "length, width,width \n1,2,3\n").unwrap();
    let table = CsvTable::open(file.path()).unwrap();
    let value = |name: &str| table.column::<Int>(name).unwrap().item::<i64>().unwrap();
    let names: Vec<i64> = table.names().iter().map(|name| value(name)).collect();
    assert_eq!((names, value("width")), (vec![1, 2, 3], 2));
    assert!(refused(table.column::<Int>("height")).contains("it has no column `height`"));
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

#[test]
fn quarter_turns_keep_every_pixel() {
    let image = Tensor::new([[[1, 2, 3], [4, 5, 6]]]).unwrap().to_dtype(DType::U8).unwrap();
    let turned = |angle| {
        let turned = F::rotate(&image, angle, Interpolation::Nearest, true, None).unwrap();
        (turned.dims().to_vec(), turned.to_vec::<u8>().unwrap())
    };
    assert_eq!(turned(90.0), (vec![1, 3, 2], vec![3, 6, 2, 5, 1, 4]));
    assert_eq!(turned(-90.0), (vec![1, 3, 2], vec![4, 1, 5, 2, 6, 3]));
    assert_eq!(turned(270.0), turned(-90.0));
    assert_eq!(turned(180.0), (vec![1, 2, 3], vec![6, 5, 4, 3, 2, 1]));
    assert_eq!(turned(720.0), (vec![1, 2, 3], vec![1, 2, 3, 4, 5, 6]));
}
