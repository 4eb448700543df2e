//! Pictures: PNG in several color types, JPEG in several chroma subsamplings.

use anyhow::Result;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};

fn pixels(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 50 * 13) as u8).collect()
}

pub(super) fn png() -> Result<Vec<Vec<u8>>> {
    let mut pictures = Vec::new();
    for color in [
        ExtendedColorType::L8,
        ExtendedColorType::La8,
        ExtendedColorType::Rgb8,
        ExtendedColorType::Rgba8,
        ExtendedColorType::L16,
        ExtendedColorType::Rgba16,
    ] {
        for (width, height) in [(1, 1), (7, 5), (33, 9)] {
            let mut picture = Vec::new();
            let n_bytes = width * height * usize::from(color.bits_per_pixel()) / 8;
            PngEncoder::new(&mut picture).write_image(&pixels(n_bytes), width as u32, height as u32, color)?;
            pictures.push(picture);
        }
    }
    Ok(pictures)
}

/// Updates the checksums of all chunks.
pub(super) fn mend_png(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(len) = bytes.get(at..at + 4) {
        let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let Some(chunk) = bytes.get(at + 4..).and_then(|rest| rest.get(..len.checked_add(4)?)) else { return };
        let crc = crc32fast::hash(chunk).to_be_bytes();
        let Some(place) = bytes.get_mut(at + 8 + len..at + 12 + len) else { return };
        place.copy_from_slice(&crc);
        at += 12 + len;
    }
}

pub(super) fn jpeg() -> Result<Vec<Vec<u8>>> {
    let samplings = [
        Subsampling::S420,
        Subsampling::S422,
        Subsampling::S444,
        Subsampling::S440,
        Subsampling::S411,
        Subsampling::S410,
    ];
    let mut pictures = Vec::new();
    for (width, height) in [(8, 8), (33, 17), (5, 40)] {
        let pixels = pixels(3 * width * height);
        let encoder = || Encoder::new(&pixels, width, height, PixelFormat::Rgb).quality(50);
        for sampling in samplings {
            pictures.push(encoder().subsampling(sampling).encode()?);
            pictures.push(encoder().subsampling(sampling).progressive(true).encode()?);
        }
        pictures.push(encoder().restart_blocks(2).optimize_huffman(true).encode()?);
        pictures.push(encoder().grayscale_from_color(true).encode()?);
        pictures.push(encoder().arithmetic(true).encode()?);
    }
    Ok(pictures)
}
