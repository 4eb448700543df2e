//! Staged copies: ordinary memory of any size moves at the speed of the wire, through a small page-locked ring.
//!
//! A device copies directly only from and to page-locked memory. So several threads copy ordinary memory to slots of a
//! ring, and the device copies from there, both at once; the other way round for downloads. The ring is small, so that
//! it stays in the processor's cache, and one for each device; `docs/performance.md` says what was measured.
//!
//! - `job.rs`: the processor's part of a copy, in granules; `crew.rs`: the threads that take them;
//! - `stores.rs`: how they write; `ring.rs`: the slots; `up.rs` and `down.rs`: a call, from its first slot to its last;
//! - `manners.rs`: how it lets the copies of other streams go first;
//! - `packed.rs`: many small slices as one copy.
//!
//! An upload returns when its source may be changed, a download when its target may be read. After an error, or when a
//! panic unwinds, neither is touched any more: a call lets go of them only after all threads have.

mod crew;
mod down;
mod job;
mod manners;
mod packed;
mod ring;
mod stores;
mod up;

use std::{num::NonZero, sync::Arc, thread};

use pagelock_memory::ByteSize;

pub use self::packed::Packed;
use self::{
    crew::Crew,
    down::Download,
    job::{Direction, GRANULES, Plan},
    ring::{Ring, Share},
    stores::Stores,
    up::Upload,
};
use super::{note_download, same_length};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device::Device,
    driver::Address,
    element::Element,
    error::Result,
    host_function,
    page_locked::page_locked_budget,
    parking::Lot,
    stream::{Access, Stream, StreamCore},
    sync::{Mutex, lock},
    ticket::InUse,
};

/// How a device's staged copies are made; see [`Device::set_staging`].
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, StagingConfig, software::Config};
/// use pagelock_memory::ByteSize;
///
/// let device = Device::software(Config::default())?;
/// device.set_staging(StagingConfig { ring: ByteSize::mib(16), ..device.staging() });
/// assert_eq!(device.staging().ring, ByteSize::mib(16));
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// The most that is page-locked for it.
    pub ring: ByteSize,
    /// What one slot holds.
    pub slot: ByteSize,
    /// The most that the device copies at once: how long a small copy may have to wait for a large one.
    pub chunk: ByteSize,
    /// Threads that help; the caller copies too.
    pub threads: usize,
}

impl Default for StagingConfig {
    /// For this machine: half of the processors, at most 8, the caller's among them, and 8 MiB for each, at most 64 MiB
    /// and half of what may be page-locked.
    fn default() -> Self {
        let threads = (thread::available_parallelism().map_or(1, NonZero::get) / 2).clamp(2, 8);
        let most = ByteSize::mib(64).0.min(page_locked_budget().limit().0 / 2);
        let ring =
            ByteSize((threads as u64 * ByteSize::mib(8).0).clamp(ByteSize::mib(16).0, ByteSize::mib(64).0).min(most));
        Self { ring, slot: ByteSize::mib(4), chunk: ByteSize::mib(4), threads: threads - 1 }
    }
}

/// A device's ring and threads.
pub(crate) struct Staging {
    large: Ring,
    small: Ring,
    chunk_bytes: usize,
    granule_bytes: usize,
    crew: Crew,
}

/// Where a device has its [`Staging`], once it is used.
#[derive(Default)]
pub(crate) struct Place(Mutex<Placed>); // guards which there is

#[derive(Default)]
struct Placed {
    config: Option<StagingConfig>,
    staging: Option<Arc<Staging>>,
}

/// A part of a device buffer that passes through one slot.
struct Part {
    buffer: usize,
    address: Address,
    len_bytes: usize,
}

const SMALL: usize = 64 << 10; // up to here the caller copies alone, through a small slot of its own
const FEW_GRANULES: usize = 4; // up to here waking threads takes longer than they save
const LEAST_PIECE: usize = 512 << 10; // of a download

