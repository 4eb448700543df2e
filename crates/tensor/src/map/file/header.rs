//! The header of a safetensors file: the length of a JSON text, then that text. The text has the name, element type,
//! shape and byte range of each tensor, and notes.
//!
//! Maps note their batches there, as sizes joined with commas: `pagelock.batch` for the map itself, `pagelock.batch:PATH` for
//! a map in it. Checksums are there as `pagelock.checks` (`checks.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagelock_memory::text::shortened;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use super::content;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::heap::{self, CountedHeap};
use crate::shape::Shape;

/// The longest header that the format allows, in bytes.
const LONGEST: u64 = 100_000_000;
/// Memory that the entries of a header take at most, as a multiple of its length in the file.
const KEPT: u64 = 4;
/// Further memory that parsing takes at most, as a multiple of the same length.
const PARSED: u64 = 12;
/// Elements begin at a multiple of this, so that a file that is mapped is aligned for all of them.
const ALIGN: usize = 64;
const BATCH: &str = "pagelock.batch";
/// The name of the note with checksums.
const CHECKS: &str = "pagelock.checks";
/// The name under which a header has its notes, which no tensor can have.
const NOTES: &str = "__metadata__";

/// The contents of a header, checked against the length of the file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) claims: Vec<Claim>, // by their place in the file
    pub(super) batch: Shape,
    pub(super) inner: Vec<(String, Shape)>, // batches of maps in the map, the outer ones first
    pub(super) checks: Option<String>,
    _counted: CountedHeap,
}

/// One tensor.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) path: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) bytes: Range<u64>, // of the file
}

/// Reads the header of a file of `len_bytes`.
pub(super) fn read(path: &Path, file: &File, len_bytes: u64) -> Result<Header> {
    let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).map_err(|source| unread(path, source));
    let problem =
        "it does not start like a safetensors file; read a file of torch.save with `load_torch`, or get it again";
    let no_such_file = || content(path, problem);
    let mut start = [0; 8];
    if len_bytes < 8 {
        return Err(no_such_file());
    }
    read(&mut start, 0)?;
    let header_bytes = u64::from_le_bytes(start);
    if header_bytes > LONGEST || header_bytes > len_bytes - 8 {
        return Err(no_such_file());
    }
    let purpose = "the header of the file";
    let counted = CountedHeap::granted("open", purpose, (KEPT * header_bytes) as usize)?;
    let _parsing = heap::reserve("open", purpose, (PARSED * header_bytes) as usize)?;
    let mut text = vec![0; header_bytes as usize];
    read(&mut text, 8)?;
    let damaged = |why: String| content(path, &format!("its header is damaged ({why}); get it again"));
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let mut claims = Vec::new();
    for (name, info) in metadata.tensors() {
        claims.push(claim(&name, info, 8 + header_bytes, len_bytes).map_err(|problem| content(path, &problem))?);
    }
    claims.sort_by(|one: &Claim, other| (one.bytes.start, &one.path).cmp(&(other.bytes.start, &other.path)));
    let end = claims.iter().map(|claim| claim.bytes.end).max().unwrap_or(8 + header_bytes);
    if end < len_bytes {
        let problem = format!("its tensors end at byte {end}, but the file has {len_bytes} bytes; get it again");
        return Err(content(path, &problem));
    }
    let (batch, inner) = batches(&metadata).ok_or_else(|| damaged("the notes about batches".to_owned()))?;
    let checks = metadata.metadata().as_ref().and_then(|notes| notes.get(CHECKS).cloned());
    Ok(Header { claims, batch, inner, checks, _counted: counted })
}

fn unread(path: &Path, source: io::Error) -> Error {
    Error::io("read", path, source)
}

