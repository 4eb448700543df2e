//! [`PaddedStack`]: a batch of sequences of different lengths.

use pagelock_tensor::{AnyTensor, Element, Int, Kind, Tensor};

use crate::elements::{listed, with_element};
use crate::{Error, Result};

/// Where the padding goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Before the sequence.
    Left,
    /// After the sequence.
    #[default]
    Right,
}

/// Makes a batch of sequences: pads each to the length of the longest, and returns the lengths that they had. For
/// [`DataLoader::with_collate`](crate::DataLoader::with_collate).
///
/// # Examples
/// ```
/// use pagelock_data::text::{PaddedStack, Side};
/// use pagelock_data::{DataLoader, Dataset, Stack, TensorDataset};
/// use pagelock_tensor::{Int, Tensor};
///
/// let reviews = TensorDataset::new(Tensor::new([1, 3])?)?
///     .transform(0, |len, _| Ok((Tensor::full([len.item::<i64>()? as usize], 7)?, 1_i64)));
/// let loader = DataLoader::with_collate(reviews, |reviews| {
///     let (texts, labels): (Vec<Tensor<Int>>, Vec<i64>) = reviews.into_iter().unzip();
///     Ok((PaddedStack::new(0).stack(&texts)?, Stack::stack(labels)?))
/// });
/// let ((texts, lengths), labels) = loader.batch_size(2).iter().next().unwrap()?;
/// assert_eq!((texts.dims(), labels.dims()), (&[2, 3][..], &[2][..]));
/// assert_eq!(texts.to_vec::<i64>()?, [7, 0, 0, 7, 7, 7]);
/// assert_eq!(lengths.to_vec::<i64>()?, [1, 3]);
///
/// let cut = PaddedStack { max_len: Some(2), side: Side::Left, ..PaddedStack::new(0) };
/// assert_eq!(cut.stack(&[Tensor::new([1])?, Tensor::new([2, 3, 4])?])?.0.to_vec::<i64>()?, [0, 1, 2, 3]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaddedStack {
    /// The value of the padding.
    pub value: f64,
    /// Longer sequences are cut after this many steps; `None` cuts none.
    pub max_len: Option<usize>,
    /// Where the padding goes.
    pub side: Side,
}

impl PaddedStack {
    /// Pads with `value` on the right, and cuts nothing.
    pub fn new(value: i64) -> Self {
        Self { value: value as f64, max_len: None, side: Side::Right }
    }

    /// The batch `[sequences, longest, ...]` of sequences `[steps, ...]`, and their lengths, `[sequences]`.
    ///
    /// # Errors
    /// [`Error::Argument`] without sequences, and for one without dimensions, of another precision, or of other
    /// dimensions after the first; [`Error::Tensor`] if memory is refused.
    pub fn stack<K: Kind>(&self, sequences: &[Tensor<K>]) -> Result<(Tensor<K>, Tensor<Int>)> {
        let sequences: Vec<AnyTensor> = sequences.iter().map(AnyTensor::from).collect();
        let (batch, lengths) = self.of_any(&sequences)?;
        Ok((batch.kind()?, lengths))
    }

    fn of_any(&self, sequences: &[AnyTensor]) -> Result<(AnyTensor, Tensor<Int>)> {
        let step = check(sequences)?;
        let most = self.max_len.unwrap_or(usize::MAX);
        let lens: Vec<usize> = sequences.iter().map(|sequence| sequence.dims()[0].min(most)).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let shape: Vec<usize> = [sequences.len(), longest].into_iter().chain(step).collect();
        let batch = with_element!(sequences[0].dtype(), E => {
            let mut outcome = Ok(());
            let batch = Tensor::build(&shape[..], |out: &mut [E]| outcome = self.fill(sequences, &lens, out))?;
            outcome.map(|()| AnyTensor::from(batch))?
        });
        let lens: Vec<i64> = lens.into_iter().map(|len| len as i64).collect();
        Ok((batch, Tensor::from_vec(lens, sequences.len())?))
    }

