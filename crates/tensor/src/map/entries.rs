//! [`Entries`]: the tree of names of one map, whose heap memory counts in the host's budget as long as it exists.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use super::{AnyTensor, TensorMap};
use crate::error::{Error, Result};
use crate::heap::{self, CountedHeap};
use crate::shape::Shape;

#[derive(Clone)]
pub(super) enum Entry {
    Tensor(AnyTensor),
    Map(TensorMap),
}

impl Entry {
    /// The shape whose first dimensions are the map's batch.
    pub(super) fn shape(&self) -> &Shape {
        match self {
            Entry::Tensor(tensor) => tensor.shape(),
            Entry::Map(map) => map.batch(),
        }
    }

    /// How deep maps are nested, this entry included.
    pub(super) fn depth(&self) -> usize {
        match self {
            Entry::Tensor(_) => 0,
            Entry::Map(map) => 1 + map.entries.values().map(Entry::depth).max().unwrap_or(0),
        }
    }
}

/// The entries of one map. Clones share the texts of the names, and each clone counts them.
pub(super) struct Entries {
    by_name: BTreeMap<Arc<str>, Entry>,
    text_bytes: usize, // of all names
    counted: CountedHeap,
}

/// The bytes of an entry in a node of the tree.
const ENTRY_BYTES: usize = size_of::<(Arc<str>, Entry)>();
/// The capacity of a node in entries, and the fewest entries of a node if names are inserted in order.
const NODE_CAPACITY: usize = 11;
const MIN_NODE_ENTRIES: usize = 6;

impl Entries {
    pub(super) fn new() -> Entries {
        Entries { by_name: BTreeMap::new(), text_bytes: 0, counted: CountedHeap::new(0) }
    }

    /// Adds an entry; it replaces one of the same name.
    pub(super) fn insert(&mut self, name: Arc<str>, entry: Entry) {
        let len_bytes = name.len();
        if self.by_name.insert(name, entry).is_none() {
            self.text_bytes += len_bytes + heap::PER_ALLOCATION;
        }
        self.count();
    }

    /// Removes an entry; returns whether there was one of that name.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let removed = self.by_name.remove(name).is_some();
        self.text_bytes -= if removed { name.len() + heap::PER_ALLOCATION } else { 0 };
        self.count();
        removed
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.by_name.get_mut(name)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut Entry)> {
        self.by_name.iter_mut()
    }

    fn count(&mut self) {
        let n_nodes = if self.by_name.is_empty() { 0 } else { 1 + self.by_name.len() / MIN_NODE_ENTRIES };
        self.counted.set(self.text_bytes + n_nodes * NODE_CAPACITY * ENTRY_BYTES);
    }
}

impl Clone for Entries {
    fn clone(&self) -> Entries {
        let mut clone =
            Entries { by_name: self.by_name.clone(), text_bytes: self.text_bytes, counted: CountedHeap::new(0) };
        clone.count();
        clone
    }
}

impl Deref for Entries {
    type Target = BTreeMap<Arc<str>, Entry>;

    fn deref(&self) -> &BTreeMap<Arc<str>, Entry> {
        &self.by_name
    }
}

/// Returns an error if the budget has no room for the entries.
pub(super) fn check_budget(op: &'static str) -> Result<()> {
    heap::check().map_err(|source| Error::WorkingMemory { op, purpose: "names and handles of a map", source })
}
