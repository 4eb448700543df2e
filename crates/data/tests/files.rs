//! Files of other formats: read as they were written, and refused with what is wrong when they are damaged.

mod content;
mod problem;

use std::io::Write;
use std::path::Path;

use pagelock_data::{Cifar, CifarFiles, CsvTable, DataLoader, Dataset, Error, StoredRows};
use pagelock_tensor::{Bool, DType, Float, Int, Tensor};
use proptest::prelude::*;
use tempfile::TempDir;

use content::{file, npy};
use problem::problem;

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

#[test]
fn rows_of_a_file_are_read_in_any_order_by_any_number_of_workers() {
    let (_folder, path) = file(&npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100, 2, 3), }", &floats(600)));
    let rows = StoredRows::<Float>::npy(&path).unwrap();
    assert_eq!((rows.len(), rows.row_shape(), rows.dtype()), (100, &[2, 3][..], DType::F32));
    assert_eq!(rows.read().unwrap().dims(), [100, 2, 3]);
    for n_workers in [0, 3] {
        let loader = DataLoader::new(rows.clone()).batch_size(7).shuffle(1).num_workers(n_workers).pin_memory(true);
        let mut firsts = Vec::new();
        for batch in &loader {
            let batch = batch.unwrap();
            assert!(batch.is_pinned());
            firsts.extend(batch.to_vec::<f32>().unwrap().chunks(6).map(|row| row[0] as usize / 6).collect::<Vec<_>>());
        }
        firsts.sort();
        assert_eq!(firsts, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn a_file_that_is_cut_short_while_it_is_open_is_an_error_that_names_the_row() {
    let (_folder, path) = file(&floats(1_000));
    let rows = StoredRows::<Float>::raw(&path, DType::F32, &[10]).unwrap();
    assert_eq!(rows.get(99).unwrap().to_vec::<f32>().unwrap()[9], 999.0);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1_980).unwrap();
    assert_eq!(rows.get(48).unwrap().to_vec::<f32>().unwrap()[0], 480.0);
    assert_eq!(problem(rows.get(49)), "row 49 no longer exists: the file was cut short; get it again");
    assert_eq!(problem(rows.read()), "row 49 no longer exists: the file was cut short; get it again");
    let loader = DataLoader::new(rows).batch_size(25).num_workers(2).skip_bad_samples(true);
    let sizes: Vec<_> = loader.iter().map(|batch| batch.map_or(0, |batch| batch.dims()[0])).collect();
    assert_eq!(sizes, [25, 24, 0, 0], "the rows that are there still come");
    assert_eq!(loader.report().skipped, 51);
}

#[test]
fn an_npy_file_with_a_wrong_header_is_refused() {
    let header = |descr: &str, order: &str, shape: &str| {
        npy(&format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"), &floats(6))
    };
    for (content, expected) in [
        (b"PK".to_vec(), "it does not start like a .npy file; write it with numpy.save"),
        (
            header("<f4", "False", "(4, 2)"),
            "its header claims [4, 2] of float32 from byte 128, but the file has 152 bytes; it is cut off or its \
             header is wrong: get it again",
        ),
        (
            header("<f4", "False", "(9223372036854775807, 4)"),
            "its header claims [9223372036854775807, 4] of float32 from byte 128, but the file has 152 bytes; it is cut off \
             or its header is wrong: get it again",
        ),
        (
            header("<i8", "False", "(3,)"),
            "its elements are int64, which are not of kind float; open it as StoredRows::<Int>",
        ),
        (header("<U8", "False", "(3,)"), "its elements are `<U8`, which no tensor can hold; convert them with astype"),
        (
            header("<f4", "True", "(3, 2)"),
            "it is in Fortran order; convert it with numpy.ascontiguousarray and save it again",
        ),
        (header("<f4", "False", "()"), "it holds one number, which has no rows; give it a first dimension"),
        (
            header("<f4", "False", "(-3, 2)"),
            "its header has a shape that is not a list of sizes; write it with numpy.save",
        ),
        (npy("{}", &[]), "its header lacks descr, fortran_order or shape; write it with numpy.save"),
        (b"\x93NUMPY\x09\x00\x00\x00\x00\x00".to_vec(), "it is a .npy file of version 9, not 1 to 3"),
        (
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(),
            "its header claims to be 4294967295 bytes long, but at most 10000 are read, and the file has 12; it is \
             damaged: get it again",
        ),
    ] {
        let (_folder, path) = file(&content);
        assert_eq!(problem(StoredRows::<Float>::npy(&path)), expected);
    }
}

#[test]
fn rows_that_follow_each_other_are_those_that_are_read_one_by_one() {
    let (_folder, path) = file(&floats(60_000));
    let rows = StoredRows::<Float>::raw(&path, DType::F32, &[3]).unwrap();
    let expected: Vec<f32> = (0..60_000_u16).map(f32::from).collect();
    assert_eq!(rows.read().unwrap().to_vec::<f32>().unwrap(), expected);
    let indices: Vec<usize> = (19..17_000).chain([5, 6, 3, 3, 4, 19_999]).collect();
    let gathered = rows.gather(&indices).unwrap().unwrap().to_vec::<f32>().unwrap();
    let expected: Vec<f32> = indices.iter().flat_map(|&row| expected[row * 3..][..3].to_vec()).collect();
    assert_eq!(gathered, expected);
}

#[test]
fn truth_values_are_checked_and_shapes_must_divide_the_file() {
    let (_folder, path) = file(&[0, 1, 1, 7]);
    let rows = StoredRows::<Bool>::raw(&path, DType::Bool, &[2]).unwrap();
    assert_eq!(rows.get(0).unwrap().to_vec::<bool>().unwrap(), [false, true]);
    for refused in [rows.get(1), rows.read()] {
        assert_eq!(problem(refused), "row 1 has a byte other than 0 and 1; get the file again");
    }
    assert_eq!(
        problem(StoredRows::<Int>::raw(&path, DType::U8, &[3])),
        "it has 4 bytes, and a row of [3] uint8 takes 3; give the right shape or get the whole file"
    );
    assert_eq!(
        problem(StoredRows::<Int>::raw(&path, DType::U8, &[0])),
        "a row shape of [0] has no elements or too many; give another"
    );
    assert!(matches!(StoredRows::<Int>::raw(Path::new("/nowhere"), DType::U8, &[3]), Err(Error::Io { .. })));
    assert!(rows.get(2).unwrap_err().to_string().starts_with("there is no sample 2: the dataset has 2 samples"));
}

#[test]
fn a_safetensors_file_with_a_wrong_header_is_refused() {
    let with =
        |header: &str, elements: &[u8]| [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat();
    let good = r#"{"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
    let (_folder, path) = file(&with(good, &floats(6)));
    let row = StoredRows::<Float>::safetensors(&path, "x").unwrap().get(1).unwrap();
    assert_eq!(row.to_vec::<f32>().unwrap(), [3.0, 4.0, 5.0]);
    assert_eq!(problem(StoredRows::<Float>::safetensors(&path, "y")), "it has no tensor `y`; it has x");
    assert_eq!(
        problem(StoredRows::<Int>::safetensors(&path, "x")),
        "its elements are float32, which are not of kind integer; open it as StoredRows::<Float>"
    );
    let other = good.replace("[2,3]", "[2,4]");
    for content in [with(&other, &floats(9)), with(good, &floats(5)), with("{", &[]), vec![255; 40], vec![1, 2]] {
        let (_folder, path) = file(&content);
        problem(StoredRows::<Float>::safetensors(&path, "x"));
    }
}

#[test]
fn cifar_files_are_checked_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let record = |labels: &[u8], pixel: u8| [labels, &vec![pixel; 3_072]].concat();
    for batch in 1..=5 {
        let records = [record(&[batch], batch), record(&[9], 255)].concat();
        std::fs::write(folder.path().join(format!("data_batch_{batch}.bin")), records).unwrap();
    }
    std::fs::write(folder.path().join("train.bin"), record(&[3, 99], 1)).unwrap();
    std::fs::write(folder.path().join("test.bin"), record(&[3, 100], 1)).unwrap();
    std::fs::write(folder.path().join("test_batch.bin"), [0; 100]).unwrap();

    let train = Cifar::cifar10_train(folder.path()).unwrap();
    assert_eq!(train.len(), 10);
    for batch in &DataLoader::new(train.clone()).batch_size(10) {
        let (images, labels) = batch.unwrap();
        assert_eq!(images.dims(), [10, 3, 32, 32]);
        assert_eq!(labels.to_vec::<i64>().unwrap(), [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]);
        assert_eq!(images.to_vec::<u8>().unwrap()[4 * 3_072], 3);
    }
    assert_eq!(train.get(6).unwrap().1, 4);
    assert_eq!(Cifar::cifar100_train(folder.path()).unwrap().get(0).unwrap().1, 99, "the fine label");
    assert_eq!(
        problem(Cifar::cifar100_test(folder.path())),
        "its record 0 has the label 100, but there are only 100 classes; get the file again"
    );
    assert_eq!(
        problem(Cifar::cifar10_test(folder.path())),
        "it has 100 bytes, but records of CIFAR-10 take 3073 bytes each; get the binary version from \
         https://www.cs.toronto.edu/~kriz/cifar.html again"
    );
}

#[test]
fn a_csv_file_with_quotes_is_read_and_a_wrong_cell_is_named() {
    let (_folder, path) = file(b"\xef\xbb\xbfa,\"b \"\"x\"\"\",c\r\n1,2,\"three\nlines\"\r\n\r\n-4.5, 5 ,6");
    let table = CsvTable::open(&path).unwrap();
    assert_eq!(table.names(), ["a", "b \"x\"", "c"]);
    assert_eq!(table.n_rows(), 2);
    let numbers: Tensor = table.numbers_of(DType::F64, &["b \"x\"", "a"]).unwrap();
    assert_eq!((numbers.to_vec::<f64>().unwrap(), numbers.dtype()), (vec![2.0, 1.0, 5.0, -4.5], DType::F64));
    assert_eq!(
        problem(table.column::<Int>("a")),
        "line 5: `-4.5` in column `a` does not parse as int64; correct the cell"
    );
    assert_eq!(
        problem(table.column::<Float>("c")),
        format!("line 2: `three\nlines` in column `c` does not parse as {}; correct the cell", DType::F32)
    );
    assert_eq!(problem(table.column::<Float>("d")), "it has no column `d`; it has a, b \"x\", c");
}

#[test]
fn a_csv_file_that_is_no_table_is_refused() {
    for (content, expected) in [
        (
            &b"a,b\n1,2\n3\n"[..],
            "the number of fields in line 3 is 1, but must be 2 as in the header; check quotes and separators",
        ),
        (b"a\n\"1\n2\n", "a quote that opens in the row at line 2 is not closed; close it"),
        (b"\n\n", "it is empty; the first line names the columns"),
        (b"a\n\xff\n", "it is not UTF-8: invalid utf-8 sequence of 1 bytes from index 2; convert it"),
    ] {
        let (_folder, path) = file(content);
        assert_eq!(problem(CsvTable::open(&path)), expected);
    }
}

#[cfg(feature = "images")]
#[test]
fn a_damaged_picture_is_an_error_that_names_its_file() {
    use pagelock_data::ImageFolder;

    let folder = tempfile::tempdir().unwrap();
    for class in ["b", "a"] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
        let picture = image::RgbImage::from_fn(3, 2, |x, y| image::Rgb([x as u8, y as u8, class.as_bytes()[0]]));
        picture.save(folder.path().join(class).join("1.png")).unwrap();
        picture.save(folder.path().join(class).join("2.jpg")).unwrap();
        std::fs::write(folder.path().join(class).join("notes.txt"), "no picture").unwrap();
    }
    let whole = std::fs::read(folder.path().join("b/1.png")).unwrap();
    std::fs::write(folder.path().join("b/0.png"), &whole[..whole.len() / 2]).unwrap();
    // A header that claims 60,000 x 60,000 pixels.
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&[0, 0, 234, 96, 0, 0, 234, 96]);
    std::fs::write(folder.path().join("b/3.png"), huge).unwrap();

    let pictures = ImageFolder::open(folder.path()).unwrap();
    assert_eq!((pictures.classes(), pictures.len()), (&["a".to_owned(), "b".to_owned()][..], 6));
    let (picture, class) = pictures.get(0).unwrap();
    assert_eq!((picture.dims(), class), (&[2, 3, 3][..], 0));
    assert_eq!(picture.to_vec::<u8>().unwrap()[..6], [0, 0, b'a', 1, 0, b'a']);
    for damaged in [2, 5] {
        let text = pictures.get(damaged).unwrap_err().to_string();
        assert!(text.contains(".png` cannot be used: it cannot be decoded as a picture: "), "{text}");
    }
    let loader = DataLoader::new(pictures).batch_size(6).num_workers(1).skip_bad_samples(true);
    let (batch, classes) = loader.iter().next().unwrap().unwrap();
    assert_eq!((batch.dims(), classes.to_vec::<i64>().unwrap()), (&[4, 2, 3, 3][..], vec![0, 0, 1, 1]));
}

