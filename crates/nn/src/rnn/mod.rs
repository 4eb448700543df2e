//! Sequences of different lengths, as PyTorch's `torch.nn.utils.rnn`.
//!
//! ```
//! use pagelock_nn::{GRU, rnn};
//! use pagelock_tensor::Tensor;
//!
//! let sentences = [Tensor::randn([3, 8])?, Tensor::randn([5, 8])?];
//! let packed = rnn::pack_sequence(&sentences.each_ref(), false)?;
//! let (states, last) = GRU::new(8, 16)?.forward_packed(&packed, None)?;
//! let (padded, lengths) = rnn::pad_packed_sequence(&states, true, 0.0, None)?;
//! assert_eq!((padded.dims(), lengths, last.dims()), (&[2, 5, 16][..], vec![3, 5], &[1, 2, 16][..]));
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```

use crate::functional::shared::{constant, index, reserve, signed, wrong_argument, wrong_shape};
use pagelock_memory::HeapReservation;
use pagelock_tensor::{Int, Kind, PadMode, Result, Steps, Tensor};
use std::borrow::Borrow;
use std::sync::Arc;

/// Sequences without padding, step by step: the rows of the first step, then those of the second, and so on. The longest sequence
/// comes first.
#[derive(Clone, Debug)]
pub struct PackedSequence {
    data: Tensor,
    order: Arc<Order>,
}

#[derive(Debug)]
struct Order {
    batch_sizes: Vec<usize>,
    indices: Option<Indices>,  // `None` if the sequences were not sorted
    _counted: HeapReservation, // budget for the lists
}

#[derive(Debug)]
struct Indices {
    sorted: Vec<usize>,
    unsorted: Vec<usize>,
}

impl PackedSequence {
    /// The rows, `[sum of lengths, ..]`.
    pub fn data(&self) -> &Tensor {
        &self.data
    }

    /// The number of sequences that have a row at each step.
    pub fn batch_sizes(&self) -> &[usize] {
        &self.order.batch_sizes
    }

    /// The original position of each sequence, in packed order; `None` if they were not sorted.
    pub fn sorted_indices(&self) -> Option<&[usize]> {
        self.order.indices.as_ref().map(|indices| &*indices.sorted)
    }

    /// The packed position of each sequence, in the original order; `None` if they were not sorted.
    pub fn unsorted_indices(&self) -> Option<&[usize]> {
        self.order.indices.as_ref().map(|indices| &*indices.unsorted)
    }

    /// The length of each sequence, in the original order, in a vector that no budget counts.
    pub fn lengths(&self) -> Vec<usize> {
        let length = |packed: usize| self.batch_sizes().iter().take_while(|&&size| size > packed).count();
        (0..self.batch()).map(|original| length(self.packed_position(original))).collect()
    }

    /// Where the sequence of an original position is in packed order.
    fn packed_position(&self, original: usize) -> usize {
        self.unsorted_indices().map_or(original, |unsorted| unsorted[original])
    }

    fn batch(&self) -> usize {
        self.batch_sizes().first().copied().unwrap_or(0)
    }

    /// The same sequences with the rows of `data`, which has the same number of rows.
    pub(crate) fn with_data(&self, data: Tensor) -> PackedSequence {
        PackedSequence { data, ..self.clone() }
    }

    pub(crate) fn steps(&self) -> Result<Steps> {
        Steps::packed(self.batch_sizes())
    }

    /// The row of each sequence's last step, in packed order.
    pub(crate) fn last_rows(&self) -> Result<Tensor<Int>> {
        let fill = |rows: &mut [i64]| {
            let mut start = 0;
            for &size in self.batch_sizes() {
                rows[..size].iter_mut().enumerate().for_each(|(i, row)| *row = (start + i) as i64);
                start += size;
            }
        };
        Tensor::build(self.batch(), fill)?.to(&self.data.device())
    }
}

/// Packs padded sequences, `[steps, batch, ..]` or with `batch_first` `[batch, steps, ..]`. It uses the first
/// `lengths[i]` steps of sequence `i`. With `enforce_sorted`, lengths must not increase.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) unless there is one length for each sequence, if one is 0 or
/// longer than the tensor, or if they are not sorted although they must be.
pub fn pack_padded_sequence(
    x: &Tensor,
    lengths: &[usize],
    batch_first: bool,
    enforce_sorted: bool,
) -> Result<PackedSequence> {
    const OP: &str = "pack_padded_sequence";
    let (steps, batch) = match x.dims() {
        [batch, steps, ..] if batch_first => (*steps, *batch),
        [steps, batch, ..] => (*steps, *batch),
        _ => {
            return Err(wrong_shape(
                OP,
                "the input",
                x.shape(),
                "it must have a dimension of steps and one of sequences",
            ));
        }
    };
    if lengths.len() != batch {
        return Err(wrong_argument(
            OP,
            "the number of lengths",
            lengths.len(),
            &format!("{batch}, one for each sequence"),
        ));
    }
    if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > steps) {
        return Err(wrong_argument(OP, "a length", length, &format!("from 1 to {steps}, the number of steps")));
    }
    if enforce_sorted && !lengths.is_sorted_by(|a, b| a >= b) {
        let expected = "the longest first; sort them, or set enforce_sorted to false";
        return Err(wrong_argument(OP, "the order of lengths", "not sorted", expected));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let counted = reserve(OP, batch.saturating_mul(2).saturating_add(longest))?;
    let mut sorted: Vec<usize> = (0..batch).collect();
    sorted.sort_unstable_by_key(|&i| (std::cmp::Reverse(lengths[i]), i));
    let at_step = |step: usize| lengths.iter().filter(|&&length| length > step).count();
    let batch_sizes: Vec<usize> = (0..longest).map(at_step).collect();
    let indices = batch_sizes.iter().enumerate().flat_map(|(step, &size)| {
        sorted[..size].iter().map(move |&i| if batch_first { i * steps + step } else { step * batch + i })
    });
    let rows = index(batch_sizes.iter().sum(), indices, &x.device())?;
    let data = x.flatten(0, 1)?.index_select(0, &rows)?;
    let indices = (!enforce_sorted).then(|| {
        let mut unsorted = vec![0; batch];
        sorted.iter().enumerate().for_each(|(packed, &original)| unsorted[original] = packed);
        Indices { sorted, unsorted }
    });
    Ok(PackedSequence { data, order: Arc::new(Order { batch_sizes, indices, _counted: counted }) })
}

/// The inverse of [`pack_padded_sequence`]: padded sequences and their lengths, in the original order. Sequences are
/// padded to `total_length` steps, or without it to the length of the longest.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `total_length` is less than the longest sequence.
pub fn pad_packed_sequence(
    packed: &PackedSequence,
    batch_first: bool,
    padding_value: f64,
    total_length: Option<usize>,
) -> Result<(Tensor, Vec<usize>)> {
    const OP: &str = "pad_packed_sequence";
    let (data, batch_sizes, batch) = (packed.data(), packed.batch_sizes(), packed.batch());
    let steps = total_length.unwrap_or(batch_sizes.len());
    if steps < batch_sizes.len() {
        let expected = format!("at least {}, the longest sequence", batch_sizes.len());
        return Err(wrong_argument(OP, "total_length", steps, &expected));
    }
    let _lists = reserve(OP, batch + batch_sizes.len())?;
    let lengths = packed.lengths();
    let starts: Vec<usize> = batch_sizes
        .iter()
        .scan(0, |start, size| {
            *start += size;
            Some(*start - size)
        })
        .collect();
    let n_rows = data.shape()[0];
    let len = batch.saturating_mul(steps);
    let rows = (0..len).map(|at| {
        let (step, i) = if batch_first { (at % steps, at / steps) } else { (at / batch, at % batch) };
        if step < lengths[i] { starts[step] + packed.packed_position(i) } else { n_rows }
    });
    let rows = index(len, rows, &data.device())?;
    let mut one = data.dims().to_vec();
    one[0] = 1;
    let padding = constant(data, padding_value)?.expand(&one[..])?;
    let padded = Tensor::cat(&[data, &padding], 0)?.index_select(0, &rows)?;
    let sizes = if batch_first { [batch, steps] } else { [steps, batch] };
    Ok((padded.unflatten(0, sizes)?, lengths))
}

/// Pads sequences `[length, ..]` to the length of the longest and stacks them: `[steps, batch, ..]`, or with
/// `batch_first` `[batch, steps, ..]`.
///
/// ```
/// # use pagelock_nn::rnn::pad_sequence;
/// # use pagelock_tensor::Tensor;
/// let tokens = [Tensor::new([5, 7, 2])?, Tensor::new([9])?];
/// assert_eq!(pad_sequence(&tokens, true, 0.0)?.to_vec::<i64>()?, [5, 7, 2, 9, 0, 0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if there are none, or if their other sizes differ.
pub fn pad_sequence<K: Kind>(
    sequences: &[impl Borrow<Tensor<K>>],
    batch_first: bool,
    padding_value: f64,
) -> Result<Tensor<K>> {
    let length = |sequence: &Tensor<K>| sequence.dims().first().copied().unwrap_or(0);
    let longest = sequences.iter().map(|sequence| length(sequence.borrow())).max().unwrap_or(0);
    let padded = sequences.iter().map(|sequence| {
        let sequence = sequence.borrow();
        if sequence.rank() == 0 {
            let expected = "it must have a dimension of steps";
            return Err(wrong_shape("pad_sequence", "a sequence", sequence.shape(), expected));
        }
        let mut sizes = vec![0; 2 * sequence.rank()];
        sizes[2 * sequence.rank() - 1] = (longest - length(sequence)) as isize;
        sequence.pad(&sizes, PadMode::Constant(padding_value))
    });
    Tensor::stack(&padded.collect::<Result<Vec<_>>>()?, isize::from(!batch_first))
}

