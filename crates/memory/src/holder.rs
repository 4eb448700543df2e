//! Holders: names to which a thread charges the memory it takes.
//!
//! The ledger and refusals list how much each holder has. The name is thread-local, so code that allocates need not pass it
//! along; a thread pool hands it over with [`Holder::current`] and [`Holder::enter`].

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{Mutex, PoisonError},
};

use crate::{ByteSize, Held};

/// Charges what this thread takes from now on to `name`, until the returned scope drops.
///
/// Names are kept for the life of the process: use a handful of fixed ones.
///
/// # Examples
/// ```
/// use pagelock_memory::{Budget, holder};
///
/// let budget = Budget::new("host", 1_000);
/// let _batch = {
///     let _scope = holder("loader");
///     budget.reserve(600)?
/// };
/// assert_eq!(budget.holders()[0].to_string(), "`loader` 600 B");
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn holder(name: &str) -> HolderScope {
    Holder::named(name).enter()
}

/// A name that memory is charged to; see [`holder`].
///
/// # Examples
/// Another thread goes on charging whom this one charged:
/// ```
/// use pagelock_memory::{Holder, holder};
///
/// let _scope = holder("loader");
/// let carried = Holder::current();
/// std::thread::spawn(move || {
///     let _scope = carried.enter();
///     assert_eq!(Holder::current(), Holder::named("loader"));
/// })
/// .join()
/// .unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(usize);

/// The names of [`Holder::PARAMETERS`] and those after it, in their order.
const FIXED: [&str; 4] = ["parameters", "activations", "gradients", "optimizer state"];

// Every other name ever used. A `Holder` is an index into `FIXED` and then this, plus one; zero is "no holder".
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Holder> = const { Cell::new(Holder(0)) };
}

/// What training takes where the program charges nobody; see [`by_default`](Holder::by_default).
impl Holder {
    /// `parameters`: those of layers, and their buffers.
    pub const PARAMETERS: Self = Self(1);
    /// `activations`: results that a gradient may be asked of.
    pub const ACTIVATIONS: Self = Self(2);
    /// `gradients`: what `backward` makes.
    pub const GRADIENTS: Self = Self(3);
    /// `optimizer state`: what an optimizer keeps, and what its step works with.
    pub const OPTIMIZER_STATE: Self = Self(4);
}

impl Holder {
    /// The holder of that name.
    pub fn named(name: &str) -> Self {
        if let Some(fixed) = FIXED.iter().position(|fixed| *fixed == name) {
            return Holder(fixed + 1);
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        Holder(FIXED.len() + index + 1)
    }

    /// The holder that this thread charges now, to be entered on another thread.
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// Charges what this thread takes from now on to this holder, until the returned scope drops.
    pub fn enter(self) -> HolderScope {
        HolderScope { before: CURRENT.replace(self), on_this_thread: PhantomData }
    }

    /// As [`enter`](Self::enter), unless this thread charges somebody already: then that one is charged on.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{Holder, holder};
    ///
    /// let _default = Holder::GRADIENTS.by_default();
    /// assert_eq!(Holder::current(), Holder::named("gradients"));
    /// let _own = holder("teacher");
    /// let _default = Holder::GRADIENTS.by_default();
    /// assert_eq!(Holder::current(), Holder::named("teacher"));
    /// ```
    pub fn by_default(self) -> HolderScope {
        let current = Self::current();
        if current == Holder(0) { self.enter() } else { current.enter() }
    }

    fn name(self) -> Option<String> {
        if let Some(fixed) = FIXED.get(self.0.checked_sub(1)?) {
            return Some((*fixed).to_owned());
        }
        let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        Some(names[self.0 - 1 - FIXED.len()].clone())
    }
}

/// While this lives, its thread charges memory to a holder; see [`holder`].
#[must_use = "the holder is charged only while the scope lives"]
pub struct HolderScope {
    before: Holder,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for HolderScope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Bytes per holder, for pools of devices too; no part of the interface. Steady use allocates nothing: the vector grows once per new name.
#[derive(Debug, Default)]
pub struct Tally(Vec<u64>);

impl Tally {
    /// The holder takes so many.
    pub fn add(&mut self, holder: Holder, bytes: u64) {
        if self.0.len() <= holder.0 {
            self.0.resize(holder.0 + 1, 0);
        }
        self.0[holder.0] += bytes;
    }

    /// The holder gives so many back.
    pub fn sub(&mut self, holder: Holder, bytes: u64) {
        self.0[holder.0] -= bytes;
    }

    /// Adds what another tally has.
    pub fn extend(&mut self, other: &Tally) {
        other.0.iter().enumerate().for_each(|(i, &bytes)| self.add(Holder(i), bytes));
    }

    /// The holders that hold something, largest first; what is charged to no holder is left out.
    pub fn holders(&self) -> Vec<Held> {
        let mut held = self.held();
        held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
        held
    }

    /// The holders that hold something, by name; what is charged to no holder is left out.
    pub(crate) fn held(&self) -> Vec<Held> {
        let all = self.0.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        all.filter_map(|(i, &bytes)| Some(Held { name: Holder(i).name()?, bytes: ByteSize(bytes) })).collect()
    }
}

/// The four largest, largest first.
pub(crate) fn largest(mut held: Vec<Held>) -> Vec<Held> {
    held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    held.truncate(4);
    held
}
