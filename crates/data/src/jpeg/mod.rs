//! JPEG pictures, straight into tensors: what `images.rs` uses for them with the feature `fast-jpeg`.
//!
//! The most frequent kind is decoded here: eight bits, luma and chroma, one pass over the data ("baseline"). `header.rs` reads
//! what a file says of itself, `huffman.rs` its numbers, `cosine.rs` makes samples of them, `color.rs` colors; `baseline.rs` has
//! the whole. Everything else is left to a crate, in `turbo.rs`. Both give the pixels that libjpeg-turbo gives.

mod baseline;
mod color;
mod cosine;
mod header;
mod huffman;
mod turbo;

use pagelock_tensor::Tensor;

use crate::Result;

/// A picture `[height, width, 3]`; none for bytes that are no JPEG, or one that is damaged: the decoder of `images` has the last
/// word. A picture with a longer side, or that wants more memory, is none too.
pub(crate) fn decode(bytes: &[u8], longest_side: u32, most_bytes: u64) -> Result<Option<Tensor<u8>>> {
    match baseline::decode(bytes, longest_side, most_bytes)? {
        Some(picture) => Ok(Some(picture)),
        None => turbo::decode(bytes, longest_side, most_bytes),
    }
}

#[cfg(test)]
mod tests {
    use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};
    use proptest::prelude::*;

    use super::*;

    /// A picture with something of everything: slopes, edges, and noise.
    fn pixels(height: usize, width: usize, noise: u8) -> Vec<u8> {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let pixel = |i: usize| [3 * (i % width), 2 * (i / width), (i / 50) * 90].map(|value| value as u8);
        (0..height * width).flat_map(pixel).map(|value| value.wrapping_add(random() & noise)).collect()
    }

    fn samplings() -> impl Strategy<Value = Subsampling> {
        prop::sample::select(vec![Subsampling::S420, Subsampling::S422, Subsampling::S444])
    }

    fn values(picture: Option<Tensor<u8>>) -> Option<(Vec<usize>, Vec<u8>)> {
        picture.map(|picture| (picture.dims().to_vec(), picture.to_vec().unwrap()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn a_baseline_picture_has_the_pixels_of_libjpeg_turbo(
            (height, width) in (1_usize..70, 5_usize..70), sampling in samplings(), quality in 1_u8..=100,
            noise in prop::sample::select(vec![0, 15, 255]), restart in 0_u16..5, optimize: bool,
        ) {
            let pixels = pixels(height, width, noise);
            let encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb).subsampling(sampling).quality(quality);
            let bytes = encoder.force_baseline(true).restart_blocks(restart).optimize_huffman(optimize).encode().unwrap();

            let ours = values(baseline::decode(&bytes, 100, 1 << 20).unwrap());

            prop_assert!(ours.is_some());
            prop_assert_eq!(ours, values(turbo::decode(&bytes, 100, 1 << 20).unwrap()));
        }

        #[test]
        fn a_damaged_baseline_picture_is_none_or_has_the_size_that_it_says(
            damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(),
            sampling in samplings(), restart in 0_u16..3, is_cut: bool,
        ) {
            let pixels = pixels(40, 40, 15);
            let encoder = Encoder::new(&pixels, 40, 40, PixelFormat::Rgb).subsampling(sampling).restart_blocks(restart);
            let mut bytes = encoder.encode().unwrap();
            for (at, value) in damages {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if is_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Some((dims, values)) = values(baseline::decode(&bytes, 100, 1 << 20).unwrap()) {
                prop_assert_eq!((dims[2], dims.iter().product::<usize>()), (3, values.len()));
            }
        }
    }

    #[test]
    fn a_baseline_picture_whose_data_ends_early_is_none() {
        let pixels = pixels(64, 64, 255);
        let whole = Encoder::new(&pixels, 64, 64, PixelFormat::Rgb).encode().unwrap();
        let n = whole.len();
        let cut = [&whole[..n / 2], &[0xFF, 0xD9]].concat();
        assert!(baseline::decode(&whole, 100, 1 << 20).unwrap().is_some());
        assert!(baseline::decode(&cut, 100, 1 << 20).unwrap().is_none());
        assert!(baseline::decode(&whole[..n - 2], 100, 1 << 20).unwrap().is_none());
    }

    #[test]
    fn a_picture_beyond_the_limits_is_none() {
        let bytes = Encoder::new(&pixels(64, 64, 0), 64, 64, PixelFormat::Rgb).encode().unwrap();
        assert!(decode(&bytes, 63, 1 << 20).unwrap().is_none());
        assert!(baseline::decode(&bytes, 64, 12_288).unwrap().is_none());
        assert!(decode(&bytes, 64, 1 << 20).unwrap().is_some());
    }

    #[test]
    fn other_kinds_are_left_to_the_other_decoder() {
        let pixels = pixels(33, 47, 15);
        let encoder = || Encoder::new(&pixels, 47, 33, PixelFormat::Rgb);
        let narrow = Encoder::new(&pixels[..3 * 4 * 9], 4, 9, PixelFormat::Rgb).subsampling(Subsampling::S420);
        let kinds = [
            encoder().progressive(true),
            encoder().subsampling(Subsampling::S440),
            encoder().grayscale_from_color(true),
            narrow,
        ];
        for kind in kinds {
            let bytes = kind.encode().unwrap();
            assert!(baseline::decode(&bytes, 100, 1 << 20).unwrap().is_none());
            assert!(decode(&bytes, 100, 1 << 20).unwrap().is_some());
        }
    }

    #[test]
    fn the_vectors_of_this_processor_compute_what_any_processor_does() {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = pulp::x86::V3::try_new() {
            let noise = pixels(8, 8 * 100, 255);
            for numbers in noise.chunks_exact(64) {
                let mut block = [0; 64];
                block.iter_mut().zip(numbers).for_each(|(value, &byte)| *value = 9 * (i16::from(byte) - 128));
                let (mut theirs, mut any) = ([0; 64], [0; 64]);
                cosine::inverse(vectors, &block, &mut theirs, 8);
                cosine::inverse(cosine::Portable, &block, &mut any, 8);
                assert_eq!(theirs, any);
            }
        }
    }
}
