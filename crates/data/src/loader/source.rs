//! [`BatchSource`]: a dataset and its collation, without their types. [`Step`]: what is done to a batch after it was
//! collated. [`AnyBatch`]: a batch without its type. So everything else is compiled once for all types of batches.

use std::any::Any;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use pagelock_tensor::Generator;

use super::maker::{Maker, Request};
use crate::Result;
use crate::dataset::Dataset;
use crate::iterable::{IterableDataset, MAX_READ, Samples};
use crate::pin::{PinMemory, Slots};

/// A reusable slot for a batch, whose type only the source, the steps and the program know.
pub(super) struct AnyBatch(Mutex<Box<dyn Any + Send>>); // an `Option<B>`; never locked, but the mutex is `Sync`

impl Default for AnyBatch {
    fn default() -> Self {
        Self(Mutex::new(Box::new(())))
    }
}

impl AnyBatch {
    fn put<B: Send + 'static>(&mut self, batch: B) {
        *self.slot() = Some(batch);
    }

    /// The batch that was put in.
    pub(super) fn take<B: Send + 'static>(&mut self) -> B {
        let Some(batch) = self.slot().take() else { unreachable!("`take` is called only after `put`") };
        batch
    }

    /// Replaces the batch by `f` of it.
    fn replace<A: Send + 'static, B: Send + 'static>(&mut self, f: impl FnOnce(A) -> Result<B>) -> Result<()> {
        let batch = f(self.take())?;
        self.put(batch);
        Ok(())
    }

    /// Allocates if the last batch had another type.
    fn slot<B: Send + 'static>(&mut self) -> &mut Option<B> {
        let any = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !any.is::<Option<B>>() {
            *any = Box::new(None::<B>);
        }
        any.downcast_mut().unwrap_or_else(|| unreachable!("the box was just made for this type"))
    }
}

pub(super) trait BatchSource: Send + Sync + 'static {
    /// How many samples there are, or how many shards.
    fn len(&self) -> usize;

    /// The identity of the dataset.
    fn identity(&self) -> String;

    /// The number of samples of a shard in that epoch, if it has no sample `index`.
    fn len_without(&self, _shard: usize, _epoch: u64, _index: u64) -> Option<u64> {
        None
    }

    /// Makes the batch of a request in `to`; false if its shard has no more.
    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool>;
}

/// A dataset with indices, and a function for its samples.
pub(super) struct Indexed<D, C, B> {
    pub(super) dataset: D,
    pub(super) collate: C,
    /// [`Dataset::gather`]; with a collating function, one that always declines.
    pub(super) gather: fn(&D, &[usize]) -> Result<Option<B>>,
}

impl<B, D, C> BatchSource for Indexed<D, C, B>
where
    B: Send + 'static,
    D: Dataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }

    fn make(&self, request: &mut Request<'_>, maker: &mut Maker, to: &mut AnyBatch) -> Result<bool> {
        let gather = &mut || Ok((self.gather)(&self.dataset, &request.indices)?.map(|batch| to.put(batch)).is_some());
        if maker.gather(gather)? {
            return Ok(true);
        }
        let mut samples = Vec::with_capacity(request.indices.len().min(MAX_AT_ONCE));
        maker
            .fetch(request, &mut |index, epoch| self.dataset.get_in(index, epoch).map(|sample| samples.push(sample)))?;
        maker.collate(&mut || (self.collate)(mem::take(&mut samples)).map(|batch| to.put(batch)))
    }
}

/// The most samples for which a list is allocated in advance: a batch may be as large as a sampler's order.
const MAX_AT_ONCE: usize = 1 << 16;

/// A dataset of shards, and a function for its samples.
pub(super) struct Sharded<D, C, B> {
    pub(super) dataset: D,
    pub(super) collate: C,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B, D, C> BatchSource for Sharded<D, C, B>
where
    B: Send + 'static,
    D: IterableDataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.dataset.n_shards()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }

    fn len_without(&self, shard: usize, epoch: u64, index: u64) -> Option<u64> {
        let has = || self.dataset.shard_from(shard, epoch, index).map(|mut samples| samples.next().is_some());
        if !matches!(catch_unwind(AssertUnwindSafe(has)), Ok(Ok(false))) {
            return None; // it has that sample, or making its batch reports the error
        }
        let count = || {
            self.dataset.shard(shard, epoch).map(|samples| samples.take(MAX_READ.min(index as usize)).count() as u64)
        };
        Some(catch_unwind(AssertUnwindSafe(count)).unwrap_or(Ok(0)).unwrap_or(0))
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
        maker.collate(&mut || (self.collate)(mem::take(&mut samples)).map(|batch| to.put(batch)))
    }
}

pub(super) type Step = dyn Fn(&mut AnyBatch, &mut Maker) -> Result<()> + Send + Sync;

pub(super) fn map<A: Send + 'static, B: Send + 'static>(
    f: impl Fn(A) -> Result<B> + Send + Sync + 'static,
) -> Arc<Step> {
    Arc::new(move |batch: &mut AnyBatch, maker: &mut Maker| maker.map(&mut || batch.replace(&f)))
}

/// Applies a function to a batch, with random numbers of the batch's own.
pub(super) fn transform<A: Send + 'static, B: Send + 'static>(
    seed: u64,
    f: impl Fn(A, &Generator) -> Result<B> + Send + Sync + 'static,
) -> Arc<Step> {
    Arc::new(move |batch: &mut AnyBatch, maker: &mut Maker| {
        let random = maker.generator(seed);
        maker.map(&mut || batch.replace(|batch| f(batch, &random)))
    })
}

/// Copies the tensors of a batch into page-locked memory, unless all were made there.
pub(super) fn pin<B: PinMemory + Send + 'static>() -> Arc<Step> {
    Arc::new(|batch: &mut AnyBatch, maker: &mut Maker| {
        if batch.slot::<B>().as_ref().is_some_and(B::is_pinned) {
            return Ok(());
        }
        maker.pin(&mut |slots| move_tensors::<B>(batch, slots))
    })
}

/// Moves the tensors of a batch to the destination of `slots`.
pub(super) fn move_tensors<B: PinMemory + Send + 'static>(batch: &mut AnyBatch, slots: &Slots<'_>) -> Result<()> {
    batch.replace(|batch: B| batch.move_into(slots))
}
