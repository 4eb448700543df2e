//! Staged copies through rings of many shapes. The default shape was chosen by these measurements.

use pagelock_cuda::{Device, Result, StagingConfig};
use pagelock_memory::ByteSize;

use crate::millis;

const BYTES: usize = 1 << 30;

/// Prints a line for each shape.
pub(crate) fn run(device: &Device) -> Result<()> {
    let stream = device.stream()?;
    let source = vec![7_u8; BYTES];
    let mut target = vec![1_u8; BYTES];
    let mut buffer = stream.zeros::<u8>(BYTES)?;
    let few = &source[..4_000_000];
    println!("threads  slot KiB  ring MiB      up GB/s    down GB/s    one 4 MB up us");
    for threads in [4, 6, 7, 8, 10, 12] {
        for slot in [1024, 2048, 4096, 8192] {
            let slot = ByteSize::kib(slot);
            device.set_staging(StagingConfig { ring: ByteSize::mib(64), slot, threads });
            let up = millis(5, || {
                stream.upload_from(&source, &mut buffer)?;
                stream.synchronize()
            })?;
            let down = millis(5, || stream.download_to(&buffer, &mut target))?;
            let one = millis(200, || {
                stream.upload_from(few, buffer.slice_mut(..few.len())?)?;
                stream.synchronize()
            })?;
            let rate = |millis: f64| BYTES as f64 / millis / 1e6;
            println!(
                "{threads:>7}  {:>8}  {:>8}  {:>11.1}  {:>11.1}  {:>16.1}",
                slot.0 >> 10,
                device.staged().0 >> 20,
                rate(up),
                rate(down),
                one * 1e3
            );
        }
    }
    Ok(())
}
