//! Small undamaged files of many formats, made in code, and updates of checksums after damage.

mod arrays;
mod pictures;
mod tables;
mod torch;

use std::fs;
use std::path::Path;

use anyhow::Result;
use pagelock_data::LoaderState;
use pagelock_data::text::{BytePairs, Vocab};
use siphasher::sip128::SipHasher24;

/// The undamaged files of a target.
pub(crate) fn of(target: &str) -> Result<Vec<Vec<u8>>> {
    match target {
        "png" => pictures::png(),
        "jpeg" => pictures::jpeg(),
        "csv" => Ok(tables::csv()),
        "parquet" => tables::parquet(),
        "npz" => arrays::npz(),
        "tar" => arrays::tar(),
        "cifar" => Ok((1..3).map(|n_records| vec![7; n_records * 3_073]).collect()),
        "idx" => Ok(arrays::idx()),
        "npy" => Ok(arrays::npy()),
        "raw" => Ok(vec![vec![1; 64], (0..=255).map(|byte| byte & 1).collect()]),
        "safetensors" | "state_dict" => Ok(arrays::safetensors()),
        "torch" => Ok(torch::files()),
        "vocab" => texts(&|path| Ok(Vocab::build(["the", "cat", "the", "a\\b\n"], &["<unk>"], 1)?.save(path)?)),
        "byte_pairs" => texts(&|path| Ok(BytePairs::train(["the cat sat on the mat"; 4], 270)?.save(path)?)),
        "loader" => Ok(states()),
        "kernels" => kernels(),
        _ => caches(),
    }
}

/// Updates the checksums to match the damaged contents.
pub(crate) fn mend(target: &str, bytes: &mut [u8]) {
    match target {
        "png" => pictures::mend_png(bytes),
        "tar" => arrays::mend_tar(bytes),
        "npz" => arrays::mend_zip(bytes),
        "torch" if bytes.starts_with(b"PK") => arrays::mend_zip(bytes),
        "torch" => arrays::mend_tar(bytes),
        "caches" if bytes.len() >= 16 => {
            let (hash, contents) = bytes.split_at_mut(16);
            hash.copy_from_slice(&hash_of(contents));
        }
        "loader" => mend_state(bytes),
        _ => {}
    }
}

/// The last 16 digits of a state are its FNV-1a checksum.
fn mend_state(bytes: &mut [u8]) {
    const MARK: &[u8] = b"; check ";
    let Some(at) = bytes.len().checked_sub(16).filter(|&at| bytes[..at].ends_with(MARK)) else { return };
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
    let hash = bytes[..at - MARK.len()].iter().fold(0xCBF2_9CE4_8422_2325, step);
    bytes[at..].copy_from_slice(format!("{hash:016x}").as_bytes());
}

/// The file that `write` creates at the path that it gets.
fn texts(write: &dyn Fn(&Path) -> Result<()>) -> Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    write(&path)?;
    Ok(vec![fs::read(path)?])
}

fn states() -> Vec<Vec<u8>> {
    let loader = LoaderState {
        epoch: 3,
        batch: 17,
        turn: None,
        seed: Some(5),
        len: 50_000,
        batch_size: 64,
        drop_last: false,
        order: "random, seed 7".to_owned(),
        dataset: "digits, 50000 samples".to_owned(),
    };
    let stream = LoaderState {
        turn: Some(2),
        seed: None,
        len: 8,
        drop_last: true,
        order: "all".to_owned(),
        dataset: "lines".to_owned(),
        ..loader.clone()
    };
    [loader.to_string(), stream.to_string()].map(String::into_bytes).to_vec()
}

fn kernels() -> Result<Vec<Vec<u8>>> {
    let mut archives = Vec::new();
    for codes in [vec![], vec![vec![7; 300]], vec![b"code".to_vec(), (0..200).collect()]] {
        let mut bytes = b"pagelock kernels 1\n".to_vec();
        [1, 9, 0, codes.len() as u32].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let mut packed = Vec::new();
        for (at, code) in codes.iter().enumerate() {
            let code = arrays::deflated(code)?;
            let key = format!("{at:064x}.cubin");
            bytes.extend((key.len() as u32).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend((code.len() as u32).to_le_bytes());
            packed.extend(code);
        }
        bytes.extend(packed);
        archives.push(bytes);
    }
    Ok(archives)
}

/// Files of caches: a hash, then the cached text.
fn caches() -> Result<Vec<Vec<u8>>> {
    let texts = ["4194304 1048576 2097152 1", ""];
    Ok(texts.iter().map(|text| [&hash_of(text.as_bytes())[..], text.as_bytes()].concat()).collect())
}

fn hash_of(contents: &[u8]) -> [u8; 16] {
    SipHasher24::new().hash(contents).as_bytes()
}
