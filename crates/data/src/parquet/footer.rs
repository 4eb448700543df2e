//! [`Footer`]: the columns of a file, and where their pages are.
//!
//! The crate `parquet` can read footers, but not within a budget: a few bytes make it allocate gigabytes, or recurse
//! until the stack overflows. Here, memory is reserved before it is allocated, and the schema is read without
//! recursion. Statistics, indexes and notes are skipped.

use std::io::{BufReader, Read};

use parquet::basic::{ConvertedType, Type as PhysicalType};
use parquet::errors::{ParquetError, Result};

use super::thrift::{BYTES, FALSE, I8, I32, I64, LIST, MAX_DEPTH, STRUCT, Thrift, too_deep};
use crate::file_bytes::FileBytes;
use crate::text::lines::GrowingReservation;

/// What the footer of a file says. Field numbers below are those of `parquet.thrift`.
#[derive(Default)]
pub(super) struct Footer {
    pub(super) n_rows: i64,
    /// The names of the columns: those of its groups and its own, joined with dots.
    pub(super) names: Vec<String>,
    pub(super) columns: Vec<Column>,
    /// The number of rows of each row group.
    pub(super) groups: Vec<i64>,
    /// The pages of each column of the first row group, then of the second, and so on.
    chunks: Vec<Chunk>,
    counted: GrowingReservation,
}

/// A column of values.
pub(super) struct Column {
    pub(super) physical: PhysicalType,
    /// `UINT_32`, `UINT_64`, `DECIMAL`, or `NONE` for any other meaning.
    pub(super) meaning: ConvertedType,
    pub(super) max_def_level: i16,
    pub(super) max_rep_level: i16,
}

/// The pages of one column of one row group.
#[derive(Clone, Copy, Default)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) n_values: i64,
    pub(super) n_bytes: i64,
    pub(super) data_at: i64,
    pub(super) dictionary_at: i64,
}

/// A group of columns whose members are being read.
struct Open {
    path_len: usize,
    n_left: i64, // members
    max_def_level: i16,
    max_rep_level: i16,
}

/// One member of a schema.
#[derive(Default)]
struct Member {
    physical: Option<i64>,
    repetition: i64,
    n_members: i64,
    converted: i64,
    logical: Logical,
}

#[derive(Default, PartialEq)]
enum Logical {
    #[default]
    Other,
    Decimal,
    Unsigned(u8), // bits
}

impl Footer {
    /// Reads the footer at the end of a file.
    pub(super) fn read(file: &FileBytes) -> Result<Self> {
        let wrong = |problem: &str| ParquetError::General(problem.into());
        let mut end = [0; 8]; // the length of the footer, and a mark
        let at = file.len().checked_sub(end.len() as u64).ok_or_else(|| wrong("it is too short"))?;
        file.read_exact_at(&mut end, at)?;
        let [a, b, c, d, mark @ ..] = end;
        if &mark == b"PARE" {
            return Err(wrong("its footer is encrypted"));
        }
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        let start = at.checked_sub(len).filter(|_| &mark == b"PAR1").ok_or_else(|| wrong("it has no footer"))?;
        let Some(part) = file.part(start, len) else { unreachable!("{start} + {len} is less than the length") };
        let mut footer = Self::default();
        Thrift::new(BufReader::new(part.reader()), len).fields(|thrift, field, kind| match (field, kind) {
            (2, LIST) => footer.schema(thrift),
            (3, I64) => thrift.number().map(|n| footer.n_rows = n),
            (4, LIST) => thrift.structs(|thrift| footer.group(thrift)),
            (_, kind) => thrift.skip(kind),
        })?;
        Ok(footer)
    }

    /// The chunks of a column, one for each row group.
    pub(super) fn chunks_of(&self, column: usize) -> impl Iterator<Item = Chunk> {
        self.chunks.iter().skip(column).step_by(self.columns.len()).copied()
    }

    fn schema(&mut self, thrift: &mut Thrift<impl Read>) -> Result<()> {
        let (mut open, mut path) = (Vec::<Open>::new(), Vec::new());
        let mut is_root = true;
        thrift.structs(|thrift| {
            while open.pop_if(|group| group.n_left == 0).is_some() {}
            let parent = open.last_mut().map(|group| {
                group.n_left -= 1;
                (group.path_len, group.max_def_level, group.max_rep_level)
            });
            let (path_len, mut max_def_level, mut max_rep_level) = match parent {
                Some(parent) => parent,
                None if is_root => (0, 0, 0),
                None => return Err(ParquetError::General("its schema has more than one root".into())),
            };
            path.truncate(path_len);
            if path_len > 0 {
                path.push(b'.');
            }
            let member = self.member(thrift, &mut path)?;
            if std::mem::take(&mut is_root) {
                path.clear();
            } else {
                max_def_level += i16::from(member.repetition > 0);
                max_rep_level += i16::from(member.repetition == REPEATED);
            }
            match member.n_members {
                0 => self.column(&member, &path, max_def_level, max_rep_level),
                1.. if open.len() < MAX_DEPTH => {
                    open.push(Open { path_len: path.len(), n_left: member.n_members, max_def_level, max_rep_level });
                    Ok(())
                }
                1.. => Err(too_deep()),
                n => Err(ParquetError::General(format!("a group of its schema has {n} members"))),
            }
        })?;
        if open.iter().any(|group| group.n_left > 0) {
            return Err(ParquetError::General("its schema lacks columns".into()));
        }
        Ok(())
    }