impl Staging {
    fn new(config: StagingConfig) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX / 2);
        let slot_bytes = bytes(config.slot).clamp(1 << 10, 1 << 30).next_multiple_of(1 << 10);
        let small_bytes = SMALL.min(slot_bytes);
        let small_share = bytes(config.ring) / 32;
        let large_share = bytes(config.ring) - small_share;
        Self {
            large: Ring::new(slot_bytes, (large_share / slot_bytes).max(2)),
            small: Ring::new(small_bytes, (small_share / small_bytes).max(2)),
            chunk_bytes: bytes(config.chunk).clamp(1 << 10, slot_bytes),
            granule_bytes: slot_bytes.div_ceil(GRANULES).max(SMALL.min(slot_bytes / 4)),
            crew: Crew::start(config.threads),
        }
    }

    fn plan(&self, piece_bytes: usize) -> Plan {
        Plan::new(piece_bytes.clamp(self.granule_bytes, self.large.slot_bytes()), self.granule_bytes)
    }

    fn crew_for(&self, plan: &Plan) -> Option<&Crew> {
        (plan.granules() > FEW_GRANULES && self.crew.threads() > 0).then_some(&self.crew)
    }

    /// Runs a planned upload, which reads only memory that the caller has borrowed.
    fn upload(&self, stream: &Arc<StreamCore>, plan: Plan, targets: &[Access<'_>], parts: &[Part]) -> Result<()> {
        let crew = self.crew_for(&plan);
        let share = self.large.share(stream);
        // The device is waiting for a short copy, unless it is still busy with the one before.
        let is_awaited = parts.len() == 1 && self.large.is_quiet(stream.base());
        let stores = if is_awaited { Stores::PastCaches } else { Stores::Ordinary };
        let at_work = Crew::put_to_work(crew, Arc::new(plan.into_job(Direction::ToSlots, stores)));
        Upload::new(at_work, share, stream, (targets, parts), self.chunk_bytes).run()
    }

    /// Runs a planned download, which writes only memory that the caller has borrowed.
    fn download(&self, stream: &Arc<StreamCore>, plan: Plan, sources: &[Access<'_>], parts: &[Part]) -> Result<()> {
        let crew = self.crew_for(&plan);
        let share = self.large.share(stream);
        let at_work = Crew::put_to_work(crew, Arc::new(plan.into_job(Direction::FromSlots, Stores::Ordinary)));
        Download::new(at_work, share, stream, (sources, parts)).run()
    }

    /// Copies so few bytes that the caller does it alone.
    fn upload_small<T: Element>(
        &self,
        stream: &Arc<StreamCore>,
        source: &[T],
        target: &DeviceViewMut<'_, T>,
    ) -> Result<()> {
        let source: &[u8] = bytemuck::cast_slice(source);
        let mut share = self.small.share(stream);
        let mut slot = share.take()?;
        slot[..source.len()].copy_from_slice(source);
        let slot = InUse::new(slot, source.len());
        stream.note_upload();
        let queued = stream.enqueue(&[target.access()], |driver, stream| {
            // SAFETY: the source is as long as the target (checked), which `enqueue` orders; the slot holds it and is
            // in `InUse`.
            unsafe { driver.copy_to_device(stream, target.address(), slot.held().as_ptr(), source.len()) }
        });
        share.launch(slot, queued, false)
    }

    /// Copies so few bytes that the caller does it alone.
    fn download_small<T: Element>(
        &self,
        stream: &Arc<StreamCore>,
        source: DeviceView<'_, T>,
        target: &mut [T],
    ) -> Result<()> {
        let target: &mut [u8] = bytemuck::cast_slice_mut(target);
        let mut share: Share<'_> = self.small.share(stream);
        let mut slot = InUse::new(share.take()?, target.len());
        let to = slot.held_mut().start_mut();
        note_download(stream);
        let queued = stream.enqueue(&[source.access()], |driver, stream| {
            // SAFETY: the target is as long as the source (checked), which `enqueue` orders; the slot has room for it
            // and is in `InUse`.
            unsafe { driver.copy_to_host(stream, to, source.address(), target.len()) }
        });
        share.launch(slot, queued, false)?;
        if let Some(slot) = share.land()? {
            target.copy_from_slice(&slot[..target.len()]);
            share.give_back(slot);
        }
        Ok(())
    }
}

impl Place {
    fn get(&self) -> Arc<Staging> {
        let mut placed = lock(&self.0);
        let config = placed.config.unwrap_or_default();
        placed.staging.get_or_insert_with(|| Arc::new(Staging::new(config))).clone()
    }

    fn config(&self) -> StagingConfig {
        lock(&self.0).config.unwrap_or_default()
    }

    fn set(&self, config: StagingConfig, lot: &Lot) {
        self.release(lot);
        lock(&self.0).config = Some(config);
    }

    /// Ends the ring and the threads; what a device still uses goes to the lot.
    pub(crate) fn release(&self, lot: &Lot) {
        let staging = lock(&self.0).staging.take();
        if let Some(staging) = staging {
            staging.large.retire(lot);
            staging.small.retire(lot);
        }
    }
}

impl Device {
    /// How staged copies are made; for this machine, unless it was [set](Self::set_staging).
    pub fn staging(&self) -> StagingConfig {
        self.core().staging().config()
    }

    /// How staged copies are made from now on. What the ring so far held is given back.
    pub fn set_staging(&self, config: StagingConfig) {
        self.core().staging().set(config, self.core().lot());
    }

    /// Gives back the page-locked memory and the threads of staged copies. The next such copy gets them again.
    pub fn release_staging(&self) {
        self.core().staging().release(self.core().lot());
    }

    /// What is page-locked for staged copies at the moment: nothing before the first one.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::ByteSize;
    ///
    /// let device = Device::software(Config::default())?;
    /// assert_eq!(device.staged(), ByteSize(0));
    /// device.stream()?.upload_each::<f32>([])?;
    /// assert!(device.staged() <= device.staging().ring);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn staged(&self) -> ByteSize {
        self.core().staging().len_bytes()
    }
}

impl Place {
    fn len_bytes(&self) -> ByteSize {
        let staging = lock(&self.0).staging.clone();
        ByteSize(staging.map_or(0, |staging| staging.large.len_bytes() + staging.small.len_bytes()) as u64)
    }
}

