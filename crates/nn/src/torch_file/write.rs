//! Writes a pickle of protocol 2 and the storages to an archive whose members are uncompressed and aligned to 64
//! bytes, as `torch.save` does.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use pagelock_files::NewFile;
use pagelock_tensor::{self as tensor, AnyTensor, CountedHeap};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::MAX_DEPTH;
use super::fault::{Fault, PURPOSE};
use super::globals::storage_name;
use super::opcode;
use super::value::TorchValue;
use crate::{Error, Result};

/// The alignment of storages in the file, in bytes.
const ALIGN: u16 = 64;

pub(super) fn save(value: &TorchValue, path: &Path) -> Result<()> {
    let mut storages = Storages::default();
    storages.add(value, 0)?;
    let most_bytes = storages.pickle_bytes + 3; // of its version and its end
    let _charged = CountedHeap::granted("save", PURPOSE, most_bytes + storages.longest_copy)?;
    let mut pickle = Pickle { out: Vec::with_capacity(most_bytes), globals: HashMap::new(), storages: &storages };
    pickle.out.extend([opcode::PROTO, 2]);
    pickle.value(value);
    pickle.out.push(opcode::STOP);
    debug_assert!(pickle.out.len() <= most_bytes, "{} bytes instead of at most {most_bytes}", pickle.out.len());
    write(&pickle.out, &storages, path).map_err(|fault| match fault {
        Fault::Io(source) => tensor::Error::Io { action: "write", path: path.to_owned(), source }.into(),
        fault => fault.of(path),
    })
}

fn write(pickle: &[u8], storages: &Storages<'_>, path: &Path) -> Result<(), Fault> {
    let mut archive = ZipWriter::new(BufWriter::new(NewFile::create(path)?));
    let small = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(ALIGN);
    let order: &[u8] = if cfg!(target_endian = "big") { b"big" } else { b"little" };
    let members: [(&str, &[u8]); 4] =
        [("data.pkl", pickle), (".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", order)];
    for (name, content) in members {
        archive.start_file(format!("archive/{name}"), small).map_err(zip_fault)?;
        archive.write_all(content)?;
    }
    for (key, part) in storages.parts.iter().enumerate() {
        let large = small.large_file(part.len_bytes() >= u64::from(u32::MAX));
        archive.start_file(format!("archive/data/{key}"), large).map_err(zip_fault)?;
        part.elements()?.write_elements(&mut archive)??;
    }
    archive.start_file("archive/version", small).map_err(zip_fault)?;
    archive.write_all(b"3\n")?;
    let file = archive.finish().map_err(zip_fault)?;
    file.into_inner().map_err(|error| error.into_error())?.commit()?;
    Ok(())
}

fn zip_fault(error: zip::result::ZipError) -> Fault {
    match error {
        zip::result::ZipError::Io(source) => Fault::Io(source),
        error => Fault::Io(std::io::Error::other(error.to_string())),
    }
}

/// The part of a storage that tensors use.
struct StoragePart<'a> {
    tensor: &'a AnyTensor,
    start: usize, // in elements of the storage
    end: usize,
}

impl StoragePart<'_> {
    fn len_bytes(&self) -> u64 {
        ((self.end - self.start) * self.tensor.dtype().size()) as u64
    }

    fn elements(&self) -> Result<AnyTensor, Fault> {
        Ok(self.tensor.as_strided([self.end - self.start], &[1], self.start)?)
    }
}

/// The storages of a value, in the order of their first use, and the memory that the value's pickle takes.
#[derive(Default)]
struct Storages<'a> {
    parts: Vec<StoragePart<'a>>,
    by_id: HashMap<usize, usize>,
    pickle_bytes: usize, // at most
    longest_copy: usize, // the bytes of the longest text that is made of bytes
}

/// The most bytes of a value's instructions in a pickle, without those of the values inside it.
fn most_bytes(value: &TorchValue) -> usize {
    const SMALL: usize = 64; // an empty dict, or a call
    match value {
        TorchValue::Text(text) => 5 + text.len(),
        TorchValue::Bytes(bytes) => SMALL + 2 * bytes.len(), // as UTF-8
        TorchValue::DType(name) => SMALL + name.len(),
        TorchValue::Tensor(tensor) => 5 * SMALL + 2 * 10 * tensor.dims().len(), // two integers of 10 bytes each
        TorchValue::Dict(_) => SMALL,
        _ => 10, // a number of 8 bytes, or the marks of a list
    }
}

