//! Bytes of a file on their way to a device: threads read them straight into the slots of the ring.
//!
//! However large the file, nothing of it is in this program's memory but what is in the slots. Small ranges are packed.

use std::{fs::File, ops::Range};

use super::{
    Part, Staging,
    job::Start,
    packed::{layout, pieces},
};
use crate::{
    buffer::{DeviceBuffer, DeviceViewMut},
    driver::Address,
    error::{Error, Result},
    host_function, sanitize,
    stream::Stream,
};

/// Shorter ranges share a block of the device's memory and pass through slots together.
const PACKED: u64 = 1 << 20;

impl Stream {
    /// Copies as many bytes of a file as `target` has, from `start` on; returns when they were read. The memory that this
    /// takes is the ring's, however many they are.
    ///
    /// # Errors
    /// [`Error::File`] if they cannot be read, or the file ends before; as [`upload_staged`](Self::upload_staged). After an
    /// error the target holds some of them.
    ///
    /// # Examples
    /// ```
    /// use std::fs::File;
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let file = File::open("Cargo.toml").unwrap();
    /// let mut target = stream.allocate::<u8>(9)?;
    /// stream.upload_file(&file, 0, &mut target)?;
    /// assert_eq!(stream.read(&target)?, b"[package]");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_file<'a>(&self, file: &File, start: u64, target: impl Into<DeviceViewMut<'a, u8>>) -> Result<()> {
        let _here = sanitize::here();
        let target = target.into();
        host_function::refuse_inside()?;
        target.check_beside(self.core())?;
        let staging = Staging::of(self)?;
        let plan = staging.plan_upload(target.len());
        let mut plan = plan.reading(file.try_clone().map_err(|source| Error::File { source })?);
        let mut parts = Vec::new();
        plan.add(Start::File(start), target.len(), |offset, len_bytes| {
            parts.push(Part { buffers: 0..1, address: target.address().offset(offset), len_bytes });
        });
        staging.upload(self.core(), plan, &[target.access()], &parts)
    }

    /// Copies ranges of a file, each to a buffer of its own; returns when they were read. Short ones share one block of the
    /// device's memory, which is given back with the last of its buffers.
    ///
    /// # Errors
    /// As [`upload_file`](Self::upload_file) and [`allocate`](Self::allocate); [`Error::Range`] for a range that ends before
    /// it begins.
    ///
    /// # Examples
    /// ```
    /// use std::fs::File;
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let file = File::open("Cargo.toml").unwrap();
    /// let buffers = stream.upload_file_each(&file, &[1..8, 0..1])?;
    /// assert_eq!((stream.read(&buffers[0])?, stream.read(&buffers[1])?), (b"package".to_vec(), b"[".to_vec()));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_file_each(&self, file: &File, ranges: &[Range<u64>]) -> Result<Vec<DeviceBuffer<u8>>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        if let Some(range) = ranges.iter().find(|range| range.start > range.end) {
            let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
            return Err(Error::Range { start, end, len: end });
        }
        let is_short = |range: &&Range<u64>| range.end - range.start < PACKED;
        let short: Vec<_> = ranges.iter().filter(is_short).collect();
        let (places, len) = layout::<u8>(short.iter().map(|range| (range.end - range.start) as usize))?;
        let mut block = self.allocate::<u8>(len)?;
        let mut long = Vec::new();
        for range in ranges.iter().filter(|range| !is_short(range)) {
            let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            long.push((range.start, self.allocate::<u8>(len)?));
        }
        let starts: Vec<_> = short.iter().map(|range| Start::File(range.start)).collect();
        self.read_to(file, &starts, &places, &mut block, &mut long)?;
        let (mut short, mut long) = (block.split(places)?.into_iter(), long.into_iter().map(|(_, buffer)| buffer));
        let next = |range: &Range<u64>| if is_short(&range) { short.next() } else { long.next() };
        Ok(ranges.iter().filter_map(next).collect())
    }

    /// Short ranges to their places in a block, long ones to buffers of their own.
    fn read_to(
        &self,
        file: &File,
        starts: &[Start],
        places: &[Range<usize>],
        block: &mut DeviceBuffer<u8>,
        long: &mut [(u64, DeviceBuffer<u8>)],
    ) -> Result<()> {
        let staging = Staging::of(self)?;
        let len_bytes = block.len() + long.iter().map(|(_, buffer)| buffer.len()).sum::<usize>();
        let plan = staging.plan_upload(len_bytes);
        let plan = plan.reading(file.try_clone().map_err(|source| Error::File { source })?);
        let address: Address = block.address();
        let (mut plan, mut parts) = pieces::<u8>(plan, starts.iter().copied(), places, address, &[]);
        let mut targets = vec![block.view_mut().access()];
        for (start, buffer) in long {
            let (at, address) = (targets.len(), buffer.address());
            plan.add(Start::File(*start), buffer.len(), |offset, len_bytes| {
                parts.push(Part { buffers: at..at + 1, address: address.offset(offset), len_bytes });
            });
            targets.push(buffer.view_mut().access());
        }
        staging.upload(self.core(), plan, &targets, &parts)
    }
}
