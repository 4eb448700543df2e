//! A state saved while one file was read is refused by a loader of another file with as many samples, and accepted by a
//! loader of the same content at another path.

mod content;

use std::io::{Cursor, Write};
use std::path::Path;

use pagelock_data::{Cifar, CifarFiles, CsvTable, DataLoader, Dataset, Digits, Result, Stack, StoredRows};
use pagelock_tensor::{DType, Float, Int, Tensor};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use content::file;

/// Whether a loader of `other` accepts a state of a loader of `one`. Checks that a refusal names both.
#[track_caller]
fn goes_on<D: Dataset<Sample: Stack>>(one: D, other: D) -> bool {
    let (saved, here) = (one.identity(), other.identity());
    let (one, other) = (DataLoader::new(one).batch_size(2), DataLoader::new(other).batch_size(2));
    one.iter().take(2).for_each(drop);
    match other.resume(one.state().to_string().parse().unwrap()) {
        Ok(()) => true,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&saved) && text.contains(&here), "{text}");
            assert!(!text.contains(" samples in "), "the sizes are the same: {text}");
            false
        }
    }
}

/// Checks that a state is accepted for the same content at another path, and for none of the other contents.
#[track_caller]
fn assert_told_apart<D: Dataset<Sample: Stack>>(open: impl Fn(&Path) -> D, content: &[u8], others: &[Vec<u8>]) {
    let ((_one, one), (_again, again)) = (file(content), file(content));
    assert!(goes_on(open(&one), open(&again)), "the same content at another place");
    for (number, other) in others.iter().enumerate() {
        let (_other, other) = file(other);
        assert!(!goes_on(open(&one), open(&other)), "content {number}");
    }
}

/// Copies of `content`, each with one bit changed at one of these places.
fn changed(content: &[u8], places: &[usize]) -> Vec<Vec<u8>> {
    let change = |&at: &usize| {
        let mut other = content.to_vec();
        other[at] ^= 1;
        other
    };
    places.iter().map(change).collect()
}

fn npy(shape: &str, elements: &[u8]) -> Vec<u8> {
    content::npy(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"), elements)
}

fn npz(method: CompressionMethod, array: &[u8]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    archive.start_file("a.npy", SimpleFileOptions::default().compression_method(method)).unwrap();
    archive.write_all(array).unwrap();
    archive.finish().unwrap().into_inner()
}

#[test]
fn rows_of_another_file_are_refused_whatever_byte_of_a_short_file_differs() {
    let content: Vec<u8> = (0..60_000_u32).map(|i| (i * 7) as u8).collect();
    let others = changed(&content, &[0, 4_095, 4_096, 31_234, 59_999]);
    assert_told_apart(|path| StoredRows::<Int>::raw(path, DType::U8, &[100]).unwrap(), &content, &others);

    let content = npy("(6, 2)", &[7; 48]);
    assert_told_apart(|path| StoredRows::<Float>::npy(path).unwrap(), &content, &changed(&content, &[128, 150, 175]));
}

#[test]
fn rows_of_a_long_file_are_told_apart_at_both_ends() {
    let content = vec![3; 3 << 20];
    let others = changed(&content, &[0, 4_000, (3 << 20) - 4_096, (3 << 20) - 1]);
    assert_told_apart(|path| StoredRows::<Int>::raw(path, DType::U8, &[1 << 10]).unwrap(), &content, &others);
}

#[test]
fn the_same_bytes_in_another_shape_or_type_are_another_dataset() {
    let (_folder, path) = file(&npy("(6, 2)", &[7; 48]));
    let (_other, other) = file(&npy("(6, 2, 1)", &[7; 48]));
    assert!(!goes_on(StoredRows::<Float>::npy(path).unwrap(), StoredRows::npy(other).unwrap()));
    let (_folder, path) = file(&[7; 48]);
    let rows = |dtype, shape: &[usize]| StoredRows::<Int>::raw(&path, dtype, shape).unwrap();
    assert!(!goes_on(rows(DType::I64, &[1]), rows(DType::I32, &[2])));
}

#[test]
fn every_byte_of_an_array_in_an_npz_file_counts_packed_or_not() {
    let array = npy("(300, 1000)", &[9; 1_200_000]);
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let others: Vec<Vec<u8>> =
            changed(&array, &[128, 601_234, 1_200_127]).iter().map(|array| npz(method, array)).collect();
        assert_told_apart(|path| StoredRows::<Float>::npz(path, "a").unwrap(), &npz(method, &array), &others);
    }
}

