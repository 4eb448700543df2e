//! [`AdaptiveLogSoftmaxWithLoss`]: a cross entropy of many classes, most of which are rare.

use crate::functional::shared::{index, reserve, size, wrong_argument, wrong_shape};
use crate::layers::debug_is_display;
use crate::{Forward, Linear, Module, Sequential, module_scope};
use pagelock_tensor::{Error, Generator, Int, Result, Tensor, default_generator};

const OP: &str = "AdaptiveLogSoftmaxWithLoss";

/// The cross entropy of many classes with very different frequencies (Grave et al., 2017,
/// <https://arxiv.org/abs/1609.04309>), as PyTorch's `nn.AdaptiveLogSoftmaxWithLoss`. Classes are numbered in the
/// order of their frequency, the most frequent first. `cutoffs` divides them into clusters: classes below the first
/// cutoff are scored for all samples, classes of a later cluster only for samples whose class is in that cluster.
///
/// - input: `[batch, in_features]` and classes `[batch]`; or one sample, `[in_features]` and `[]`
/// - output: the logarithms of the probabilities of these classes, `[batch]`, and the loss, their negative mean
///
/// Cluster i, counted from 0, projects its input to `in_features / div_valueⁱ⁺¹` features, rounded down.
///
/// # Examples
/// ```
/// use pagelock_nn::AdaptiveLogSoftmaxWithLoss;
/// use pagelock_tensor::Tensor;
///
/// let words = AdaptiveLogSoftmaxWithLoss::new(16, 1000, &[10, 100])?; // 10 frequent ones, 90 less so, 900 rare ones
/// let x = Tensor::randn([4, 16])?;
/// let (log_probabilities, loss) = words.forward(&x, &Tensor::new([3, 999, 50, 0])?)?;
/// assert_eq!((log_probabilities.dims(), loss.dims()), (&[4][..], &[][..]));
/// assert_eq!(words.log_prob(&x)?.dims(), [4, 1000]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct AdaptiveLogSoftmaxWithLoss {
    /// Scores of the frequent classes and of the clusters.
    pub head: Linear,
    /// Scores of the classes of each cluster.
    pub tail: Vec<Sequential>,
    /// Where clusters begin, and the number of classes.
    #[module(skip)]
    cutoffs: Vec<usize>,
}

impl AdaptiveLogSoftmaxWithLoss {
    /// With PyTorch's `div_value` of 4, no bias, and weights from the default generator.
    ///
    /// # Errors
    /// As [`AdaptiveLogSoftmaxWithLoss::new_with`].
    pub fn new(in_features: usize, n_classes: usize, cutoffs: &[usize]) -> Result<Self> {
        Self::new_with([in_features, n_classes], cutoffs, 4.0, false, default_generator())
    }

    /// Each cluster has `div_value` times fewer features than the cluster before. The head has a bias if `head_bias`
    /// is set. Weights come from `generator`.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there are no cutoffs, they do not increase from above
    /// 0 to below `n_classes`, or a cluster would have no features; the weights do not fit the memory budget.
    pub fn new_with(
        [in_features, n_classes]: [usize; 2],
        cutoffs: &[usize],
        div_value: f64,
        head_bias: bool,
        generator: &Generator,
    ) -> Result<Self> {
        let cutoffs = [cutoffs, &[n_classes]].concat();
        let grow = cutoffs.len() > 1 && cutoffs[0] > 0 && cutoffs.windows(2).all(|pair| pair[0] < pair[1]);
        if !grow {
            let expected = format!("increasing numbers above 0 and below n_classes, which is {n_classes}");
            let found = format!("{:?}", &cutoffs[..cutoffs.len() - 1]);
            return Err(wrong_argument(OP, "cutoffs", found, &expected));
        }
        let n_clusters = cutoffs.len() - 1;
        let head = Linear::new_with(in_features, cutoffs[0] + n_clusters, generator)?;
        let head = if head_bias { head } else { head.without_bias() };
        let mut tail = Vec::with_capacity(n_clusters);
        let mut power = 1.0;
        for pair in cutoffs.windows(2) {
            power *= div_value;
            let width = (in_features as f64 / power).floor();
            if !(width >= 1.0 && width.is_finite()) {
                let expected = format!("small enough that each cluster keeps at least one of {in_features} features");
                return Err(wrong_argument(OP, "div_value", div_value, &expected));
            }
            let width = width as usize;
            let down = Linear::new_with(in_features, width, generator)?.without_bias();
            let up = Linear::new_with(width, pair[1] - pair[0], generator)?.without_bias();
            tail.push(Sequential::new((down, up)));
        }
        Ok(Self { head, tail, cutoffs })
    }