fn claim(name: &str, info: &TensorInfo, start: u64, len_bytes: u64) -> Result<Claim, String> {
    let path = name.to_owned();
    let name = shortened(name);
    let Some(dtype) = dtype_of(&info.dtype.to_string()) else {
        return Err(format!(
            "`{name}` has elements of {:?}, which no tensor can hold; convert them to F64, F32, F16, BF16, I64, I32, \
             U8 or BOOL",
            info.dtype
        ));
    };
    let shape = Shape::new(&info.shape).map_err(|error| format!("`{name}`: {error}"))?;
    let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
    let wanted = (shape.elements() * dtype.size()) as u64;
    let end = start.checked_add(to).filter(|_| to.checked_sub(from) == Some(wanted));
    match end {
        Some(end) if end <= len_bytes => Ok(Claim { path, dtype, shape, bytes: start + from..end }),
        Some(_) => Err(format!(
            "`{name}`, {dtype} {shape}, ends at byte {}, but the file has {len_bytes}; it was cut short: get it again",
            start.saturating_add(to)
        )),
        None => Err(format!(
            "`{name}` is {dtype} {shape}, but its data_offsets {from} to {to} do not have that many bytes; get the \
             file again"
        )),
    }
}

fn batches(metadata: &Metadata) -> Option<(Shape, Vec<(String, Shape)>)> {
    let notes: BTreeMap<_, _> = metadata.metadata().iter().flatten().collect();
    let sizes = |text: &str| {
        let sizes: Result<Vec<usize>, _> = text.split(',').filter(|size| !size.is_empty()).map(str::parse).collect();
        Shape::new(&sizes.ok()?).ok()
    };
    let batch = notes.get(&BATCH.to_owned()).map_or(Some(Shape::SCALAR), |text| sizes(text))?;
    let inner = notes.iter().filter_map(|(name, text)| Some((name.strip_prefix(BATCH)?.strip_prefix(':')?, text)));
    let inner = inner.map(|(path, text)| Some((path.to_owned(), sizes(text)?))).collect::<Option<Vec<_>>>()?;
    Some((batch, inner))
}

/// A header, preceded by its length, for tensors that are written in this order; or the reason why no program could
/// read it.
pub(super) fn text<'a>(
    tensors: impl Iterator<Item = (&'a str, DType, &'a Shape)>,
    batches: impl Iterator<Item = (&'a str, &'a Shape)>,
    checks: Option<String>,
) -> Result<Vec<u8>, String> {
    let mut header = Map::new();
    let sizes = |shape: &Shape| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let key = |path: &str| if path.is_empty() { BATCH.to_owned() } else { format!("{BATCH}:{path}") };
    let mut notes: Map<String, Value> = batches.map(|(path, batch)| (key(path), Value::from(sizes(batch)))).collect();
    notes.extend(checks.map(|checks| (CHECKS.to_owned(), Value::from(checks))));
    if !notes.is_empty() {
        header.insert(NOTES.to_owned(), Value::Object(notes));
    }
    let mut start = 0;
    for (path, dtype, shape) in tensors {
        if path == NOTES {
            return Err(format!("safetensors files reserve the name `{NOTES}` for notes; rename that tensor"));
        }
        let end = start + shape.elements() * dtype.size();
        let info = json!({"dtype": name_of(dtype), "shape": shape.to_vec(), "data_offsets": [start, end]});
        if header.insert(path.to_owned(), info).is_some() {
            return Err(format!("two tensors have the name `{}`; rename one", shortened(path)));
        }
        start = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize((8 + text.len()).next_multiple_of(ALIGN) - 8, b' ');
    if text.len() as u64 > LONGEST {
        let len_bytes = text.len();
        return Err(format!(
            "its header, of all paths and shapes, would be {len_bytes} bytes long, but a safetensors file allows \
             {LONGEST}; shorten the paths, or save several files"
        ));
    }
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

/// The element type that safetensors files call `name`.
fn dtype_of(name: &str) -> Option<DType> {
    use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
    [F32, F64, F16, BF16, I64, I32, U8, Bool].into_iter().find(|&dtype| name_of(dtype) == name)
}

fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}
