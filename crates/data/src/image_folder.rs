//! [`ImageFolder`]: labeled pictures in one folder for each class, decoded on demand.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::codecs::png::PngDecoder;
use image::{ColorType, ImageDecoder, Limits};
use pagelock_memory::{HeapReservation, HostBuffer, default_host, open_regular};
use pagelock_tensor::{Int, Tensor};
use walkdir::WalkDir;

use crate::dataset::{Dataset, check_index};
use crate::elements::try_build;
use crate::error::Problem;
use crate::file_bytes::MAX_DEFLATE_RATIO;
use crate::identity::{Hash, hash_of_blocks, hash_or_error, probes};
use crate::text::lines::GrowingReservation;
use crate::{Error, Result, jpeg};

/// The first bytes of every PNG picture.
const PNG_START: [u8; 4] = *b"\x89PNG";
/// The limits of a side in pixels and of the memory for decoding. A picture whose header claims more is refused.
const LONGEST_SIDE: u32 = 16_384;
const MAX_BYTES: u64 = 1 << 30;
/// The memory that a PNG's color profile and other metadata may take beyond the length of the file.
const MAX_NOTES: u64 = 256 << 10;

/// Pictures in the subfolders of a folder: torchvision's `ImageFolder`. The sorted names of the subfolders are the
/// classes 0, 1, 2 and so on; folders in them, at any depth, belong to the class. A sample is a picture
/// `[height, width, 3]` of `u8` and its class. Files are PNG or JPEG, recognized by their content.
///
/// Its identity in a loader's state consists of hashes: one of the class names and of the paths and listed lengths of
/// all files, and one of the content of 16 files, up to 64 KiB of each. The path of the folder does not matter.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, ImageFolder};
///
/// let folder = tempfile::tempdir()?;
/// for class in ["cats", "dogs"] {
///     std::fs::create_dir(folder.path().join(class))?;
///     image::RgbImage::from_pixel(4, 2, image::Rgb([9, 8, 7])).save(folder.path().join(class).join("1.png"))?;
/// }
///
/// let pictures = ImageFolder::open(folder.path())?;
/// assert_eq!((pictures.len(), pictures.classes()), (2, &["cats".to_owned(), "dogs".to_owned()][..]));
/// let (picture, class) = pictures.get(1)?;
/// assert_eq!((picture.dims(), class), (&[2, 4, 3][..], 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    folder: Arc<Path>,
    classes: Arc<[String]>,
    files: Arc<[Picture]>,
    _counted: Arc<GrowingReservation>, // budget for the classes and the files
}

/// A picture file, as it was listed.
#[derive(Debug)]
struct Picture {
    path: PathBuf, // within the folder
    class: i64,
    len_bytes: u64,
}

/// The memory of a picture's entry: in two lists that grow, with the allocator's overhead of its path.
const PICTURE_BYTES: u64 = 4 * size_of::<Picture>() as u64 + 32;

