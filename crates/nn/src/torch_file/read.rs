//! [`Tree`]: converts the graph of a file to values, and its claims to tensors. Each storage is read once, into
//! memory of the host's budget. The tensors of a storage are views of it, as in PyTorch.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use half::{bf16, f16};
use pagelock_tensor::{AnyTensor, CountedHeap, DType, Device, Element, FileElements, Shape, Tensor};

use super::MAX_DEPTH;
use super::container::{OpenedFile, unsupported_elements};
use super::fault::{Fault, charge, damaged};
use super::globals::{Elements, Global};
use super::graph::{Id, Node, Sequence, StorageClaim, TensorClaim};
use super::pickle::Text;
use super::value::TorchValue;
use crate::Result;

/// The bytes of a value in a tree, apart from those of a text.
const VALUE_BYTES: u64 = 2 * size_of::<(TorchValue, TorchValue)>() as u64;
/// The number of bytes that are reserved at a time.
const BYTES_PER_CHARGE: u64 = 4_096 * VALUE_BYTES;
/// The most bytes of a tree per byte of the graph. It can be above 1, since a tree repeats the values that a file
/// shares.
const MAX_SHARED: u64 = 4;

/// Reads the file at `path`.
pub(super) fn read(path: &Path) -> Result<TorchValue> {
    let read = || {
        let opened = OpenedFile::open(path)?;
        let mut tree =
            Tree { path, opened: &opened, storages: HashMap::new(), read_bytes: 0, tree_bytes: 0, charged: Vec::new() };
        tree.value(opened.root, 0)
    };
    read().map_err(|fault: Fault| fault.of(path))
}

struct Tree<'a> {
    path: &'a Path,
    opened: &'a OpenedFile,
    storages: HashMap<(Text, DType), AnyTensor>,
    read_bytes: u64, // of storages
    tree_bytes: u64, // of values other than tensors
    charged: Vec<CountedHeap>,
}

impl Tree<'_> {
    fn value(&mut self, id: Id, depth: usize) -> Result<TorchValue, Fault> {
        if depth > MAX_DEPTH {
            return Err(damaged(format!("its values are nested more than {MAX_DEPTH} deep")));
        }
        let opened = self.opened;
        let node = opened.graph.node(id);
        self.check_growth(VALUE_BYTES + node.text_bytes())?;
        Ok(match node {
            Node::None => TorchValue::None,
            Node::Bool(flag) => TorchValue::Bool(*flag),
            Node::Int(number) => TorchValue::Int(*number),
            Node::Float(number) => TorchValue::Float(*number),
            Node::Text(text) => TorchValue::Text(text.to_string()),
            Node::Bytes(bytes) => TorchValue::Bytes(bytes.to_vec()),
            Node::Sequence(kind, items) => {
                let items = items.iter().map(|&item| self.value(item, depth + 1)).collect::<Result<_, _>>()?;
                if *kind == Sequence::Tuple { TorchValue::Tuple(items) } else { TorchValue::List(items) }
            }
            Node::Dict(entries) => TorchValue::Dict(self.dict(entries, depth + 1)?),
            Node::Global(Global::DType(name)) => TorchValue::DType((*name).to_owned()),
            Node::Tensor(claim) => TorchValue::Tensor(Box::new(self.tensor(claim)?)),
            Node::LongInt(_) => return Err(Fault::Unreadable("it has an integer of more than 64 bits".to_owned())),
            Node::Global(global) => return Err(damaged(format!("`{global:?}` is used as a value"))),
            Node::Storage(claim) => {
                let fix = "save the tensor";
                return Err(Fault::Unreadable(format!("it has storage `{}` without a tensor; {fix}", claim.key)));
            }
        })
    }

    /// Of entries with the same text or integer as their key, it takes the value of the last, at the position of the
    /// first.
    fn dict(&mut self, entries: &[(Id, Id)], depth: usize) -> Result<Vec<(TorchValue, TorchValue)>, Fault> {
        let mut dict: Vec<(TorchValue, TorchValue)> = Vec::new();
        let mut indices: HashMap<Key, usize> = HashMap::new();
        for &(key, value) in entries {
            let (key, value) = (self.value(key, depth)?, self.value(value, depth)?);
            let index = Key::of(&key).map(|key| *indices.entry(key).or_insert(dict.len()));
            match index.and_then(|index| dict.get_mut(index)) {
                Some(entry) => entry.1 = value,
                None => dict.push((key, value)),
            }
        }
        Ok(dict)
    }

    /// Counts bytes that the tree gets, and reserves memory for them.
    fn check_growth(&mut self, len_bytes: u64) -> Result<(), Fault> {
        self.tree_bytes += len_bytes;
        let graph_bytes = self.opened.graph.len() as u64 * VALUE_BYTES + self.opened.graph.text_bytes();
        if self.tree_bytes > MAX_SHARED * graph_bytes + BYTES_PER_CHARGE {
            return Err(damaged("values are shared too often, or a value contains itself"));
        }
        while self.tree_bytes / BYTES_PER_CHARGE >= self.charged.len() as u64 {
            self.charged.push(charge(BYTES_PER_CHARGE as usize)?);
        }
        Ok(())
    }

    fn tensor(&mut self, claim: &TensorClaim) -> Result<AnyTensor, Fault> {
        let Elements::Of(dtype) = claim.elements else { return Err(unsupported_elements(claim.elements)) };
        let StorageClaim { key, start, part_len, .. } = &claim.storage;
        let as_size = |size: &u64| usize::try_from(*size).map_err(|_| damaged(format!("a size is {size}")));
        let sizes: Vec<usize> = claim.shape.iter().map(as_size).collect::<Result<_, _>>()?;
        let strides: Vec<usize> = claim.strides.iter().map(as_size).collect::<Result<_, _>>()?;
        let malformed = |error: pagelock_tensor::Error| damaged(format!("a tensor of storage `{key}`: {error}"));
        let shape = Shape::new(&sizes).map_err(malformed)?;
        let storage = self.storage(&claim.storage, dtype)?;
        let is_part = *part_len != claim.storage.len;
        let span = claim.offset.checked_add(if is_part { claim.span() } else { 0 });
        if shape.elements() > 0 && is_part && span.is_none_or(|end| end > *part_len) {
            return Err(damaged(format!("a tensor extends beyond its view of storage `{key}`")));
        }
        let offset = start.saturating_add(claim.offset).try_into().unwrap_or(usize::MAX);
        storage.as_strided(&sizes[..], &strides, offset).map_err(malformed)
    }

    /// All elements of a storage, in one dimension.
    fn storage(&mut self, claim: &StorageClaim, dtype: DType) -> Result<AnyTensor, Fault> {
        let StorageClaim { key, len, elements, .. } = claim;
        if let Some(read) = self.storages.get(&(key.clone(), dtype)) {
            return Ok(read.clone());
        }
        let size = if *elements == Elements::Untyped { 1 } else { dtype.size() as u64 };
        let opened = self.opened;
        let &(start, len_bytes) =
            opened.storages.get(key).ok_or_else(|| damaged(format!("storage `{key}` is missing")))?;
        if len.checked_mul(size) != Some(len_bytes) {
            return Err(damaged(format!("storage `{key}` of {len} elements of {dtype} has {len_bytes} bytes")));
        }
        let end = start.checked_add(len_bytes).filter(|end| *end <= opened.len_bytes);
        let read_bytes = self.read_bytes.checked_add(len_bytes).filter(|read| *read <= opened.len_bytes);
        let (Some(_), Some(read_bytes)) = (end, read_bytes) else {
            return Err(damaged(format!("storage `{key}` extends beyond the file, or overlaps another")));
        };
        self.read_bytes = read_bytes;
        let n_elements = (len_bytes / dtype.size() as u64) as usize;
        let from = FileElements { file: &opened.file, path: self.path, start };
        let read = match opened.is_big_endian {
            true => read_big_endian(&from, dtype, n_elements)?,
            false => read_native(&from, dtype, n_elements)?,
        };
        self.storages.insert((key.clone(), dtype), read.clone());
        Ok(read)
    }
}

