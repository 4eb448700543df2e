//! [`CopyModel`]: how long copies take by each route, as a function of how many there are and how long they are.
//!
//! Times are known at some lengths and counts, a table for each route, memory and direction. In between they are taken to
//! grow evenly on logarithmic scales, beyond in proportion to the bytes. A kept model is trusted no further than any file.

use std::{fmt, time::Duration};

use pagelock_memory::Kind;

use super::{Direction, Load, Route};
use crate::{
    copy::staged::{StagingConfig, machine_name},
    driver::Properties,
    user_cache::UserCache,
};

/// How long copies take on a machine; see [`Device::calibrate_copies`](crate::Device::calibrate_copies). Prints its tables.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyModel {
    tables: Vec<Table>, // of `LOADS`, each by `Route::ALL`
}

/// Seconds, by length and count; not a number where nothing was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Table([[f64; COUNTS.len()]; LENGTHS.len()]);

/// Bytes of each copy.
pub(super) const LENGTHS: [usize; 9] =
    [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];
/// How many copies.
pub(super) const COUNTS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// Directions and memories.
pub(super) const LOADS: [(Direction, Kind); 4] = [
    (Direction::ToDevice, Kind::Pageable),
    (Direction::ToDevice, Kind::PageLocked),
    (Direction::ToHost, Kind::Pageable),
    (Direction::ToHost, Kind::PageLocked),
];

const AS_FAST: f64 = 1.02; // times the other

impl Table {
    pub(super) fn of(seconds: impl Fn(usize, usize) -> f64) -> Self {
        Self(LENGTHS.map(|length| COUNTS.map(|count| seconds(length, count))))
    }

    /// Seconds for so many copies of so many bytes; none where nothing was measured.
    fn at(&self, length: f64, count: f64) -> Option<f64> {
        let (row, along) = place(&LENGTHS, length);
        let column = |row: usize| {
            // The largest counts of long copies are not measured: from there on, each costs what one more did before.
            let known = self.0[row].iter().take_while(|seconds| seconds.is_finite()).count();
            let last = *COUNTS[..known].last()? as f64;
            let (at, along) = place(&COUNTS[..known], count.min(last));
            let next = (at + 1).min(known - 1);
            let within = between(self.0[row][at], self.0[row][next], along);
            Some(within + (count - last).max(0.0) * self.one_more(row, known - 1))
        };
        let (low, high) = (column(row)?, column((row + 1).min(LENGTHS.len() - 1))?);
        let longest = LENGTHS[LENGTHS.len() - 1] as f64;
        Some(between(low, high, along) * (length / longest).max(1.0))
    }

    /// Seconds for one more copy, where the number at `last` is the largest that is known: without what a call costs once.
    fn one_more(&self, row: usize, last: usize) -> f64 {
        let mean = self.0[row][last] / COUNTS[last] as f64;
        let Some(before) = last.checked_sub(1) else { return mean };
        let more = (self.0[row][last] - self.0[row][before]) / (COUNTS[last] - COUNTS[before]) as f64;
        more.clamp(mean / 2.0, mean)
    }
}

/// The last place that is not above `value`, and how far on it is towards the next, on a logarithmic scale.
fn place(places: &[usize], value: f64) -> (usize, f64) {
    let at = places.partition_point(|&place| place as f64 <= value).saturating_sub(1);
    let Some(&next) = places.get(at + 1) else { return (at, 0.0) };
    let (here, next) = (places[at] as f64, next as f64);
    (at, ((value.max(here) / here).ln() / (next / here).ln()).clamp(0.0, 1.0))
}

fn between(low: f64, high: f64, along: f64) -> f64 {
    (low.ln() + (high.ln() - low.ln()) * along).exp()
}

impl CopyModel {
    /// What was measured of all routes, for each load, length and count.
    pub(super) fn measured(mut seconds: impl FnMut((Direction, Kind), usize, usize) -> [f64; 3]) -> Self {
        let tables = LOADS.map(|load| {
            let all = LENGTHS.map(|length| COUNTS.map(|count| seconds(load, length, count)));
            Route::ALL.map(|route| Table(all.map(|row| row.map(|of_routes| of_routes[route as usize]))))
        });
        Self { tables: tables.into_iter().flatten().collect() }
    }

    pub(super) fn of(mut table: impl FnMut((Direction, Kind), Route) -> Table) -> Self {
        let mut tables = Vec::new();
        for load in LOADS {
            tables.extend(Route::ALL.map(|route| table(load, route)));
        }
        Self { tables }
    }

    fn table(&self, load: &Load, route: Route) -> &Table {
        let memory = if load.memory == Kind::PageLocked { Kind::PageLocked } else { Kind::Pageable };
        let at = LOADS.iter().position(|known| *known == (load.direction, memory)).unwrap_or(0);
        &self.tables[at * Route::ALL.len() + route as usize]
    }

