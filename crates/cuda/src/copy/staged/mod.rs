//! Staged copies: ordinary memory of any size moves at the speed of the wire, through a small page-locked ring.
//!
//! A device copies directly only from and to page-locked memory. So several threads copy ordinary memory to slots of a
//! ring, and the device copies from there, both at once; the other way round for downloads. The ring is small, so that
//! it stays in the processor's cache, and one for each device; `docs/performance.md` says what was measured.
//!
//! - `job.rs`: the processor's part of a copy, in granules; `crew.rs`: the threads that take them; `beds.rs`: where they
//!   sleep;
//! - `stores.rs`: how they write; `ring.rs`: the slots; `up.rs` and `down.rs`: a call, from its first slot to its last;
//! - `manners.rs`: how it lets the copies of other streams go first;
//! - `packed.rs`: many small slices as one copy; `packing.rs`: one that begins while its caller still looks for them;
//!   `file.rs`: bytes of a file, which never are in memory but in the slots;
//! - `shape.rs` and `calibrate.rs`: how large the ring is, how many threads help, and how that is measured.
//!
//! An upload returns when its source may be changed, a download when its target may be read. After an error, or when a
//! panic unwinds, neither is touched any more: a call lets go of them only after all threads have.

mod beds;
mod calibrate;
mod crew;
mod down;
mod file;
mod job;
mod manners;
mod packed;
mod packing;
mod ring;
mod shape;
mod stores;
mod up;

