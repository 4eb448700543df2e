//! [`PinnedAllocator`]: page-locked memory for batches, and what to do when it runs out.
//!
//! While a batch is collated, the thread's new tensors are allocated here, so that a GPU can copy from them directly.
//! The memory is pooled: a dropped batch leaves its memory to the next. The tensors of a small batch share a block,
//! which is copied to a GPU in one copy.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagelock_memory::{
    ALIGN, Budget, Counted, Error as Refusal, HostAllocator, HostBuffer, HostScope, Limited, PageLocked, Pooled,
    default_host, host_budget,
};
use pagelock_tensor::{AnyTensor, Error as TensorError, page_locked, page_locked_source};

use crate::Result;
use crate::panics::lock;
use crate::pin::{Destination, PinMemory, without_gaps};

/// What a loader does when its budget of page-locked memory is full; see
/// [`DataLoader::when_full`](crate::DataLoader::when_full).
///
/// # Examples
/// ```
/// assert_eq!(pagelock_data::WhenFull::default(), pagelock_data::WhenFull::Pageable);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Waits until the program drops a batch. A program that drops none and waits for the next batch gets the refusal in
    /// place of that batch: after the loader's time-out, or after a tenth of a second if there is none.
    Wait,
    /// Makes the batch in ordinary memory, and counts that in [`LoaderReport::pageable`](crate::LoaderReport::pageable).
    #[default]
    Pageable,
    /// Gives an error in the place of the batch.
    Error,
}

/// How long a program waits for memory that it alone can free, unless the loader has a time-out.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// How long a thread waits for memory before it checks that its batch is still wanted.
pub(super) const SLICE: Duration = Duration::from_millis(10);

pub(super) type PinnedPool = Counted<Pooled<Limited<PageLocked>>>;

/// A pool of page-locked memory under `budget` and the host's budget; without a budget, the pool of the process.
pub(super) fn pinned_pool(budget: Option<&Budget>) -> PinnedPool {
    match budget {
        Some(budget) => {
            let limited = Limited::new(page_locked_source(), budget.clone()).under(host_budget());
            Counted::new("loader, page-locked", Pooled::new(limited))
        }
        None => page_locked().clone(),
    }
}

/// Whether a thread that was refused memory, and has waited that long, goes on waiting.
type Patience = dyn Fn(Duration) -> bool + Send + Sync;

/// The page-locked memory of a loader, as one thread uses it.
pub(super) struct PinnedAllocator {
    memory: PinnedPool,
    when_full: WhenFull,
    patience: Box<Patience>,
    batch: Mutex<Batch>, // guards the batch that is being made; only one thread makes it
}

#[derive(Default)]
struct Batch {
    waited: Duration,
    fell_back: bool,           // to ordinary memory
    never_fits: Option<usize>, // the shortest length, of all batches, that exceeds the limit itself
    block: Block,
}

/// One block for the tensors of a batch, if their lengths equal those of the batch before.
#[derive(Default)]
struct Block {
    expected: Vec<usize>,   // lengths in bytes of the tensors of the batch before
    taken: Vec<usize>,      // those of this batch so far
    parts: Vec<HostBuffer>, // for the remaining tensors, the next one last
}

/// In a batch with more tensors or more bytes, each tensor has its own block: one copy per tensor then costs little
/// compared to the bytes.
const MAX_PARTS: usize = 8;
const MAX_BYTES: usize = 1 << 20;

impl Block {
    /// Memory for the next tensor; `None` if its length differs from that in the batch before, or if memory is short.
    fn next(&mut self, len_bytes: usize, memory: &PinnedPool) -> Option<HostBuffer> {
        let at = self.taken.len();
        if at > MAX_PARTS {
            return None;
        }
        self.taken.push(len_bytes);
        if self.expected.get(at) != Some(&len_bytes) {
            self.parts.clear();
        } else if at == 0 {
            self.cut(memory);
        }
        self.parts.pop()
    }

    fn cut(&mut self, memory: &PinnedPool) {
        let ranges = self.expected.iter().scan(0, |start: &mut usize, len_bytes| {
            let range = *start..*start + len_bytes;
            *start = range.end.next_multiple_of(ALIGN);
            Some(range)
        });
        let total = ranges.clone().last().map_or(0, |range| range.end);
        if !(2..=MAX_PARTS).contains(&self.expected.len()) || total > MAX_BYTES {
            return;
        }
        let Ok(whole) = HostBuffer::allocate(memory, total) else { return }; // single tensors may still fit
        let cut = whole.split_into(ranges, &mut self.parts);
        cut.unwrap_or_else(|error| unreachable!("the ranges follow each other from the start: {error}"));
        self.parts.reverse();
    }

    fn end(&mut self) {
        self.parts.clear();
        if !self.taken.is_empty() {
            mem::swap(&mut self.expected, &mut self.taken);
            self.taken.clear();
        }
    }
}

