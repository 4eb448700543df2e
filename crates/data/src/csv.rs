//! [`CsvTable`]: the numbers of a CSV file, checked cell by cell.
//!
//! The format is that of RFC 4180. Fields are separated by commas (or another byte) and may be quoted; within quotes,
//! a doubled quote is one quote. Lines end with LF or CRLF. Every cell of a column that is read as numbers must be a
//! number.
//!
//! A table holds the bytes of its file, counted in the host's budget. `csv-core`, the parser inside the crate `csv`,
//! parses them once when the table is opened and once for each read of columns. It writes one field at a time into
//! one buffer. The crate `csv` collects records instead, which take 24 times the memory of a file that consists of
//! separators.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use csv_core::{ReadFieldResult, ReaderBuilder};
use pagelock_memory::{HeapReservation, HostBuffer, default_host, open_regular};
use pagelock_tensor::{AnyTensor, DType, Element, Error as TensorError, Kind, Scalar, Tensor};

use crate::elements::{try_build, with_element};
use crate::identity::checksum;
use crate::{Error, Result};

/// A CSV file with a header line, read into memory as text.
///
/// The kind of the requested tensor decides how columns are read: floats in
/// [`default_dtype`](pagelock_tensor::default_dtype), whole numbers as `i64`, `true` and `false` as truth values.
/// [`numbers_of`](Self::numbers_of) reads another precision.
///
/// # Examples
/// ```
/// use pagelock_data::{CsvTable, TensorDataset};
/// use pagelock_tensor::{Int, Tensor};
///
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(&file, "length,\"width, cm\",kind\n5.1,3.5,0\n4.9,3.0,1\n")?;
///
/// let table = CsvTable::open(file.path())?;
/// assert_eq!((table.n_rows(), table.names()), (2, &["length", "width, cm", "kind"].map(String::from)[..]));
/// let points: Tensor = table.numbers(&["length", "width, cm"])?; // [2, 2]
/// let kinds: Tensor<Int> = table.column("kind")?; // [2]
/// assert_eq!(points.to_vec::<f32>()?, [5.1, 3.5, 4.9, 3.0]);
/// let dataset = TensorDataset::new((points, kinds))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CsvTable {
    path: PathBuf,
    separator: u8,
    bytes: Arc<HostBuffer>,
    names: Arc<[String]>,
    _names: Arc<HeapReservation>, // budget for `names`
    n_rows: usize,
    na_values: Arc<[String]>, // cells that count as missing, in addition to empty ones
    fill: Option<f64>,        // what a missing cell is read as
}

/// The most bytes of a number, and of a column's name.
pub(crate) const LONGEST_FIELD: usize = 4_096;
/// The overhead of a name in bytes: its entry in a list, which is copied once, and the allocator's own.
const NAME_OVERHEAD: usize = 2 * size_of::<String>() + 32;