use std::{
    ops::Range,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use pagelock_memory::ByteSize;

pub(super) use self::shape::{machine_name, user_cache};
use self::{
    crew::Crew,
    down::Download,
    job::{Direction, GRANULES, Plan, Start},
    ring::{Flight, Ring, Share},
    stores::Stores,
    up::Upload,
};
pub use self::{
    packed::{Packed, PackedParts},
    packing::Packing,
    shape::StagingConfig,
};
use super::{note_download, same_length};
use crate::{
    base::Base,
    buffer::{DeviceView, DeviceViewMut},
    device::Device,
    driver::{Address, Properties},
    element::Element,
    error::Result,
    host_function,
    parking::Lot,
    sanitize,
    stream::{Access, Stream, StreamCore},
    sync::{Mutex, lock},
    ticket::InUse,
};

/// A device's ring and threads.
pub(crate) struct Staging {
    large: Ring,
    small: Ring,
    chunk_bytes: usize,
    granule_bytes: usize, // at least
    /// Those who fill slots, and those who empty them, who are more.
    crews: [Crew; 2],
    readers: OnceLock<Crew>, // of files: reading takes more threads than copying
    threads: usize,
    /// Calls that found the device a little behind, since it last had nothing to do. Relaxed: a hint.
    close_calls: AtomicUsize,
}

/// Where a device has its [`Staging`], once it is used.
#[derive(Default)]
pub(crate) struct Place(Mutex<Placed>); // guards which there is

#[derive(Default)]
struct Placed {
    chosen: Option<StagingConfig>,
    kept: Option<Option<StagingConfig>>, // what was once measured and kept; none: not looked for yet
    staging: Option<Arc<Staging>>,
}

/// A part of a device buffer that passes through one slot.
struct Part {
    buffers: Range<usize>, // whose parts it holds
    address: Address,
    len_bytes: usize,
}

pub(super) const SMALL: usize = 64 << 10; // up to here the caller copies alone, through a small slot of its own
const FILLERS: usize = 7; // so many and the caller fill slots faster than a device empties them; more get in their way
const CLOSE_CALLS: usize = 8; // by then, threads that can get ahead of the device with ordinary stores have
const FEW_GRANULES: usize = 4; // up to here waking threads takes longer than they save
const LEAST_PIECE: usize = 512 << 10; // of a download
const UPLOAD_PIECE: usize = 4 << 20; // at least, if slots have room for it

impl Staging {
    /// The one of a stream's device.
    fn of(stream: &Stream) -> Result<Arc<Self>> {
        let device = stream.device();
        device.core().staging().get(device.properties())
    }

    fn new(config: StagingConfig) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX / 2);
        let slot_bytes = bytes(config.slot).clamp(1 << 10, 1 << 30).next_multiple_of(1 << 10);
        let small_bytes = SMALL.min(slot_bytes);
        let small_share = bytes(config.ring) / 32;
        let large_share = bytes(config.ring) - small_share;
        Self {
            large: Ring::new(slot_bytes, (large_share / slot_bytes).max(2)).in_pairs(),
            small: Ring::new(small_bytes, (small_share / small_bytes).max(2)),
            chunk_bytes: bytes(config.chunk).clamp(1 << 10, 2 * slot_bytes),
            granule_bytes: SMALL.min(slot_bytes / 4),
            crews: [Crew::start("staging up", config.threads.min(FILLERS)), Crew::start("staging", config.threads)],
            readers: OnceLock::new(),
            threads: config.threads,
            close_calls: AtomicUsize::new(0),
        }
    }

    fn plan(&self, piece_bytes: usize) -> Plan {
        let piece_bytes = piece_bytes.clamp(self.granule_bytes, self.large.slot_bytes());
        Plan::new(piece_bytes, piece_bytes.div_ceil(GRANULES).max(self.granule_bytes))
    }

    /// For an upload of so many bytes. The device starts and ends a short one sooner with small pieces; of a long one each
    /// costs it some microseconds.
    fn plan_upload(&self, len_bytes: usize) -> Plan {
        self.plan((len_bytes / 8).max(UPLOAD_PIECE).next_multiple_of(1 << 20))
    }

    /// For a download of so many bytes.
    fn plan_download(&self, len_bytes: usize) -> Plan {
        self.plan((len_bytes / 8).max(LEAST_PIECE).next_multiple_of(self.granule_bytes))
    }

    fn crew_for(&self, plan: &Plan, direction: Direction) -> Option<&Crew> {
        let [up, down] = &self.crews;
        let crew = match direction {
            Direction::ToSlots if plan.reads_a_file() => {
                self.readers.get_or_init(|| Crew::start("staging file", self.threads))
            }
            Direction::ToSlots => up,
            Direction::FromSlots => down,
        };
        (plan.granules() > FEW_GRANULES && plan.helpers().min(crew.threads()) > 0).then_some(crew)
    }

    /// Wakes those who help with an upload of so many bytes.
    fn expect_upload(&self, len_bytes: usize) {
        if len_bytes > FEW_GRANULES * self.granule_bytes {
            self.crews[0].expect_work();
        }
    }

    /// Runs a planned upload, which reads only memory that the caller has borrowed.
    fn upload(&self, stream: &Arc<StreamCore>, plan: Plan, targets: &[Access<'_>], parts: &[Part]) -> Result<()> {
        self.begin_upload(stream, plan, targets, parts).run()
    }

    /// The same, not yet run.
    fn begin_upload<'a>(
        &'a self,
        stream: &'a Arc<StreamCore>,
        plan: Plan,
        targets: &'a [Access<'a>],
        parts: &'a [Part],
    ) -> Upload<'a> {
        let crew = self.crew_for(&plan, Direction::ToSlots);
        let share = self.large.share(stream);
        let behind = if parts.len() == 1 { Some(self.large.behind(stream.base())) } else { None };
        let stores = self.stores(behind);
        let is_awaited = matches!(behind, None | Some(Behind::NotAtAll));
        let crew = if is_awaited || plan.reads_a_file() { crew } else { crew.and(Some(&self.crews[1])) };
        let at_work = Crew::put_to_work(crew, Arc::new(plan.into_job(Direction::ToSlots, stores)));
        Upload::new(at_work, share, stream, (targets, parts), self.chunk_bytes, is_awaited)
    }

    /// How a call fills its slots: of one piece, that finds the device so far behind, or of many. A call of one piece leaves
    /// the device nothing to read but what was just written. Where such calls follow each other, threads get so far ahead of
    /// the device that it is not: if they are many, at once; if they are few, only past the caches, which takes longer.
    fn stores(&self, behind: Option<Behind>) -> Stores {
        match behind {
            None | Some(Behind::Far) => Stores::Ordinary,
            Some(Behind::ALittle) if self.close_calls.fetch_add(1, Ordering::Relaxed) < CLOSE_CALLS => Stores::Ordinary,
            Some(Behind::ALittle) => Stores::PastCaches,
            Some(Behind::NotAtAll) => {
                self.close_calls.store(0, Ordering::Relaxed);
                Stores::PastCaches
            }
        }
    }

    /// Runs a planned download, which writes only memory that the caller has borrowed.
    fn download(&self, stream: &Arc<StreamCore>, plan: Plan, sources: &[Access<'_>], parts: &[Part]) -> Result<()> {
        let crew = self.crew_for(&plan, Direction::FromSlots);
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
        // Before a slot that is in flight is taken: nobody could wait for it.
        host_function::refuse_inside()?;
        stream.refuse_capturing()?;
        let source: &[u8] = bytemuck::cast_slice(source);
        let mut share = self.small.share(stream);
        let (mut slot, start) = share.take_room(source.len())?;
        let from = slot.held_mut().start_mut().wrapping_add(start);
        // SAFETY: the slot has room for the source from here on, which nobody else has, neither a thread nor a device.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), from, source.len()) };
        stream.note_upload();
        let queued = stream.enqueue(&[target.access()], |driver, stream| {
            // SAFETY: the source is as long as the target (checked), which `enqueue` orders; the slot holds it and is
            // in `InUse`.
            unsafe { driver.copy_to_device(stream, target.address(), from.cast_const(), source.len()) }
        });
        share.launch_room(slot, queued, start, start + source.len())
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
        let mut slot = Flight::from(share.take()?);
        let to = slot.start_mut(); // before it is in use: a watcher may panic
        let slot = InUse::new(slot, target.len());
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

/// How far a device is behind ended calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// It is done with all of them.
    NotAtAll,
    ALittle,
    /// It has not begun to read what some of the last calls wrote.
    Far,
}

impl Place {
    fn get(&self, properties: &Properties) -> Result<Arc<Staging>> {
        let mut placed = lock(&self.0);
        if let Some(staging) = &placed.staging {
            return Ok(staging.clone());
        }
        let config = placed.config(properties)?;
        Ok(placed.staging.insert(Arc::new(Staging::new(config))).clone())
    }

    /// What was set, if it was.
    fn chosen(&self) -> Option<StagingConfig> {
        lock(&self.0).chosen
    }

    fn set(&self, config: Option<StagingConfig>, lot: &Lot) {
        self.release(lot);
        lock(&self.0).chosen = config;
    }

    /// Gives back the slots that no copy uses. How many bytes.
    pub(crate) fn trim(&self, base: &Base) -> usize {
        let staging = lock(&self.0).staging.clone();
        staging.map_or(0, |staging| staging.large.trim(base) + staging.small.trim(base))
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

impl Placed {
    fn config(&mut self, properties: &Properties) -> Result<StagingConfig> {
        if let Some(chosen) = self.chosen {
            return Ok(chosen);
        }
        let kept = match self.kept {
            Some(kept) => kept,
            None => *self.kept.insert(shape::kept(&shape::user_cache()?, properties)),
        };
        StagingConfig::found(kept)
    }
}

impl Device {
    /// How staged copies are made: as was [set](Self::set_staging), or as `$PAGELOCK_STAGING` says, or as was once
    /// [measured](Self::calibrate_staging) on such a machine, or as its number of processors suggests.
    pub fn staging(&self) -> StagingConfig {
        lock(&self.core().staging().0).config(self.properties()).unwrap_or_default()
    }

    /// How staged copies are made from now on. What the ring so far held is given back.
    pub fn set_staging(&self, config: StagingConfig) {
        self.core().staging().set(Some(config.within_bounds()), self.core().lot());
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
    /// Says that so many bytes of ordinary memory will be uploaded as soon as the caller has prepared it: the threads that help
    /// wake up meanwhile, which takes them longer than a short copy. Nothing but time depends on it.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// stream.expect_upload(1_000_000);
    /// let prepared: Vec<u8> = (0..1_000_000).map(|i| i as u8).collect();
    /// assert_eq!(stream.upload_packed(&[&prepared[..]])?.len(), 1);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn expect_upload(&self, len_bytes: usize) {
        if let Ok(staging) = Staging::of(self) {
            staging.expect_upload(len_bytes);
        }
    }

    /// Copies `source`, any memory, to `target`; returns when the source may be changed.
    ///
    /// Several threads and the device work at it together, at the speed of the wire. The copy itself is then queued
    /// on this stream, and perhaps not done.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), [`Error::OtherDevice`](crate::Error::OtherDevice),
    /// [`Error::Driver`](crate::Error::Driver), [`Error::Memory`](crate::Error::Memory) if nothing at all can be
    /// page-locked, and [`Error::StagingVariable`](crate::Error::StagingVariable). After an error the target holds some of
    /// the source.
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
    #[track_caller]
    pub fn upload_staged<'a, T: Element>(&self, source: &[T], target: impl Into<DeviceViewMut<'a, T>>) -> Result<()> {
        let _here = sanitize::here();
        self.upload_staged_by(source, target.into(), None)
    }

    /// The same, with at most so many threads beside the caller.
    pub(super) fn upload_staged_by<T: Element>(
        &self,
        source: &[T],
        target: DeviceViewMut<'_, T>,
        threads: Option<usize>,
    ) -> Result<()> {
        if size_of_val(source) > SMALL {
            return self.upload_each_by([(source, target)], threads);
        }
        target.check_beside(self.core())?;
        same_length(source.len(), target.len())?;
        if source.is_empty() {
            return Ok(());
        }
        let staging = Staging::of(self)?;
        if size_of_val(source) > staging.small.slot_bytes() {
            return self.upload_each_by([(source, target)], threads);
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
    #[track_caller]
    pub fn download_staged<'a, T: Element>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        target: &mut [T],
    ) -> Result<()> {
        let _here = sanitize::here();
        let source = source.into();
        if size_of_val(target) > SMALL {
            return self.download_each([(source, target)]);
        }
        source.check_beside(self.core())?;
        same_length(source.len(), target.len())?;
        if target.is_empty() {
            return Ok(());
        }
        let staging = Staging::of(self)?;
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
    #[track_caller]
    pub fn upload_each<'s, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (&'s [T], DeviceViewMut<'d, T>)>,
    ) -> Result<()> {
        let _here = sanitize::here();
        self.upload_each_by(copies, None)
    }

    /// The same, with at most so many threads beside the caller.
    pub(super) fn upload_each_by<'s, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (&'s [T], DeviceViewMut<'d, T>)>,
        threads: Option<usize>,
    ) -> Result<()> {
        host_function::refuse_inside()?;
        let staging = Staging::of(self)?;
        let copies: Vec<_> = copies.into_iter().collect();
        // No piece is longer than the longest: larger granules would only be fewer for the threads to share.
        let longest = copies.iter().map(|(source, _)| size_of_val(*source)).max().unwrap_or(0);
        let mut plan = staging.plan_upload(longest).with_helpers(threads);
        let (mut targets, mut parts) = (Vec::with_capacity(copies.len()), Vec::with_capacity(copies.len()));
        for (source, target) in copies {
            target.check_beside(self.core())?;
            same_length(source.len(), target.len())?;
            let (buffer, address) = (targets.len(), target.address());
            targets.push(target.access());
            let start = Start::Memory(source.as_ptr().cast::<u8>().cast_mut());
            plan.add(start, target.len_bytes(), |offset, len_bytes| {
                parts.push(Part { buffers: buffer..buffer + 1, address: address.offset(offset), len_bytes });
            });
        }
        staging.upload(self.core(), plan, &targets, &parts)
    }

    /// Copies to many slices, as [`download_staged`](Self::download_staged) copies to one, without a pause between
    /// them.
    ///
    /// # Errors
    /// As [`upload_staged`](Self::upload_staged).
    #[track_caller]
    pub fn download_each<'t, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (DeviceView<'d, T>, &'t mut [T])>,
    ) -> Result<()> {
        let _here = sanitize::here();
        self.download_each_by(copies, None)
    }

    /// The same, with at most so many threads beside the caller.
    pub(super) fn download_each_by<'t, 'd, T: Element>(
        &self,
        copies: impl IntoIterator<Item = (DeviceView<'d, T>, &'t mut [T])>,
        threads: Option<usize>,
    ) -> Result<()> {
        host_function::refuse_inside()?;
        let staging = Staging::of(self)?;
        let mut targets = Vec::new();
        for (source, target) in copies {
            source.check_beside(self.core())?;
            same_length(source.len(), target.len())?;
            targets.push((source, target));
        }
        let total: usize = targets.iter().map(|(source, _)| source.len_bytes()).sum();
        let longest = targets.iter().map(|(source, _)| source.len_bytes()).max().unwrap_or(0); // as in uploads
        let mut plan = staging.plan_download(total.min(8 * longest)).with_helpers(threads);
        let (mut sources, mut parts) = (Vec::new(), Vec::new());
        for (source, target) in &mut targets {
            let (buffer, address) = (sources.len(), source.address());
            sources.push(source.access());
            plan.add(Start::Memory(target.as_mut_ptr().cast()), source.len_bytes(), |offset, len_bytes| {
                parts.push(Part { buffers: buffer..buffer + 1, address: address.offset(offset), len_bytes });
            });
        }
        staging.download(self.core(), plan, &sources, &parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_a_little_ahead_of_the_device_fill_past_the_caches_once_they_could_not_get_far_ahead() {
        let staging = Staging::new(StagingConfig { threads: 1, ..StagingConfig::default() });
        let calls_with = |stores| {
            let mut calls = (0..).take_while(|_| staging.stores(Some(Behind::ALittle)) == stores);
            calls.by_ref().take(100).count()
        };
        for _ in 0..2 {
            assert_eq!(staging.stores(Some(Behind::NotAtAll)), Stores::PastCaches);
            assert_eq!(calls_with(Stores::Ordinary), CLOSE_CALLS);
            assert_eq!(staging.stores(Some(Behind::Far)), Stores::Ordinary);
            assert_eq!(calls_with(Stores::PastCaches), 100, "until the device has nothing to do");
        }
        assert_eq!(staging.stores(None), Stores::Ordinary);
    }
}
