//! Readers of files that hold, or claim, more than the limit: refused, or read in pieces.

use std::path::PathBuf;

use pagelock_data::idx::IdxFile;
use pagelock_data::text::{BytePairs, Vocab};
use pagelock_data::{Categories, CifarFiles, CsvTable, StoredRows};
use pagelock_memory::host_budget;
use pagelock_tensor::Float;

use super::{FILES, MIB, assert_refused};

pub(super) const CASES: &[(&str, fn())] = &[
    ("a table of many names", many_names),
    ("a table that does not fit", a_large_table),
    ("an archive of many members", many_members),
    ("a member that does not fit", a_large_member),
    ("rows behind a header that is the file", a_long_header_of_rows),
    ("an IDX file that unpacks to more", a_large_idx_file),
    ("an archive with a note that unpacks to more", an_archive_with_a_long_note),
    #[cfg(feature = "images")]
    ("pictures that do not fit", pictures::that_do_not_fit),
    #[cfg(feature = "images")]
    ("pictures that fit, by several threads", pictures::that_fit),
    #[cfg(feature = "images")]
    ("pictures whose headers lie", pictures::that_lie),
    #[cfg(feature = "images")]
    ("a list of pictures", pictures::whose_list_counts),
    #[cfg(feature = "parquet")]
    ("row groups that do not fit", tables::row_groups_that_do_not_fit),
    #[cfg(feature = "parquet")]
    ("row groups that fit, again and again", tables::row_groups_that_fit),
    #[cfg(feature = "parquet")]
    ("a dictionary that does not fit", tables::a_large_dictionary),
    #[cfg(feature = "parquet")]
    ("many pages of texts", tables::many_pages),
    #[cfg(feature = "parquet")]
    ("columns of a group with a long name", tables::long_names),
    ("a vocabulary that does not fit", a_large_vocabulary),
    ("a vocabulary without end", an_endless_vocabulary),
    ("a token that is written", a_long_token),
    #[cfg(feature = "text")]
    ("texts that are normalized", texts_that_are_normalized),
    ("byte pairs that do not fit", many_byte_pairs),
    ("pieces that are no text", pieces_that_are_no_text),
];

pub(super) fn file(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(FILES).unwrap()).join(name)
}

fn many_names() {
    assert_refused(&CsvTable::open(file("names.csv")).unwrap_err());
}

fn a_large_table() {
    assert_refused(&CsvTable::open(file("large.csv")).unwrap_err());
}

fn many_members() {
    assert_refused(&StoredRows::<Float>::npz(file("members.npz"), "x").unwrap_err());
}

fn a_large_member() {
    assert_refused(&StoredRows::<Float>::npz(file("large.npz"), "x").unwrap_err());
}

fn a_long_header_of_rows() {
    assert_refused(&StoredRows::<Float>::safetensors(file("names.safetensors"), "x").unwrap_err());
}

fn a_large_idx_file() {
    assert_refused(&IdxFile::open(file("large.idx.gz")).err().unwrap());
}

fn an_archive_with_a_long_note() {
    let refused = CifarFiles::cifar10().folder(file("cifar")).offline(true).open().unwrap_err();
    assert!(refused.to_string().contains("cifar-10-binary.tar.gz"), "{refused}");
}

fn an_endless_vocabulary() {
    assert_refused(&Vocab::new((0_u64..).map(|i| i.to_string())).unwrap_err());
    assert_refused(&Categories::new((0_u64..).map(|i| i.to_string())).unwrap_err());
    let before = host_budget().used();
    let _kept = Categories::of(&vec!["a".repeat(MIB); 10]).unwrap();
    assert!(host_budget().used().0 >= before.0 + 2 * MIB as u64);
}