/// The inverse of [`pad_sequence`].
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) unless there is one length for each sequence, or if one is
/// too long.
pub fn unpad_sequence(padded: &Tensor, lengths: &[usize], batch_first: bool) -> Result<Vec<Tensor>> {
    let dim = usize::from(!batch_first);
    let batch = padded.dims().get(dim).copied().unwrap_or(0);
    if lengths.len() != batch {
        let expected = format!("{batch}, one for each sequence");
        return Err(wrong_argument("unpad_sequence", "the number of lengths", lengths.len(), &expected));
    }
    let one = |(i, &length): (usize, &usize)| padded.select(signed(dim), signed(i))?.narrow(0, 0, length);
    lengths.iter().enumerate().map(one).collect()
}

/// Pads and packs sequences: [`pad_sequence`], then [`pack_padded_sequence`].
///
/// # Errors
/// The errors of both.
pub fn pack_sequence(sequences: &[&Tensor], enforce_sorted: bool) -> Result<PackedSequence> {
    let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.dims().first().copied().unwrap_or(0)).collect();
    pack_padded_sequence(&pad_sequence(sequences, false, 0.0)?, &lengths, false, enforce_sorted)
}

/// The inverse of [`pack_sequence`].
///
/// # Errors
/// If there is not enough memory.
pub fn unpack_sequence(packed: &PackedSequence) -> Result<Vec<Tensor>> {
    let (padded, lengths) = pad_packed_sequence(packed, false, 0.0, None)?;
    unpad_sequence(&padded, &lengths, false)
}
