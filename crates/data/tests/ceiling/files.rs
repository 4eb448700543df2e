//! The files that the cases of `readers.rs` read: long ones, and short ones that claim much data or unpack to much.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::MIB;

/// Writes all files.
pub(super) fn write(folder: &Path) {
    let path = |name: &str| folder.join(name);
    fs::write(path("names.csv"), "x,".repeat(2_000_000) + "x\n").unwrap();
    fs::write(path("large.csv"), "x\n".to_owned() + &"1\n".repeat(40 * MIB)).unwrap();
    fs::write(path("members.npz"), directory(300_000)).unwrap();
    let tokens: String = (0..1_000_000).map(|i| format!("{i}\n")).collect();
    fs::write(path("vocabulary.txt"), format!("pagelock vocabulary 1\nunknown -1\n{tokens}")).unwrap();
    let doubled: String = (255..262).map(|piece| format!("{piece} {piece}\n")).collect();
    fs::write(path("no_text.txt"), format!("pagelock byte pairs 1\n{doubled}")).unwrap();
    fs::write(path("pairs.txt"), "pagelock byte pairs 1\n".to_owned() + &"0 0\n".repeat(10_000_000)).unwrap();
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    let mut archive = zip::ZipWriter::new(File::create(path("large.npz")).unwrap());
    archive.start_file("x.npy", options).unwrap();
    zeros(&mut archive, 100 * MIB);
    archive.finish().unwrap();
    fs::write(path("names.safetensors"), header(150_000)).unwrap();
    fs::write(path("header.safetensors"), header(200_000)).unwrap();
    let mut idx = GzEncoder::new(File::create(path("large.idx.gz")).unwrap(), Compression::fast());
    idx.write_all(&[0, 0, 8, 1]).unwrap();
    idx.write_all(&(100 * MIB as u32).to_be_bytes()).unwrap();
    zeros(&mut idx, 100 * MIB);
    idx.finish().unwrap();
    fs::create_dir(path("cifar")).unwrap();
    let mut tar = GzEncoder::new(File::create(path("cifar/cifar-10-binary.tar.gz")).unwrap(), Compression::fast());
    let mut note = tar::Header::new_gnu();
    note.set_entry_type(tar::EntryType::GNULongName);
    note.set_size(200 * MIB as u64);
    note.set_cksum();
    tar.write_all(note.as_bytes()).unwrap();
    zeros(&mut tar, 200 * MIB);
    tar.finish().unwrap();
    #[cfg(feature = "images")]
    pictures::write(folder);
    #[cfg(feature = "parquet")]
    tables::write(folder);
}

fn zeros(to: &mut impl Write, len_bytes: usize) {
    (0..len_bytes / MIB).for_each(|_| to.write_all(&[0; MIB]).unwrap());
}

