//! Compares transforms with torchvision's, and checks that random transforms are the same for any number of workers
//! and after a restart.

use std::path::Path;

use pagelock_tensor::{AnyTensor, DType, Device, Float, Generator, Int, Tensor, TensorFile};

use super::policies::{CHANGES, Change, Strengths};
use super::*;
use super::{augment, color, crop, filters, geometry, resize};
use crate::{DataLoader, Dataset, LoaderState, TensorDataset};

type Case = (String, Box<dyn Fn(&AnyTensor) -> Result<AnyTensor>>);

const BY: [Interpolation; 3] = [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic];

fn name_of(interpolation: Interpolation) -> String {
    format!("{interpolation:?}").to_lowercase()
}

fn case(name: impl Into<String>, f: impl Fn(&AnyTensor) -> Result<AnyTensor> + 'static) -> Case {
    (name.into(), Box::new(f))
}

/// The value of the brightest pixel.
fn bright(image: &AnyTensor) -> f64 {
    if image.dtype() == DType::U8 { 255.0 } else { 1.0 }
}

/// The cases of `tests/transforms/make.py`.
fn cases() -> Vec<Case> {
    let window = |top, left, height, width| Window { top, left, height, width };
    let mut cases = vec![
        case("resize_shorter", |x| resize::resize(x, Size::Shorter(6), BY[1], true)),
        case("resized_crop", move |x| resize::resized_crop(x, window(1, 2, 7, 6), [5, 8], BY[1], true)),
        case("crop", move |x| crop::crop(x, window(2, 3, 4, 5))),
        case("center_crop", |x| crop::center_crop(x, [4, 6])),
        case("center_crop_larger", |x| crop::center_crop(x, [12, 6])),
        case("horizontal_flip", crop::horizontal_flip),
        case("vertical_flip", crop::vertical_flip),
        case("rgb_to_grayscale", |x| color::rgb_to_grayscale(x, 1)),
        case("invert", color::invert),
        case("posterize", |x| color::posterize(x, 3)),
        case("solarize", |x| color::solarize(x, 0.6 * bright(x))),
        case("autocontrast", color::autocontrast),
        case("equalize", color::equalize),
        case("gaussian_blur", |x| filters::gaussian_blur(x, [3, 5], 1.1)),
        case("erase", move |x| augment::erase(x, window(2, 3, 4, 5), (0.25 * bright(x) * 4.0).floor() / 4.0)),
    ];
    add_sizes_and_turns(&mut cases);
    add_colors(&mut cases);
    add_changes(&mut cases);
    cases
}

fn add_sizes_and_turns(cases: &mut Vec<Case>) {
    for (size_name, size) in [("down", [4, 5]), ("up", [20, 17]), ("mixed", [5, 23])] {
        cases.push(case(format!("resize_nearest_{size_name}"), move |x| resize::resize(x, size.into(), BY[0], true)));
        for (by, antialias) in [(BY[1], true), (BY[1], false), (BY[2], true), (BY[2], false)] {
            let name = format!("resize_{}_{size_name}_{antialias}", name_of(by));
            cases.push(case(name, move |x| resize::resize(x, size.into(), by, antialias)));
        }
    }
    for mode in [PaddingMode::Constant, PaddingMode::Edge, PaddingMode::Reflect, PaddingMode::Symmetric] {
        let name = format!("pad_{mode:?}").to_lowercase();
        cases.push(case(name, move |x| crop::pad(x, [2, 3, 4, 1], 0.0, mode)));
    }
    for by in [BY[0], BY[1]] {
        let turned = Affine { angle: 17.3, translate: [1.3, -2.1], scale: 0.83, shear: [5.0, -7.0], center: None };
        let sheared = Affine { shear: [13.7, 0.0], center: Some([0.0; 2]), ..Affine::default() };
        let start = [[0.0, 0.0], [10.0, 0.0], [10.0, 8.0], [0.0, 8.0]];
        let end = [[1.3, 2.1], [9.2, 0.4], [9.9, 7.1], [2.2, 7.7]];
        let name = name_of(by);
        cases.push(case(format!("affine_{name}"), move |x| geometry::affine(x, &turned, by, Some(0.0))));
        cases.push(case(format!("affine_center_{name}"), move |x| geometry::affine(x, &sheared, by, Some(bright(x)))));
        cases.push(case(format!("rotate_{name}"), move |x| geometry::rotate(x, 33.7, by, false, None)));
        cases.push(case(format!("rotate_expand_{name}"), move |x| geometry::rotate(x, 33.7, by, true, None)));
        cases.push(case(format!("perspective_{name}"), move |x| geometry::perspective(x, &start, &end, by, None)));
    }
}

