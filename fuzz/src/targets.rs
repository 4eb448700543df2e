//! The readers: how an input is made from an undamaged file, and how it is read, as a program would read it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use pagelock_cuda::foreign;
use pagelock_data::idx::IdxFile;
use pagelock_data::text::{BytePairs, Vocab};
use pagelock_data::{Cifar, CifarFiles, CsvTable, Dataset, ImageFolder, LoaderState, ParquetTable, StoredRows};
use pagelock_tensor::{Bool, DType, Device, Float, Int, Kind, Tensor, TensorMap};

use crate::corpus;
use crate::mutate::{Random, damage};

/// All targets.
pub(crate) const NAMES: [&str; 18] = [
    "png",
    "jpeg",
    "csv",
    "parquet",
    "npz",
    "tar",
    "cifar",
    "idx",
    "npy",
    "raw",
    "safetensors",
    "state_dict",
    "torch",
    "vocab",
    "byte_pairs",
    "loader",
    "kernels",
    "caches",
];

/// A reader, its undamaged files, and the path at which it finds each input.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    whole: Vec<Vec<u8>>,
    path: PathBuf,
    file: File,
    pictures: Option<ImageFolder>,
}

impl Target {
    pub(crate) fn new(name: &'static str, folder: &Path) -> Result<Self> {
        let whole = corpus::of(name).with_context(|| format!("no whole files for {name}"))?;
        let folder = folder.join(name);
        fs::create_dir_all(folder.join("class"))?;
        let path = match name {
            "png" => folder.join("class/1.png"),
            "jpeg" => folder.join("class/1.jpg"),
            "tar" => folder.join("cifar-10-binary.tar.gz"),
            "cifar" => folder.join("test_batch.bin"),
            _ => folder.join("file"),
        };
        let file = File::create(&path)?;
        let pictures = ["png", "jpeg"].contains(&name).then(|| ImageFolder::open(&folder)).transpose()?;
        let mut target = Self { name, whole, path, file, pictures };
        for (at, whole) in target.whole.clone().iter().enumerate() {
            let packed = target.packed(&mut Random::of(0, name, 0), whole.clone());
            anyhow::ensure!(target.read(&packed), "whole file {at} of {name} is refused");
        }
        Ok(target)
    }

    /// Makes a damaged file.
    pub(crate) fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = random.choose(&self.whole).clone();
        damage(random, &mut bytes, &self.whole);
        if random.one_in(2) {
            corpus::mend(self.name, &mut bytes); // so that the code after a checksum is reached
        }
        self.packed(random, bytes)
    }

    /// Compresses the bytes with gzip if the format needs it, and sometimes damages the result.
    fn packed(&self, random: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
        let is_gzip = self.name == "tar" || self.name == "idx" && random.one_in(2);
        if !is_gzip {
            return bytes;
        }
        let mut packed = GzEncoder::new(Vec::new(), Compression::new(1));
        let mut packed = packed.write_all(&bytes).and_then(|()| packed.finish()).unwrap_or_default();
        if random.one_in(8) {
            damage(random, &mut packed, &[]);
        }
        packed
    }

    /// Reads an input, and returns whether it was accepted, as a whole or in part.
    pub(crate) fn read(&mut self, input: &[u8]) -> bool {
        let is_text = ["loader", "kernels"].contains(&self.name);
        if !is_text && self.file.set_len(0).and_then(|()| self.file.write_all_at(input, 0)).is_err() {
            return false;
        }
        let path = self.path.as_path();
        match self.name {
            "png" | "jpeg" => self.pictures.as_ref().is_some_and(|pictures| pictures.get(0).is_ok()),
            "csv" => csv(path),
            "parquet" => parquet(path),
            "npz" => rows(StoredRows::<Float>::npz(path, "a")) | rows(StoredRows::<Int>::npz(path, "b")),
            "tar" => {
                path.parent().is_some_and(|folder| CifarFiles::cifar10().folder(folder).offline(true).open().is_ok())
            }
            "cifar" => Cifar::cifar10_test(path.with_file_name("")).is_ok(),
            "idx" => IdxFile::open(path).is_ok(),
            "npy" => rows(StoredRows::<Float>::npy(path)) | rows(StoredRows::<Bool>::npy(path)),
            "raw" => {
                rows(StoredRows::<Float>::raw(path, DType::F32, &[2]))
                    | rows(StoredRows::<Bool>::raw(path, DType::Bool, &[]))
            }
            "safetensors" => safetensors(path),
            "state_dict" => pagelock_nn::load_safetensors(path).is_ok(),
            "torch" => pagelock_nn::TorchValue::load(path).is_ok(),
            "vocab" => Vocab::load(path).is_ok_and(|vocab| vocab.encode(["a", "the"]).is_ok() | !vocab.is_empty()),
            "byte_pairs" => byte_pairs(path),
            "loader" => {
                let text = String::from_utf8_lossy(input);
                text.parse::<LoaderState>().is_ok()
            }
            "kernels" => foreign::kernels(input).is_some(),
            _ => caches(path),
        }
    }
}

fn rows<K: Kind>(rows: pagelock_data::Result<StoredRows<K>>) -> bool {
    let Ok(rows) = rows else { return false };
    let first = rows.get(0);
    let last = rows.get(rows.len().wrapping_sub(1));
    let batch = rows.gather(&[0, rows.len() / 2]);
    rows.read().is_ok() | first.is_ok() | last.is_ok() | batch.is_ok() | rows.to(&Device::Cpu).is_ok()
}

fn csv(path: &Path) -> bool {
    let Ok(table) = CsvTable::open(path) else { return false };
    for name in table.names().iter().take(4) {
        let _ = (table.column::<Float>(name), table.column::<Int>(name), table.texts(name), table.categories(name));
    }
    let names: Vec<&str> = table.names().iter().take(4).map(String::as_str).collect();
    let _ = table.numbers_of::<Float>(DType::F64, &names);
    CsvTable::open_with(path, b'\t').is_ok() | (table.n_rows() > 0)
}

fn byte_pairs(path: &Path) -> bool {
    let Ok(pairs) = BytePairs::load(path) else { return false };
    let _ = pairs.decode(&[0, pairs.len() as i64 - 1]);
    pairs.encode("the cat sat on the mat").is_ok()
}

fn parquet(path: &Path) -> bool {
    let Ok(table) = ParquetTable::open(path) else { return false };
    let mut is_read = false;
    for name in table.names().iter().take(8) {
        is_read |= table.column::<Float>(name).is_ok() | table.column::<Int>(name).is_ok();
        is_read |= table.column::<Bool>(name).is_ok() | table.bytes(name).is_ok();
    }
    is_read
}

fn safetensors(path: &Path) -> bool {
    let map = TensorMap::open(path).and_then(|file| {
        let _: Result<Tensor, _> = file.get("a", &Device::Cpu);
        file.to(&Device::Cpu)
    });
    rows(StoredRows::<Float>::safetensors(path, "a")) | map.is_ok()
}

/// Reads the file as every cache does, and its contents after the checksum as kernels.
fn caches(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return false };
    let Some(contents) = foreign::cached(folder, "file", 1 << 20) else { return false };
    let _ = foreign::kernels(&contents);
    true
}
