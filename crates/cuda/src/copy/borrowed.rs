//! Copies of borrowed host memory: slices, [`HostBuffer`]s and files, one or many at a time.

use std::{fs::File, marker::PhantomData, ops::Range};

use pagelock_memory::{HostBuffer, MemoryKind};

use super::{
    check_same_length,
    packed::{self, layout},
    page_locked::{PageLockedDownload, PageLockedUpload},
    staging::{Direction, Plan, Staging, Start},
};
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    error::{Error, Result},
    host_function, sanitize,
    stream::Stream,
};

/// The source of a copy to a device: a slice of any memory, all or a part of a [`HostBuffer`], or a range of a file's
/// bytes. The device reads a page-locked [`HostBuffer`] directly, without a thread of the host.
#[derive(Clone, Debug)]
pub struct HostSource<'a, T: DeviceCopy = u8> {
    pub(super) bytes: SourceBytes<'a>,
    elements: PhantomData<fn() -> T>,
}

#[derive(Clone, Debug)]
pub(super) enum SourceBytes<'a> {
    Slice(&'a [u8]),
    PageLocked(&'a HostBuffer, Range<usize>),
    File(&'a File, Range<u64>),
}

impl<'a, T: DeviceCopy> HostSource<'a, T> {
    /// A range of a buffer's bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the buffer.
    pub fn of(buffer: &'a HostBuffer, range: Range<usize>) -> Result<Self> {
        let Range { start, end } = range;
        if start > end || end > buffer.len_bytes() {
            return Err(Error::range(start, end, buffer.len_bytes()));
        }
        Ok(Self::new(match buffer.kind() {
            MemoryKind::PageLocked => SourceBytes::PageLocked(buffer, range),
            _ => SourceBytes::Slice(&buffer.bytes()[range]),
        }))
    }

    /// A range of a file's bytes. They are read directly into staging buffers and need no other host memory.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range ends before it begins.
    ///
    /// # Examples
    /// ```
    /// use std::fs::File;
    /// use pagelock_cuda::{Device, HostSource, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let file = File::open("Cargo.toml").unwrap();
    /// let mut target = stream.allocate::<u8>(9)?;
    /// stream.upload_from(HostSource::of_file(&file, 0..9)?, &mut target)?;
    /// assert_eq!(stream.read(&target)?, b"[package]");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn of_file(file: &'a File, range: Range<u64>) -> Result<Self> {
        if range.start > range.end {
            let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
            return Err(Error::range(start, end, end));
        }
        Ok(Self::new(SourceBytes::File(file, range)))
    }

    /// The number of bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len_bytes()
    }

    fn new(bytes: SourceBytes<'a>) -> Self {
        Self { bytes, elements: PhantomData }
    }
}

impl<'a, T: DeviceCopy> From<&'a [T]> for HostSource<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self::new(SourceBytes::Slice(bytemuck::cast_slice(slice)))
    }
}

impl<'a, T: DeviceCopy, const N: usize> From<&'a [T; N]> for HostSource<'a, T> {
    fn from(array: &'a [T; N]) -> Self {
        array[..].into()
    }
}

impl<'a, T: DeviceCopy> From<&'a Vec<T>> for HostSource<'a, T> {
    fn from(vec: &'a Vec<T>) -> Self {
        vec[..].into()
    }
}

impl<'a, T: DeviceCopy> From<&'a HostBuffer> for HostSource<'a, T> {
    fn from(buffer: &'a HostBuffer) -> Self {
        Self::new(match buffer.kind() {
            MemoryKind::PageLocked => SourceBytes::PageLocked(buffer, 0..buffer.len_bytes()),
            _ => SourceBytes::Slice(buffer.bytes()),
        })
    }
}

impl<'a> SourceBytes<'a> {
    fn len_bytes(&self) -> usize {
        match self {
            SourceBytes::Slice(slice) => slice.len(),
            SourceBytes::PageLocked(_, range) => range.len(),
            SourceBytes::File(_, range) => usize::try_from(range.end - range.start).unwrap_or(usize::MAX),
        }
    }

    fn whole(&self) -> Option<&'a HostBuffer> {
        match self {
            SourceBytes::PageLocked(buffer, range) if range.len() == buffer.len_bytes() && !range.is_empty() => {
                Some(buffer)
            }
            _ => None,
        }
    }
}

/// The target of a copy from a device: a slice of any memory, or all of a [`HostBuffer`]. The device writes a
/// page-locked [`HostBuffer`] directly, without a thread of the host.
#[derive(Debug)]
pub struct HostTarget<'a, T: DeviceCopy = u8> {
    bytes: TargetBytes<'a>,
    elements: PhantomData<fn() -> T>,
}

