//! Copies that choose by themselves how they are made: directly, through the ring, or packed.
//!
//! Which of the three is fastest depends on how many there are, how long they are, the memory, the direction and the
//! machine. [`CopyModel`] says how long each would take; `model.rs` has it, `measure.rs` makes it. What a [`Choice`] was and
//! why can be asked for and printed ([`Device::explain`]), and each copy, each device and the environment can say otherwise.
//!
//! `upload.rs` and `download.rs` then do what was chosen.

mod download;
mod measure;
mod model;
mod upload;

use std::{env, fmt, ops::Range, str::FromStr, time::Duration};

use pagelock_memory::{ByteSize, HostBuffer, Kind};

pub use self::model::CopyModel;
use crate::{
    copy::staged::SMALL,
    device::Device,
    error::{Error, Result},
    stream::Stream,
    sync::{Mutex, lock},
};

/// How bytes get from the host to a device, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Each copy is given to the driver as it is: at the speed of the wire if the memory is page-locked.
    Direct,
    /// Through the page-locked ring, filled and emptied by several threads.
    Staged,
    /// The same, all as one copy, to or from one block of the device's memory.
    Packed,
}

impl Route {
    pub(crate) const ALL: [Route; 3] = [Route::Direct, Route::Staged, Route::Packed];
}

/// `direct`, `staged`, `packed`
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Route::Direct => "direct",
            Route::Staged => "staged",
            Route::Packed => "packed",
        })
    }
}

/// As it prints.
impl FromStr for Route {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let route = Route::ALL.into_iter().find(|route| route.to_string() == name);
        route.ok_or_else(|| Error::RouteVariable { text: name.to_owned() })
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
}

/// What is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which way.
    pub direction: Direction,
    /// What the host's memory is.
    pub memory: Kind,
    /// How many.
    pub count: usize,
    /// How long each is.
    pub each: ByteSize,
}

/// `1000 × 4 KiB from pageable memory to the device`
impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { direction, memory, count, each } = self;
        match direction {
            Direction::ToDevice => write!(f, "{count} × {each} from {memory} memory to the device"),
            Direction::ToHost => write!(f, "{count} × {each} from the device to {memory} memory"),
        }
    }
}

/// How copies are to be made: unless it says otherwise, as fast as they can be.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, How, Route, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let (first, second) = ([1_u8; 10], [2_u8; 20]);
/// let sources = [(&first[..]).into(), (&second[..]).into()];
/// let chosen = stream.upload_all(&sources, How::default())?;
/// let packed = stream.upload_all(&sources, How { route: Some(Route::Packed), ..How::default() })?;
/// assert_eq!(stream.read(&chosen[1])?, stream.read(&packed[1])?);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// By this route, whatever would be faster.
    pub route: Option<Route>,
    /// With at most so many threads beside the caller; else with as many as the device's [staging](Device::staging) has.
    pub threads: Option<usize>,
    /// What the targets of a download are, which slices do not say: ordinary memory, unless this says otherwise. It decides
    /// what is fastest, nothing else.
    pub memory: Option<Kind>,
}

/// Bytes on the host that are to be copied to a device: a slice of any memory, or all or a part of a [`HostBuffer`], which
/// the device reads by itself if it is page-locked.
#[derive(Clone, Debug)]
pub struct HostBytes<'a>(Bytes<'a>);

#[derive(Clone, Debug)]
enum Bytes<'a> {
    Slice(&'a [u8]),
    Locked(&'a HostBuffer, Range<usize>),
}

impl<'a> From<&'a [u8]> for HostBytes<'a> {
    fn from(slice: &'a [u8]) -> Self {
        Self(Bytes::Slice(slice))
    }
}

impl<'a> HostBytes<'a> {
    /// A range of a buffer's bytes.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn of(buffer: &'a HostBuffer, range: Range<usize>) -> Result<Self> {
        let Range { start, end } = range;
        if start > end || end > buffer.len_bytes() {
            return Err(Error::Range { start, end, len: buffer.len_bytes() });
        }
        Ok(match buffer.kind() {
            Kind::PageLocked => Self(Bytes::Locked(buffer, range)),
            _ => Self(Bytes::Slice(&buffer.bytes()[range])),
        })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Bytes::Slice(slice) => slice.len(),
            Bytes::Locked(_, range) => range.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory(&self) -> Kind {
        match &self.0 {
            Bytes::Slice(_) => Kind::Pageable,
            Bytes::Locked(..) => Kind::PageLocked,
        }
    }

