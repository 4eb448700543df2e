//! [`OpenedFile`]: a file in one of PyTorch's three formats: the contents of its pickles, and the offsets of its
//! storages.
//!
//! ```text
//! zip   NAME/data.pkl  NAME/byteorder  NAME/data/KEY …                               since PyTorch 1.6; no compression
//! row   magic number, version, notes, the pickle, keys; for each key a count and elements            before, and on demand
//! tar   storages: count, (key, type, count, elements) …; tensors; pickle                                   before 0.1.12
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use pagelock_memory::{CountedReader, open_regular};
use pagelock_tensor::CountedHeap;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::fault::{Fault, charge, damaged, refused};
use super::globals::{Elements, Global};
use super::graph::{Graph, Id, Node, Numbered, StorageClaim, TensorClaim, too_many_dims};
use super::pickle::{Text, Unpickler};

/// A file of which only the pickles have been read.
pub(super) struct OpenedFile {
    pub(super) file: File,
    pub(super) graph: Graph,
    pub(super) root: Id,
    /// The offset and the length of each storage in the file, in bytes.
    pub(super) storages: HashMap<Text, (u64, u64)>,
    pub(super) is_big_endian: bool,
    pub(super) len_bytes: u64,
    _charged: CountedHeap,
}

/// The most memory that the directory of an archive takes, as a multiple of its length in the file.
const BYTES_PER_DIRECTORY_BYTE: u64 = 24;

impl OpenedFile {
    pub(super) fn open(path: &Path) -> Result<Self, Fault> {
        let opened = open_regular(path);
        let (mut file, len_bytes) =
            opened.map_err(|source| pagelock_tensor::Error::Io { action: "open", path: path.to_owned(), source })?;
        let mut start = [0; 512];
        let n_start = file.by_ref().take(512).read(&mut start)?;
        file.rewind()?;
        match &start[..n_start] {
            [_, _, _, _, _, 0, 0, 0, b'{', ..] => {
                Err(Fault::Unreadable("it is a safetensors file; load it with `load_safetensors`".to_owned()))
            }
            [b'P', b'K', ..] => Self::zip(file, len_bytes),
            [.., _] if n_start == 512 && start[257..262] == *b"ustar" => Self::tar(file, len_bytes),
            [b'\x80', ..] => Self::row(file, len_bytes),
            _ if n_start == 512 && is_old_tar(&start) => Self::tar(file, len_bytes),
            _ => Err(damaged("it does not start like a PyTorch file")),
        }
    }

    fn zip(file: File, len_bytes: u64) -> Result<Self, Fault> {
        let (reader, memory) = CountedReader::new(file.try_clone()?, BYTES_PER_DIRECTORY_BYTE);
        let mut archive = ZipArchive::new(BufReader::new(reader))
            .map_err(|error| memory.take_refusal().map_or_else(|| zip_fault(error), refused))?;
        memory.mark_read();
        check_names(&archive, &file, len_bytes)?;
        let prefix = archive.name_for_index(0).and_then(Result::ok).map(|name| name.into_owned());
        let prefix = prefix.and_then(|name| Some(name.split_once('/')?.0.to_owned()));
        let prefix = prefix.ok_or_else(|| damaged("its directory lists no folder"))?;
        if archive.index_for_name_raw(format!("{prefix}/constants.pkl").as_bytes()).is_some() {
            let fix = "save a state dict: torch.save(model.state_dict(), path)";
            return Err(Fault::Unreadable(format!("it is a TorchScript program, not a file of weights; {fix}")));
        }
        let (start, len) = member_extent(&mut archive, &format!("{prefix}/data.pkl"))?
            .ok_or_else(|| damaged(format!("it has no `{prefix}/data.pkl`")))?;
        let is_big_endian = match member_extent(&mut archive, &format!("{prefix}/byteorder"))? {
            Some((start, len)) => is_big_endian(&text_at(&file, start, len)?)?,
            None => false,
        };
        let (graph, root) = pickle_at(&file, start, len)?;
        let mut storages = HashMap::new();
        for key in graph.claims().map(|claim| &claim.key) {
            if storages.contains_key(key) {
                continue;
            }
            let found = member_extent(&mut archive, &format!("{prefix}/data/{key}"))?;
            storages.insert(key.clone(), found.ok_or_else(|| damaged(format!("storage `{key}` is missing")))?);
        }
        let charged = charge(storages.len() * STORAGE_BYTES)?;
        Ok(Self { file, graph, root, storages, is_big_endian, len_bytes, _charged: charged })
    }

