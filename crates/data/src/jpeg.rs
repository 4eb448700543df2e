//! Decodes JPEG pictures straight into tensors with `libjpeg-turbo-rs`, which gives the same pixels as libjpeg-turbo.
//!
//! A picture that is truncated, even by one byte, is refused. A picture that claims more pixels than its bytes can
//! hold, or needs more memory than the limit, is refused before anything of that size is allocated. The decoder's
//! scratch memory is reserved in the host's budget. A panic of the decoder becomes an error.

use libjpeg_turbo_rs::{DecodeLimits, Decoder, PixelFormat};
use pagelock_memory::HeapReservation;
use pagelock_tensor::{Int, Tensor};

use crate::elements::try_build;
use crate::error::Problem;
use crate::panics::unpanicked;

/// The first bytes of every JPEG picture.
pub(crate) const START: [u8; 2] = [0xFF, 0xD8];
const END: [u8; 2] = [0xFF, 0xD9];
const START_OF_SCAN: u8 = 0xDA;
/// The most scans of a picture. Each takes the time of a whole picture, and may be a few bytes long; usual progressive
/// pictures have about ten.
const MAX_SCANS: usize = 100;
/// Huffman codes take at least one bit for a block of 8 × 8 pixels.
const MAX_PIXELS_PER_BYTE: u64 = 8 * 64;

/// A picture `[height, width, 3]`; else what is wrong with it. A picture with a side above `longest_side`, or that
/// takes more than `most_bytes` to decode, is refused.
pub(crate) fn decode(bytes: &[u8], longest_side: u32, most_bytes: u64) -> Result<Tensor<Int>, Problem> {
    let Some(has_huffman_codes) = check_whole(bytes) else {
        return Err("it is cut off: its end marker is missing; get it again".to_owned().into());
    };
    let side = longest_side as usize;
    let limits = DecodeLimits {
        max_width: side,
        max_height: side,
        max_scans: MAX_SCANS,
        max_memory: Some(most_bytes),
        ..DecodeLimits::default()
    };
    let decoder = unpanicked(|| {
        let mut decoder = Decoder::new_with_limits(bytes, limits).map_err(|error| error.to_string())?;
        decoder.set_output_format(PixelFormat::Rgb);
        decoder.set_stop_on_warning(true);
        decoder.output_buffer_size().map_err(|error| error.to_string())?;
        Ok(decoder)
    })?;
    let header = decoder.header();
    let [height, width] = [header.height, header.width].map(usize::from);
    if header.precision != 8 {
        return Err(format!("it has {} bits per color, but 8 are supported; convert it", header.precision).into());
    }
    if has_huffman_codes && (height * width) as u64 / MAX_PIXELS_PER_BYTE > bytes.len() as u64 {
        return Err(format!("it is cut off: {} bytes cannot hold its {width} x {height} pixels", bytes.len()).into());
    }
    let _room = HeapReservation::new(scratch_bytes(&decoder))?;
    try_build([height, width, 3], |out: &mut [u8]| decode_into(&decoder, out))
}

fn decode_into(decoder: &Decoder<'_>, out: &mut [u8]) -> Result<(), Problem> {
    let info = unpanicked(|| decoder.decode_image_into(out).map_err(|error| error.to_string()))?;
    match info.bytes_written == out.len() {
        true => Ok(()),
        false => Err(format!("it has {} bytes of pixels instead of {}", info.bytes_written, out.len()).into()),
    }
}

/// The most memory that the decoder takes beside its output: the planes of the components, as stored and at full
/// size, and the coefficients of progressive pictures.
fn scratch_bytes(decoder: &Decoder<'_>) -> u64 {
    const WIDEST_BLOCKS: u64 = 32; // pixels, at a subsampling of 4
    let header = decoder.header();
    let [height, width] = [header.height, header.width].map(|size| u64::from(size).next_multiple_of(WIDEST_BLOCKS));
    let of_one_pixel = if header.is_progressive { 5 } else { 2 };
    height * width * of_one_pixel * header.components.len() as u64
}

/// Whether the picture has Huffman codes; `None` if its end marker is missing. The decoder shows missing data as
/// gray.
fn check_whole(bytes: &[u8]) -> Option<bool> {
    let (mut at, mut has_huffman_codes) = (START.len(), false);
    loop {
        let (&[first, marker], rest) = bytes.get(at..)?.split_first_chunk()?;
        if (first, marker) == (0xFF, START_OF_SCAN) {
            return rest.windows(2).rposition(|mark| mark == END).map(|_| has_huffman_codes);
        }
        match (first, marker) {
            (0xFF, 0x01 | 0xD0..=0xD8) => at += 2,         // markers without a length
            (0xFF, 0x00 | 0xFF) | (0..0xFF, _) => at += 1, // fill bytes
            (0xFF, _) => {
                let (&len, _) = rest.split_first_chunk()?;
                at += 2 + usize::from(u16::from_be_bytes(len));
                has_huffman_codes |= matches!(marker, 0xC0..=0xC2);
            }
        }
    }
}
