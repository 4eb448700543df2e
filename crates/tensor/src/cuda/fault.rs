//! Finds indices out of range on a device: kernels note them, and the host reads the note when it next waits.
//!
//! Checking before a kernel runs would mean waiting for the device. So kernels check the indices that they use. If
//! one is out of range, they read and write nothing for it (`fault.cu`), and leave a note. The host reads the note
//! when it waits for the device anyway (when elements are read, and in `synchronize`), if a call may have used indices
//! since it last did.

use std::sync::{Mutex, PoisonError};

use pagelock_cuda::{Argument, DeviceBuffer};

use super::CudaDevice;
use crate::capture;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::shape::Shape;

/// `Fault` of `fault.cu`: two numbers of 64 bits.
const NOTE_BYTES: usize = 16;

/// The dimension of a tensor that a call indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Indexed {
    pub(crate) op: &'static str,
    pub(crate) dim: usize,
    pub(crate) shape: Shape,
}

/// The note, and the calls that it can be about.
#[derive(Default)]
pub(super) struct Faults {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// On the device, once a call had indices.
    note: Option<DeviceBuffer<u8>>,
    /// The distinct calls since the host last found no fault, after those that it keeps. The note counts them from 1.
    sites: Vec<Indexed>,
    /// Whether a call had indices since the host looked at the note.
    is_due: bool,
    /// How many of the first calls are kept, since captured steps may repeat them. Their launches do not set `is_due`.
    n_kept: usize,
}

impl CudaDevice {
    /// Calls `launch` with two arguments for a kernel that checks indices: where to note a fault, and the number of
    /// the call.
    pub(crate) fn with_fault(
        &self,
        indexed: Indexed,
        launch: impl FnOnce([Argument<'_>; 2]) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.faults().state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { note, sites, is_due, n_kept } = &mut *state;
        *is_due = true;
        let site = sites.iter().position(|known| *known == indexed).unwrap_or_else(|| {
            sites.push(indexed);
            sites.len() - 1
        });
        if capture::number() > 0 {
            *n_kept = (*n_kept).max(site + 1);
        }
        let note = match note {
            Some(note) => note,
            None => {
                note.insert(capture::outside(|| self.new_note()).map_err(|source| Error::cuda(indexed.op, source))?)
            }
        };
        let site = (site as u64 + 1).to_ne_bytes();
        launch([Argument::Write(note.view_mut()), Argument::Value(&site)])
    }

    fn new_note(&self) -> pagelock_cuda::Result<DeviceBuffer<u8>> {
        let stream = self.stream();
        let mut note = stream.allocate(NOTE_BYTES)?;
        stream.fill(&mut note, 0)?;
        Ok(note)
    }

    /// Returns the error of a call that had an index out of range, once. Waits for the device if a call may have had
    /// one.
    pub(crate) fn check_faults(&self) -> Result<()> {
        let mut state = self.faults().state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { note: Some(note), sites, is_due, n_kept } = &mut *state else { return Ok(()) };
        if !*is_due && *n_kept == 0 {
            return Ok(());
        }
        let failed = |source| Error::cuda("index", source);
        let found = self.stream().read(&*note).map_err(failed)?;
        *is_due = false;
        let (numbers, _) = found.as_chunks::<8>();
        let [site, index] = [numbers[0], numbers[1]].mapped(i64::from_ne_bytes);
        let site = usize::try_from(site - 1).ok().and_then(|site| sites.get(site));
        let Some(&Indexed { op, dim, shape }) = site else {
            sites.truncate(*n_kept); // the calls of the others are done
            return Ok(());
        };
        self.stream().fill(note, 0).map_err(failed)?;
        Err(Error::IndexOutOfRange { op, index, dim, shape, from_end: false })
    }
}