    fn row(file: File, len_bytes: u64) -> Result<Self, Fault> {
        let mut source = BufReader::new(file.try_clone()?);
        let mut pickles = Unpickler::new(&mut source, len_bytes, Graph::default());
        let (magic, version, _notes) = (pickles.load()?, pickles.load()?, pickles.load()?);
        let is_magic = matches!(pickles.graph.node(magic), Node::LongInt(bytes) if **bytes == MAGIC);
        if !is_magic || pickles.graph.number(version) != Some(1_001) {
            return Err(damaged("it does not start with PyTorch's magic number"));
        }
        let (root, keys) = (pickles.load()?, pickles.load()?);
        let sizes: HashMap<Text, u64> = pickles.graph.element_sizes();
        let keys = pickles.graph.sequence(keys)?.to_vec();
        let charged = charge(keys.len() * STORAGE_BYTES)?;
        let mut storages = HashMap::new();
        for key in keys {
            let key = pickles.graph.text(key)?;
            let &size = sizes.get(&key).ok_or_else(|| damaged(format!("nothing uses storage `{key}`")))?;
            let extent = skip_elements(&mut pickles, size)?;
            storages.insert(key, extent);
        }
        let graph = std::mem::take(&mut pickles.graph);
        Ok(Self { file, graph, root, storages, is_big_endian: false, len_bytes, _charged: charged })
    }

    fn tar(file: File, len_bytes: u64) -> Result<Self, Fault> {
        let mut members: HashMap<String, (u64, u64)> = HashMap::new();
        let mut archive = tar::Archive::new(BufReader::new(file.try_clone()?));
        // Raw members: an extended header, which may have any length, is then a member of its own and is skipped.
        for member in archive.entries()?.raw(true).take(64) {
            let member = member.map_err(|error| damaged(error.to_string()))?;
            let name = String::from_utf8_lossy(&member.path_bytes()).trim_start_matches("./").to_owned();
            members.insert(name, (member.raw_file_position(), member.size()));
        }
        let member = |name: &str| members.get(name).copied().ok_or_else(|| damaged(format!("it has no `{name}`")));
        let mut parts = TarParts::default();
        let (start, len) = member("storages")?;
        parts.read_storages(&file, start, len)?;
        let (start, len) = member("tensors")?;
        parts.read_tensors(&file, start, len)?;
        let (start, len) = member("pickle")?;
        let graph = Graph::with(parts.numbered, parts.charged);
        let mut source = section(&file, start, len)?;
        let mut pickles = Unpickler::new(&mut source, len, graph);
        let root = pickles.load()?;
        let (graph, storages) = (std::mem::take(&mut pickles.graph), parts.storages);
        let charged = charge(storages.len() * STORAGE_BYTES)?;
        Ok(Self { file, graph, root, storages, is_big_endian: false, len_bytes, _charged: charged })
    }
}

/// The memory of an entry about a storage.
const STORAGE_BYTES: usize = 256;
/// The magic number with which a row of pickles begins.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Whether the checksum of a tar header from before `ustar` is right.
fn is_old_tar(header: &[u8; 512]) -> bool {
    let digits = String::from_utf8_lossy(&header[148..156]);
    let noted = u32::from_str_radix(digits.trim_matches(|letter| letter == ' ' || letter == '\0'), 8);
    let sum: u32 =
        header.iter().enumerate().map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { byte.into() }).sum();
    noted == Ok(sum)
}

/// A reader of a part of a file.
fn section(file: &File, start: u64, len: u64) -> Result<io::Take<BufReader<File>>, Fault> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(start))?;
    Ok(BufReader::new(file).take(len))
}