    /// How long each route would take that is known for such copies, the fastest first.
    pub fn expected(&self, load: &Load) -> Vec<(Route, Duration)> {
        let mut expected: Vec<_> =
            Route::ALL.into_iter().filter_map(|route| Some((route, self.seconds(load, route)?))).collect();
        expected.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        expected.into_iter().map(|(route, seconds)| (route, Duration::from_secs_f64(seconds.min(1e6)))).collect()
    }

    /// Of routes that are as fast as each other, the one that takes least beside its time. Direct copies of page-locked memory
    /// take no thread of the host. Of many copies packed ones take least of the device, which each costs something.
    pub(super) fn fastest(&self, load: &Load) -> Route {
        let handicap = |route| match route {
            Route::Direct => 1.0,
            _ if load.memory == Kind::PageLocked => AS_FAST,
            Route::Staged if load.count > 1 => AS_FAST,
            _ => 1.0,
        };
        let times =
            Route::ALL.into_iter().filter_map(|route| Some((route, self.seconds(load, route)? * handicap(route))));
        times.min_by(|(_, one), (_, other)| one.total_cmp(other)).map_or(Route::Staged, |(route, _)| route)
    }

    fn seconds(&self, load: &Load, route: Route) -> Option<f64> {
        let (length, count) = (load.each.0.max(1) as f64, load.count.max(1) as f64);
        self.table(load, route).at(length.max(LENGTHS[0] as f64), count)
    }
}

impl Default for CopyModel {
    /// A guess for this machine, by its number of processors: what was measured on a server with an H200 of one, scaled.
    fn default() -> Self {
        let threads = StagingConfig::default().threads as f64 + 1.0;
        let staged = (7.0 * threads).min(50.0); // GB/s
        Self::of(|(direction, memory), route| {
            let locked = memory == Kind::PageLocked;
            let (call, each, rate) = match (direction, route) {
                (Direction::ToDevice, Route::Direct) if locked => (4.0, 2.6, 55.0),
                (Direction::ToDevice, Route::Direct) => (5.0, 5.0, 8.6),
                (Direction::ToHost, Route::Direct) if locked => (6.0, 2.6, 55.0),
                (Direction::ToHost, Route::Direct) => (8.0, 8.0, 15.7),
                (_, Route::Staged) => (5.0, 3.0, staged),
                (_, Route::Packed) => (15.0, 0.06, staged),
            };
            Table::of(|length, count| {
                let (length, count) = (length as f64, count as f64);
                (call + count * each + count * length / rate / 1e3) / 1e6
            })
        })
    }
}

const FORMAT: &str = "pagelock copies 3"; // changes when what was measured has to be measured anew
const MOST_BYTES: u64 = 20_000; // of a kept model's text

pub(super) use crate::copy::staged::user_cache;

/// What was measured for that device on this machine, if it was.
pub(super) fn kept(cache: &UserCache, properties: &Properties) -> Option<CopyModel> {
    let text = cache.read(&machine_name(FORMAT, properties), MOST_BYTES)?;
    CopyModel::from_kept(std::str::from_utf8(&text).ok()?)
}

/// Keeps what was measured; not to be able to is no error.
pub(super) fn keep(cache: &UserCache, properties: &Properties, measured: &CopyModel) {
    let _ = cache.write(&machine_name(FORMAT, properties), measured.to_string().as_bytes());
}

