//! [`MixUp`] and [`CutMix`]: mix the pictures of a batch with each other, and their labels alike.

use pagelock_tensor::{Generator, Int, Tensor};

use super::{Transform, below, wrong};
use crate::Result;
use crate::elements::listed;

/// Mixes each picture of a batch with the one before it, `lam · x + (1 − lam) · x'`, and its label too: H. Zhang and
/// others, "mixup: Beyond Empirical Risk Minimization", 2017, <https://arxiv.org/abs/1710.09412>. `lam` is drawn for
/// each batch, from Beta(alpha, alpha).
///
/// - pictures: `[batch, ...]`, floats
/// - labels: `[batch]`, from 0 to below the number of classes; they become probabilities, `[batch, classes]`, in the precision of the
///   pictures
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{MixUp, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let batch = (Tensor::new([[[[0.0]]], [[[1.0]]]])?, Tensor::new([0, 1])?);
/// let (pictures, labels) = MixUp::new(2).apply(batch, &Generator::new(5))?;
/// let (x, p): (Vec<f32>, Vec<f32>) = (pictures.to_vec()?, labels.to_vec()?);
/// assert!((x[1] - p[3]).abs() < 1e-6 && (p[2] + p[3] - 1.0).abs() < 1e-6); // as much of each
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MixUp {
    /// The parameter of the Beta distribution. With 1, all mixtures are equally likely; with less, one of the two
    /// dominates.
    pub alpha: f64,
    /// How many classes there are.
    pub num_classes: usize,
}

impl MixUp {
    /// For `num_classes` classes, with an `alpha` of 1.
    pub fn new(num_classes: usize) -> Self {
        Self { alpha: 1.0, num_classes }
    }
}

impl Transform<(Tensor, Tensor<Int>)> for MixUp {
    type Out = (Tensor, Tensor);

    fn apply(&self, (x, labels): (Tensor, Tensor<Int>), random: &Generator) -> Result<(Tensor, Tensor)> {
        let y = probabilities("mixup", &x, &labels, self.num_classes)?;
        let lam = beta("mixup", random, self.alpha)?;
        Ok((mixed(&x, lam)?, mixed(&y, lam)?))
    }
}

/// Replaces a rectangle of each picture of a batch by that of the picture before it, and mixes its label in
/// proportion to the area: S. Yun and others, "CutMix: Regularization Strategy to Train Strong Classifiers with
/// Localizable Features", 2019, <https://arxiv.org/abs/1905.04899>.
///
/// - pictures: `[batch, channels, height, width]`, floats
/// - labels: as for [`MixUp`]
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{CutMix, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let batch = (Tensor::zeros([4, 3, 8, 8])?, Tensor::new([0, 1, 2, 3])?);
/// let (pictures, labels) = CutMix::new(4).apply(batch, &Generator::new(5))?;
/// assert_eq!((pictures.dims(), labels.dims()), (&[4, 3, 8, 8][..], &[4, 4][..]));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CutMix {
    /// The parameter of the Beta distribution of the rectangles' area. With 1, all areas are equally likely.
    pub alpha: f64,
    /// How many classes there are.
    pub num_classes: usize,
}

impl CutMix {
    /// For `num_classes` classes, with an `alpha` of 1.
    pub fn new(num_classes: usize) -> Self {
        Self { alpha: 1.0, num_classes }
    }
}

impl Transform<(Tensor, Tensor<Int>)> for CutMix {
    type Out = (Tensor, Tensor);

    fn apply(&self, (x, labels): (Tensor, Tensor<Int>), random: &Generator) -> Result<(Tensor, Tensor)> {
        let y = probabilities("cutmix", &x, &labels, self.num_classes)?;
        let &[_, _, height, width] = x.dims() else {
            return Err(wrong(format!(
                "cutmix: the batch is {}, but it must be [batch, channels, height, width]",
                x.shape()
            )));
        };
        if height == 0 || width == 0 {
            return Ok((x, y));
        }
        let half = 0.5 * (1.0 - beta("cutmix", random, self.alpha)?).sqrt();
        let side = |size: usize, middle: usize| {
            let half = (half * size as f64) as usize;
            middle.saturating_sub(half)..(middle + half).min(size)
        };
        let (columns, rows) = (side(width, below(random, width)), side(height, below(random, height)));
        let kept = 1.0 - (columns.len() * rows.len()) as f64 / (width * height) as f64;
        let is_cut = Tensor::build([1, 1, height, width], |out: &mut [bool]| {
            out.fill(false);
            rows.for_each(|row| out[row * width..][columns.clone()].fill(true));
        })?;
        Ok((x.roll(&[1], &[0])?.where_cond(&is_cut, &x)?, mixed(&y, kept)?))
    }
}

fn mixed(x: &Tensor, lam: f64) -> Result<Tensor> {
    Ok(x.roll(&[1], &[0])?.mul_scalar(1.0 - lam)?.add(&x.mul_scalar(lam)?)?)
}

/// Labels as probabilities, one for each class.
fn probabilities(op: &str, x: &Tensor, labels: &Tensor<Int>, num_classes: usize) -> Result<Tensor> {
    let n = labels.len();
    if labels.dims() != [n] || x.dims().first() != Some(&n) {
        let (x, labels) = (x.shape(), labels.shape());
        return Err(wrong(format!(
            "{op}: the pictures are {x} and the labels {labels}, but each picture needs one label"
        )));
    }
    let (labels, _counted) = listed::<i64>(labels)?;
    let is_class = |label: i64| usize::try_from(label).is_ok_and(|label| label < num_classes);
    if let Some(at) = labels.iter().position(|&label| !is_class(label)) {
        let label = labels[at];
        return Err(wrong(format!(
            "{op}: label {at} of the batch is {label}, but there are {num_classes} classes, counted from 0"
        )));
    }
    let one_hot = Tensor::build([n, num_classes], |out: &mut [f32]| {
        out.fill(0.0);
        labels.iter().enumerate().for_each(|(row, &label)| out[row * num_classes + label as usize] = 1.0);
    })?;
    Ok(one_hot.to_dtype(x.dtype())?)
}

fn check_alpha(op: &str, alpha: f64) -> Result<()> {
    if alpha > 0.0 && alpha.is_finite() {
        return Ok(());
    }
    Err(wrong(format!("{op}: alpha is {alpha}; give one above 0")))
}

/// A draw from Beta(alpha, alpha), as the share of one of two draws from Gamma(alpha, 1).
fn beta(op: &str, random: &Generator, alpha: f64) -> Result<f64> {
    check_alpha(op, alpha)?;
    let (a, b) = (ln_gamma_draw(random, alpha), ln_gamma_draw(random, alpha));
    Ok(1.0 / (1.0 + (b - a).exp()))
}

/// A draw of `n` shares from Dirichlet(alpha, .., alpha), whose sum is 1.
pub(super) fn shares(op: &str, random: &Generator, alpha: f64, n: usize) -> Result<Vec<f64>> {
    check_alpha(op, alpha)?;
    let logarithms: Vec<f64> = (0..n).map(|_| ln_gamma_draw(random, alpha)).collect();
    let most = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let parts: Vec<f64> = logarithms.into_iter().map(|logarithm| (logarithm - most).exp()).collect();
    let sum: f64 = parts.iter().sum();
    Ok(parts.into_iter().map(|part| part / sum).collect())
}

/// The logarithm of a draw from Gamma(alpha, 1): G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
/// variables", 2000, <https://doi.org/10.1145/358407.358414>. The logarithm, because draws for a small alpha
/// underflow.
fn ln_gamma_draw(random: &Generator, alpha: f64) -> f64 {
    if alpha < 1.0 {
        // A smaller alpha would draw minus infinity for both of two pictures, whose share is then 0 / 0.
        return ln_gamma_draw(random, alpha + 1.0) + (1.0 - random.next_f64()).ln() / alpha.max(1e-300);
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let (radius, angle) =
            ((-2.0 * (1.0 - random.next_f64()).ln()).sqrt(), std::f64::consts::TAU * random.next_f64());
        let normal = radius * angle.cos();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && (1.0 - random.next_f64()).ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_mean_and_the_variance_of_their_distribution() {
        for alpha in [0.2, 1.0, 4.0] {
            let random = Generator::new(7);
            let draws: Vec<f64> = (0..20_000).map(|_| beta("", &random, alpha).unwrap()).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 20_000.0;
            assert!((mean - 0.5).abs() < 0.01, "{mean}");
            assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.005, "{variance}");
        }
        assert!(beta("mixup", &Generator::new(0), 0.0).is_err());
    }

    #[test]
    fn the_smallest_alpha_there_is_gives_all_to_one_picture() {
        let random = Generator::new(7);
        for _ in 0..100 {
            let mut all = shares("", &random, f64::from_bits(1), 3).unwrap();
            all.push(beta("", &random, f64::from_bits(1)).unwrap());
            assert!(all.iter().all(|share| [0.0, 1.0].contains(share)), "{all:?}");
        }
    }

    #[test]
    fn a_cut_picture_and_its_label_have_the_same_share_of_another() {
        for seed in 0..50 {
            let x = Tensor::build([3, 1, 10, 8], |out: &mut [f32]| {
                out.chunks_mut(80).enumerate().for_each(|(at, picture)| picture.fill(at as f32));
            });
            let batch = (x.unwrap(), Tensor::new([0, 1, 2]).unwrap());
            let (x, y) = CutMix::new(3).apply(batch, &Generator::new(seed)).unwrap();
            let (x, y): (Vec<f32>, Vec<f32>) = (x.to_vec().unwrap(), y.to_vec().unwrap());
            let share = |picture: usize, of: usize| {
                x[picture * 80..][..80].iter().filter(|&&value| value == of as f32).count() as f32 / 80.0
            };
            for (at, p) in y.iter().enumerate() {
                assert!((share(at / 3, at % 3) - p).abs() < 1e-6, "{seed}: {y:?}");
            }
        }
    }

    #[test]
    fn labels_that_are_no_classes_are_refused() {
        let batch = (Tensor::zeros([2, 1]).unwrap(), Tensor::new([0, 5]).unwrap());
        let text = MixUp::new(5).apply(batch, &Generator::new(0)).unwrap_err().to_string();
        assert_eq!(text, "mixup: label 1 of the batch is 5, but there are 5 classes, counted from 0");
    }
}
