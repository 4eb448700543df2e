//! [`Unpickler`]: reads the part of Python's pickles that PyTorch's own `weights_only` reader accepts. Nothing is
//! ever called: an instruction makes a [`Node`] of a graph, and a global must be on the list in `globals.rs`.
//!
//! An instruction makes at most one node, so the length of the pickle bounds the graph. Nodes refer to others by
//! index, so a value that is shared, or that contains itself, takes no more memory. Memory is reserved from the
//! budget as the graph grows, and stays reserved as long as the graph exists.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use super::fault::{Fault, charge, damaged, reserve};
use super::globals::Global;
use super::graph::{Graph, Id, Node, Sequence, TensorClaim};
use super::opcode;

/// The bytes of a node in the graph, on the stack and in the memo.
const NODE_BYTES: usize = 2 * (size_of::<Node>() + 4 * size_of::<Id>()) + size_of::<TensorClaim>();
/// What the allocator and the counts of handles add to a text.
const TEXT_OVERHEAD: u64 = 32;
/// The bytes of an entry of the memo, while its table grows.
const MEMO_BYTES: u64 = 32;
/// A list that grows has at most this multiple of its elements, with those that are moved into it.
const LIST_GROWTH: usize = 3;
/// The number of nodes for which memory is reserved at a time.
const NODES_PER_CHARGE: usize = 4_096;

/// Reads one pickle after another.
pub(super) struct Unpickler<'a> {
    source: &'a mut dyn Read,
    /// The position in the source, in bytes.
    at: u64,
    /// The largest possible position.
    end: u64,
    pub(super) graph: Graph,
    stack: Vec<Id>,
    marks: Vec<usize>, // the stack's length at each mark
    memo: HashMap<u32, Id>,
    n_paid: usize,  // nodes that are charged
    text_left: u64, // bytes that are charged for texts and not used yet
    copied: u64,    // bytes that calls and storages copied from their arguments
}

impl<'a> Unpickler<'a> {
    pub(super) fn new(source: &'a mut dyn Read, end: u64, graph: Graph) -> Self {
        let (stack, marks, memo) = (Vec::new(), Vec::new(), HashMap::new());
        Self { source, at: 0, end, graph, stack, marks, memo, n_paid: 0, text_left: 0, copied: 0 }
    }

