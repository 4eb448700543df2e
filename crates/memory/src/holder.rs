//! Holders: names to which a thread charges the memory that it allocates.
//!
//! The ledger and errors list how much each holder has. The name is thread-local, so code that allocates need not pass
//! it along; a thread pool passes it to its threads with [`Holder::current`] and [`Holder::enter`].

use std::{cell::Cell, marker::PhantomData, sync::Mutex};

use crate::{ByteSize, Held, sync::lock_std};

/// Charges the memory that this thread allocates to `name`, until the returned scope is dropped.
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
/// Another thread charges the same holder as this one:
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

/// The names of [`Holder::PARAMETERS`] and the constants after it, in the same order.
const FIXED: [&str; 4] = ["parameters", "activations", "gradients", "optimizer state"];

// Every other name ever used. A `Holder` is an index into `FIXED` and then this, plus one; zero is "no holder".
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Holder> = const { Cell::new(Holder(0)) };
}

/// The holders of a training's memory where the program names none; see [`by_default`](Holder::by_default).
impl Holder {
    /// `parameters`: the parameters and buffers of layers.
    pub const PARAMETERS: Self = Self(1);
    /// `activations`: results that are part of an autograd graph.
    pub const ACTIVATIONS: Self = Self(2);
    /// `gradients`: tensors that `backward` makes.
    pub const GRADIENTS: Self = Self(3);
    /// `optimizer state`: the state of optimizers, and the temporary memory of their steps.
    pub const OPTIMIZER_STATE: Self = Self(4);
}

impl Holder {
    /// The holder of that name.
    pub fn named(name: &str) -> Self {
        if let Some(fixed) = FIXED.iter().position(|fixed| *fixed == name) {
            return Holder(fixed + 1);
        }
        let mut names = lock_std(&NAMES);
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

    /// Charges the memory that this thread allocates to this holder, until the returned scope is dropped.
    pub fn enter(self) -> HolderScope {
        HolderScope { previous: CURRENT.replace(self), on_this_thread: PhantomData }
    }

    /// Like [`enter`](Self::enter), unless this thread already has a holder, which is then kept.
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
        let names = lock_std(&NAMES);
        Some(names[self.0 - 1 - FIXED.len()].clone())
    }
}

/// While this lives, its thread charges memory to a holder; see [`holder`].
#[must_use = "the holder is charged only while the scope lives"]
pub struct HolderScope {
    previous: Holder,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for HolderScope {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

/// Bytes per holder, also for pools of devices; not part of the public interface. The vector grows once per new name,
/// so steady use allocates nothing.
#[derive(Debug, Default)]
pub struct Tally(Vec<u64>);

impl Tally {
    /// Adds `bytes` to the holder.
    pub fn add(&mut self, holder: Holder, bytes: u64) {
        if self.0.len() <= holder.0 {
            self.0.resize(holder.0 + 1, 0);
        }
        self.0[holder.0] += bytes;
    }

    /// Subtracts `bytes` from the holder.
    pub fn sub(&mut self, holder: Holder, bytes: u64) {
        self.0[holder.0] -= bytes;
    }

    /// Adds the bytes of another tally.
    pub fn extend(&mut self, other: &Tally) {
        other.0.iter().enumerate().for_each(|(i, &bytes)| self.add(Holder(i), bytes));
    }

    /// The holders that hold something, largest first; what is charged to no holder is left out.
    pub fn holders(&self) -> Vec<Held> {
        let mut held = self.held();
        held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
        held
    }

    /// The holders that hold something, in no particular order; what is charged to no holder is left out.
    pub(crate) fn held(&self) -> Vec<Held> {
        let all = self.0.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        all.filter_map(|(i, &bytes)| Some(Held { name: Holder(i).name()?, bytes: ByteSize(bytes) })).collect()
    }
}

/// How many holders errors and the ledger name at most: the largest.
pub(crate) const MAX_NAMED: usize = 4;