#[test]
fn rows_of_another_safetensors_file_are_refused() {
    let header = r#"{"x":{"dtype":"F32","shape":[6,2],"data_offsets":[0,48]}}"#;
    let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[7; 48]].concat();
    let others = changed(&content, &[content.len() - 48, content.len() - 1]);
    assert_told_apart(|path| StoredRows::<Float>::safetensors(path, "x").unwrap(), &content, &others);
}

#[test]
fn a_file_that_was_cut_short_is_not_the_one_that_it_was() {
    let (_folder, path) = file(&[7; 200_000]);
    let rows = StoredRows::<Int>::raw(&path, DType::U8, &[100]).unwrap();
    let saved = DataLoader::new(rows.clone()).state();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let error = DataLoader::new(rows).resume(saved).unwrap_err().to_string();
    assert!(error.contains("unreadable: "), "{error}");
}

#[test]
fn images_of_another_cifar_are_refused_and_those_of_the_archive_are_those_of_the_folder() {
    let records: Vec<u8> = (0..40_u8).flat_map(|i| std::iter::once(i % 10).chain(vec![i; 3_072])).collect();
    let open = |content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("test_batch.bin"), content).unwrap();
        Cifar::cifar10_test(folder.path()).unwrap()
    };
    assert!(goes_on(open(&records), open(&records)));
    for other in changed(&records, &[0, 7 * 3_073 + 1, 20 * 3_073 + 1_500, records.len() - 1]) {
        assert!(!goes_on(open(&records), open(&other)));
    }

    let archive = include_bytes!("cifar/cifar-10-binary.tar.gz");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cifar-10-binary.tar.gz"), archive).unwrap();
    let cifar = CifarFiles::cifar10().folder(folder.path()).offline(true).open().unwrap();
    tar::Archive::new(flate2::read::GzDecoder::new(&archive[..])).unpack(folder.path()).unwrap();
    let unpacked = Cifar::cifar10_train(folder.path().join("cifar-10-batches-bin")).unwrap();
    assert!(goes_on(cifar.train, unpacked));
}

#[test]
fn other_digits_are_refused_whatever_pixel_or_label_differs() {
    let (images, labels) = (vec![7; 40 * 784], vec![3; 40]);
    let digits = || Digits::new(&images, &labels).unwrap();
    assert!(goes_on(digits(), digits()));
    for other in changed(&images, &[0, 17 * 784 + 3, 40 * 784 - 1]) {
        assert!(!goes_on(digits(), Digits::new(&other, &labels).unwrap()));
        assert!(!goes_on(digits().bytes(), Digits::new(&other, &labels).unwrap().bytes()));
    }
    for other in changed(&labels, &[0, 17, 39]) {
        assert!(!goes_on(digits(), Digits::new(&images, &other).unwrap()));
    }
}

/// A user's dataset, whose identity is that of its table.
struct Labels<T> {
    labels: Tensor<Int>,
    table: T,
    identity: fn(&T) -> String,
}

impl<T: Send + Sync + 'static> Dataset for Labels<T> {
    type Sample = Tensor<Int>;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize) -> Result<Tensor<Int>> {
        Ok(self.labels.select(0, index as isize)?)
    }

    fn identity(&self) -> String {
        (self.identity)(&self.table)
    }
}

