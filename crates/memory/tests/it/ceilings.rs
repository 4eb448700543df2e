//! Default ceilings, from made-up machines: folders with the `/proc` and `/sys` files that matter.

use std::fs;

use pagelock_memory::{ByteSize, Ceiling};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Machine(TempDir);

impl Machine {
    /// A machine with that much MemAvailable, whose process is in the cgroups of these lines.
    fn new(available: u64, memberships: &str) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        let meminfo = format!("MemTotal: 99999999 kB\nMemAvailable:   {} kB\nBuffers: 1 kB\n", available / 1024);
        machine.file("proc/meminfo", &meminfo).file("proc/self/cgroup", memberships)
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds a cgroup of version 2: limits as text, the rest in bytes.
    fn group(self, folder: &str, max: &str, high: &str, current: u64, file: u64) -> Self {
        let stat = format!("anon 5\nfile 999999999999\ninactive_file {}\nactive_file {}\n", file / 2, file - file / 2);
        self.file(&format!("{folder}/memory.max"), max)
            .file(&format!("{folder}/memory.high"), high)
            .file(&format!("{folder}/memory.current"), &format!("{current}\n"))
            .file(&format!("{folder}/memory.stat"), &stat)
    }

    fn page_locked(&self) -> String {
        Ceiling::page_locked(self.0.path()).to_string()
    }

    fn host(&self) -> String {
        Ceiling::host(self.0.path()).to_string()
    }
}

#[test]
fn a_quarter_of_what_is_available_may_be_page_locked() {
    let machine = Machine::new(8 * GIB, "0::/\n");
    assert_eq!(machine.page_locked(), "2 GiB: a quarter of the 8 GiB left (MemAvailable)");
    assert_eq!(machine.host(), "7.2 GiB: nine tenths of the 8 GiB left (MemAvailable)");
}

#[test]
fn a_large_machine_page_locks_four_gibibytes() {
    let machine = Machine::new(500 * GIB, "");
    assert_eq!(machine.page_locked(), "4 GiB: the default maximum, with 500 GiB left (MemAvailable)");
}

#[test]
fn a_full_machine_still_gets_the_minimum() {
    let machine = Machine::new(40 * MIB, "");
    assert_eq!(machine.page_locked(), "64 MiB: the default minimum, with 40 MiB left (MemAvailable)");
    assert_eq!(machine.host(), "64 MiB: the default minimum, with 40 MiB left (MemAvailable)");
}

#[test]
fn a_machine_that_says_nothing_gets_the_minimum_page_locked_and_no_host_limit() {
    let nothing = tempfile::tempdir().unwrap();
    let ceiling = Ceiling::page_locked(nothing.path());
    assert_eq!(ceiling.to_string(), "64 MiB: the default minimum, since it is unknown how much memory is left");
    assert_eq!(Ceiling::host(nothing.path()).bytes, ByteSize::MAX);
}

#[test]
fn file_pages_of_a_group_count_as_left() {
    let machine =
        Machine::new(100 * GIB, "0::/app\n").group("sys/fs/cgroup/app", "8589934592\n", "max\n", 7 * GIB, 3 * GIB);
    assert_eq!(machine.page_locked(), "1 GiB: a quarter of the 4 GiB left (cgroup /sys/fs/cgroup/app)");
}

#[test]
fn the_high_mark_bounds_before_the_maximum() {
    let machine =
        Machine::new(100 * GIB, "0::/app\n").group("sys/fs/cgroup/app", "8589934592\n", "4294967296\n", 2 * GIB, 0);
    assert_eq!(machine.page_locked(), "512 MiB: a quarter of the 2 GiB left (cgroup /sys/fs/cgroup/app)");
}

#[test]
fn the_tightest_ancestor_decides() {
    let machine = Machine::new(100 * GIB, "0::/pods/pod1/app\n")
        .group("sys/fs/cgroup/pods/pod1/app", "max\n", "max\n", GIB, 0)
        .group("sys/fs/cgroup/pods/pod1", "17179869184\n", "max\n", GIB, 0)
        .group("sys/fs/cgroup/pods", "4294967296\n", "max\n", 2 * GIB, 0);
    assert_eq!(machine.page_locked(), "512 MiB: a quarter of the 2 GiB left (cgroup /sys/fs/cgroup/pods)");
}

#[test]
fn a_container_that_sees_only_its_own_group_is_bound_by_the_mount() {
    for path in ["/docker/0123abcd", "/", "/../../system.slice/app"] {
        let machine =
            Machine::new(100 * GIB, &format!("0::{path}\n")).group("sys/fs/cgroup", "1073741824\n", "max\n", 0, 0);
        assert_eq!(machine.page_locked(), "256 MiB: a quarter of the 1 GiB left (cgroup /sys/fs/cgroup)");
    }
}

#[test]
fn a_group_over_its_limit_has_nothing_left() {
    let machine = Machine::new(100 * GIB, "0::/app\n").group("sys/fs/cgroup/app", "1000\n", "max\n", 5_000, 0);
    assert_eq!(machine.page_locked(), "64 MiB: the default minimum, with 0 B left (cgroup /sys/fs/cgroup/app)");
}

#[test]
fn version_one_groups_bound_too() {
    let machine = Machine::new(100 * GIB, "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n")
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "999\n")
        .file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n")
        .file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1610612736\n")
        .file(
            "sys/fs/cgroup/memory/job/memory.stat",
            "cache 9\ntotal_inactive_file 268435456\ntotal_active_file 268435456\n",
        );
    assert_eq!(machine.page_locked(), "256 MiB: a quarter of the 1 GiB left (cgroup /sys/fs/cgroup/memory/job)");
}

#[test]
fn garbled_files_bound_nothing() {
    let machine = Machine::new(8 * GIB, "nonsense\n0::/app\n1:memory\n:::\n")
        .file("sys/fs/cgroup/app/memory.max", "lots\n")
        .file("sys/fs/cgroup/app/memory.current", "\n")
        .file("sys/fs/cgroup/app/memory.stat", "inactive_file\n\nactive_file x\n");
    assert_eq!(machine.page_locked(), "2 GiB: a quarter of the 8 GiB left (MemAvailable)");
}
