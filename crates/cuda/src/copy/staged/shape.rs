//! [`StagingConfig`]: the shape of a ring, and where a program that chooses none gets it from.
//!
//! In this order: what [`Device::set_staging`] was given, `$PAGELOCK_STAGING`, what [`Device::calibrate_staging`] once
//! measured on this machine and kept, and what the number of processors suggests. A kept shape is trusted no further
//! than any file: one that is not sound is as good as none.
//!
//! [`Device::set_staging`]: crate::Device::set_staging
//! [`Device::calibrate_staging`]: crate::Device::calibrate_staging

use std::{env, fs, num::NonZero, thread};

use pagelock_memory::{ByteSize, host_budget};

use crate::{
    driver::Properties,
    error::{Error, Result},
    page_locked::page_locked_budget,
    user_cache::{UserCache, hash},
};

/// How a device's staged copies are made; see [`Device::set_staging`](crate::Device::set_staging). A ring has at most 256 MiB,
/// a slot half of that, and 1024 threads help at most: what is above is taken as these.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, StagingConfig, software::Config};
/// use pagelock_memory::{ByteSize, host_budget};
///
/// let device = Device::software(Config::default())?;
/// device.set_staging(StagingConfig { ring: ByteSize::mib(16), ..device.staging() });
/// assert_eq!(device.staging().ring, ByteSize::mib(16));
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// The most that is page-locked for it.
    pub ring: ByteSize,
    /// What one slot holds.
    pub slot: ByteSize,
    /// The most that the device copies at once, up to two slots of an upload: how long a small copy may have to wait for a
    /// large one at first.
    pub chunk: ByteSize,
    /// Threads that help; the caller copies too. At most seven of them fill the slots of a long upload: more get in their way.
    pub threads: usize,
}

impl Default for StagingConfig {
    /// For this machine: all processors, at most 16, the caller's among them, and 8 MiB for each, at most 64 MiB
    /// and half of what may be page-locked.
    fn default() -> Self {
        Self::with_threads(processors().clamp(2, 16) - 1)
    }
}

pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

impl StagingConfig {
    /// So many threads beside the caller, and 8 MiB for each, as in the default shape.
    pub(super) fn with_threads(threads: usize) -> Self {
        let ring = (threads as u64 + 1) * ByteSize::mib(8).0;
        let ring = ByteSize(ring.clamp(ByteSize::mib(16).0, ByteSize::mib(64).0));
        Self { ring, slot: ByteSize::mib(4), chunk: ByteSize::mib(8), threads }.within_budget()
    }

    /// The same, with at most half of what may be page-locked, and an eighth of all memory of the host.
    fn within_budget(self) -> Self {
        let most = (page_locked_budget().limit().0 / 2).min(host_budget().limit().0 / 8);
        Self { ring: ByteSize(self.ring.0.min(most)), ..self }
    }

    /// The shape for a device for which none was set.
    pub(super) fn found(kept: Option<Self>) -> Result<Self> {
        let found = kept.unwrap_or_default().within_budget();
        env::var_os(VARIABLE).map_or(Ok(found), |text| found.changed_by(&text.to_string_lossy()))
    }

    /// The same, but for what the text says, as in `ring=64 MiB,threads=7`.
    fn changed_by(mut self, text: &str) -> Result<Self> {
        let before = self;
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            self.change(setting).ok_or_else(|| Error::StagingVariable { setting: setting.to_owned() })?;
        }
        // Only a size that the user set is refused. The default shrinks to the limit of page-locked memory.
        if (self.ring, self.slot) == (before.ring, before.slot) { Ok(self) } else { self.check() }
    }

    /// An error if it takes more memory than a ring may, or if two slots, which an upload needs, do not fit the ring.
    fn check(self) -> Result<Self> {
        let Self { ring, slot, .. } = self;
        let fits = ring <= MOST_RING && slot.0 <= ring.0 / 2;
        if fits { Ok(self) } else { Err(Error::StagingSize { ring, slot, most: MOST_RING }) }
    }

    /// The nearest that takes no more memory and threads than any may.
    pub(super) fn within_bounds(self) -> Self {
        let ring = self.ring.min(MOST_RING);
        let slot = self.slot.min(ByteSize(MOST_RING.0 / 2));
        Self { ring, slot, threads: self.threads.min(MOST_THREADS), ..self }
    }

    fn change(&mut self, setting: &str) -> Option<()> {
        let (name, value) = setting.split_once('=')?;
        let size = || value.trim().parse::<ByteSize>().ok().filter(|size| size.0 > 0);
        match name.trim() {
            "ring" => self.ring = size()?,
            "slot" => self.slot = size()?,
            "chunk" => self.chunk = size()?,
            "threads" => self.threads = value.trim().parse().ok().filter(|&threads| threads <= MOST_THREADS)?,
            _ => return None,
        }
        Some(())
    }
}

