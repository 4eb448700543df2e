//! [`Graph`]: the contents of pickles, before they become a tree. Of storages and tensors it has what the file claims
//! about them, not their bytes.

use std::collections::HashMap;

use pagelock_tensor::{CountedHeap, MAX_RANK};

use super::fault::{Fault, damaged};
use super::globals::{Elements, Global};
use super::pickle::Text;

/// The index of a node.
pub(super) type Id = u32;

#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    LongInt(Box<[u8]>), // little-endian
    Float(f64),
    Text(Text),
    Bytes(Box<[u8]>),
    Sequence(Sequence, Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(StorageClaim),
    Tensor(Box<TensorClaim>),
}

impl Node {
    /// The bytes that an instruction which made this node copied from its arguments. A storage's key counts even where
    /// it is shared, since it is hashed for each storage.
    pub(super) fn copied_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Sequence(_, items) => size_of_val(&items[..]),
            Self::Dict(entries) => size_of_val(&entries[..]),
            Self::Bytes(bytes) | Self::LongInt(bytes) => bytes.len(),
            Self::Text(text) => text.len(),
            Self::Storage(claim) => claim.key.len(),
            _ => 0,
        };
        bytes as u64
    }

    /// The bytes of a text or of bytes, which a tree copies for each use.
    pub(super) fn text_bytes(&self) -> u64 {
        match self {
            Self::Bytes(_) | Self::Text(_) => self.copied_bytes(),
            _ => 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sequence {
    List,
    Tuple,
    Set,
}

/// A storage, or a part of one, as a pickle names it.
#[derive(Debug, Clone)]
pub(super) struct StorageClaim {
    pub(super) key: Text,
    pub(super) elements: Elements,
    /// The number of elements of the whole storage.
    pub(super) len: u64,
    /// The number of elements before the part.
    pub(super) start: u64,
    /// The number of elements of the part.
    pub(super) part_len: u64,
}

/// A view of a storage.
#[derive(Debug, Clone)]
pub(super) struct TensorClaim {
    pub(super) storage: StorageClaim,
    pub(super) elements: Elements,
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

pub(super) fn too_many_dims(rank: usize) -> Fault {
    Fault::Unreadable(format!(
        "it has a tensor of {rank} dimensions, more than {MAX_RANK}; reshape it before it is saved"
    ))
}

/// The nodes of pickles; see the head of the file.
#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    /// The sum of [`Node::text_bytes`].
    text_bytes: u64,
    /// The storages and tensors before the pickle of an archive of the oldest format, by number.
    numbered: HashMap<i64, Numbered>,
    /// The memory of the graph in the budget, which lasts as long as the graph.
    pub(super) charged: Vec<CountedHeap>,
}

pub(super) enum Numbered {
    Storage(StorageClaim),
    Tensor(TensorClaim),
}

impl Graph {
    /// With the memory that `numbered` takes in the budget.
    pub(super) fn with(numbered: HashMap<i64, Numbered>, charged: Vec<CountedHeap>) -> Self {
        Self { numbered, charged, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The index fits: `Unpickler::load` refuses pickles of more than 4 billion values.
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.text_bytes += node.text_bytes();
        self.nodes.push(node);
        (self.nodes.len() - 1) as Id
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// The result of a call.
    pub(super) fn call(&self, function: Id, arguments: Id) -> Result<Node, Fault> {
        let (Node::Global(function), Node::Sequence(Sequence::Tuple, arguments)) =
            (self.node(function), self.node(arguments))
        else {
            return Err(damaged("a pickle calls something that is not a function, or passes no arguments"));
        };
        self.call_global(*function, arguments, false)
    }

    fn call_global(&self, function: Global, arguments: &[Id], is_inner: bool) -> Result<Node, Fault> {
        let wrong_arguments = || damaged(format!("`{function:?}` is called with arguments that it does not take"));
        match (function, arguments) {
            (Global::OrderedDict | Global::Counter, []) => Ok(Node::Dict(Vec::new())),
            (Global::OrderedDict | Global::Counter, [from]) => self.dict_of(*from),
            (Global::Size, [sizes]) => Ok(Node::Sequence(Sequence::Tuple, self.sequence(*sizes)?.to_vec())),
            (Global::Set, []) => Ok(Node::Sequence(Sequence::Set, Vec::new())),
            (Global::Set, [items]) => Ok(Node::Sequence(Sequence::Set, self.sequence(*items)?.to_vec())),
            (Global::Device, [kind]) => Ok(Node::Text(self.text(*kind)?)),
            (Global::Device, [kind, number]) => {
                Ok(Node::Text(format!("{}:{}", self.text(*kind)?, self.size(*number)?).into()))
            }
            (Global::Encode, [text, _]) => self.encode_latin1(*text),
            (Global::ByteArray, []) => Ok(Node::Bytes(Box::default())),
            (Global::ByteArray, [bytes]) => match self.node(*bytes) {
                Node::Bytes(bytes) => Ok(Node::Bytes(bytes.clone())),
                _ => Err(wrong_arguments()),
            },
            (Global::RebuildTensorV2, [_, _, _, _, _, _, notes]) if !matches!(self.node(*notes), Node::Dict(all) if all.is_empty()) =>
            {
                let fix = "save `x.resolve_conj().resolve_neg()` instead";
                Err(Fault::Unreadable(format!("a tensor is saved as the conjugate or the negative of another; {fix}")))
            }
            (Global::RebuildTensor, [storage, offset, shape, strides])
            | (Global::RebuildTensorV2, [storage, offset, shape, strides, ..]) => {
                self.tensor(*storage, *offset, *shape, *strides, None)
            }
            (Global::RebuildTensorV3, [storage, offset, shape, strides, _, _, dtype, ..]) => {
                self.tensor(*storage, *offset, *shape, *strides, Some(*dtype))
            }
            (Global::Parameter | Global::RebuildParameter | Global::RebuildParameterWithState, [tensor, ..]) => {
                match self.node(*tensor) {
                    Node::Tensor(claim) => Ok(Node::Tensor(claim.clone())),
                    _ => Err(wrong_arguments()),
                }
            }
            (Global::RebuildFromType, [function, _, arguments, _]) if !is_inner => {
                match (self.node(*function), self.node(*arguments)) {
                    (Node::Global(function), Node::Sequence(_, arguments)) => {
                        self.call_global(*function, arguments, true)
                    }
                    _ => Err(wrong_arguments()),
                }
            }
            _ => Err(wrong_arguments()),
        }
    }

    /// Accepts attributes for a dict or a tensor, and ignores them.
    pub(super) fn build(&self, object: Id, _state: Id) -> Result<(), Fault> {
        match self.node(object) {
            Node::Dict(_) | Node::Tensor(_) => Ok(()),
            _ => Err(damaged("a pickle sets attributes of a value that has none")),
        }
    }

    /// The object of a persistent id: a storage, or in the oldest format a numbered storage or tensor.
    pub(super) fn persistent(&self, id: Id) -> Result<Node, Fault> {
        if let Some(number) = self.number(id) {
            return match self.numbered.get(&number) {
                Some(Numbered::Storage(claim)) => Ok(Node::Storage(claim.clone())),
                Some(Numbered::Tensor(claim)) => Ok(Node::Tensor(Box::new(claim.clone()))),
                None => Err(damaged(format!("nothing has the number {number}"))),
            };
        }
        let Node::Sequence(Sequence::Tuple, parts) = self.node(id) else {
            return Err(damaged("a pickle refers to something that is not a storage"));
        };
        match parts[..] {
            [kind, class, key, _, len] => self.storage(kind, class, key, len, None),
            [kind, class, key, _, len, view] => self.storage(kind, class, key, len, Some(view)),
            _ => Err(damaged("a pickle refers to something that is not a storage")),
        }
    }

    fn storage(&self, kind: Id, class: Id, key: Id, len: Id, view: Option<Id>) -> Result<Node, Fault> {
        if &*self.text(kind)? != "storage" {
            let fix = "save a state dict: torch.save(model.state_dict(), path)";
            return Err(Fault::Unreadable(format!("it holds a whole module, which needs its Python code; {fix}")));
        }
        let &Node::Global(Global::Storage(elements)) = self.node(class) else {
            return Err(damaged("a storage has no type"));
        };
        let (key, len) = (self.text(key)?, self.size(len)?);
        let (mut start, mut part_len) = (0, len);
        if let Some(view) = view.filter(|&view| !matches!(self.node(view), Node::None)) {
            let [_, from, n_elements] = self.sequence(view)?[..] else {
                return Err(damaged("a view of a storage is malformed"));
            };
            (start, part_len) = (self.size(from)?, self.size(n_elements)?);
            if start.checked_add(part_len).is_none_or(|end| end > len) {
                return Err(damaged(format!("a view of storage `{key}` extends beyond its {len} elements")));
            }
        }
        Ok(Node::Storage(StorageClaim { key, elements, len, start, part_len }))
    }

    fn tensor(&self, storage: Id, offset: Id, shape: Id, strides: Id, dtype: Option<Id>) -> Result<Node, Fault> {
        let Node::Storage(storage) = self.node(storage) else { return Err(damaged("a tensor has no storage")) };
        let elements = match dtype.map(|dtype| self.node(dtype)) {
            None if storage.elements == Elements::Untyped => {
                return Err(damaged("a tensor does not state its element type"));
            }
            None => storage.elements,
            Some(Node::Global(Global::DType(name))) => Global::dtype_of(name),
            Some(_) => return Err(damaged("a tensor does not state its element type")),
        };
        let sizes = |id| match self.sequence(id)? {
            sizes if sizes.len() > MAX_RANK => Err(too_many_dims(sizes.len())),
            sizes => sizes.iter().map(|&size| self.size(size)).collect::<Result<Vec<_>, _>>(),
        };
        let (offset, shape, strides) = (self.size(offset)?, sizes(shape)?, sizes(strides)?);
        Ok(Node::Tensor(Box::new(TensorClaim { storage: storage.clone(), elements, offset, shape, strides })))
    }

    /// A dict made from another dict or from pairs.
    fn dict_of(&self, from: Id) -> Result<Node, Fault> {
        if let Node::Dict(entries) = self.node(from) {
            return Ok(Node::Dict(entries.clone()));
        }
        let pair = |&pair: &Id| match self.sequence(pair)? {
            [key, value] => Ok((*key, *value)),
            _ => Err(damaged("a dict is built from items that are not pairs")),
        };
        Ok(Node::Dict(self.sequence(from)?.iter().map(pair).collect::<Result<_, _>>()?))
    }

    /// Bytes, which protocol 2 writes as a Latin-1 text.
    fn encode_latin1(&self, text: Id) -> Result<Node, Fault> {
        let bytes: Result<Box<[u8]>, _> =
            self.text(text)?.chars().map(|letter| u8::try_from(u32::from(letter))).collect();
        Ok(Node::Bytes(bytes.map_err(|_| damaged("a character is above U+00FF"))?))
    }

    pub(super) fn sequence(&self, id: Id) -> Result<&[Id], Fault> {
        match self.node(id) {
            Node::Sequence(_, items) => Ok(items),
            _ => Err(damaged("there is no list where one should be")),
        }
    }

    /// A text. The bytes of a Python 2 text and integers are converted.
    pub(super) fn text(&self, id: Id) -> Result<Text, Fault> {
        match self.node(id) {
            Node::Text(text) => Ok(text.clone()),
            Node::Bytes(bytes) => Ok(String::from_utf8_lossy(bytes).into()),
            Node::Int(number) => Ok(number.to_string().into()),
            _ => Err(damaged("there is no string where one should be")),
        }
    }

    pub(super) fn size(&self, id: Id) -> Result<u64, Fault> {
        match self.node(id) {
            Node::Int(number) => u64::try_from(*number).map_err(|_| damaged(format!("a size is {number}"))),
            _ => Err(damaged("there is no size where one should be")),
        }
    }

    /// An integer, or a text that is one.
    pub(super) fn number(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Int(number) => Some(*number),
            Node::Text(text) => text.parse().ok(),
            Node::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }
}
