//! [`ParquetTable`]: the columns of a Parquet file, checked type by type, as tensors or bytes.
//!
//! A file states its number of rows three times: for the file, for each row group, and for each column of a group.
//! All three must agree with each other and with the values. `footer.rs` and `pages.rs` read the structure of a file,
//! within the budget; the crate `parquet` decodes the values of pages.

mod footer;
mod pages;
mod thrift;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagelock_memory::HeapReservation;
use pagelock_memory::text::shortened;
use pagelock_tensor::{AnyTensor, DType, Element, Kind, Tensor};
use parquet::basic::{ConvertedType, Repetition, Type as PhysicalType};
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type};

use self::footer::{Chunk, Column, Footer};
use self::pages::Pages;
use crate::elements::{for_each_pair, kind_of};
use crate::file_bytes::FileBytes;
use crate::identity::{hash_of_blocks, hash_or_error};
use crate::panics::unpanicked;
use crate::{Error, Result};

/// A Parquet file whose columns are read on demand. Nested columns are named with dots: `image.bytes`. The file may
/// be compressed with Snappy. Texts may have any encoding but `DELTA_LENGTH_BYTE_ARRAY` and `DELTA_BYTE_ARRAY`.
///
/// # Examples
/// ```no_run
/// use pagelock_data::{ParquetTable, TensorDataset};
/// use pagelock_tensor::{Int, Tensor};
///
/// let table = ParquetTable::open("train.parquet")?;
/// let points: Tensor = Tensor::stack(&[&table.column("x")?, &table.column("y")?], 1)?; // [rows, 2]
/// let labels: Tensor<Int> = table.column("label")?; // [rows]
/// let dataset = TensorDataset::new((points, labels))?;
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone)]
pub struct ParquetTable {
    path: PathBuf,
    file: FileBytes,
    footer: Arc<Footer>,
    n_rows: usize,
}

