use pagelock_cuda::{Device, Result, Uninit};

fn main() -> Result<()> {
    let device = Device::cuda(0)?;
    let stream = device.stream()?;
    let on_device = stream.allocate_from(&[1.0_f32, 2.0, 3.0])?;

    let copy = stream.download(&on_device, Uninit::new(&device, 3)?)?;
    println!("{}", copy[0]); // the copy may not have written it
    copy.wait()?;
    Ok(())
}