/// A member of a tar archive.
fn member(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = [&header.as_bytes()[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A folder with an archive of CIFAR-10 that has `n_records` records in each file: record `i` has the label `i`.
/// `change` edits the archive before it is packed.
fn cifar_archive(n_records: u8, change: impl Fn(&mut Vec<u8>)) -> TempDir {
    let records: Vec<u8> =
        (0..n_records).flat_map(|label| std::iter::once(label).chain(vec![label + 100; 3_072])).collect();
    let mut tar = member("cifar-10-batches-bin/batches.meta.txt", b"airplane\n");
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"] {
        tar.extend(member(&format!("cifar-10-batches-bin/{name}.bin"), &records));
    }
    tar.extend([0; 1024]);
    change(&mut tar);
    let folder = tempfile::tempdir().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar).unwrap();
    std::fs::write(folder.path().join("cifar-10-binary.tar.gz"), packed.finish().unwrap()).unwrap();
    folder
}

#[test]
fn cifar_is_read_from_its_archive_and_from_the_folder_that_it_unpacks_to() {
    let folder = cifar_archive(3, |_| {});
    let files = || CifarFiles::cifar10().folder(folder.path()).offline(true);
    let cifar = files().open().unwrap();
    assert_eq!((cifar.train.len(), cifar.test.len()), (15, 3));
    let (image, label) = cifar.train.get(13).unwrap();
    assert_eq!((image.dims(), image.to_vec::<u8>().unwrap()[7], label), (&[3, 32, 32][..], 101, 1));

    let unpacked = folder.path().join("cifar-10-batches-bin");
    std::fs::create_dir(&unpacked).unwrap();
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"] {
        std::fs::write(unpacked.join(format!("{name}.bin")), [9; 3_073]).unwrap();
    }
    assert_eq!(files().open().unwrap().train.len(), 5);
}

