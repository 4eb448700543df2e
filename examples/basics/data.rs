//! "Datasets & DataLoaders" of PyTorch's "Learn the Basics", cell by cell, with a custom dataset that reads files.
//!
//! `cargo run --release --example basics_data` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/data_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use common::options::Options;
use common::{clothes, pictures};
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's datasets and loaders: a data set, one of one's own, batches")?;
    let out = options.folder()?;

    // Loading a dataset
    let (set, labels_map) = clothes::open(&options)?;
    let training_data = set.train.clone();

    // Iterating and visualizing the dataset
    let figure = random_split(training_data.clone(), [9, training_data.len() - 9], &Generator::new(options.seed))?;
    let mut images = Vec::new();
    let mut captions = Vec::new();
    for i in 0..9 {
        let (img, label) = figure[0].get(i)?;
        images.push(img);
        captions.push((labels_map[label.item::<i64>()? as usize].to_owned(), true));
    }
    let stacked = Tensor::stack(&images, 0)?;
    pictures::grid(&out.join("samples.svg"), "nine samples", 3, &stacked, &captions)?;
    println!("nine of them are in {}", out.join("samples.svg").display());

    // Creating a custom dataset for your files
    let folder = out.join("files");
    write_files(&set.test, &folder, 32)?;
    let dataset = CustomImageDataset::open(&folder.join("labels.csv"), &folder)?;
    let (image, label) = dataset.get(0)?;
    println!("a dataset of {} files: images {}, the first is of class {label}", dataset.len(), image.shape());
    ensure!(
        dataset.len() == 32 && label == set.test.get(0)?.1.item::<i64>()?,
        "the files do not hold the first 32 test images"
    );

    // Preparing your data for training with DataLoaders
    let train_dataloader = DataLoader::new(training_data).batch_size(64).shuffle(options.seed);
    let own_dataloader = DataLoader::new(dataset).batch_size(8).num_workers(2);

    // Iterate through the DataLoader
    let (train_features, train_labels) = train_dataloader.iter().next().context("there is no batch")??;
    println!("Feature batch shape: {}", train_features.shape()); // torch.Size([64, 1, 28, 28])
    println!("Labels batch shape: {}", train_labels.shape()); // torch.Size([64])
    let img = train_features.select(0, 0)?.squeeze(0)?;
    let label: i64 = train_labels.select(0, 0)?.item()?;
    println!("Label: {label} ({}), an image of {}", labels_map[label as usize], img.shape());
    ensure!(
        train_features.dims() == [64, 1, 28, 28] && img.dims() == [28, 28],
        "a batch does not hold 64 images of 28 x 28"
    );

    let mut seen = 0;
    for batch in &own_dataloader {
        seen += batch?.1.len();
    }
    println!("{seen} samples of the files came in batches of 8, loaded by 2 workers");
    ensure!(seen == 32, "{seen} samples came, not 32");
    Ok(())
}

/// Images in files of one folder, with their labels in a table. PyTorch reads both with pandas and torchvision.
struct CustomImageDataset {
    img_labels: Vec<(String, i64)>,
    img_dir: PathBuf,
}

impl CustomImageDataset {
    fn open(annotations_file: &Path, img_dir: &Path) -> Result<Self> {
        let text = fs::read_to_string(annotations_file)?;
        let line = |line: &str| {
            let (name, label) = line.split_once(", ").with_context(|| format!("no comma in `{line}`"))?;
            Ok((name.to_owned(), label.parse()?))
        };
        let img_labels = text.lines().map(line).collect::<Result<_>>()?;
        Ok(Self { img_labels, img_dir: img_dir.to_owned() })
    }
}

impl Dataset for CustomImageDataset {
    type Sample = (Tensor, i64);

    fn len(&self) -> usize {
        self.img_labels.len()
    }

    fn get(&self, idx: usize) -> pagelock::data::Result<(Tensor, i64)> {
        let (name, label) = &self.img_labels[idx];
        let path = self.img_dir.join(name);
        let bytes = fs::read(&path).map_err(|source| pagelock::data::Error::Io { action: "read", path, source })?;
        let header = bytes.len().saturating_sub(28 * 28);
        let image = Tensor::<Int>::from_slice(&bytes[header..], [1, 28, 28])?.scaled(1.0 / 255.0)?;
        Ok((image, *label))
    }
}

/// Writes images as gray pictures in the format PGM, and `labels.csv`.
fn write_files(images: &Digits, folder: &Path, n: usize) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut table = String::new();
    for (i, (pixels, label)) in images.image_bytes().chunks(28 * 28).zip(images.label_bytes()).take(n).enumerate() {
        let name = format!("image{i}.pgm");
        fs::write(folder.join(&name), [b"P5 28 28 255\n", pixels].concat())?;
        table += &format!("{name}, {label}\n");
    }
    Ok(fs::write(folder.join("labels.csv"), table)?)
}
