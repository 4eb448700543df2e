//! Histograms: how many values lie in each bucket.
//!
//! Values are counted as in NumPy: a bucket contains its lower edge but not its upper edge, except for the last bucket,
//! which contains both. Buckets are written as in PyTorch: empty buckets at both ends are left out, except for one at
//! the front, whose limit is the lower edge of the first bucket with values.

use std::ops::Range;

use crate::array::{Array, ToArray};
use crate::error::{Result, ensure, refuse};
use crate::proto::{Content, Histogram, Value};
use crate::step::Step;
use crate::writer::SummaryWriter;

/// The largest number in [`Bins::Equal`].
const MAX_BINS: usize = 1 << 20;

/// The buckets of a histogram.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Bins {
    /// TensorFlow's edges: from 1e-12 to 1e20, each 1.1 times the one before; the same with a minus sign; and zero.
    /// Values beyond the edges are not counted.
    #[default]
    TensorFlow,
    /// This many bins of equal width between the least and the largest value.
    Equal(usize),
    /// Buckets between these edges, which must increase.
    Edges(Vec<f64>),
}

impl SummaryWriter {
    /// Adds a histogram of the values.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Argument`](crate::Error::Argument) if there is no value, or none
    /// of them lies in a bucket.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{Bins, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// let weights = [0.1f32, -0.2, 0.15];
    /// writer.add_histogram("fc/weight", &weights, 0)?;
    /// writer.add_histogram_in("fc/weight", &weights, Bins::Equal(30), 1)?;
    /// writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_histogram(&self, tag: &str, values: &(impl ToArray + ?Sized), step: impl Into<Step>) -> Result<()> {
        self.add_histogram_in(tag, values, Bins::TensorFlow, step)
    }

    /// [`add_histogram`](Self::add_histogram) with other buckets.
    ///
    /// # Errors
    /// As [`add_histogram`](Self::add_histogram); also if the edges do not increase, or [`Bins::Equal`] has 0 or more
    /// than 2^20 buckets or is used for values that are not finite.
    pub fn add_histogram_in(
        &self,
        tag: &str,
        values: &(impl ToArray + ?Sized),
        bins: Bins,
        step: impl Into<Step>,
    ) -> Result<()> {
        let histogram = histogram(tag, &values.to_array()?, &bins)?;
        let value = Value { tag: tag.to_owned(), metadata: None, content: Some(Content::Histogram(histogram)) };
        self.add_value(self.main, value, step.into())
    }
}

fn histogram(tag: &str, values: &Array<'_>, bins: &Bins) -> Result<Histogram> {
    let all = 0..values.len();
    ensure!(!all.is_empty(), "the histogram `{tag}` has no values");
    let (min, max) = (extreme(values, f64::min), extreme(values, f64::max));
    let edges = match bins {
        Bins::TensorFlow => tensorflow_edges(),
        Bins::Equal(n) => equal_edges(tag, *n, min, max)?,
        Bins::Edges(edges) => edges.clone(),
    };
    let is_increasing = edges.len() >= 2 && edges.is_sorted_by(|a, b| a < b);
    ensure!(is_increasing, "the histogram `{tag}` needs two or more edges in increasing order");

    let counts = count(values, &edges);
    let first = counts.iter().position(|&count| count > 0.0);
    let Some(first) = first else {
        let (n, low, high) = (values.len(), edges[0], edges[edges.len() - 1]);
        refuse!("none of the {n} values of the histogram `{tag}` lies between {low:e} and {high:e}");
    };
    let end = counts.iter().rposition(|&count| count > 0.0).map_or(first, |last| last + 1);
    let bucket = std::iter::once(0.0).chain(counts[first..end].iter().copied()).collect();
    let sum_squares = pairwise_sum(all.clone(), &|at| values.f64(at) * values.f64(at));
    let sum = pairwise_sum(all, &|at| values.f64(at));
    let bucket_limit = edges[first..=end].to_vec();
    Ok(Histogram { min, max, num: values.len() as f64, sum, sum_squares, bucket_limit, bucket })
}

/// The least or largest value; NaN if any value is NaN.
fn extreme(values: &Array<'_>, of: fn(f64, f64) -> f64) -> f64 {
    let of = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { of(a, b) };
    (0..values.len()).map(|at| values.f64(at)).reduce(of).unwrap_or(f64::NAN)
}

fn tensorflow_edges() -> Vec<f64> {
    let above = || std::iter::successors(Some(1e-12), |edge| Some(edge * 1.1)).take_while(|&edge| edge < 1e20);
    let mut below: Vec<f64> = above().map(|edge: f64| -edge).collect();
    below.reverse();
    below.into_iter().chain([0.0]).chain(above()).collect()
}

/// Edges as NumPy's `linspace` gives them. If all values are equal, the range around them has a width of 1.
fn equal_edges(tag: &str, n: usize, min: f64, max: f64) -> Result<Vec<f64>> {
    ensure!((1..=MAX_BINS).contains(&n), "the histogram `{tag}` cannot have {n} buckets, only 1 to {MAX_BINS}");
    let is_finite = min.is_finite() && max.is_finite();
    ensure!(is_finite, "the values of the histogram `{tag}` are not all finite ({min} to {max}); give edges for them");
    let (low, high) = if min == max { (min - 0.5, max + 0.5) } else { (min, max) };
    let step = (high - low) / n as f64;
    Ok((0..n).map(|at| at as f64 * step + low).chain([high]).collect())
}

/// How many values lie between each edge and the next one.
fn count(values: &Array<'_>, edges: &[f64]) -> Vec<f64> {
    let mut counts = vec![0.0; edges.len() - 1];
    let last = edges[edges.len() - 1];
    for value in (0..values.len()).map(|at| values.f64(at)) {
        if value >= edges[0] && value <= last {
            let above = edges.partition_point(|&edge| edge <= value);
            counts[above.min(edges.len() - 1) - 1] += 1.0;
        }
    }
    counts
}

/// A sum whose rounding error grows with the logarithm of the number of values.
fn pairwise_sum(range: Range<usize>, of: &impl Fn(usize) -> f64) -> f64 {
    if range.len() <= 64 {
        return range.map(of).sum();
    }
    let middle = range.start + range.len() / 2;
    pairwise_sum(range.start..middle, of) + pairwise_sum(middle..range.end, of)
}