#[test]
fn a_dataset_of_a_csv_table_is_told_apart_by_every_byte() {
    let content: String =
        std::iter::once("label,text\n".to_owned()).chain((0..9_000).map(|i| format!("{i},a\n"))).collect();
    let open = |path: &Path| {
        let table = CsvTable::open(path).unwrap();
        Labels { labels: table.column("label").unwrap(), table, identity: CsvTable::identity }
    };
    let texts: Vec<usize> = content.match_indices(",a").map(|(at, _)| at + 1).collect();
    let places = [texts[0], texts[1_000], texts[4_321], texts[8_999], content.find("4000,").unwrap()];
    assert_told_apart(open, content.as_bytes(), &changed(content.as_bytes(), &places));
}

#[cfg(feature = "parquet")]
#[test]
fn a_dataset_of_a_parquet_table_is_told_apart_by_every_byte_of_a_short_file() {
    use std::sync::Arc;

    use pagelock_data::ParquetTable;
    use parquet::data_type::Int64Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    let content = |labels: &[i64]| {
        let schema = Arc::new(parse_message_type("message rows { REQUIRED INT64 label; }").unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(WriterProperties::default())).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(labels, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.into_inner().unwrap()
    };
    let open = |path: &Path| {
        let table = ParquetTable::open(path).unwrap();
        Labels { labels: table.column("label").unwrap(), table, identity: ParquetTable::identity }
    };
    let labels: Vec<i64> = (0..3_000).map(|i| i * i).collect();
    let mut swapped = labels.clone();
    swapped.swap(1_234, 1_235); // the same statistics, and the same length
    assert_told_apart(open, &content(&labels), &[content(&swapped)]);
}

#[cfg(feature = "images")]
#[test]
fn pictures_of_another_folder_are_refused_by_name_length_or_content() {
    use pagelock_data::ImageFolder;

    /// The class, name and content of a picture, which is never decoded.
    type Picture = (&'static str, String, Vec<u8>);

    fn folder(pictures: &[Picture]) -> (tempfile::TempDir, ImageFolder) {
        let folder = tempfile::tempdir().unwrap();
        for (class, name, content) in pictures {
            std::fs::create_dir_all(folder.path().join(class)).unwrap();
            std::fs::write(folder.path().join(class).join(name), content).unwrap();
        }
        let opened = ImageFolder::open(folder.path()).unwrap();
        (folder, opened)
    }
    let picture = |i: usize| -> Picture { (["cat", "dog"][i % 2], format!("{i:03}.png"), vec![i as u8; 500]) };
    let pictures: Vec<Picture> = (0..12).map(picture).collect();
    let with = |change: fn(&mut Picture)| {
        let mut other = pictures.clone();
        change(&mut other[5]);
        other
    };
    let (_one, one) = folder(&pictures);
    let (_again, again) = folder(&pictures);
    assert!(goes_on(one.clone(), again), "the same pictures in another folder");
    let mut renamed = pictures.clone();
    renamed.iter_mut().filter(|picture| picture.0 == "cat").for_each(|picture| picture.0 = "cow");
    for other in [
        with(|picture| picture.1 = "999.jpg".to_owned()),
        with(|picture| picture.2.push(0)),
        with(|picture| picture.2[499] ^= 1),
        with(|picture| picture.0 = "cat"),
        renamed,
    ] {
        let (_other, other) = folder(&other);
        assert!(!goes_on(one.clone(), other));
    }

    // Of many pictures, the identity covers the content of some, and the length of all.
    let many: Vec<Picture> = (0..100).map(picture).collect();
    let (_many, whole) = folder(&many);
    let changes: [fn(&mut [Picture]); 3] =
        [|many| many[0].2[7] ^= 1, |many| many[99].2[7] ^= 1, |many| many[50].2.push(1)];
    for change in changes {
        let mut other = many.clone();
        change(&mut other);
        let (_other, other) = folder(&other);
        assert!(!goes_on(whole.clone(), other));
    }
}
