//! Baseline pictures: all samples of all channels first, then the rows of the picture.

use pagelock_memory::{HostBuffer, default_host};
use pagelock_tensor::Tensor;

use super::color;
use super::cosine::{self, Portable, Vectors};
use super::header::{self, Header};
use super::huffman::{AHEAD_BYTES, Bits, Codes, unstuff};
use crate::Result;

/// A picture `[height, width, 3]`; none if it is damaged or of another kind.
pub(super) fn decode(bytes: &[u8], longest_side: u32, most_bytes: u64) -> Result<Option<Tensor<u8>>> {
    let Some(header) = header::read(bytes) else { return Ok(None) };
    let layout = Layout::new(&header);
    let shape = [header.height, header.width, 3];
    let room_bytes = layout.len_bytes + header.scan.len() + AHEAD_BYTES;
    let all_bytes = (room_bytes + shape.iter().product::<usize>()) as u64;
    if header.height.max(header.width) > longest_side as usize || all_bytes > most_bytes {
        return Ok(None);
    }
    let mut room = HostBuffer::allocate(default_host(), room_bytes)?; // from a pool: its pages are there
    let (samples, data) = room.bytes_mut()?.split_at_mut(layout.len_bytes);
    let mut is_whole = false;
    let picture = Tensor::build(shape, |out: &mut [u8]| {
        let (header, layout) = (&header, &layout);
        is_whole = run(Decoding { header, layout, samples, data, out });
    })?;
    Ok(is_whole.then_some(picture))
}

/// Where the samples of a channel are.
#[derive(Clone, Copy)]
struct Plane {
    start: usize,
    /// How far its rows are from each other: whole units.
    stride: usize,
    n_rows: usize,
    n_columns: usize,
}

struct Layout {
    units_across: usize,
    units_down: usize,
    planes: [Plane; 3],
    len_bytes: usize,
}

impl Layout {
    fn new(header: &Header<'_>) -> Self {
        let [luma, ..] = header.components;
        let (units_across, units_down) =
            (header.width.div_ceil(8 * luma.across), header.height.div_ceil(8 * luma.down));
        let mut len_bytes = 0;
        let planes = header.components.map(|component| {
            let (start, stride) = (len_bytes, 8 * units_across * component.across);
            len_bytes += 8 * units_down * component.down * stride;
            let n_rows = (header.height * component.down).div_ceil(luma.down);
            let n_columns = (header.width * component.across).div_ceil(luma.across);
            Plane { start, stride, n_rows, n_columns }
        });
        Self { units_across, units_down, planes, len_bytes }
    }
}

struct Decoding<'a> {
    header: &'a Header<'a>,
    layout: &'a Layout,
    samples: &'a mut [u8],
    /// Room for the data of a scan.
    data: &'a mut [u8],
    out: &'a mut [u8],
}

/// With the vectors of this processor, and all its other instructions.
fn run(decoding: Decoding<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(vectors) = pulp::x86::V3::try_new() {
        return pulp::Simd::vectorize(vectors, With(vectors, decoding)).is_some();
    }
    decoding.run(Portable).is_some()
}

#[cfg(target_arch = "x86_64")]
struct With<'a, V>(V, Decoding<'a>);

#[cfg(target_arch = "x86_64")]
impl<V: Vectors> pulp::WithSimd for With<'_, V> {
    type Output = Option<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Option<()> {
        self.1.run(self.0)
    }
}

impl Decoding<'_> {
    #[inline(always)]
    fn run<V: Vectors>(mut self, vectors: V) -> Option<()> {
        self.read(vectors)?;
        self.paint();
        Some(())
    }

    /// Makes the samples; none if the data is damaged.
    #[inline(always)]
    fn read<V: Vectors>(&mut self, vectors: V) -> Option<()> {
        let Self { header, layout, .. } = *self;
        let [Some(luma), Some(blue), Some(red)] = header.components.map(|component| {
            let tables = &header.tables;
            let (dc, ac) = (tables.dc[component.dc].as_deref()?, tables.ac[component.ac].as_deref()?);
            Some(Codes { dc, ac, quant: tables.quant[component.quant].as_ref()? })
        }) else {
            return None;
        };
        let codes = [luma, blue, red];
        let n_units = layout.units_across * layout.units_down;
        let interval = if header.restart_interval == 0 { n_units } else { header.restart_interval };
        let mut rest = header.scan;
        for first in (0..n_units).step_by(interval) {
            if first > 0 {
                let [0xFF, 0xD0..=0xD7, after @ ..] = rest else { return None };
                rest = after;
            }
            let (data, after) = unstuff(rest, self.data);
            let (mut bits, mut dcs) = (Bits::new(data), [0; 3]);
            for unit in first..n_units.min(first + interval) {
                read_unit(vectors, header, layout, unit, &codes, &mut bits, &mut dcs, self.samples)?;
            }
            if bits.is_short() {
                return None;
            }
            rest = after;
        }
        rest.starts_with(&[0xFF, 0xD9]).then_some(())
    }

    /// Makes the picture of the samples.
    #[inline(always)]
    fn paint(self) {
        let Self { header, layout, samples, out, .. } = self;
        let [luma, blue, red] = layout.planes;
        let row = |plane: Plane, y: usize| &samples[plane.start + y * plane.stride..][..plane.n_columns];
        let n_wide = 2 * blue.n_columns;
        let (mut sums, mut wide_blue, mut wide_red) = (vec![0; blue.n_columns], vec![0; n_wide], vec![0; n_wide]);
        for (y, out) in out.chunks_exact_mut(3 * header.width).enumerate() {
            match (header.components[0].across, header.components[0].down) {
                (2, 2) => {
                    let near = y / 2;
                    let far = if y % 2 == 0 { near.saturating_sub(1) } else { (near + 1).min(blue.n_rows - 1) };
                    color::widen_between(row(blue, near), row(blue, far), &mut sums, &mut wide_blue);
                    color::widen_between(row(red, near), row(red, far), &mut sums, &mut wide_red);
                    color::to_rgb(row(luma, y), &wide_blue, &wide_red, out);
                }
                (2, _) => {
                    color::widen(row(blue, y), &mut wide_blue);
                    color::widen(row(red, y), &mut wide_red);
                    color::to_rgb(row(luma, y), &wide_blue, &wide_red, out);
                }
                _ => color::to_rgb(row(luma, y), row(blue, y), row(red, y), out),
            }
        }
    }
}

/// Makes the samples of one unit, some blocks of each channel.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what the loop over units has")]
fn read_unit<V: Vectors>(
    vectors: V,
    header: &Header<'_>,
    layout: &Layout,
    unit: usize,
    codes: &[Codes<'_>; 3],
    bits: &mut Bits<'_>,
    dcs: &mut [i16; 3],
    samples: &mut [u8],
) -> Option<()> {
    let (down, across) = (unit / layout.units_across, unit % layout.units_across);
    for channel in 0..3 {
        let (component, plane) = (header.components[channel], layout.planes[channel]);
        for i in 0..component.down * component.across {
            let row = down * component.down + i / component.across;
            let column = across * component.across + i % component.across;
            let mut block = [0; 64];
            let last = bits.block(&codes[channel], &mut dcs[channel], &mut block)?;
            let out = &mut samples[plane.start + 8 * (row * plane.stride + column)..];
            match last {
                0 => cosine::flat(block[0], out, plane.stride),
                _ => cosine::inverse(vectors, &block, out, plane.stride),
            }
        }
    }
    Some(())
}
