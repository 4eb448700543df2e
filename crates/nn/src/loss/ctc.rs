//! [`CTCLoss`]: sequences of labels that are not aligned with the input.

use super::reduced;
use crate::functional::shared::{constant, index, wrong_argument, wrong_shape};
use crate::setters::setters;
use crate::{Module, module_scope};
use pagelock_tensor::{Bool, DType, Error, Int, Reduction, Result, Tensor};

/// The negative log likelihood of a sequence of labels, summed over all its alignments with a longer sequence of predictions
/// (Graves et al., 2006), as PyTorch's `nn.CTCLoss`.
///
/// - `log_probabilities`: `[time, batch, classes]`, as `log_softmax(2)` gives them
/// - `targets`: `[batch, longest]`, the labels of each sample, none of them the blank, then padding of any value
/// - `input_lengths`, `target_lengths`: one for each sample
/// - result: one number, or `[batch]` with [`Reduction::None`]
///
/// The mean divides each loss by the length of its target first. PyTorch's gradient of the log probabilities already
/// includes the derivative of `log_softmax`, ours does not; behind a `log_softmax` both give the same gradients.
///
/// # Examples
/// ```
/// use pagelock_nn::CTCLoss;
/// use pagelock_tensor::Tensor;
///
/// let undecided = Tensor::zeros([2, 1, 2])?.log_softmax(2)?; // 3 of the 4 alignments read "1"
/// let loss = CTCLoss::new().forward(&undecided, &Tensor::new([[1]])?, &[2], &[1])?;
/// assert!((loss.item::<f32>()? + 0.75f32.ln()).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct CTCLoss {
    #[module(skip)]
    blank: usize,
    #[module(skip)]
    reduction: Reduction,
    #[module(skip)]
    zero_infinity: bool,
}

/// Used for −∞, since −∞ − (−∞) is NaN.
const IMPOSSIBLE: f64 = -1e30;

setters! { CTCLoss,
    /// Sets the class of the blank, which means "no label"; 0 by default.
    blank: usize;
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
    /// Whether targets that are too long for their input have the loss 0, instead of ∞.
    zero_infinity: bool;
}

impl CTCLoss {
    /// The mean, with class 0 as the blank.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss.
    ///
    /// # Errors
    /// [`Error::Argument`] if shapes or lengths do not match; [`Error::IndexOutOfRange`] for a label that is not a
    /// class.
    pub fn forward(
        &self,
        log_probabilities: &Tensor,
        targets: &Tensor<Int>,
        input_lengths: &[usize],
        target_lengths: &[usize],
    ) -> Result<Tensor> {
        let _scope = module_scope(self);
        self.check(log_probabilities, targets, [input_lengths, target_lengths])?;
        let x = log_probabilities.to_dtype(log_probabilities.dtype().computing())?;
        let labels = self.with_blanks(targets, target_lengths)?;
        let ends = alignments(&x, &labels, input_lengths)?;
        let losses = likelihoods(&ends, target_lengths)?.neg()?;
        let is_impossible = losses.gt(&constant(&losses, -0.1 * IMPOSSIBLE)?)?;
        let instead = if self.zero_infinity { 0.0 } else { f64::INFINITY };
        let losses = constant(&losses, instead)?.where_cond(&is_impossible, &losses)?;
        let losses = match self.reduction {
            Reduction::Mean => losses.div(&numbers(&losses, target_lengths.iter().map(|&len| len.max(1) as f64))?)?,
            _ => losses,
        };
        reduced("CTCLoss", losses, self.reduction)
    }

    fn check(&self, x: &Tensor, targets: &Tensor<Int>, [inputs, outputs]: [&[usize]; 2]) -> Result<()> {
        const OP: &str = "CTCLoss";
        let &[time, batch, classes] = x.dims() else {
            let expected = "it must be [time, batch, classes]; transpose or reshape it";
            return Err(wrong_shape(OP, "the input", x.shape(), expected));
        };
        let &[samples, longest] = targets.dims() else {
            return Err(wrong_shape(OP, "the targets", targets.shape(), "they must be [batch, longest]; reshape them"));
        };
        if [samples, inputs.len(), outputs.len()] != [batch; 3] {
            return Err(Error::Argument(format!(
                "{OP}: the input has {batch} samples, the targets have {samples}, and there are {} lengths of inputs and {} of \
                 targets; these numbers must be equal",
                inputs.len(),
                outputs.len()
            )));
        }
        if time == 0 {
            return Err(wrong_shape(OP, "the input", x.shape(), "it must have at least one time step"));
        }
        if self.blank >= classes {
            return Err(wrong_argument(OP, "blank", self.blank, &format!("below {classes}, the number of classes")));
        }
        let too_long = |lengths: &[usize], limit: usize| lengths.iter().copied().find(|&len| len > limit);
        if let Some(len) = too_long(inputs, time) {
            return Err(wrong_argument(OP, "an input length", len, &format!("at most {time}")));
        }
        match too_long(outputs, longest) {
            Some(len) => Err(wrong_argument(OP, "a target length", len, &format!("at most {longest}"))),
            None => Ok(()),
        }
    }

