//! Arrays: `.npy`, `.npz`, safetensors, IDX, and CIFAR's archive.

use std::io::{Cursor, Write};

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

pub(crate) fn deflated(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn npy_of(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{dictionary:<117}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

pub(super) fn npy() -> Vec<Vec<u8>> {
    vec![
        npy_of("<f4", "(4, 6)", &[1; 96]),
        npy_of("<f4", "(3,)", &[2; 12]),
        npy_of("|b1", "(2, 2, 2)", &[1; 8]),
        npy_of("<f4", "(0, 5)", &[]),
        [
            &b"\x93NUMPY\x02\x00\x50\x00\x00\x00"[..],
            format!("{:<80}", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}").as_bytes(),
            &[0; 4],
        ]
        .concat(),
    ]
}

pub(super) fn npz() -> Result<Vec<Vec<u8>>> {
    let mut archives = Vec::new();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        for large in [false, true] {
            let options = SimpleFileOptions::default().compression_method(method).large_file(large);
            let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
            archive.start_file("a.npy", options)?;
            archive.write_all(&npy_of("<f4", "(4, 6)", &[1; 96]))?;
            archive.start_file("b.npy", options)?;
            archive.write_all(&npy_of("<i8", "(4,)", &[3; 32]))?;
            archives.push(archive.finish()?.into_inner());
        }
    }
    Ok(archives)
}

/// Updates the checksums of members that are not compressed, in their headers and in the directory. The checksum of a
/// compressed member is that of its contents, not of the bytes in the archive.
pub(super) fn mend_zip(bytes: &mut [u8]) {
    let u16_at =
        |bytes: &[u8], at: usize| bytes.get(at..at + 2).map(|two| usize::from(u16::from_le_bytes([two[0], two[1]])));
    let u32_at = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
    };
    for at in 0..bytes.len().saturating_sub(46) {
        let is_stored = u16_at(bytes, at + 10) == Some(0); // the compression method
        if !is_stored || !bytes[at..].starts_with(b"PK\x01\x02") {
            continue;
        }
        let (Some(len), Some(start)) = (u32_at(bytes, at + 20), u32_at(bytes, at + 42)) else { continue };
        let (Some(name), Some(extra)) =
            (u16_at(bytes, start.saturating_add(26)), u16_at(bytes, start.saturating_add(28)))
        else {
            continue;
        };
        let data = start + 30 + name + extra;
        let Some(content) = data.checked_add(len).and_then(|end| bytes.get(data..end)) else { continue };
        let crc = crc32fast::hash(content).to_le_bytes();
        bytes[at + 16..at + 20].copy_from_slice(&crc);
        bytes[start + 14..start + 18].copy_from_slice(&crc);
    }
}

pub(super) fn safetensors() -> Vec<Vec<u8>> {
    let with = |header: &str, n_bytes: usize| {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; n_bytes][..]].concat()
    };
    vec![
        with(r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#, 24),
        with(
            r#"{"__metadata__":{"pagelock.batch":"2","pagelock.batch:m":"2,1"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"m.b":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]}}"#,
            16,
        ),
        with(
            r#"{"bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"bn.weight":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}}"#,
            20,
        ),
        with("{}", 0),
    ]
}

pub(super) fn idx() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4],
        [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5][..], &[9; 40]].concat(),
    ]
}

const CIFAR: [&str; 7] = [
    "batches.meta.txt",
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];

pub(super) fn tar() -> Result<Vec<Vec<u8>>> {
    let mut archives = Vec::new();
    for is_gnu in [false, true] {
        let mut archive = tar::Builder::new(Vec::new());
        for name in CIFAR {
            let content = if name.ends_with("txt") { vec![b'x'; 20] } else { vec![4; 3_073] };
            let mut header = if is_gnu { tar::Header::new_gnu() } else { tar::Header::new_ustar() };
            header.set_size(content.len() as u64);
            header.set_path(format!("cifar-10-batches-bin/{name}"))?;
            header.set_cksum();
            archive.append(&header, &content[..])?;
        }
        archives.push(archive.into_inner()?);
    }
    Ok(archives)
}

/// Updates the checksums of headers, in all blocks that are marked as headers.
pub(super) fn mend_tar(bytes: &mut [u8]) {
    for header in bytes.chunks_exact_mut(512).filter(|header| header[257..262] == *b"ustar") {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}
