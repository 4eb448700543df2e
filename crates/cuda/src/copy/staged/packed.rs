//! [`Packed`]: many small slices in one device buffer, moved as one copy.

use std::{fmt, ops::Range};

use super::{
    Part, Staging,
    job::{Plan, Start},
    same_length,
};
use crate::{
    buffer::{self, DeviceBuffer, DeviceView, DeviceViewMut},
    driver::Address,
    element::{Element, element_size, len_bytes},
    error::{Error, Result},
    host_function, sanitize,
    stream::{Access, Stream},
};

/// Where each slice starts is a multiple of this, for elements whose size is a power of two.
const ALIGN: usize = 256;
/// So long are blocks that buffers share: the last of them keeps no more than that from being given back.
const BLOCK: usize = 64 << 20;

/// Many slices in one device buffer, one behind the other.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let tensors: Vec<Vec<f32>> = (1..=10).map(|len| vec![len as f32; len]).collect();
/// let slices: Vec<&[f32]> = tensors.iter().map(|tensor| &tensor[..]).collect();
/// let packed = stream.upload_packed(&slices)?;
/// assert_eq!(packed.len(), 10);
/// assert_eq!(stream.read(packed.get(2).unwrap())?, [3.0; 3]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Packed<T: Element> {
    buffer: DeviceBuffer<T>,
    ranges: Vec<Range<usize>>, // of elements of the buffer, ascending
}

/// What [`Packed`] becomes when its slices are to be buffers, but not yet: each is cut when somebody takes it. The memory
/// is given back with the last of them, and this.
pub struct PackedParts<T: Element>(buffer::Parts<T>);

impl<T: Element> Packed<T> {
    pub(super) fn new(buffer: DeviceBuffer<T>, ranges: Vec<Range<usize>>) -> Self {
        Self { buffer, ranges }
    }

    /// To be written by work.
    pub(super) fn access(&mut self) -> Access<'_> {
        self.buffer.view_mut().access()
    }

    /// How many slices.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// One of the slices, to be read.
    pub fn get(&self, index: usize) -> Option<DeviceView<'_, T>> {
        self.buffer.slice(self.ranges.get(index)?.clone()).ok()
    }

    /// One of the slices, to be written.
    pub fn get_mut(&mut self, index: usize) -> Option<DeviceViewMut<'_, T>> {
        self.buffer.slice_mut(self.ranges.get(index)?.clone()).ok()
    }

    /// Where each slice is in [`buffer`](Self::buffer).
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// All of them, with unused elements in between.
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }

    /// The buffer, and where each slice is in it.
    pub fn into_parts(self) -> (DeviceBuffer<T>, Vec<Range<usize>>) {
        (self.buffer, self.ranges)
    }

    /// A buffer for each slice; what is between them nobody has any more. Each is cut when it is asked for. The memory is given
    /// back with the last of them.
    ///
    /// # Errors
    /// [`Error::Shared`] if a graph has the buffer too.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts: Vec<_> = stream.upload_packed(&[&[1, 2][..], &[3]])?.split()?.collect();
    /// assert_eq!(stream.read(&parts[1])?, [3]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn split(self) -> Result<impl ExactSizeIterator<Item = DeviceBuffer<T>>> {
        self.buffer.split_at_leisure(self.ranges)
    }

    /// The same, each to be taken whenever it is needed.
    ///
    /// # Errors
    /// [`Error::Shared`] if a graph has the buffer too.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts = stream.upload_packed(&[&[1, 2][..], &[3]])?.split_when_taken()?;
    /// let second = parts.take(1).unwrap();
    /// assert_eq!(stream.read(&second)?, [3]);
    /// assert!(parts.take(1).is_none(), "somebody has it");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn split_when_taken(self) -> Result<PackedParts<T>> {
        self.buffer.split_when_taken(self.ranges).map(PackedParts)
    }
}

impl<T: Element> PackedParts<T> {
    /// One of the slices, unless there are less or it was taken.
    pub fn take(&self, index: usize) -> Option<DeviceBuffer<T>> {
        self.0.take(index)
    }
}