impl Stream {
    /// Copies `source`, any memory, to `target`; returns when the source may be changed.
    ///
    /// Several threads and the device work at it together, at the speed of the wire. The copy itself is then queued
    /// on this stream, and perhaps not done.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), [`Error::OtherDevice`](crate::Error::OtherDevice),
    /// [`Error::Driver`](crate::Error::Driver), and [`Error::Memory`](crate::Error::Memory) if nothing at all can be
    /// page-locked. After an error the target holds some of the source.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let mut on_device = stream.allocate::<u32>(1_000_000)?;
    /// let mut numbers: Vec<u32> = (0..1_000_000).collect();
    /// stream.upload_staged(&numbers, &mut on_device)?;
    /// numbers.fill(0); // not seen by the device
    ///
    /// stream.download_staged(&on_device, &mut numbers)?;
    /// assert_eq!(numbers[999_999], 999_999);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn upload_staged<'a, T: Element>(&self, source: &[T], target: impl Into<DeviceViewMut<'a, T>>) -> Result<()> {
        let target = target.into();
        if size_of_val(source) > SMALL {
            return self.upload_each([(source, target)]);
        }
        target.check_beside(self.core())?;
        same_length(source.len(), target.len())?;
        if source.is_empty() {
            return Ok(());
        }
        let staging = self.device().core().staging().get();
        if size_of_val(source) > staging.small.slot_bytes() {
            return self.upload_each([(source, target)]);
        }
        staging.upload_small(self.core(), source, &target)
    }

    /// Copies `source` to `target`, any memory; returns when the target may be read.
    ///
    /// # Errors
    /// As [`upload_staged`](Self::upload_staged).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let zeros = stream.zeros::<u8>(300_000)?;
    /// let mut numbers = vec![1; 300_000];
    /// stream.download_staged(&zeros, &mut numbers)?;
    /// assert!(numbers.iter().all(|&number| number == 0));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn download_staged<'a, T: Element>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        target: &mut [T],
    ) -> Result<()> {
        let source = source.into();
        if size_of_val(target) > SMALL {
            return self.download_each([(source, target)]);
        }
        source.check_beside(self.core())?;
        same_length(source.len(), target.len())?;
        if target.is_empty() {
            return Ok(());
        }
        let staging = self.device().core().staging().get();
        if size_of_val(target) > staging.small.slot_bytes() {
            return self.download_each([(source, target)]);
        }
        staging.download_small(self.core(), source, target)
    }

    /// Copies many slices, as [`upload_staged`](Self::upload_staged) copies one, without a pause between them.
    ///
    /// # Errors
    /// As [`upload_staged`](Self::upload_staged).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let (weights, biases) = (vec![1.0_f32; 100_000], vec![2.0_f32; 100]);
    /// let mut first = stream.allocate(weights.len())?;
    /// let mut second = stream.allocate(biases.len())?;
    /// stream.upload_each([(&weights[..], first.view_mut()), (&biases[..], second.view_mut())])?;
    /// assert_eq!(stream.read(&second)?, biases);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn upload_each<'s, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (&'s [T], DeviceViewMut<'d, T>)>,
    ) -> Result<()> {
        host_function::refuse_inside()?;
        let staging = self.device().core().staging().get();
        let mut plan = staging.plan(usize::MAX);
        let (mut targets, mut parts) = (Vec::new(), Vec::new());
        for (source, target) in copies {
            target.check_beside(self.core())?;
            same_length(source.len(), target.len())?;
            let (buffer, address) = (targets.len(), target.address());
            targets.push(target.access());
            plan.add(source.as_ptr().cast::<u8>().cast_mut(), target.len_bytes(), |offset, len_bytes| {
                parts.push(Part { buffer, address: address.offset(offset), len_bytes });
            });
        }
        staging.upload(self.core(), plan, &targets, &parts)
    }

    /// Copies to many slices, as [`download_staged`](Self::download_staged) copies to one, without a pause between
    /// them.
    ///
    /// # Errors
    /// As [`upload_staged`](Self::upload_staged).
    pub fn download_each<'t, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (DeviceView<'d, T>, &'t mut [T])>,
    ) -> Result<()> {
        host_function::refuse_inside()?;
        let staging = self.device().core().staging().get();
        let mut targets = Vec::new();
        for (source, target) in copies {
            source.check_beside(self.core())?;
            same_length(source.len(), target.len())?;
            targets.push((source, target));
        }
        let total: usize = targets.iter().map(|(source, _)| source.len_bytes()).sum();
        let mut plan = staging.plan((total / 8).max(LEAST_PIECE).next_multiple_of(staging.granule_bytes));
        let (mut sources, mut parts) = (Vec::new(), Vec::new());
        for (source, target) in &mut targets {
            let (buffer, address) = (sources.len(), source.address());
            sources.push(source.access());
            plan.add(target.as_mut_ptr().cast(), source.len_bytes(), |offset, len_bytes| {
                parts.push(Part { buffer, address: address.offset(offset), len_bytes });
            });
        }
        staging.download(self.core(), plan, &sources, &parts)
    }
}