impl ParquetTable {
    /// Opens a file and reads its footer: the columns and the row groups.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is not a Parquet file, or is damaged; [`Error::Memory`] if the budget
    /// has no memory for the footer.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::ParquetTable;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// let error = ParquetTable::open(file.path()).err().unwrap().to_string();
    /// assert!(error.contains("cannot be used: it is not a complete Parquet file: "), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = FileBytes::open(&path)?;
        let footer = Footer::read(&file).map_err(|error| failed(&path, error))?;
        let n_in_groups =
            footer.groups.iter().try_fold(0_usize, |sum, &n_rows| sum.checked_add(usize::try_from(n_rows).ok()?));
        let n_rows = usize::try_from(footer.n_rows).ok().filter(|&n_rows| Some(n_rows) == n_in_groups);
        let n_rows = n_rows.ok_or_else(|| {
            let claimed = footer.n_rows;
            Error::content(
                &path,
                format!("it claims {claimed} rows, but its row groups claim another number; get it again"),
            )
        })?;
        Ok(Self { path, file, footer: Arc::new(footer), n_rows })
    }

    /// The names of the columns.
    pub fn names(&self) -> &[String] {
        &self.footer.names
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Identifies the table in one line, for the [`Dataset::identity`](crate::Dataset::identity) of a dataset that is
    /// made of it: the number of rows, the length of the file, and a hash. The hash covers all bytes if they are at
    /// most 64 KiB, else 16 blocks of 4 KiB from the first to the last, which has the footer.
    ///
    /// # Examples
    /// As [`CsvTable::identity`](crate::CsvTable::identity).
    pub fn identity(&self) -> String {
        let file = &self.file;
        let (len_bytes, hash) = (file.len(), hash_of_blocks(file.len(), |out, at| file.read_exact_at(out, at)));
        format!("ParquetTable of {} rows in {len_bytes} bytes, {}", self.n_rows, hash_or_error(hash))
    }

    /// One column of numbers or truth values, `[rows]`, in the precision that the file has them in; unsigned numbers of
    /// 32 bits are read as `i64`.
    ///
    /// # Errors
    /// [`Error::Content`] for an unknown column, one that has elements of another kind, unsigned numbers of 64 bits,
    /// decimals, lists, or a row without a value, and for a damaged file; [`Error::Tensor`] if memory is refused.
    pub fn column<K: Kind>(&self, name: &str) -> Result<Tensor<K>> {
        Ok(self.column_if(name, K::holds, K::NAME)?.kind()?)
    }

    /// A column, if `holds` accepts its element type; `kind` is for the error.
    fn column_if(&self, name: &str, holds: fn(DType) -> bool, kind: &str) -> Result<AnyTensor> {
        let at = self.position(name)?;
        let &Column { physical, meaning, .. } = &self.footer.columns[at];
        if matches!(meaning, ConvertedType::UINT_64 | ConvertedType::DECIMAL) {
            let problem = format!("its column `{name}` has numbers of type {meaning}, which no tensor holds");
            return Err(self.wrong(format!("{problem}; write it as INT64 or DOUBLE")));
        }
        let is_unsigned = meaning == ConvertedType::UINT_32; // those of fewer bits are never negative
        let dtype = match physical {
            PhysicalType::FLOAT => DType::F32,
            PhysicalType::DOUBLE => DType::F64,
            PhysicalType::INT32 if is_unsigned => DType::I64,
            PhysicalType::INT32 => DType::I32,
            PhysicalType::INT64 => DType::I64,
            PhysicalType::BOOLEAN => DType::Bool,
            other => {
                let problem = format!("its column `{name}` has elements of type {other}, which are not numbers");
                return Err(self.wrong(format!("{problem}; use bytes()")));
            }
        };
        if !holds(dtype) {
            let its_kind = kind_of(dtype);
            let problem = format!("its column `{name}` has elements of type {dtype}, which are not of kind {kind}");
            return Err(self.wrong(format!("{problem}; read it as {its_kind}")));
        }
        match dtype {
            DType::F32 => self.tensor::<FloatType, f32>(at, |&value| value),
            DType::F64 => self.tensor::<DoubleType, f64>(at, |&value| value),
            DType::I32 => self.tensor::<Int32Type, i32>(at, |&value| value),
            DType::I64 if is_unsigned => self.tensor::<Int32Type, i64>(at, |&value| i64::from(value as u32)),
            DType::I64 => self.tensor::<Int64Type, i64>(at, |&value| value),
            _ => self.tensor::<BoolType, bool>(at, |&value| value),
        }
    }

    /// One column of bytes or texts, for example encoded pictures.
    ///
    /// # Errors
    /// As [`column`](Self::column); [`Error::Memory`] if the budget has no memory for them. The returned bytes count
    /// in no budget.
    ///
    /// # Examples
    /// ```no_run
    /// # use pagelock_data::ParquetTable;
    /// let pictures = ParquetTable::open("train.parquet")?.bytes("image.bytes")?;
    /// println!("{} pictures, the first has {} bytes", pictures.len(), pictures[0].len());
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn bytes(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        let at = self.position(name)?;
        let physical = self.footer.columns[at].physical;
        if physical != PhysicalType::BYTE_ARRAY {
            return Err(self.wrong(format!("its column `{name}` has {physical}, not bytes; use column()")));
        }
        let (mut all, mut reservations) = (Vec::new(), Vec::new()); // for `all`, until the end
        self.read::<ByteArrayType>(at, &mut |values| {
            let n_bytes: usize = values.iter().map(|bytes| bytes.len() + TEXT_OVERHEAD).sum();
            reservations.push(HeapReservation::new(n_bytes as u64)?);
            all.extend(values.iter().map(|bytes| bytes.data().to_vec()));
            Ok(())
        })?;
        Ok(all)
    }

    /// One column of texts. [`Categories`](crate::Categories) makes codes of them.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); [`Error::Content`] for a text that is not UTF-8. The returned texts count in no
    /// budget.
    ///
    /// # Examples
    /// ```no_run
    /// use pagelock_data::{Categories, ParquetTable};
    ///
    /// let colors = ParquetTable::open("train.parquet")?.texts("color")?;
    /// let codes = Categories::of(&colors)?.codes(&colors)?;
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        let text = |(row, bytes): (usize, Vec<u8>)| {
            String::from_utf8(bytes).map_err(|error| {
                self.wrong(format!(
                    "row {row} of its column `{name}` is not UTF-8: {}; use bytes()",
                    error.utf8_error()
                ))
            })
        };
        self.bytes(name)?.into_iter().enumerate().map(text).collect()
    }

    fn tensor<D: DataType, E: Element>(&self, at: usize, element: impl Fn(&D::T) -> E) -> Result<AnyTensor> {
        let mut outcome = Ok(());
        let tensor = Tensor::build(self.n_rows, |mut out: &mut [E]| {
            outcome = self.read::<D>(at, &mut |values| {
                let (chunk, rest) = std::mem::take(&mut out).split_at_mut(values.len());
                for_each_pair(chunk, values, |to, value| *to = element(value));
                out = rest;
                Ok(())
            });
        })?;
        outcome.map(|()| tensor.into())
    }

    /// Passes all values of a column to `take`, some at a time, one value for each row. `D` is the column's type.
    fn read<D: DataType>(&self, at: usize, take: &mut dyn FnMut(&[D::T]) -> Result<()>) -> Result<()> {
        let (name, column) = (&self.footer.names[at], &self.footer.columns[at]);
        if column.max_rep_level > 0 {
            return Err(self.wrong(format!("its column `{name}` has lists in its rows; unnest them first")));
        }
        let (mut n_before, mut n_bytes) = (0, 0);
        for (chunk, &claimed) in self.footer.chunks_of(at).zip(&self.footer.groups) {
            let n_values = chunk.n_values;
            if n_values != claimed {
                return Err(self.wrong(format!(
                    "a row group claims {claimed} rows, but its column `{name}` has {n_values} values; get it again"
                )));
            }
            let pages = self.pages(name, chunk)?;
            n_bytes += pages.len(); // so a file cannot have the same pages read again and again
            if n_bytes > self.file.len() {
                return Err(self.wrong(format!("its column `{name}` claims to be longer than the file; get it again")));
            }
            let n_rows = usize::try_from(claimed).unwrap_or(0);
            let mut rows = Group { table: self, name, levels: vec![], values: vec![], n_before };
            rows.read::<D>(Pages::new(pages, chunk.codec == SNAPPY), column, n_rows, take)?;
            n_before += n_rows;
        }
        Ok(())
    }

    /// The part of the file with the pages of a column.
    fn pages(&self, name: &str, chunk: Chunk) -> Result<FileBytes> {
        let Chunk { codec, n_bytes, data_at, dictionary_at, .. } = chunk;
        if ![UNCOMPRESSED, SNAPPY].contains(&codec) {
            let known = usize::try_from(codec).ok().and_then(|at| CODECS.get(at));
            let codec = known.map_or_else(|| format!("codec {codec}"), |&name| name.into());
            return Err(self.wrong(format!(
                "it is compressed with {codec}, which is not supported; \
                 write the file again with the compression `snappy` or `none`"
            )));
        }
        let start = if dictionary_at > 0 { dictionary_at } else { data_at }; // a column without values has no data pages
        let part = u64::try_from(start).ok().zip(u64::try_from(n_bytes).ok());
        part.and_then(|(start, n_bytes)| self.file.part(start, n_bytes)).ok_or_else(|| {
            let problem =
                format!("its column `{name}` has {n_bytes} bytes from byte {start} on, which it does not have");
            self.wrong(format!("{problem}; get it again"))
        })
    }

    fn position(&self, name: &str) -> Result<usize> {
        let found = self.names().iter().position(|known| known == name);
        let known = || self.names().iter().take(100).map(|name| shortened(name)).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| self.wrong(format!("it has no column `{name}`; it has {}", known())))
    }

    fn wrong(&self, problem: String) -> Error {
        Error::content(&self.path, problem)
    }
}