fn add_colors(cases: &mut Vec<Case>) {
    for factor in [0.3, 1.7] {
        cases.push(case(format!("adjust_brightness_{factor}"), move |x| color::adjust_brightness(x, factor)));
        cases.push(case(format!("adjust_contrast_{factor}"), move |x| color::adjust_contrast(x, factor)));
        cases.push(case(format!("adjust_saturation_{factor}"), move |x| color::adjust_saturation(x, factor)));
        cases.push(case(format!("adjust_sharpness_{factor}"), move |x| filters::adjust_sharpness(x, factor)));
    }
    for factor in [-0.3, 0.1, 0.5] {
        cases.push(case(format!("adjust_hue_{factor}"), move |x| color::adjust_hue(x, factor)));
    }
}

/// Adds each change, with a medium strength and the sign -1.
fn add_changes(cases: &mut Vec<Case>) {
    let planes = image::Planes { channels: 3, height: 9, width: 11 };
    for change in CHANGES.into_iter().chain([Change::Invert]) {
        let sampling = (BY[1], None);
        let strengths = [
            ("AutoAugment", Strengths::of_auto_augment(planes, sampling), 7.0 / 9.0),
            ("TrivialAugmentWide", Strengths::of_trivial_augment(sampling), 4.0 / 30.0),
            ("AugMix", Strengths::of_aug_mix(planes, sampling), 2.0 / 9.0),
        ];
        for (of, strengths, part) in strengths {
            let is_in = match of {
                "AutoAugment" => change != Change::Identity,
                "TrivialAugmentWide" => change != Change::Invert,
                _ => ![Change::Identity, Change::Invert].contains(&change),
            };
            if is_in {
                cases.push(case(format!("{of}_{change:?}"), move |x| strengths.changed(x, change, part, -1.0)));
            }
        }
    }
}

#[test]
fn the_pairs_of_auto_augment_are_torchvisions() {
    let golden = include_str!("../../tests/transforms/policies.txt");
    let policies = [
        ("IMAGENET", AutoAugmentPolicy::ImageNet),
        ("CIFAR10", AutoAugmentPolicy::Cifar10),
        ("SVHN", AutoAugmentPolicy::Svhn),
    ];
    let lines = policies.into_iter().flat_map(|(name, policy)| {
        policy.pairs().iter().map(move |pair| {
            let [first, second] = pair.map(|(change, tenths, ninths)| format!("{change:?} {tenths} {ninths}"));
            format!("{name} {first} {second}")
        })
    });
    assert_eq!(lines.collect::<Vec<_>>(), golden.lines().collect::<Vec<_>>());
}

/// What is wrong with `made`, if it is not what torchvision made: bytes within 1, floats within 1e-5.
fn difference(made: &AnyTensor, golden: &AnyTensor) -> Option<String> {
    if (made.dtype(), made.dims()) != (golden.dtype(), golden.dims()) {
        return Some(format!("{} of {} and not {} of {}", made.shape(), made.dtype(), golden.shape(), golden.dtype()));
    }
    let values = |image: &AnyTensor| -> Vec<f64> {
        match image.dtype() {
            DType::U8 => image.int().unwrap().to_vec::<i64>().unwrap().into_iter().map(|byte| byte as f64).collect(),
            _ => image.float().unwrap().to_vec().unwrap(),
        }
    };
    let tolerance = if made.dtype() == DType::U8 { 1.0 } else { 1e-5 };
    let (made, golden) = (values(made), values(golden));
    let wrong = (0..made.len()).filter(|&at| (made[at] - golden[at]).abs() > tolerance || made[at].is_nan());
    let wrong: Vec<usize> = wrong.collect();
    let first = *wrong.first()?;
    Some(format!("{} of {} differ: at {first} is {} and not {}", wrong.len(), made.len(), made[first], golden[first]))
}

