//! `einsum`: sums of products, written with a letter for each dimension. Composed of views, sums and batched matrix
//! products.
//!
//! Operands are multiplied from left to right, as PyTorch does without an optimizer. Dimensions that only one operand
//! has and that are not needed later are summed first.

use std::collections::BTreeMap;

use super::reduce::{Reduced, sum};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::Numeric;
use crate::shape::{Axes, Shape};
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// The sum of products that `equation` describes, in PyTorch's notation: a letter for each dimension of each
    /// operand, and after `->` the letters of the result.
    ///
    /// - A letter that is missing from the result is summed over; a letter that occurs twice in an operand selects
    ///   the diagonal.
    /// - `...` means any number of dimensions, which broadcast.
    /// - Without `->`, the result has `...`, then the letters that occur once, in alphabetical order.
    ///
    /// Operands are multiplied from left to right.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (a, b) = (Tensor::ones([2, 3])?, Tensor::ones([3, 4])?);
    /// assert_eq!(Tensor::einsum("ij,jk->ik", &[&a, &b])?.dims(), [2, 4]);
    /// assert_eq!(Tensor::einsum("ij->j", &[&a])?.to_vec::<f32>()?, [2.0; 3]);
    /// assert_eq!(Tensor::einsum("ii", &[&Tensor::ones([3, 3])?])?.item::<f32>()?, 3.0);
    /// assert_eq!(Tensor::einsum("...ij,...kj->...ik", &[&Tensor::ones([5, 2, 3])?, &a])?.dims(), [5, 2, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an equation that does not fit the operands: other characters, dimensions without a
    /// letter, one letter for two sizes, or a result that has a letter twice or one that no operand has.
    pub fn einsum(equation: &str, operands: &[&Tensor<K>]) -> Result<Tensor<K>> {
        let operands: Vec<&Raw> = operands.iter().map(|operand| operand.raw()).collect();
        einsum(equation, &operands).map(Raw::typed)
    }
}

/// The name of a dimension: a letter, or its position from the end among the dimensions of `...`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Hidden(usize),
    Letter(char),
}

/// A tensor with a label for each dimension.
struct Labeled {
    tensor: Raw,
    labels: Vec<Label>,
}

fn refused<T>(equation: &str, problem: impl std::fmt::Display) -> Result<T> {
    Err(Error::bad_argument("einsum", "the equation", format!("`{equation}`"), problem))
}

fn einsum(equation: &str, operands: &[&Raw]) -> Result<Raw> {
    let spaceless: String = equation.chars().filter(|sign| *sign != ' ').collect();
    let (left, right) = match spaceless.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&spaceless[..], None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != operands.len() || operands.is_empty() {
        let problem = format!("it has {} terms for {} operands; write one for each", terms.len(), operands.len());
        return refused(equation, problem);
    }
    let mut all = Vec::new();
    for (term, operand) in terms.iter().zip(operands) {
        all.push(labeled(equation, term, operand)?);
    }
    let out = out_labels(equation, right, &all)?;
    let all = in_common_sizes(equation, all)?;
    contracted(all, &out)?.in_order(&out)
}

/// The labels of a term. `hidden` gives the number of dimensions of `...`, from the number of letters.
fn labels_of(equation: &str, term: &str, hidden: impl Fn(usize) -> Result<usize>) -> Result<Vec<Label>> {
    let (front, back) = term.split_once("...").map_or((term, None), |(front, back)| (front, Some(back)));
    let letters = front.chars().chain(back.unwrap_or("").chars());
    if let Some(sign) = letters.clone().find(|sign| !sign.is_ascii_alphabetic()) {
        return refused(equation, format!("`{sign}` is not a letter; name dimensions by letters, or several by `...`"));
    }
    let n_hidden = hidden(letters.count())?;
    let letters = |part: &str| part.chars().map(Label::Letter).collect::<Vec<_>>();
    let mut labels = letters(front);
    if let Some(back) = back {
        labels.extend((0..n_hidden).rev().map(Label::Hidden));
        labels.extend(letters(back));
    }
    Ok(labels)
}

/// An operand with its labels. Dimensions with the same label are replaced by their diagonal.
fn labeled(equation: &str, term: &str, operand: &Raw) -> Result<Labeled> {
    let rank = operand.rank();
    let hidden = |letters: usize| match rank.checked_sub(letters) {
        Some(rest) if rest == 0 || term.contains("...") => Ok(rest),
        _ => refused(equation, format!("`{term}` must have one letter for each dimension of {}", operand.shape())),
    };
    let mut labels = labels_of(equation, term, hidden)?;
    let mut tensor = operand.clone();
    while let Some((first, second)) = repeated_label(&labels) {
        let label = labels[first];
        if tensor.shape()[first] != tensor.shape()[second] {
            let sizes = format!("two dimensions of {} with different sizes", operand.shape());
            return refused(equation, format!("`{term}` uses one letter for {sizes}"));
        }
        tensor = tensor.diagonal(0, first as isize, second as isize)?;
        labels.remove(second);
        labels.remove(first);
        labels.push(label);
    }
    Ok(Labeled { tensor, labels })
}

/// The indices of two equal labels.
fn repeated_label(labels: &[Label]) -> Option<(usize, usize)> {
    let second = (0..labels.len()).find(|&i| labels[..i].contains(&labels[i]))?;
    Some((labels.iter().position(|label| *label == labels[second])?, second))
}

