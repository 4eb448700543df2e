//! Changes the colors of pictures by a factor or a number: torchvision's `adjust_*` and related functions.

use pagelock_tensor::AnyTensor;

use super::image::{Pixel, Planes, with_pixels};
use super::{wrong, wrong_shape};
use crate::Result;

/// The weights of red, green and blue in the brightness: ITU-R BT.601.
const LUMA: [f32; 3] = [0.2989, 0.587, 0.114];

/// The sizes of a picture, which must have 1 or 3 channels.
pub(super) fn gray_or_color(op: &'static str, image: &AnyTensor) -> Result<Planes> {
    let planes = Planes::of(op, image.shape())?;
    match planes.channels {
        1 | 3 => Ok(planes),
        _ => Err(wrong_shape(op, image.shape(), "it must have 1 or 3 channels")),
    }
}

pub(super) fn check_factor(op: &'static str, factor: f64) -> Result<f32> {
    match factor.is_finite() && factor >= 0.0 {
        true => Ok(factor as f32),
        false => Err(wrong(format!("{op}: the factor is {factor}; give one of at least 0"))),
    }
}

/// The brightness of pixel `at`, before rounding to a byte.
fn luma<P: Pixel>(values: &[P], len: usize, at: usize) -> f32 {
    (0..3).map(|channel| values[channel * len + at].float() * LUMA[channel]).sum()
}

/// `value`, rounded down for pictures of bytes.
fn whole<P: Pixel>(value: f32) -> f32 {
    if P::BOUND == 255.0 { value.floor() } else { value }
}

/// The picture with each of its values changed.
fn each<P: Pixel>(mut values: Vec<P>, change: impl Fn(P) -> P) -> Vec<P> {
    values.iter_mut().for_each(|value| *value = change(*value));
    values
}

pub(super) fn adjust_brightness(image: &AnyTensor, factor: f64) -> Result<AnyTensor> {
    let planes = gray_or_color("adjust_brightness", image)?;
    let factor = check_factor("adjust_brightness", factor)?;
    with_pixels!("adjust_brightness", image, planes.shape(), values => {
        each(values, |value| Pixel::cut(value.float() * factor))
    })
}

pub(super) fn adjust_contrast(image: &AnyTensor, factor: f64) -> Result<AnyTensor> {
    let planes = gray_or_color("adjust_contrast", image)?;
    let factor = check_factor("adjust_contrast", factor)?;
    with_pixels!("adjust_contrast", image, planes.shape(), values => contrasted(values, planes, factor))
}

fn contrasted<P: Pixel>(values: Vec<P>, planes: Planes, factor: f32) -> Vec<P> {
    let gray = |at: usize| match planes.channels {
        3 => whole::<P>(luma(&values, planes.len(), at)),
        _ => values[at].float(),
    };
    let sum: f64 = (0..planes.len()).map(|at| f64::from(gray(at))).sum();
    let rest = (sum / planes.len().max(1) as f64) as f32 * (1.0 - factor);
    each(values, |value| P::cut(value.float() * factor + rest))
}

pub(super) fn adjust_saturation(image: &AnyTensor, factor: f64) -> Result<AnyTensor> {
    let planes = gray_or_color("adjust_saturation", image)?;
    let factor = check_factor("adjust_saturation", factor)?;
    if planes.channels == 1 {
        return Ok(image.clone());
    }
    with_pixels!("adjust_saturation", image, planes.shape(), values => saturated(values, planes.len(), factor))
}

fn saturated<P: Pixel>(mut values: Vec<P>, len: usize, factor: f32) -> Vec<P> {
    for at in 0..len {
        let rest = whole::<P>(luma(&values, len, at)) * (1.0 - factor);
        for value in values[at..].iter_mut().step_by(len) {
            *value = P::cut(value.float() * factor + rest);
        }
    }
    values
}

/// A gray picture with `n_channels` equal channels, 1 or 3.
pub(super) fn rgb_to_grayscale(image: &AnyTensor, n_channels: usize) -> Result<AnyTensor> {
    let planes = gray_or_color("rgb_to_grayscale", image)?;
    if !matches!(n_channels, 1 | 3) {
        return Err(wrong(format!("rgb_to_grayscale: the result cannot have {n_channels} channels; give 1 or 3")));
    }
    let shape = [n_channels, planes.height, planes.width];
    with_pixels!("rgb_to_grayscale", image, shape, values => gray(&values, planes, n_channels))
}

fn gray<P: Pixel>(values: &[P], planes: Planes, n_channels: usize) -> Vec<P> {
    let len = planes.len();
    let plane: Vec<P> = match planes.channels {
        3 => (0..len).map(|at| P::cut(luma(values, len, at))).collect(),
        _ => values.to_vec(),
    };
    plane.repeat(n_channels)
}

pub(super) fn adjust_hue(image: &AnyTensor, factor: f64) -> Result<AnyTensor> {
    let planes = gray_or_color("adjust_hue", image)?;
    if !(-0.5..=0.5).contains(&factor) {
        return Err(wrong(format!(
            "adjust_hue: the factor is {factor}; give one from -0.5 to 0.5, half a turn each way"
        )));
    }
    if planes.channels == 1 {
        return Ok(image.clone());
    }
    with_pixels!("adjust_hue", image, planes.shape(), values => hue_turned(values, planes.len(), factor as f32))
}

