//! What only a [`StreamLoader`] has: shards, which it shares with other processes.

use std::marker::PhantomData;
use std::sync::Arc;

use super::loaders::StreamLoader;
use super::order::{OrderKind, Share};
use super::source::Sharded;
use crate::Result;
use crate::collate::Stack;
use crate::error::check_rank;
use crate::iterable::IterableDataset;

impl<B: Send + 'static> StreamLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    ///
    /// # Examples
    /// See [`IterableDataset`].
    pub fn new<D>(dataset: D) -> Self
    where
        D: IterableDataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::with_collate(dataset, Stack::stack)
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets the samples in order and at least one.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Words;
    /// # impl IterableDataset for Words {
    /// #     type Sample = &'static str;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<&'static str>> {
    /// #         Ok(Box::new(["to", "be", "or"].into_iter().map(Ok)))
    /// #     }
    /// # }
    /// let loader = StreamLoader::with_collate(Words, |words| Ok(words.join(" "))).batch_size(2);
    /// assert_eq!(loader.iter().collect::<Result<Vec<_>>>()?, ["to be", "or"]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: IterableDataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        let source = Arc::new(Sharded { dataset, collate, batches: PhantomData });
        Self::from_parts(source.clone(), source, OrderKind::Shards(Share { rank: 0, world_size: 1 }))
    }

    /// Reads only the shards `rank`, `rank + world_size` and so on: the part of one of several processes.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such process.
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
