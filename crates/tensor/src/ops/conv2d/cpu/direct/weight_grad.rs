//! The derivative by the weight with vectors over output channels. Gradients are rearranged to `[pixel, lanes]`; for
//! each tap, such a vector is multiplied by a pixel of the image.

use std::ops::Range;

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use super::super::pass::Pass;
use super::super::{ConvDims, Gradient};
use super::products::{Products, run_len};
use super::source::{Part, Source};
use crate::element::Real;
use crate::inlined::{Slice, zip};
use crate::lanes::{FromPlanes, Lanes, ToPlanes};
use crate::scratch;

/// Numbers of source and gradient that are used together; they about fit in the first-level cache.
const BLOCK_LEN: usize = 12 << 10;

/// Target pixels per block.
const BLOCK_PIXELS: usize = 512;

/// The sizes of the sums, and the blocks in which they are added up.
pub(in super::super) struct WeightGrad<'a> {
    /// The convolution.
    pass: &'a Pass,
    layout: Source,
    /// Taps of the kernel per run; see `products.rs`.
    run_len: usize,
    kernel: [usize; 2],
    /// Whether the gradients themselves are added up, too, for the bias.
    with_bias: bool,
    lanes: usize,
    /// Images per block.
    pub(in super::super) images: usize,
}

impl<'a> WeightGrad<'a> {
    pub(in super::super) fn new<S: Simd, R: Lanes>(pass: &'a Pass, d: &ConvDims, with_bias: bool) -> Self {
        let (kernel, run_len) = (d.kernel, run_len(d.kernel[1], d.dilation[1]));
        let width = pass.columns.target_size;
        let layout = Source::new::<S, R>(pass, (BLOCK_PIXELS / width).max(1), BLOCK_LEN);
        let lanes = R::lanes::<S>();
        let image_len = layout.image_len + layout.block_rows * width * lanes;
        let images = if layout.has_all_rows() { (BLOCK_LEN / image_len).clamp(1, pass.batch.max(1)) } else { 1 };
        WeightGrad { pass, layout, run_len, kernel, with_bias, lanes, images }
    }

    /// Taps of one output channel.
    fn n_taps(&self) -> usize {
        self.pass.source_channels * self.kernel[0] * self.kernel[1]
    }

    /// Sums of one output channel: those of its taps, then that of its bias.
    fn n_sums(&self) -> usize {
        self.n_taps() + usize::from(self.with_bias)
    }

    /// Vectors of output channels per group.
    fn n_vectors(&self) -> usize {
        self.pass.target_channels.div_ceil(self.lanes)
    }

    /// Pixels of the gradient per block and image.
    fn block_pixels(&self) -> usize {
        self.layout.block_rows * self.pass.columns.target_size
    }

    /// The sums over some images, `[out_channels, taps]`, followed by `[out_channels]` if there is a bias.
    pub(in super::super) fn run<S: Simd, R: Real>(
        &self,
        simd: S,
        images: Range<usize>,
        (x, gradient): (&[R], Gradient<&[R]>),
        sums: &mut [R],
    ) -> Result<()> {
        let lanes = self.lanes;
        let vectors_len = self.pass.groups * self.n_vectors() * self.n_sums() * lanes;
        scratch::with(self.n_taps() / self.run_len, |runs: &mut [usize]| {
            self.find_runs(runs);
            scratch::with(self.layout.scratch_len::<R, S>(self.images), |block: &mut [R]| {
                scratch::with(self.images * self.block_pixels() * lanes + lanes * lanes, |gradients: &mut [R]| {
                    scratch::with(vectors_len + lanes * lanes, |vectors: &mut [R]| {
                        block.set_to(R::ZERO);
                        vectors.set_to(R::ZERO);
                        for part in self.parts(images) {
                            let source = self.layout.read(simd, x, part, block);
                            self.part(simd, part, (source, runs), gradient, (gradients, vectors));
                        }
                        self.write(simd, vectors, sums);
                        Ok(())
                    })
                })
            })
        })
    }

    /// The offset of each run from the entry of a target.
    fn find_runs(&self, runs: &mut [usize]) {
        let mut run = runs.iter_mut();
        for channel in 0..self.pass.source_channels {
            for y in self.pass.rows.taps(0) {
                for x in self.pass.columns.taps(0).step_by(self.run_len) {
                    let entry = channel * self.layout.plane_len + y.shift * self.layout.pitch + x.shift;
                    *run.next().expect("one per run") = entry;
                }
            }
        }
    }

