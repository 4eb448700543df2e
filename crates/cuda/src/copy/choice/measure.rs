//! Measuring how long copies take by each route.

use std::time::Instant;

use pagelock_memory::{HostBuffer, Kind, Pageable};

use super::{CopyModel, Direction, HostBytes, How, Route, model};
use crate::{
    buffer::DeviceBuffer, device::Device, error::Result, host_function, stream::Stream, sync::lock,
    user_cache::UserCache,
};

const MOST_BYTES: usize = 256 << 20; // at once
const PARTS: usize = 2; // of that length, on the host
const ROUNDS: usize = 15; // of all routes in turn, and more of short copies, which differ most; the middle one counts
const MOST_ROUNDS: usize = 200;
const TRIAL: usize = 3; // rounds of a route that turns out to take
const HOPELESS: f64 = 2.0; // times as long as the best one: the time is better spent on the others
const CLOSE: f64 = 1.25; // times as long as the best one: only more rounds tell which is faster
const LEAST_SECONDS: f64 = 0.01; // of all rounds
const MOST_SECONDS: f64 = 0.1; // of all rounds, or there are fewer, but one; as many if two routes are close

impl Device {
    /// Measures how long copies take by each route between this machine and this device, chooses by that from now on, and
    /// keeps it in the user's cache folder, where later programs on such a machine find it. Returns it; it prints itself.
    ///
    /// Takes some ten seconds, 256 MiB of the device's memory, and 512 MiB of page-locked and of ordinary memory. Do it when the
    /// machine does nothing else, and after [`calibrate_staging`](Self::calibrate_staging). It is kept where that is kept.
    ///
    /// # Errors
    /// As [`Stream::upload_all`]; copies are then made as before.
    ///
    /// # Examples
    /// ```no_run
    /// use pagelock_cuda::Device;
    ///
    /// println!("{}", Device::cuda(0)?.calibrate_copies()?);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn calibrate_copies(&self) -> Result<CopyModel> {
        host_function::refuse_inside()?;
        let a_small_part = usize::try_from(self.properties().memory.0 / 64).unwrap_or(usize::MAX);
        calibrate(self, &model::user_cache()?, a_small_part.clamp(1 << 20, MOST_BYTES))
    }
}

fn calibrate(device: &Device, cache: &UserCache, most_bytes: usize) -> Result<CopyModel> {
    let mut bench = Bench::new(device, most_bytes)?;
    let mut failed = Ok(());
    let measured = CopyModel::measured(|load, length, count| {
        if failed.is_err() || length.saturating_mul(count) > bench.most_bytes {
            return [f64::NAN; 3];
        }
        bench.seconds(load, length, count).unwrap_or_else(|error| {
            failed = Err(error);
            [f64::NAN; 3]
        })
    });
    failed?;
    lock(&device.core().chooser().0).set_model(measured.clone());
    model::keep(cache, device.properties(), &measured);
    Ok(measured)
}

/// Memory of both kinds, to copy from and to.
struct Bench {
    stream: Stream,
    most_bytes: usize,
    pageable: HostBuffer,
    locked: HostBuffer,
    next: usize, // byte of the host's memory: each copy gets at other ones, which the caches do not know
}

impl Bench {
    fn new(device: &Device, most_bytes: usize) -> Result<Self> {
        let mut pageable = HostBuffer::allocate(&Pageable, PARTS * most_bytes)?;
        let mut locked = HostBuffer::allocate(device.page_locked(), PARTS * most_bytes)?;
        pageable.bytes_mut()?.fill(1); // else the system has one page of zeros for all of it
        locked.bytes_mut()?.fill(1);
        Ok(Self { stream: device.stream()?, most_bytes, pageable, locked, next: 0 })
    }

    /// How long so many copies of that length take by each route. The routes take turns, so that what disturbs the machine for
    /// a while disturbs all.
    fn seconds(&mut self, load: (Direction, Kind), length: usize, count: usize) -> Result<[f64; 3]> {
        let there = if load.0 == Direction::ToHost { self.device_parts(length, count)? } else { Vec::new() };
        let mut times: [Vec<f64>; 3] = Default::default();
        let begin = Instant::now();
        for round in 0..=MOST_ROUNDS {
            for turn in 0..3 {
                let route = Route::ALL[(round + turn) % 3];
                if round > TRIAL && is_hopeless(&times, route) {
                    continue;
                }
                let start = Instant::now();
                let how = How { route: Some(route), memory: Some(load.1), ..How::default() };
                self.copy(load, how, length, count, &there)?;
                self.stream.synchronize()?;
                if round > 0 {
                    times[route as usize].push(start.elapsed().as_secs_f64()); // the first one finds nothing ready
                }
            }
            let taken = begin.elapsed().as_secs_f64();
            let enough = taken > LEAST_SECONDS && round >= ROUNDS && !is_close(middle(&mut times));
            if round > 0 && (enough || taken > MOST_SECONDS) {
                break;
            }
        }
        Ok(middle(&mut times))
    }

