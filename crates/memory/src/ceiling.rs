//! How much memory is left: of the machine, and of the cgroups (containers, services) that contain the process.
//!
//! All numbers are read from files below a root folder, so tests can bring trees of their own. A file that is absent or
//! unreadable sets no bound: that is normal on other systems and in containers.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::ByteSize;

/// A default limit and its reason. Prints as `2 GiB: a quarter of the 8 GiB left (MemAvailable)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ceiling {
    /// The limit.
    pub bytes: ByteSize,
    /// Why the limit is not higher.
    pub because: String,
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.bytes, self.because)
    }
}

const MIN_CEILING: ByteSize = ByteSize::mib(64);
// Cgroups of version 1 write "no limit" as the largest signed number, rounded down to whole pages.
const NO_LIMIT_V1: u64 = 1 << 62;
const MAX_PAGE_LOCKED: ByteSize = ByteSize::gib(4);

/// The default limit of page-locked memory in bytes: a quarter of what is left of the machine's and
/// the cgroups' memory, at most 4 GiB, at least 64 MiB.
///
/// `RLIMIT_MEMLOCK` is not considered: it limits `mlock`, but not GPU drivers.
///
/// # Examples
/// ```
/// use pagelock_memory::{Budget, page_locked_ceiling};
///
/// let ceiling = page_locked_ceiling();
/// println!("page-locked memory: {ceiling}");
/// let budget = Budget::new("page-locked", ceiling.bytes);
/// ```
pub fn page_locked_ceiling() -> Ceiling {
    Ceiling::page_locked(Path::new("/"))
}

impl Ceiling {
    /// As [`page_locked_ceiling`], on the machine whose `/proc` and `/sys` are below `root`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::Ceiling;
    ///
    /// let nothing_is_known = Ceiling::page_locked("/no/such/machine".as_ref());
    /// assert_eq!(
    ///     nothing_is_known.to_string(),
    ///     "64 MiB: the default minimum, since it is unknown how much memory is left"
    /// );
    /// ```
    pub fn page_locked(root: &Path) -> Self {
        match headroom(root) {
            None => Self::minimum("since it is unknown how much memory is left"),
            Some(left) if left.bytes / 4 > MAX_PAGE_LOCKED.0 => {
                Self { bytes: MAX_PAGE_LOCKED, because: format!("the default maximum, with {left}") }
            }
            Some(left) if left.bytes / 4 < MIN_CEILING.0 => Self::minimum(&format!("with {left}")),
            Some(left) => Self { bytes: ByteSize(left.bytes / 4), because: format!("a quarter of the {left}") },
        }
    }

    /// The default limit of ordinary buffers in bytes: nine tenths of what is left, at least
    /// 64 MiB, and no limit if nothing is known.
    pub fn host(root: &Path) -> Self {
        match headroom(root) {
            None => Self { bytes: ByteSize::MAX, because: "it is unknown how much memory is left".to_owned() },
            Some(left) if left.bytes < MIN_CEILING.0 => Self::minimum(&format!("with {left}")),
            Some(left) => {
                Self { bytes: ByteSize(left.bytes - left.bytes / 10), because: format!("nine tenths of the {left}") }
            }
        }
    }

    fn minimum(because: &str) -> Self {
        Self { bytes: MIN_CEILING, because: format!("the default minimum, {because}") }
    }
}

/// Bytes that can still be allocated, and what bounds them.
struct Headroom {
    bytes: u64,
    bound: String,
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} left ({})", ByteSize(self.bytes), self.bound)
    }
}

/// The bytes left of the machine or of a cgroup that contains the process, whichever are fewest.
fn headroom(root: &Path) -> Option<Headroom> {
    let machine = mem_available(root).map(|bytes| Headroom { bytes, bound: "MemAvailable".to_owned() });
    let groups = cgroups(root).into_iter().filter_map(|(version, folder)| {
        let bytes = left_of_cgroup(version, &root.join(&folder))?;
        Some(Headroom { bytes, bound: format!("cgroup /{}", folder.display()) })
    });
    machine.into_iter().chain(groups).min_by_key(|headroom| headroom.bytes)
}

fn mem_available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = named_number(&meminfo, "MemAvailable:")?;
    kib.checked_mul(1024)
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

/// The memory cgroups of this process and all their ancestors, as folders relative to the root.
fn cgroups(root: &Path) -> Vec<(Version, PathBuf)> {
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in memberships.lines() {
        // hierarchy:controllers:path, where version 2 has the hierarchy 0 and names no controllers
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            groups.extend(ancestors(Version::Two, "sys/fs/cgroup", path));
            groups.extend(ancestors(Version::Two, "sys/fs/cgroup/unified", path));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            groups.extend(ancestors(Version::One, "sys/fs/cgroup/memory", path));
        }
    }
    groups
}

/// `mount` and every folder along `path` below it. In a container, `path` may be that of the host, which does not exist
/// here, or start with `..`. Then `mount` itself is the container's group.
fn ancestors(version: Version, mount: &str, path: &str) -> Vec<(Version, PathBuf)> {
    let mut folders = vec![PathBuf::from(mount)];
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            break;
        }
        let deeper = folders[folders.len() - 1].join(part);
        folders.push(deeper);
    }
    folders.into_iter().map(|folder| (version, folder)).collect()
}

/// The group's limit, minus what it uses, plus its file cache (which the system drops before it runs out).
fn left_of_cgroup(version: Version, folder: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let stat = |name: &str| named_number(&stat, name);
    let (limit, used, files) = match version {
        // "max", which is no number, means no limit
        Version::Two => (
            [number("memory.max"), number("memory.high")].into_iter().flatten().min()?,
            number("memory.current")?,
            [stat("inactive_file"), stat("active_file")],
        ),
        Version::One => (
            number("memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT_V1)?,
            number("memory.usage_in_bytes")?,
            [stat("total_inactive_file"), stat("total_active_file")],
        ),
    };
    let droppable: u64 = files.into_iter().flatten().fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(droppable)))
}

/// The number after `name` in lines such as `name 123` or `name  123 kB`.
fn named_number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}
