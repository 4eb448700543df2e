//! The memory of software devices. Its addresses are not valid on the host.

use std::collections::BTreeMap;

/// Allocations of all devices of a machine, by address.
pub(super) struct Memory {
    blocks: BTreeMap<u64, Box<[u8]>>,
    next: u64,
}

const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000; // not mapped on any host, so that a dereference faults
const ALIGN: u64 = 512;
const GUARD: u64 = 4096; // gap between allocations, so that an access past an end is found
const FRESH: u8 = 0xA5; // the content of new memory

impl Memory {
    pub(super) fn new() -> Self {
        Self { blocks: BTreeMap::new(), next: FIRST_ADDRESS }
    }

    /// Allocates memory; `None` if the host does not have enough.
    pub(super) fn allocate(&mut self, len_bytes: usize) -> Option<u64> {
        let address = self.next;
        let next = address.checked_add(len_bytes as u64)?.checked_add(GUARD)?.checked_next_multiple_of(ALIGN)?;
        let mut block = Vec::new();
        block.try_reserve_exact(len_bytes).ok()?;
        block.resize(len_bytes, FRESH);
        self.blocks.insert(address, block.into_boxed_slice());
        self.next = next;
        Some(address)
    }

    pub(super) fn free(&mut self, address: u64) -> Option<Box<[u8]>> {
        self.blocks.remove(&address)
    }

    pub(super) fn bytes(&self, address: u64, len_bytes: usize) -> Result<&[u8], String> {
        let found = self.blocks.range(..=address).next_back();
        let bytes = found.and_then(|(start, block)| block.get(range(address - start, len_bytes)?));
        bytes.ok_or_else(|| invalid(address, len_bytes))
    }

    pub(super) fn bytes_mut(&mut self, address: u64, len_bytes: usize) -> Result<&mut [u8], String> {
        let found = self.blocks.range_mut(..=address).next_back();
        let bytes = found.and_then(|(start, block)| block.get_mut(range(address - start, len_bytes)?));
        bytes.ok_or_else(|| invalid(address, len_bytes))
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.blocks.values().map(|block| block.len()).sum()
    }
}

fn range(offset: u64, len_bytes: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len_bytes)?)
}

fn invalid(address: u64, len_bytes: usize) -> String {
    format!("{len_bytes} bytes at {address:#x} are not allocated, or were freed")
}