/// Archives written by GNU tar, with the folders, names, other files and order of the published ones. The second has an
/// extended header for each member. Each file has two records for training or one for testing.
const CIFAR: [(&str, &[u8]); 2] = [
    ("cifar-10-binary.tar.gz", include_bytes!("cifar/cifar-10-binary.tar.gz")),
    ("cifar-100-binary.tar.gz", include_bytes!("cifar/cifar-100-binary.tar.gz")),
];

#[test]
fn cifar_is_read_from_archives_that_tar_wrote() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in CIFAR {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let record = |cifar: &Cifar, index| {
        let (image, label) = cifar.get(index).unwrap();
        (image.to_vec::<u8>().unwrap()[3_071], label)
    };
    let ten = CifarFiles::cifar10().folder(folder.path()).offline(true).open().unwrap();
    let expected = [(1, 1), (101, 8), (2, 2), (102, 7), (3, 3), (103, 6), (4, 4), (104, 5), (5, 5), (105, 4)];
    assert_eq!((0..ten.train.len()).map(|index| record(&ten.train, index)).collect::<Vec<_>>(), expected);
    assert_eq!((ten.test.len(), record(&ten.test, 0)), (1, (70, 7)));
    let hundred = CifarFiles::cifar100().folder(folder.path()).offline(true).open().unwrap();
    assert_eq!([record(&hundred.train, 0), record(&hundred.train, 1)], [(33, 3), (99, 99)], "fine labels");
    assert_eq!((hundred.train.len(), hundred.test.len(), record(&hundred.test, 0)), (2, 1, (49, 49)));
}