impl<T: Element> fmt::Debug for PackedParts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedParts({} slices)", self.0.len())
    }
}

impl<T: Element> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} slices in {:?})", self.ranges.len(), self.buffer)
    }
}

impl Stream {
    /// Copies many slices, small ones above all, as one; returns when they may be changed.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate) and [`upload_staged`](Self::upload_staged).
    #[track_caller]
    pub fn upload_packed<T: Element>(&self, slices: &[&[T]]) -> Result<Packed<T>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (ranges, len) = layout::<T>(slices.iter().map(|slice| slice.len()))?;
        let mut buffer = self.allocate::<T>(len)?;
        let staging = Staging::of(self)?;
        let plan = staging.plan_upload(len * size_of::<T>());
        let (plan, parts) = pieces::<T>(plan, starts(slices), &ranges, buffer.address(), &[]);
        staging.upload(self.core(), plan, &[buffer.view_mut().access()], &parts)?;
        Ok(Packed { buffer, ranges })
    }

    /// Copies many slices as one. Neighbors share a block of the device's memory.
    pub(in crate::copy) fn upload_to_blocks(
        &self,
        slices: &[&[u8]],
        threads: Option<usize>,
    ) -> Result<Vec<Packed<u8>>> {
        let lens: Vec<_> = slices.iter().map(|slice| slice.len()).collect();
        let uploaded = self.upload_as_given(&lens, threads, |packing| {
            slices.iter().for_each(|slice| packing.add(slice));
            Some(())
        })?;
        Ok(uploaded.map(|(blocks, ())| blocks).unwrap_or_default())
    }

    /// Copies packed slices back, each to its target; returns when these may be read.
    ///
    /// # Errors
    /// [`Error::Length`] if there are more or fewer targets than slices, or one differs in length; as
    /// [`download_staged`](Self::download_staged).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let packed = stream.upload_packed(&[&[1, 2][..], &[3]])?;
    /// let (mut first, mut second) = ([0; 2], [0; 1]);
    /// stream.download_packed(&packed, &mut [&mut first, &mut second])?;
    /// assert_eq!((first, second), ([1, 2], [3]));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_packed<T: Element>(&self, packed: &Packed<T>, targets: &mut [&mut [T]]) -> Result<()> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let source = packed.buffer.view();
        source.check_beside(self.core())?;
        same_length(packed.len(), targets.len())?;
        for (range, target) in packed.ranges.iter().zip(&*targets) {
            same_length(range.len(), target.len())?;
        }
        let staging = Staging::of(self)?;
        let plan = staging.plan_download(source.len_bytes());
        let starts = targets.iter_mut().map(|target| Start::Memory(target.as_mut_ptr().cast::<u8>()));
        let (plan, parts) = pieces::<T>(plan, starts, &packed.ranges, packed.buffer.address(), &[]);
        staging.download(self.core(), plan, &[source.access()], &parts)
    }

    /// Copies buffers, each to its target; those that are parts of one buffer and follow each other, as one. Returns when the
    /// targets may be read.
    pub(in crate::copy) fn download_packed_parts(
        &self,
        sources: &[&DeviceBuffer<u8>],
        targets: &mut [&mut [u8]],
        threads: Option<usize>,
    ) -> Result<()> {
        same_length(sources.len(), targets.len())?;
        for (source, target) in sources.iter().zip(&*targets) {
            source.view().check_beside(self.core())?;
            same_length(source.len(), target.len())?;
        }
        let staging = Staging::of(self)?;
        let plan = staging.plan_download(sources.iter().map(|source| source.len()).sum());
        let (mut plan, mut parts, mut at) = (plan.with_helpers(threads), Vec::new(), 0);
        while at < sources.len() {
            let run = &sources[at..at + run_from(&sources[at..])];
            let start = |source: &DeviceBuffer<u8>| (source.address().0 - run[0].address().0) as usize;
            let ranges: Vec<_> = run.iter().map(|source| start(source)..start(source) + source.len()).collect();
            let starts = targets[at..at + run.len()].iter_mut().map(|target| Start::Memory(target.as_mut_ptr()));
            let (longer, of_run) = pieces::<u8>(plan, starts, &ranges, run[0].address(), run);
            let shifted = |buffers: Range<usize>| buffers.start + at..buffers.end + at;
            parts.extend(of_run.into_iter().map(|part| Part { buffers: shifted(part.buffers.clone()), ..part }));
            (plan, at) = (longer, at + run.len());
        }
        let accesses: Vec<_> = sources.iter().map(|source| source.view().access()).collect();
        staging.download(self.core(), plan, &accesses, &parts)
    }
}

