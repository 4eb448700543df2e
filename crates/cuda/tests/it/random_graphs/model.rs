//! The model of a program: memory is a list of expected bytes, and the operations of a graph change that list.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A small generator of random numbers (SplitMix64): the same seed gives the same program.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    pub(super) fn pick<X: Copy>(&mut self, from: &[X]) -> X {
        from[self.below(from.len())]
    }

    /// A random index of a list, or `None` if the list is empty.
    pub(super) fn at<X>(&mut self, list: &[X]) -> Option<usize> {
        (!list.is_empty()).then(|| self.below(list.len()))
    }

    /// Two different random indices of a list.
    pub(super) fn two<X>(&mut self, list: &[X]) -> Option<[usize; 2]> {
        let first = self.at(list).filter(|_| list.len() > 1)?;
        Some([first, (first + 1 + self.below(list.len() - 1)) % list.len()])
    }

    /// A range within `0..len` that is not empty; in two of three cases, all of `0..len`.
    pub(super) fn range(&mut self, len: usize) -> Range<usize> {
        if self.below(3) > 0 {
            return 0..len;
        }
        let start = self.below(len);
        start..start + 1 + self.below(len - start)
    }
}

/// The expected bytes: `None` where the value is unknown.
pub(super) type Bytes = Vec<Option<u8>>;

pub(super) fn known(bytes: &[u8]) -> Bytes {
    bytes.iter().copied().map(Some).collect()
}

/// Panics at the first difference.
#[track_caller]
pub(super) fn check(what: impl fmt::Display, found: &[u8], expected: &Bytes) {
    assert_eq!(found.len(), expected.len(), "{what}: the length differs");
    let differs = found.iter().zip(expected).position(|(&found, expected)| expected.is_some_and(|byte| byte != found));
    if let Some(at) = differs {
        panic!("{what}: byte {at} of {} is {}, and must be {:?}", found.len(), found[at], expected[at]);
    }
}

/// The expected bytes of a part of one piece of memory.
#[derive(Clone)]
pub(super) struct Span {
    memory: Arc<Mutex<Bytes>>,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Span {
    pub(super) fn new(bytes: Bytes) -> Self {
        let len = bytes.len();
        Self { memory: Arc::new(Mutex::new(bytes)), start: 0, len }
    }

    pub(super) fn unknown(len: usize) -> Self {
        Self::new(vec![None; len])
    }

    pub(super) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len);
        Self { memory: self.memory.clone(), start: self.start + range.start, len: range.len() }
    }

    /// From the start of this span to the end of `last`, if both are in the same memory.
    pub(super) fn through(&self, last: &Span) -> Option<Self> {
        let end = last.start + last.len;
        let is_same = Arc::ptr_eq(&self.memory, &last.memory) && end >= self.start;
        is_same.then(|| Self { memory: self.memory.clone(), start: self.start, len: end - self.start })
    }

    fn memory(&self) -> MutexGuard<'_, Bytes> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Bytes {
        self.memory()[self.start..self.start + self.len].to_vec()
    }

    pub(super) fn set(&self, bytes: &[Option<u8>]) {
        self.memory()[self.start..self.start + self.len].copy_from_slice(bytes);
    }

    pub(super) fn fill(&self, value: Option<u8>) {
        self.memory()[self.start..self.start + self.len].fill(value);
    }
}

/// One operation of a graph.
#[derive(Clone)]
pub(super) enum Act {
    Fill { to: Span, value: u8 },
    Copy { from: Span, to: Span },
}

impl Act {
    pub(super) fn happen(&self) {
        match self {
            Act::Fill { to, value } => to.fill(Some(*value)),
            Act::Copy { from, to } => to.set(&from.get()),
        }
    }

    pub(super) fn to(&self) -> &Span {
        match self {
            Act::Fill { to, .. } | Act::Copy { to, .. } => to,
        }
    }
}