#[test]
fn a_damaged_cifar_archive_is_refused() {
    let refusal = |change: fn(&mut Vec<u8>)| {
        let folder = cifar_archive(2, change);
        problem(CifarFiles::cifar10().folder(folder.path()).offline(true).open())
    };
    // The header of data_batch_1.bin is at 1024.
    assert_eq!(
        refusal(|tar| tar.truncate(3_000)),
        "its data_batch_1.bin cannot be read: failed to fill whole buffer; get it again"
    );
    assert_eq!(refusal(|tar| tar.truncate(1_024)), "it has no data_batch_1.bin; get it again");
    assert_eq!(refusal(|tar| tar[1_024 + 124] = b'x'), "archive header checksum mismatch; get it again");
    assert_eq!(
        refusal(|tar| tar[1_024 + 512] = 10),
        "in data_batch_1.bin, its record 0 has the label 10, but there are only 10 classes; get it again"
    );
    assert_eq!(refusal(|tar| drop(tar.splice(1_024.., [0; 1_024]))), "it has no data_batch_1.bin; get it again");
    let (folder, path) = file(b"no archive");
    std::fs::rename(path, folder.path().join("cifar-10-binary.tar.gz")).unwrap();
    assert_eq!(problem(CifarFiles::cifar10().folder(folder.path()).open()), "invalid gzip header; get it again");
}

