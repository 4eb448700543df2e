//! Uploads by the route that is fastest for them.

use pagelock_memory::{ByteSize, Kind};

use super::{
    super::{Packed, Packing},
    Bytes, Direction, HostBytes, How, Load, Route,
};
use crate::{
    buffer::{DeviceBuffer, DeviceViewMut},
    error::Result,
    host_function, sanitize,
    stream::Stream,
};

impl Stream {
    /// Copies `source` to `target` by the route that is fastest. Returns when a slice may be changed; of a page-locked
    /// buffer perhaps before: writing to it waits.
    ///
    /// # Errors
    /// As [`upload_staged`](Self::upload_staged) and [`upload_buffer`](Self::upload_buffer);
    /// [`Error::RouteVariable`](crate::Error::RouteVariable).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let mut on_device = stream.allocate::<u8>(4)?;
    /// stream.upload_bytes((&[1, 2, 3, 4][..]).into(), &mut on_device, How::default())?;
    /// assert_eq!(stream.read(&on_device)?, [1, 2, 3, 4]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_bytes<'a>(
        &self,
        source: HostBytes<'_>,
        target: impl Into<DeviceViewMut<'a, u8>>,
        how: How,
    ) -> Result<()> {
        let _here = sanitize::here();
        let target = target.into();
        match (self.route(how, load(&source, 1))?, &source.0) {
            (Route::Direct, Bytes::Locked(buffer, range)) => self.upload_range(buffer, range.clone(), target),
            (Route::Direct, Bytes::Slice(slice)) => self.scope(|scope| scope.upload(slice, target)),
            _ => self.upload_staged_by(source.bytes(), target, how.threads),
        }
    }

    /// Copies many, each to a view of its own, by the route that is fastest for each. Whole page-locked buffers that go
    /// directly are one piece of work for all who come after it, and one copy where they are parts of one buffer that [follow
    /// each other](pagelock_memory::HostBuffer::is_followed_by), and so are their targets, as far from each other. Returns as
    /// [`upload_bytes`](Self::upload_bytes).
    ///
    /// # Errors
    /// As [`upload_bytes`](Self::upload_bytes); some may have been copied.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let (mut images, mut labels) = (stream.allocate::<u8>(2)?, stream.allocate::<u8>(1)?);
    /// let copies = vec![((&[1, 2][..]).into(), images.view_mut()), ((&[3][..]).into(), labels.view_mut())];
    /// stream.upload_to(copies, How::default())?;
    /// assert_eq!(stream.read(&labels)?, [3]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_to(&self, copies: Vec<(HostBytes<'_>, DeviceViewMut<'_, u8>)>, how: How) -> Result<()> {
        let _here = sanitize::here();
        let count = copies.len();
        let mut together = Vec::with_capacity(count);
        for (source, target) in copies {
            match whole(&source) {
                Some(buffer) if self.route(how, load(&source, count))? == Route::Direct => {
                    together.push((buffer, target));
                }
                _ => self.upload_bytes(source, target, how)?,
            }
        }
        self.upload_together(&together)
    }

    /// Copies many, each to a buffer of its own, by the route that is fastest for each: what is packed shares blocks of up to
    /// 64 MiB of the device's memory, each of which is given back with the last of its buffers. Returns as
    /// [`upload_bytes`](Self::upload_bytes).
    ///
    /// # Errors
    /// As [`upload_bytes`](Self::upload_bytes) and [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let tensors: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 1_000]).collect();
    /// let sources: Vec<_> = tensors.iter().map(|tensor| (&tensor[..]).into()).collect();
    /// let buffers = stream.upload_all(&sources, How::default())?;
    /// assert_eq!(stream.read(&buffers[99])?, [99; 1_000]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_all(&self, sources: &[HostBytes<'_>], how: How) -> Result<Vec<DeviceBuffer<u8>>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let mut runs = Vec::new();
        let (mut direct, mut staged, mut packed) = (Vec::new(), Vec::new(), Vec::with_capacity(sources.len()));
        let (mut at, mut routes) = (0, self.routes(how));
        while let Some(source) = sources.get(at) {
            let may_run = how.route.is_none() && whole(source).is_some();
            let run = if may_run { run_from(&sources[at..]) } else { 1 };
            if run > 1 {
                runs.push(at..at + run);
            } else {
                match routes.of(load(source, sources.len()))? {
                    Route::Direct => direct.push(at),
                    Route::Staged => staged.push(at),
                    Route::Packed => packed.push(at),
                }
            }
            at += run;
        }
        if packed.len() == sources.len() {
            return self.upload_packed_ones(sources.iter(), how); // nothing to be put in order
        }
        let mut buffers: Vec<Option<DeviceBuffer<u8>>> = sources.iter().map(|_| None).collect();
        for run in runs {
            let parts = self.upload_run(&sources[run.clone()])?;
            buffers[run].iter_mut().zip(parts).for_each(|(buffer, part)| *buffer = Some(part));
        }
        let parts = self.upload_packed_ones(packed.iter().map(|&at| &sources[at]), how)?;
        packed.iter().zip(parts).for_each(|(&at, part)| buffers[at] = Some(part));
        self.upload_direct_ones(sources, &direct, &mut buffers)?;
        self.upload_staged_ones(sources, &staged, how, &mut buffers)?;
        Ok(buffers.into_iter().flatten().collect())
    }

    /// Copies slices of ordinary memory of these lengths as [`upload_all`](Self::upload_all) does, if it would pack all of
    /// them; none if not. `give` adds them in their order, each of which is on its way while the next ones are looked for, and
    /// may do other things then too; if it gives up, so does the call. What it gives otherwise is returned with the blocks,
    /// when the slices may be changed.
    ///
    /// # Errors
    /// As [`upload_all`](Self::upload_all); [`Error::Length`](crate::Error::Length) if the slices are others than was said.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, Route, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let slices = [&[1, 2][..], &[3]];
    /// let by = |route| How { route: Some(route), ..How::default() };
    /// let upload = |how| {
    ///     stream.upload_all_packed(&[2, 1], how, |packing| {
    ///         slices.iter().for_each(|slice| packing.add(slice));
    ///         packing.go_on();
    ///         Some("done meanwhile")
    ///     })
    /// };
    /// let (blocks, what) = upload(by(Route::Packed))?.unwrap();
    /// assert_eq!((blocks[0].len(), what), (2, "done meanwhile"));
    /// assert!(upload(by(Route::Direct))?.is_none());
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// Slices cannot end before the call does:
    /// ```compile_fail,E0597
    /// # use pagelock_cuda::{Device, How, software::Config};
    /// # let stream = Device::software(Config::default())?.stream()?;
    /// stream.upload_all_packed(&[2], How::default(), |packing| {
    ///     let slice = [1, 2];
    ///     packing.add(&slice);
    ///     Some(())
    /// })?;
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_all_packed<'slices, R>(
        &self,
        lens: &[usize],
        how: How,
        give: impl FnOnce(&mut Packing<'_, 'slices>) -> Option<R>,
    ) -> Result<Option<(Vec<Packed<u8>>, R)>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        for alike in lens.chunk_by(|this, next| this == next) {
            let load = load_of(alike[0], Kind::Pageable, lens.len());
            if self.route(how, load)? != Route::Packed {
                return Ok(None);
            }
        }
        self.upload_as_given(lens, how.threads, give)
    }

    /// Parts of one page-locked buffer that follow each other: one copy.
    fn upload_run(&self, run: &[HostBytes<'_>]) -> Result<Vec<DeviceBuffer<u8>>> {
        let parts: Vec<_> = run.iter().filter_map(whole).collect();
        let start = |at: usize| parts[at].as_ptr().as_ptr().addr() - parts[0].as_ptr().as_ptr().addr();
        let ranges: Vec<_> = (0..parts.len()).map(|at| start(at)..start(at) + parts[at].len_bytes()).collect();
        let mut target = self.allocate(ranges.last().map_or(0, |range| range.end))?;
        self.upload_parts(&parts, &mut target)?;
        target.split(ranges)
    }

    fn upload_packed_ones<'a>(
        &self,
        sources: impl ExactSizeIterator<Item = &'a HostBytes<'a>>,
        how: How,
    ) -> Result<Vec<DeviceBuffer<u8>>> {
        let slices: Vec<_> = sources.map(HostBytes::bytes).collect();
        if slices.is_empty() {
            return Ok(Vec::new());
        }
        let mut buffers = Vec::with_capacity(slices.len());
        for block in self.upload_to_blocks(&slices, how.threads)? {
            buffers.extend(block.split()?);
        }
        Ok(buffers)
    }

    fn upload_direct_ones(&self, sources: &[HostBytes<'_>], which: &[usize], buffers: &mut Buffers) -> Result<()> {
        self.scope(|scope| {
            for &at in which {
                let mut target = self.allocate(sources[at].len())?;
                match &sources[at].0 {
                    Bytes::Slice(slice) => scope.upload(slice, &mut target)?,
                    Bytes::Locked(buffer, range) => self.upload_range(buffer, range.clone(), target.view_mut())?,
                }
                buffers[at] = Some(target);
            }
            Ok(())
        })
    }

    fn upload_staged_ones(
        &self,
        sources: &[HostBytes<'_>],
        which: &[usize],
        how: How,
        buffers: &mut Buffers,
    ) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        let sources = || which.iter().map(|&at| &sources[at]);
        let mut targets = sources().map(|source| self.allocate(source.len())).collect::<Result<Vec<_>>>()?;
        let pairs = sources().zip(&mut targets).map(|(source, target)| (source.bytes(), target.view_mut()));
        self.upload_each_by(pairs, how.threads)?;
        which.iter().zip(targets).for_each(|(&at, target)| buffers[at] = Some(target));
        Ok(())
    }
}

type Buffers = [Option<DeviceBuffer<u8>>];

fn load(source: &HostBytes<'_>, count: usize) -> Load {
    load_of(source.len(), source.memory(), count)
}

fn load_of(len_bytes: usize, memory: Kind, count: usize) -> Load {
    Load { direction: Direction::ToDevice, memory, count, each: ByteSize(len_bytes as u64) }
}

/// All of a page-locked buffer.
fn whole<'a>(source: &HostBytes<'a>) -> Option<&'a pagelock_memory::HostBuffer> {
    match &source.0 {
        Bytes::Locked(buffer, range) if range.len() == buffer.len_bytes() && !range.is_empty() => Some(buffer),
        _ => None,
    }
}

/// How many from the first on can be copied as one.
fn run_from(sources: &[HostBytes<'_>]) -> usize {
    let follows = |pair: &[HostBytes<'_>]| match (whole(&pair[0]), whole(&pair[1])) {
        (Some(this), Some(next)) => this.is_followed_by(next),
        _ => false,
    };
    1 + sources.windows(2).take_while(|pair| follows(pair)).count()
}
