//! [`CsvTable`]: the numbers of a CSV file, checked cell by cell.
//!
//! Fields are separated by commas (or another byte), may be in quotes, in which a doubled quote is one, and lines end with
//! LF or CRLF; RFC 4180. Every cell of a column that is asked for must be a number.

use std::fs;
use std::path::{Path, PathBuf};

use pagelock_tensor::{Element, Tensor};

use crate::{Error, Result};

/// A CSV file with a header line, read into memory as text.
///
/// # Examples
/// ```
/// use pagelock_data::{CsvTable, TensorDataset};
///
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(&file, "length,\"width, cm\",kind\n5.1,3.5,0\n4.9,3.0,1\n")?;
///
/// let table = CsvTable::open(file.path())?;
/// let points = table.numbers::<f32>(&["length", "width, cm"])?; // [2, 2]
/// let kinds = table.column::<i64>("kind")?; // [2]
/// assert_eq!(points.to_vec()?, [5.1, 3.5, 4.9, 3.0]);
/// let dataset = TensorDataset::new((points, kinds))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CsvTable {
    path: PathBuf,
    names: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    line: usize, // where it starts, from 1
    fields: Vec<String>,
}

impl CsvTable {
    /// Reads a file whose fields are separated by commas.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is not UTF-8, has no header, a quote that is not closed, or a line with
    /// another number of fields than the header, which is named.
    ///
    /// # Examples
    /// See [`CsvTable`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, b',')
    }

    /// As [`open`](Self::open), with fields that are separated by another byte.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "a\tb\n1\t2")?;
    /// assert_eq!(CsvTable::open_with(file.path(), b'\t')?.column::<i32>("b")?.to_vec()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(path: impl AsRef<Path>, separator: u8) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| Error::io("read", path, source))?;
        let wrong = |problem| Error::Content { path: path.into(), problem };
        let text =
            std::str::from_utf8(&bytes).map_err(|error| wrong(format!("it is not UTF-8: {error}; convert it")))?;
        let mut rows = parse(text.trim_start_matches('\u{feff}'), char::from(separator)).map_err(wrong)?.into_iter();
        let names = rows.next().ok_or_else(|| wrong("it is empty; the first line names the columns".into()))?.fields;
        let rows: Vec<Row> = rows.collect();
        match rows.iter().find(|row| row.fields.len() != names.len()) {
            Some(Row { line, fields }) => Err(wrong(format!(
                "line {line} has {} fields, and the header has {}; check quotes and separators",
                fields.len(),
                names.len()
            ))),
            None => Ok(Self { path: path.into(), names, rows }),
        }
    }

    /// The names of the columns.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// # let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "a,b\n1,2\n")?;
    /// assert_eq!(CsvTable::open(file.path())?.names(), ["a", "b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many rows there are, without the header.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// # let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "a,b\n1,2\n")?;
    /// assert_eq!(CsvTable::open(file.path())?.n_rows(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// One column of numbers, `[rows]`.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers).
    ///
    /// # Examples
    /// See [`CsvTable`].
    pub fn column<T: Element + std::str::FromStr>(&self, name: &str) -> Result<Tensor<T>> {
        Ok(self.numbers(&[name])?.reshape([-1])?)
    }

    /// Columns of numbers, `[rows, columns]`, in the order in which they are named.
    ///
    /// # Errors
    /// [`Error::Content`] for a column that is not there, and for a cell that is no such number, with its line.
    ///
    /// # Examples
    /// See [`CsvTable`].
    pub fn numbers<T: Element + std::str::FromStr>(&self, names: &[&str]) -> Result<Tensor<T>> {
        let columns = names.iter().map(|name| self.position(name)).collect::<Result<Vec<_>>>()?;
        let mut numbers = Vec::with_capacity(self.rows.len() * columns.len());
        for row in &self.rows {
            for &column in &columns {
                let cell = row.fields[column].trim();
                let number = cell.parse().map_err(|_| {
                    let (line, name) = (row.line, &self.names[column]);
                    let cell: String = cell.chars().take(40).collect();
                    self.wrong(format!("line {line}: `{cell}` in column `{name}` is no {}; correct the cell", T::DTYPE))
                })?;
                numbers.push(number);
            }
        }
        Ok(Tensor::from_vec(numbers, [self.rows.len(), columns.len()])?)
    }

    fn position(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|known| known.trim() == name);
        found.ok_or_else(|| self.wrong(format!("it has no column `{name}`; it has {}", self.names.join(", "))))
    }

    fn wrong(&self, problem: String) -> Error {
        Error::Content { path: self.path.clone(), problem }
    }
}

/// The rows of a text, without empty lines.
fn parse(text: &str, separator: char) -> Result<Vec<Row>, String> {
    let (mut rows, mut fields, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut first_line, mut quoted) = (1, 1, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        line += usize::from(character == '\n');
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => field.extend(characters.next()),
            '"' if quoted => quoted = false,
            _ if quoted => field.push(character),
            '"' if field.trim().is_empty() => {
                field.clear();
                quoted = true;
            }
            '\r' if characters.peek() == Some(&'\n') => {}
            '\n' => {
                end_row(&mut rows, &mut fields, &mut field, first_line);
                first_line = line;
            }
            _ if character == separator => fields.push(std::mem::take(&mut field)),
            _ => field.push(character),
        }
    }
    if quoted {
        return Err(format!("a quote that opens in the row at line {first_line} is not closed; close it"));
    }
    end_row(&mut rows, &mut fields, &mut field, first_line);
    Ok(rows)
}

fn end_row(rows: &mut Vec<Row>, fields: &mut Vec<String>, field: &mut String, line: usize) {
    if fields.is_empty() && field.trim().is_empty() {
        field.clear();
        return;
    }
    fields.push(std::mem::take(field));
    rows.push(Row { line, fields: std::mem::take(fields) });
}