    /// The number of bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Reads one pickle and returns its value.
    pub(super) fn load(&mut self) -> Result<Id, Fault> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            if let Some(result) = self.instruction()? {
                return Ok(result);
            }
            if self.graph.len() + self.marks.len() >= self.n_paid {
                if self.graph.len() >= Id::MAX as usize - NODES_PER_CHARGE {
                    return Err(damaged("a pickle has more than 4 billion values"));
                }
                self.charge_nodes()?;
            }
        }
    }

    fn charge_nodes(&mut self) -> Result<(), Fault> {
        self.graph.charged.push(charge(NODES_PER_CHARGE * NODE_BYTES)?);
        self.n_paid += NODES_PER_CHARGE;
        Ok(())
    }

    /// Charges a text, or other bytes of a node.
    fn charge_text(&mut self, len: u64) -> Result<(), Fault> {
        const BLOCK: u64 = 64 << 10;
        let len = len + TEXT_OVERHEAD;
        if len > self.text_left {
            let block = len.max(BLOCK);
            self.graph.charged.push(charge(block as usize)?);
            self.text_left += block;
        }
        self.text_left -= len;
        Ok(())
    }

    /// Executes one instruction. Returns the value of the pickle if it was the last one.
    fn instruction(&mut self) -> Result<Option<Id>, Fault> {
        let [code] = self.bytes()?;
        match code {
            opcode::STOP => return self.pop().map(Some),
            opcode::PROTO => drop(self.bytes::<1>()?), // the version
            opcode::MARK => self.marks.push(self.stack.len()),
            opcode::GLOBAL => self.global()?,
            opcode::REDUCE | opcode::NEWOBJ => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let node = self.graph.call(function, arguments)?;
                self.check_growth(node.copied_bytes())?;
                self.push(node);
            }
            opcode::BUILD => {
                let (state, object) = (self.pop()?, self.pop()?);
                self.graph.build(object, state)?;
                self.stack.push(object);
            }
            opcode::BINPERSID => {
                let id = self.pop()?;
                let node = self.graph.persistent(id)?;
                self.check_growth(node.copied_bytes())?;
                self.push(node);
            }
            opcode::BINPUT | opcode::LONG_BINPUT => self.put(code == opcode::LONG_BINPUT)?,
            opcode::BINGET | opcode::LONG_BINGET => self.get(code == opcode::LONG_BINGET)?,
            opcode::APPEND | opcode::APPENDS | opcode::SETITEM | opcode::SETITEMS => self.append_items(code)?,
            opcode::TUPLE | opcode::TUPLE1 | opcode::TUPLE2 | opcode::TUPLE3 => self.tuple(code)?,
            _ => {
                let node = self.literal(code)?;
                self.push(node);
            }
        }
        Ok(None)
    }

    /// Charges the bytes that a call or a storage copied, and limits them to a multiple of the bytes read, since shared
    /// arguments can be copied again and again.
    fn check_growth(&mut self, copied: u64) -> Result<(), Fault> {
        const MAX_COPIED: u64 = 8;
        self.copied += copied;
        if self.copied > MAX_COPIED * self.at + (64 << 10) {
            return Err(damaged("a pickle copies shared values too often"));
        }
        if copied > 0 { self.charge_text(copied) } else { Ok(()) }
    }

    /// A value that follows its instruction in the pickle.
    fn literal(&mut self, code: u8) -> Result<Node, Fault> {
        Ok(match code {
            opcode::NONE => Node::None,
            opcode::NEWTRUE => Node::Bool(true),
            opcode::NEWFALSE => Node::Bool(false),
            opcode::BININT1 => Node::Int(i64::from(self.bytes::<1>()?[0])),
            opcode::BININT2 => Node::Int(i64::from(u16::from_le_bytes(self.bytes()?))),
            opcode::BININT => Node::Int(i64::from(i32::from_le_bytes(self.bytes()?))),
            opcode::LONG1 => self.long()?,
            opcode::BINFLOAT => Node::Float(f64::from_be_bytes(self.bytes()?)),
            opcode::BINUNICODE => {
                let len = u32::from_le_bytes(self.bytes()?);
                let text = String::from_utf8(self.take(u64::from(len))?);
                Node::Text(text.map_err(|_| damaged("a string is not UTF-8"))?.into())
            }
            opcode::SHORT_BINSTRING => {
                let [len] = self.bytes()?;
                Node::Bytes(self.take(u64::from(len))?.into())
            }
            opcode::EMPTY_TUPLE => Node::Sequence(Sequence::Tuple, Vec::new()),
            opcode::EMPTY_LIST => Node::Sequence(Sequence::List, Vec::new()),
            opcode::EMPTY_SET => Node::Sequence(Sequence::Set, Vec::new()),
            opcode::EMPTY_DICT => Node::Dict(Vec::new()),
            _ => {
                let problem =
                    format!("instruction {code:#04x} at byte {} of a pickle is not one of a PyTorch file", self.at - 1);
                return Err(damaged(problem));
            }
        })
    }

    /// An integer of up to 255 bytes; one of more than 8 stays bytes.
    fn long(&mut self) -> Result<Node, Fault> {
        let [len] = self.bytes()?;
        let mut bytes = self.take(u64::from(len))?;
        let sign = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xFF } else { 0 };
        let is_long = bytes.get(8..).is_some_and(|more| more.iter().any(|&byte| byte != sign))
            || bytes.len() > 8 && (bytes[7] ^ sign) & 0x80 != 0;
        if is_long {
            return Ok(Node::LongInt(bytes.into()));
        }
        bytes.resize(8, sign);
        Ok(Node::Int(bytes.iter().rev().fold(0, |number, &byte| number << 8 | i64::from(byte))))
    }

    fn global(&mut self) -> Result<(), Fault> {
        let (module, name) = (self.line()?, self.line()?);
        let global = Global::find(&module, &name).ok_or_else(|| Fault::Forbidden(format!("{module}.{name}")))?;
        self.push(Node::Global(global));
        Ok(())
    }

    fn line(&mut self) -> Result<String, Fault> {
        const MAX_LEN: usize = 1_000; // of a name
        let mut line = Vec::new();
        loop {
            match self.bytes()? {
                [b'\n'] => return String::from_utf8(line).map_err(|_| damaged("a name is not UTF-8")),
                [_] if line.len() == MAX_LEN => return Err(damaged("a name does not end")),
                [byte] => line.push(byte),
            }
        }
    }

    fn put(&mut self, is_long: bool) -> Result<(), Fault> {
        let number = self.number(is_long)?;
        let &top = self.stack.last().ok_or_else(stack_underflow)?;
        if self.memo.len() > self.graph.len() && !self.memo.contains_key(&number) {
            self.charge_text(MEMO_BYTES)?; // the memo can grow without new nodes
        }
        self.memo.insert(number, top);
        Ok(())
    }

    fn get(&mut self, is_long: bool) -> Result<(), Fault> {
        let number = self.number(is_long)?;
        let known = self
            .memo
            .get(&number)
            .ok_or_else(|| damaged(format!("a pickle reads memo {number}, which it never wrote")))?;
        self.stack.push(*known);
        if self.stack.len() > self.graph.len() + self.n_paid {
            self.charge_nodes()?; // the stack can grow without new nodes
        }
        Ok(())
    }

    fn number(&mut self, is_long: bool) -> Result<u32, Fault> {
        Ok(if is_long { u32::from_le_bytes(self.bytes()?) } else { u32::from(self.bytes::<1>()?[0]) })
    }

    /// Moves the top of the stack into the list or dict below it.
    fn append_items(&mut self, code: u8) -> Result<(), Fault> {
        let items = match code {
            opcode::APPEND => self.pop_items(1)?,
            opcode::SETITEM => self.pop_items(2)?,
            _ => self.pop_mark()?,
        };
        let &target = self.stack.last().filter(|_| self.is_above_mark()).ok_or_else(stack_underflow)?;
        match (self.graph.node_mut(target), code) {
            (Node::Sequence(Sequence::List, list), opcode::APPEND | opcode::APPENDS) => list.extend(items),
            (Node::Dict(entries), opcode::SETITEM | opcode::SETITEMS) if items.len().is_multiple_of(2) => {
                entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return Err(damaged("a pickle adds items to something that is not a list or dict")),
        }
        Ok(())
    }

    fn tuple(&mut self, code: u8) -> Result<(), Fault> {
        let items = match code {
            opcode::TUPLE => self.pop_mark()?,
            code => self.pop_items(usize::from(code - opcode::TUPLE1) + 1)?,
        };
        self.push(Node::Sequence(Sequence::Tuple, items));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        let id = self.graph.add(node);
        self.stack.push(id);
    }

    fn is_above_mark(&self) -> bool {
        self.stack.len() > self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        let has_value = self.is_above_mark();
        self.stack.pop().filter(|_| has_value).ok_or_else(stack_underflow)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, Fault> {
        let mark = self.marks.pop().ok_or_else(stack_underflow)?;
        self.pop_items(self.stack.len().saturating_sub(mark))
    }

    /// The last `n` values of the stack, in their order, for a node that keeps them.
    fn pop_items(&mut self, n: usize) -> Result<Vec<Id>, Fault> {
        let first = self.stack.len().checked_sub(n).filter(|first| self.marks.last().is_none_or(|mark| first >= mark));
        let first = first.ok_or_else(stack_underflow)?;
        self.charge_text((LIST_GROWTH * n * size_of::<Id>()) as u64)?;
        Ok(self.stack.split_off(first))
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// The next `len` bytes, if the source has them.
    fn take(&mut self, len: u64) -> Result<Vec<u8>, Fault> {
        const SMALL: u64 = 4_096; // in bytes
        if len > self.end.saturating_sub(self.at) {
            return Err(damaged(format!("a string of {len} bytes extends beyond its end")));
        }
        self.charge_text(len)?;
        let _copied = (len > SMALL).then(|| reserve(len as usize)).transpose()?; // into the node
        let mut bytes = vec![0; len as usize];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Skips `len` bytes.
    pub(super) fn skip(&mut self, len: u64) -> Result<(), Fault> {
        let skipped = std::io::copy(&mut (&mut *self.source).take(len), &mut std::io::sink())?;
        self.at += skipped;
        if skipped == len { Ok(()) } else { Err(cut_short()) }
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        self.source.read_exact(out).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => cut_short(),
            _ => error.into(),
        })?;
        self.at += out.len() as u64;
        Ok(())
    }
}

fn cut_short() -> Fault {
    damaged("it was cut short")
}

fn stack_underflow() -> Fault {
    damaged("a pickle pops more values than it pushed")
}

/// A text in the graph.
pub(super) type Text = Arc<str>;
