//! A buffer within a budget, a refusal with its numbers, and the ledger.
use pagelock_memory::{Budget, ByteSize, Counted, HostBuffer, Limited, Pageable, Pooled, ledger};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::new("demo", ByteSize::mib(1));
    let host = Counted::new("demo", Pooled::new(Limited::new(Pageable, budget.clone())));
    let mut buffer = HostBuffer::allocate(&host, 1_000)?;
    buffer.bytes_mut()?.fill(7);
    let refusal = HostBuffer::allocate(&host, 2 << 20).expect_err("2 MiB do not fit into 1 MiB");
    println!("{} of {}; {refusal}", budget.used(), budget.limit());
    assert!(buffer.bytes().iter().all(|&byte| byte == 7) && ledger().live_bytes() >= 1_000);
    Ok(())
}
