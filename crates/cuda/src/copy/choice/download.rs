//! Downloads by the route that is fastest for them.

use pagelock_memory::{ByteSize, Kind};

use super::{Direction, How, Load, Route};
use crate::{
    buffer::{DeviceBuffer, DeviceView},
    copy::same_length,
    error::Result,
    host_function, sanitize,
    stream::Stream,
};

impl Stream {
    /// Copies `source` to `target`, ordinary memory, by the route that is fastest; returns when it may be read.
    ///
    /// # Errors
    /// As [`download_staged`](Self::download_staged); [`Error::RouteVariable`](crate::Error::RouteVariable).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let mut target = [1; 4];
    /// stream.download_bytes(&stream.zeros::<u8>(4)?, &mut target, How::default())?;
    /// assert_eq!(target, [0; 4]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_bytes<'a>(&self, source: impl Into<DeviceView<'a, u8>>, target: &mut [u8], how: How) -> Result<()> {
        let _here = sanitize::here();
        let source = source.into();
        match self.route(how, load(target.len(), 1, how))? {
            Route::Direct => self.scope(|scope| scope.download(source, target)),
            _ => self.download_staged(source, target),
        }
    }

    /// Copies many, each to its target, ordinary memory, by the route that is fastest for each; returns when all may be
    /// read. Packed are those that [follow each other](DeviceBuffer::is_followed_by).
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) if there are more or fewer targets than sources; as
    /// [`download_bytes`](Self::download_bytes).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, How, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts = stream.zeros::<u8>(1_000)?.split([0..400, 500..1_000])?;
    /// let (mut first, mut second) = ([1; 400], [1; 500]);
    /// stream.download_all(&[&parts[0], &parts[1]], &mut [&mut first, &mut second], How::default())?;
    /// assert_eq!((first, second), ([0; 400], [0; 500]));
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_all(&self, sources: &[&DeviceBuffer<u8>], targets: &mut [&mut [u8]], how: How) -> Result<()> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        same_length(sources.len(), targets.len())?;
        let [mut direct, mut staged] = [(); 2].map(|()| Vec::new());
        let (mut packed, mut packed_targets) = (Vec::new(), Vec::new());
        let mut routes = self.routes(how);
        for (source, target) in sources.iter().zip(targets) {
            match routes.of(load(source.len(), sources.len(), how))? {
                Route::Direct => direct.push((source.view(), &mut **target)),
                Route::Staged => staged.push((source.view(), &mut **target)),
                Route::Packed => {
                    packed.push(*source);
                    packed_targets.push(&mut **target);
                }
            }
        }
        if !packed.is_empty() {
            self.download_packed_parts(&packed, &mut packed_targets, how.threads)?;
        }
        self.scope(|scope| direct.into_iter().try_for_each(|(source, target)| scope.download(source, target)))?;
        if staged.is_empty() { Ok(()) } else { self.download_each_by(staged, how.threads) }
    }
}

fn load(len_bytes: usize, count: usize, how: How) -> Load {
    let memory = how.memory.unwrap_or(Kind::Pageable);
    Load { direction: Direction::ToHost, memory, count, each: ByteSize(len_bytes as u64) }
}