    /// The labels with a blank before, between and after them: `[batch, 2 · longest + 1]`.
    fn with_blanks(&self, targets: &Tensor<Int>, lengths: &[usize]) -> Result<Tensor<Int>> {
        let (device, batch, longest) = (targets.device(), targets.dims()[0], targets.dims()[1]);
        let lengths = index(batch, lengths.iter().copied(), &device)?.unsqueeze(1)?;
        let is_label = Tensor::on(&device).arange(0_i64, longest as i64, 1)?.lt(&lengths)?;
        let labels = targets.to_dtype(DType::I64)?.mul(&is_label.to_int()?)?;
        let blank = |count: usize| Tensor::on(&device).full([batch, count], self.blank as i64);
        let pairs = Tensor::stack(&[&blank(longest)?, &labels], 2)?.flatten(1, 2)?;
        Tensor::cat(&[&pairs, &blank(1)?], 1)
    }
}

/// One number for each sample, with the precision and device of `like`.
fn numbers(like: &Tensor, of_samples: impl ExactSizeIterator<Item = f64>) -> Result<Tensor> {
    let len = of_samples.len();
    let fill = |numbers: &mut [f64]| std::iter::zip(numbers, of_samples).for_each(|(to, number)| *to = number);
    Tensor::build(len, fill)?.to_dtype(like.dtype())?.to(&like.device())
}

/// For each position in `labels`, the log likelihood of all alignments that end there at the sample's last time step.
fn alignments(x: &Tensor, labels: &Tensor<Int>, input_lengths: &[usize]) -> Result<Tensor> {
    let (time, batch, positions) = (x.dims()[0], labels.dims()[0], labels.dims()[1]);
    let emitted = x.gather(2, &labels.unsqueeze(0)?.expand([time, batch, positions])?)?;
    let emitted = emitted.clamp_min(IMPOSSIBLE)?; // differences of infinite numbers would be NaN
    let impossible = constant(x, IMPOSSIBLE)?;
    let can_skip = can_skip(labels)?;
    let start =
        Tensor::on(&x.device()).arange(0_i64, positions as i64, 1)?.lt(&Tensor::on(&x.device()).full((), 2_i64)?)?;
    let mut alpha = emitted.select(0, 0)?.where_cond(&start, &impossible)?;
    if input_lengths.contains(&0) {
        // Without a time step, the empty target alone has an alignment.
        let begins = numbers(x, input_lengths.iter().map(|&len| f64::from(u8::from(len > 0))))?.to_bool()?;
        let empty = Tensor::on(&x.device()).arange(0_i64, positions as i64, 1)?.eq_scalar(0)?;
        let empty = constant(x, 0.0)?.where_cond(&empty, &impossible)?.expand([batch, positions])?;
        alpha = alpha.where_cond(&begins.unsqueeze(1)?, &empty)?;
    }
    for step in 1..if batch == 0 { 1 } else { time } {
        let moved = shifted(&alpha, 1)?;
        let skipped = shifted(&alpha, 2)?.where_cond(&can_skip, &impossible)?;
        let next = log_sum([&alpha, &moved, &skipped])?.add(&emitted.select(0, step as isize)?)?;
        let goes_on = numbers(x, input_lengths.iter().map(|&len| f64::from(u8::from(step < len))))?.to_bool()?;
        alpha = next.where_cond(&goes_on.unsqueeze(1)?, &alpha)?;
    }
    Ok(alpha)
}

/// Positions that an alignment may reach from two positions before: labels that differ from the previous label.
fn can_skip(labels: &Tensor<Int>) -> Result<Tensor<Bool>> {
    let (batch, positions) = (labels.dims()[0], labels.dims()[1]);
    let first = positions.min(2);
    let never = Tensor::on(&labels.device()).full([batch, first], false)?;
    let differs = labels.narrow(1, first, positions - first)?.ne(&labels.narrow(1, 0, positions - first)?)?;
    Tensor::cat(&[&never, &differs], 1)
}

/// Shifts each row to the right and fills the front with [`IMPOSSIBLE`].
fn shifted(alpha: &Tensor, by: usize) -> Result<Tensor> {
    let (batch, positions) = (alpha.dims()[0], alpha.dims()[1]);
    let by = by.min(positions);
    let front = constant(alpha, IMPOSSIBLE)?.expand([batch, by])?;
    Tensor::cat(&[&front, &alpha.narrow(1, 0, positions - by)?], 1)
}

/// log Σ exp of the terms, element by element.
fn log_sum<const N: usize>(terms: [&Tensor; N]) -> Result<Tensor> {
    let all = Tensor::stack(&terms, 0)?;
    let largest = all.detach().max_keepdim(0)?;
    all.sub(&largest)?.exp()?.sum(0)?.log()?.add(&largest.squeeze(0)?)
}

/// The log likelihood of each sample. Its alignments end at the last label or at the blank after it.
fn likelihoods(ends: &Tensor, target_lengths: &[usize]) -> Result<Tensor> {
    let batch = target_lengths.len();
    let at = |back: usize| {
        let positions = target_lengths.iter().map(|&len| (2 * len).saturating_sub(back));
        ends.gather(1, &index(batch, positions, &ends.device())?.unsqueeze(1)?)?.squeeze(1)
    };
    let has_labels = numbers(ends, target_lengths.iter().map(|&len| len as f64))?.to_bool()?;
    let of_label = at(1)?.where_cond(&has_labels, &constant(ends, IMPOSSIBLE)?)?;
    log_sum([&at(0)?, &of_label])
}