    /// Reads a member of the schema, and appends its name to `path`.
    fn member(&mut self, thrift: &mut Thrift<impl Read>, path: &mut Vec<u8>) -> Result<Member> {
        let mut member = Member { converted: -1, ..Member::default() };
        thrift.fields(|thrift, field, kind| match (field, kind) {
            (1, I32) => thrift.number().map(|n| member.physical = Some(n)),
            (3, I32) => thrift.number().map(|n| member.repetition = n),
            (4, BYTES) => {
                let (start, len) = (path.len(), thrift.len()?);
                self.counted.reserve(2 * len)?; // a list that grows
                path.resize(start + len as usize, 0);
                thrift.fill(&mut path[start..])
            }
            (5, I32) => thrift.number().map(|n| member.n_members = n),
            (6, I32) => thrift.number().map(|n| member.converted = n),
            (10, STRUCT) => logical(thrift).map(|logical| member.logical = logical),
            (_, kind) => thrift.skip(kind),
        })?;
        Ok(member)
    }

    fn column(&mut self, member: &Member, path: &[u8], max_def_level: i16, max_rep_level: i16) -> Result<()> {
        let Some(physical) = member.physical else { return Ok(()) }; // a group without members
        let known = usize::try_from(physical).ok().and_then(|at| PHYSICAL.get(at));
        let unknown = || ParquetError::General(format!("a column has the unknown type {physical}"));
        let &physical = known.ok_or_else(unknown)?;
        let meaning = match (member.converted, &member.logical) {
            (5, _) | (-1, Logical::Decimal) => ConvertedType::DECIMAL,
            (13, _) | (-1, Logical::Unsigned(32)) => ConvertedType::UINT_32,
            (14, _) | (-1, Logical::Unsigned(64)) => ConvertedType::UINT_64,
            _ => ConvertedType::NONE,
        };
        let name = str::from_utf8(path).map_err(|_| ParquetError::General("a column's name is not UTF-8".into()))?;
        self.counted.reserve(path.len() as u64 + in_list::<String>() + in_list::<Column>())?;
        self.names.push(name.into());
        self.columns.push(Column { physical, meaning, max_def_level, max_rep_level });
        Ok(())
    }

    fn group(&mut self, thrift: &mut Thrift<impl Read>) -> Result<()> {
        let (mut n_rows, before) = (0, self.chunks.len());
        thrift.fields(|thrift, field, kind| match (field, kind) {
            (1, LIST) => thrift.structs(|thrift| {
                self.counted.reserve(in_list::<Chunk>())?;
                self.chunks.push(chunk(thrift)?);
                Ok(())
            }),
            (3, I64) => thrift.number().map(|n| n_rows = n),
            (_, kind) => thrift.skip(kind),
        })?;
        self.counted.reserve(in_list::<i64>())?;
        self.groups.push(n_rows);
        let (n_chunks, n_columns) = (self.chunks.len() - before, self.columns.len());
        if n_chunks != n_columns {
            let problem = format!("a row group has {n_chunks} columns, but the schema has {n_columns}");
            return Err(ParquetError::General(problem));
        }
        Ok(())
    }
}

/// Reads a logical type: a union of structs.
fn logical(thrift: &mut Thrift<impl Read>) -> Result<Logical> {
    let mut logical = Logical::Other;
    thrift.fields(|thrift, field, kind| match (field, kind) {
        (5, STRUCT) => {
            logical = Logical::Decimal;
            thrift.skip(kind)
        }
        (10, STRUCT) => {
            let mut n_bits = 0;
            thrift.fields(|thrift, field, kind| match (field, kind) {
                (1, I8) => thrift.byte().map(|n| n_bits = n),
                (2, FALSE) => {
                    logical = Logical::Unsigned(n_bits);
                    Ok(())
                }
                (_, kind) => thrift.skip(kind),
            })
        }
        (_, kind) => thrift.skip(kind),
    })?;
    Ok(logical)
}

fn chunk(thrift: &mut Thrift<impl Read>) -> Result<Chunk> {
    let mut chunk = Chunk { codec: -1, data_at: -1, ..Chunk::default() };
    thrift.fields(|thrift, field, kind| match (field, kind) {
        (3, STRUCT) => thrift.fields(|thrift, field, kind| match (field, kind) {
            (4, I32) => thrift.number().map(|n| chunk.codec = n),
            (5, I64) => thrift.number().map(|n| chunk.n_values = n),
            (7, I64) => thrift.number().map(|n| chunk.n_bytes = n),
            (9, I64) => thrift.number().map(|n| chunk.data_at = n),
            (11, I64) => thrift.number().map(|n| chunk.dictionary_at = n),
            (_, kind) => thrift.skip(kind),
        }),
        (_, kind) => thrift.skip(kind),
    })?;
    Ok(chunk)
}

const REPEATED: i64 = 2;
const PHYSICAL: [PhysicalType; 8] = [
    PhysicalType::BOOLEAN,
    PhysicalType::INT32,
    PhysicalType::INT64,
    PhysicalType::INT96,
    PhysicalType::FLOAT,
    PhysicalType::DOUBLE,
    PhysicalType::BYTE_ARRAY,
    PhysicalType::FIXED_LEN_BYTE_ARRAY,
];

/// The most memory that an element takes in a list that grows, and the allocator's overhead for what it owns.
const fn in_list<T>() -> u64 {
    3 * size_of::<T>() as u64 + 32
}
