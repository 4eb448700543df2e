//! Embeddings: files beside the event files, which TensorBoard's projector reads.
//!
//! ```text
//! log_dir/projector_config.pbtxt           the list of embeddings; each call adds or replaces an entry
//! log_dir/STEP/TAG/tensors.tsv             one row per point; STEP has five digits
//! log_dir/STEP/TAG/metadata.tsv            the label or the columns of each point
//! log_dir/STEP/TAG/sprite.png              a grid of all pictures
//! ```
//! Each file is replaced as a whole. The embeddings of an earlier run in the same folder stay.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::PoisonError;

use crate::array::{Array, ToArray};
use crate::error::{Error, Result, create_error, ensure, refuse};
use crate::image::{Pixels, arrange, png};
use crate::step::Step;
use crate::writer::{SummaryWriter, check_tag};

/// The longest side of a sprite that the projector accepts, in pixels.
const MAX_SPRITE: usize = 8192;

/// Points in many dimensions, with optional labels and pictures, for [`SummaryWriter::add_embedding`].
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding<'a> {
    points: Array<'a>,
    /// The names of the columns (none for labels), and the rows.
    metadata: Option<(Vec<String>, Vec<Vec<String>>)>,
    images: Option<Array<'a>>,
}

impl<'a> Embedding<'a> {
    /// An embedding of the points in an array of the shape `[points, dimensions]`.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    pub fn new(points: &'a (impl ToArray + ?Sized)) -> Result<Self> {
        Ok(Self { points: points.to_array()?, metadata: None, images: None })
    }

    /// A label for each point.
    pub fn labels(mut self, labels: impl IntoIterator<Item = impl ToString>) -> Self {
        self.metadata = Some((Vec::new(), labels.into_iter().map(|label| vec![label.to_string()]).collect()));
        self
    }

    /// Several columns of metadata: their names (PyTorch's `metadata_header`), and a row for each point.
    pub fn columns<R: IntoIterator<Item: ToString>>(
        mut self,
        names: impl IntoIterator<Item = impl ToString>,
        rows: impl IntoIterator<Item = R>,
    ) -> Self {
        let rows = rows.into_iter().map(|row| row.into_iter().map(|cell| cell.to_string()).collect());
        self.metadata = Some((names.into_iter().map(|name| name.to_string()).collect(), rows.collect()));
        self
    }

    /// A picture for each point: an array of the shape `[points, channels, height, width]`.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    pub fn images(mut self, images: &'a (impl ToArray + ?Sized)) -> Result<Self> {
        self.images = Some(images.to_array()?);
        Ok(self)
    }
}

impl SummaryWriter {
    /// Adds points to the projector. The call writes the files itself, without the worker thread.
    ///
    /// # Errors
    /// [`Error::Argument`] if the tag is empty, the shape of the points is not `[points, dimensions]`, the number of
    /// labels, rows or pictures is not that of the points, a cell has a tab or line break, or a side of the sprite
    /// would be longer than 8192 pixels; [`Error::Create`] if a file cannot be replaced.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{Array, Embedding, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// let points = Array::new(&[0.0f32, 1.0, 1.0, 0.0, 0.5, 0.5], [3, 2])?;
    /// let images = vec![0u8; 3 * 28 * 28];
    /// let images = Array::new(&images, [3, 1, 28, 28])?;
    /// let embedding = Embedding::new(&points)?.labels(["shirt", "shoe", "bag"]).images(&images)?;
    /// writer.add_embedding("clothes", &embedding, 0)?;
    /// assert!(folder.path().join("00000/clothes/sprite.png").is_file());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_embedding(&self, tag: &str, embedding: &Embedding<'_>, step: impl Into<Step>) -> Result<()> {
        check_tag(tag)?;
        let step = step.into().number()?;
        let [n, dimensions] = *embedding.points.shape() else {
            refuse!("the embedding `{tag}` has the shape {:?}, not [points, dimensions]", embedding.points.shape());
        };
        ensure!(n * dimensions > 0, "the embedding `{tag}` of {n} points with {dimensions} dimensions has no values");
        let metadata = embedding.metadata.as_ref().map(|table| metadata(tag, n, table)).transpose()?;
        let sprite = embedding.images.as_ref().map(|images| sprite(tag, n, images)).transpose()?;

