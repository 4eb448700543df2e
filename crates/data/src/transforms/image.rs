//! [`Planes`]: the sizes of a picture. [`Pixel`]: the types of elements with which transforms compute. [`moved`]: a
//! picture made of the rows and columns of another.

use pagelock_memory::HeapReservation;
use pagelock_tensor::{AnyTensor, DType, Element, Shape, Tensor};

use super::{wrong, wrong_shape};
use crate::Result;
use crate::elements::{for_each_pair, listed, with_element};

/// The sizes of `[channels, height, width]`.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Planes {
    pub(super) fn of(op: &'static str, shape: &Shape) -> Result<Self> {
        match **shape {
            [channels, height, width] => Ok(Self { channels, height, width }),
            _ => Err(wrong_shape(op, shape, "it must be [channels, height, width]")),
        }
    }

    /// How many pixels a channel has.
    pub(super) fn len(&self) -> usize {
        self.height * self.width
    }

    pub(super) fn shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// The same channels in another size, and a reservation for a picture of that size, to hold while it is made.
    pub(super) fn resized(&self, op: &'static str, [height, width]: [usize; 2]) -> Result<(Self, HeapReservation)> {
        // A size of 0 counts as 1 here, so the product also bounds the other sizes: `moved` lists rows and columns.
        let sizes = [self.channels.max(1), height.max(1), width.max(1), size_of::<f32>()];
        let n = sizes.into_iter().try_fold(1_usize, usize::checked_mul);
        let n = n.filter(|&n| isize::try_from(n).is_ok()).ok_or_else(|| {
            wrong(format!("{op}: an image of {height} x {width} is larger than any memory; make it smaller"))
        })?;
        Ok((Self { channels: self.channels, height, width }, HeapReservation::new(n as u64)?))
    }
}

/// A type of elements with which transforms compute, in `f32`.
pub(super) trait Pixel: Copy + Default + PartialOrd {
    /// The value of the brightest pixel.
    const BOUND: f32;

    fn float(self) -> f32;

    /// The nearest pixel.
    fn rounded(value: f32) -> Self;

    /// `value`, clamped to the range from 0 to [`BOUND`](Self::BOUND). For bytes it is rounded down, as by torchvision's
    /// color functions.
    fn cut(value: f32) -> Self;
}

impl Pixel for u8 {
    const BOUND: f32 = 255.0;

    fn float(self) -> f32 {
        f32::from(self)
    }

    fn rounded(value: f32) -> Self {
        // Rounds ties to even, like PyTorch. A float near 1.5 * 2^23 has no bits for a fraction, so its lowest bits
        // are the number. Unlike a conversion, which checks each pixel, this is vectorized.
        const SHIFT: f32 = 12_582_912.0;
        (value.clamp(0.0, 255.0) + SHIFT).to_bits() as u8
    }

    fn cut(value: f32) -> Self {
        value as u8 // which is 0 below 0, and 255 above 255
    }
}

impl Pixel for f32 {
    const BOUND: f32 = 1.0;

    fn float(self) -> f32 {
        self
    }

    fn rounded(value: f32) -> Self {
        value
    }

    fn cut(value: f32) -> Self {
        value.clamp(0.0, 1.0)
    }
}

/// The elements of a picture, in a type with which transforms compute.
pub(super) enum Pixels {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

impl Pixels {
    /// The elements of a picture, and the reservation of their memory.
    pub(super) fn of(op: &'static str, image: &AnyTensor) -> Result<(Self, HeapReservation)> {
        match image.dtype() {
            DType::U8 => listed(&image.int()?).map(|(bytes, counted)| (Self::Bytes(bytes), counted)),
            dtype if dtype.is_float() => {
                listed(&image.float()?).map(|(floats, counted)| (Self::Floats(floats), counted))
            }
            dtype => Err(wrong(format!("{op}: the image is {dtype}, but pixels must be uint8 or floats; convert it"))),
        }
    }

    /// A picture whose elements have the type `dtype` that the image had.
    pub(super) fn image(self, shape: [usize; 3], dtype: DType) -> Result<AnyTensor> {
        Ok(match self {
            Self::Bytes(bytes) => Tensor::from_vec(bytes, shape)?.into(),
            Self::Floats(floats) => Tensor::from_vec(floats, shape)?.to_dtype(dtype)?.into(),
        })
    }
}

/// Makes a picture of shape `$shape` by `$body`, in which `$values` are the elements of `$image`. `$body` is compiled
/// for bytes and for floats.
macro_rules! with_pixels {
    ($op:expr, $image:expr, $shape:expr, $values:ident => $body:expr) => {{
        let (pixels, _counted) = crate::transforms::image::Pixels::of($op, $image)?;
        let made = match pixels {
            #[allow(unused_mut)]
            crate::transforms::image::Pixels::Bytes(mut $values) => crate::transforms::image::Pixels::Bytes($body),
            #[allow(unused_mut)]
            crate::transforms::image::Pixels::Floats(mut $values) => crate::transforms::image::Pixels::Floats($body),
        };
        made.image($shape, $image.dtype())
    }};
}
pub(super) use with_pixels;

/// The index of a row or column outside of the picture, whose pixels have the value `fill`.
pub(super) const OUTSIDE: usize = usize::MAX;

/// A picture of the size `[height, width]`, whose row `i` is row `row(i)` of `image`; likewise for columns.
pub(super) fn moved(
    op: &'static str,
    image: &AnyTensor,
    [height, width]: [usize; 2],
    [row, column]: [&dyn Fn(usize) -> usize; 2],
    fill: f64,
) -> Result<AnyTensor> {
    let planes = Planes::of(op, image.shape())?;
    let (made, _counted) = planes.resized(op, [height, width])?;
    let _lists = HeapReservation::new(((height + width) * size_of::<usize>()) as u64)?;
    let (rows, columns): (Vec<_>, Vec<_>) = ((0..height).map(row).collect(), (0..width).map(column).collect());
    with_element!(image.dtype(), E => {
        let (values, _listed) = listed::<E>(&image.kind()?)?;
        Ok(Tensor::build(made.shape(), |out: &mut [E]| move_rows(&values, planes, (&rows, &columns), E::from_f64(fill), out))?.into())
    })
}

fn move_rows<E: Element>(values: &[E], planes: Planes, (rows, columns): (&[usize], &[usize]), fill: E, out: &mut [E]) {
    if columns.is_empty() || rows.is_empty() {
        return;
    }
    // Columns that are adjacent in both pictures are copied together.
    let is_run = |pair: &[usize]| pair[0] != OUTSIDE && pair[1] == pair[0].wrapping_add(1);
    let n_breaks = columns.windows(2).filter(|pair| !is_run(pair)).count();
    let mut rows_of_out = out.chunks_exact_mut(columns.len());
    for channel in 0..planes.channels {
        for (&row, out) in rows.iter().zip(&mut rows_of_out) {
            if row == OUTSIDE {
                out.fill(fill);
                continue;
            }
            let from = &values[(channel * planes.height + row) * planes.width..][..planes.width];
            if n_breaks > 0 && n_breaks * 4 >= columns.len() {
                for_each_pair(out, columns, |out, &column| *out = from.get(column).copied().unwrap_or(fill));
                continue;
            }
            let mut start = 0;
            for run in columns.chunk_by(|&a, &b| is_run(&[a, b])) {
                let to = &mut out[start..start + run.len()];
                match from.get(run[0]..run[0].saturating_add(run.len())) {
                    Some(from) => to.copy_from_slice(from),
                    None => to.fill(fill),
                }
                start += run.len();
            }
        }
    }
}
