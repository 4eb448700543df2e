//! [`Turns`]: how much memory the batches that are ahead of the program may take together.
//!
//! Workers ask for memory in the order in which the program wants what they make. So the batch that it waits for has some, or
//! is the next to ask; and what is ahead of it gives back its own when the program takes it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagelock_memory::{Budget, Reservation};

use crate::loader::crew::ask;
use crate::loader::lock;
use crate::{Error, Result};

/// See the head of the file.
pub(super) struct Turns {
    budget: Budget,
    order: Mutex<Order>, // guards who asks next
    changed: Condvar,
}

struct Order {
    /// Whether the shard at each place may have more.
    live: Vec<bool>,
    /// Whose turn it is.
    turn: usize,
    n_ahead: usize,
    /// The most that a batch has taken so far.
    batch_bytes: u64,
    /// The program has left.
    over: bool,
}

/// The memory of a batch, until the program takes it.
pub(super) struct Share {
    turns: Arc<Turns>,
    reserved: Option<Reservation>,
}

impl Turns {
    /// As many shards as there are, of which that one is the first to ask.
    pub(super) fn new(budget: Budget, n_shards: usize, turn: usize) -> Self {
        let order = Order { live: vec![true; n_shards], turn, n_ahead: 0, batch_bytes: 0, over: false };
        Self { budget, order: Mutex::new(order), changed: Condvar::new() }
    }

    /// Memory for a batch like those before of the shard at a place, and how long that was waited for. The first batch is made
    /// alone: it shows how much one takes. None if nobody wants it.
    pub(super) fn reserve(self: &Arc<Self>, place: usize) -> Option<(Result<Share>, Duration)> {
        let start = Instant::now();
        let mut order = lock(&self.order);
        let reserved = loop {
            if order.over {
                return None;
            }
            let may_ask = order.turn == place && (order.batch_bytes > 0 || order.n_ahead == 0);
            let asked = may_ask.then(|| ask(&self.budget, order.batch_bytes, order.n_ahead > 0));
            if let Some(reserved) = asked.flatten() {
                break reserved;
            }
            order = self.changed.wait(order).unwrap_or_else(PoisonError::into_inner);
        };
        order.advance();
        order.n_ahead += usize::from(reserved.is_ok());
        self.changed.notify_all();
        drop(order);
        let share = reserved.map(|reserved| Share { turns: self.clone(), reserved: Some(reserved) });
        Some((share.map_err(Error::Memory), start.elapsed()))
    }

    /// Says what a batch took.
    pub(super) fn note_size(&self, batch_bytes: u64) {
        let mut order = lock(&self.order);
        order.batch_bytes = order.batch_bytes.max(batch_bytes);
        self.changed.notify_all();
    }

    /// Nothing more comes of the shard at a place.
    pub(super) fn end(&self, place: usize) {
        let mut order = lock(&self.order);
        order.live[place] = false;
        if order.turn == place {
            order.advance();
        }
        self.changed.notify_all();
    }

    /// Nobody wants anything any more.
    pub(super) fn stop(&self) {
        lock(&self.order).over = true;
        self.changed.notify_all();
    }
}

impl Order {
    fn advance(&mut self) {
        let n_places = self.live.len();
        let next = (1..=n_places).map(|i| (self.turn + i) % n_places).find(|&place| self.live[place]);
        self.turn = next.unwrap_or(self.turn);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut order = lock(&self.turns.order);
        drop(self.reserved.take()); // before others are told
        order.n_ahead -= 1;
        self.turns.changed.notify_all();
    }
}