        let subfolder = format!("{step:05}/{}", folder_name(tag));
        let folder = self.log_dir().join(&subfolder);
        fs::create_dir_all(&folder).map_err(create_error(&folder))?;
        replace(&folder.join("tensors.tsv"), tensors(&embedding.points, dimensions).as_bytes())?;
        let mut entry = String::new();
        if let Some(metadata) = metadata {
            replace(&folder.join("metadata.tsv"), metadata.as_bytes())?;
            entry += &field(2, "metadata_path", &format!("{subfolder}/metadata.tsv"));
        }
        if let Some((width, height, png)) = sprite {
            replace(&folder.join("sprite.png"), &png)?;
            let path = field(4, "image_path", &format!("{subfolder}/sprite.png"));
            let dims = format!("    single_image_dim: {width}\n    single_image_dim: {height}\n");
            entry += &format!("  sprite {{\n{path}{dims}  }}\n");
        }
        entry += &field(2, "tensor_path", &format!("{subfolder}/tensors.tsv"));
        self.add_to_projector(&field(2, "tensor_name", &format!("{tag}:{step:05}")), &entry)
    }

    /// Appends an entry to the configuration, and removes an earlier entry with the same name.
    fn add_to_projector(&self, name: &str, entry: &str) -> Result<()> {
        let _lock = self.projector.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.log_dir().join("projector_config.pbtxt");
        let old = match fs::read_to_string(&path) {
            Ok(old) => old,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::Create { path, error }),
        };
        let open = "embeddings {\n";
        let (before, entries) = old.split_once(open).unwrap_or((&old, ""));
        let mut config = before.to_owned();
        for other in entries.split(open).filter(|other| !other.is_empty() && !other.starts_with(name)) {
            config += &format!("{open}{other}");
        }
        config += &format!("{open}{name}{entry}}}\n");
        replace(&path, config.as_bytes())
    }
}

fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    pagelock_files::replace(path, contents).map_err(create_error(path))
}

/// The text of `tensors.tsv`.
fn tensors(points: &Array<'_>, dimensions: usize) -> String {
    let mut text = String::new();
    for at in 0..points.len() {
        let end = if (at + 1) % dimensions == 0 { '\n' } else { '\t' };
        let _ = write!(text, "{:?}{end}", points.f32(at)); // writing to a string does not fail
    }
    text
}

fn metadata(tag: &str, n: usize, (names, rows): &(Vec<String>, Vec<Vec<String>>)) -> Result<String> {
    let n_rows = rows.len();
    ensure!(n_rows == n, "the embedding `{tag}` has {n_rows} labels for {n} points");
    let n_columns = names.len().max(1);
    let mut text = String::new();
    for row in Some(names).filter(|names| !names.is_empty()).into_iter().chain(rows) {
        let n_cells = row.len();
        ensure!(n_cells == n_columns, "a row of the embedding `{tag}` has {n_cells} cells for {n_columns} columns");
        let wrong = row.iter().find(|cell| cell.contains(['\t', '\n', '\r']));
        ensure!(
            wrong.is_none(),
            "the cell {:?} of the embedding `{tag}` has a tab or line break",
            wrong.unwrap_or(&text)
        );
        text += &row.join("\t");
        text.push('\n');
    }
    Ok(text)
}

/// The width and height of one picture, and a PNG of all pictures.
fn sprite(tag: &str, n: usize, images: &Array<'_>) -> Result<(usize, usize, Vec<u8>)> {
    let shape = images.shape();
    let [n_images, channels @ (1 | 3), height, width] = *shape else {
        refuse!("the pictures of the embedding `{tag}` have the shape {shape:?}, not [points, 1 or 3, height, width]");
    };
    ensure!(n_images == n, "the embedding `{tag}` has {n_images} pictures for {n} points");
    let columns = n.isqrt() + usize::from(n.isqrt().pow(2) < n);
    let (sprite_width, sprite_height) = (columns.saturating_mul(width), columns.saturating_mul(height));
    ensure!(
        sprite_width.max(sprite_height) <= MAX_SPRITE,
        "the {n} pictures of the embedding `{tag}` need {sprite_width} × {sprite_height} pixels, and the \
         projector takes {MAX_SPRITE} × {MAX_SPRITE}; make them smaller"
    );
    let pixels = height * width;
    let dims = [(n, channels * pixels), (height, width), (width, 1), (channels, pixels)];
    let Pixels { bytes, channels, width: filled, height: _ } = arrange(&images.to_bytes()?, dims, columns)?;
    let mut square = Pixels { width: filled, height: sprite_height, channels, bytes };
    square.bytes.resize(filled * sprite_height * channels, 0); // as many rows as columns, like PyTorch
    Ok((width, height, png(&square)?))
}

/// The tag, escaped as the name of a folder.
fn folder_name(tag: &str) -> String {
    match tag {
        "." => "%2e".to_owned(),
        ".." => "%2e%2e".to_owned(),
        _ => tag.replace('%', "%25").replace('/', "%2f").replace('\\', "%5c"),
    }
}

/// A string field in the text format of protocol buffers.
fn field(indent: usize, name: &str, text: &str) -> String {
    let mut line = format!("{:indent$}{name}: \"", "");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => line.extend(['\\', letter]),
            letter if letter.is_control() => {
                letter.to_string().bytes().for_each(|byte| line += &format!("\\{byte:03o}"));
            }
            letter => line.push(letter),
        }
    }
    line + "\"\n"
}