impl ImageFolder {
    /// Lists the pictures (`.png`, `.jpg`, `.jpeg`) of `folder`, sorted by class, then by the path of the folder, then by
    /// the name of the file. Symbolic links are followed.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder cannot be read, or links form a circle; [`Error::Content`] if there is no subfolder, or
    /// one has no picture; [`Error::Memory`] if the budget refuses the list.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::ImageFolder;
    ///
    /// let folder = tempfile::tempdir()?;
    /// assert!(ImageFolder::open(folder.path()).unwrap_err().to_string().ends_with(
    ///     "it has no pictures in subfolders; make a folder for each class, with .png, .jpg or .jpeg files"
    /// ));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let (mut files, mut counted) = (Vec::new(), GrowingReservation::default());
        let classes = class_names(folder, &mut counted)?;
        for (class, name) in (0..).zip(&classes) {
            let of_class = pictures(folder, name, class, &mut counted)?;
            if of_class.is_empty() {
                let problem = "it has no picture; add .png, .jpg or .jpeg files, or delete it if it is no class";
                return Err(Error::content(&folder.join(name), problem));
            }
            files.extend(of_class);
        }
        if files.is_empty() {
            let problem =
                "it has no pictures in subfolders; make a folder for each class, with .png, .jpg or .jpeg files";
            return Err(Error::content(folder, problem));
        }
        let classes = classes.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        Ok(Self { folder: folder.into(), classes, files: files.into(), _counted: Arc::new(counted) })
    }

    /// The names of the classes, by number.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Dataset for ImageFolder {
    type Sample = (Tensor<Int>, i64);

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<(Tensor<Int>, i64)> {
        check_index(index, self.files.len())?;
        let Picture { path, class, .. } = &self.files[index];
        Ok((decode(&self.folder.join(path))?, *class))
    }

    fn identity(&self) -> String {
        let (n_files, n_classes) = (self.files.len(), self.classes.len());
        let mut hash = Hash::EMPTY;
        self.classes.iter().for_each(|class| add_text(&mut hash, class));
        self.files.iter().for_each(|picture| picture.add_to(&mut hash));
        let content = probes(n_files).try_fold(Hash::EMPTY, |mut content, index| {
            content.add(content_of(&self.folder.join(&self.files[index].path))?.to_string().as_bytes());
            io::Result::Ok(content)
        });
        format!("ImageFolder of {n_files} pictures in {n_classes} classes, {hash}, {}", hash_or_error(content))
    }
}

impl Picture {
    /// Adds everything but the path of the folder to `hash`.
    fn add_to(&self, hash: &mut Hash) {
        add_text(hash, &self.path.to_string_lossy());
        hash.add(&self.class.to_le_bytes());
        hash.add(&self.len_bytes.to_le_bytes());
    }
}

/// The names of the subfolders, sorted. `counted` is for these and for the texts that are made of them.
fn class_names(folder: &Path, counted: &mut GrowingReservation) -> Result<Vec<OsString>> {
    let failed = |source| Error::io("list", folder, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_dir() {
            let name = entry.file_name();
            counted.reserve(4 * name.len() as u64 + CLASS_BYTES)?; // U+FFFD has three bytes
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The memory of the entries of a class in two lists, one of which grows, with the allocator's overhead.
const CLASS_BYTES: u64 = 6 * size_of::<OsString>() as u64 + 64;

/// The memory of a key by which pictures are sorted, without the bytes of its path.
const KEY_BYTES: u64 = 3 * size_of::<[Option<OsString>; 2]>() as u64 + 64;

/// The pictures of a class, in torchvision's order: folders by their paths, the files of a folder by their names.
fn pictures(folder: &Path, name: &OsStr, class: i64, counted: &mut GrowingReservation) -> Result<Vec<Picture>> {
    let (mut pictures, mut of_keys) = (Vec::new(), GrowingReservation::default());
    for entry in WalkDir::new(folder.join(name)).follow_links(true) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) && !error.path().is_some_and(is_picture) => continue,
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_owned();
                return Err(Error::io("list", &path, error.into()));
            }
        };
        if !is_picture(entry.path()) || !entry.file_type().is_file() {
            continue;
        }
        let metadata =
            entry.metadata().map_err(|error| Error::io("read the metadata of", entry.path(), error.into()))?;
        let path = entry.path().strip_prefix(folder).unwrap_or(entry.path()).to_owned();
        counted.reserve(path.as_os_str().len() as u64 + PICTURE_BYTES)?;
        of_keys.reserve(path.as_os_str().len() as u64 + KEY_BYTES)?;
        pictures.push(Picture { path, class, len_bytes: metadata.len() });
    }
    pictures.sort_by_cached_key(|Picture { path, .. }| {
        [path.parent().map(Path::as_os_str), path.file_name()].map(|part| part.map(OsStr::to_owned))
    });
    Ok(pictures)
}

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ["png", "jpg", "jpeg"].contains(&&*extension)
}