fn a_long_token() {
    let vocab = Vocab::new(["\n".repeat(20 * MIB)]).unwrap();
    vocab.save(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
}

#[cfg(feature = "text")]
fn texts_that_are_normalized() {
    use pagelock_data::text::{NormalForm, fold_to_ascii, normalize};

    let (grows, accents) = ("\u{FDFA}".repeat(6 * MIB / 3), "\u{301}".repeat(6 * MIB / 2));
    assert_refused(&normalize(&grows, NormalForm::Nfkd).unwrap_err()); // 66 MiB
    assert_refused(&normalize(&accents, NormalForm::Nfc).unwrap_err());
    assert_refused(&fold_to_ascii(&accents).unwrap_err());
    assert_eq!(normalize(&"é".repeat(MIB), NormalForm::Nfc).unwrap().len(), 2 * MIB);
}

fn a_large_vocabulary() {
    assert_refused(&Vocab::load(file("vocabulary.txt")).unwrap_err());
}

fn many_byte_pairs() {
    assert_refused(&BytePairs::load(file("pairs.txt")).unwrap_err());
}

/// Each byte that is not UTF-8 takes three bytes in the text.
fn pieces_that_are_no_text() {
    let pieces = BytePairs::load(file("no_text.txt")).unwrap(); // the last has 128 bytes
    assert_eq!(pieces.decode(&[262; 1_000]).unwrap().len(), 3 * 128_000);
    assert_refused(&pieces.decode(&[262; 200_000]).unwrap_err());
}

#[cfg(feature = "images")]
mod pictures {
    use pagelock_data::{DataLoader, Dataset, ImageFolder, Result};
    use pagelock_memory::ByteSize;
    use pagelock_tensor::{Int, Tensor};

    use super::*;

    fn all(folder: &str) -> (ImageFolder, Vec<Result<(Tensor<Int>, i64)>>) {
        let pictures = ImageFolder::open(file(folder)).unwrap();
        let read = (0..pictures.len()).map(|index| pictures.get(index)).collect();
        (pictures, read)
    }

    pub(super) fn that_do_not_fit() {
        for picture in all("large").1 {
            assert_refused(&picture.unwrap_err());
        }
    }

    pub(super) fn that_fit() {
        let pictures = ImageFolder::open(file("small")).unwrap();
        assert!((0..pictures.len()).all(|index| pictures.get(index).is_ok()));
        let loader = DataLoader::new(pictures).batch_size(1).num_workers(4);
        for batch in (0..4).flat_map(|_| loader.iter()) {
            batch.map(drop).unwrap_or_else(|refused| assert_refused(&refused));
        }
    }

    pub(super) fn whose_list_counts() {
        let before = host_budget().used();
        let _pictures = ImageFolder::open(file("small")).unwrap();
        assert!(host_budget().used() > before);
        host_budget().set_limit(ByteSize(host_budget().used().0 + (200 << 10)));
        assert_refused(&ImageFolder::open(file("classes")).unwrap_err()); // 400 names of 250 bytes, twice
    }

    pub(super) fn that_lie() {
        let (_, read) = all("lies");
        let said: Vec<_> =
            read.iter().map(|picture| picture.as_ref().map(|_| ()).map_err(ToString::to_string)).collect();
        assert!(said[0].is_ok(), "a picture is read without a profile that is too long: {said:?}");
        assert!(said[1..].iter().all(Result::is_err), "{said:?}");
    }
}

#[cfg(feature = "parquet")]
mod tables {
    use pagelock_data::ParquetTable;
    use pagelock_tensor::Int;

    use super::*;

    pub(super) fn row_groups_that_do_not_fit() {
        assert_refused(&ParquetTable::open(file("large_n.parquet")).unwrap().column::<Int>("n").unwrap_err());
        assert_refused(&ParquetTable::open(file("large_t.parquet")).unwrap().bytes("t").unwrap_err());
    }

    pub(super) fn row_groups_that_fit() {
        let [numbers, texts] =
            ["small_n", "small_t"].map(|name| ParquetTable::open(file(&format!("{name}.parquet"))).unwrap());
        for _ in 0..5 {
            assert_eq!(numbers.column::<Int>("n").unwrap().dims(), [2_000_000]);
            assert_eq!(texts.bytes("t").unwrap()[0].len(), 12 << 20);
        }
    }

    pub(super) fn a_large_dictionary() {
        assert_refused(&ParquetTable::open(file("dictionary.parquet")).unwrap().bytes("t").unwrap_err());
    }

    /// All pages of a batch of rows are in memory at once, beside the texts that were read from them.
    pub(super) fn many_pages() {
        assert_refused(&ParquetTable::open(file("pages.parquet")).unwrap().bytes("t").unwrap_err());
        assert_eq!(ParquetTable::open(file("few_pages.parquet")).unwrap().bytes("t").unwrap().len(), 16);
    }

    pub(super) fn long_names() {
        assert_refused(&ParquetTable::open(file("columns.parquet")).err().unwrap());
    }
}