/// Tables with a head each: microseconds, one line for each length.
impl fmt::Display for CopyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, table) in self.tables.iter().enumerate() {
            let ((direction, memory), route) = (LOADS[at / Route::ALL.len()], Route::ALL[at % Route::ALL.len()]);
            writeln!(f, "# {direction:?}, {memory}, {route}: µs of 1, 10, 100, 1000, 10000 copies")?;
            for (length, row) in LENGTHS.iter().zip(&table.0) {
                write!(f, "{length:>9} B")?;
                row.iter().try_for_each(|seconds| write!(f, " {:>12.2}", seconds * 1e6))?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

impl CopyModel {
    /// What was printed; none if it is no such text, or cannot have been measured.
    pub(crate) fn from_kept(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut tables = Vec::new();
        for _ in 0..LOADS.len() * Route::ALL.len() {
            let mut rows = [[f64::NAN; COUNTS.len()]; LENGTHS.len()];
            for (row, length) in rows.iter_mut().zip(LENGTHS) {
                let line = lines.next()?.trim_start();
                let numbers = line.strip_prefix(&format!("{length} B"))?;
                let numbers: Result<Vec<f64>, _> = numbers.split_whitespace().map(str::parse).collect();
                let micros: [f64; COUNTS.len()] = numbers.ok()?.try_into().ok()?;
                *row = micros.map(|micros| micros / 1e6);
            }
            tables.push(Table(rows));
        }
        let model = Self { tables };
        (lines.next().is_none() && model.is_sound()).then_some(model)
    }

    /// Whether this can have been measured.
    fn is_sound(&self) -> bool {
        let can_be = |seconds: &f64| seconds.is_nan() || (1e-9..1e3).contains(seconds);
        self.tables.iter().flat_map(|table| table.0.iter().flatten()).all(can_be)
    }
}

#[cfg(test)]
mod tests {
    use pagelock_memory::ByteSize;
    use proptest::prelude::*;

    use super::*;
    use crate::{device::Device, user_cache::TestFolder};

    fn load(count: usize, each: u64) -> Load {
        Load { direction: Direction::ToDevice, memory: Kind::Pageable, count, each: ByteSize(each) }
    }

    /// Packed takes the same for any number, direct goes with the bytes.
    fn crossing() -> CopyModel {
        CopyModel::of(|_, route| {
            Table::of(|length, count| match route {
                Route::Direct => (length * count) as f64 / 1e9,
                Route::Staged => f64::NAN,
                Route::Packed => 1e-3 + (length * count) as f64 / 2e9,
            })
        })
    }

    #[test]
    fn the_fastest_route_is_chosen_and_one_that_was_not_measured_never_is() {
        assert_eq!(crossing().fastest(&load(1, 1_000)), Route::Direct);
        assert_eq!(crossing().fastest(&load(1_000, 1 << 20)), Route::Packed);
        assert_eq!(crossing().expected(&load(1, 1)).len(), 2);
    }

    #[test]
    fn of_routes_that_are_as_fast_as_each_other_many_copies_are_packed() {
        let model = CopyModel::of(|_, route| {
            Table::of(|length, count| match route {
                Route::Direct => f64::NAN,
                Route::Staged => (length * count) as f64 / 1.01e9,
                Route::Packed => (length * count) as f64 / 1e9,
            })
        });
        assert_eq!([1, 100].map(|count| model.fastest(&load(count, 1 << 20))), [Route::Staged, Route::Packed]);
    }

    #[test]
    fn of_routes_that_are_as_fast_as_each_other_page_locked_memory_is_copied_directly() {
        let model = CopyModel::of(|_, route| {
            let rate = if route == Route::Packed { 1.01e9 } else { 1e9 };
            Table::of(|length, count| (length * count) as f64 / rate)
        });
        let memory = [Kind::PageLocked, Kind::Pageable];
        let fastest = memory.map(|memory| model.fastest(&Load { memory, ..load(100, 1 << 20) }));
        assert_eq!(fastest, [Route::Direct, Route::Packed]);
    }

    #[test]
    fn beyond_the_counts_that_were_measured_what_a_call_costs_once_is_not_counted_again() {
        let model = CopyModel::of(|_, route| {
            Table::of(|length, count| match route {
                _ if count > 100 => f64::NAN,
                Route::Direct => (length * count) as f64 / 1e9,
                Route::Staged => f64::NAN,
                Route::Packed => 0.02 + (length * count) as f64 / 1.1e9,
            })
        });
        assert_eq!(model.fastest(&load(100, 1 << 20)), Route::Direct);
        assert_eq!(model.fastest(&load(1_000, 1 << 20)), Route::Packed);
    }

    proptest! {
        #[test]
        fn between_what_is_known_times_are_between_and_beyond_they_go_with_the_bytes(
            count in 1_usize..1_000_000, each in 1_024_u64..1 << 36,
        ) {
            let expected = crossing().expected(&load(count, each));
            let direct = expected.iter().find(|(route, _)| *route == Route::Direct).unwrap().1.as_secs_f64();
            let right = (count as f64 * each as f64 / 1e9).min(1e6);
            prop_assert!((direct / right - 1.0).abs() < 1e-3, "{} for {}", direct, right);
        }

        #[test]
        fn no_bytes_in_the_place_of_a_kept_model_are_more_than_ignored(bytes in prop::collection::vec(any::<u8>(), 0..3_000)) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(CopyModel::from_kept(&text), None);
        }
    }

    #[test]
    fn what_was_kept_for_a_device_is_found_again() {
        let folder = TestFolder::new("copies kept");
        let (cache, device) = (UserCache::in_folder(&folder.0), Device::software(Default::default()).unwrap());
        assert_eq!(kept(&cache, device.properties()), None);
        let measured = CopyModel::default();
        keep(&cache, device.properties(), &measured);
        let found = kept(&cache, device.properties()).unwrap();
        assert_eq!(found.to_string(), measured.to_string());
    }

    #[test]
    fn a_kept_model_that_cannot_have_been_measured_is_ignored() {
        let text = CopyModel::default().to_string();
        assert!(CopyModel::from_kept(&text).is_some());
        for hostile in [
            text.replacen("1024 B", "1025 B", 1),
            text.replacen("1024 B ", "1024 B -", 1),
            format!("{text}1"),
            text[..500].to_owned(),
        ] {
            assert_eq!(CopyModel::from_kept(&hostile), None);
        }
    }
}
