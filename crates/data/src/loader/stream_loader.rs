//! What only a [`StreamLoader`] has: shards that are shared with other processes, and a state that counts their turns.

use std::marker::PhantomData;
use std::sync::Arc;

use super::core::Core;
use super::loaders::StreamLoader;
use super::order::{Order, Position, ShardOrder};
use super::source;
use crate::collate::Stack;
use crate::iterable::IterableDataset;
use crate::state::StreamState;
use crate::{Error, Result};

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
        let source = Arc::new(source::Sharded { dataset, collate, batches: PhantomData });
        Self::from_parts(source.clone(), source, all_shards())
    }

    /// Reads only the shards `rank`, `rank + world_size` and so on: the part of one of several processes.
    ///
    /// # Errors
    /// [`Error::Rank`] if there is no such process.
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
        self.core.set_share(rank, world_size)?;
        Ok(self)
    }

    /// Where the loop that was started last is, to be kept in a checkpoint; see [`StreamState`]. That the last batch was the
    /// last is known only when another is asked for: from there, a loop goes on with nothing, and the next is the next epoch.
    ///
    /// # Examples
    /// See [`resume`](Self::resume).
    pub fn state(&self) -> StreamState {
        self.core.stream_state()
    }

    /// Makes the next loop go on where [`state`](Self::state) was taken, with the same batches, for any number of workers. It
    /// costs what [`IterableDataset::shard_from`] costs: reading again what came before, unless the dataset can jump.
    ///
    /// # Errors
    /// [`Error::OtherStreamState`] if the state is of another dataset, other shards or another batch size. Whether it is
    /// behind the end is known only when it is read: then the loop gives [`Error::BehindStream`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Five;
    /// # impl IterableDataset for Five {
    /// #     type Sample = i64;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new((0..5).map(Ok)))
    /// #     }
    /// # }
    /// let loader = || StreamLoader::new(Five).batch_size(2); // of 0, 1, 2, 3, 4
    /// let first = loader();
    /// first.set_epoch(7);
    /// first.iter().next();
    /// let saved = first.state().to_string();
    /// assert!(saved.starts_with("epoch 7, round 1, turn 0 of 1 shards in batches of 2; shards: all; data: Five; check "));
    ///
    /// let second = loader();
    /// second.resume(saved.parse()?)?;
    /// assert_eq!((second.epoch(), second.iter().next().unwrap()?.to_vec::<i64>()?), (7, vec![2, 3]));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn resume(&self, state: StreamState) -> Result<()> {
        self.core.resume_stream(state)
    }
}

fn all_shards() -> Order {
    Order::Sharded(ShardOrder { batch_size: 1, drop_last: false, rank: 0, world_size: 1 })
}

impl Core {
    fn set_share(&mut self, rank: usize, world_size: usize) -> Result<()> {
        if rank >= world_size {
            return Err(Error::Rank { rank, world_size });
        }
        if let Order::Sharded(sharded) = &mut self.recipe_mut().order {
            *sharded = ShardOrder { rank, world_size, ..*sharded };
        }
        self.reset_order();
        Ok(())
    }

    fn stream_state(&self) -> StreamState {
        let Order::Sharded(sharded) = &self.recipe.order else { unreachable!("the kind of the loader") };
        let ShardOrder { batch_size, drop_last, rank, world_size } = *sharded;
        let Position { epoch, round, turn } = self.progress().next;
        let (share, dataset) = self.identity(|| match world_size {
            1 => "all".to_owned(),
            n => format!("those of rank {rank} of {n}"),
        });
        let n_shards = sharded.n_read(self.recipe.data.len());
        StreamState { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset }
    }

    fn resume_stream(&self, state: StreamState) -> Result<()> {
        let here = self.stream_state();
        let StreamState { epoch, round, turn, .. } = state;
        let of_here = StreamState { epoch: here.epoch, round: here.round, turn: here.turn, ..state.clone() };
        if of_here != here || turn >= here.n_shards.max(1) {
            return Err(Error::OtherStreamState { state: state.into(), here: here.into() });
        }
        self.go_to(Position { epoch, round, turn });
        Ok(())
    }
}
