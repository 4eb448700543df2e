//! The audit: which parameters does no path from the loss reach, and which operation cut the path?
//!
//! While [`audit`] runs a loss, recording tells it two things: which tracked tensors operations took ([`note_use`]),
//! and where an operation on tracked tensors gave an untracked result ([`note_cut`]). Afterwards the audit walks the
//! graph from the loss. Without an audit, each of these calls only reads one thread-local flag.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use super::node::NodeRef;
use crate::element::DType;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::thread_value::with_value;

/// Runs `loss` and reports every named tensor that no path from the loss reaches. Such a tensor would get no gradient.
///
/// The audit sees only what `loss` does on this thread. Backward passes inside `loss` are allowed and ignored.
///
/// ```
/// # use pagelock_tensor::{Tensor, autograd::audit};
/// let (w, v) = (Tensor::ones([2])?.set_requires_grad(true), Tensor::ones([2])?.set_requires_grad(true));
/// let report = audit(&[("w", &w), ("v", &v)], || (&w * v.detach())?.sum(..))?;
/// assert_eq!(report.to_string(), "`v` is not reached from the loss: cut by `detach`");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of `loss`.
pub fn audit(named: &[(impl AsRef<str>, &Tensor)], loss: impl FnOnce() -> Result<Tensor>) -> Result<Audit> {
    let running = Running::start();
    let loss = loss()?;
    let notes = running.finish();
    let mut reached = HashSet::new();
    visit(loss.node(), 0, &mut reached);
    let unreached: Vec<_> =
        named.iter().filter(|(_, tensor)| tensor.node().is_none_or(|node| !reached.contains(&node.seq()))).collect();
    let oldest = unreached.iter().filter_map(|(_, tensor)| tensor.node()).map(|node| node.seq()).min().unwrap_or(0);
    let cuts: Vec<_> = notes
        .cuts
        .iter()
        .map(|(cut, node)| {
            let mut cut_off = HashSet::new();
            visit(Some(node), oldest, &mut cut_off);
            (*cut, cut_off)
        })
        .collect();
    let unreached = unreached
        .into_iter()
        .map(|(name, tensor)| Unreached {
            name: name.as_ref().to_string(),
            reason: reason(tensor.node(), &cuts, &notes.used),
        })
        .collect();
    Ok(Audit { n_named: named.len(), unreached })
}

/// What [`audit`] found. Prints one line per tensor that is not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// The number of tensors that were named.
    pub n_named: usize,
    /// The tensors that no path from the loss reaches, in the order in which they were named.
    pub unreached: Vec<Unreached>,
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unreached.is_empty() {
            return write!(f, "all {} named tensors are reached from the loss", self.n_named);
        }
        for (i, unreached) in self.unreached.iter().enumerate() {
            write!(f, "{}{unreached}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// A named tensor that no path from the loss reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreached {
    /// The name that the caller gave.
    pub name: String,
    /// Why no path reaches it, as far as known.
    pub reason: Reason,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not reached from the loss: {}", self.name, self.reason)
    }
}

/// Why no path from the loss reaches a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It does not require grad, so nothing is recorded about it.
    Untracked,
    /// No operation took it.
    NeverUsed,
    /// What was computed from it never became part of the loss, although nothing cut it off.
    LeftOut,
    /// These operations took it, or a tensor computed from it, and gave an untracked result; in program order.
    Cut(Vec<Cut>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Untracked => f.write_str("it does not require grad"),
            Reason::NeverUsed => f.write_str("never used"),
            Reason::LeftOut => f.write_str("used, but nothing computed from it became part of the loss"),
            Reason::Cut(cuts) => {
                for (i, cut) in cuts.iter().enumerate() {
                    write!(f, "{}{cut}", if i == 0 { "cut by " } else { ", and by " })?;
                }
                Ok(())
            }
        }
    }
}

/// An operation that took a tracked tensor and gave an untracked result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Cut {
    /// The operation's name.
    pub op: &'static str,
    /// What made its result untracked.
    pub by: CutBy,
}

/// Why the result of an operation on tracked tensors is untracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CutBy {
    /// The operation itself: cutting the graph is its purpose, as for `detach`.
    Itself,
    /// The operation ran inside [`no_grad`](crate::no_grad).
    NoGrad,
    /// The result has a type without gradients.
    Type(DType),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            CutBy::Itself => write!(f, "`{}`", self.op),
            CutBy::NoGrad => write!(f, "`no_grad` around `{}`", self.op),
            CutBy::Type(dtype) => write!(f, "`{}`, whose result is {dtype}", self.op),
        }
    }
}

