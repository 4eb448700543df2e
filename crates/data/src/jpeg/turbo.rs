//! JPEG pictures of all kinds, straight into tensors, by `libjpeg-turbo-rs`.

use libjpeg_turbo_rs::{DecodeLimits, Decoder, PixelFormat};
use pagelock_tensor::Tensor;

use crate::Result;

/// A picture `[height, width, 3]`; none for bytes that are no JPEG, that this decoder does not know, or that are damaged:
/// the decoder of `images` has the last word.
pub(super) fn decode(bytes: &[u8], longest_side: u32, most_bytes: u64) -> Result<Option<Tensor<u8>>> {
    let side = longest_side as usize;
    let limits =
        DecodeLimits { max_width: side, max_height: side, max_memory: Some(most_bytes), ..DecodeLimits::default() };
    let Ok(mut decoder) = Decoder::new_with_limits(bytes, limits) else { return Ok(None) };
    decoder.set_output_format(PixelFormat::Rgb);
    decoder.set_stop_on_warning(true);
    let header = decoder.header();
    let shape = [usize::from(header.height), usize::from(header.width), 3];
    if header.precision != 8 || !decoder.output_buffer_size().is_ok_and(|len| len == shape.iter().product::<usize>()) {
        return Ok(None);
    }
    let mut is_whole = false;
    let picture = Tensor::build(shape, |out: &mut [u8]| {
        is_whole = decoder.decode_image_into(out).is_ok_and(|info| info.bytes_written == out.len());
    })?;
    Ok(is_whole.then_some(picture))
}