#[test]
fn pictures_become_what_torchvision_makes_of_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transforms/golden.safetensors");
    let file = TensorFile::open(path).unwrap();
    let golden = |name: &str| file.get_any(name, &Device::Cpu).unwrap();
    let mut wrong = Vec::new();
    let mut compare = |name: String, made: Result<AnyTensor>| {
        let problem = made.map_or_else(|error| Some(error.to_string()), |made| difference(&made, &golden(&name)));
        wrong.extend(problem.map(|problem| format!("{name}: {problem}")));
    };
    let cases = cases();
    for kind in ["bytes", "floats"] {
        for (name, f) in &cases {
            compare(format!("{kind}/{name}"), f(&golden(kind)));
        }
    }
    compare("large/equalize".into(), color::equalize(&golden("large")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(file.len(), 4 + 2 * cases.len(), "every golden picture is compared");
}

/// All random transforms, which change pictures of bytes, `[3, 9, 11]`.
fn random_transforms() -> Vec<(&'static str, Box<dyn Transform<Tensor<Int>, Out = Tensor<Int>> + Send + Sync>)> {
    let p = 0.5;
    vec![
        ("RandomCrop", Box::new(RandomCrop { padding: 4, ..RandomCrop::new([9, 11]) })),
        ("RandomHorizontalFlip", Box::new(RandomHorizontalFlip { p })),
        ("RandomVerticalFlip", Box::new(RandomVerticalFlip { p })),
        ("RandomResizedCrop", Box::new(RandomResizedCrop::new([9, 11]))),
        ("RandomRotation", Box::new(RandomRotation::new(30.0))),
        ("RandomAffine", Box::new(RandomAffine { translate: [0.2, 0.2], scale: 0.8..=1.2, ..RandomAffine::new(30.0) })),
        ("RandomPerspective", Box::new(RandomPerspective::default())),
        ("ColorJitter", Box::new(ColorJitter::new(0.4, 0.4, 0.4, 0.1))),
        ("RandomGrayscale", Box::new(RandomGrayscale { p })),
        ("RandomInvert", Box::new(RandomInvert { p })),
        ("RandomPosterize", Box::new(RandomPosterize { bits: 3, p })),
        ("RandomSolarize", Box::new(RandomSolarize { threshold: 128.0, p })),
        ("RandomAdjustSharpness", Box::new(RandomAdjustSharpness { sharpness_factor: 2.0, p })),
        ("RandomAutocontrast", Box::new((RandomAutocontrast { p }, RandomPosterize { bits: 4, p: 1.0 }))),
        ("RandomEqualize", Box::new((RandomInvert { p }, RandomEqualize { p }))),
        ("GaussianBlur", Box::new(GaussianBlur::new([3, 5]))),
        ("RandAugment", Box::new(RandAugment { num_ops: 4, ..RandAugment::default() })),
        ("AutoAugment", Box::new(AutoAugment::default())),
        ("TrivialAugmentWide", Box::new(TrivialAugmentWide::default())),
        ("AugMix", Box::new(AugMix::default())),
        ("RandomErasing", Box::new(RandomErasing { p, ..RandomErasing::default() })),
        ("RandomApply", Box::new(RandomApply { transform: (RandomInvert { p: 1.0 },), p })),
        (
            "RandomChoice",
            Box::new(RandomChoice::new(vec![
                Box::new(RandomInvert { p: 1.0 }),
                Box::new(RandomHorizontalFlip { p: 1.0 }),
            ])),
        ),
        (
            "RandomOrder",
            Box::new(RandomOrder::new(vec![
                Box::new(RandomSolarize { threshold: 100.0, p: 1.0 }),
                Box::new(RandomPosterize { bits: 2, p: 1.0 }),
            ])),
        ),
    ]
}

/// 12 pictures of noise.
fn pictures() -> TensorDataset<Tensor<Int>> {
    let bytes: Vec<u8> = (0..12 * 3 * 9 * 11_u64).map(|at| (Generator::new(at).next_u64() >> 56) as u8).collect();
    TensorDataset::new(Tensor::from_slice(&bytes, [12, 3, 9, 11]).unwrap()).unwrap()
}

fn bytes_of_epoch(loader: &DataLoader<Tensor<Int>>) -> Vec<Vec<u8>> {
    loader.iter().map(|batch| batch.unwrap().to_vec().unwrap()).collect()
}

#[test]
fn what_a_transform_draws_depends_on_seed_epoch_and_index_alone() {
    for (name, transform) in random_transforms() {
        let transform = std::sync::Arc::new(transform);
        let loader = |n_workers| {
            let transform = transform.clone();
            let dataset = pictures().transform(5, move |image, random| transform.apply(image, random));
            DataLoader::new(dataset).batch_size(4).shuffle(1).num_workers(n_workers)
        };
        let alone = loader(0);
        let epochs = [bytes_of_epoch(&alone), bytes_of_epoch(&alone)];
        let pooled = loader(2);
        assert_eq!([bytes_of_epoch(&pooled), bytes_of_epoch(&pooled)], epochs, "{name}: with workers");

        alone.set_epoch(1);
        alone.iter().take(1).for_each(drop);
        let state: LoaderState = alone.state().to_string().parse().unwrap();
        let resumed = loader(2);
        resumed.resume(state).unwrap();
        assert_eq!(bytes_of_epoch(&resumed), epochs[1][1..], "{name}: resumed");

        let sorted = |epoch: &[Vec<u8>]| {
            let mut pictures: Vec<&[u8]> = epoch.iter().flat_map(|batch| batch.chunks(3 * 9 * 11)).collect();
            pictures.sort_unstable();
            pictures.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        assert_ne!(sorted(&epochs[0]), sorted(&epochs[1]), "{name}: epochs differ");
    }
}

#[test]
fn what_a_batch_draws_depends_on_seed_epoch_and_place_alone() {
    let loader = |n_workers| {
        let pairs = pictures().transform(0, |image, _| Ok((ToFloat.apply(image, &Generator::new(0))?, 1_i64)));
        let mixes = (MixUp::new(3), CutMix::new(3));
        DataLoader::new(pairs).batch_size(4).num_workers(n_workers).transform(9, move |(x, y), random| {
            let (x, y) =
                if random.next_f64() < 0.5 { mixes.0.apply((x, y), random)? } else { mixes.1.apply((x, y), random)? };
            Ok((x, y))
        })
    };
    let epoch = |loader: &DataLoader<(Tensor, Tensor)>| -> Vec<Vec<f32>> {
        loader.iter().map(|batch| batch.unwrap().0.to_vec().unwrap()).collect()
    };
    let (alone, pooled) = (loader(0), loader(2));
    let epochs = [epoch(&alone), epoch(&alone)];
    assert_eq!([epoch(&pooled), epoch(&pooled)], epochs);
    assert_ne!(epochs[0], epochs[1]);
    pooled.set_epoch(1);
    pooled.iter().take(2).for_each(drop);
    let resumed = loader(0);
    resumed.resume(pooled.state()).unwrap();
    assert_eq!(epoch(&resumed), epochs[1][2..]);
}

#[test]
fn settings_out_of_range_are_refused_with_what_is_wanted() {
    let image = Tensor::from_slice(&[0_u8; 27], [3, 3, 3]).unwrap();
    let longs = Tensor::full([3, 3, 3], 7).unwrap();
    let window = Window { top: 1, left: 1, height: 3, width: 1 };
    let text = |made: Result<Tensor<Int>>| made.unwrap_err().to_string();
    let by = Interpolation::Bilinear;
    for (made, expected) in [
        (
            functional::crop(&image, window),
            "crop: the image is [3, 3, 3], but Window { top: 1, left: 1, height: 3, width: 1 } is not within it",
        ),
        (
            functional::pad(&image, [3, 0, 0, 0], 0.0, PaddingMode::Reflect),
            "pad: the image is [3, 3, 3], but padding of mode Reflect cannot exceed it",
        ),
        (functional::pad(&image, [usize::MAX, 0, 0, 0], 0.0, PaddingMode::Edge), "is too wide"),
        (functional::center_crop(&image, [usize::MAX, 1]), "is larger than any memory"),
        (functional::resize(&image, [0, 4], by, true), "cannot become 0 x 4"),
        (functional::resize(&image, usize::MAX, by, true), "is larger than any memory"),
        (
            functional::resize(&longs, [4, 4], by, true),
            "resize: the image is int64, but pixels must be uint8 or floats",
        ),
        (
            functional::rotate(&image, 1.0, Interpolation::Bicubic, false, None),
            "rotate: only Nearest and Bilinear are supported",
        ),
        (functional::perspective(&image, &[[0.0; 2]; 4], &[[0.0; 2]; 4], by, None), "do not define a perspective"),
        (functional::adjust_hue(&image, 0.7), "adjust_hue: the factor is 0.7"),
        (functional::adjust_contrast(&image, -1.0), "adjust_contrast: the factor is -1"),
        (functional::posterize(&image, 9), "posterize: bits is 9, but a byte has only 8"),
        (functional::gaussian_blur(&image, [4, 3], 1.0), "the kernel [4, 3] must have odd sizes"),
        (functional::gaussian_blur(&image, [3, 3], 0.0), "gaussian_blur: sigma is 0"),
        (
            RandAugment { magnitude: 31, ..RandAugment::default() }.apply(image.clone(), &Generator::new(0)),
            "the magnitude is 31 of 31",
        ),
        (
            TrivialAugmentWide { num_magnitude_bins: 0, ..TrivialAugmentWide::default() }
                .apply(image.clone(), &Generator::new(0)),
            "num_magnitude_bins is 0; give at least 1",
        ),
        (AugMix { severity: 11, ..AugMix::default() }.apply(image.clone(), &Generator::new(0)), "severity is 11"),
        (
            AugMix { mixture_width: usize::MAX, ..AugMix::default() }.apply(image.clone(), &Generator::new(0)),
            "aug_mix: mixture_width is 18446744073709551615; give one from 1 to 100",
        ),
        (
            AugMix { chain_depth: Some(usize::MAX), ..AugMix::default() }.apply(image.clone(), &Generator::new(0)),
            "aug_mix: chain_depth is 18446744073709551615; give one from 0 to 100",
        ),
        (
            RandAugment { num_ops: usize::MAX, ..RandAugment::default() }.apply(image.clone(), &Generator::new(0)),
            "rand_augment: num_ops is 18446744073709551615; give one from 0 to 100",
        ),
        (AugMix { mixture_width: 0, ..AugMix::default() }.apply(image.clone(), &Generator::new(0)), "width is 0"),
        (AugMix { alpha: 0.0, ..AugMix::default() }.apply(image.clone(), &Generator::new(0)), "aug_mix: alpha is 0"),
    ] {
        let text = text(made);
        assert!(text.contains(expected), "`{expected}` is not in: {text}");
    }
    let two = Tensor::zeros([2, 3, 3]).unwrap();
    let refused = functional::adjust_brightness::<Float>(&two, 1.0).unwrap_err().to_string();
    assert_eq!(refused, "adjust_brightness: the image is [2, 3, 3], but it must have 1 or 3 channels");
}

#[test]
fn the_weights_of_a_mixed_picture_have_the_sum_1() {
    // Chains without changes: the weights have the sum 1.
    let photo = Tensor::from_slice(&[100_u8; 75], [3, 5, 5]).unwrap();
    let mix = AugMix { chain_depth: Some(0), ..AugMix::default() };
    for seed in 0..20 {
        let mixed = mix.apply(photo.clone(), &Generator::new(seed)).unwrap();
        assert_eq!(mixed.to_vec::<u8>().unwrap(), [100; 75], "seed {seed}");
    }
}

#[test]
fn pictures_of_nothing_stay_pictures_of_nothing() {
    let none = Tensor::from_slice(&[0_u8; 0], [3, 0, 5]).unwrap();
    for (name, transform) in random_transforms() {
        // Either nothing, or a refusal.
        if let Ok(made) = transform.apply(none.clone(), &Generator::new(1)) {
            assert!(name == "RandomCrop" || made.is_empty(), "{name}: {}", made.shape());
        }
    }
}
