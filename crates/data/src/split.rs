//! Random splits of a dataset by fractions, also with the same mixture of labels in each part.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagelock_memory::HeapReservation;
use pagelock_tensor::Generator;

use crate::dataset::Dataset;
use crate::subset::{Subset, random_split};
use crate::text::lines::GrowingReservation;
use crate::{Error, Result};

/// As [`random_split`], with the sizes of the parts as fractions of the whole, which add up to 1.
///
/// A part has `floor(fraction · samples)` samples. The remaining samples go to the parts one by one, from the first
/// part on, as in PyTorch's `random_split`.
///
/// # Errors
/// [`Error::Argument`] if a fraction is not from 0 to 1, or if they do not add up to 1.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, TensorDataset, random_split_fractions};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let dataset = TensorDataset::new(Tensor::zeros([11, 2])?)?;
/// let [train, valid] = random_split_fractions(dataset, [0.8, 0.2], &Generator::new(42))?;
/// assert_eq!((train.len(), valid.len()), (9, 2));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn random_split_fractions<D: Dataset, const N: usize>(
    dataset: impl Into<Arc<D>>,
    fractions: [f64; N],
    generator: &Generator,
) -> Result<[Subset<D>; N]> {
    check_fractions(&fractions)?;
    let dataset = dataset.into();
    let n_samples = dataset.len();
    let mut n_left = n_samples; // fractions that add up to a little more than 1 give no more than there are
    let mut lens = fractions.map(|fraction| {
        let len = floor_of(fraction, n_samples).min(n_left);
        n_left -= len;
        len
    });
    (0..n_left).for_each(|at| lens[at % N] += 1);
    random_split(dataset, lens, generator)
}

/// Splits `dataset` at random into parts that are these fractions of the whole, each with the same mixture of labels as the
/// whole, as nearly as whole samples allow. The same generator state gives the same parts.
///
/// `labels[i]` is the label of sample `i`. The working memory, two numbers for each sample, counts in the host's
/// budget.
///
/// # Errors
/// [`Error::Argument`] if a fraction is not from 0 to 1, if they do not add up to 1, or if there is not one label for
/// each sample; [`Error::Memory`] if the budget refuses.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, TensorDataset, stratified_split};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let labels: Vec<i64> = (0..100).map(|i| i64::from(i >= 90)).collect(); // one in ten is a 1
/// let dataset = TensorDataset::new(Tensor::from_vec(labels.clone(), 100)?)?;
/// let [train, valid] = stratified_split(dataset, &labels, [0.8, 0.2], &Generator::new(42))?;
/// let ones = |indices: &[usize]| indices.iter().filter(|&&index| labels[index] == 1).count();
/// assert_eq!((train.len(), ones(train.indices())), (80, 8));
/// assert_eq!((valid.len(), ones(valid.indices())), (20, 2));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn stratified_split<D: Dataset, const N: usize>(
    dataset: impl Into<Arc<D>>,
    labels: &[i64],
    fractions: [f64; N],
    generator: &Generator,
) -> Result<[Subset<D>; N]> {
    let dataset = dataset.into();
    let parts = stratified(dataset.len(), labels, &fractions, generator)?;
    let len_bytes = (dataset.len() * size_of::<usize>()) as u64;
    let _working = HeapReservation::new(len_bytes)?; // `parts`, beside the lists of the subsets
    let counted = Arc::new(GrowingReservation::of(len_bytes)?);
    let mut parts = parts.into_iter();
    Ok(fractions.map(|_| Subset::of_known(&dataset, &parts.next().unwrap_or_default(), &counted)))
}

/// The indices of each part.
fn stratified(n_samples: usize, labels: &[i64], fractions: &[f64], generator: &Generator) -> Result<Vec<Vec<usize>>> {
    check_fractions(fractions)?;
    if labels.len() != n_samples {
        return Err(Error::Argument(format!(
            "there are {} labels for {n_samples} samples; give one for each sample",
            labels.len()
        )));
    }
    let _counted = HeapReservation::new((n_samples as u64).saturating_mul(2 * size_of::<usize>() as u64))?;
    let mut classes: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    labels.iter().enumerate().for_each(|(index, &label)| classes.entry(label).or_default().push(index));
    let mut parts = vec![Vec::new(); fractions.len()];
    let mut n_seen = 0;
    for mut indices in classes.into_values() {
        generator.shuffle(&mut indices);
        n_seen += indices.len();
        let mut rest = &indices[..];
        for (part, fraction) in parts.iter_mut().zip(fractions) {
            let (mine, after) = rest.split_at(floor_of(*fraction, indices.len()).min(rest.len()));
            part.extend_from_slice(mine);
            rest = after;
        }
        // Each remaining sample goes to the part that lacks most.
        for &index in rest {
            let missing = |at: usize| fractions[at] * n_seen as f64 - parts[at].len() as f64;
            let most = (0..parts.len()).max_by(|&a, &b| missing(a).total_cmp(&missing(b)).then(b.cmp(&a)));
            parts[most.unwrap_or(0)].push(index);
        }
    }
    parts.iter_mut().for_each(|part| generator.shuffle(part));
    Ok(parts)
}

/// `fraction · n` rounded down, except that a product within rounding error of a whole number is that number.
fn floor_of(fraction: f64, n: usize) -> usize {
    let exact = fraction * n as f64;
    let whole = exact.round();
    if (exact - whole).abs() < 1e-9 * whole.max(1.0) { whole as usize } else { exact as usize }
}

fn check_fractions(fractions: &[f64]) -> Result<()> {
    let sum: f64 = fractions.iter().sum();
    if fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)) && (sum - 1.0).abs() < 1e-6 {
        return Ok(());
    }
    Err(Error::Argument(format!("the fractions {fractions:?} must be from 0 to 1 and add up to 1; correct them")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorDataset;
    use pagelock_tensor::Tensor;

    #[test]
    fn a_stratified_split_has_every_sample_once_and_each_label_in_its_share() {
        for seed in 0..20 {
            let labels: Vec<i64> = (0..1_003).map(|i| [0, 0, 0, 5, 5, -2][i * i % 6]).collect();
            let fractions = [0.5, 0.3, 0.2];
            let parts = stratified(labels.len(), &labels, &fractions, &Generator::new(seed)).unwrap();
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..1_003));
            for (part, fraction) in parts.iter().zip(fractions) {
                assert!((part.len() as f64 - 1_003.0 * fraction).abs() <= 1.0, "{}", part.len());
                for label in [0, 5, -2] {
                    let count =
                        |indices: &mut dyn Iterator<Item = usize>| indices.filter(|&i| labels[i] == label).count();
                    let (here, there) = (count(&mut part.iter().copied()), count(&mut (0..1_003)));
                    assert!((here as f64 - there as f64 * fraction).abs() <= 2.0, "{here} of {there} in {fraction}");
                }
            }
        }
    }

    #[test]
    fn fractions_and_labels_that_do_not_fit_are_refused() {
        let dataset = TensorDataset::new(Tensor::zeros([3]).unwrap()).unwrap();
        let text = |error: Error| error.to_string();
        assert_eq!(
            text(random_split_fractions(dataset.clone(), [0.8, 0.3], &Generator::new(0)).err().unwrap()),
            "the fractions [0.8, 0.3] must be from 0 to 1 and add up to 1; correct them"
        );
        assert_eq!(
            text(stratified_split(dataset, &[1], [1.0], &Generator::new(0)).err().unwrap()),
            "there are 1 labels for 3 samples; give one for each sample"
        );
    }
}