    /// To be read by the host.
    fn bytes(&self) -> &'a [u8] {
        match &self.0 {
            Bytes::Slice(slice) => slice,
            Bytes::Locked(buffer, range) => &buffer.bytes()[range.clone()],
        }
    }
}

/// What was chosen for a [`Load`], and why; prints itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// For what.
    pub load: Load,
    /// What was chosen.
    pub route: Route,
    /// Why.
    pub reason: Reason,
    /// How long each route would take, as far as the model knows.
    pub expected: Vec<(Route, Duration)>,
}

/// Why a route was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The program said so, with [`Device::set_route`].
    Set,
    /// `$PAGELOCK_COPIES` said so.
    Variable,
    /// It is the fastest by what was measured with this device on this machine.
    Measured,
    /// It should be the fastest on a machine like this; [`Device::calibrate_copies`] would know.
    Guessed,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { load, route, reason, expected } = self;
        write!(f, "{load}: {route}, ")?;
        f.write_str(match reason {
            Reason::Set => "as the program set",
            Reason::Variable => "as $PAGELOCK_COPIES says",
            Reason::Measured => "the fastest by what was measured on this machine",
            Reason::Guessed => "a guess for machines like this one: calibrate_copies() would know",
        })?;
        for (at, (route, time)) in expected.iter().enumerate() {
            write!(f, "{}{route} {}", if at == 0 { " (" } else { ", " }, micros(*time))?;
        }
        f.write_str(if expected.is_empty() { "" } else { ")" })
    }
}

fn micros(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1e3 { format!("{micros:.1} µs") } else { format!("{:.2} ms", micros / 1e3) }
}

/// Where a device has what it chooses by.
#[derive(Default)]
pub(crate) struct Chooser(Mutex<Known>); // guards what is known

#[derive(Default)]
struct Known {
    set: Option<Route>,
    said: Option<Option<Route>>, // by the environment; none: not looked yet
    model: Option<(CopyModel, Reason)>,
    routes: Vec<Option<Route>>, // the fastest by the model, of `PLACES`; looked up when first needed
}

/// Directions and memories, by lengths in eighths of octaves, by counts in quarters.
const PLACES: usize = 4 * LENGTHS * COUNTS;
const LENGTHS: usize = 64 * 8;
const COUNTS: usize = 20 * 4;

/// Where the answer for a load is kept: loads that share a place differ by no more than a tenth in length.
fn place(load: &Load) -> usize {
    // The number's octave, and the bits that follow its first.
    let step = |number: u64, bits: u32| {
        let octave = number.ilog2();
        let rest = if octave >= bits { number >> (octave - bits) } else { number << (bits - octave) };
        ((octave << bits) as usize) + (rest as usize & ((1 << bits) - 1))
    };
    let (direction, locked) = (load.direction as usize, usize::from(load.memory == Kind::PageLocked));
    let length = step(load.each.0.max(1), 3);
    let count = step(load.count.max(1) as u64, 2).min(COUNTS - 1);
    ((direction * 2 + locked) * LENGTHS + length) * COUNTS + count
}

const VARIABLE: &str = "PAGELOCK_COPIES";

/// What the environment says; `auto` is nothing.
fn variable() -> Result<Option<Route>> {
    let text = env::var_os(VARIABLE).unwrap_or_default();
    let text = text.to_string_lossy(); // what is no text is no route either
    if text.is_empty() || text == "auto" { Ok(None) } else { text.parse().map(Some) }
}

impl Known {
    /// What somebody decided, and who.
    fn decided(&mut self) -> Result<Option<(Route, Reason)>> {
        if let Some(set) = self.set {
            return Ok(Some((set, Reason::Set)));
        }
        let said = match self.said {
            Some(said) => said,
            None => model::user_cache().and_then(|_| variable())?,
        };
        self.said = Some(said);
        Ok(said.map(|said| (said, Reason::Variable)))
    }