    fn copy(
        &mut self,
        (direction, memory): (Direction, Kind),
        how: How,
        length: usize,
        count: usize,
        there: &[DeviceBuffer<u8>],
    ) -> Result<()> {
        let host = if memory == Kind::PageLocked { &mut self.locked } else { &mut self.pageable };
        let start = if self.next + length * count > host.len_bytes() { 0 } else { self.next };
        self.next = start + length * count;
        if direction == Direction::ToDevice {
            let range = |at: usize| start + at * length..start + (at + 1) * length;
            let sources = (0..count).map(|at| HostBytes::of(host, range(at))).collect::<Result<Vec<_>>>()?;
            return self.stream.upload_all(&sources, how).map(drop);
        }
        let sources: Vec<_> = there.iter().collect();
        let mut targets: Vec<_> = host.bytes_mut()?[start..].chunks_exact_mut(length).take(count).collect();
        self.stream.download_all(&sources, &mut targets, how)
    }

    /// Parts of one buffer, each with a little space behind it.
    fn device_parts(&self, length: usize, count: usize) -> Result<Vec<DeviceBuffer<u8>>> {
        let step = length.next_multiple_of(256);
        self.stream.zeros::<u8>(step * count)?.split((0..count).map(|at| at * step..at * step + length))
    }
}

fn middle(times: &mut [Vec<f64>; 3]) -> [f64; 3] {
    times.each_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

/// Whether another route might be the fastest one.
fn is_close(mut seconds: [f64; 3]) -> bool {
    seconds.sort_by(f64::total_cmp);
    seconds[1] < CLOSE * seconds[0]
}

fn is_hopeless(times: &[Vec<f64>; 3], route: Route) -> bool {
    let least = |times: &Vec<f64>| times.iter().copied().fold(f64::INFINITY, f64::min);
    let best = times.iter().map(least).fold(f64::INFINITY, f64::min);
    least(&times[route as usize]) > HOPELESS * best
}

#[cfg(test)]
mod tests {
    use pagelock_memory::ByteSize;

    use super::*;
    use crate::{
        copy::choice::{Load, Reason},
        driver::{Call, Status},
        software::{Config, Fault, Machine},
        user_cache::TestFolder,
    };

    const LOAD: Load = Load { direction: Direction::ToHost, memory: Kind::Pageable, count: 10, each: ByteSize(1_000) };

    #[test]
    fn what_is_measured_is_used_and_found_by_the_next_program() {
        let folder = TestFolder::new("copies calibrated");
        let machine = Machine::new(Config::default());
        let (cache, device) = (UserCache::in_folder(&folder.0), machine.device(0).unwrap());
        assert_eq!(device.explain(LOAD).unwrap().reason, Reason::Guessed);

        let measured = calibrate(&device, &cache, 1 << 16).unwrap();

        let choice = device.explain(LOAD).unwrap();
        assert_eq!((choice.reason, choice.expected.len()), (Reason::Measured, 3));
        assert_eq!(choice.route, measured.fastest(&LOAD));
        let found = model::kept(&cache, machine.device(0).unwrap().properties()).unwrap();
        assert_eq!(found.to_string(), measured.to_string());
    }

    #[test]
    fn a_route_that_takes_twice_as_long_as_the_best_is_not_measured_on() {
        let times = [vec![2.9, 2.1], vec![1.9], vec![1.5, 1.0]];
        assert_eq!(Route::ALL.map(|route| is_hopeless(&times, route)), [true, false, false]);
    }

    #[test]
    fn two_routes_are_close_if_the_best_is_not_a_quarter_faster() {
        assert!(is_close([3.0, 1.2, 1.0]));
        assert!(!is_close([1.3, 1.0, 9.0]));
        assert_eq!(middle(&mut [vec![3.0, 1.0, 2.0], vec![5.0], vec![4.0, 7.0]]), [2.0, 5.0, 7.0]);
    }

    #[test]
    fn a_short_upload_goes_directly_only_if_its_caller_has_waited_for_what_was_queued_before() {
        let device = Device::software(Config::default()).unwrap();
        device.set_copy_model(CopyModel::measured(|_, _, _| [1.0, 2.0, 3.0])); // directly is fastest
        let stream = device.stream().unwrap();
        let mut target = stream.allocate::<u8>(1_000).unwrap();
        let mut upload = |how| stream.upload_bytes((&[7; 1_000][..]).into(), &mut target, how).unwrap();

        upload(How::default());
        assert_eq!(device.staged().0, 0, "nothing was queued");
        stream.synchronize().unwrap();
        upload(How::default());
        assert_eq!(device.staged().0, 0, "what was queued was waited for");
        upload(How { route: Some(Route::Direct), ..How::default() });
        assert_eq!(device.staged().0, 0, "the program says so");
        upload(How::default());
        assert!(device.staged().0 > 0, "nobody waits for anything");
        assert_eq!(stream.read(&target).unwrap(), [7; 1_000]);
    }

    #[test]
    fn after_a_failure_copies_are_made_as_before_and_nothing_is_kept() {
        let folder = TestFolder::new("copies not calibrated");
        let machine = Machine::new(Config::default());
        let (cache, device) = (UserCache::in_folder(&folder.0), machine.device(0).unwrap());
        machine.fail(Fault::at(0).call(Call::CopyToHost).status(Status::ILLEGAL_ADDRESS));

        assert!(calibrate(&device, &cache, 1 << 14).is_err());

        assert_eq!(device.explain(LOAD).unwrap().reason, Reason::Guessed);
        assert_eq!(model::kept(&cache, device.properties()), None);
    }
}
