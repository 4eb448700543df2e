//! [`Recipe`]: how the batch at a position is made; [`Run`]: what the readers of an epoch's shards share.

use std::sync::{Arc, Mutex};

use pagelock_memory::Holder;

use super::maker::{Maker, Request, ShardReader};
use super::order::{Order, OrderKind, Position};
use super::source::{AnyBatch, Data, Source};
use crate::dataset::check_index;
use crate::panics::lock;
use crate::{Error, Result};

/// See the head of the file.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) data: Arc<dyn Data>,
    pub(super) source: Arc<dyn Source>,
    pub(super) order: Order,
    pub(super) holder: Holder,
}

/// One epoch from a position on. A dataset with indices has no readers.
#[derive(Default)]
pub(super) struct Run {
    readers: Vec<Mutex<ShardReader>>, // by turn; locked by the one thread that makes the shard's batches
}

impl Recipe {
    pub(super) fn run(&self, start: Position, n_turns: usize) -> Run {
        let Some(share) = self.order.share() else { return Run::default() };
        let reader = |turn| {
            // The next batch of a shard whose turn is over is that of the next round.
            let round = start.round.saturating_add(u64::from(turn < start.turn));
            let next = self.order.first_sample(Position { round, ..start });
            Mutex::new(ShardReader::new(share.shard_at(turn), next))
        };
        Run { readers: (0..n_turns).map(reader).collect() }
    }

    /// Puts the batch at a position into `to`, or gives the refusal in its place; false if its shard has no more. Errors
    /// name the samples, and who was to make the batch; so do panics, which are errors too.
    pub(super) fn make(
        &self,
        run: &Run,
        position: Position,
        refusal: Option<Error>,
        maker: &mut Maker,
        to: &mut AnyBatch,
    ) -> Result<bool> {
        let mut reader = run.readers.get(position.turn).map(lock);
        let request = Request {
            epoch: position.epoch,
            order: &self.order,
            indices: Vec::new(),
            shard: reader.as_deref_mut(),
            refusal,
        };
        maker.run(request, |maker, request| {
            if let OrderKind::Sampler(sampler) = &self.order.kind {
                let n_samples = self.data.len();
                self.order.batches(sampler).fill(
                    position.epoch,
                    position.round as usize,
                    n_samples,
                    &mut request.indices,
                );
                maker.begin(&request.indices);
                request.refusal.take().map_or(Ok(()), Err)?;
                request.indices.iter().try_for_each(|&index| check_index(index, n_samples))?;
            }
            let _charged = self.holder.enter();
            self.source.make(request, maker, to)
        })
    }
}