fn out_labels(equation: &str, right: Option<&str>, all: &[Labeled]) -> Result<Vec<Label>> {
    let mut counts = BTreeMap::new();
    all.iter().flat_map(|operand| &operand.labels).for_each(|label| *counts.entry(*label).or_insert(0) += 1);
    let n_hidden = counts.keys().filter(|label| matches!(label, Label::Hidden(_))).count();
    let Some(term) = right else {
        let in_terms = equation.chars();
        let once = |letter: char| in_terms.clone().filter(|sign| *sign == letter).count() == 1;
        let letters = counts.keys().copied().filter(|label| matches!(label, Label::Letter(letter) if once(*letter)));
        return Ok((0..n_hidden).rev().map(Label::Hidden).chain(letters).collect());
    };
    let labels = labels_of(equation, term, |_| Ok(n_hidden))?;
    if repeated_label(&labels).is_some() {
        return refused(equation, "the result uses a letter twice; write each once");
    }
    let unknown = labels.iter().find(|label| !counts.contains_key(label));
    if let Some(Label::Letter(letter)) = unknown {
        return refused(equation, format!("no operand has the `{letter}` of the result"));
    }
    Ok(labels)
}

/// Expands dimensions of size 1 to the size that other operands have under the same label.
fn in_common_sizes(equation: &str, all: Vec<Labeled>) -> Result<Vec<Labeled>> {
    let mut sizes = BTreeMap::new();
    for operand in &all {
        for (&label, &size) in operand.labels.iter().zip(operand.tensor.shape().iter()) {
            let common = *sizes
                .entry(label)
                .and_modify(|common| {
                    if *common == 1 {
                        *common = size
                    }
                })
                .or_insert(size);
            if size != common && size != 1 {
                let name = match label {
                    Label::Letter(letter) => format!("letter `{letter}`"),
                    Label::Hidden(place) => format!("dimension -{} of `...`", place + 1),
                };
                return refused(equation, format!("{name} is {common} in one operand and {size} in another"));
            }
        }
    }
    let expanded = |operand: Labeled| {
        let mut shape = Shape::SCALAR;
        operand.labels.iter().try_for_each(|label| shape.push(sizes[label]))?;
        Ok(Labeled { tensor: operand.tensor.expand(shape)?, ..operand })
    };
    all.into_iter().map(expanded).collect()
}

/// The product of all operands, with the labels of the result in any order.
fn contracted(all: Vec<Labeled>, out: &[Label]) -> Result<Labeled> {
    let mut rest = all.into_iter().collect::<std::collections::VecDeque<_>>();
    let mut total: Option<Labeled> = None;
    while let Some(next) = rest.pop_front() {
        let needed = |label: &Label| out.contains(label) || rest.iter().any(|other| other.labels.contains(label));
        total = Some(match total {
            None => next.summed(|label| needed(label))?,
            Some(left) => {
                let right = next.summed(|label| needed(label) || left.labels.contains(label))?;
                let left = left.summed(|label| needed(label) || right.labels.contains(label))?;
                product(&left, &right, needed)?
            }
        });
    }
    total.ok_or_else(|| Error::empty("einsum", "the list of operands", "give at least one"))
}

impl Labeled {
    /// The sum over all dimensions except those to keep.
    fn summed(self, keep: impl Fn(&Label) -> bool) -> Result<Labeled> {
        let gone: Vec<isize> = (0..self.labels.len()).filter(|&i| !keep(&self.labels[i])).map(|i| i as isize).collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let axes = gone[..].resolve("einsum", self.tensor.shape())?;
        let tensor = sum(&self.tensor, Reduced { axes, keepdim: false })?;
        Ok(Labeled { tensor, labels: self.labels.into_iter().filter(keep).collect() })
    }

    /// The tensor with its dimensions in this order.
    fn in_order(&self, order: &[Label]) -> Result<Raw> {
        let place = |label: &Label| self.labels.iter().position(|mine| mine == label).unwrap_or(0) as isize;
        self.tensor.permute(&order.iter().map(place).collect::<Vec<_>>())
    }

    /// The tensor reshaped to three dimensions; the dimensions of each part's labels are merged.
    fn as_batch(&self, parts: [&[Label]; 3]) -> Result<Raw> {
        let sizes = parts.mapped(|labels| self.size(labels) as isize);
        self.in_order(&parts.concat())?.reshape(&sizes)
    }

    fn size(&self, labels: &[Label]) -> usize {
        let sizes = self.labels.iter().zip(self.tensor.shape().iter());
        sizes.filter(|(label, _)| labels.contains(label)).map(|(_, &size)| size).product()
    }
}

/// The product of two operands, summed over the labels that both have and that are not needed later: a batched matrix
/// product.
fn product(left: &Labeled, right: &Labeled, needed: impl Fn(&Label) -> bool) -> Result<Labeled> {
    let (shared, of_left): (Vec<_>, Vec<_>) =
        left.labels.iter().copied().partition(|label| right.labels.contains(label));
    let (batch, inner): (Vec<_>, Vec<_>) = shared.into_iter().partition(needed);
    let of_right: Vec<_> = right.labels.iter().copied().filter(|label| !left.labels.contains(label)).collect();
    let mut shape = Shape::SCALAR;
    for (operand, labels) in [(left, &batch), (left, &of_left), (right, &of_right)] {
        labels.iter().try_for_each(|label| shape.push(operand.size(&[*label])))?;
    }
    let a = left.as_batch([&batch, &of_left, &inner])?;
    let b = right.as_batch([&batch, &inner, &of_right])?;
    let tensor = match inner.is_empty() {
        true => a.mul(&b)?,
        false => a.matmul(&b)?,
    };
    Ok(Labeled { tensor: tensor.reshape_to(shape)?, labels: [batch, of_left, of_right].concat() })
}
