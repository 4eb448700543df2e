//! Filling device memory with one value.

use crate::{
    buffer::DeviceViewMut,
    device_copy::DeviceCopy,
    driver::{self, Address, Driver, Pattern, StreamHandle},
    error::Result,
    stream::Stream,
};

impl Stream {
    /// Sets every element of `target` to `value`.
    ///
    /// # Errors
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let mut points = stream.allocate::<[f64; 3]>(100)?;
    /// stream.fill(&mut points, [1.0, 2.0, 3.0])?;
    /// assert_eq!(stream.read(&points)?[99], [1.0, 2.0, 3.0]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn fill<'a, T: DeviceCopy>(&self, target: impl Into<DeviceViewMut<'a, T>>, value: T) -> Result<()> {
        let target = target.into();
        target.check_same_device(self.core())?;
        if target.is_empty() {
            return Ok(());
        }
        let (to, count) = (target.address(), target.len());
        let queued = self.core().enqueue_on_device(&[target.access()], |driver, stream| {
            // SAFETY: the range is that of the target, which `enqueue` orders.
            unsafe { fill(driver, stream, to, bytemuck::bytes_of(&value), count) }
        });
        Ok(queued?)
    }
}

/// Writes `value` to `to`, `count` times in a row.
///
/// # Safety
/// As [`Driver::fill`].
unsafe fn fill(
    driver: &dyn Driver,
    stream: StreamHandle,
    to: Address,
    value: &[u8],
    count: usize,
) -> driver::Result<()> {
    if let Some((pattern, len)) = shortest_pattern(value) {
        let times = count * value.len() / len;
        // SAFETY: the caller's range.
        return unsafe { driver.fill(stream, to, pattern, times) };
    }
    for (i, &byte) in value.iter().enumerate() {
        // SAFETY: the first element of the caller's range.
        unsafe { driver.fill(stream, to.offset(i), Pattern::One(byte), 1) }?;
    }
    let mut filled = 1;
    while filled < count {
        let more = filled.min(count - filled);
        let (len_bytes, next) = (more * value.len(), to.offset(filled * value.len()));
        // SAFETY: both inside the caller's range; the parts do not overlap.
        unsafe { driver.copy_on_device(stream, next, to, len_bytes) }?;
        filled += more;
    }
    Ok(())
}

/// The shortest pattern whose repetition is `value`, if the driver supports one, and its length in bytes.
fn shortest_pattern(value: &[u8]) -> Option<(Pattern, usize)> {
    let repeats =
        |period: usize| value.len().is_multiple_of(period) && value.chunks(period).all(|c| c == &value[..period]);
    match value {
        [one, ..] if repeats(1) => Some((Pattern::One(*one), 1)),
        [a, b, ..] if repeats(2) => Some((Pattern::Two(u16::from_ne_bytes([*a, *b])), 2)),
        [a, b, c, d, ..] if repeats(4) => Some((Pattern::Four(u32::from_ne_bytes([*a, *b, *c, *d])), 4)),
        _ => None,
    }
}