fn reason(node: Option<&NodeRef>, cuts: &[(Cut, HashSet<u64>)], used: &HashSet<u64>) -> Reason {
    let Some(node) = node else { return Reason::Untracked };
    let mut cut_by = Vec::new();
    for (cut, cut_off) in cuts {
        if cut_off.contains(&node.seq()) && !cut_by.contains(cut) {
            cut_by.push(*cut);
        }
    }
    match cut_by.is_empty() {
        false => Reason::Cut(cut_by),
        true if used.contains(&node.seq()) => Reason::LeftOut,
        true => Reason::NeverUsed,
    }
}

/// Adds to `seen` the numbers of all nodes reachable from `start` that are not older than `oldest`. Edges point to
/// lower numbers, so a node older than `oldest` leads to no such node.
fn visit(start: Option<&NodeRef>, oldest: u64, seen: &mut HashSet<u64>) {
    let mut open: Vec<&NodeRef> = start.into_iter().collect();
    while let Some(node) = open.pop() {
        if node.seq() >= oldest && seen.insert(node.seq()) {
            open.extend(node.function().edges().iter().flatten());
        }
    }
}

thread_local! {
    /// Whether an audit is running and listening. Without an audit, only this flag is read.
    static LISTENING: Cell<bool> = const { Cell::new(false) };
    static NOTES: RefCell<Notes> = RefCell::default();
}

#[derive(Default)]
struct Notes {
    /// Each cut with a tracked tensor that it took, listed once.
    cuts: Vec<(Cut, NodeRef)>,
    known: HashSet<(Cut, u64)>,
    /// The numbers of all nodes that recorded operations took.
    used: HashSet<u64>,
    /// Inputs of the custom functions whose `forward` is running. An untracked result that `forward` makes from them is
    /// not a cut.
    ignored: Vec<u64>,
}

/// The running audit of this thread. Dropping it ends the audit and resumes the enclosing one, if any.
struct Running {
    outer: Notes,
    was_listening: bool,
}

impl Running {
    fn start() -> Running {
        Running { outer: NOTES.take(), was_listening: LISTENING.replace(true) }
    }

    fn finish(self) -> Notes {
        NOTES.take()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        LISTENING.set(self.was_listening);
        NOTES.set(std::mem::take(&mut self.outer));
    }
}

/// Tells a running audit that an operation took these tensors and gave a tracked result.
pub(crate) fn note_use<'a>(inputs: impl Iterator<Item = &'a NodeRef>) {
    if LISTENING.get() {
        NOTES.with_borrow_mut(|notes| notes.used.extend(inputs.map(|node| node.seq())));
    }
}

/// Tells a running audit that an operation took these tensors and gave an untracked result.
pub(crate) fn note_cut<'a>(op: &'static str, by: CutBy, inputs: impl Iterator<Item = &'a NodeRef>) {
    if LISTENING.get() {
        let cut = Cut { op, by };
        NOTES.with_borrow_mut(|notes| {
            for node in inputs {
                if !notes.ignored.contains(&node.seq()) && notes.known.insert((cut, node.seq())) {
                    notes.cuts.push((cut, NodeRef::clone(node)));
                }
            }
        });
    }
}

/// Runs `f` hidden from the audit: derivatives are computed outside the graph of the loss, so they say nothing about
/// it.
pub(crate) fn hidden_from_audit<R>(f: impl FnOnce() -> R) -> R {
    with_value(&LISTENING, false, f)
}

/// Runs `f`. Meanwhile, operations that take `inputs` and give untracked results do not count as cuts.
pub(crate) fn without_cuts<'a, R>(inputs: impl Iterator<Item = &'a NodeRef>, f: impl FnOnce() -> R) -> R {
    if !LISTENING.get() {
        return f();
    }
    let before = NOTES.with_borrow_mut(|notes| {
        let before = notes.ignored.len();
        notes.ignored.extend(inputs.map(|node| node.seq()));
        before
    });
    let _restore = Ignored(before);
    f()
}

/// When dropped, truncates the list of ignored inputs to this length.
struct Ignored(usize);

impl Drop for Ignored {
    fn drop(&mut self) {
        NOTES.with_borrow_mut(|notes| notes.ignored.truncate(self.0));
    }
}
