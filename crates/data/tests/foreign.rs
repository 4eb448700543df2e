//! Files from elsewhere that lie about their content. Each is refused with an error that says what is wrong, and
//! nothing hangs, aborts, or takes memory out of proportion to the file.

mod content;
#[cfg(feature = "parquet")]
mod parquet_bytes;
mod problem;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use pagelock_data::{Cifar, CifarFiles, CsvTable, Dataset, Error, Mnist, StoredRows};
use pagelock_tensor::{DType, Float, Int, Tensor};

use content::file;
use problem::problem;

fn npy(shape: &str, elements: &[u8]) -> Vec<u8> {
    content::npy(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"), elements)
}

/// Shapes that have no elements, or more than the file holds.
const SHAPES: [&str; 12] = [
    "1000000000000000000,0",
    "4611686018427387904,0",
    "18446744073709551615,0",
    "3,0",
    "0,1000000000000000000",
    "0,4611686018427387904",
    "0,18446744073709551615,18446744073709551615",
    "1000000000000000000,1000000000000000000,0",
    "4294967296,4294967296,0,4294967296",
    "4294967296,0,4294967296,4294967296",
    "1000000000,1000000000,1000000000",
    "1,1,1,1,1,1,1,1,1,1,1,1",
];

/// Everything that a program does with rows.
fn use_rows(rows: Result<StoredRows, Error>) {
    let Ok(rows) = rows else { return };
    assert_eq!(rows.len(), 0, "rows without elements hold nothing: {:?}", rows.row_shape());
    let _ = rows.read().map(|all| assert_eq!(all.len(), 0));
    let _ = rows.get(0).unwrap_err();
    let _ = rows.gather(&[]);
    let _ = rows.to(&pagelock_tensor::Device::Cpu);
}

#[test]
fn a_shape_without_elements_or_with_too_many_is_refused_or_empty_and_takes_no_memory() {
    for shape in SHAPES {
        let (_folder, path) = file(&npy(&format!("({shape})"), &[]));
        use_rows(StoredRows::npy(&path));
    }
    let (_folder, path) = file(&npy(&format!("({})", "1,".repeat(3_000)), &[0; 4]));
    use_rows(StoredRows::npy(&path));
}

#[test]
fn a_safetensors_shape_without_elements_or_with_too_many_is_refused_or_empty() {
    for shape in SHAPES {
        let header = format!(r#"{{"x":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,0]}}}}"#);
        let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        let (_folder, path) = file(&content);
        use_rows(StoredRows::safetensors(&path, "x"));
        let opened = pagelock_tensor::TensorMap::open(&path);
        let _ = opened.and_then(|file| file.to(&pagelock_tensor::Device::Cpu)).map(|map| assert_eq!(map.len(), 1));
    }
}

#[test]
fn rows_without_elements_are_named_in_the_error() {
    let (_folder, path) = file(&npy("(1000000000000000000, 0)", &[]));
    assert_eq!(
        problem(StoredRows::<Float>::npy(&path)),
        "its header claims [1000000000000000000, 0], rows without elements, which hold no data; write another array"
    );
}

/// What `read` returns on another thread, or `None` if that takes ten seconds.
fn in_time<R: Send + 'static>(read: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(read()));
    receive.recv_timeout(Duration::from_secs(10)).ok()
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

type Reader = fn(&Path) -> Result<(), Error>;

fn readers() -> Vec<(&'static str, Reader)> {
    vec![
        ("raw", |path| StoredRows::<Int>::raw(path, DType::U8, &[1]).and_then(|rows| rows.read()).map(drop)),
        ("npy", |path| StoredRows::<Int>::npy(path).map(drop)),
        ("npz", |path| StoredRows::<Int>::npz(path, "a").map(drop)),
        ("csv", |path| CsvTable::open(path).map(drop)),
        ("idx", |path| pagelock_data::idx::IdxFile::open(path).map(drop)),
        ("safetensors", |path| StoredRows::<Int>::safetensors(path, "a").map(drop)),
        #[cfg(feature = "parquet")]
        ("parquet", |path| pagelock_data::ParquetTable::open(path).map(drop)),
        ("map", |path| pagelock_tensor::TensorMap::open(path).map(drop).map_err(Error::from)),
    ]
}

#[test]
fn a_pipe_a_device_and_a_folder_are_refused_at_once_by_every_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    for (name, reader) in readers() {
        for (path, what) in [
            (pipe.clone(), "it is a pipe (FIFO), not a regular file"),
            ("/dev/zero".into(), "it is a device, not a regular file"),
            (folder.path().into(), "it is a folder, not a regular file"),
        ] {
            let outcome = in_time(move || reader(&path)).unwrap_or_else(|| panic!("{name} waits: {what}"));
            let error = outcome.expect_err(name).to_string();
            assert!(error.starts_with("cannot open ") && error.contains(what), "{name}: {error}");
        }
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_of_a_published_set_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str| make_pipe(&folder.path().join(name));
    for name in ["train-images", "train-labels", "t10k-images", "t10k-labels"] {
        put(&format!("{name}-idx{}-ubyte", if name.ends_with("images") { 3 } else { 1 }));
    }
    put("cifar-10-binary.tar.gz");
    let path = folder.path().to_owned();
    assert!(in_time(move || Mnist::new().folder(path).offline(true).open().is_err()).expect("MNIST waits"));
    let path = folder.path().to_owned();
    assert!(in_time(move || CifarFiles::cifar10().folder(path).offline(true).open().is_err()).expect("CIFAR waits"));
    put("test_batch.bin");
    let path = folder.path().to_owned();
    assert!(in_time(move || Cifar::cifar10_test(path).is_err()).expect("CIFAR waits"));
}

const STORED: &[u8] = include_bytes!("npz/stored.npz");

#[test]
fn an_array_of_an_npz_file_that_does_not_fit_its_checksum_is_refused() {
    let start = STORED.windows(6).position(|bytes| bytes == b"\x93NUMPY").unwrap();
    let mut damaged = STORED.to_vec();
    damaged[start + 128 + 9] ^= 0x10; // within the third number
    let (_folder, path) = file(&damaged);
    let text = problem(StoredRows::<Float>::npz(&path, "a"));
    assert!(text.starts_with("it is not a complete .npz file: `a` does not match its checksum"), "{text}");
    assert_eq!(StoredRows::<Int>::npz(&path, "b").unwrap().len(), 4, "the other array is whole");
}

#[test]
fn an_array_of_an_npz_file_that_is_packed_in_another_way_is_refused_by_the_name_of_that_way() {
    let [local, central] = [b"PK\x03\x04", b"PK\x01\x02"]
        .map(|mark| STORED.windows(4).position(|bytes| bytes == mark).unwrap() + if mark[2] == 3 { 8 } else { 10 });
    for (method, name) in [(12, "Bzip2"), (14, "Lzma")] {
        let mut other = STORED.to_vec();
        (other[local], other[central]) = (method, method);
        let (_folder, path) = file(&other);
        let expected =
            format!("its array `a` is packed with {name}, which is not supported; write it with numpy.savez");
        assert_eq!(problem(StoredRows::<Float>::npz(&path, "a")), expected);
    }
}

#[test]
fn an_archive_of_cifar_whose_gzip_checksum_is_wrong_or_cut_off_is_refused() {
    let whole = include_bytes!("cifar/cifar-10-binary.tar.gz");
    let refused = |content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cifar-10-binary.tar.gz"), content).unwrap();
        CifarFiles::cifar10().folder(folder.path()).offline(true).open().is_err()
    };
    let mut damaged = whole.to_vec();
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    assert!(!refused(whole));
    assert!(refused(&damaged), "another checksum");
    assert!(refused(&whole[..whole.len() - 8]), "no checksum");
    assert!(refused(&whole[..whole.len() - 1]), "half a length");
}

#[test]
fn a_table_of_many_columns_is_read_in_the_time_of_its_cells() {
    let names: Vec<String> = (0..200_000).map(|i| format!("{i:06}")).collect();
    let (_folder, path) = file(format!("{}\n{}\n", names.join(","), vec!["1"; names.len()].join(",")).as_bytes());
    let n_read = in_time(move || {
        let (table, names) = (CsvTable::open(&path).unwrap(), names.iter().map(String::as_str).collect::<Vec<_>>());
        table.numbers::<Int>(&names).unwrap().len() + table.missing(&names).unwrap().len()
    });
    assert_eq!(n_read, Some(400_000));
}

#[test]
fn an_empty_field_in_quotes_is_a_row() {
    let (_folder, path) = file(b"a\n1\n\"\"\n3\n");
    let table = CsvTable::open(&path).unwrap();
    assert_eq!(table.n_rows(), 3);
    assert_eq!(
        problem(table.column::<Float>("a")),
        "line 3: `` in column `a` does not parse as float32; correct the cell"
    );
}

#[test]
fn a_number_that_the_element_type_cannot_hold_is_named_with_its_line_and_column() {
    let (_folder, path) = file(b"a,b\n1,inf\n1e39,-Infinity\n-3e38,NaN\n");
    let table = CsvTable::open(&path).unwrap();
    let too_large = |dtype| {
        format!("line 3: `1e39` in column `a` is too large for {dtype}; correct the cell, or read a wider type")
    };
    assert_eq!(problem(table.column::<Float>("a")), too_large("float32"));
    assert_eq!(problem(table.numbers_of::<Float>(DType::BF16, &["b", "a"])), too_large("bfloat16"));
    let a: Tensor = table.column_of(DType::F64, "a").unwrap();
    assert_eq!(a.to_vec::<f64>().unwrap(), [1.0, 1e39, -3e38]);
    let b = table.column::<Float>("b").unwrap().to_vec::<f32>().unwrap();
    assert_eq!((b[0], b[1], b[2].is_nan()), (f32::INFINITY, f32::NEG_INFINITY, true), "what was written as such");
    let (_folder, path) = file(format!("a\n9{}\n-1e400\n", "0".repeat(400)).as_bytes());
    assert!(
        problem(CsvTable::open(&path).unwrap().column_of::<Float>(DType::F64, "a"))
            .contains("is too large for float64")
    );
}

#[cfg(feature = "parquet")]
mod parquet_lies {
    use std::sync::Arc;

    use pagelock_data::ParquetTable;
    use parquet::data_type::Int64Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::parquet_bytes::{STRUCT, column, group, long, number, of_schema, structs, unsigned, whole as file_of};
    use super::*;

    /// Two row groups of 40 and 60 rows.
    fn whole() -> Vec<u8> {
        let schema = Arc::new(parse_message_type("message rows { REQUIRED INT64 label; }").unwrap());
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        for rows in [0..40_i64, 40..100] {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&rows.collect::<Vec<_>>(), None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }

    /// Where a footer has the 64-bit number `n`, which is below 64. It is stored as the byte `2 * n`, after the byte of
    /// its field.
    fn places(content: &[u8], n: u8) -> Vec<usize> {
        let len = u32::from_le_bytes(content[content.len() - 8..][..4].try_into().unwrap()) as usize;
        let footer = content.len() - 8 - len;
        (footer..content.len() - 9).filter(|&at| content[at..at + 2] == [0x16, 2 * n]).map(|at| at + 1).collect()
    }

    #[test]
    fn a_row_group_that_claims_another_number_of_rows_is_refused() {
        let whole = whole();
        let all: Vec<i64> = (0..100).collect();
        let read = |content: &[u8]| {
            let (_folder, path) = file(content);
            let labels = ParquetTable::open(&path).and_then(|table| table.column::<Int>("label"));
            labels.map(|rows| rows.to_vec::<i64>().unwrap())
        };
        assert_eq!(read(&whole).unwrap(), all);
        for n in [40, 60] {
            let places = places(&whole, n);
            assert!(places.len() >= 2, "its values and its rows: {places:?}");
            // Changes each place alone, and all at once, to n - 1, 0, -1 and n + 1.
            for claim in [2 * (n - 1), 0, 1, 2 * (n + 1)] {
                for changed in places.iter().map(|&at| vec![at]).chain([places.clone()]) {
                    let mut content = whole.clone();
                    changed.iter().for_each(|&at| content[at] = claim);
                    let rows = read(&content);
                    assert!(rows.is_err(), "{} rows of 100 with {claim} at {changed:?}", rows.unwrap().len());
                }
            }
        }
    }

    #[test]
    fn numbers_without_a_sign_are_read_as_such_or_refused_and_so_are_decimals() {
        use parquet::data_type::Int32Type;

        let columns = "INT32 byte (UINT_8); REQUIRED INT32 id (UINT_32); REQUIRED INT64 key (UINT_64); \
                       REQUIRED INT32 price (DECIMAL(9, 2)); REQUIRED INT64 sum (DECIMAL(18, 2));";
        let schema = Arc::new(parse_message_type(&format!("message rows {{ REQUIRED {columns} }}")).unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for at in 0..5 {
            let mut column = group.next_column().unwrap().unwrap();
            match at {
                0 => column.typed::<Int32Type>().write_batch(&[255, 7], None, None),
                1 | 3 => column.typed::<Int32Type>().write_batch(&[-1, 7], None, None),
                _ => column.typed::<Int64Type>().write_batch(&[-1, 7], None, None),
            }
            .unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        let (_folder, path) = file(&writer.into_inner().unwrap());
        let table = ParquetTable::open(&path).unwrap();
        let numbers = |name| table.column::<Int>(name).unwrap().to_vec::<i64>().unwrap();
        assert_eq!((numbers("byte"), numbers("id")), (vec![255, 7], vec![4_294_967_295, 7]));
        for (name, refused) in [("key", "UINT_64"), ("price", "DECIMAL"), ("sum", "DECIMAL")] {
            assert_eq!(
                problem(table.column::<Int>(name)),
                format!(
                    "its column `{name}` has numbers of type {refused}, which no tensor holds; \
                     write it as INT64 or DOUBLE"
                )
            );
        }
    }

    fn structure(step: u8, fields: &[Vec<u8>]) -> Vec<u8> {
        [vec![step << 4 | STRUCT], fields.concat(), vec![0]].concat()
    }

    /// A file of row groups of `n_rows` rows, each with one column `n`, which has these pages, uncompressed.
    fn of_groups(pages: &[u8], n_rows: i64, n_groups: usize) -> Vec<u8> {
        let places = [long(1, n_rows), long(1, 0), long(1, pages.len() as i64), long(2, 4)].concat();
        let lists = vec![0x19, 0x15, 0, 0x19, 0x18, 1, b'n']; // of encodings, and of the names of its groups
        let chunk = [long(2, 0), structure(1, &[number(1, 2), lists, number(1, 0), places])].concat();
        let rows = [structs(1, &[chunk]), long(1, 0), long(1, n_rows)].concat();
        let schema = structs(1, &[group("rows", 1), column("n")]);
        file_of(pages, &[number(1, 1), schema, long(1, n_rows * n_groups as i64), structs(1, &vec![rows; n_groups])])
    }

    fn refused(content: &[u8]) -> String {
        let (_folder, path) = file(content);
        let text = problem(ParquetTable::open(&path).and_then(|table| table.column::<Int>("n")));
        let text = text.strip_prefix("it is not a complete Parquet file: ").expect(&text);
        text.strip_suffix("; get it again").expect(text).to_owned()
    }

    #[test]
    fn the_kind_of_a_page_is_what_its_first_field_says() {
        // A dictionary of 2,147,483,647 values, behind the details of a page of one value.
        let values = [number(1, 1), number(1, 0), number(1, 3), number(1, 3)];
        let many = [number(1, i32::MAX), number(1, 0)];
        let header = |between: &[u8]| {
            let start = [number(1, 2), number(1, 0), number(1, 0)].concat();
            [&start, between, &structure(2, &many)[..], &[0]].concat()
        };
        let expected = "a dictionary of 0 bytes claims 2147483647 values";
        assert_eq!(refused(&of_groups(&header(&structure(2, &values)), 1, 1)), expected);
        let absolute = [&[STRUCT, 10][..], &structure(0, &values)[1..]].concat(); // field 5, by its number
        assert_eq!(refused(&of_groups(&header(&absolute), 1, 1)), expected);
    }

    #[test]
    fn a_schema_that_is_nested_without_end_is_refused() {
        let deep = |n: usize| [vec![group("g", 1); n], vec![column("n")]].concat();
        assert_eq!(refused(&of_schema(&deep(100_000), b"")), "values are nested deeper than 64 levels");
        let (_folder, path) = file(&of_schema(&deep(3), b""));
        assert_eq!(ParquetTable::open(&path).unwrap().names(), ["g.g.n"], "the root has no name");
        assert_eq!(refused(&of_schema(&[group("g", i32::MAX), column("n")], b"")), "its schema lacks columns");
        assert_eq!(refused(&of_schema(&[group("g", -1)], b"")), "a group of its schema has -1 members");
    }

    #[test]
    fn what_a_file_has_beside_its_known_fields_is_skipped_in_time() {
        let skipped = |others: &[u8]| {
            let (_folder, path) = file(&of_schema(&[group("rows", 1), column("n")], others));
            ParquetTable::open(&path).map(|table| table.names().len())
        };
        // A map from texts to lists of truth values, a number of eight bytes, and an identifier of 16.
        let others = [&[0xFB, 1, 0x89, 1, b'k', 0x21, 1, 2, 0x17][..], &[0; 8], &[0x1D], &[0; 16]].concat();
        assert_eq!(skipped(&others).unwrap(), 1);
        // Lists of 2,147,483,647 truth values, which take no byte.
        let lists =
            [&[0xF9, 0xF9][..], &unsigned(1_000), &[&[0xF1][..], &unsigned(i32::MAX as u64)].concat().repeat(1_000)];
        assert!(problem(skipped(&lists.concat())).contains("a value is cut off"));
        assert!(problem(skipped(&[&[0xF9][..], &[0x19; 100]].concat())).contains("deeper than 64 levels"));
    }

    #[test]
    fn row_groups_that_share_their_pages_are_refused() {
        let index = [number(1, 1), number(1, 0), number(1, 1_000), vec![0; 1_001]].concat(); // a page to pass over
        let read = |n_groups| {
            let (_folder, path) = file(&of_groups(&index, 0, n_groups));
            ParquetTable::open(&path).and_then(|table| table.column::<Int>("n"))
        };
        assert_eq!(read(1).unwrap().len(), 0);
        let text = problem(read(100));
        assert_eq!(text, "its column `n` claims to be longer than the file; get it again");
    }

    #[test]
    fn a_file_that_claims_another_number_of_rows_than_its_groups_is_refused() {
        let mut content = whole();
        let at = content.windows(3).rposition(|bytes| bytes == [0x16, 0xC8, 0x01]).unwrap(); // 100
        content[at + 1] = 0xC6; // 99
        let (_folder, path) = file(&content);
        assert!(ParquetTable::open(&path).is_err());
    }
}

#[cfg(feature = "images")]
mod pictures {
    use image::codecs::jpeg::JpegEncoder;
    use pagelock_data::ImageFolder;

    use super::*;

    fn jpeg(width: u32, height: u32) -> Vec<u8> {
        let picture = image::RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * y) as u8, x as u8, y as u8]));
        let mut bytes = Vec::new();
        JpegEncoder::new(&mut bytes).encode_image(&picture).unwrap();
        bytes
    }

    fn decode(content: &[u8]) -> Result<Vec<usize>, Error> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(folder.path().join("a/1.jpg"), content).unwrap();
        Ok(ImageFolder::open(folder.path()).unwrap().get(0)?.0.dims().to_vec())
    }

    #[test]
    fn a_jpeg_that_is_cut_off_anywhere_is_refused() {
        let whole = jpeg(37, 23);
        assert_eq!(decode(&whole).unwrap(), [23, 37, 3]);
        assert_eq!(
            decode(&[&whole[..], b"notes"].concat()).unwrap(),
            [23, 37, 3],
            "what follows its end is no part of it"
        );
        for len in 0..whole.len() {
            let text = problem(decode(&whole[..len]).map_err(|error| match error {
                Error::Content { .. } => error,
                other => panic!("{len}: {other}"),
            }));
            assert!(text.starts_with("it cannot be decoded as a picture: "), "{len} of {}: {text}", whole.len());
        }
        let text = problem(decode(&whole[..whole.len() / 2]));
        assert!(text.contains("cut off"), "{text}");
    }

    #[test]
    fn a_jpeg_cut_off_behind_a_picture_in_its_notes_is_refused() {
        let (small, whole) = (jpeg(8, 8), jpeg(37, 23));
        let mut note = vec![0xFF, 0xE1];
        note.extend(((2 + small.len()) as u16).to_be_bytes());
        note.extend(&small);
        let with_note = [&whole[..2], &note, &whole[2..]].concat();
        assert_eq!(decode(&with_note).unwrap(), [23, 37, 3]);
        for missing in 1..30 {
            problem(decode(&with_note[..with_note.len() - missing]));
        }
    }

    /// A gray progressive picture of 1,024 x 1,024 pixels. After the first scan, each scan is 12 bytes long, and says
    /// that a bit of a coefficient is 0 in all blocks.
    fn of_scans(n_scans: usize) -> Vec<u8> {
        let segment = |marker: u8, content: &[u8]| {
            [&[0xFF, marker][..], &(content.len() as u16 + 2).to_be_bytes(), content].concat()
        };
        let codes = |class: u8, symbol: u8| [&[class, 1][..], &[0; 15], &[symbol]].concat();
        let mut bytes = vec![0xFF, 0xD8];
        bytes.extend(segment(0xDB, &[&[0][..], &[1; 64]].concat()));
        bytes.extend(segment(0xC2, &[8, 4, 0, 4, 0, 1, 1, 0x11, 0]));
        bytes.extend(segment(0xC4, &codes(0, 0)));
        bytes.extend(segment(0xC4, &codes(0x10, 0xE0))); // the end of 16,384 blocks
        bytes.extend(segment(0xDA, &[1, 1, 0, 0, 0, 0]));
        bytes.extend([0; 16_384 / 8]);
        let levels = (0..14).rev().map(|low| if low == 13 { low } else { (low + 1) << 4 | low });
        for (coefficient, level) in
            (1..64).flat_map(|at| levels.clone().map(move |level| (at, level))).take(n_scans - 1)
        {
            bytes.extend(segment(0xDA, &[1, 1, 0, coefficient, coefficient, level]));
            bytes.extend([0, 1]); // 15 bits, and a 1 to fill the byte
        }
        bytes.extend([0xFF, 0xD9]);
        bytes
    }

    /// Each scan takes the time of a whole picture, however short it is.
    #[test]
    fn a_jpeg_of_more_than_a_hundred_scans_is_refused() {
        assert_eq!(decode(&of_scans(100)).unwrap(), [1_024, 1_024, 3]);
        for n_scans in [101, 800] {
            let text = problem(decode(&of_scans(n_scans)));
            assert!(text.contains("scan") && text.contains("100"), "{text}");
        }
    }

    /// Set in the process that decodes under a limit.
    const CHILD: &str = "PAGELOCK_TEST_CHILD";

    /// Runs in a process of its own, whose memory is limited to less than any of these pictures takes. There, a picture
    /// for which memory was requested would be refused with an error of the budget, and not for its content.
    #[test]
    fn a_jpeg_that_claims_more_pixels_than_its_bytes_can_hold_is_refused_before_anything_is_allocated() {
        if std::env::var_os(CHILD).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["a_jpeg_that_claims_more_pixels", "--nocapture"]);
            let output = child.env(CHILD, "1").env("PAGELOCK_HOST_LIMIT", "16 MiB").output().unwrap();
            let has_passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            return assert!(has_passed, "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut claims = jpeg(37, 23);
        let frame = claims.windows(2).position(|bytes| bytes == [0xFF, 0xC0]).unwrap();
        for side in [16_384_u16, 16_000, 4_000, 65_535] {
            claims[frame + 5..frame + 7].copy_from_slice(&side.to_be_bytes());
            claims[frame + 7..frame + 9].copy_from_slice(&side.to_be_bytes());
            problem(decode(&claims));
        }
    }

    #[test]
    fn a_picture_that_became_a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/1.png");
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(&path, "x").unwrap();
        let pictures = ImageFolder::open(folder.path()).unwrap();
        std::fs::remove_file(&path).unwrap();
        make_pipe(&path);
        assert!(in_time(move || pictures.get(0).is_err()).expect("the reader waits"));
    }
}

/// A member of a tar archive that claims a huge length is refused.
#[test]
fn a_cifar_archive_whose_member_claims_terabytes_is_refused() {
    let mut header = tar_header("cifar-10-batches-bin/data_batch_1.bin");
    header[124..136].copy_from_slice(b"77777777777\0");
    let sum: u32 =
        header[..148].iter().chain([b' '; 8].iter()).chain(&header[156..]).map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&header).unwrap();
    std::fs::write(folder.path().join("cifar-10-binary.tar.gz"), packed.finish().unwrap()).unwrap();
    problem(CifarFiles::cifar10().folder(folder.path()).offline(true).open());
}

fn tar_header(name: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[263..265].copy_from_slice(b"00");
    header
}