    /// Blocks of images, rows and groups.
    fn parts(&self, images: Range<usize>) -> impl Iterator<Item = Part> {
        let (rows, groups) = (self.pass.rows.targets(0), self.pass.groups);
        images.clone().step_by(self.images).flat_map(move |image| {
            let n_images = self.images.min(images.end - image);
            (0..rows)
                .step_by(self.layout.block_rows)
                .flat_map(move |first_row| (0..groups).map(move |group| Part { image, n_images, group, first_row }))
        })
    }

    fn part<S: Simd, R: Real>(
        &self,
        simd: S,
        part: Part,
        (source, runs): (&[R], &[usize]),
        gradient: Gradient<&[R]>,
        (vectors, sums): (&mut [R], &mut [R]),
    ) {
        let WeightGrad { pass, layout, lanes, .. } = *self;
        let (width, plane) = (pass.columns.target_size, pass.target_plane());
        let n_rows = layout.block_rows.min(pass.rows.target_size - part.first_row);
        let image_len = self.block_pixels() * lanes;
        for vector in 0..self.n_vectors() {
            for image in 0..part.n_images {
                let channel = ((part.image + image) * pass.groups + part.group) * pass.target_channels + vector * lanes;
                let first = channel * plane + part.first_row * width;
                simd.vectorize(FromPlanes {
                    planes: &gradient.numbers[first..],
                    positive: gradient.positive.map(|positive| &positive[first..]),
                    distance: plane,
                    n_planes: lanes.min(pass.target_channels - vector * lanes),
                    len: n_rows * width,
                    vectors: &mut vectors[image * image_len..],
                });
            }
            let sums = &mut sums[(part.group * self.n_vectors() + vector) * self.n_sums() * lanes..];
            let (sums, bias) = sums.split_at_mut(self.n_taps() * lanes);
            if self.with_bias {
                for image in vectors.chunks(image_len).take(part.n_images) {
                    simd.vectorize(Total { vectors: &image[..n_rows * width * lanes], sum: &mut bias[..lanes] });
                }
            }
            let products = Products {
                source,
                runs,
                run_len: self.run_len,
                gradient: vectors,
                targets: [(part.n_images, layout.image_len), (n_rows, layout.row_len()), (width, pass.columns.advance)],
                image_len,
                sums,
            };
            products.run(simd);
        }
    }

    /// Writes vectors of output channels as rows of weights, and a row of biases.
    fn write<S: Simd, R: Real>(&self, simd: S, vectors: &[R], sums: &mut [R]) {
        let (lanes, n_taps, channels) = (self.lanes, self.n_taps(), self.pass.target_channels);
        let (sums, biases) = sums.split_at_mut(self.pass.groups * channels * n_taps);
        for group in 0..self.pass.groups {
            for vector in 0..self.n_vectors() {
                let first = group * channels + vector * lanes;
                let n_planes = lanes.min(channels - vector * lanes);
                let vectors = &vectors[(group * self.n_vectors() + vector) * self.n_sums() * lanes..];
                simd.vectorize(ToPlanes {
                    planes: &mut sums[first * n_taps..],
                    distance: n_taps,
                    n_planes,
                    len: n_taps,
                    vectors,
                    relu: false,
                });
                if self.with_bias {
                    biases[first..][..n_planes].copy_from(&vectors[n_taps * lanes..][..n_planes]);
                }
            }
        }
    }
}

/// Adds vectors to a sum. Eight independent partial sums hide the latency of additions.
struct Total<'a, R> {
    vectors: &'a [R],
    sum: &'a mut [R],
}

impl<R: Lanes> WithSimd for Total<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let to = &mut R::vectors_mut::<S>(self.sum)[0];
        let (eights, rest) = R::vectors::<S>(self.vectors).as_chunks::<8>();
        let mut sums = [R::splat(simd, R::zeroed()); 8];
        for eight in eights {
            for (sum, &vector) in zip(&mut sums[..], eight) {
                *sum = <R as Lanes>::add(simd, *sum, vector);
            }
        }
        for &vector in sums.iter().chain(rest) {
            *to = <R as Lanes>::add(simd, *to, vector);
        }
    }
}