fn pickle_at(file: &File, start: u64, len: u64) -> Result<(Graph, Id), Fault> {
    let mut source = section(file, start, len)?;
    let mut pickles = Unpickler::new(&mut source, len, Graph::default());
    let root = pickles.load()?;
    Ok((std::mem::take(&mut pickles.graph), root))
}

/// Reads a count from a row of pickles and skips that many elements of `size` bytes. Returns their offset and their
/// length in bytes.
fn skip_elements(pickles: &mut Unpickler<'_>, size: u64) -> Result<(u64, u64), Fault> {
    let count = i64::from_le_bytes(pickles.bytes()?);
    let len = u64::try_from(count).ok().and_then(|count| count.checked_mul(size));
    let len = len.ok_or_else(|| damaged(format!("a storage claims {count} elements")))?;
    let start = pickles.at();
    pickles.skip(len)?;
    Ok((start, len))
}

fn text_at(file: &File, start: u64, len: u64) -> Result<String, Fault> {
    let mut text = String::new();
    section(file, start, len.min(16))?.read_to_string(&mut text)?;
    Ok(text)
}

fn is_big_endian(order: &str) -> Result<bool, Fault> {
    match order {
        "little" => Ok(false),
        "big" => Ok(true),
        order => Err(damaged(format!("its byte order is {order:?}"))),
    }
}

/// Returns an error if two members have one name, of which PyTorch reads the first and the archive has the last: the
/// end of the file then counts more members. From 65,535 members on, the count is elsewhere and is not checked.
fn check_names(archive: &ZipArchive<impl Read + Seek>, file: &File, len_bytes: u64) -> Result<(), Fault> {
    const END_BYTES: u64 = 22;
    let mut end = Vec::new();
    let start = len_bytes.saturating_sub(END_BYTES + archive.comment().len() as u64);
    section(file, start, END_BYTES)?.read_to_end(&mut end)?;
    match end[..] {
        [b'P', b'K', 5, 6, _, _, _, _, _, _, low, high, ..] => {
            let (listed, known) = (u16::from_le_bytes([low, high]), archive.len());
            match listed == u16::MAX || usize::from(listed) == known {
                true => Ok(()),
                false => Err(damaged(format!("it lists {listed} members with {known} different names"))),
            }
        }
        _ => Ok(()),
    }
}

/// The offset and the length of an uncompressed member in the file.
fn member_extent(
    archive: &mut ZipArchive<BufReader<CountedReader<File>>>,
    name: &str,
) -> Result<Option<(u64, u64)>, Fault> {
    let Some(index) = archive.index_for_name_raw(name.as_bytes()) else { return Ok(None) };
    let member = archive.by_index(index).map_err(zip_fault)?;
    if member.compression() != CompressionMethod::Stored || member.encrypted() {
        let fix = "write it again with torch.save";
        return Err(Fault::Unreadable(format!("`{name}` is compressed or encrypted; {fix}")));
    }
    let start = member.data_start().ok_or_else(|| damaged(format!("`{name}` lies outside the file")))?;
    Ok(Some((start, member.size())))
}

fn zip_fault(error: ZipError) -> Fault {
    match error {
        ZipError::Io(source) if source.raw_os_error().is_some() => Fault::Io(source),
        error => damaged(error.to_string()),
    }
}

/// The parts of the oldest format before its pickle.
#[derive(Default)]
struct TarParts {
    numbered: HashMap<i64, Numbered>,
    storages: HashMap<Text, (u64, u64)>,
    charged: Vec<CountedHeap>,
}