impl TensorClaim {
    /// The number of elements of the storage that it spans.
    fn span(&self) -> u64 {
        let steps = self.shape.iter().zip(&self.strides);
        steps.fold(1_u64, |span, (&size, &stride)| span.saturating_add(size.saturating_sub(1).saturating_mul(stride)))
    }
}

/// Keys that can be hashed.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Text(String),
    Int(i64),
}

impl Key {
    fn of(key: &TorchValue) -> Option<Self> {
        match key {
            TorchValue::Text(text) => Some(Self::Text(text.clone())),
            TorchValue::Int(number) => Some(Self::Int(*number)),
            _ => None,
        }
    }
}

/// `$body` with `$T` as the element type of `$dtype`.
macro_rules! by_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        by_type!($dtype, $T => $body; F32: f32, F64: f64, F16: f16, BF16: bf16, I64: i64, I32: i32, U8: u8, Bool: bool)
    };
    ($dtype:expr, $T:ident => $body:expr; $($name:ident: $type:ty),+) => {
        match $dtype {
            $(DType::$name => { type $T = $type; $body })+
            other => return Err(unsupported_elements(Elements::Unknown(other.name()))),
        }
    };
}

fn read_native(from: &FileElements<'_>, dtype: DType, n_elements: usize) -> Result<AnyTensor, Fault> {
    by_type!(dtype, T => Ok(from.to::<T>([n_elements], &Device::Cpu)?.into()))
}

/// The elements of a big-endian file.
fn read_big_endian(from: &FileElements<'_>, dtype: DType, n_elements: usize) -> Result<AnyTensor, Fault> {
    match dtype {
        DType::F32 => read_with(from, n_elements, f32::from_be_bytes),
        DType::F64 => read_with(from, n_elements, f64::from_be_bytes),
        DType::F16 => read_with(from, n_elements, f16::from_be_bytes),
        DType::BF16 => read_with(from, n_elements, bf16::from_be_bytes),
        DType::I64 => read_with(from, n_elements, i64::from_be_bytes),
        DType::I32 => read_with(from, n_elements, i32::from_be_bytes),
        _ => read_native(from, dtype, n_elements), // single bytes have no order
    }
}

fn read_with<T: Element, const N: usize>(
    from: &FileElements<'_>,
    n_elements: usize,
    from_bytes: fn([u8; N]) -> T,
) -> Result<AnyTensor, Fault> {
    let mut result = Ok(());
    let tensor = Tensor::build([n_elements], |out: &mut [T]| {
        let mut bytes = [0; 4_096];
        for (at, out) in out.chunks_mut(bytes.len() / N).enumerate() {
            let bytes = &mut bytes[..out.len() * N];
            let read = from.file.read_exact_at(bytes, from.start + (at * 4_096) as u64);
            if let Err(error) = read {
                result = Err(error);
                return;
            }
            let (numbers, _) = bytes.as_chunks::<N>();
            out.iter_mut().zip(numbers).for_each(|(out, number)| *out = from_bytes(*number));
        }
    })?;
    result?;
    Ok(tensor.into())
}