/// Reads one column of a row group.
struct Group<'a, T> {
    table: &'a ParquetTable,
    name: &'a str,
    levels: Vec<i16>,
    values: Vec<T>,
    n_before: usize, // rows of the groups before
}

impl<T> Group<'_, T> {
    /// Reads all values, of which there must be `n_rows`.
    fn read<D: DataType<T = T>>(
        &mut self,
        pages: Pages,
        column: &Column,
        n_rows: usize,
        take: &mut dyn FnMut(&[T]) -> Result<()>,
    ) -> Result<()> {
        let whole = column.max_def_level; // the definition level of a value that is present
        let mut reader = self.decode(|_| {
            let leaf =
                Type::primitive_type_builder("", column.physical).with_repetition(Repetition::REQUIRED).build()?;
            let path = ColumnPath::new(vec![]);
            let column = ColumnDescriptor::new(Arc::new(leaf), whole, column.max_rep_level, path);
            Ok(get_typed_column_reader::<D>(get_column_reader(Arc::new(column), Box::new(pages))))
        })?;
        let mut n_read = 0;
        while n_read < n_rows {
            let n_records = self.read_some(&mut reader, (n_rows - n_read).min(BATCH))?;
            if n_records == 0 {
                return Err(self.table.wrong(format!("its column `{}` has too few values; get it again", self.name)));
            }
            if let Some(row) = self.levels.iter().position(|&level| level < whole) {
                let (row, name) = (self.n_before + n_read + row, self.name);
                let problem = format!("row {row} has no value in column `{name}`; drop such rows, or fill them");
                return Err(self.table.wrong(problem));
            }
            if self.values.len() != n_records {
                let problem = format!("there are {} values instead of {n_records}", self.values.len());
                return Err(damaged(&self.table.path, &problem));
            }
            take(&self.values)?;
            n_read += n_records;
        }
        match self.read_some(&mut reader, 1)? {
            0 => Ok(()),
            _ => Err(self.table.wrong(format!("its column `{}` has too many values; get it again", self.name))),
        }
    }

    /// Reads at most `most` values; returns how many rows they are.
    fn read_some<D: DataType<T = T>>(&mut self, reader: &mut ColumnReaderImpl<D>, most: usize) -> Result<usize> {
        self.levels.clear();
        self.values.clear();
        self.decode(|rows| {
            let read = reader.read_records(most, Some(&mut rows.levels), None, &mut rows.values);
            read.map(|(n_records, ..)| n_records)
        })
    }

    /// Calls the decoder; a panic becomes an error.
    fn decode<R>(&mut self, work: impl FnOnce(&mut Self) -> parquet::errors::Result<R>) -> Result<R> {
        let outcome = unpanicked(|| Ok(work(self))).unwrap_or_else(|panic| Err(ParquetError::General(panic)));
        outcome.map_err(|error| failed(&self.table.path, error))
    }
}

/// Codecs, by their numbers.
const UNCOMPRESSED: i64 = 0;
const SNAPPY: i64 = 1;
const CODECS: [&str; 8] = ["none", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];

/// The overhead of a text in bytes: its entry in a list that grows, and the allocator's own.
const TEXT_OVERHEAD: usize = 2 * size_of::<Vec<u8>>() + 32;

/// Rows that are read at once.
const BATCH: usize = 1 << 16;

impl From<Error> for ParquetError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// The cause of an error while a file is read: an error of this crate or of the file system, or the file is damaged.
fn failed(path: &Path, error: ParquetError) -> Error {
    match error {
        ParquetError::External(source) => match source.downcast() {
            Ok(error) => *error,
            Err(source) => match source.downcast::<io::Error>() {
                Ok(error) => Error::io("read", path, *error),
                Err(other) => damaged(path, &other.to_string()),
            },
        },
        ParquetError::General(problem) | ParquetError::EOF(problem) => damaged(path, &problem),
        other => damaged(path, &other.to_string()),
    }
}

fn damaged(path: &Path, problem: &str) -> Error {
    Error::content(path, format!("it is not a complete Parquet file: {problem}; get it again"))
}