/// A zip archive that has only the directory of that many members, and not the members.
fn directory(n_members: u32) -> Vec<u8> {
    let mut file = b"PK\x03\x04".to_vec();
    file.resize(30, 0);
    let start = file.len() as u32;
    for member in 0..n_members {
        let name = format!("{member:06}");
        file.extend(b"PK\x01\x02");
        file.extend([0; 24]);
        file.extend((name.len() as u16).to_le_bytes());
        file.extend([0; 16]);
        file.extend(name.as_bytes());
    }
    let len_bytes = file.len() as u32 - start;
    let count = u64::from(n_members);
    let at = file.len() as u64;
    file.extend(b"PK\x06\x06");
    file.extend(44_u64.to_le_bytes());
    file.extend([45, 0, 45, 0]);
    file.extend([0; 8]);
    for number in [count, count, u64::from(len_bytes), u64::from(start)] {
        file.extend(number.to_le_bytes());
    }
    file.extend(b"PK\x06\x07");
    file.extend([0; 4]);
    file.extend(at.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    file.extend(b"PK\x05\x06");
    file.extend([0; 4]);
    file.extend([0xFF; 12]);
    file.extend([0; 6]);
    file
}

/// A safetensors file that is a header of empty tensors.
fn header(n_names: usize) -> Vec<u8> {
    let one = |i: usize| format!("\"{i:06}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let text = format!("{{{}}}", (0..n_names).map(one).collect::<Vec<_>>().join(","));
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

#[cfg(feature = "images")]
mod pictures {
    use std::io::BufWriter;

    use flate2::write::ZlibEncoder;
    use image::ExtendedColorType::{L8, Rgb8};
    use image::codecs::jpeg::JpegEncoder;

    use super::*;

    const GRAY: u8 = 0;
    const COLORS: u8 = 2;
    const COLORS_AND_OPACITY: u8 = 6;

    pub(super) fn write(folder: &Path) {
        let path = |name: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        for (name, color, bits) in [("rgb", COLORS, 8), ("rgba16", COLORS_AND_OPACITY, 16), ("gray", GRAY, 8)] {
            png(&path(&format!("large/a/{name}.png")), [6_000; 2], (color, bits), &[]);
            (0..4).for_each(|i| png(&path(&format!("small/a/{name}{i}.png")), [1_200; 2], (color, bits), &[]));
        }
        for (name, color) in [("gray", L8), ("rgb", Rgb8)] {
            jpeg(&path(&format!("large/a/{name}.jpg")), 6_000, color);
            (0..4).for_each(|i| jpeg(&path(&format!("small/a/{name}{i}.jpg")), 1_200, color));
        }
        for class in 0..400 {
            fs::create_dir_all(folder.join(format!("classes/{class:0250}"))).unwrap();
        }
        let mut profile = ZlibEncoder::new(b"name\0\0".to_vec(), Compression::fast());
        zeros(&mut profile, 200 * MIB);
        png(&path("lies/a/0.png"), [4; 2], (COLORS, 8), &profile.finish().unwrap());
        png(&path("lies/a/1.png"), [16_384; 2], (GRAY, 1), &[]);
        let mut short = fs::read(path("large/a/rgb.png")).unwrap();
        short.truncate(200);
        fs::write(path("lies/a/2.png"), &short).unwrap();
        let mut wide = fs::read(path("small/a/gray0.jpg")).unwrap();
        let frame = wide.windows(2).position(|mark| mark == [0xFF, 0xC0]).unwrap();
        wide[frame + 5..frame + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
        fs::write(path("lies/a/3.jpg"), &wide).unwrap();
    }

    /// Writes a black picture, with a color profile unless `profile` is empty.
    fn png(path: &Path, [height, width]: [usize; 2], (color, bits): (u8, usize), profile: &[u8]) {
        let mut file = BufWriter::new(File::create(path).unwrap());
        file.write_all(b"\x89PNG\r\n\x1a\n").unwrap();
        let sizes = [width, height].map(|size| (size as u32).to_be_bytes()).concat();
        chunk(&mut file, b"IHDR", &[&sizes[..], &[bits as u8, color, 0, 0, 0]].concat());
        if !profile.is_empty() {
            chunk(&mut file, b"iCCP", profile);
        }
        let n_channels = [1, 0, 3, 0, 2, 0, 4][usize::from(color)];
        let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
        let row = vec![0; 1 + (width * n_channels * bits).div_ceil(8)];
        (0..height).for_each(|_| pixels.write_all(&row).unwrap());
        chunk(&mut file, b"IDAT", &pixels.finish().unwrap());
        chunk(&mut file, b"IEND", &[]);
    }

    fn chunk(file: &mut impl Write, name: &[u8; 4], content: &[u8]) {
        let mut checksum = flate2::Crc::new();
        checksum.update(name);
        checksum.update(content);
        file.write_all(&(content.len() as u32).to_be_bytes()).unwrap();
        file.write_all(name).unwrap();
        file.write_all(content).unwrap();
        file.write_all(&checksum.sum().to_be_bytes()).unwrap();
    }

    fn jpeg(path: &Path, side: u32, color: image::ExtendedColorType) {
        let n_channels = if color == L8 { 1 } else { 3 };
        let pixels: Vec<u8> = (0..side as usize * side as usize * n_channels).map(|i| (i / 97) as u8).collect();
        JpegEncoder::new(BufWriter::new(File::create(path).unwrap())).encode(&pixels, side, side, color).unwrap();
    }
}

#[cfg(feature = "parquet")]
mod tables {
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
    use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::parquet_bytes::{column as number, group, of_schema};
    use super::*;

    pub(super) fn write(folder: &Path) {
        let plain = || one_page().set_dictionary_enabled(false);
        for (name, n_numbers, text_bytes) in [("large", 10_000_000, 100 * MIB), ("small", 2_000_000, 12 * MIB)] {
            let numbers: Vec<i64> = (0..n_numbers).collect();
            let path = |of| folder.join(format!("{name}_{of}.parquet"));
            column::<Int64Type>(&path("n"), "INT64 n", plain(), &numbers);
            column::<ByteArrayType>(&path("t"), "BYTE_ARRAY t", plain(), &[ByteArray::from(vec![0; text_bytes])]);
        }
        let distinct: Vec<_> = (0..1_500_000_u32).map(|i| ByteArray::from(i.to_le_bytes().to_vec())).collect();
        let dictionary = one_page().set_dictionary_enabled(true).set_dictionary_page_size_limit(usize::MAX);
        column::<ByteArrayType>(&folder.join("dictionary.parquet"), "BYTE_ARRAY t", dictionary, &distinct);
        for (name, n_pages) in [("pages.parquet", 55), ("few_pages.parquet", 16)] {
            let texts: Vec<_> = (0..n_pages).map(|i| ByteArray::from(vec![i; MIB])).collect();
            let page_of_each = WriterProperties::builder()
                .set_dictionary_enabled(false)
                .set_data_page_row_count_limit(1)
                .set_write_batch_size(1);
            column::<ByteArrayType>(&folder.join(name), "BYTE_ARRAY t", page_of_each, &texts);
        }
        let schema = [vec![group("rows", 1), group(&"n".repeat(MIB), 200)], vec![number("n"); 200]].concat();
        fs::write(folder.join("columns.parquet"), of_schema(&schema, b"")).unwrap();
    }

    fn one_page() -> WriterPropertiesBuilder {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        properties
            .set_data_page_size_limit(usize::MAX)
            .set_data_page_row_count_limit(usize::MAX)
            .set_write_batch_size(1 << 24)
    }

    /// Writes a table of one column.
    fn column<D: DataType>(path: &Path, name: &str, properties: WriterPropertiesBuilder, values: &[D::T]) {
        let schema = Arc::new(parse_message_type(&format!("message rows {{ REQUIRED {name}; }}")).unwrap());
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<D>().write_batch(values, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }
}