fn hue_turned<P: Pixel>(mut values: Vec<P>, len: usize, factor: f32) -> Vec<P> {
    // As in torchvision's `to_dtype`: from a byte, divide by 255; to a byte, multiply by 255.999.
    let (from_byte, to_byte) = if P::BOUND == 255.0 { (255.0, 255.999) } else { (1.0, 1.0) };
    for at in 0..len {
        let color = [0, 1, 2].map(|channel| values[channel * len + at].float() / from_byte);
        let [h, s, v] = rgb_to_hsv(color);
        let h = (h + factor).rem_euclid(1.0);
        for (channel, value) in hsv_to_rgb([h, s, v]).into_iter().enumerate() {
            values[channel * len + at] = if P::BOUND == 255.0 { P::cut(value * to_byte) } else { P::rounded(value) };
        }
    }
    values
}

/// A. R. Smith, "Color gamut transform pairs", 1978, <https://doi.org/10.1145/965139.807361>; hue from 0 to 1.
fn rgb_to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    let range = most - least;
    if range == 0.0 {
        return [0.0, 0.0, most];
    }
    let [rc, gc, bc] = [r, g, b].map(|value| (most - value) / range);
    let h = match most {
        most if most == r => bc - gc,
        most if most == g => 2.0 + rc - bc,
        _ => 4.0 + gc - rc,
    };
    [(h / 6.0 + 1.0) % 1.0, range / most, most]
}

fn hsv_to_rgb([h, s, v]: [f32; 3]) -> [f32; 3] {
    let sector = (h * 6.0).floor();
    let f = h * 6.0 - sector;
    let [p, q, t] = [1.0 - s, 1.0 - s * f, 1.0 - s * (1.0 - f)].map(|part| (v * part).clamp(0.0, 1.0));
    match sector as i32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

pub(super) fn invert(image: &AnyTensor) -> Result<AnyTensor> {
    let planes = Planes::of("invert", image.shape())?;
    with_pixels!("invert", image, planes.shape(), values => each(values, inverted))
}

fn inverted<P: Pixel>(value: P) -> P {
    P::rounded(P::BOUND - value.float())
}

/// Keeps the highest `bits` of eight bits.
pub(super) fn posterize(image: &AnyTensor, bits: u32) -> Result<AnyTensor> {
    let planes = Planes::of("posterize", image.shape())?;
    if bits > 8 {
        return Err(wrong(format!("posterize: bits is {bits}, but a byte has only 8")));
    }
    with_pixels!("posterize", image, planes.shape(), values => each(values, |value| with_bits(value, bits)))
}

fn with_bits<P: Pixel>(value: P, bits: u32) -> P {
    if P::BOUND == 255.0 {
        let mask = 0xFF00_u32 >> bits & 0xFF;
        return P::cut((value.float() as u32 & mask) as f32);
    }
    let levels = (1_u32 << bits) as f32;
    P::rounded((value.float() * levels).floor().clamp(0.0, levels - 1.0) / levels)
}

pub(super) fn solarize(image: &AnyTensor, threshold: f64) -> Result<AnyTensor> {
    let planes = Planes::of("solarize", image.shape())?;
    let threshold = threshold as f32;
    with_pixels!("solarize", image, planes.shape(), values => {
        each(values, |value| if value.float() >= threshold { inverted(value) } else { value })
    })
}

pub(super) fn autocontrast(image: &AnyTensor) -> Result<AnyTensor> {
    let planes = gray_or_color("autocontrast", image)?;
    with_pixels!("autocontrast", image, planes.shape(), values => {
        values.chunks_exact_mut(planes.len().max(1)).for_each(stretch);
        values
    })
}

/// Stretches the values of a plane to the full range.
fn stretch<P: Pixel>(plane: &mut [P]) {
    let floats = || plane.iter().map(|value| value.float());
    let (least, most) = (floats().fold(f32::INFINITY, f32::min), floats().fold(f32::NEG_INFINITY, f32::max));
    if least < most {
        let scale = (most - least) * (1.0 / P::BOUND);
        plane.iter_mut().for_each(|value| *value = P::cut((value.float() - least) / scale));
    }
}

pub(super) fn equalize(image: &AnyTensor) -> Result<AnyTensor> {
    let planes = Planes::of("equalize", image.shape())?;
    with_pixels!("equalize", image, planes.shape(), values => {
        values.chunks_exact_mut(planes.len().max(1)).for_each(equalize_plane);
        values
    })
}

/// Equalizes the histogram of a plane as `PIL.ImageOps.equalize` does.
fn equalize_plane<P: Pixel>(plane: &mut [P]) {
    let is_bytes = P::BOUND == 255.0;
    let byte = |value: &P| if is_bytes { value.float() as u8 } else { (value.float() * 255.999) as u8 };
    let mut counts = [0_usize; 256];
    plane.iter().for_each(|value| counts[usize::from(byte(value))] += 1);
    let Some(&last) = counts.iter().rev().find(|&&count| count > 0) else { return };
    let step = (plane.len() - last) / 255;
    if step == 0 {
        return;
    }
    let mut sum = 0;
    let table = counts.map(|count| {
        let value = (sum + step / 2) / step;
        sum += count;
        value.min(255) as f32
    });
    plane
        .iter_mut()
        .for_each(|value| *value = P::cut(table[usize::from(byte(value))] / if is_bytes { 1.0 } else { 255.0 }));
}