impl CsvTable {
    /// Reads a file whose fields are separated by commas.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is not UTF-8, has no header, or has an unclosed quote or a line with
    /// another number of fields than the header (the error names the line); [`Error::Memory`] if the budget refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, b',')
    }

    /// As [`open`](Self::open), with fields that are separated by the byte `separator`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// use pagelock_tensor::Int;
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "a\tb\n1\t2")?;
    /// assert_eq!(CsvTable::open_with(file.path(), b'\t')?.column::<Int>("b")?.to_vec::<i64>()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(path: impl AsRef<Path>, separator: u8) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |problem| Error::content(path, problem);
        let bytes = read_file(path)?;
        let text = std::str::from_utf8(bytes.bytes());
        text.map_err(|error| wrong(format!("it is not UTF-8: {error}; convert it")))?;
        let (n_names, n_rows) = count(bytes.bytes(), separator).map_err(wrong)?;
        let reservation =
            HeapReservation::new((n_names * NAME_OVERHEAD + bytes.len_bytes().min(n_names * LONGEST_FIELD)) as u64)?;
        let names = header(bytes.bytes(), separator, n_names).map_err(wrong)?;
        let (names, _names) = (names.into(), Arc::new(reservation));
        Ok(Self {
            path: path.into(),
            separator,
            bytes: Arc::new(bytes),
            names,
            _names,
            n_rows,
            na_values: [].into(),
            fill: None,
        })
    }

    /// The names of the columns, as the header has them. Columns are found by these names, and by names without the
    /// spaces around them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many rows there are, without the header.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// One column of numbers, `[rows]`.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers).
    pub fn column<K: Kind>(&self, name: &str) -> Result<Tensor<K>> {
        self.column_of(K::default_dtype(), name)
    }

    /// One column of numbers, `[rows]`, in the precision `dtype`.
    ///
    /// # Errors
    /// As [`numbers_of`](Self::numbers_of).
    pub fn column_of<K: Kind>(&self, dtype: DType, name: &str) -> Result<Tensor<K>> {
        Ok(self.numbers_of(dtype, &[name])?.reshape([-1])?)
    }

    /// Columns of numbers, `[rows, columns]`, in the order in which they are named.
    ///
    /// # Errors
    /// [`Error::Content`] for an unknown column, and for a cell that is not a number of this kind or is too large for
    /// the precision (the error names the line); [`Error::Tensor`] if memory is refused.
    pub fn numbers<K: Kind>(&self, names: &[&str]) -> Result<Tensor<K>> {
        self.numbers_of(K::default_dtype(), names)
    }

    /// As [`numbers`](Self::numbers), in the precision `dtype`.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers); [`Error::Tensor`] if `dtype` is not of kind `K`.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// use pagelock_tensor::{DType, Int, Tensor};
    /// # let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "x,y,pixel\n1e300,0.1,255\n")?;
    /// let table = CsvTable::open(file.path())?;
    /// let points: Tensor = table.numbers_of(DType::F64, &["x", "y"])?;
    /// let pixels: Tensor<Int> = table.column_of(DType::U8, "pixel")?;
    /// assert_eq!((points.to_vec::<f64>()?, pixels.item::<u8>()?), (vec![1e300, 0.1], 255));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn numbers_of<K: Kind>(&self, dtype: DType, names: &[&str]) -> Result<Tensor<K>> {
        if !K::holds(dtype) {
            return Err(TensorError::WrongKind { op: "numbers_of", dtype, kind: K::NAME }.into());
        }
        Ok(self.read(dtype, names)?.kind()?)
    }

    /// Counts cells with one of these texts as missing, for example "NA" and "?". Empty cells are always missing.
    pub fn na_values(mut self, texts: &[&str]) -> Self {
        self.na_values = texts.iter().map(|&text| text.to_owned()).collect();
        self
    }

    /// Reads missing cells as the number `value`. Without this, a missing cell is an error.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// # use pagelock_tensor::Tensor;
    /// # let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "age,rooms\n12,3\n?,4\n30,\n")?;
    /// let table = CsvTable::open(file.path())?.na_values(&["?"]);
    /// assert!(table.numbers::<pagelock_tensor::Float>(&["age"]).is_err());
    ///
    /// let is_missing = table.missing(&["age", "rooms"])?; // a mask to train with
    /// let numbers: Tensor = table.fill_missing(0.0).numbers(&["age", "rooms"])?;
    /// assert_eq!(numbers.to_vec::<f32>()?, [12.0, 3.0, 0.0, 4.0, 30.0, 0.0]);
    /// assert_eq!(is_missing.to_vec::<bool>()?, [false, false, true, false, false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill_missing(mut self, value: f64) -> Self {
        self.fill = Some(value);
        self
    }

    /// The length of the file.
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len_bytes()
    }

    /// Identifies the table in one line, for the [`Dataset::identity`](crate::Dataset::identity) of a dataset that is
    /// made of it: the number of rows, the separator, and the checksum of the whole file.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{CsvTable, Dataset, Result};
    ///
    /// /// Sentences of a file, by length.
    /// struct Sentences {
    ///     table: CsvTable,
    ///     lengths: Vec<i64>,
    /// }
    ///
    /// impl Dataset for Sentences {
    ///     type Sample = i64;
    ///
    ///     fn len(&self) -> usize {
    ///         self.table.n_rows()
    ///     }
    ///
    ///     fn get(&self, index: usize) -> Result<i64> {
    ///         Ok(self.lengths[index])
    ///     }
    ///
    ///     fn identity(&self) -> String {
    ///         self.table.identity() // a loader's state is refused by a loader of another file
    ///     }
    /// }
    /// ```
    pub fn identity(&self) -> String {
        let separator = char::from(self.separator);
        format!("CsvTable of {} rows, separated by {separator:?}, {}", self.n_rows, checksum([self.bytes.bytes()]))
    }

    fn read(&self, dtype: DType, names: &[&str]) -> Result<AnyTensor> {
        let columns = self.positions(names)?;
        let shape = [self.n_rows, columns.len()];
        with_element!(dtype, E => try_build(shape, |out: &mut [E]| self.fill(&columns, out)).map(AnyTensor::from))
    }

    /// Writes the numbers of these columns into `out`, row by row.
    fn fill<E: Element + FromStr>(&self, columns: &[usize], out: &mut [E]) -> Result<()> {
        let fill = self.fill.map(|fill| fill.to_string());
        self.each_cell(columns, LONGEST_FIELD, &mut |field, at| {
            let filled = fill.as_deref().filter(|_| self.is_missing(field.text));
            out[at] = number(filled.or(field.text)).map_err(|problem| match filled {
                Some(fill) => {
                    let problem = format!("is missing, and {fill} is not a number of type {}", E::DTYPE);
                    self.wrong_cell(field, &format!("{problem}; give `fill_missing` one"))
                }
                None => self.wrong_cell(field, &problem),
            })?;
            Ok(())
        })
    }

    /// Calls `visit` for every cell of these columns, with its index in the row-major matrix `[rows, columns]`. A
    /// cell that is longer than `longest` bytes has no text.
    pub(crate) fn each_cell(
        &self,
        columns: &[usize],
        longest: usize,
        visit: &mut dyn FnMut(&Field<'_>, usize) -> Result<()>,
    ) -> Result<()> {
        let mut wanted: Vec<(usize, usize)> = columns.iter().copied().zip(0..).collect();
        wanted.sort_unstable(); // by column, as the parser gives them
        let mut fields = Fields::of(self.bytes.bytes(), self.separator, longest);
        let mut next = wanted.iter().peekable();
        while let Some(field) = fields.next() {
            if field.column == 0 {
                next = wanted.iter().peekable();
            }
            while let Some(&(_, at)) = next.next_if(|&&(column, _)| column == field.column && field.row > 0) {
                visit(&field, (field.row - 1) * columns.len() + at)?;
            }
        }
        Ok(())
    }

    /// Whether a cell counts as missing.
    pub(crate) fn is_missing(&self, cell: Option<&str>) -> bool {
        cell.map(str::trim).is_some_and(|cell| cell.is_empty() || self.na_values.iter().any(|missing| missing == cell))
    }

    pub(crate) fn wrong_cell(&self, field: &Field<'_>, problem: &str) -> Error {
        let (line, name) = (field.line, &self.names[field.column]);
        let cell: String = field.text.unwrap_or("…").trim().chars().take(40).collect();
        self.wrong(format!("line {line}: `{cell}` in column `{name}` {problem}"))
    }

    pub(crate) fn position(&self, name: &str) -> Result<usize> {
        Ok(self.positions(&[name])?[0])
    }

    /// The columns with these names.
    pub(crate) fn positions(&self, names: &[&str]) -> Result<Vec<usize>> {
        let wanted: HashSet<&str> = names.iter().copied().collect();
        // Of equal names the first counts, and a name as it is before one without the spaces around it.
        let mut found = HashMap::with_capacity(wanted.len());
        let spellings: [fn(&str) -> &str; 2] = [str::trim, |name| name];
        for spelled in spellings {
            let columns = self.names.iter().map(|name| spelled(name)).enumerate().rev();
            found.extend(columns.filter(|(_, name)| wanted.contains(name)).map(|(at, name)| (name, at)));
        }
        let known = || self.names.iter().take(100).map(String::as_str).collect::<Vec<_>>().join(", ");
        let missing = |name| self.wrong(format!("it has no column `{name}`; it has {}", known()));
        names.iter().map(|name| found.get(name).copied().ok_or_else(|| missing(name))).collect()
    }

    fn wrong(&self, problem: String) -> Error {
        Error::content(&self.path, problem)
    }
}

