//! What differs between a [`DataLoader`], whose dataset gives samples by index, and a [`StreamLoader`], whose dataset gives
//! them shard by shard: how they are made, and what decides the order.

use std::marker::PhantomData;
use std::sync::Arc;

use super::loaders::{DataLoader, StreamLoader};
use super::order::{OrderKind, Share};
use super::source::{Indexed, Sharded};
use crate::Result;
use crate::collate::Stack;
use crate::dataset::Dataset;
use crate::error::check_rank;
use crate::iterable::IterableDataset;
use crate::sampler::{RandomSampler, Sampler, SequentialSampler};

impl<B: Send + 'static> DataLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    pub fn new<D>(dataset: D) -> Self
    where
        D: Dataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::of(Indexed { dataset, collate: Stack::stack, gather: D::gather }, first_to_last())
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets one or more samples in order.
    ///
    /// # Examples
    /// Texts of different lengths, padded to the longest of each batch:
    /// ```
    /// # use pagelock_data::{DataLoader, Dataset, TensorDataset};
    /// # use pagelock_tensor::{Int, Tensor};
    /// let numbers = TensorDataset::new(Tensor::arange(0, 4, 1)?)?;
    /// let texts = numbers.transform(0, |i, _| Ok(["to", "be", "or", "not"][i.item::<i64>()? as usize]));
    /// let loader = DataLoader::with_collate(texts, |texts| {
    ///     let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    ///     let padded: String = texts.iter().map(|text| format!("{text:<longest$}")).collect();
    ///     Ok(Tensor::from_slice(padded.as_bytes(), [texts.len(), longest])?)
    /// });
    /// let batch: Tensor<Int> = loader.batch_size(4).iter().next().unwrap()?;
    /// assert_eq!(batch.to_vec::<u8>()?, b"to be or not");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: Dataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        Self::of(Indexed { dataset, collate, gather: |_, _| Ok(None) }, first_to_last())
    }

    /// A new random order in every epoch, all of them drawn from `seed`.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.core.set_order(OrderKind::Sampler(Arc::new(RandomSampler::new(seed))));
        self
    }

    /// The order that `sampler` gives.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, FixedSampler, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(3).sampler(FixedSampler::new([30, 10, 20])?);
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<f32>()?, [30.0, 10.0, 20.0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.core.set_order(OrderKind::Sampler(Arc::new(sampler)));
        self
    }

    /// How many batches an epoch has; never zero.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the dataset or the order is empty, or a setting is out of
    /// range. The loop would give the same error instead of its first batch.
    #[allow(clippy::len_without_is_empty)] // an empty loader is an error
    pub fn len(&self) -> Result<usize> {
        self.core.n_batches()
    }

    /// How many samples the dataset has.
    pub fn n_samples(&self) -> usize {
        self.core.recipe.source.len()
    }
}

impl<B: Send + 'static> StreamLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    pub fn new<D>(dataset: D) -> Self
    where
        D: IterableDataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::with_collate(dataset, Stack::stack)
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets one or more samples in order.
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: IterableDataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        let all = OrderKind::Shards(Share { rank: 0, world_size: 1 });
        Self::of(Sharded { dataset, collate, batches: PhantomData }, all)
    }

    /// Reads only the shards `rank`, `rank + world_size` and so on: the share of one of several processes.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if `rank` is not below `world_size`.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Shards;
    /// # impl IterableDataset for Shards {
    /// #     type Sample = i64;
    /// #     fn n_shards(&self) -> usize { 5 }
    /// #     fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new(std::iter::once(Ok(shard as i64))))
    /// #     }
    /// # }
    /// let loader = StreamLoader::new(Shards).distributed(1, 2)?; // shards 1 and 3
    /// let shards: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?[0])).collect::<Result<_>>()?;
    /// assert_eq!(shards, [1, 3]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn distributed(mut self, rank: usize, world_size: usize) -> Result<Self> {
        check_rank(rank, world_size)?;
        self.core.set_order(OrderKind::Shards(Share { rank, world_size }));
        Ok(self)
    }
}

fn first_to_last() -> OrderKind {
    OrderKind::Sampler(Arc::new(SequentialSampler))
}
