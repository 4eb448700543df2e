//! [`CifarFiles`]: finds CIFAR on this machine or downloads it, and reads it straight from the published archive, a
//! tar file compressed with gzip. The archive is read to its end, because gzip's checksum is there.

use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use pagelock_memory::{HostBuffer, holder, open_regular};

use super::{Cifar, Layout, TRAIN_10};
use crate::published::{Environment, Published};
use crate::remote::RemoteFile;
use crate::{Error, Result};

/// The author's site.
const MIRRORS: [&str; 1] = ["https://www.cs.toronto.edu/~kriz"];

const CIFAR_10: CifarArchive = CifarArchive {
    file: RemoteFile::new("cifar-10", "cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
    folder: "cifar-10-batches-bin",
    train: &TRAIN_10,
    test: "test_batch.bin",
    layout: Layout::CIFAR_10,
};

const CIFAR_100: CifarArchive = CifarArchive {
    file: RemoteFile::new("cifar-100", "cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
    folder: "cifar-100-binary",
    train: &["train.bin"],
    test: "test.bin",
    layout: Layout::CIFAR_100,
};

/// The most bytes of a member; the largest has 154 MB.
const MAX_BYTES: u64 = 1 << 28;
/// The most bytes that are read of an unpacked archive; the larger of the two has 185 MB.
const MAX_UNPACKED: u64 = 1 << 30;

/// Training and test images; from [`CifarFiles::open`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CifarSet {
    /// 50,000 images to train with.
    pub train: Cifar,
    /// 10,000 images to test with.
    pub test: Cifar,
}

/// Finds, downloads and reads CIFAR-10 or CIFAR-100.
///
/// Looks in the given folder, else in `$PAGELOCK_DATA/cifar-10` (`cifar-100`), else in `pagelock/cifar-10` in the
/// user's cache folder. There it looks for the files of the binary version, then for the folder to which the archive
/// unpacks, then for the archive. If none of them exists, the archive is downloaded, and stays packed; see
/// [`Published`].
///
/// # Examples
/// ```
/// use pagelock_data::{CifarFiles, Error};
///
/// match CifarFiles::cifar10().offline(true).open() {
///     Ok(cifar) => println!("{:?}", cifar.train),
///     Err(Error::Missing { urls, md5, .. }) => println!("put {} there (md5 {md5})", urls[0]),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub type CifarFiles = Published<CifarArchive>;

/// The archive of CIFAR-10 or CIFAR-100.
#[derive(Clone, Copy)]
pub struct CifarArchive {
    file: RemoteFile,
    /// The folder to which it unpacks.
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static str,
    layout: Layout,
}

impl CifarFiles {
    /// CIFAR-10: ten classes.
    pub fn cifar10() -> Self {
        Self::of(CIFAR_10, &MIRRORS)
    }

    /// CIFAR-100: a hundred classes, by the fine labels.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::CifarFiles;
    ///
    /// let error = CifarFiles::cifar100().folder("/nowhere").offline(true).open().unwrap_err().to_string();
    /// assert!(error.contains("(md5 03b5dce01913d631647c71ecec9e9cb8)"), "{error}");
    /// ```
    pub fn cifar100() -> Self {
        Self::of(CIFAR_100, &MIRRORS)
    }

    /// Finds the images, downloads them if they are missing, and reads them.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Download`] if the images are neither found nor downloaded; [`Error::Content`]
    /// if a file is damaged or of another format; also [`Error::Io`], [`Error::NoFolder`] and [`Error::Memory`].
    pub fn open(&self) -> Result<CifarSet> {
        let environment = Environment::read();
        let CifarArchive { file, folder: unpacked, train, test, layout } = self.set;
        let folder = self.folder_of(file.set, &environment)?;
        for folder in [&folder, &folder.join(unpacked)] {
            if folder.join(test).exists() {
                let [train, test] = [train, &[test]].map(|names| Cifar::open(folder, names, layout));
                return Ok(CifarSet { train: train?, test: test? });
            }
        }
        let path = self.find(file, &[file.name], &folder, &environment)?;
        self.set.read(&path)
    }
}

impl CifarArchive {
    fn read(&self, path: &Path) -> Result<CifarSet> {
        let wrong = |problem: String| Error::content(path, format!("{problem}; get it again"));
        let (file, _) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
        let unpacked = GzDecoder::new(BufReader::new(file)).take(MAX_UNPACKED);
        let mut tar = tar::Archive::new(unpacked);
        let _charged = holder("cifar");
        let mut parts: Vec<Option<HostBuffer>> = (0..=self.train.len()).map(|_| None).collect(); // the last: test
        // Raw members: an extension header, for example a long name, may have any length. It is a member of its own
        // here, and skipped.
        for member in tar.entries().map_err(|error| wrong(error.to_string()))?.raw(true) {
            let mut member = member.map_err(|error| wrong(error.to_string()))?;
            let Some(at) = self.position(&member) else { continue };
            let name = self.train.get(at).unwrap_or(&self.test);
            parts[at] = Some(self.records(&mut member, name, path)?);
        }
        let end = io::copy(&mut tar.into_inner(), &mut io::sink());
        end.map_err(|error| wrong(format!("it is damaged or cut off: {error}")))?;
        let names = self.train.iter().chain([&self.test]);
        let parts =
            parts.into_iter().zip(names).map(|(part, name)| part.ok_or_else(|| wrong(format!("it has no {name}"))));
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        let test = parts.split_off(self.train.len());
        let [train, test] = [parts, test].map(|files| Cifar::of(files, self.layout));
        Ok(CifarSet { train, test })
    }

    /// The index of a member among the training files and the test file, in this order. Its folder does not matter.
    fn position(&self, member: &tar::Entry<'_, impl Read>) -> Option<usize> {
        let path = member.path_bytes();
        let name = path.rsplit(|&byte| byte == b'/').next().filter(|_| member.header().entry_type().is_file())?;
        self.train.iter().chain([&self.test]).position(|wanted| wanted.as_bytes() == name)
    }

    fn records(&self, member: &mut tar::Entry<'_, impl Read>, name: &str, path: &Path) -> Result<HostBuffer> {
        let wrong = |problem: String| Error::content(path, format!("{problem}; get it again"));
        let (len_bytes, record) = (member.size(), self.layout.record_bytes());
        if len_bytes > MAX_BYTES || !self.layout.fits(len_bytes) {
            return Err(wrong(format!("its {name} has {len_bytes} bytes, not a multiple of the record size {record}")));
        }
        let unreadable = |error| wrong(format!("its {name} cannot be read: {error}"));
        let records = self.layout.read(member, len_bytes, unreadable);
        records.map_err(|problem| problem.explained(|what| format!("in {name}, {what}; get it again")).at(path))
    }
}