#[derive(Debug)]
enum TargetBytes<'a> {
    Slice(&'a mut [u8]),
    Buffer(&'a mut HostBuffer),
}

impl TargetBytes<'_> {
    fn len_bytes(&self) -> usize {
        match self {
            TargetBytes::Slice(slice) => slice.len(),
            TargetBytes::Buffer(buffer) => buffer.len_bytes(),
        }
    }
}

impl<'a, T: DeviceCopy> From<&'a mut [T]> for HostTarget<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Self { bytes: TargetBytes::Slice(bytemuck::cast_slice_mut(slice)), elements: PhantomData }
    }
}

impl<'a, T: DeviceCopy, const N: usize> From<&'a mut [T; N]> for HostTarget<'a, T> {
    fn from(array: &'a mut [T; N]) -> Self {
        (&mut array[..]).into()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut Vec<T>> for HostTarget<'a, T> {
    fn from(vec: &'a mut Vec<T>) -> Self {
        (&mut vec[..]).into()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut HostBuffer> for HostTarget<'a, T> {
    fn from(buffer: &'a mut HostBuffer) -> Self {
        Self { bytes: TargetBytes::Buffer(buffer), elements: PhantomData }
    }
}

/// The largest block that several buffers share. The last buffer of a block keeps at most this much memory allocated.
const MAX_BLOCK: usize = 64 << 20;

impl Stream {
    /// Copies `source` to `target`. For a slice or a file, returns when the source was read completely. For a
    /// page-locked [`HostBuffer`], returns at once; a later write to the buffer, or its drop, waits for the copy.
    /// When the call returns, the copy is queued on this stream but may not be done.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths differ, [`Error::OtherDevice`], [`Error::Driver`];
    /// [`Error::Memory`] if no staging buffer can be page-locked for a source that is not page-locked;
    /// [`Error::File`] if a file cannot be read or is too short;
    /// [`Error::Lost`] if the driver failed and cannot say whether the device still reads the buffer, which then
    /// refuses writes and is leaked. After an error the target may hold a part of the source.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::HostBuffer;
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let mut on_device = stream.allocate::<u32>(1_000_000)?;
    /// let mut numbers: Vec<u32> = (0..1_000_000).collect();
    /// stream.upload_from(&numbers, &mut on_device)?;
    /// numbers.fill(0); // not seen by the device
    /// assert_eq!(stream.read(&on_device)?[999_999], 999_999);
    ///
    /// let mut host = HostBuffer::allocate(device.page_locked(), 4)?;
    /// host.bytes_mut()?.fill(7);
    /// let mut on_device = stream.allocate::<u8>(4)?;
    /// stream.upload_from(&host, &mut on_device)?;
    /// host.bytes_mut()?.fill(8); // waits for the copy
    /// stream.download_to(&on_device, &mut host)?;
    /// assert_eq!(host.bytes(), [7; 4]); // waits for the copy
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_from<'s, 'd, T: DeviceCopy>(
        &self,
        source: impl Into<HostSource<'s, T>>,
        target: impl Into<DeviceViewMut<'d, T>>,
    ) -> Result<()> {
        let _here = sanitize::here();
        self.upload_each([(source, target)])
    }

    /// Copies many sources, each to its target, like [`upload_from`](Self::upload_from), without a pause between the
    /// copies. All page-locked buffers together are queued as one unit of work with one event. Parts of one host
    /// buffer that [follow each other](HostBuffer::is_followed_by) move in one copy if their targets follow each other
    /// at the same distance.
    ///
    /// # Errors
    /// As [`upload_from`](Self::upload_from). After an error some of the copies may have been made.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let (weights, biases) = (vec![1.0_f32; 100_000], vec![2.0_f32; 100]);
    /// let mut first = stream.allocate(weights.len())?;
    /// let mut second = stream.allocate(biases.len())?;
    /// stream.upload_each([(&weights, &mut first), (&biases, &mut second)])?;
    /// assert_eq!(stream.read(&second)?, biases);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_each<'s, 'd, T: DeviceCopy, S: Into<HostSource<'s, T>>, D: Into<DeviceViewMut<'d, T>>>(
        &self,
        copies: impl IntoIterator<Item = (S, D)>,
    ) -> Result<()> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (mut page_locked, mut staged) = (Vec::new(), Vec::new());
        for (source, target) in copies {
            let (source, target) = (source.into().bytes, target.into().bytes());
            target.check_same_device(self.core())?;
            check_len_bytes::<T>(source.len_bytes(), target.len())?;
            match source {
                SourceBytes::PageLocked(buffer, range) => page_locked.push(PageLockedUpload { buffer, range, target }),
                source => staged.push((source, target)),
            }
        }
        self.upload_page_locked(&page_locked)?;
        self.upload_staged(&staged)
    }

    fn upload_staged(&self, copies: &[(SourceBytes<'_>, DeviceViewMut<'_, u8>)]) -> Result<()> {
        let len_bytes = copies.iter().map(|(_, target)| target.len()).sum();
        if len_bytes == 0 {
            return Ok(());
        }
        let staging = Staging::of(self);
        if let [(SourceBytes::Slice(slice), target)] = copies
            && len_bytes <= staging.small_bytes()
        {
            return staging.upload_small(self.core(), slice, target);
        }
        let (mut plan, mut accesses) = (staging.plan(Direction::ToSlots, len_bytes), Vec::with_capacity(copies.len()));
        let mut last: Option<&DeviceViewMut<'_, u8>> = None;
        for (source, target) in copies.iter().filter(|(_, target)| !target.is_empty()) {
            let joins = last.is_some_and(|last| last.is_followed_by(target));
            let start = start_of(source, &mut plan)?;
            plan.add(accesses.len(), start, target.address(), target.len(), joins);
            accesses.push(target.access());
            last = Some(target);
        }
        staging.upload(self.core(), plan, &accesses)
    }

    /// Copies many sources, each to a buffer of its own. Consecutive slices and file ranges of the list share blocks
    /// of up to 64 MiB of the device's memory, and neighboring parts of one page-locked buffer share a block. A block
    /// is freed with the last of its buffers. Returns when [`upload_from`](Self::upload_from) would.
    ///
    /// # Errors
    /// As [`upload_from`](Self::upload_from) and [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let tensors: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 1_000]).collect();
    /// let sources: Vec<_> = tensors.iter().map(|tensor| tensor.into()).collect();
    /// let buffers = stream.upload_all(&sources)?;
    /// assert_eq!(stream.read(&buffers[99])?, [99; 1_000]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_all(&self, sources: &[HostSource<'_>]) -> Result<Vec<DeviceBuffer<u8>>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (mut buffers, mut rest) = (Vec::with_capacity(sources.len()), sources);
        while let Some(first) = rest.first() {
            let is_page_locked = matches!(first.bytes, SourceBytes::PageLocked(..));
            let group_len = if is_page_locked { neighbor_count(rest) } else { packed_count(rest) };
            let (group, others) = rest.split_at(group_len);
            let (ranges, len) = match is_page_locked {
                true => neighbor_ranges(group),
                false => layout::<u8>(group.iter().map(HostSource::len_bytes))?,
            };
            let buffer = self.allocate::<u8>(len)?;
            match group {
                [_] => buffers.push(buffer),
                _ => buffers.extend(buffer.split(ranges)?),
            }
            rest = others;
        }
        self.upload_each(sources.iter().cloned().zip(&mut buffers))?;
        Ok(buffers)
    }

    /// Copies `source` to `target`. For a slice, returns when the copy is done. For a page-locked [`HostBuffer`],
    /// returns at once; a later access to the buffer, or its drop, waits for the copy.
    ///
    /// # Errors
    /// As [`upload_from`](Self::upload_from), and [`Error::Memory`] if the buffer cannot be written.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let zeros = stream.zeros::<u8>(300_000)?;
    /// let mut numbers = vec![1; 300_000];
    /// stream.download_to(&zeros, &mut numbers)?;
    /// assert!(numbers.iter().all(|&number| number == 0));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_to<'s, 't, T: DeviceCopy>(
        &self,
        source: impl Into<DeviceView<'s, T>>,
        target: impl Into<HostTarget<'t, T>>,
    ) -> Result<()> {
        let _here = sanitize::here();
        self.download_each([(source, target)])
    }

    /// Copies many sources, each to its target, like [`download_to`](Self::download_to), without a pause between the
    /// copies. Parts of one buffer that [follow each other](DeviceBuffer::is_followed_by) closely move to slices in one
    /// copy. They move to page-locked buffers in one copy if these follow each other at the same distance.
    ///
    /// # Errors
    /// As [`download_to`](Self::download_to). After an error some of the copies may have been made.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts = stream.zeros::<u8>(1_000)?.split([0..400, 500..1_000])?;
    /// let (mut first, mut second) = ([1; 400], [1; 500]);
    /// stream.download_each([(&parts[0], &mut first[..]), (&parts[1], &mut second[..])])?;
    /// assert_eq!((first, second), ([0; 400], [0; 500]));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_each<'s, 't, T: DeviceCopy, S: Into<DeviceView<'s, T>>, D: Into<HostTarget<'t, T>>>(
        &self,
        copies: impl IntoIterator<Item = (S, D)>,
    ) -> Result<()> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (mut page_locked, mut staged) = (Vec::new(), Vec::new());
        for (source, target) in copies {
            let (source, target) = (source.into().bytes(), target.into().bytes);
            source.check_same_device(self.core())?;
            check_len_bytes::<T>(source.len(), target.len_bytes())?;
            match target {
                TargetBytes::Buffer(buffer) if buffer.kind() == MemoryKind::PageLocked => {
                    page_locked.push(PageLockedDownload { source, buffer })
                }
                TargetBytes::Buffer(buffer) => staged.push((source, buffer.bytes_mut()?)),
                TargetBytes::Slice(slice) => staged.push((source, slice)),
            }
        }
        self.download_page_locked(&mut page_locked)?;
        self.download_staged(&mut staged)
    }

    fn download_staged(&self, copies: &mut [(DeviceView<'_, u8>, &mut [u8])]) -> Result<()> {
        let len_bytes = copies.iter().map(|(source, _)| source.len()).sum();
        if len_bytes == 0 {
            return Ok(());
        }
        let staging = Staging::of(self);
        if let [(source, target)] = copies
            && len_bytes <= staging.small_bytes()
        {
            return staging.download_small(self.core(), *source, target);
        }
        let (mut plan, mut accesses) = (staging.plan(Direction::FromSlots, len_bytes), Vec::new());
        let mut last: Option<DeviceView<'_, u8>> = None;
        for (source, target) in copies.iter_mut().filter(|(source, _)| !source.is_empty()) {
            let joins = last.is_some_and(|last| last.is_closely_followed_by(source));
            plan.add(accesses.len(), Start::Memory(target.as_mut_ptr()), source.address(), source.len(), joins);
            accesses.push(source.access());
            last = Some(*source);
        }
        staging.download(self.core(), plan, &accesses)
    }
}

/// How many of the first sources are packed into one block. A source that is longer than a block gets its own.
fn packed_count(sources: &[HostSource<'_>]) -> usize {
    let mut end = 0_usize;
    let fits = |source: &&HostSource<'_>| {
        end = end.next_multiple_of(packed::ALIGN).saturating_add(source.len_bytes());
        end <= MAX_BLOCK && !matches!(source.bytes, SourceBytes::PageLocked(..))
    };
    sources.iter().take_while(fits).count().max(1)
}

/// How many of the first sources are neighboring parts of one page-locked buffer, which move in one copy.
fn neighbor_count(sources: &[HostSource<'_>]) -> usize {
    let follows = |pair: &[HostSource<'_>]| {
        pair[0].bytes.whole().zip(pair[1].bytes.whole()).is_some_and(|(this, next)| this.is_followed_by(next))
    };
    1 + sources.windows(2).take_while(|pair| follows(pair)).count()
}

/// The ranges of neighboring sources relative to the start of the first, and the length of all with their gaps.
fn neighbor_ranges(sources: &[HostSource<'_>]) -> (Vec<Range<usize>>, usize) {
    let start = |source: &HostSource<'_>| source.bytes.whole().map_or(0, |buffer| buffer.as_ptr().addr().get());
    let range = |source: &HostSource<'_>| {
        let start = start(source) - start(&sources[0]);
        start..start + source.len_bytes()
    };
    let ranges: Vec<_> = sources.iter().map(range).collect();
    let len = ranges.last().map_or(0, |last| last.end);
    (ranges, len)
}

fn start_of(source: &SourceBytes<'_>, plan: &mut Plan) -> Result<Start> {
    Ok(match source {
        SourceBytes::Slice(slice) => Start::Memory(slice.as_ptr().cast_mut()),
        SourceBytes::PageLocked(buffer, range) => Start::Memory(buffer.bytes()[range.clone()].as_ptr().cast_mut()),
        SourceBytes::File(file, range) => Start::File(plan.add_file(file)?, range.start),
    })
}

/// An error unless both lengths are equal. It counts elements if both are whole numbers of elements, else bytes.
fn check_len_bytes<T: DeviceCopy>(source_bytes: usize, target_bytes: usize) -> Result<()> {
    let unit = size_of::<T>();
    let are_whole = source_bytes.is_multiple_of(unit) && target_bytes.is_multiple_of(unit);
    let unit = if are_whole { unit } else { 1 };
    check_same_length(source_bytes / unit, target_bytes / unit)
}