const VARIABLE: &str = "PAGELOCK_STAGING";
const MOST_THREADS: usize = 1_024;
const MOST_RING: ByteSize = ByteSize::mib(256); // four times what any machine was measured to need
const FORMAT: &str = "pagelock staging 3"; // changes when what was measured has to be measured anew
const MOST_BYTES: u64 = 200; // of a kept shape's text

/// `$PAGELOCK_STAGING_CACHE`, or `pagelock/staging` in the user's cache folder; empty switches it off.
pub(in crate::copy) fn user_cache() -> Result<UserCache> {
    UserCache::of_user("staging", "PAGELOCK_STAGING_CACHE")
}

/// What was measured for that device on this machine, if it was.
pub(super) fn kept(cache: &UserCache, properties: &Properties) -> Option<StagingConfig> {
    let text = cache.read(&name(properties), MOST_BYTES)?;
    StagingConfig::from_kept(std::str::from_utf8(&text).ok()?).filter(StagingConfig::is_sound)
}

/// Keeps what was measured; not to be able to is no error.
pub(super) fn keep(cache: &UserCache, properties: &Properties, measured: StagingConfig) {
    let _ = cache.write(&name(properties), measured.to_kept().as_bytes());
}

fn name(properties: &Properties) -> String {
    machine_name(FORMAT, properties)
}

/// Names this machine, the device and its driver, and what is known of them.
pub(in crate::copy) fn machine_name(format: &str, properties: &Properties) -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let Properties { name, ordinal, memory, driver_version: (major, minor), .. } = properties;
    let (processors, device) = (processors(), format!("{name} {ordinal} {} {major}.{minor}", memory.0));
    hash([format, model, &processors.to_string(), &device])
}

impl StagingConfig {
    fn to_kept(self) -> String {
        format!("{} {} {} {}", self.ring.0, self.slot.0, self.chunk.0, self.threads)
    }

    pub(crate) fn from_kept(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut size = || numbers.next().flatten().map(ByteSize);
        let (ring, slot, chunk) = (size()?, size()?, size()?);
        let threads = size()?.0 as usize;
        numbers.next().is_none().then_some(Self { ring, slot, chunk, threads })
    }