/// Written by NumPy 2.4: `numpy.savez("stored.npz", a=numpy.arange(24, dtype="f4").reshape(4, 6),
/// b=numpy.array([1, 2, 3, 4], dtype="i8"))`, and `savez_compressed` of the same.
const NPZ: [&[u8]; 2] = [include_bytes!("npz/stored.npz"), include_bytes!("npz/packed.npz")];

#[test]
fn arrays_of_an_npz_file_are_read_packed_or_not() {
    for content in NPZ {
        let (_folder, path) = file(content);
        let a = StoredRows::<Float>::npz(&path, "a").unwrap();
        assert_eq!((a.len(), a.row_shape()), (4, &[6][..]));
        assert_eq!(a.get(2).unwrap().to_vec::<f32>().unwrap(), [12.0, 13.0, 14.0, 15.0, 16.0, 17.0]);
        let b = StoredRows::<Int>::npz(&path, "b").unwrap().read().unwrap();
        assert_eq!((b.to_vec::<i64>().unwrap(), b.dtype()), (vec![1, 2, 3, 4], DType::I64));
        for batch in &DataLoader::new(a).batch_size(3).num_workers(2) {
            assert_eq!(batch.unwrap().dims()[1], 6);
        }
    }
}

#[test]
fn a_damaged_npz_file_or_a_wrong_array_is_refused() {
    let (_folder, path) = file(NPZ[0]);
    assert_eq!(problem(StoredRows::<Float>::npz(&path, "c")), "it has no array `c`; it has a, b");
    assert_eq!(
        problem(StoredRows::<Int>::npz(&path, "a")),
        "its elements are float32, which are not of kind integer; open it as StoredRows::<Float>"
    );

    let (_folder, path) = file(b"no archive");
    let fix = "get it again, or write it with numpy.savez";
    assert_eq!(
        problem(StoredRows::<Float>::npz(&path, "a")),
        format!("it is not a complete .npz file: invalid Zip archive: Could not find EOCD; {fix}")
    );

    let mut flipped = NPZ[1].to_vec();
    let packed_at = flipped.windows(5).position(|bytes| bytes == b"a.npy").unwrap() + 5 + 20 + 40;
    flipped[packed_at] ^= 0x40;
    let (_folder, path) = file(&flipped);
    let expected = format!("it is not a complete .npz file: `a` does not unpack to its length and checksum; {fix}");
    assert_eq!(problem(StoredRows::<Float>::npz(&path, "a")), expected);
}