impl PinnedAllocator {
    pub(super) fn new(
        memory: PinnedPool,
        when_full: WhenFull,
        patience: impl Fn(Duration) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { memory, when_full, patience: Box::new(patience), batch: Mutex::default() })
    }

    /// Uses the block without the lock: pools of the budget run the program's code, which may allocate here.
    fn with_block<R>(&self, f: impl FnOnce(&mut Block) -> R) -> R {
        let mut block = mem::take(&mut lock(&self.batch).block);
        let result = f(&mut block);
        lock(&self.batch).block = block;
        result
    }

    /// A copy in page-locked memory, without a gradient.
    fn copy(self: &Arc<Self>, tensor: &AnyTensor) -> Result<AnyTensor> {
        if !tensor.device().is_cpu() {
            let (shape, device) = (*tensor.shape(), tensor.device());
            return Err(TensorError::OnDevice { op: "pin_memory", shape, device }.into());
        }
        let _scope = self.enter();
        without_gaps(tensor)
    }

    /// Makes this thread's tensors in page-locked memory until the scope drops.
    pub(super) fn enter(self: &Arc<Self>) -> HostScope {
        HostScope::enter(self.clone())
    }

    /// Ends a step of making a batch. Returns how long it waited for memory, and whether it fell back to ordinary
    /// memory.
    pub(super) fn finish(&self) -> (Duration, bool) {
        self.with_block(Block::end);
        let mut batch = lock(&self.batch);
        (mem::take(&mut batch.waited), mem::take(&mut batch.fell_back))
    }
}

impl Destination for Arc<PinnedAllocator> {
    fn take(&self, tensor: AnyTensor) -> Result<AnyTensor> {
        if PinMemory::is_pinned(&tensor) { Ok(tensor) } else { self.copy(&tensor) }
    }
}

impl HostAllocator for PinnedAllocator {
    fn allocate(&self, len_bytes: usize) -> Result<HostBuffer, Refusal> {
        let pageable = |_| {
            lock(&self.batch).fell_back = true;
            HostBuffer::allocate(default_host(), len_bytes)
        };
        if let Some(part) = self.with_block(|block| block.next(len_bytes, &self.memory)) {
            return Ok(part);
        }
        let never_fits = lock(&self.batch).never_fits.is_some_and(|shortest| len_bytes >= shortest);
        if self.when_full == WhenFull::Pageable && never_fits {
            return pageable(()); // another attempt would touch all pages before it fails
        }
        let seen = self.memory.inner().returns();
        HostBuffer::allocate(&self.memory, len_bytes).or_else(|refusal| {
            if !could_fit(&refusal) {
                let never_fits = &mut lock(&self.batch).never_fits;
                *never_fits = Some(never_fits.map_or(len_bytes, |shortest| shortest.min(len_bytes)));
            }
            match self.when_full {
                WhenFull::Error => Err(refusal),
                WhenFull::Pageable => pageable(()),
                WhenFull::Wait => self.wait(len_bytes, seen, refusal),
            }
        })
    }
}

impl PinnedAllocator {
    fn wait(&self, len_bytes: usize, mut seen: u64, mut refusal: Refusal) -> Result<HostBuffer, Refusal> {
        let start = Instant::now();
        let result = loop {
            if !could_fit(&refusal) || !(self.patience)(start.elapsed()) {
                break Err(refusal);
            }
            self.memory.inner().wait_for_return(seen, SLICE);
            seen = self.memory.inner().returns();
            match HostBuffer::allocate(&self.memory, len_bytes) {
                Ok(buffer) => break Ok(buffer),
                Err(again) => refusal = again,
            }
        };
        lock(&self.batch).waited += start.elapsed();
        result
    }
}

/// Whether the memory would fit if all other memory under the limit were freed.
pub(super) fn could_fit(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::OverBudget(refusal) => refusal.asked <= refusal.limit,
        Refusal::LockLimit { asked, limit, .. } => asked <= limit,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(budget: u64) -> Arc<PinnedAllocator> {
        PinnedAllocator::new(pinned_pool(Some(&Budget::new("pinned", budget))), WhenFull::Error, |waited| {
            waited < PATIENCE
        })
    }

    fn batch(pinned: &Arc<PinnedAllocator>, lens: &[usize]) -> Vec<HostBuffer> {
        let _scope = pinned.enter();
        let batch = lens.iter().map(|&len| HostBuffer::placed(len).unwrap()).collect();
        pinned.finish();
        batch
    }

    fn are_one_block(batch: &[HostBuffer]) -> bool {
        batch.windows(2).all(|pair| pair[0].is_followed_by(&pair[1]))
    }

    #[test]
    fn a_batch_like_the_one_before_is_one_block() {
        let pinned = pinned(1 << 20);
        let first = batch(&pinned, &[1_000, 64, 7]);
        assert!(!are_one_block(&first), "nobody knew");
        for _ in 0..3 {
            let next = batch(&pinned, &[1_000, 64, 7]);
            assert!(are_one_block(&next));
            assert_eq!(next.iter().map(HostBuffer::len_bytes).collect::<Vec<_>>(), [1_000, 64, 7]);
        }
        let last = batch(&pinned, &[500, 32, 7]); // a smaller one
        assert!(!are_one_block(&last));
    }

    #[test]
    fn a_batch_that_turns_out_otherwise_has_the_lengths_that_it_asks_for() {
        let pinned = pinned(1 << 20);
        batch(&pinned, &[1_000, 64]);
        for lens in [&[1_000, 65][..], &[1_000], &[1_000, 65, 3], &[3]] {
            assert_eq!(batch(&pinned, lens).iter().map(HostBuffer::len_bytes).collect::<Vec<_>>(), lens);
        }
    }

    #[test]
    fn many_tensors_and_large_ones_are_apart() {
        for lens in [&[64; MAX_PARTS + 1][..], &[MAX_BYTES, 64]] {
            let pinned = pinned(1 << 30);
            drop(batch(&pinned, lens));
            assert!(!are_one_block(&batch(&pinned, lens)), "{} tensors", lens.len());
        }
    }
}