    /// Whether this can have been measured.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { ring, slot, chunk, threads } = *self;
        slot.0 <= ring.0 / 2
            && (ByteSize::kib(64)..=ByteSize(2 * slot.0)).contains(&chunk)
            && ring <= ByteSize::mib(64)
            && threads < processors().max(2)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, ops::Range};

    use proptest::prelude::*;

    use super::*;
    use crate::{device::Device, user_cache::TestFolder};

    fn properties() -> Properties {
        Device::software(Default::default()).unwrap().properties().clone()
    }

    const MEASURED: StagingConfig =
        StagingConfig { ring: ByteSize::mib(32), slot: ByteSize::mib(2), chunk: ByteSize::mib(2), threads: 1 };

    #[test]
    fn what_was_kept_for_a_device_is_found_for_it_and_for_no_other() {
        let folder = TestFolder::new("staging kept");
        let (cache, here) = (UserCache::in_folder(&folder.0), properties());
        assert_eq!(kept(&cache, &here), None);
        keep(&cache, &here, MEASURED);
        assert_eq!(kept(&cache, &here), Some(MEASURED));
        let others = [
            Properties { name: "another".to_owned(), ..here.clone() },
            Properties { ordinal: 1, ..here.clone() },
            Properties { driver_version: (99, 0), ..here.clone() },
        ];
        assert!(others.iter().all(|other| kept(&cache, other).is_none()));
    }

    #[test]
    fn a_kept_shape_that_cannot_have_been_measured_is_ignored() {
        let folder = TestFolder::new("staging hostile");
        let (cache, here) = (UserCache::in_folder(&folder.0), properties());
        let most = u64::MAX;
        let hostile = [
            String::new(),
            "nonsense".to_owned(),
            "1 2 3".to_owned(),
            format!("{most} {most} {most} {most}"),
            format!("{most}0 1 1 1"),
            "67108864 4194304 4194304 100000".to_owned(),
            "67108864 4194304 0 1".to_owned(),
            "67108864 67108864 4194304 1".to_owned(),
            "67108864 4194304 8388609 1".to_owned(),
            "67108864 4194304 4194304 1 1".to_owned(),
            "-1 4194304 4194304 1".to_owned(),
            "\0".repeat(100),
            "1".repeat(10_000),
        ];
        for text in hostile {
            cache.write(&name(&here), text.as_bytes()).unwrap();
            assert_eq!(kept(&cache, &here), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_in_the_place_of_a_kept_shape_are_more_than_ignored(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let folder = TestFolder::new("staging bytes");
            let (cache, here) = (UserCache::in_folder(&folder.0), properties());
            fs::create_dir_all(&folder.0).unwrap();
            fs::write(folder.0.join(name(&here)), &bytes).unwrap();
            prop_assert_eq!(kept(&cache, &here), None);
            cache.write(&name(&here), &bytes).unwrap();
            prop_assert!(kept(&cache, &here).is_none_or(|shape| shape.is_sound()));
        }

        #[test]
        fn every_shape_is_read_as_it_was_written(ring: u64, slot: u64, chunk: u64, threads: u32) {
            let [ring, slot, chunk] = [ring, slot, chunk].map(ByteSize);
            let shape = StagingConfig { ring, slot, chunk, threads: threads as usize };
            prop_assert_eq!(StagingConfig::from_kept(&shape.to_kept()), Some(shape));
        }
    }

    #[test]
    fn a_default_shape_is_sound_for_any_number_of_threads_of_this_machine() {
        let threads: Range<usize> = 0..processors();
        assert!(threads.into_iter().all(|threads| StagingConfig::with_threads(threads).is_sound()));
    }

    #[test]
    fn the_variable_changes_what_it_names() {
        let changed = MEASURED.changed_by(" threads = 3, ring=16 MiB,,").unwrap();
        assert_eq!(changed, StagingConfig { threads: 3, ring: ByteSize::mib(16), ..MEASURED });
        assert_eq!(MEASURED.changed_by("").unwrap(), MEASURED);
    }

    #[test]
    fn a_setting_that_means_nothing_is_an_error_that_shows_how_it_is_written() {
        for setting in ["thread=3", "threads=-1", "threads=1000000", "ring", "slot=0", "chunk=many"] {
            let error = MEASURED.changed_by(&format!("ring=16 MiB,{setting}")).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "$PAGELOCK_STAGING has `{setting}`, which is no setting of staged copies; write for example \
                     `ring=64 MiB,slot=4 MiB,chunk=8 MiB,threads=7`, or any of these"
                )
            );
        }
    }

    #[test]
    fn a_ring_that_takes_too_much_or_holds_no_two_slots_is_refused_with_what_would_do() {
        for setting in ["ring=2 GiB", "slot=1 GiB", "ring=257 MiB", "ring=3 MiB", "ring=100000 TiB", "slot=17 MiB"] {
            assert!(matches!(MEASURED.changed_by(setting), Err(Error::StagingSize { .. })), "{setting}");
        }
        assert_eq!(
            MEASURED.changed_by("ring=4 GiB,slot=1 GiB").unwrap_err().to_string(),
            "$PAGELOCK_STAGING asks for a ring of 4 GiB with slots of 1 GiB: a ring has at most 256 MiB, and room for two \
             slots; write for example `ring=64 MiB,slot=4 MiB`"
        );
        assert!(MEASURED.changed_by("ring=256 MiB,slot=128 MiB").is_ok());
        let scarce = StagingConfig { ring: ByteSize::mib(1), ..MEASURED };
        assert!(scarce.changed_by("threads=2").is_ok(), "what nobody wrote is not refused");
    }

    #[test]
    fn a_program_s_shape_is_taken_as_the_nearest_that_can_be() {
        let most =
            StagingConfig { ring: ByteSize::MAX, slot: ByteSize::MAX, chunk: ByteSize::MAX, threads: usize::MAX };
        let taken = most.within_bounds();
        assert_eq!((taken.ring, taken.slot, taken.threads), (MOST_RING, ByteSize::mib(128), MOST_THREADS));
        assert_eq!(MEASURED.within_bounds(), MEASURED);
    }
}