impl<'a> Storages<'a> {
    fn add(&mut self, value: &'a TorchValue, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Argument(format!("values are nested more than {MAX_DEPTH} deep; make them flatter")));
        }
        self.pickle_bytes += most_bytes(value);
        match value {
            TorchValue::Tensor(tensor) => self.add_tensor(tensor),
            TorchValue::Bytes(bytes) => self.longest_copy = self.longest_copy.max(2 * bytes.len()),
            TorchValue::List(items) | TorchValue::Tuple(items) => {
                items.iter().try_for_each(|item| self.add(item, depth + 1))?;
            }
            TorchValue::Dict(entries) => {
                for (key, value) in entries {
                    self.add(key, depth + 1)?;
                    self.add(value, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_tensor(&mut self, tensor: &'a AnyTensor) {
        let start = tensor.storage_offset();
        let end = if tensor.shape().elements() == 0 { start } else { start + span(tensor) };
        let index = *self.by_id.entry(tensor.storage_id()).or_insert(self.parts.len());
        match self.parts.get_mut(index) {
            Some(part) => (part.start, part.end) = (part.start.min(start), part.end.max(end)),
            None => self.parts.push(StoragePart { tensor, start, end }),
        }
    }

    /// The key of a tensor's storage, and the part that is written.
    fn of(&self, tensor: &AnyTensor) -> Option<(usize, &StoragePart<'a>)> {
        let &index = self.by_id.get(&tensor.storage_id())?;
        Some((index, self.parts.get(index)?))
    }
}

/// The number of elements of its storage that a tensor spans, if it has elements.
fn span(tensor: &AnyTensor) -> usize {
    1 + tensor.dims().iter().zip(tensor.strides()).map(|(size, stride)| (size - 1) * stride).sum::<usize>()
}

struct Pickle<'a> {
    out: Vec<u8>,
    globals: HashMap<String, u32>, // with their numbers in the memo
    storages: &'a Storages<'a>,
}

impl Pickle<'_> {
    fn value(&mut self, value: &TorchValue) {
        match value {
            TorchValue::None => self.out.push(opcode::NONE),
            TorchValue::Bool(flag) => self.out.push(if *flag { opcode::NEWTRUE } else { opcode::NEWFALSE }),
            TorchValue::Int(number) => self.int(*number),
            TorchValue::Float(number) => {
                self.out.push(opcode::BINFLOAT);
                self.out.extend(number.to_be_bytes());
            }
            TorchValue::Text(text) => self.text(text),
            TorchValue::Bytes(bytes) => {
                self.global("_codecs", "encode");
                let mut text = String::with_capacity(2 * bytes.len());
                text.extend(bytes.iter().map(|&byte| char::from(byte)));
                self.text(&text);
                self.text("latin1");
                self.out.extend([opcode::TUPLE2, opcode::REDUCE]);
            }
            TorchValue::DType(name) => self.global("torch", name),
            TorchValue::Tensor(tensor) => self.tensor(tensor),
            TorchValue::List(items) => {
                self.out.extend([opcode::EMPTY_LIST, opcode::MARK]);
                items.iter().for_each(|item| self.value(item));
                self.out.push(opcode::APPENDS);
            }
            TorchValue::Tuple(items) => {
                self.out.push(opcode::MARK);
                items.iter().for_each(|item| self.value(item));
                self.out.push(opcode::TUPLE);
            }
            TorchValue::Dict(entries) => {
                if value.is_state_dict() {
                    self.ordered_dict()
                } else {
                    self.out.push(opcode::EMPTY_DICT)
                }
                self.out.push(opcode::MARK);
                for (key, value) in entries {
                    self.value(key);
                    self.value(value);
                }
                self.out.push(opcode::SETITEMS);
            }
        }
    }

    fn tensor(&mut self, tensor: &AnyTensor) {
        let Some((key, part)) = self.storages.of(tensor) else { unreachable!("`Storages::add` visited all tensors") };
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.out.extend([opcode::MARK, opcode::MARK]);
        self.text("storage");
        self.global("torch", storage_name(tensor.dtype()));
        self.text(&key.to_string());
        self.text("cpu");
        self.int((part.end - part.start) as i64);
        self.out.extend([opcode::TUPLE, opcode::BINPERSID]);
        let is_empty = tensor.shape().elements() == 0;
        self.int(if is_empty { 0 } else { (tensor.storage_offset() - part.start) as i64 });
        for sizes in [tensor.dims(), tensor.strides()] {
            self.out.push(opcode::MARK);
            sizes.iter().for_each(|&size| self.int(size as i64));
            self.out.push(opcode::TUPLE);
        }
        self.out.push(opcode::NEWFALSE); // requires no gradient
        self.ordered_dict(); // has no backward hooks
        self.out.extend([opcode::TUPLE, opcode::REDUCE]);
    }

    fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.out.extend([opcode::EMPTY_TUPLE, opcode::REDUCE]);
    }

    /// Writes a global the first time, and after that a reference to the memo.
    fn global(&mut self, module: &str, name: &str) {
        let (full, next) = (format!("{module}\n{name}\n"), self.globals.len() as u32);
        if let Some(number) = self.globals.get(&full) {
            self.out.push(opcode::LONG_BINGET);
            self.out.extend(number.to_le_bytes());
            return;
        }
        self.out.push(opcode::GLOBAL);
        self.out.extend(full.as_bytes());
        self.out.push(opcode::LONG_BINPUT);
        self.out.extend(next.to_le_bytes());
        self.globals.insert(full, next);
    }

    fn int(&mut self, number: i64) {
        if let Ok(small) = i32::try_from(number) {
            self.out.push(opcode::BININT);
            self.out.extend(small.to_le_bytes());
        } else {
            self.out.extend([opcode::LONG1, 8]); // bytes
            self.out.extend(number.to_le_bytes());
        }
    }

    /// Truncates texts of 4 GiB and more.
    fn text(&mut self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(u32::MAX as usize)];
        self.out.push(opcode::BINUNICODE);
        self.out.extend((text.len() as u32).to_le_bytes());
        self.out.extend(text);
    }
}