fn starts<T>(slices: &[&[T]]) -> impl Iterator<Item = Start> {
    slices.iter().map(|slice| Start::Memory(slice.as_ptr().cast::<u8>().cast_mut()))
}

/// How many slices of these lengths, from the first on, share a block.
pub(super) fn fit_in_a_block(lens: &[usize]) -> usize {
    let mut end = 0_usize;
    let fit = lens.iter().take_while(|&&len| {
        end = end.next_multiple_of(ALIGN).saturating_add(len);
        end <= BLOCK
    });
    fit.count().max(1)
}

/// How many buffers from the first on follow each other in one.
fn run_from(sources: &[&DeviceBuffer<u8>]) -> usize {
    1 + sources.windows(2).take_while(|pair| pair[0].is_followed_by(pair[1])).count()
}

/// Where slices of these lengths go, and how many elements that takes.
pub(super) fn layout<T: Element>(lens: impl Iterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    len_bytes::<T>(0)?; // the element's own conditions, when this is compiled
    let step = (ALIGN / size_of::<T>()).max(1);
    let mut end = 0_usize;
    let mut ranges = Vec::with_capacity(lens.size_hint().0);
    for len in lens {
        let start = end.checked_next_multiple_of(step);
        let placed = start.and_then(|start| Some(start..start.checked_add(len)?));
        let Some(range) = placed else { return Err(Error::TooLong { len, element: element_size::<T>() }) };
        end = range.end;
        ranges.push(range);
    }
    Ok((ranges, end))
}

/// Cuts what begins at `address` into pieces, and each slice where a piece ends. `buffers` are the slices' own, if they have
/// some, else all have one.
pub(super) fn pieces<T: Element>(
    mut plan: Plan,
    starts: impl Iterator<Item = Start>,
    ranges: &[Range<usize>],
    address: Address,
    buffers: &[&DeviceBuffer<u8>],
) -> (Plan, Vec<Part>) {
    let piece_bytes = plan.piece_bytes();
    let mut parts = Vec::new();
    let (mut piece_start, mut piece_end, mut first) = (0, 0, 0);
    plan.reserve(ranges.len());
    let mut close = |plan: &mut Plan, bytes: Range<usize>, slices: Range<usize>| {
        if !bytes.is_empty() {
            plan.close_packed(bytes.len());
            let buffers = if buffers.is_empty() { 0..1 } else { slices };
            parts.push(Part { buffers, address: address.offset(bytes.start), len_bytes: bytes.len() });
        }
    };
    for (at, (start, range)) in starts.zip(ranges).enumerate() {
        let bytes = range.start * size_of::<T>()..range.end * size_of::<T>();
        let mut offset = bytes.start;
        while offset < bytes.end {
            if offset >= piece_start + piece_bytes {
                close(&mut plan, piece_start..piece_end, first..if offset == bytes.start { at } else { at + 1 });
                (piece_start, first) = (offset, at);
            }
            let len = (piece_start + piece_bytes).min(bytes.end) - offset;
            plan.add_run(start.offset(offset - bytes.start), offset - piece_start, len);
            offset += len;
            piece_end = offset;
        }
    }
    close(&mut plan, piece_start..piece_end, first..ranges.len());
    (plan, parts)
}
