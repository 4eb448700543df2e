use pagelock_cuda::{Device, Pinned, Result};

fn main() -> Result<()> {
    let device = Device::cuda(0)?;
    let stream = device.stream()?;
    let mut on_device = stream.allocate::<f32>(3)?;

    let mut source = Pinned::from_slice(&device, &[1.0, 2.0, 3.0])?;
    let copy = stream.upload(source, &mut on_device)?;
    source[0] = 4.0; // the copy may be reading it
    copy.wait()?;
    Ok(())
}
