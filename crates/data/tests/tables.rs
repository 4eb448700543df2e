//! How much memory the table of a CSV file takes. There is only one test, since it measures the whole process.

mod resident;

use std::io::Write;

use pagelock_data::{CsvTable, Error};
use pagelock_memory::{ByteSize, host_budget};

use resident::resident;

#[test]
fn the_memory_of_a_table_is_counted_and_bounded_and_a_table_beyond_the_budget_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    file.write_all(b"a,b\n").unwrap();
    (0..1_000_000).for_each(|_| file.write_all(b"1,2\n").unwrap());
    file.flush().unwrap();
    drop(file);
    let len = std::fs::metadata(&path).unwrap().len();

    let (before, peak) = (host_budget().used().0, resident("VmHWM:"));
    let table = CsvTable::open(&path).unwrap();
    assert_eq!(table.n_rows(), 1_000_000);
    let (counted, taken) = (host_budget().used().0 - before, (resident("VmHWM:") - peak) as u64);
    assert!(counted >= len, "{counted} bytes are counted for a file of {len}");
    assert!(taken < 2 * len + (4 << 20), "{taken} bytes in RAM for a file of {len}");
    drop(table);

    // A header of many columns, and no rows.
    std::fs::write(&path, b",".repeat(4_000_000)).unwrap();
    let limit = host_budget().limit();
    host_budget().set_limit(ByteSize(host_budget().used().0 + (8 << 20)));
    let refused = CsvTable::open(&path).map(|table| table.names().len());
    host_budget().set_limit(limit);
    assert!(matches!(refused, Err(Error::Memory(_))), "{refused:?}");
}
