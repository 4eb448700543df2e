//! Measuring which shape of the ring is fastest on a machine.
//!
//! Memory that was just used is copied by fewer threads than memory that was not, so that what is measured goes round
//! through more than a processor's caches hold. A long copy needs fewer threads than uploads one by one.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use pagelock_memory::{ByteSize, HostBuffer, Pageable};

use super::shape::{self, StagingConfig, processors};
use crate::{
    buffer::DeviceBuffer, device::Device, error::Result, host_function, stream::Stream, user_cache::UserCache,
};

const LEN_BYTES: usize = 128 << 20; // enough to show how fast long copies go
const PARTS: usize = 6; // of that length, on the host; each is used once in so many copies
const SINGLE: usize = 32; // uploads of one such part
const ROUNDS: usize = 5; // the middle one counts
const THREADS: [usize; 7] = [1, 2, 3, 5, 7, 11, 15]; // steps of a half: what less gains is lost in the noise
const IS_BETTER: f64 = 0.97; // of the time of the best so far: less is no reason for more threads, or for other slots

impl Device {
    /// Measures with how many threads, and through which slots, ordinary memory moves fastest between this machine and
    /// this device; uses that from now on, and keeps it in the user's cache folder, where later programs on such a machine
    /// find it. Returns it.
    ///
    /// Takes about a second, up to 128 MiB on the device and 768 MiB on the host. Do it when the machine does nothing else.
    /// What is kept lies in `$PAGELOCK_STAGING_CACHE`, or in `pagelock/staging` in the user's cache folder; a program that wants
    /// something else says so with [`set_staging`](Self::set_staging), its user with
    /// `PAGELOCK_STAGING="ring=64 MiB,slot=4 MiB,chunk=8 MiB,threads=7"`.
    ///
    /// # Errors
    /// As [`Stream::upload_staged`]; staged copies are then made as before. That nothing can
    /// be kept is no error.
    ///
    /// # Examples
    /// ```no_run
    /// use pagelock_cuda::Device;
    ///
    /// let device = Device::cuda(0)?;
    /// println!("copies are fastest with {:?}", device.calibrate_staging()?);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn calibrate_staging(&self) -> Result<StagingConfig> {
        host_function::refuse_inside()?;
        let a_small_part = usize::try_from(self.properties().memory.0 / 64).unwrap_or(usize::MAX);
        calibrate(self, &shape::user_cache()?, a_small_part.clamp(1 << 20, LEN_BYTES))
    }
}

/// Measures with copies of that length, and keeps the result.
fn calibrate(device: &Device, cache: &UserCache, len_bytes: usize) -> Result<StagingConfig> {
    let before = device.core().staging().chosen();
    match fastest(device, len_bytes) {
        Ok(fastest) => {
            device.set_staging(fastest);
            shape::keep(cache, device.properties(), fastest);
            Ok(fastest)
        }
        Err(error) => {
            device.core().staging().set(before, device.core().lot());
            Err(error)
        }
    }
}

/// First the number of threads, then the length of slots.
fn fastest(device: &Device, len_bytes: usize) -> Result<StagingConfig> {
    let mut bench = Bench::new(device, len_bytes)?;
    let helping = THREADS.into_iter().filter(|&threads| threads == 1 || threads < processors());
    for threads in helping {
        bench.try_shape(StagingConfig::with_threads(threads))?;
    }
    for mib in [1, 2] {
        let size = ByteSize::mib(mib);
        bench.try_shape(StagingConfig { slot: size, chunk: ByteSize(2 * size.0), ..bench.best.1 })?;
    }
    Ok(bench.best.1)
}

/// Copies there and back, through rings of many shapes.
struct Bench<'a> {
    device: &'a Device,
    stream: Stream,
    host: HostBuffer,
    next: usize, // part of the host's memory
    on_device: DeviceBuffer<u8>,
    best: (Duration, StagingConfig),
}

impl<'a> Bench<'a> {
    fn new(device: &'a Device, len_bytes: usize) -> Result<Self> {
        let stream = device.stream()?;
        let on_device = stream.allocate(len_bytes)?;
        let mut host = HostBuffer::allocate(&Pageable, PARTS * len_bytes)?;
        host.bytes_mut()?.fill(1); // else the system has one page of zeros for all of it
        Ok(Self { device, stream, host, next: 0, on_device, best: (Duration::MAX, StagingConfig::default()) })
    }

    fn try_shape(&mut self, shape: StagingConfig) -> Result<()> {
        self.device.set_staging(shape);
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let part = self.next_part();
            self.stream.upload_staged(&self.host.bytes()[part], &mut self.on_device)?;
            self.stream.synchronize()?;
            let part = self.next_part();
            self.stream.download_staged(&self.on_device, &mut self.host.bytes_mut()?[part])?;
            self.upload_one_by_one()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let time = times[ROUNDS / 2];
        if time.as_secs_f64() < self.best.0.as_secs_f64() * IS_BETTER {
            self.best = (time, shape);
        }
        Ok(())
    }

    fn upload_one_by_one(&mut self) -> Result<()> {
        let part = self.next_part();
        let (len, source) = (self.on_device.len() / SINGLE, &self.host.bytes()[part]);
        for (at, source) in source.chunks_exact(len).enumerate() {
            self.stream.upload_staged(source, self.on_device.slice_mut(at * len..(at + 1) * len)?)?;
        }
        self.stream.synchronize()
    }

    fn next_part(&mut self) -> Range<usize> {
        let part = self.next % PARTS;
        self.next += 1;
        part * self.on_device.len()..(part + 1) * self.on_device.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        driver::{Call, Status},
        software::{Config, Fault, Machine},
        user_cache::TestFolder,
    };

    const LEN: usize = 1 << 18;

    fn machine() -> Machine {
        Machine::new(Config::default())
    }

    #[test]
    fn what_is_measured_is_used_and_found_by_the_next_program() {
        let folder = TestFolder::new("calibrated");
        let (cache, device) = (UserCache::in_folder(&folder.0), machine().device(0).unwrap());

        let measured = calibrate(&device, &cache, LEN).unwrap();

        assert_eq!(device.staging(), measured);
        assert!(THREADS.contains(&measured.threads), "{measured:?}");
        assert_eq!(shape::kept(&cache, machine().device(0).unwrap().properties()), Some(measured));
    }

    #[test]
    fn after_a_failure_copies_are_made_as_before_and_nothing_is_kept() {
        let folder = TestFolder::new("not calibrated");
        let (cache, machine) = (UserCache::in_folder(&folder.0), machine());
        let device = machine.device(0).unwrap();
        let before = StagingConfig { threads: 2, ring: ByteSize::mib(8), ..device.staging() };
        device.set_staging(before);
        machine.fail(Fault::at(0).call(Call::CopyToHost).status(Status::ILLEGAL_ADDRESS));

        assert!(calibrate(&device, &cache, LEN).is_err());

        assert_eq!(device.staging(), before);
        assert_eq!(shape::kept(&cache, device.properties()), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let cache = UserCache::in_folder(std::path::Path::new("/proc/nowhere"));
        let device = machine().device(0).unwrap();
        assert_eq!(calibrate(&device, &cache, LEN).unwrap(), device.staging());
    }
}
