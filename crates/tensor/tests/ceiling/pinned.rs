//! Page-locked memory counts against the limit like any other, and what its pool keeps can be used for other tensors.

use pagelock_cuda::{Pinned, software::Config};
use pagelock_tensor::{Device, Result, Tensor, TensorMap};

use super::{Body, LIMIT, MIB, is_refusal};

pub(super) const CASES: &[Body] = &[
    ("pinned tensors", pinned_tensors),
    ("pinned maps", pinned_maps),
    ("pinned memory", pinned_memory),
    ("pinned memory that is gone", pinned_memory_that_is_gone),
    ("ordinary memory that is gone", ordinary_memory_that_is_gone),
    ("uploads and downloads", uploads_and_downloads),
];

fn software() -> (pagelock_cuda::Device, Device) {
    let device = pagelock_cuda::Device::software(Config::default()).unwrap();
    let tensors = Device::try_from(&device).unwrap();
    (device, tensors)
}

/// Makes page-locked copies of 1 MiB until one is refused.
fn pinned_until_refused(device: &Device) -> Result<Vec<Tensor>> {
    let x = Tensor::ones([MIB / 4])?;
    let mut all = Vec::new();
    loop {
        match x.pin_memory_for(device) {
            Ok(pinned) => all.push(pinned),
            Err(error) => {
                assert!(is_refusal(&error), "{error}");
                return Ok(all);
            }
        }
        assert!(all.len() * MIB <= LIMIT, "{} MiB were not refused", all.len());
    }
}

fn pinned_tensors() -> Result<()> {
    let (_, device) = software();
    let all = pinned_until_refused(&device)?;
    assert!(all.len() * MIB > LIMIT / 2, "only {} MiB", all.len());
    Ok(())
}

fn pinned_maps() -> Result<()> {
    let (_, device) = software();
    let mut map = TensorMap::new(())?;
    map.set("x", Tensor::ones([MIB / 4])?)?;
    map.set("y", Tensor::ones([MIB / 4])?)?;
    let mut all = Vec::new();
    let refusal = loop {
        match map.pin_memory_for(&device) {
            Ok(pinned) => all.push(pinned),
            Err(refusal) => break refusal,
        }
        assert!(all.len() * 2 * MIB <= LIMIT, "{} MiB were not refused", all.len() * 2);
    };
    assert!(is_refusal(&refusal), "{refusal}");
    Ok(())
}

fn pinned_memory() -> Result<()> {
    let (device, _) = software();
    let mut all = Vec::new();
    let refusal = loop {
        match Pinned::<u8>::zeroed(&device, MIB) {
            Ok(pinned) => all.push(pinned),
            Err(refusal) => break refusal.to_string(),
        }
        assert!(all.len() * MIB <= LIMIT, "{} MiB were not refused", all.len());
    };
    assert!(refusal.contains(": budget `host` has "), "{refusal}");
    Ok(())
}

/// Ordinary tensors get the memory that the pool of page-locked memory keeps, every time.
fn pinned_memory_that_is_gone() -> Result<()> {
    let (_, device) = software();
    for _ in 0..3 {
        drop(pinned_until_refused(&device)?);
        Tensor::ones([LIMIT * 3 / 4 / size_of::<f32>()])?;
    }
    Ok(())
}

/// Page-locked tensors get the memory that the pool of ordinary memory keeps.
fn ordinary_memory_that_is_gone() -> Result<()> {
    let (_, device) = software();
    for _ in 0..3 {
        for n in 1..30 {
            Tensor::ones([n * MIB / 4])?;
        }
        let all = pinned_until_refused(&device)?;
        assert!(all.len() * MIB > LIMIT / 2, "only {} MiB", all.len());
    }
    Ok(())
}

/// The staging buffers of copies are freed when tensors need their memory.
fn uploads_and_downloads() -> Result<()> {
    let (device, there) = software();
    for n in [4, 1 << 10, MIB, 4 * MIB] {
        // few bytes, since the memory of the software device is this process's
        let x = Tensor::ones([n / 4])?;
        let sent = x.to(&there)?;
        assert_eq!(sent.to(&Device::Cpu)?.len(), n / 4);
    }
    device.synchronize().unwrap();
    Tensor::ones([LIMIT * 7 / 8 / size_of::<f32>()]).map(drop)
}
