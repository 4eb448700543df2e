//! Which module a thread is in: what operations are attributed to in profiles and graphs.
//!
//! A scope is a call of a module inside that of another. Its number is kept per thread and in nodes of the autograd graph, so
//! that a backward is attributed to the module of its forward. Numbers grow as long as the process lives; what they mean is
//! kept while something is recorded, so a number of an earlier recording means nothing.

use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::switch::is_on;
use crate::heap::CountedHeap;

/// Scopes of one recording, at most; calls beyond them are attributed to the module that they are in.
const MOST_SCOPES: usize = 1 << 16;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

static SCOPES: Mutex<Option<Scopes>> = Mutex::new(None);

/// The scopes of the recordings that are going on.
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
/// `Module::module_names` of `pagelock-nn`. The modules cannot move meanwhile.
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

    /// Names the module at that address, which is one of `'m`, and whose type has that name: its dotted path in the model, and
    /// its place in a graph, such as `Net/Conv2d[conv1]`.
    pub fn add(&mut self, address: usize, title: String, path: &str, graph: String) {
        self.names.push(((address, title), Name { path: path.to_owned(), graph }));
    }

    /// Adds names of another model.
    pub fn extend(&mut self, others: ModuleNames<'m>) {
        self.names.extend(others.names);
    }

    /// Makes them known to the recordings that are going on.
    pub(super) fn publish(self) {
        lock().get_or_insert_default().names.extend(self.names);
    }
}

fn lock() -> MutexGuard<'static, Option<Scopes>> {
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets what scopes there were: nothing is recorded any more.
pub(super) fn clear() {
    let mut scopes = lock();
    let old = scopes.take();
    let base = old.as_ref().map_or(0, |old| old.base.wrapping_add(old.all.len() as u32));
    *scopes = Some(Scopes { base, ..Scopes::default() });
    drop(scopes);
    drop(old);
}

/// The scope of that number, if it is of a recording that is going on.
pub(super) fn find(number: u32) -> Option<Scope> {
    lock().as_ref()?.get(number).cloned()
}

/// All scopes, and the number before the first.
pub(super) fn all() -> (u32, Vec<Scope>) {
    lock().as_ref().map_or((0, Vec::new()), |scopes| (scopes.base, scopes.all.clone()))
}

/// The number of the module that this thread is in; 0 if it is in none.
#[inline]
pub(crate) fn current() -> u32 {
    if is_on() { CURRENT.get() } else { 0 }
}

/// Changes it; returns what it was.
pub(super) fn replace(number: u32) -> u32 {
    CURRENT.replace(number)
}

/// Enters the scope of a call. Inside a call of the same module there is no other.
pub(super) fn enter(address: usize, position: Option<usize>, title: &dyn Fn() -> String) -> Option<u32> {
    let mut scopes = lock();
    let scopes = scopes.get_or_insert_default();
    let parent = CURRENT.get();
    let call = Call { parent, address, position };
    let known = scopes.by_call.get(&call).copied();
    let number = known.or_else(|| scopes.add(call, title()))?;
    if number == parent {
        return None;
    }
    CURRENT.set(number);
    Some(number)
}

impl Scopes {
    fn get(&self, number: u32) -> Option<&Scope> {
        let index = number.wrapping_sub(self.base).checked_sub(1)? as usize;
        if number == 0 { None } else { self.all.get(index) }
    }

    /// The scope of a call that was not made before: that of the caller, if it is the same module.
    fn add(&mut self, call: Call, title: String) -> Option<u32> {
        if self.by_call.len() >= MOST_SCOPES {
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
