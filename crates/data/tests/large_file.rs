//! A training pass over a file that is larger than what the loader may have in memory. The test is alone in its file,
//! because it measures the memory of the whole process.
//! `cargo bench -p pagelock-data --bench large_file -- --gib 100` does the same with a larger file.

#[path = "../benches/large_file/pass.rs"]
mod pass;

use pagelock_memory::ByteSize;

#[test]
fn a_pass_over_a_large_file_keeps_resident_memory_flat() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    pass::make(&path, ByteSize::mib(512)).unwrap();

    let report = pass::run(&path).unwrap();

    assert_eq!(report.n_rows, 2_048);
    assert!((report.weights[0] - report.weights[1]).abs() < 0.1, "it learned {}", report.weights[0]);
    // When the loader first uses its whole budget differs from run to run, so only the sum has a bound.
    let [at_first, later] = [report.at_first, report.later].map(ByteSize);
    assert!(at_first.0 + later.0 <= pass::AHEAD.0 + (96 << 20), "{at_first} at first, {later} more later");
    assert!(report.time.as_nanos() > 0);
}