impl TarParts {
    fn read_storages(&mut self, file: &File, start: u64, len: u64) -> Result<(), Fault> {
        let mut source = section(file, start, len)?;
        let mut pickles = Unpickler::new(&mut source, len, Graph::default());
        let count = pickles.load()?;
        for _ in 0..pickles.graph.size(count)? {
            let claim = pickles.load()?;
            let graph = &pickles.graph;
            let [key, _, class] = graph.sequence(claim)?[..] else { return Err(damaged("an entry is not a storage")) };
            let (key, number) = (graph.text(key)?, graph.number(key));
            let &Node::Global(Global::Storage(elements)) = graph.node(class) else {
                return Err(damaged(format!("storage `{key}` has no type")));
            };
            let size = size_of_elements(elements).ok_or_else(|| unsupported_elements(elements))?;
            let (at, len_bytes) = skip_elements(&mut pickles, size)?;
            let len = len_bytes / size;
            self.storages.insert(key.clone(), (start + at, len_bytes));
            self.add_numbered(number, Numbered::Storage(StorageClaim { key, elements, len, start: 0, part_len: len }))?;
        }
        let views = pickles.load()?;
        let graph = &pickles.graph;
        for view in graph.sequence(views)? {
            let [target, root, from, len] = graph.sequence(*view)?[..] else {
                return Err(damaged("an entry is not a storage"));
            };
            let root = graph.number(root).and_then(|root| self.numbered.get(&root));
            let Some(Numbered::Storage(root)) = root else { return Err(damaged("a view has no storage")) };
            let (from, part_len) = (graph.size(from)?, graph.size(len)?);
            if from.checked_add(part_len).is_none_or(|end| end > root.len) {
                return Err(damaged("a view extends beyond its storage"));
            }
            let claim = StorageClaim { start: from, part_len, ..root.clone() };
            self.add_numbered(graph.number(target), Numbered::Storage(claim))?;
        }
        Ok(())
    }

    fn read_tensors(&mut self, file: &File, start: u64, len: u64) -> Result<(), Fault> {
        let mut source = section(file, start, len)?;
        let mut pickles = Unpickler::new(&mut source, len, Graph::default());
        let count = pickles.load()?;
        for _ in 0..pickles.graph.size(count)? {
            let claim = pickles.load()?;
            let [key, storage, _] = pickles.graph.sequence(claim)?[..] else {
                return Err(damaged("an entry is not a tensor"));
            };
            let (key, storage) = (pickles.graph.number(key), pickles.graph.number(storage));
            let Some(Numbered::Storage(storage)) = storage.and_then(|number| self.numbered.get(&number)) else {
                return Err(damaged("a tensor has no storage"));
            };
            let storage = storage.clone();
            let rank = u32::from_le_bytes(pickles.bytes()?) as usize;
            pickles.skip(4)?; // the rank once had 8 bytes
            if rank > pagelock_tensor::MAX_RANK {
                return Err(too_many_dims(rank));
            }
            let mut sizes =
                || (0..rank).map(|_| Ok(u64::from_le_bytes(pickles.bytes()?))).collect::<Result<_, Fault>>();
            let (shape, strides) = (sizes()?, sizes()?);
            let (offset, elements) = (u64::from_le_bytes(pickles.bytes()?), storage.elements);
            self.add_numbered(key, Numbered::Tensor(TensorClaim { storage, elements, offset, shape, strides }))?;
        }
        Ok(())
    }

    fn add_numbered(&mut self, number: Option<i64>, object: Numbered) -> Result<(), Fault> {
        self.charged.push(charge(2 * STORAGE_BYTES)?);
        self.numbered.insert(number.ok_or_else(|| damaged("an entry has no number"))?, object);
        Ok(())
    }
}

/// The bytes of an element; `None` for types that no tensor has.
pub(super) fn size_of_elements(elements: Elements) -> Option<u64> {
    match elements {
        Elements::Of(dtype) => Some(dtype.size() as u64),
        Elements::Untyped => Some(1),
        Elements::Unknown(_) => None,
    }
}

pub(super) fn unsupported_elements(elements: Elements) -> Fault {
    let name = if let Elements::Unknown(name) = elements { name } else { "bytes" };
    Fault::Unreadable(format!(
        "it has elements of {name}, which no tensor can hold; convert them to float64, float32, float16, bfloat16, \
         int64, int32, uint8 or bool before it is saved"
    ))
}

impl Graph {
    fn claims(&self) -> impl Iterator<Item = &StorageClaim> {
        (0..self.len()).filter_map(|id| match self.node(id as Id) {
            Node::Storage(claim) => Some(claim),
            _ => None,
        })
    }

    /// The bytes of an element of each storage. Unknown types are an error only when a tensor is made of them.
    fn element_sizes(&self) -> HashMap<Text, u64> {
        self.claims().map(|claim| (claim.key.clone(), size_of_elements(claim.elements).unwrap_or(1))).collect()
    }
}