/// The bytes of a file, in the host's budget.
fn read_file(path: &Path) -> Result<HostBuffer> {
    let (mut file, len_bytes) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
    let mut bytes = HostBuffer::allocate(default_host(), len_bytes as usize)?;
    file.read_exact(bytes.bytes_mut()?).map_err(|source| Error::io("read", path, source))?;
    Ok(bytes)
}

/// Parses the number in a cell; else what is wrong with the cell, and the fix.
fn number<E: Element + FromStr>(text: Option<&str>) -> Result<E, String> {
    let text = text.unwrap_or_default().trim();
    let number: E = text.parse().map_err(|_| format!("does not parse as {}; correct the cell", E::DTYPE))?;
    // Parsing rounds numbers beyond the largest finite one to infinity.
    let is_infinite = matches!(number.to_scalar(), Scalar::Float(value) if value.is_infinite());
    if is_infinite && text.contains(|character: char| character.is_ascii_digit()) {
        return Err(format!("is too large for {}; correct the cell, or read a wider type", E::DTYPE));
    }
    Ok(number)
}

/// How many columns and rows a text has; else what is wrong with it.
fn count(bytes: &[u8], separator: u8) -> Result<(usize, usize), String> {
    let mut fields = Fields::of(bytes, separator, LONGEST_FIELD);
    let (mut n_names, mut n_rows, mut n_fields, mut first_line) = (0, 0, 0, 0);
    while let Some(field) = fields.next() {
        if field.column == 0 {
            first_line = field.line;
        }
        n_fields = field.column + 1;
        if !field.is_last {
            continue;
        }
        match field.row {
            0 => n_names = n_fields,
            _ if n_fields == n_names => n_rows = field.row,
            _ if fields.is_open => break,
            _ => {
                return Err(format!(
                    "the number of fields in line {first_line} is {n_fields}, but must be {n_names} as in the header; \
                     check quotes and separators"
                ));
            }
        }
    }
    match (fields.is_open, n_fields) {
        (true, _) => Err(format!("a quote that opens in the row at line {first_line} is not closed; close it")),
        (false, 0) => Err("it is empty; the first line names the columns".into()),
        _ => Ok((n_names, n_rows)),
    }
}