    fn fill<E: Element>(&self, sequences: &[AnyTensor], lens: &[usize], out: &mut [E]) -> Result<()> {
        out.fill(E::from_f64(self.value));
        let row_len = out.len() / sequences.len();
        if row_len == 0 {
            return Ok(());
        }
        for ((row, sequence), &len) in out.chunks_exact_mut(row_len).zip(sequences).zip(lens) {
            let (values, _counted) = listed::<E>(&sequence.narrow(0, 0, len)?.kind()?)?;
            let start = if self.side == Side::Left { row_len - values.len() } else { 0 };
            row[start..start + values.len()].copy_from_slice(&values);
        }
        Ok(())
    }
}

/// The dimensions after the first, if all sequences have the same dimensions and the same precision.
fn check(sequences: &[AnyTensor]) -> Result<Vec<usize>> {
    let wrong = |text: String| Err(Error::Argument(text));
    let Some(first) = sequences.first() else {
        return wrong("there are no sequences to pad; give at least one".into());
    };
    for (at, sequence) in sequences.iter().enumerate() {
        if sequence.dims().is_empty() {
            return wrong(format!(
                "sequence {at} has no dimensions; the first counts its steps: use unsqueeze(0) for one step"
            ));
        }
        if sequence.dtype() != first.dtype() || sequence.dims()[1..] != first.dims()[1..] {
            let (dtype, shape, first_dtype, first) = (sequence.dtype(), sequence.shape(), first.dtype(), first.shape());
            return wrong(format!(
                "sequence {at} is {shape} of {dtype}, and the first is {first} of {first_dtype}; they may differ in the first dimension \
                 only"
            ));
        }
    }
    Ok(first.dims()[1..].to_vec())
}

/// Sequences `[steps, ...]` as one batch, `[sequences, longest, ...]`, padded with `value` on the right:
/// `torch.nn.utils.rnn.pad_sequence` with `batch_first=True`.
///
/// # Errors
/// As [`PaddedStack::stack`].
///
/// # Examples
/// ```
/// use pagelock_data::text::pad_sequence;
/// use pagelock_tensor::Tensor;
///
/// let batch = pad_sequence(&[Tensor::new([1.0])?, Tensor::new([2.0, 3.0])?], 0.5)?;
/// assert_eq!(batch.to_vec::<f32>()?, [1.0, 0.5, 2.0, 3.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn pad_sequence<K: Kind>(sequences: &[Tensor<K>], value: f64) -> Result<Tensor<K>> {
    Ok(PaddedStack { value, ..PaddedStack::new(0) }.stack(sequences)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_vectors_are_padded_step_by_step_and_others_are_refused() {
        let pair = [Tensor::ones([2, 3]).unwrap(), Tensor::ones([1, 3]).unwrap()];
        let (batch, lengths) = PaddedStack { side: Side::Left, ..PaddedStack::new(-1) }.stack(&pair).unwrap();
        assert_eq!(batch.dims(), [2, 2, 3]);
        assert_eq!(batch.select(0, 1).unwrap().to_vec::<f32>().unwrap(), [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]);
        assert_eq!(lengths.to_vec::<i64>().unwrap(), [2, 1]);
        let empty = Tensor::zeros([0]).unwrap();
        assert_eq!(pad_sequence(&[empty.clone(), empty], 0.0).unwrap().dims(), [2, 0]);
        let text = |sequences: &[Tensor]| pad_sequence(sequences, 0.0).unwrap_err().to_string();
        assert_eq!(text(&[]), "there are no sequences to pad; give at least one");
        assert_eq!(
            text(&[Tensor::ones([2, 3]).unwrap(), Tensor::ones([2, 4]).unwrap()]),
            "sequence 1 is [2, 4] of float32, and the first is [2, 3] of float32; they may differ in the first dimension only"
        );
        assert!(text(&[Tensor::scalar(1.0).unwrap()]).starts_with("sequence 0 has no dimensions"));
    }
}