/// Three row groups of rows `i`: x = i / 2, label = i, good = (i is even), name = "row i". Row `nameless` has no name.
#[cfg(feature = "parquet")]
fn parquet_file(nameless: usize) -> (TempDir, std::path::PathBuf) {
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{BoolType, ByteArrayType, FloatType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    let schema =
        "message rows { REQUIRED FLOAT x; REQUIRED INT64 label; REQUIRED BOOLEAN good; OPTIONAL BYTE_ARRAY name; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let (folder, path) = file(b"");
    let mut writer =
        SerializedFileWriter::new(std::fs::File::create(&path).unwrap(), schema, Arc::new(properties)).unwrap();
    for rows in [0..40_usize, 40..41, 41..100] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let x: Vec<f32> = rows.clone().map(|i| i as f32 / 2.0).collect();
        column.typed::<FloatType>().write_batch(&x, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i64> = rows.clone().map(|i| i as i64).collect();
        column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let good: Vec<bool> = rows.clone().map(|i| i.is_multiple_of(2)).collect();
        column.typed::<BoolType>().write_batch(&good, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = rows.clone().map(|i| i16::from(i != nameless)).collect();
        let names: Vec<_> = rows.filter(|&i| i != nameless).map(|i| format!("row {i}").into_bytes().into()).collect();
        column.typed::<ByteArrayType>().write_batch(&names, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    (folder, path)
}

#[cfg(feature = "parquet")]
#[test]
fn columns_of_a_parquet_file_are_tensors_and_bytes() {
    use pagelock_data::ParquetTable;

    let (_folder, path) = parquet_file(1_000);
    let table = ParquetTable::open(&path).unwrap();
    assert_eq!((table.n_rows(), table.names().join(" ")), (100, "x label good name".to_owned()));
    let x: Vec<f32> = (0..100).map(|i| i as f32 / 2.0).collect();
    let read: Tensor = table.column("x").unwrap();
    assert_eq!((read.to_vec::<f32>().unwrap(), read.dtype()), (x, DType::F32));
    let labels: Tensor<Int> = table.column("label").unwrap();
    assert_eq!((labels.to_vec::<i64>().unwrap(), labels.dtype()), ((0..100).collect(), DType::I64));
    assert_eq!(table.column::<Bool>("good").unwrap().to_vec::<bool>().unwrap()[..3], [true, false, true]);
    assert_eq!(table.bytes("name").unwrap()[41], b"row 41");
}

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_column_that_is_not_what_was_asked_for_is_refused() {
    use pagelock_data::ParquetTable;

    let (_folder, path) = parquet_file(63);
    let table = ParquetTable::open(&path).unwrap();
    assert_eq!(problem(table.column::<Float>("y")), "it has no column `y`; it has x, label, good, name");
    assert_eq!(
        problem(table.column::<Float>("label")),
        "its column `label` has elements of type int64, which are not of kind float; read it as Int"
    );
    assert_eq!(
        problem(table.column::<Bool>("x")),
        "its column `x` has elements of type float32, which are not of kind bool; read it as Float"
    );
    assert_eq!(problem(table.bytes("x")), "its column `x` has FLOAT, not bytes; use column()");
    assert_eq!(
        problem(table.column::<Int>("name")),
        "its column `name` has elements of type BYTE_ARRAY, which are not numbers; use bytes()"
    );
    assert_eq!(problem(table.bytes("name")), "row 63 has no value in column `name`; drop such rows, or fill them");

    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(problem(ParquetTable::open(&path)).starts_with("it is not a complete Parquet file: "));
}

#[cfg(feature = "parquet")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_parquet_file_never_gives_more_rows_than_it_says(
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        use pagelock_data::ParquetTable;

        let (_folder, path) = parquet_file(1_000);
        let mut content = std::fs::read(&path).unwrap();
        for (at, value) in damages {
            let at = at.index(content.len());
            content[at] = value;
        }
        std::fs::write(&path, content).unwrap();
        if let Ok(table) = ParquetTable::open(&path) {
            let x = table.column::<Float>("x").map_or(0, |x| x.len());
            let names = table.bytes("name").map_or(0, |names| names.len());
            prop_assert!(x.max(names) <= table.n_rows(), "{} and {} of {} rows", x, names, table.n_rows());
        }
    }
}

#[cfg(feature = "images")]
#[test]
fn a_jpeg_is_decoded_to_about_what_was_saved_in_color_and_gray() {
    use image::{GrayImage, Luma, Rgb, RgbImage};
    use pagelock_data::ImageFolder;

    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    let soft = |x: u32, y: u32| [(x * 3) as u8, (y * 4) as u8, (x + y) as u8];
    RgbImage::from_fn(61, 43, |x, y| Rgb(soft(x, y))).save(folder.path().join("a/1.jpg")).unwrap();
    GrayImage::from_fn(61, 43, |x, y| Luma([soft(x, y)[0]])).save(folder.path().join("a/2.jpg")).unwrap();
    let pictures = ImageFolder::open(folder.path()).unwrap();
    for index in 0..2 {
        let picture = pictures.get(index).unwrap().0;
        assert_eq!(picture.dims(), [43, 61, 3]);
        for (place, value) in picture.to_vec::<u8>().unwrap().into_iter().enumerate() {
            let (x, y) = (place / 3 % 61, place / 3 / 61);
            let wanted = soft(x as u32, y as u32)[if index == 0 { place % 3 } else { 0 }];
            assert!(value.abs_diff(wanted) <= 16, "{value} at {x}, {y} of picture {index}, saved as {wanted}");
        }
    }
}

#[cfg(feature = "images")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_jpeg_is_an_error_or_a_picture_and_never_a_panic(
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        use pagelock_data::ImageFolder;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/1.jpg");
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let picture = image::RgbImage::from_fn(37, 23, |x, y| image::Rgb([(x * y) as u8, x as u8, y as u8]));
        picture.save(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, value) in damages {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        match ImageFolder::open(folder.path()).unwrap().get(0) {
            Ok((picture, class)) => prop_assert_eq!((picture.dims().len(), class), (3, 0)),
            Err(error) => prop_assert!(error.to_string().contains("1.jpg` cannot be used: "), "{}", error),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_npz_file_never_gives_more_than_deflate_can_hold(
        packed in 0_usize..2,
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut content = NPZ[packed].to_vec();
        for (at, value) in damages {
            let at = at.index(content.len());
            content[at] = value;
        }
        if let Some(cut) = cut {
            content.truncate(cut.index(content.len()));
        }
        let (_folder, path) = file(&content);
        if let Ok(rows) = StoredRows::<Float>::npz(&path, "a") {
            // Deflate expands at most 1,032 times.
            prop_assert!(rows.read().map_or(0, |rows| rows.len()) * 4 <= 1_040 * content.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_a_reader_or_give_more_bytes_than_they_are(
        content in prop::collection::vec(any::<u8>(), 0..300),
        as_npy in any::<bool>(),
    ) {
        let content = if as_npy { [b"\x93NUMPY\x01\x00", &content[..]].concat() } else { content };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        prop_assert!(StoredRows::<Int>::npz(file.path(), "a").is_err());
        for outcome in [StoredRows::<Int>::npy(file.path()), StoredRows::raw(file.path(), DType::U8, &[3])] {
            let n_bytes = outcome.map_or(0, |rows| rows.read().map_or(0, |rows| rows.len()));
            prop_assert!(n_bytes <= content.len());
        }
        let _ = CsvTable::open(file.path()).map(|table| table.numbers::<Float>(&["a"]).is_ok());
    }
}