/// Whether the entry is a link to nothing, or has been deleted since its folder was read.
fn is_gone(error: &walkdir::Error) -> bool {
    error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// A hash of a file's content.
fn content_of(path: &Path) -> io::Result<Hash> {
    let (file, len_bytes) = open_regular(path)?;
    hash_of_blocks(len_bytes, |out, at| file.read_exact_at(out, at))
}

/// Adds the length too; otherwise `ab`, `c` and `a`, `bc` would have the same hash.
fn add_text(hash: &mut Hash, text: &str) {
    hash.add(&(text.len() as u64).to_le_bytes());
    hash.add(text.as_bytes());
}

fn decode(path: &Path) -> Result<Tensor<Int>> {
    let explain = |why: String| format!("it cannot be decoded as a picture: {why}");
    let wrong = |why| Error::content(path, explain(why));
    let (mut file, len_bytes) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
    if len_bytes > MAX_BYTES {
        return Err(wrong(format!("it has {len_bytes} bytes, but at most {MAX_BYTES} are read")));
    }
    let mut bytes = HostBuffer::allocate(default_host(), len_bytes as usize)?; // from a pool: its pages are mapped
    file.read_exact(bytes.bytes_mut()?).map_err(|source| Error::io("read", path, source))?;
    let picture = match bytes.bytes() {
        bytes if bytes.starts_with(&jpeg::START) => jpeg::decode(bytes, LONGEST_SIDE, MAX_BYTES),
        bytes if bytes.starts_with(&PNG_START) => decode_png(bytes),
        _ => return Err(wrong("it is neither a PNG nor a JPEG".into())),
    };
    picture.map_err(|problem| problem.explained(explain).at(path))
}

/// A picture `[height, width, 3]`; else what is wrong with it. Memory as large as the picture is reserved in the
/// budget before decoding.
fn decode_png(bytes: &[u8]) -> Result<Tensor<Int>, Problem> {
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(LONGEST_SIDE), Some(LONGEST_SIDE));
    limits.max_alloc = Some(bytes.len() as u64 + MAX_NOTES); // for everything but pixels
    let _notes = HeapReservation::new(bytes.len() as u64)?;
    let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions();
    // Depth and color type of the stored pixels. The decoder knows only those of the pixels that it makes of them.
    let (depth, color) = (u64::from(bytes[24]), usize::from(bytes[25]));
    let n_channels = [1, 0, 3, 1, 2, 0, 4].get(color).copied().unwrap_or(0);
    let n_stored = u64::from(height) * (1 + (u64::from(width) * n_channels * depth).div_ceil(8));
    if n_stored / MAX_DEFLATE_RATIO > bytes.len() as u64 {
        return Err(format!("it is cut off: {} bytes cannot hold its {width} x {height} pixels", bytes.len()).into());
    }
    let n_decoded = decoder.total_bytes();
    if n_decoded > MAX_BYTES {
        return Err(format!("it decodes to {n_decoded} bytes, but at most {MAX_BYTES} are decoded").into());
    }
    let (shape, color) = ([height as usize, width as usize, 3], decoder.color_type());
    if color == ColorType::Rgb8 {
        return try_build(shape, |out: &mut [u8]| decoder.read_image(out).map_err(|error| error.to_string().into()));
    }
    let mut decoded = HostBuffer::allocate(default_host(), n_decoded as usize)?;
    let decoded = decoded.bytes_mut()?;
    decoder.read_image(decoded).map_err(|error| error.to_string())?;
    Ok(Tensor::build(shape, |out: &mut [u8]| to_rgb8(color, decoded, out))?)
}

/// Three bytes for each pixel: gray becomes three equal ones, opacity is left out, and 16 bits are rounded to 8.
fn to_rgb8(color: ColorType, pixels: &[u8], out: &mut [u8]) {
    let (n_channels, width) = (usize::from(color.channel_count()), usize::from(color.bytes_per_pixel()));
    let of_one = width / n_channels; // bytes of one channel, 1 or 2
    let value = |pixel: &[u8], channel: usize| match pixel[channel * of_one..][..of_one] {
        [low, high] => ((u32::from(u16::from_ne_bytes([low, high])) + 128) / 257) as u8,
        [byte] => byte,
        _ => 0,
    };
    for (pixel, out) in pixels.chunks_exact(width).zip(out.as_chunks_mut().0) {
        *out = match n_channels {
            1 | 2 => [value(pixel, 0); 3],
            _ => [0, 1, 2].map(|channel| value(pixel, channel)),
        };
    }
}