/// The fields of the first row.
fn header(bytes: &[u8], separator: u8, n_names: usize) -> Result<Vec<String>, String> {
    let mut fields = Fields::of(bytes, separator, LONGEST_FIELD);
    let mut names = Vec::with_capacity(n_names);
    while let Some(field) = fields.next().filter(|_| names.len() < n_names) {
        let name = field.text.ok_or_else(|| {
            format!("the name of its column {} is longer than {LONGEST_FIELD} bytes; shorten it", field.column)
        })?;
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Iterates over the fields of a text; empty lines are skipped.
struct Fields<'a> {
    parser: csv_core::Reader,
    rest: &'a [u8],
    field: Vec<u8>,
    longest: usize, // the most bytes to which `field` grows
    row: usize,
    column: usize,
    n_empty: u64,       // empty lines that were skipped
    end: &'static [u8], // a newline that is appended to the text
    is_open: bool,      // the text has ended within quotes
}

pub(crate) struct Field<'a> {
    pub(crate) text: Option<&'a str>, // `None` if it is too long
    row: usize,                       // the header is row 0
    column: usize,
    line: u64, // where it starts, from 1
    is_last: bool,
}

impl<'a> Fields<'a> {
    fn of(text: &'a [u8], separator: u8, longest: usize) -> Self {
        let parser = ReaderBuilder::new().delimiter(separator).build();
        Self {
            parser,
            rest: text,
            field: vec![0; longest.min(LONGEST_FIELD)],
            longest,
            row: 0,
            column: 0,
            n_empty: 0,
            end: b"\n",
            is_open: false,
        }
    }

    fn next(&mut self) -> Option<Field<'_>> {
        if self.column == 0 {
            self.skip_empty_lines();
        }
        let line = self.parser.line() + self.n_empty;
        let (mut len, mut is_too_long) = (0, false);
        loop {
            let is_at_end = self.rest.is_empty();
            let input = if is_at_end { self.end } else { self.rest };
            let (result, n_in, n_out) = self.parser.read_field(input, &mut self.field[len..]);
            if is_at_end {
                self.end = &self.end[n_in..];
                self.is_open |= n_out > 0; // only within quotes does a newline belong to the field
            } else {
                self.rest = &self.rest[n_in..];
            }
            len += n_out;
            match result {
                ReadFieldResult::InputEmpty => {}
                ReadFieldResult::OutputFull if self.field.len() < self.longest => {
                    self.field.resize((2 * self.field.len()).clamp(16, self.longest), 0);
                }
                ReadFieldResult::OutputFull => (len, is_too_long) = (0, true),
                ReadFieldResult::Field { record_end: is_last } => {
                    let (row, column) = (self.row, self.column);
                    (self.row, self.column) = if is_last { (row + 1, 0) } else { (row, column + 1) };
                    let text = std::str::from_utf8(&self.field[..len]).ok().filter(|_| !is_too_long);
                    return Some(Field { text, row, column, line, is_last });
                }
                ReadFieldResult::End => return None,
            }
        }
    }

    /// Skips empty lines and counts them. The parser counts them only while it reads the next field, too late for its
    /// line number.
    fn skip_empty_lines(&mut self) {
        while let [b'\n' | b'\r', rest @ ..] = self.rest {
            self.n_empty += u64::from(self.rest[0] == b'\n');
            self.rest = rest;
        }
    }
}
