//! [`ParquetTable`]: the columns of a Parquet file, checked type by type, as tensors or bytes.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagelock_tensor::{DType, Element, Tensor};
use parquet::basic::Type as PhysicalType;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::error::panic_message;
use crate::{Error, Result};

/// A Parquet file whose columns are read when they are asked for. Columns within others are named with dots:
/// `image.bytes`. Packed with Snappy or not at all.
///
/// # Examples
/// ```no_run
/// use pagelock_data::{ParquetTable, TensorDataset};
///
/// let table = ParquetTable::open("train.parquet")?;
/// let points = Tensor::stack(&[&table.column::<f32>("x")?, &table.column("y")?], 1)?; // [rows, 2]
/// let labels = table.column::<i64>("label")?; // [rows]
/// let dataset = TensorDataset::new((points, labels))?;
/// # use pagelock_tensor::Tensor;
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone)]
pub struct ParquetTable {
    path: PathBuf,
    reader: Arc<SerializedFileReader<File>>,
    names: Vec<String>,
    n_rows: usize,
}

impl ParquetTable {
    /// Reads what the file says of itself.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is no Parquet file, or a damaged one.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::ParquetTable;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// let error = ParquetTable::open(file.path()).err().unwrap().to_string();
    /// assert!(error.contains("cannot be used: it is no whole Parquet file: "), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = File::open(&path).map_err(|source| Error::io("open", &path, source))?;
        let opened = unpanicked(&path, || Ok(SerializedFileReader::new(file)))?;
        let reader = opened.map_err(|error| damaged(&path, &error))?;
        let metadata = reader.metadata().file_metadata();
        let names = metadata.schema_descr().columns().iter().map(|column| column.path().string()).collect();
        let n_rows = usize::try_from(metadata.num_rows()).ok();
        let n_rows = n_rows.ok_or_else(|| content(&path, "it claims less than no rows; get it again".into()))?;
        Ok(Self { path, reader: Arc::new(reader), names, n_rows })
    }

    /// The names of the columns.
    ///
    /// # Examples
    /// See [`ParquetTable`].
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many rows there are.
    ///
    /// # Examples
    /// See [`ParquetTable`].
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// One column of numbers or truth values, `[rows]`, of the type that the file has them in.
    ///
    /// # Errors
    /// [`Error::Content`] for a column that is not there, has other elements, lists in rows, or a row without a value, and
    /// for a damaged file; [`Error::Tensor`] if memory is refused.
    ///
    /// # Examples
    /// See [`ParquetTable`].
    pub fn column<T: Element>(&self, name: &str) -> Result<Tensor<T>> {
        let at = self.position(name)?;
        let dtype = match self.physical(at) {
            PhysicalType::FLOAT => DType::F32,
            PhysicalType::DOUBLE => DType::F64,
            PhysicalType::INT32 => DType::I32,
            PhysicalType::INT64 => DType::I64,
            PhysicalType::BOOLEAN => DType::Bool,
            other => return Err(self.wrong(format!("its column `{name}` has {other}, and no numbers; use bytes()"))),
        };
        if dtype != T::DTYPE {
            let wanted = T::DTYPE;
            return Err(self.wrong(format!("its column `{name}` has {dtype}, not {wanted}; read it as that, and cast")));
        }
        match dtype {
            DType::F32 => self.tensor::<FloatType, f32>(at)?.cast(),
            DType::F64 => self.tensor::<DoubleType, f64>(at)?.cast(),
            DType::I32 => self.tensor::<Int32Type, i32>(at)?.cast(),
            DType::I64 => self.tensor::<Int64Type, i64>(at)?.cast(),
            _ => self.tensor::<BoolType, bool>(at)?.cast(),
        }
        .map_err(Error::from) // `T` is that type already
    }

    /// One column of bytes or texts: encoded pictures, say.
    ///
    /// # Errors
    /// As [`column`](Self::column).
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
        let physical = self.physical(at);
        if physical != PhysicalType::BYTE_ARRAY {
            return Err(self.wrong(format!("its column `{name}` has {physical}, and no bytes; use column()")));
        }
        Ok(self.values::<ByteArrayType>(at)?.into_iter().map(|bytes| bytes.data().to_vec()).collect())
    }

    fn tensor<D: DataType<T = T>, T: Element>(&self, at: usize) -> Result<Tensor<T>> {
        let values = self.values::<D>(at)?;
        let n_rows = values.len();
        Ok(Tensor::from_vec(values, n_rows)?)
    }

    /// All values of a column, one for each row; `D` is its type.
    fn values<D: DataType>(&self, at: usize) -> Result<Vec<D::T>> {
        unpanicked(&self.path, || self.decoded::<D>(at))
    }

    fn decoded<D: DataType>(&self, at: usize) -> Result<Vec<D::T>> {
        let name = &self.names[at];
        let column = self.reader.metadata().file_metadata().schema_descr().column(at);
        if column.max_rep_level() > 0 {
            return Err(self.wrong(format!("its column `{name}` has lists in its rows; unnest them first")));
        }
        let (mut values, mut n_before) = (Vec::new(), 0);
        for group in 0..self.reader.num_row_groups() {
            let failed = |error| damaged(&self.path, &error);
            let group = self.reader.get_row_group(group).map_err(failed)?;
            let n_rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            let mut reader = get_typed_column_reader::<D>(group.get_column_reader(at).map_err(failed)?);
            let mut levels = Vec::new();
            let mut n_read = 0;
            while n_read < n_rows {
                let (n_records, ..) =
                    reader.read_records(n_rows - n_read, Some(&mut levels), None, &mut values).map_err(failed)?;
                if n_records == 0 {
                    return Err(self.wrong(format!("its column `{name}` is shorter than it says; get it again")));
                }
                n_read += n_records;
            }
            if let Some(row) = levels.iter().position(|&level| level < column.max_def_level()) {
                let row = n_before + row;
                return Err(
                    self.wrong(format!("row {row} has no value in column `{name}`; drop such rows, or fill them"))
                );
            }
            n_before += n_rows;
        }
        Ok(values)
    }

    fn physical(&self, at: usize) -> PhysicalType {
        self.reader.metadata().file_metadata().schema_descr().column(at).physical_type()
    }

    fn position(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|known| known == name);
        found.ok_or_else(|| self.wrong(format!("it has no column `{name}`; it has {}", self.names.join(", "))))
    }

    fn wrong(&self, problem: String) -> Error {
        content(&self.path, problem)
    }
}

/// What `read` gives; an error where the decoder panics, as it does over some damaged files. It keeps nothing between calls.
fn unpanicked<R>(path: &Path, read: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let said = panic_message(&*panic);
        Err(content(path, format!("it is no whole Parquet file: its decoder gave up with \"{said}\"; get it again")))
    })
}

fn content(path: &Path, problem: String) -> Error {
    Error::Content { path: path.into(), problem }
}

fn damaged(path: &Path, error: &ParquetError) -> Error {
    content(path, format!("it is no whole Parquet file: {error}; get it again"))
}
