//! [`Mnist`]: the handwritten digits that most tutorials start with, found on this machine or downloaded.
//!
//! Y. LeCun, C. Cortes, C. J. C. Burges: the MNIST database of handwritten digits; 60,000 training and 10,000 test
//! images of 28 × 28 gray pixels, centered by mass in a 20 × 20 box.

use std::path::Path;

use pagelock_memory::holder;

use crate::digits::{DigitSet, Digits, Origin, SIDE};
use crate::idx::IdxFile;
use crate::published::{Environment, Published};
use crate::remote::RemoteFile;
use crate::synthetic::SyntheticDigits;
use crate::{Error, Result};

/// The name of the set, and of its folder.
const SET: &str = "mnist";

/// Long-lived mirrors, which torchvision and TensorFlow use too.
const MIRRORS: [&str; 2] =
    ["https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"];

/// The mirror of Fashion-MNIST, from its authors.
const FASHION_MIRRORS: [&str; 1] = ["https://fashion-mnist.s3-website.eu-central-1.amazonaws.com"];

const MNIST: DigitFiles = DigitFiles([
    RemoteFile::new(SET, "train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    RemoteFile::new(SET, "train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    RemoteFile::new(SET, "t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    RemoteFile::new(SET, "t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
]);

const FASHION_SET: &str = "fashion-mnist";

const FASHION: DigitFiles = DigitFiles([
    RemoteFile::new(FASHION_SET, "train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    RemoteFile::new(FASHION_SET, "train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    RemoteFile::new(FASHION_SET, "t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    RemoteFile::new(FASHION_SET, "t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
]);

/// Finds, downloads and reads MNIST, or Fashion-MNIST.
///
/// Looks for the four files under their usual names, packed (`.gz`) or not: in the given folder, else in
/// `$PAGELOCK_DATA/mnist`, else in `pagelock/mnist` in the user's cache folder. Missing files are downloaded; see
/// [`Published`].
///
/// # Examples
/// ```
/// use pagelock_data::Mnist;
///
/// let digits = Mnist::new().offline(true).open_or_generate(1)?;
/// println!("{digits}");
/// assert_eq!(digits.train.len(), 50_000);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub type Mnist = Published<DigitFiles>;

/// The files of MNIST or Fashion-MNIST: images and labels, for training and for testing.
#[derive(Clone, Copy)]
pub struct DigitFiles([RemoteFile; 4]);

impl Default for Mnist {
    fn default() -> Self {
        Self::new()
    }
}

impl Mnist {
    /// The usual places and mirrors.
    pub fn new() -> Self {
        Self::of(MNIST, &MIRRORS)
    }

    /// Fashion-MNIST: pictures of clothes in the form of MNIST, in the folder `fashion-mnist`. H. Xiao, K. Rasul,
    /// R. Vollgraf, 2017.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Mnist;
    ///
    /// let error = Mnist::fashion().folder("/nowhere").offline(true).open().unwrap_err().to_string();
    /// assert!(error.contains("(md5 8d4fb7e6c68d591d4c3dfef9ec88bf0d)"), "{error}");
    /// ```
    pub fn fashion() -> Self {
        Self::of(FASHION, &FASHION_MIRRORS)
    }

    /// Finds the files, downloads those that are missing, and reads them.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Download`] if a file is neither found nor downloaded; [`Error::Content`] if a
    /// file is damaged or of another format; also [`Error::Io`], [`Error::NoFolder`] and [`Error::Memory`]. After an
    /// error, nothing stays allocated.
    pub fn open(&self) -> Result<DigitSet> {
        self.open_in(&Environment::read())
    }

    /// MNIST, or [`SyntheticDigits`] of the same size if MNIST is not available. The printed result says which one it
    /// is, and why.
    ///
    /// There is no fallback if a [`folder`](Self::folder) is given, or if the files exist but are damaged.
    ///
    /// # Errors
    /// As [`open`](Self::open), where there is no fallback.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Mnist;
    ///
    /// let digits = Mnist::new().offline(true).open_or_generate(42)?;
    /// let first_line = digits.to_string();
    /// assert!(first_line.starts_with("MNIST from ") || first_line.starts_with("generated digits (seed 42): "));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn open_or_generate(&self, seed: u64) -> Result<DigitSet> {
        self.open_or_generate_in(&Environment::read(), SyntheticDigits::new(seed))
    }

    fn open_or_generate_in(&self, environment: &Environment, substitute: SyntheticDigits) -> Result<DigitSet> {
        match self.open_in(environment) {
            Err(
                error @ (Error::Missing { .. } | Error::Download { .. } | Error::NoFolder { .. } | Error::Io { .. }),
            ) if self.folder.is_none() => {
                let mut digits = substitute.generate()?;
                let Origin::Generated { instead, .. } = &mut digits.origin else {
                    unreachable!("`generate` sets this origin");
                };
                *instead = Some(error.to_string());
                Ok(digits)
            }
            outcome => outcome,
        }
    }

    fn open_in(&self, environment: &Environment) -> Result<DigitSet> {
        let DigitFiles([train_images, train_labels, test_images, test_labels]) = self.set;
        let set = train_images.set;
        let folder = self.folder_of(set, environment)?;
        let find = |file: RemoteFile| {
            let unpacked = file.name.trim_end_matches(".gz");
            // Some unpackers write "train-images.idx3-ubyte".
            let dotted = unpacked.replacen("-idx", ".idx", 1);
            self.find(file, &[unpacked, &dotted, file.name], &folder, environment)
        };
        // All four before the first is read: a missing one should not cost the time of reading the others.
        let files = [find(train_images)?, find(train_labels)?, find(test_images)?, find(test_labels)?];
        let (training, test) = (read(&files[0], &files[1])?, read(&files[2], &files[3])?);
        let origin = if set == FASHION_SET { Origin::Fashion { folder } } else { Origin::Mnist { folder } };
        DigitSet::split(training, test, origin)
    }
}

/// Reads one pair of files.
fn read(images_path: &Path, labels_path: &Path) -> Result<Digits> {
    let _charged = holder("digits");
    let (images, labels) = (IdxFile::open(images_path)?, IdxFile::open(labels_path)?);
    let wrong = |path: &Path, problem| Err(Error::content(path, problem));
    let &[n_images, SIDE, SIDE] = images.sizes() else {
        let sizes = images.sizes();
        let problem = format!("its sizes are {sizes:?}, and those of MNIST images are [n, 28, 28]; get the right file");
        return wrong(images_path, problem);
    };
    let &[n_labels] = labels.sizes() else {
        let sizes = labels.sizes();
        return wrong(labels_path, format!("its sizes are {sizes:?}, and those of labels are [n]; get the right file"));
    };
    if n_labels != n_images {
        let images_path = images_path.display();
        let problem =
            format!("it has {n_labels} labels, but `{images_path}` has {n_images} images; get both from one source");
        return wrong(labels_path, problem);
    }
    Digits::from_buffers(images.into_buffer(), labels.into_buffer()).map_err(|error| match error {
        Error::Argument(problem) => Error::content(labels_path, problem),
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn environment(data: Option<&Path>, offline: &str) -> Environment {
        Environment { data: data.map(Into::into), offline: Some(offline.into()) }
    }

    fn small() -> SyntheticDigits {
        SyntheticDigits::new(9).train_len(60).test_len(10)
    }

    #[test]
    fn the_data_folder_of_the_environment_comes_before_the_cache() {
        assert_eq!(environment(Some(Path::new("/data")), "").folder(SET).unwrap(), Path::new("/data/mnist"));
        assert!(
            environment(None, "").folder(SET).is_err()
                || environment(None, "").folder(SET).unwrap().ends_with("pagelock/mnist")
        );
        assert_ne!(environment(Some(Path::new("")), "").folder(SET).ok(), Some(PathBuf::from("mnist")));
    }

    #[test]
    fn offline_accepts_the_usual_words_and_refuses_others() {
        for (text, offline) in [("1", true), ("yes", true), ("On ", true), ("0", false), ("false", false), ("", false)]
        {
            assert_eq!(environment(None, text).offline().unwrap(), offline, "{text}");
        }
        assert!(!Environment { data: None, offline: None }.offline().unwrap());
        assert_eq!(
            environment(None, "maybe").offline().unwrap_err().to_string(),
            "PAGELOCK_OFFLINE is `maybe`; set it to 1 to forbid downloads; set it to 0, or unset it, to allow them"
        );
    }

    #[test]
    fn an_offline_environment_never_reaches_a_mirror() {
        let data = tempfile::tempdir().unwrap();
        let mirror = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        mirror.set_nonblocking(true).unwrap();
        let mnist = Mnist::new().mirrors([format!("http://{}", mirror.local_addr().unwrap())]);

        let error = mnist.open_in(&environment(Some(data.path()), "1")).unwrap_err();

        assert!(mirror.accept().is_err(), "somebody called");
        let text = error.to_string();
        assert!(text.contains("` and PAGELOCK_OFFLINE is set; put http://127.0.0.1:"), "{text}");
        assert!(text.ends_with("or unset PAGELOCK_OFFLINE"), "{text}");
        assert!(!data.path().join("mnist").exists(), "nothing is created either");
    }

    #[cfg(not(feature = "download"))]
    #[test]
    fn a_build_without_downloads_says_so() {
        let data = tempfile::tempdir().unwrap();
        let text = Mnist::new().open_in(&environment(Some(data.path()), "")).unwrap_err().to_string();
        assert!(text.contains("` and this program was built without downloads; put https://"), "{text}");
        assert!(text.ends_with(", or build with the feature `download`"), "{text}");
    }

    #[test]
    fn generated_digits_stand_in_and_say_why() {
        let data = tempfile::tempdir().unwrap();
        let digits = Mnist::new().open_or_generate_in(&environment(Some(data.path()), "1"), small()).unwrap();
        let line = "generated digits (seed 9): 50 images to train, 10 to validate, 10 to test";
        assert_eq!(digits.to_string(), line);
        let text = format!("{digits:#}");
        let why = "\n  MNIST could not be used: `train-images-idx3-ubyte.gz` is not in ";
        assert!(text.strip_prefix(line).is_some_and(|rest| rest.starts_with(why)), "{text}");
    }

    #[test]
    fn damaged_files_are_no_reason_to_generate() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("mnist");
        std::fs::create_dir(&folder).unwrap();
        for name in MNIST.0.map(|file| file.name) {
            std::fs::write(folder.join(name), "broken").unwrap();
        }
        let outcome = Mnist::new().open_or_generate_in(&environment(Some(data.path()), "1"), small());
        assert!(matches!(outcome, Err(Error::Content { .. })));
    }
}
