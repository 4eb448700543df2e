//! MNIST's files: the real ones where this machine has them, small ones of our own everywhere.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::{Compression, write::GzEncoder};
use pagelock_data::{Mnist, Origin};

/// An IDX file.
fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    [&bytes, data].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A folder with 12 training and 2 test images, some files packed and some not.
fn small_mnist() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..12 * 784).map(|pixel| (pixel % 251) as u8).collect();
    let labels: Vec<u8> = (0..12).map(|label| label % 10).collect();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("train-images-idx3-ubyte.gz", &gzip(&idx(&[12, 28, 28], &pixels)));
    write("train-labels-idx1-ubyte", &idx(&[12], &labels));
    write("t10k-images.idx3-ubyte", &idx(&[2, 28, 28], &pixels[..2 * 784]));
    write("t10k-labels-idx1-ubyte.gz", &gzip(&idx(&[2], &[7, 2])));
    folder
}

fn open(folder: &Path) -> pagelock_data::Result<pagelock_data::DigitSet> {
    Mnist::new().folder(folder).offline(true).open()
}

/// The error after writing `bytes` to `name`, with the folder's name taken out.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let folder = small_mnist();
    let unpacked = folder.path().join(name.trim_end_matches(".gz"));
    let _ = fs::remove_file(unpacked);
    fs::write(folder.path().join(name), bytes).unwrap();
    open(folder.path()).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn packed_and_unpacked_files_may_be_mixed() {
    let folder = small_mnist();
    let digits = open(folder.path()).unwrap();
    assert_eq!((digits.train.len(), digits.valid.len(), digits.test.len()), (10, 2, 2));
    assert_eq!(digits.valid.label_bytes(), [0, 1]);
    assert_eq!(digits.test.label_bytes(), [7, 2]);
    assert_eq!(digits.train.image_bytes()[784..788], [31, 32, 33, 34]);
    assert_eq!(digits.origin, Origin::Mnist { folder: folder.path().into() });
    assert_eq!(
        digits.to_string(),
        format!("MNIST from {}: 10 images to train, 2 to validate, 2 to test", folder.path().display())
    );
}

#[test]
fn pixels_become_multiples_of_a_256th() {
    let digits = open(small_mnist().path()).unwrap();
    let rows = digits.train.flat().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(rows[..4], [0.0, 1.0 / 256.0, 2.0 / 256.0, 3.0 / 256.0]);
}

#[test]
fn images_of_another_size_are_refused() {
    assert_eq!(
        refusal("train-images-idx3-ubyte.gz", &gzip(&idx(&[2, 32, 32], &[0; 2048]))),
        "`train-images-idx3-ubyte.gz` cannot be used: its sizes are [2, 32, 32], and those of MNIST images are \
         [n, 28, 28]; get the right file"
    );
}

#[test]
fn images_in_the_place_of_labels_are_refused() {
    assert_eq!(
        refusal("train-labels-idx1-ubyte", &idx(&[1, 28, 28], &[0; 784])),
        "`train-labels-idx1-ubyte` cannot be used: its sizes are [1, 28, 28], and those of labels are [n]; \
         get the right file"
    );
}

#[test]
fn a_label_too_few_is_refused() {
    assert_eq!(
        refusal("train-labels-idx1-ubyte", &idx(&[11], &[0; 11])),
        "`train-labels-idx1-ubyte` cannot be used: it has 11 labels, but `train-images-idx3-ubyte.gz` has 12 images; \
         get both from one source"
    );
}

#[test]
fn labels_above_nine_are_refused() {
    assert_eq!(
        refusal("t10k-labels-idx1-ubyte.gz", &gzip(&idx(&[2], &[3, 10]))),
        "`t10k-labels-idx1-ubyte.gz` cannot be used: label 1 is 10, and digits are 0 to 9; \
         check that images and labels are not swapped"
    );
}

#[test]
fn damaged_files_are_refused_by_name() {
    assert_eq!(
        refusal("train-labels-idx1-ubyte", &idx(&[12], &[0; 5])),
        "`train-labels-idx1-ubyte` is not a usable IDX file: its header claims sizes [12], which is 12 bytes of data, \
         but only 5 bytes follow; the file is cut off: get it again"
    );
}

#[test]
fn too_few_images_to_split_are_refused() {
    let folder = small_mnist();
    fs::write(folder.path().join("train-images-idx3-ubyte"), idx(&[5, 28, 28], &[0; 5 * 784])).unwrap();
    fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[5], &[0; 5])).unwrap();
    assert_eq!(
        open(folder.path()).unwrap_err().to_string(),
        "5 training images are too few to keep a sixth for validation; use at least 6"
    );
}

#[test]
fn a_folder_given_by_hand_has_no_fallback() {
    let empty = tempfile::tempdir().unwrap();
    let mnist = Mnist::new().folder(empty.path()).offline(true);
    assert_eq!(
        mnist.open_or_generate(1).unwrap_err().to_string(),
        format!(
            "`train-images-idx3-ubyte.gz` is not in `{}` and downloading is switched off; put \
             https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz or \
             https://storage.googleapis.com/cvdf-datasets/mnist/train-images-idx3-ubyte.gz \
             (md5 f68b3c2dcbeaaa9fbdd348bbdeb94873) there, or set PAGELOCK_DATA to a folder that has \
             `mnist/train-images-idx3-ubyte.gz`, or allow downloads",
            empty.path().display()
        )
    );
}

/// The folder with the real files, or `None` after saying why this test is skipped.
fn real_mnist(test: &str) -> Option<pagelock_data::DigitSet> {
    match Mnist::new().offline(true).open() {
        Ok(digits) => Some(digits),
        Err(error) => {
            println!("skipped {test}: {error}");
            None
        }
    }
}

#[test]
fn the_real_files_read_as_published() {
    let Some(digits) = real_mnist("the_real_files_read_as_published") else { return };
    assert_eq!((digits.train.len(), digits.valid.len(), digits.test.len()), (50_000, 10_000, 10_000));
    assert_eq!(digits.train.label_bytes()[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
    assert_eq!(digits.test.label_bytes()[..5], [7, 2, 1, 0, 4]);

    let sum = |digits: &pagelock_data::Digits| digits.image_bytes().iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
    let mean = (sum(&digits.train) + sum(&digits.valid)) as f64 / (60_000.0 * 784.0) / 255.0;
    assert!((mean - 0.1307).abs() < 5e-5, "the mean that everybody normalizes with, not {mean}");
}

/// Serves the real files on the loopback interface and downloads them again.
#[cfg(feature = "download")]
#[test]
fn the_real_files_download_from_a_mirror() {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    let Some(digits) = real_mnist("the_real_files_download_from_a_mirror") else { return };
    let Origin::Mnist { folder: source } = digits.origin else { unreachable!("opened from files") };
    if !source.join("train-images-idx3-ubyte.gz").exists() {
        println!("skipped the_real_files_download_from_a_mirror: the files in {} are unpacked", source.display());
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = String::new();
            BufReader::new(connection.try_clone().unwrap()).read_line(&mut request).unwrap();
            let name = request.split(' ').nth(1).unwrap().trim_start_matches('/');
            let body = fs::read(source.join(name)).unwrap();
            let len = body.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n");
            let _ = connection.write_all(&[head.into_bytes(), body].concat());
        }
    });
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("new").join("mnist");

    let downloaded = Mnist::new().folder(&folder).mirrors([mirror]).open().unwrap();

    assert_eq!(downloaded.train.image_bytes(), digits.train.image_bytes());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
    assert!(Mnist::new().folder(&folder).offline(true).open().is_ok(), "the second time needs no network");
}
