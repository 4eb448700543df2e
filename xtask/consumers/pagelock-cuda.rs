//! An upload and a download, on a GPU or on a software device.
use pagelock_cuda::{Device, Pinned, Uninit, software::Config};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda(0).or_else(|missing| {
        println!("{missing}");
        Device::software(Config::default())
    })?;
    let stream = device.stream()?;
    let mut on_device = stream.zeros::<f32>(1_000)?;
    let sent = stream.upload(Pinned::from_slice(&device, &[1.5; 1_000])?, &mut on_device)?;
    let received = stream.download(&on_device, Uninit::new(&device, 1_000)?)?;
    assert_eq!(*received.wait()?, *sent.wait()?);
    println!("{device:?}: {:?}", device.pool_stats());
    Ok(())
}
