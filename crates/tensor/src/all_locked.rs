//! Any number of tensors, locked for reading at once.
//!
//! A thread that holds one lock and waits for another can deadlock: with a thread that holds the second and wants the
//! first or, if both locks are of one storage, with a writer that queued in between. So each storage is locked once,
//! and all threads lock in the same order.

use std::borrow::Borrow;

use crate::storage::{Locked, StorageRef, sort_by_lock_key};
use crate::tensor::Raw;

/// The storage of each tensor, locked for reading.
pub(crate) enum AllLocked<'a> {
    /// The lock of each tensor's storage. No thread was writing any of them.
    AtOnce(Vec<Locked<'a>>),
    /// One lock per storage, in the order that all threads share. `of` holds the index of each tensor's lock.
    InOrder { locks: Vec<Locked<'a>>, of: Vec<usize> },
}

impl<'a> AllLocked<'a> {
    pub(crate) fn new<R: Borrow<Raw>>(tensors: &'a [R]) -> AllLocked<'a> {
        // A thread that only tries locks cannot be part of a deadlock.
        try_lock_all(tensors).map_or_else(|| AllLocked::in_order(tensors), AllLocked::AtOnce)
    }

    fn in_order<R: Borrow<Raw>>(tensors: &'a [R]) -> AllLocked<'a> {
        let storage = |at: usize| &tensors[at].borrow().storage;
        let mut order: Vec<_> = (0..tensors.len()).map(|at| (storage(at).lock_key(), at)).collect();
        sort_by_lock_key(&mut order);
        let mut locks: Vec<Locked<'a>> = Vec::with_capacity(tensors.len());
        let mut of = vec![0; tensors.len()];
        let mut last: Option<&StorageRef> = None;
        for (_, at) in order {
            if last.is_none_or(|last| !last.is(storage(at))) {
                locks.push(storage(at).lock());
            }
            last = Some(storage(at));
            of[at] = locks.len() - 1;
        }
        AllLocked::InOrder { locks, of }
    }

    /// The lock of the storage of tensor number `tensor`.
    pub(crate) fn get(&self, tensor: usize) -> &Locked<'a> {
        match self {
            AllLocked::AtOnce(locks) => &locks[tensor],
            AllLocked::InOrder { locks, of } => &locks[of[tensor]],
        }
    }
}

/// Locks the storage of each tensor for reading, without waiting. None if a thread is writing one of them.
pub(crate) fn try_lock_all<R: Borrow<Raw>>(tensors: &[R]) -> Option<Vec<Locked<'_>>> {
    const FETCHED: usize = 32; // storages at once
    let mut locks = Vec::with_capacity(tensors.len());
    for tensors in tensors.chunks(FETCHED) {
        tensors.iter().for_each(|tensor| tensor.borrow().storage.fetch());
        for tensor in tensors {
            locks.push(tensor.borrow().storage.try_lock()?);
        }
    }
    Some(locks)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use crate::Tensor;

    #[test]
    fn joining_a_tensor_with_itself_while_another_thread_changes_it_does_not_wait_for_ever() {
        const ROUNDS: usize = 1_000_000; // with two locks of one storage, every second run of 300,000 rounds hung
        let a = Tensor::zeros([2]).unwrap();
        let (done, finished) = mpsc::channel();
        let run = |work: Box<dyn Fn() + Send>| {
            let done = done.clone();
            thread::spawn(move || {
                (0..ROUNDS).for_each(|_| work());
                done.send(()).unwrap();
            });
        };
        let b = a.clone();
        run(Box::new(move || assert_eq!(Tensor::stack(&[&a, &a], -1).unwrap().dims(), [2, 2])));
        run(Box::new(move || b.add_scalar_(1.0).unwrap()));
        for _ in 0..2 {
            finished.recv_timeout(Duration::from_secs(300)).expect("no thread waits for ever");
        }
    }
}
