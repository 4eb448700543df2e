//! The module that a thread is in, to which profiles and graphs attribute operations.
//!
//! A scope is a call of a module, inside the scope of its caller. Threads and nodes of the autograd graph store its
//! number, so that a backward is attributed to the module of its forward. Numbers grow as long as the process lives,
//! but scopes are kept only while something is recorded, so a number of an earlier recording refers to nothing.

use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::switch::is_on;
use crate::heap::CountedHeap;

/// The most scopes of one recording; calls beyond them are attributed to the module that they are in.
const MAX_SCOPES: usize = 1 << 16;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

static SCOPES: Mutex<Option<Scopes>> = Mutex::new(None);

/// The scopes of the recordings in progress.
#[derive(Default)]
struct Scopes {
    base: u32, // the last number of earlier recordings
    all: Vec<Scope>,
    by_call: FxHashMap<Call, u32>,
    names: HashMap<(usize, String), Name>, // by address and type
}

/// A call that makes a scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    parent: u32,
    address: usize,
    position: Option<usize>,
}

/// What is known of a scope.
#[derive(Clone)]
pub(super) struct Scope {
    address: usize,
    title: String,
    path: String,
    /// `layers.0 (Conv2d)`
    pub(super) text: Arc<str>,
    /// `Net/Sequential[layers]/Conv2d[0]`
    pub(super) graph: Arc<str>,
    _counted: Arc<CountedHeap>,
}

#[derive(Clone)]
struct Name {
    path: String,
    graph: String,
}

/// Names of modules by address, for [`Profiler::with_modules`](super::Profiler::with_modules): made by
/// `Module::module_names` of `pagelock-nn`. They borrow the modules, which therefore cannot move.
#[derive(Default)]
pub struct ModuleNames<'m> {
    names: Vec<((usize, String), Name)>,
    modules: PhantomData<&'m ()>,
}

impl<'m> ModuleNames<'m> {
    /// No names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names a module that is borrowed for `'m`, by its address and the name of its type. `path` is its dotted path
    /// in the model, and `graph` its place in a graph, such as `Net/Conv2d[conv1]`.
    pub fn add(&mut self, address: usize, title: String, path: &str, graph: String) {
        self.names.push(((address, title), Name { path: path.to_owned(), graph }));
    }

    /// Adds names of another model.
    pub fn extend(&mut self, others: ModuleNames<'m>) {
        self.names.extend(others.names);
    }

    /// Makes the names known to the recordings in progress.
    pub(super) fn publish(self) {
        lock().get_or_insert_default().names.extend(self.names);
    }
}

fn lock() -> MutexGuard<'static, Option<Scopes>> {
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets all scopes. Nothing is being recorded.
pub(super) fn clear() {
    let mut scopes = lock();
    let old = scopes.take();
    let base = old.as_ref().map_or(0, |old| old.base.wrapping_add(old.all.len() as u32));
    *scopes = Some(Scopes { base, ..Scopes::default() });
    drop(scopes);
    drop(old);
}

/// The scope with this number, if it is of a recording in progress.
pub(super) fn find(number: u32) -> Option<Scope> {
    lock().as_ref()?.get(number).cloned()
}

/// All scopes, and the number before the first.
pub(super) fn all() -> (u32, Vec<Scope>) {
    lock().as_ref().map_or((0, Vec::new()), |scopes| (scopes.base, scopes.all.clone()))
}

/// The scope with this number, if `all` has the scopes after number `base`.
pub(super) fn numbered(all: &[Scope], base: u32, number: u32) -> Option<&Scope> {
    let index = number.wrapping_sub(base).checked_sub(1)? as usize;
    if number == 0 { None } else { all.get(index) }
}

/// The number of the module that this thread is in; 0 if it is in none.
#[inline]
pub(crate) fn current() -> u32 {
    if is_on() { CURRENT.get() } else { 0 }
}

/// Sets the number of this thread's scope, and returns the one before.
pub(super) fn replace(number: u32) -> u32 {
    CURRENT.replace(number)
}

/// Enters the scope of a call; `None` for a call of the module that the thread is in, and beyond [`MAX_SCOPES`].
pub(super) fn enter(address: usize, position: Option<usize>, title: &dyn Fn() -> String) -> Option<u32> {
    let parent = CURRENT.get();
    let call = Call { parent, address, position };
    let known = lock().as_ref().and_then(|scopes| scopes.by_call.get(&call).copied());
    let number = match known {
        Some(number) => number,
        None => {
            let title = title(); // without the lock: it is the caller's code
            let mut scopes = lock();
            let scopes = scopes.get_or_insert_default();
            scopes.by_call.get(&call).copied().or_else(|| scopes.add(call, title))?
        }
    };
    if number == parent {
        return None;
    }
    CURRENT.set(number);
    Some(number)
}

impl Scopes {
    fn get(&self, number: u32) -> Option<&Scope> {
        numbered(&self.all, self.base, number)
    }

    /// The scope of a new call: that of the caller, if both are calls of the same module.
    fn add(&mut self, call: Call, title: String) -> Option<u32> {
        if self.by_call.len() >= MAX_SCOPES {
            return None;
        }
        let parent = self.get(call.parent);
        let is_same = parent.is_some_and(|parent| parent.address == call.address && parent.title == title);
        let number = match is_same {
            true => call.parent,
            false => {
                let scope = self.scope(call, title);
                self.all.push(scope);
                self.base.wrapping_add(self.all.len() as u32)
            }
        };
        self.by_call.insert(call, number);
        Some(number)
    }

    fn scope(&self, call: Call, title: String) -> Scope {
        let key = (call.address, title);
        let name = self.names.get(&key).cloned().unwrap_or_else(|| {
            let (path, graph) = self.get(call.parent).map_or(("", ""), |parent| (&*parent.path, &*parent.graph));
            let step = call.position.map(|position| position.to_string());
            let graph_step = step.as_ref().map_or_else(|| key.1.clone(), |step| format!("{}[{step}]", key.1));
            let path = [path, step.as_deref().unwrap_or("")];
            Name { path: joined(path, "."), graph: joined([graph, &graph_step], "/") }
        });
        let text = joined([&*name.path, &*format!("({})", key.1)], " ");
        let (address, title) = key;
        let len_bytes = size_of::<Scope>() + size_of::<(Call, u32)>() + 2 * text.len() + name.graph.len() + title.len();
        let counted = Arc::new(CountedHeap::new(len_bytes));
        Scope { address, title, path: name.path, text: text.into(), graph: name.graph.into(), _counted: counted }
    }
}

/// Both with the separator between them, or the one that is not empty.
fn joined([one, other]: [&str; 2], separator: &str) -> String {
    let separator = if one.is_empty() || other.is_empty() { "" } else { separator };
    format!("{one}{separator}{other}")
}
