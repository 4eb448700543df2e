//! The inverse cosine transform of blocks, in whole numbers, with the rounding of libjpeg's `islow`: eight columns beside each
//! other, then eight rows.

/// Eight whole numbers at once.
pub(super) trait Vectors: Copy {
    type Lanes: Copy;
    fn load(self, numbers: [i16; 8]) -> Self::Lanes;
    fn splat(self, number: i32) -> Self::Lanes;
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn shift<const BITS: i32>(self, a: Self::Lanes) -> Self::Lanes;
    fn transpose(self, rows: [Self::Lanes; 8]) -> [Self::Lanes; 8];
    /// Samples around 0 as bytes around 128.
    fn bytes(self, rows: [Self::Lanes; 8]) -> [[u8; 8]; 8];
}

/// Writes the samples of a block, given by rows, to `out`, whose rows are `stride` apart.
#[inline(always)]
pub(super) fn inverse<V: Vectors>(v: V, block: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut rows = [v.splat(0); 8];
    for (row, numbers) in rows.iter_mut().zip(block.as_chunks().0) {
        *row = v.load(*numbers);
    }
    let columns = v.transpose(pass::<V, 11>(v, rows));
    let bytes = v.bytes(v.transpose(pass::<V, 18>(v, columns)));
    for (out, bytes) in out.chunks_mut(stride).zip(bytes) {
        out[..8].copy_from_slice(&bytes);
    }
}

/// The same where only the first coefficient is not zero.
#[inline(always)]
pub(super) fn flat(first: i16, out: &mut [u8], stride: usize) {
    let sample = (((i32::from(first) + 4) >> 3) + 128).clamp(0, 255) as u8;
    for out in out.chunks_mut(stride).take(8) {
        out[..8].fill(sample);
    }
}

/// Eight frequencies to eight samples, in each lane. The factors are cosines times 2^13; results are shifted by `BITS`.
#[inline(always)]
fn pass<V: Vectors, const BITS: i32>(v: V, f: [V::Lanes; 8]) -> [V::Lanes; 8] {
    let add = |a, b| v.add(a, b);
    let sub = |a, b| v.sub(a, b);
    let times = |a, factor| v.mul(a, v.splat(factor));

    let turned = times(add(f[2], f[6]), 4433);
    let (a, b) = (add(turned, times(f[6], -15137)), add(turned, times(f[2], 6270)));
    let half = v.splat(1 << (BITS - 1));
    let (c, d) = (add(times(add(f[0], f[4]), 1 << 13), half), add(times(sub(f[0], f[4]), 1 << 13), half));
    let even = [add(c, b), add(d, a), sub(d, a), sub(c, b)];

    let (near, far) = (add(f[7], f[3]), add(f[5], f[1]));
    let turned = times(add(near, far), 9633);
    let (a, b) = (times(add(f[7], f[1]), -7373), times(add(f[5], f[3]), -20995));
    let (c, d) = (add(times(near, -16069), turned), add(times(far, -3196), turned));
    let odd = [
        add(times(f[1], 12299), add(a, d)),
        add(times(f[3], 25172), add(b, c)),
        add(times(f[5], 16819), add(b, d)),
        add(times(f[7], 2446), add(a, c)),
    ];
    let mut samples = f;
    for i in 0..4 {
        samples[i] = v.shift::<BITS>(add(even[i], odd[i]));
        samples[7 - i] = v.shift::<BITS>(sub(even[i], odd[i]));
    }
    samples
}

/// Any processor.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Vectors for Portable {
    type Lanes = [i32; 8];

    fn load(self, numbers: [i16; 8]) -> [i32; 8] {
        numbers.map(i32::from)
    }

    fn splat(self, number: i32) -> [i32; 8] {
        [number; 8]
    }

    fn add(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    fn sub(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    fn mul(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i].wrapping_mul(b[i]))
    }

    fn shift<const BITS: i32>(self, a: [i32; 8]) -> [i32; 8] {
        a.map(|number| number >> BITS)
    }

    fn transpose(self, rows: [[i32; 8]; 8]) -> [[i32; 8]; 8] {
        std::array::from_fn(|i| rows.map(|row| row[i]))
    }

    fn bytes(self, rows: [[i32; 8]; 8]) -> [[u8; 8]; 8] {
        rows.map(|row| row.map(|sample| sample.saturating_add(128).clamp(0, 255) as u8))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::__m256i;

    use pulp::cast;
    use pulp::x86::V3;

    impl super::Vectors for V3 {
        type Lanes = __m256i;

        #[inline(always)]
        fn load(self, numbers: [i16; 8]) -> __m256i {
            self.avx2._mm256_cvtepi16_epi32(cast(numbers))
        }

        #[inline(always)]
        fn splat(self, number: i32) -> __m256i {
            self.avx._mm256_set1_epi32(number)
        }

        #[inline(always)]
        fn add(self, a: __m256i, b: __m256i) -> __m256i {
            self.avx2._mm256_add_epi32(a, b)
        }

        #[inline(always)]
        fn sub(self, a: __m256i, b: __m256i) -> __m256i {
            self.avx2._mm256_sub_epi32(a, b)
        }

        #[inline(always)]
        fn mul(self, a: __m256i, b: __m256i) -> __m256i {
            self.avx2._mm256_mullo_epi32(a, b)
        }

        #[inline(always)]
        fn shift<const BITS: i32>(self, a: __m256i) -> __m256i {
            self.avx2._mm256_srai_epi32::<BITS>(a)
        }

        /// Pairs, then fours, then halves.
        #[inline(always)]
        fn transpose(self, r: [__m256i; 8]) -> [__m256i; 8] {
            let v = self.avx2;
            let low = |i: usize| v._mm256_unpacklo_epi32(r[i], r[i + 1]);
            let high = |i: usize| v._mm256_unpackhi_epi32(r[i], r[i + 1]);
            let four = |a, b| (v._mm256_unpacklo_epi64(a, b), v._mm256_unpackhi_epi64(a, b));
            let ((a0, a1), (a2, a3)) = (four(low(0), low(2)), four(high(0), high(2)));
            let ((b0, b1), (b2, b3)) = (four(low(4), low(6)), four(high(4), high(6)));
            let first = |a, b| v._mm256_permute2x128_si256::<0x20>(a, b);
            let second = |a, b| v._mm256_permute2x128_si256::<0x31>(a, b);
            [
                first(a0, b0),
                first(a1, b1),
                first(a2, b2),
                first(a3, b3),
                second(a0, b0),
                second(a1, b1),
                second(a2, b2),
                second(a3, b3),
            ]
        }

        #[inline(always)]
        fn bytes(self, rows: [__m256i; 8]) -> [[u8; 8]; 8] {
            let v = self.avx2;
            let two = |i: usize| v._mm256_adds_epi16(v._mm256_packs_epi32(rows[i], rows[i + 1]), cast([128_i16; 16]));
            let four = |i: usize| {
                let halves = v._mm256_packus_epi16(two(i), two(i + 2)); // the left halves of the rows, then the right ones
                v._mm256_permutevar8x32_epi32(halves, cast([0_i32, 4, 1, 5, 2, 6, 3, 7]))
            };
            let bytes: [u8; 64] = cast([four(0), four(4)]);
            cast(bytes)
        }
    }
}
