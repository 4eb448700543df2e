//! [`Steps`]: how the rows of sequences of several lengths are cut into steps.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::heap::CountedHeap;

/// How many sequences there are at each step. The rows of a step follow those of the step before it. Within a step,
/// the sequences that end first come last, as in PyTorch's `PackedSequence`.
///
/// ```
/// use pagelock_tensor::Steps;
///
/// let steps = Steps::packed(&[3, 2, 2, 1])?; // lengths 4, 3 and 1
/// assert_eq!((steps.count(), steps.batch(), steps.rows()), (4, 3, 8));
/// assert_eq!(Steps::even(4, 3).rows(), 12);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Even {
        count: usize,
        batch: usize,
    },
    /// The number of sequences at each step, and where the rows of the step begin.
    Packed(Arc<Vec<(usize, usize)>>, Arc<CountedHeap>),
}

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Its first row.
    pub(super) start: usize,
    pub(super) rows: usize,
    /// The first row of the step that was computed before it.
    pub(super) before: Option<usize>,
    /// How many sequences of that step continue in this one.
    pub(super) carried: usize,
}

impl Steps {
    /// `count` steps of `batch` sequences each.
    pub fn even(count: usize, batch: usize) -> Steps {
        Steps(Form::Even { count, batch })
    }

    /// Steps with these numbers of sequences.
    ///
    /// # Errors
    /// [`Error::Argument`] if a step has more sequences than the one before it, or none; [`Error::WorkingMemory`] if the
    /// budget refuses the list.
    pub fn packed(batch_sizes: &[usize]) -> Result<Steps> {
        let mut rows = 0;
        let len_bytes = 2 * size_of_val(batch_sizes);
        let counted = CountedHeap::granted("Steps", "the list of steps", len_bytes)?;
        let mut steps: Vec<(usize, usize)> = Vec::with_capacity(batch_sizes.len());
        for (step, &size) in batch_sizes.iter().enumerate() {
            if size == 0 || step > 0 && size > batch_sizes[step - 1] {
                return Err(Error::Argument(format!(
                    "Steps: step {step} has {size} sequences, but it must have at least one and no more than the step before it; \
                     sort sequences by length, the longest first"
                )));
            }
            steps.push((size, rows));
            rows = size.saturating_add(rows);
        }
        Ok(Steps(Form::Packed(Arc::new(steps), Arc::new(counted))))
    }

    /// How many steps there are: the length of the longest sequence.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::Even { count, .. } => *count,
            Form::Packed(steps, _) => steps.len(),
        }
    }

    /// The number of sequences.
    pub fn batch(&self) -> usize {
        match &self.0 {
            Form::Even { batch, .. } => *batch,
            Form::Packed(steps, _) => steps.first().map_or(0, |step| step.0),
        }
    }

    /// The rows of all steps.
    pub fn rows(&self) -> usize {
        match &self.0 {
            Form::Even { count, batch } => count.saturating_mul(*batch),
            Form::Packed(steps, _) => steps.last().map_or(0, |(size, start)| size.saturating_add(*start)),
        }
    }

    /// Whether all steps were made with the same number of sequences, by [`Steps::even`].
    pub(super) fn is_even(&self) -> bool {
        matches!(self.0, Form::Even { .. })
    }

    /// Where the rows of a step begin, and how many there are.
    fn at(&self, step: usize) -> (usize, usize) {
        match &self.0 {
            Form::Even { batch, .. } => (step * batch, *batch),
            Form::Packed(steps, _) => (steps[step].1, steps[step].0),
        }
    }

    /// The steps in the order in which a layer computes them; none for an empty batch, which may have any number.
    pub(super) fn in_order(&self, reverse: bool) -> impl DoubleEndedIterator<Item = Step> + '_ {
        let count = if self.batch() == 0 { 0 } else { self.count() };
        (0..count).map(move |k| {
            let step = if reverse { count - 1 - k } else { k };
            let (start, rows) = self.at(step);
            let before = (k > 0).then(|| self.at(if reverse { step + 1 } else { step - 1 }));
            let carried = before.map_or(0, |(_, there)| there.min(rows));
            Step { start, rows, before: before.map(|(start, _)| start), carried }
        })
    }
}
