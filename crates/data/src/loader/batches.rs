//! [`Batches`]: one epoch of a loader.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::crew::{Account, Crew};
use super::opaque::Opaque;
use super::slots::{AtMost, PATIENCE, PinnedSlots};
use super::source::{At, Maker, Parcel, Watch};
use super::{Loader, lock};
use crate::{Error, Result};

/// One epoch of a [`DataLoader`](super::DataLoader). After an error the next batch follows, so a bad sample costs its own batch only.
///
/// # Examples
/// ```
/// # use pagelock_data::{DataLoader, TensorDataset};
/// # use pagelock_tensor::Tensor;
/// # let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([10])?)?).batch_size(4);
/// let mut batches = loader.iter();
/// assert_eq!(batches.size_hint(), (3, Some(3)));
/// batches.next();
/// assert_eq!(batches.size_hint(), (2, Some(2)));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct Batches<'a, B: Send + 'static> {
    pub(super) epoch: Opaque<'a, Epoch<'a>>,
    batches: PhantomData<fn() -> B>,
}

impl<'a, B: Send + 'static> Batches<'a, B> {
    pub(super) fn new(epoch: Opaque<'a, Epoch<'a>>) -> Self {
        Self { epoch, batches: PhantomData }
    }
}

impl<B: Send + 'static> Iterator for Batches<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        match self.epoch.next()? {
            Ok(()) => Some(Ok(self.epoch.parcel().take())),
            Err(error) => Some(Err(error)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

/// [`Batches`] of whatever type.
pub(super) struct Epoch<'a> {
    loader: &'a Loader,
    epoch: u64,
    pub(super) next: usize,
    pub(super) end: usize,
    /// Why there is no batch at all; given once.
    pub(super) refusal: Option<Error>,
    pub(super) crew: Option<Crew>,
    slots: Option<PinnedSlots>, // for the batches that the program makes itself
    /// Where the batch is that was made last.
    parcel: Option<Parcel>,
    indices: Vec<usize>,
    at: At,
    /// When the program got its last batch.
    given: Option<Instant>,
}

impl<'a> Epoch<'a> {
    pub(super) fn new(loader: &'a Loader, epoch: u64) -> Self {
        let (refusal, crew, slots, parcel, given) = (None, None, None, None, None);
        let (indices, at) = (Vec::new(), At::default());
        Self { loader, epoch, next: 0, end: 0, refusal, crew, slots, parcel, indices, at, given }
    }

    /// The next batch, made here or by a worker.
    fn load(&mut self, account: &mut Account) -> Result<()> {
        if let Some(crew) = &mut self.crew {
            return crew.next(account, &mut self.parcel);
        }
        if self.slots.is_none() {
            let patience = AtMost(self.loader.plan.timeout.unwrap_or(PATIENCE));
            let slots = |memory| PinnedSlots::new(memory, self.loader.plan.when_full, patience);
            self.slots = self.loader.slot_memory().map(slots);
        }
        let maker = Maker { worker: None, skips: self.loader.plan.skips };
        let mut watch = Watch::new(&self.at, self.slots.as_ref(), maker);
        let parcel = self.parcel.get_or_insert_with(|| self.loader.recipe.source.parcel());
        let made = self.loader.recipe.make((self.epoch, self.next), &mut self.indices, &mut watch, None, parcel);
        account.add(watch.times, self.indices.len(), watch.skipped, made.is_err());
        made
    }

    /// Where the batch is that was made.
    fn parcel(&mut self) -> &mut Parcel {
        self.parcel.as_mut().unwrap_or_else(|| unreachable!("a batch was made"))
    }

    fn next(&mut self) -> Option<Result<()>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        if self.next == self.end {
            return None;
        }
        let mut account = Account::default();
        let start = Instant::now();
        let made = self.load(&mut account);
        let end = Instant::now();
        account.report.program_waited = end - start;
        account.report.program_worked = self.given.map_or(Duration::ZERO, |given| start - given);
        self.given = Some(end);
        self.next += 1;
        if matches!(made, Err(Error::WorkerInit { .. })) {
            self.next = self.end;
            self.crew = None; // not for another epoch
        }
        let mut progress = self.loader.progress();
        progress.next = if self.next == self.end { (self.epoch.saturating_add(1), 0) } else { (self.epoch, self.next) };
        progress.record.add(account);
        Some(made)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.next + self.refusal.is_some() as usize;
        (left, Some(left))
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        let Some(crew) = self.crew.take().filter(|_| self.loader.plan.persistent) else { return };
        crew.stop();
        *lock(&self.loader.idle) = Some(crew);
    }
}