    /// The logarithms of the probabilities of the classes `target`, and the loss. The host reads `target`, which
    /// waits for a GPU.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit, the batch is empty, or a class
    /// is negative or not below the number of classes.
    pub fn forward(&self, x: &Tensor, target: &Tensor<Int>) -> Result<(Tensor, Tensor)> {
        let _scope = module_scope(self);
        if x.rank() == 1 && target.rank() == 0 {
            let (of_one, loss) = self.of_batch(&x.unsqueeze(0)?, &target.unsqueeze(0)?)?;
            return Ok((of_one.squeeze(0)?, loss));
        }
        self.of_batch(x, target)
    }

    fn of_batch(&self, x: &Tensor, target: &Tensor<Int>) -> Result<(Tensor, Tensor)> {
        self.check(x)?;
        if target.dims() != &x.dims()[..1] {
            let expected = format!("the input {} needs one class for each row", x.shape());
            return Err(wrong_shape(OP, "the target", target.shape(), &expected));
        }
        if target.is_empty() {
            return Err(Error::Argument(format!("{OP}: the batch is empty; skip empty batches")));
        }
        let classes = target.clone().into_elements::<i64>()?;
        let _listed = reserve(OP, 2 * classes.len())?; // lists that grow may be twice as long
        let rows = self.rows_of_clusters(&classes)?;
        let first = self.cutoffs[0];
        let column = |row: usize| {
            let class = classes[row] as usize; // in range: `rows_of_clusters` checked it
            let cluster = self.cutoffs.partition_point(|&end| end <= class);
            if cluster == 0 { class } else { first + cluster - 1 }
        };
        let mut output = picked(&self.head.forward(x)?, (0..classes.len()).map(column))?;
        for ((tail, rows), &start) in self.tail.iter().zip(&rows).zip(&self.cutoffs) {
            if rows.is_empty() {
                continue;
            }
            let in_cluster = index(rows.len(), rows.iter().copied(), &x.device())?;
            let scores = tail.forward(&x.index_select(0, &in_cluster)?)?;
            let within = picked(&scores, rows.iter().map(|&row| classes[row] as usize - start))?;
            output = output.index_add(0, &in_cluster, &within)?; // a row is in one cluster only
        }
        let loss = output.mean(..)?.neg()?;
        Ok((output, loss))
    }

    /// For each cluster, the rows whose class is in it.
    fn rows_of_clusters(&self, classes: &[i64]) -> Result<Vec<Vec<usize>>> {
        let mut rows = vec![Vec::new(); self.tail.len()];
        for (row, &class) in classes.iter().enumerate() {
            let cluster = usize::try_from(class).map(|class| self.cutoffs.partition_point(|&end| end <= class));
            match cluster {
                Ok(0) => {}
                Ok(cluster) if cluster <= rows.len() => rows[cluster - 1].push(row),
                _ => {
                    let n_classes = self.n_classes();
                    let expected = format!("at least 0 and below the number of classes, {n_classes}");
                    return Err(wrong_argument(OP, &format!("class {row} of the target"), class, &expected));
                }
            }
        }
        Ok(rows)
    }

    /// The logarithms of the probabilities of all classes: `[batch, n_classes]`.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the input is not `[batch, in_features]`.
    pub fn log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        self.check(x)?;
        let head = self.head.forward(x)?.log_softmax(1)?;
        let first = self.cutoffs[0];
        let mut parts = vec![head.narrow(1, 0, first)?];
        for (cluster, tail) in self.tail.iter().enumerate() {
            parts.push(tail.forward(x)?.log_softmax(1)?.add(&head.narrow(1, first + cluster, 1)?)?);
        }
        Tensor::cat(&parts, 1)
    }

    /// The most probable class of each row: `[batch]`.
    ///
    /// # Errors
    /// As [`AdaptiveLogSoftmaxWithLoss::log_prob`].
    pub fn predict(&self, x: &Tensor) -> Result<Tensor<Int>> {
        self.log_prob(x)?.argmax(1)
    }

    fn n_classes(&self) -> usize {
        self.cutoffs.last().copied().unwrap_or(0)
    }

    fn check(&self, x: &Tensor) -> Result<()> {
        let in_features = size(&self.head.weight, 1);
        if matches!(*x.dims(), [_, features] if features == in_features) {
            return Ok(());
        }
        Err(wrong_shape(OP, "the input", x.shape(), &format!("it must be [batch, {in_features}]; reshape it")))
    }
}

debug_is_display!(AdaptiveLogSoftmaxWithLoss);

/// The logarithm of the probability of one column of each row of `scores`.
fn picked(scores: &Tensor, columns: impl Iterator<Item = usize>) -> Result<Tensor> {
    let columns = index(scores.dims()[0], columns, &scores.device())?;
    scores.log_softmax(1)?.gather(1, &columns.unsqueeze(1)?)?.squeeze(1)
}
