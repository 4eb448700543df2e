//! [`Header`]: what a JPEG file says before its scan.

use super::huffman::Table;

/// A baseline file of one scan, in luma and chroma of the usual sizes.
pub(super) struct Header<'a> {
    pub(super) height: usize,
    pub(super) width: usize,
    /// Luma, then the two of chroma.
    pub(super) components: [Component; 3],
    /// The number of units between restart markers; 0 for none.
    pub(super) restart_interval: usize,
    /// The compressed data, and whatever follows.
    pub(super) scan: &'a [u8],
    pub(super) tables: Tables,
}

/// One color channel.
#[derive(Clone, Copy, Default)]
pub(super) struct Component {
    id: u8,
    /// Blocks of 8 by 8 in a unit, across and down.
    pub(super) across: usize,
    pub(super) down: usize,
    pub(super) quant: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

#[derive(Default)]
pub(super) struct Tables {
    /// In the order of the file: low frequencies first.
    pub(super) quant: [Option<[i16; 64]>; 4],
    pub(super) dc: [Option<Box<Table>>; 4],
    pub(super) ac: [Option<Box<Table>>; 4],
}

/// None for whatever is damaged or another kind of file.
pub(super) fn read(bytes: &[u8]) -> Option<Header<'_>> {
    let mut rest = bytes.strip_prefix(&[0xFF, 0xD8])?;
    let (mut frame, mut restart_interval, mut tables) = (None, 0, Tables::default());
    loop {
        let (marker, segment, after) = next_segment(rest)?;
        match marker {
            0xC0 if frame.is_none() => frame = Some(read_frame(segment)?),
            0xC4 => read_codes(segment, &mut tables)?,
            0xDB => read_quants(segment, &mut tables)?,
            0xDD => restart_interval = usize::from(two_bytes(segment)?),
            0xDA => {
                let (height, width, mut components) = frame?;
                read_scan(segment, &mut components)?;
                return Some(Header { height, width, components, restart_interval, scan: after, tables });
            }
            // Other processes, what is out of place, and other colors.
            0xC0..=0xCF | 0xD0..=0xD9 | 0xDC | 0xDE | 0xDF => return None,
            0xEE if segment.starts_with(b"Adobe") && segment.get(11) != Some(&1) => return None,
            _ => {}
        }
        rest = after;
    }
}

/// The marker, what belongs to it, and what follows.
fn next_segment(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [0xFF, marker, len @ ..] = bytes else { return None };
    let len_bytes = usize::from(two_bytes(len)?);
    Some((*marker, len.get(2..len_bytes)?, &len[len_bytes..]))
}

fn two_bytes(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn read_frame(segment: &[u8]) -> Option<(usize, usize, [Component; 3])> {
    let [8, h1, h0, w1, w0, 3, channels @ ..] = segment else { return None };
    let (channels, []) = channels.as_chunks::<3>() else { return None };
    let channels: &[[u8; 3]; 3] = channels.try_into().ok()?;
    let component = |&[id, sampling, quant]: &[u8; 3]| Component {
        id,
        across: usize::from(sampling >> 4),
        down: usize::from(sampling & 15),
        quant: usize::from(quant & 3),
        ..Component::default()
    };
    let components = channels.each_ref().map(component);
    let samplings = components.map(|component| (component.across, component.down));
    let known = [(1, 1), (2, 1), (2, 2)].contains(&samplings[0]) && samplings[1..] == [(1, 1); 2];
    let ids = components.map(|component| component.id);
    let (height, width) = (usize::from(u16::from_be_bytes([*h1, *h0])), usize::from(u16::from_be_bytes([*w1, *w0])));
    // libjpeg treats the narrowest pictures in another way.
    (known && ids == [1, 2, 3] && height > 0 && width > 4).then_some((height, width, components))
}

fn read_quants(mut segment: &[u8], tables: &mut Tables) -> Option<()> {
    while let [id @ 0..=3, rest @ ..] = segment {
        let (quants, rest) = rest.split_first_chunk::<64>()?;
        tables.quant[usize::from(*id)] = Some(quants.map(i16::from));
        segment = rest;
    }
    segment.is_empty().then_some(())
}

fn read_codes(mut segment: &[u8], tables: &mut Tables) -> Option<()> {
    while let [class_and_id, rest @ ..] = segment {
        let (counts, rest) = rest.split_first_chunk::<16>()?;
        let n_symbols = counts.iter().map(|&count| usize::from(count)).sum();
        let (symbols, rest) = rest.split_at_checked(n_symbols)?;
        let id = usize::from(class_and_id & 15);
        let place = match class_and_id >> 4 {
            0 => tables.dc.get_mut(id)?,
            1 => tables.ac.get_mut(id)?,
            _ => return None,
        };
        *place = Some(Table::new(counts, symbols)?);
        segment = rest;
    }
    Some(())
}

fn read_scan(segment: &[u8], components: &mut [Component; 3]) -> Option<()> {
    let [3, channels @ .., 0, 63, 0] = segment else { return None };
    let (channels, []) = channels.as_chunks::<2>() else { return None };
    let channels: &[[u8; 2]; 3] = channels.try_into().ok()?;
    for (component, [id, codes]) in components.iter_mut().zip(channels) {
        (component.dc, component.ac) = (usize::from(codes >> 4 & 3), usize::from(codes & 3));
        if component.id != *id {
            return None;
        }
    }
    Some(())
}
