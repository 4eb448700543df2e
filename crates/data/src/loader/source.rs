//! [`Source`]: makes the batches of a dataset, whatever their type; [`AnyBatch`]: a batch without its type, so that all else is
//! compiled once for all types of batches.

use std::any::Any;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::maker::{Maker, Request};
use crate::Result;
use crate::dataset::Dataset;
use crate::iterable::{IterableDataset, Samples};
use crate::pin::{PinMemory, Slots};

/// Room for a batch of a type that only its source and the program know. It is used again and again.
pub(super) struct AnyBatch(Mutex<Box<dyn Any + Send>>); // an `Option<B>`, never locked: so several threads may share it

impl AnyBatch {
    pub(super) fn empty<B: Send + 'static>() -> Self {
        Self(Mutex::new(Box::new(None::<B>)))
    }

    fn put<B: Send + 'static>(&mut self, batch: B) {
        *self.room() = Some(batch);
    }

    /// The batch that was put in.
    pub(super) fn take<B: Send + 'static>(&mut self) -> B {
        let Some(batch) = self.room().take() else { unreachable!("a batch is taken where one was put") };
        batch
    }

    fn room<B: Send + 'static>(&mut self) -> &mut Option<B> {
        let any = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        any.downcast_mut().unwrap_or_else(|| unreachable!("a source makes batches of one type"))
    }
}

/// What a loader asks its dataset beside samples.
pub(super) trait Data: Send + Sync + 'static {
    /// How many samples there are, or how many shards.
    fn len(&self) -> usize;

    /// What the dataset is.
    fn identity(&self) -> String;

    /// How many samples a shard of that epoch has, if it has no sample `index`.
    fn len_without(&self, _shard: usize, _epoch: u64, _index: u64) -> Option<u64> {
        None
    }
}

/// See the head of the file.
pub(super) trait Source: Send + Sync + 'static {
    /// Room for a batch.
    fn room(&self) -> AnyBatch;

    /// Puts the batch of a request into `to`; false if its shard has no more.
    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool>;
}

/// A dataset with indices, and a function for its samples.
pub(super) struct Indexed<D, C, B> {
    pub(super) dataset: D,
    pub(super) collate: C,
    /// The dataset's own shortcut.
    pub(super) gather: fn(&D, &[usize]) -> Result<Option<B>>,
}

impl<B: Send + 'static, D: Dataset, C: Send + Sync + 'static> Data for Indexed<D, C, B> {
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }
}

impl<B, D, C> Source for Indexed<D, C, B>
where
    B: Send + 'static,
    D: Dataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn room(&self) -> AnyBatch {
        AnyBatch::empty::<B>()
    }

    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool> {
        let gathered = maker.gather(&mut || {
            let batch = (self.gather)(&self.dataset, &request.indices)?;
            Ok(batch.map(|batch| to.put(batch)).is_some())
        });
        if gathered? {
            return Ok(true);
        }
        let mut samples = Vec::with_capacity(request.indices.len().min(MOST_AT_ONCE));
        maker.fetch(request, &mut |index, epoch| {
            samples.push(self.dataset.get_in(index, epoch)?);
            Ok(())
        })?;
        maker.collate(&mut || {
            to.put((self.collate)(mem::take(&mut samples))?);
            Ok(())
        })
    }
}

/// Room for more samples than this is made when they are there: a batch may be as long as an order says.
const MOST_AT_ONCE: usize = 1 << 16;

/// A dataset of shards, and a function for its samples.
pub(super) struct Sharded<D, C, B> {
    pub(super) dataset: D,
    pub(super) collate: C,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B: 'static, D: IterableDataset, C: Send + Sync + 'static> Data for Sharded<D, C, B> {
    fn len(&self) -> usize {
        self.dataset.n_shards()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }

    fn len_without(&self, shard: usize, epoch: u64, index: u64) -> Option<u64> {
        let has = || self.dataset.shard_from(shard, epoch, index).map(|mut samples| samples.next().is_some());
        if !matches!(catch_unwind(AssertUnwindSafe(has)), Ok(Ok(false))) {
            return None; // it has one, or making its batch will say what is wrong
        }
        let count = || self.dataset.shard(shard, epoch).map(|samples| (0..index).zip(samples).count() as u64);
        Some(catch_unwind(AssertUnwindSafe(count)).unwrap_or(Ok(0)).unwrap_or(0))
    }
}

impl<B, D, C> Source for Sharded<D, C, B>
where
    B: Send + 'static,
    D: IterableDataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn room(&self) -> AnyBatch {
        AnyBatch::empty::<B>()
    }

    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool> {
        let mut samples = Vec::new();
        let mut open = |shard, epoch, start| -> Result<Box<dyn Any + Send>> {
            Ok(Box::new(self.dataset.shard_from(shard, epoch, start)?))
        };
        let is_batch = maker.read(request, &mut open, &mut |opened, is_wanted| {
            let Some(opened) = opened.downcast_mut::<Samples<D::Sample>>() else { unreachable!("`open` made it") };
            let sample = opened.next()?;
            Some(sample.map(|sample| samples.extend(is_wanted.then_some(sample))))
        });
        if !is_batch? {
            return Ok(false);
        }
        maker.collate(&mut || {
            to.put((self.collate)(mem::take(&mut samples))?);
            Ok(())
        })
    }
}

/// Another source's batches, put through a function.
pub(super) struct Mapped<A, B, F> {
    pub(super) source: Arc<dyn Source>,
    pub(super) f: F,
    pub(super) batches: PhantomData<fn(A) -> B>,
}

impl<A: Send + 'static, B: Send + 'static, F> Source for Mapped<A, B, F>
where
    F: Fn(A) -> Result<B> + Send + Sync + 'static,
{
    fn room(&self) -> AnyBatch {
        AnyBatch::empty::<B>()
    }

    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool> {
        let mut inner = self.source.room();
        if !self.source.make(request, maker, &mut inner)? {
            return Ok(false);
        }
        maker.map(&mut || {
            to.put((self.f)(inner.take::<A>())?);
            Ok(())
        })?;
        Ok(true)
    }
}

/// Another source's batches, made in page-locked memory.
pub(super) struct Pinned<B> {
    pub(super) source: Arc<dyn Source>,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B: PinMemory + Send + 'static> Source for Pinned<B> {
    fn room(&self) -> AnyBatch {
        self.source.room()
    }

    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool> {
        maker.pinning(&mut |maker| {
            let made = self.source.make(request, maker, to)?;
            if made && !to.room::<B>().as_ref().is_some_and(B::is_pinned) {
                maker.pin(&mut |slots| move_tensors::<B>(to, slots))?;
            }
            Ok(made)
        })
    }
}

/// Puts the tensors of a batch where `slots` says.
pub(super) fn move_tensors<B: PinMemory + Send + 'static>(batch: &mut AnyBatch, slots: &Slots<'_>) -> Result<()> {
    let moved = batch.take::<B>().move_into(slots)?;
    batch.put(moved);
    Ok(())
}
