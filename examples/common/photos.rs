//! Small color pictures of ten classes: CIFAR-10 if its files are there, else drawn shapes and textures.
//!
//! A drawn picture shows the shape of its class in a random color, position, size and angle. The background is a
//! gradient of another color, and everything has noise. A picture depends only on the seed and its number, and is the
//! same on every machine.

use anyhow::Result;
use pagelock::data::{Cifar, CifarFiles};
use pagelock::prelude::*;

use super::options::Options;

const THINGS: [&str; 10] = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
const SHAPES: [&str; 10] =
    ["disk", "square", "triangle", "cross", "ring", "diamond", "stripes", "checkers", "dots", "frame"];

pub(crate) const SIDE: usize = 32;
const AREA: usize = SIDE * SIDE;

/// The random stream of the first test picture.
const TEST: u64 = 1 << 40;

/// Pictures `[3, 32, 32]` of bytes and their labels.
pub(crate) type PhotoDataset = TensorDataset<(Tensor<Int>, Tensor<Int>)>;

pub(crate) struct Photos {
    pub(crate) train: PhotoDataset,
    pub(crate) test: PhotoDataset,
    pub(crate) classes: [&'static str; 10],
}

/// CIFAR-10, or else `n_train` and `n_test` drawn pictures. With `--quick`, these numbers also limit CIFAR-10. Prints
/// which pictures they are. Nothing is downloaded.
pub(crate) fn open(options: &Options, n_train: usize, n_test: usize) -> Result<Photos> {
    let mut files = CifarFiles::cifar10().offline(true);
    if let Some(folder) = &options.data {
        files = files.folder(folder);
    }
    match files.open() {
        Ok(cifar) => {
            let most = |cifar: &Cifar, quick| if options.quick { cifar.len().min(quick) } else { cifar.len() };
            let (n_train, n_test) = (most(&cifar.train, n_train), most(&cifar.test, n_test));
            println!("CIFAR-10: {n_train} pictures to train, {n_test} to test");
            let (train, test) = (whole(&cifar.train, n_train)?, whole(&cifar.test, n_test)?);
            Ok(Photos { train, test, classes: THINGS })
        }
        Err(error) if options.data.is_some() => Err(error.into()),
        Err(_) => {
            println!(
                "drawn shapes (seed {}): {n_train} pictures to train, {n_test} to test; CIFAR-10 is not here",
                options.seed
            );
            let (images, labels, _) = draw(options.seed, 0, n_train)?;
            let (test_images, test_labels, _) = draw(options.seed, TEST, n_test)?;
            let (train, test) =
                (TensorDataset::new((images, labels))?, TensorDataset::new((test_images, test_labels))?);
            Ok(Photos { train, test, classes: SHAPES })
        }
    }
}

/// The first `n` pictures of the set.
fn whole(cifar: &Cifar, n: usize) -> Result<PhotoDataset> {
    let indices: Vec<usize> = (0..n).collect();
    let Some(tensors) = cifar.gather(&indices)? else { unreachable!("CIFAR gathers") };
    Ok(TensorDataset::new(tensors)?)
}

/// `n` pictures from number `first`: bytes `[n, 3, 32, 32]`, labels `[n]`, and masks of the shapes, `[n, 1, 32, 32]`
/// of 0 or 1.
pub(crate) fn draw(seed: u64, first: u64, n: usize) -> Result<(Tensor<Int>, Tensor<Int>, Tensor)> {
    let generator = Generator::new(seed);
    let (mut images, mut masks, mut labels) = (vec![0u8; n * 3 * AREA], vec![0f32; n * AREA], vec![0i64; n]);
    let places = images.chunks_exact_mut(3 * AREA).zip(masks.chunks_exact_mut(AREA)).zip(&mut labels);
    for (number, ((image, mask), label)) in places.enumerate() {
        let dice = generator.stream(first + number as u64);
        *label = dice.below(10) as i64;
        draw_one(*label, &dice, image, mask);
    }
    Ok((
        Tensor::from_vec(images, [n, 3, SIDE, SIDE])?,
        Tensor::from_vec(labels, n)?,
        Tensor::from_vec(masks, [n, 1, SIDE, SIDE])?,
    ))
}

fn draw_one(class: i64, dice: &Generator, image: &mut [u8], mask: &mut [f32]) {
    let between = |low: f32, high: f32| low + (high - low) * dice.next_f64() as f32;
    let color = [between(0.0, 1.0), between(0.0, 1.0), between(0.0, 1.0)];
    // At least a third brighter or darker than the shape, in each channel.
    let ground = color.map(|value| if value < 0.5 { value + between(0.33, 0.5) } else { value - between(0.33, 0.5) });
    let (radius, center) = (between(8.0, 14.0), [between(13.0, 18.0), between(13.0, 18.0)]);
    let turn = between(-0.25, 0.25); // the tangent of half the angle
    let norm = 1.0 + turn * turn;
    let (cos, sin) = ((1.0 - turn * turn) / norm, 2.0 * turn / norm);
    let slope = between(-0.15, 0.15);
    for (pixel, mask) in mask.iter_mut().enumerate() {
        let (x, y) = ((pixel % SIDE) as f32 - center[0], (pixel / SIDE) as f32 - center[1]);
        let (u, v) = ((cos * x + sin * y) / radius, (cos * y - sin * x) / radius);
        let is_inside = is_inside(class, u, v);
        *mask = f32::from(u8::from(is_inside));
        for (channel, (color, ground)) in color.into_iter().zip(ground).enumerate() {
            let value = if is_inside { color } else { ground + slope * x / SIDE as f32 };
            image[channel * AREA + pixel] = (255.0 * (value + between(-0.08, 0.08)).clamp(0.0, 1.0)) as u8;
        }
    }
}

/// Whether a point of the plane is in the class's shape, which reaches from -1 to 1.
fn is_inside(class: i64, u: f32, v: f32) -> bool {
    let (square, round) = (u.abs().max(v.abs()), u * u + v * v);
    let cell = |x: f32| (x * 2.5 + 20.0) as i32;
    let off = |x: f32| (x * 2.5 + 20.0).fract() - 0.5; // from the middle of a cell
    match class {
        0 => round < 0.8,
        1 => square < 0.8,
        2 => v < 0.7 && v > 2.0 * u.abs() - 1.0,
        3 => square < 1.0 && u.abs().min(v.abs()) < 0.3,
        4 => round < 1.0 && round > 0.35,
        5 => u.abs() + v.abs() < 1.0,
        6 => square < 1.0 && cell(v) % 2 == 0,
        7 => square < 1.0 && (cell(u) + cell(v)) % 2 == 0,
        8 => square < 1.0 && off(u) * off(u) + off(v) * off(v) < 0.1,
        _ => square < 1.0 && square > 0.6,
    }
}