    /// The fastest route by the model.
    fn fastest(&mut self, device: &Device, load: &Load) -> Route {
        self.routes.resize(PLACES, None);
        if let Some(route) = self.routes[place(load)] {
            return route;
        }
        let fastest = self.model(device).0.fastest(load);
        self.routes[place(load)] = Some(fastest);
        fastest
    }

    /// Chooses by this one from now on.
    fn set_model(&mut self, model: CopyModel) {
        self.model = Some((model, Reason::Measured));
        self.routes.clear();
    }

    fn model(&mut self, device: &Device) -> &(CopyModel, Reason) {
        let kept = || model::kept(&model::user_cache().ok()?, device.properties());
        self.model.get_or_insert_with(|| match kept() {
            Some(model) => (model, Reason::Measured),
            None => (CopyModel::default(), Reason::Guessed),
        })
    }
}

impl Device {
    /// What copies like these would do on this device, and why.
    ///
    /// # Errors
    /// [`Error::RouteVariable`] if `$PAGELOCK_COPIES` is none of `auto`, `direct`, `staged` and `packed`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Direction, Load, Route, software::Config};
    /// use pagelock_memory::{ByteSize, Kind};
    ///
    /// let device = Device::software(Config::default())?;
    /// let load = Load { direction: Direction::ToDevice, memory: Kind::Pageable, count: 1_000, each: ByteSize::kib(4) };
    /// let choice = device.explain(load)?;
    /// println!("{choice}");
    /// assert!(choice.to_string().starts_with("1000 × 4 KiB from pageable memory to the device: "));
    /// device.set_route(Some(Route::Direct));
    /// assert_eq!(device.explain(load)?.route, Route::Direct);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn explain(&self, load: Load) -> Result<Choice> {
        let mut known = lock(&self.core().chooser().0);
        let decided = known.decided()?;
        let fastest = known.fastest(self, &load);
        let (model, reason) = known.model(self);
        let (route, reason) = decided.unwrap_or((fastest, *reason));
        let expected = model.expected(&load);
        Ok(Choice { load, route, reason, expected })
    }

    /// The route of all copies that choose theirs, from now on; none: the fastest of each.
    pub fn set_route(&self, route: Option<Route>) {
        lock(&self.core().chooser().0).set = route;
    }

    /// What this device chooses by: what was [measured](Self::calibrate_copies) on such a machine, or a guess.
    pub fn copy_model(&self) -> CopyModel {
        lock(&self.core().chooser().0).model(self).0.clone()
    }

    /// Chooses by this model from now on.
    pub fn set_copy_model(&self, model: CopyModel) {
        lock(&self.core().chooser().0).set_model(model);
    }
}

impl Stream {
    /// The routes of many copies, one after another.
    fn routes(&self, how: How) -> Routes<'_> {
        Routes { stream: self, how, last: None }
    }

    /// The route for each of so many copies.
    fn route(&self, how: How, load: Load) -> Result<Route> {
        if let Some(route) = how.route {
            return Ok(route);
        }
        let device = self.device();
        let mut known = lock(&device.core().chooser().0);
        if let Some((decided, _)) = known.decided()? {
            return Ok(decided);
        }
        let fastest = known.fastest(device, &load);
        let would_wait = fastest == Route::Direct && load.waits_for_its_stream() && !self.core().was_waited_for();
        Ok(if would_wait { Route::Staged } else { fastest })
    }
}

impl Load {
    /// Whether a direct copy takes less time than it may have to wait for its stream, as the driver lets it: whoever does not
    /// wait for his copies is better off with another route.
    fn waits_for_its_stream(&self) -> bool {
        self.direction == Direction::ToDevice && self.memory != Kind::PageLocked && self.each.0 <= SMALL as u64
    }
}

/// Looks up the route of one copy after another: most are as long as the one before.
struct Routes<'a> {
    stream: &'a Stream,
    how: How,
    last: Option<(Load, Route)>,
}

impl Routes<'_> {
    fn of(&mut self, load: Load) -> Result<Route> {
        match self.last {
            Some((same, route)) if same == load => Ok(route),
            _ => {
                let route = self.stream.route(self.how, load)?;
                self.last = Some((load, route));
                Ok(route)
            }
        }
    }
}
