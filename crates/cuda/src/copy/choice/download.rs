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
        match self.device().route(how, load(target.len(), 1, how))? {
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
        let (mut direct, mut staged) = (Vec::new(), Vec::new());
        let mut rest: Vec<_> = targets.iter_mut().map(|target| Some(&mut **target)).collect();
        let mut at = 0;
        while at < sources.len() {
            let route = self.device().route(how, load(sources[at].len(), sources.len(), how))?;
            let run = run_from(&sources[at..]);
            if route == Route::Packed && run > 1 {
                let mut targets: Vec<_> = rest[at..at + run].iter_mut().filter_map(Option::take).collect();
                self.download_packed_parts(&sources[at..at + run], &mut targets, how.threads)?;
                at += run;
                continue;
            }
            let chosen = if route == Route::Direct { &mut direct } else { &mut staged };
            chosen.extend(rest[at].take().map(|target| (sources[at].view(), target)));
            at += 1;
        }
        self.scope(|scope| direct.into_iter().try_for_each(|(source, target)| scope.download(source, target)))?;
        if staged.is_empty() { Ok(()) } else { self.download_each_by(staged, how.threads) }
    }
}

fn load(len_bytes: usize, count: usize, how: How) -> Load {
    let memory = how.memory.unwrap_or(Kind::Pageable);
    Load { direction: Direction::ToHost, memory, count, each: ByteSize(len_bytes as u64) }
}

/// How many from the first on can be copied as one.
fn run_from(sources: &[&DeviceBuffer<u8>]) -> usize {
    1 + sources.windows(2).take_while(|pair| pair[0].is_followed_by(pair[1])).count()
}
