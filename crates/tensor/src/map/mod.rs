//! [`TensorMap`]: named, nested tensors of any kinds that have a batch in common, and are moved, sliced and stored
//! together.
//!
//! - `any.rs`: [`AnyTensor`], one tensor of a map;
//! - `assign.rs`: copies elements into many tensors, all or none;
//! - `snapshot.rs`: copies many tensors to the host, while the program goes on;
//! - `batch.rs`: operations along the batch: slicing, picking, stacking;
//! - `transfer.rs`: moves maps to devices, to page-locked memory, or into one block;
//! - `entries.rs`: the tree of names, which counts in the host's budget;
//! - `file/`: writes safetensors files, and reads them into host memory or onto a device.
//!
//! Invariants: every tensor's shape, and every inner map's batch, begins with the batch of the map; names are not
//! empty and contain no dot; maps are nested no deeper than [`DEEPEST`]. The memory of entries, beside the elements,
//! counts in the host's budget.

mod any;
mod assign;
mod batch;
mod entries;
mod file;
mod snapshot;
mod transfer;

use std::fmt;
use std::sync::Arc;

use pagelock_memory::text::shortened;

pub use self::any::AnyTensor;
pub use self::assign::copy_all_;
use self::entries::{Entries, Entry, check_budget};
pub use self::file::{FileElements, TensorFile};
pub use self::snapshot::snapshot_all;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kind::{Bool, Int, Kind};
use crate::shape::{IntoShape, Shape};
use crate::tensor::Tensor;

/// Named tensors of any kinds, and nested maps of them, whose shapes all begin with the map's batch. PyTorch's
/// counterpart is TensorDict.
///
/// An entry is looked up by its path: names joined with dots. Tensors are handles, so a clone of a map has the same
/// tensors. Entries are in the order of their names.
///
/// # Examples
/// ```
/// use pagelock_tensor::{Device, Tensor, TensorMap};
///
/// let mut batch = TensorMap::new([64])?;
/// batch.set("image", Tensor::rand([64, 1, 28, 28])?)?;
/// batch.set("target.label", Tensor::full([64], 0)?)?;
/// batch.set("target.weight", Tensor::ones([64])?)?;
///
/// let there = batch.to(&Device::best())?; // all at once
/// let half = there.narrow(0, 0, 32)?;
/// assert_eq!(half.get_int("target.label")?.shape(), &[32]);
/// assert_eq!(
///     batch.get("target.lable").unwrap_err().to_string(),
///     "there is no `target.lable` in the map: `target` has label, weight; check the path",
/// );
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct TensorMap {
    batch: Shape,
    entries: Entries,
}

/// How deep maps may be nested.
const DEEPEST: usize = 64;

impl TensorMap {
    /// An empty map whose tensors will all begin with `batch`; `()` if their shapes have nothing in common.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub fn new(batch: impl IntoShape) -> Result<TensorMap> {
        Ok(TensorMap { batch: batch.into_shape()?, entries: Entries::new() })
    }

    /// The dimensions with which the shapes of all tensors begin.
    pub fn batch(&self) -> &Shape {
        &self.batch
    }

    /// Puts a tensor at `path`, and replaces what was there. Maps that are missing along the path are made.
    ///
    /// # Errors
    /// [`Error::Argument`] if its shape does not begin with the batch, or `path` is not names joined with dots, or
    /// leads through a tensor; [`Error::WorkingMemory`] if the budget has no room for the entry. The map is then
    /// unchanged.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([8])?;
    /// map.set("agent.state", Tensor::zeros([8, 3])?)?;
    /// assert_eq!(
    ///     map.set("agent.reward", Tensor::zeros([7])?).unwrap_err().to_string(),
    ///     "`agent.reward` is [7], but shapes in this map must begin with its batch, [8]; reshape or narrow the \
    ///      tensor, or put it in a map of another batch",
    /// );
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn set(&mut self, path: &str, tensor: impl Into<AnyTensor>) -> Result<()> {
        self.put(path, Entry::Tensor(tensor.into()))
    }

    /// Puts a map at `path`, and replaces what was there.
    ///
    /// # Errors
    /// As [`set`](Self::set); its batch must begin with this map's.
    pub fn set_map(&mut self, path: &str, map: TensorMap) -> Result<()> {
        self.put(path, Entry::Map(map))
    }

    fn put(&mut self, path: &str, entry: Entry) -> Result<()> {
        let names = names(path)?;
        let depth = names.len() + entry.depth();
        if depth > DEEPEST {
            return Err(Error::no_path(path, "maps are nested too deeply (64 at most)"));
        }
        let mut inner = &*self;
        for (at, name) in names[..names.len() - 1].iter().enumerate() {
            match inner.entries.get(*name) {
                Some(Entry::Map(map)) => inner = map,
                Some(Entry::Tensor(_)) => return Err(Error::not_a_map(&names[..=at].join("."))),
                None => break,
            }
        }
        let shape = entry.shape();
        if !begins_with(shape, &inner.batch) {
            return Err(Error::wrong_batch(path, shape, &inner.batch));
        }
        check_budget("set")?;
        self.insert(&names, entry);
        Ok(())
    }

    /// Puts a tensor at a path where nothing is yet.
    fn set_new(&mut self, path: &str, tensor: AnyTensor) -> Result<()> {
        if self.contains(path) {
            return Err(Error::no_path(path, "there is something else already"));
        }
        self.put(path, Entry::Tensor(tensor))
    }

    /// Inserts an entry, at a path that leads through no tensor.
    fn insert(&mut self, names: &[&str], entry: Entry) {
        let [name, rest @ ..] = names else { return };
        if rest.is_empty() {
            self.entries.insert(Arc::from(*name), entry);
            return;
        }
        if !self.entries.contains_key(*name) {
            let inner = TensorMap { batch: self.batch, entries: Entries::new() };
            self.entries.insert(Arc::from(*name), Entry::Map(inner));
        }
        if let Some(Entry::Map(inner)) = self.entries.get_mut(name) {
            inner.insert(rest, entry);
        }
    }

    /// The tensor of floats at `path`.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Argument`] if a map is there; [`Error::At`] if the elements are of another kind.
    ///
    /// # Examples
    /// See [`TensorMap`].
    pub fn get(&self, path: &str) -> Result<Tensor> {
        self.get_as(path)
    }

    /// The tensor of integers at `path`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_int(&self, path: &str) -> Result<Tensor<Int>> {
        self.get_as(path)
    }

    /// The tensor of truth values at `path`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_bool(&self, path: &str) -> Result<Tensor<Bool>> {
        self.get_as(path)
    }

    /// The tensor of kind `K` at `path`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_as<K: Kind>(&self, path: &str) -> Result<Tensor<K>> {
        self.get_any(path)?.kind().map_err(|source| Error::at(path, source))
    }

    /// The tensor at `path`, of whatever type.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Argument`] if a map is there.
    pub fn get_any(&self, path: &str) -> Result<&AnyTensor> {
        match self.find(path)? {
            Entry::Tensor(tensor) => Ok(tensor),
            Entry::Map(map) => Err(Error::Argument(format!(
                "`{}` is a map of {}; name one of its tensors, or ask for the map with `get_map`",
                shortened(path),
                map.list()
            ))),
        }
    }

    /// The map at `path`.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Argument`] if a tensor is there.
    pub fn get_map(&self, path: &str) -> Result<&TensorMap> {
        match self.find(path)? {
            Entry::Map(map) => Ok(map),
            Entry::Tensor(_) => Err(Error::not_a_map(path)),
        }
    }

    fn find(&self, path: &str) -> Result<&Entry> {
        let names = names(path)?;
        let mut map = self;
        for (at, name) in names.iter().enumerate() {
            let missing = || Error::NoEntry {
                path: shortened(path),
                inside: shortened(&names[..at].join(".")),
                names: map.list(),
            };
            match map.entries.get(*name).ok_or_else(missing)? {
                entry if at + 1 == names.len() => return Ok(entry),
                Entry::Map(inner) => map = inner,
                Entry::Tensor(_) => return Err(Error::not_a_map(&names[..=at].join("."))),
            }
        }
        unreachable!("a path has at least one name")
    }

    /// Whether there is a tensor or a map at `path`.
    pub fn contains(&self, path: &str) -> bool {
        self.find(path).is_ok()
    }

    /// Removes the entry at `path`, and returns whether there was one. Maps that become empty stay.
    ///
    /// # Errors
    /// [`Error::Argument`] if `path` is not names joined with dots.
    pub fn remove(&mut self, path: &str) -> Result<bool> {
        let names = names(path)?;
        let mut map = self;
        for name in &names[..names.len() - 1] {
            match map.entries.get_mut(name) {
                Some(Entry::Map(inner)) => map = inner,
                _ => return Ok(false),
            }
        }
        Ok(map.entries.remove(names[names.len() - 1]))
    }

    /// The number of tensors, including those of inner maps.
    pub fn len(&self) -> usize {
        let mut count = 0;
        self.walk(&mut |_| count += 1);
        count
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the elements of all tensors in bytes.
    pub fn len_bytes(&self) -> usize {
        let mut sum = 0_usize;
        self.walk(&mut |tensor| sum = sum.saturating_add(tensor.len_bytes()));
        sum
    }

    /// All tensors with their paths, sorted by name within each map.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([2])?;
    /// map.set("b", Tensor::zeros([2])?)?;
    /// map.set("a.c", Tensor::zeros([2, 5])?)?;
    /// let shapes: Vec<_> = map.iter().map(|(path, tensor)| format!("{path}: {}", tensor.shape())).collect();
    /// assert_eq!(shapes, ["a.c: [2, 5]", "b: [2]"]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (String, &AnyTensor)> {
        let mut all = Vec::new();
        self.collect_into("", &mut all);
        all.into_iter()
    }

    fn collect_into<'a>(&'a self, before: &str, all: &mut Vec<(String, &'a AnyTensor)>) {
        for (name, entry) in self.entries.iter() {
            let path = joined(before, name);
            match entry {
                Entry::Tensor(tensor) => all.push((path, tensor)),
                Entry::Map(map) => map.collect_into(&path, all),
            }
        }
    }

    /// Calls `visit` with each tensor, in order.
    fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a AnyTensor)) {
        for entry in self.entries.values() {
            match entry {
                Entry::Tensor(tensor) => visit(tensor),
                Entry::Map(map) => map.walk(visit),
            }
        }
    }

    /// A map of the same names, where `make` replaces each tensor, in order, and `batch` each batch.
    fn rebuilt(
        &self,
        make: &mut impl FnMut(&AnyTensor) -> Result<AnyTensor>,
        batch: &impl Fn(&Shape) -> Result<Shape>,
    ) -> Result<TensorMap> {
        let mut map = self.clone(); // cloning the names costs less than inserting each of them
        check_budget("map")?;
        for (name, entry) in map.entries.iter_mut() {
            let made = match entry {
                Entry::Tensor(tensor) => make(tensor).map(|made| *tensor = made),
                Entry::Map(map) => map.rebuilt(make, batch).map(|made| *map = made),
            };
            made.map_err(|source| Error::at(name, source))?;
        }
        map.batch = batch(&self.batch)?;
        Ok(map)
    }

    /// A map of the same names and batches, where `change` replaces each tensor, in order.
    ///
    /// # Errors
    /// The first error of `change`; [`Error::Argument`] if the shape of a new tensor does not begin with the batch.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{AnyTensor, Error, Tensor, TensorMap};
    /// let mut map = TensorMap::new([2])?;
    /// map.set("x", Tensor::ones([2])?)?;
    /// let doubled = map.map_tensors(|_, tensor| Ok::<_, Error>((&tensor.float()? * 2.0)?.into()))?;
    /// assert_eq!(doubled.get("x")?.to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn map_tensors<E: From<Error>>(
        &self,
        mut change: impl FnMut(&str, &AnyTensor) -> Result<AnyTensor, E>,
    ) -> Result<TensorMap, E> {
        let mut map = self.clone();
        check_budget("map_tensors")?;
        map.change_each("", &mut change)?;
        Ok(map)
    }

    fn change_each<E: From<Error>>(
        &mut self,
        before: &str,
        change: &mut impl FnMut(&str, &AnyTensor) -> Result<AnyTensor, E>,
    ) -> Result<(), E> {
        for (name, entry) in self.entries.iter_mut() {
            let path = joined(before, name);
            match entry {
                Entry::Tensor(tensor) => *tensor = change(&path, tensor)?,
                Entry::Map(map) => map.change_each(&path, change)?,
            }
            if !begins_with(entry.shape(), &self.batch) {
                return Err(Error::wrong_batch(&path, entry.shape(), &self.batch).into());
            }
        }
        Ok(())
    }

    /// The device of all tensors; `None` if they are on different devices, or there are no tensors.
    pub fn device(&self) -> Option<Device> {
        let mut devices = Vec::new();
        self.walk(&mut |tensor| {
            let device = tensor.device();
            if !devices.contains(&device) {
                devices.push(device);
            }
        });
        devices.pop().filter(|_| devices.is_empty())
    }

    /// The names of this map's entries, for errors.
    fn list(&self) -> String {
        listed(self.entries.keys().map(|name| &**name))
    }
}

fn begins_with(shape: &Shape, batch: &Shape) -> bool {
    shape.get(..batch.rank()) == Some(&**batch)
}

/// The path of an entry of the map at the path `before`.
fn joined(before: &str, name: &str) -> String {
    if before.is_empty() { name.to_owned() } else { format!("{before}.{name}") }
}

/// The names of a path.
fn names(path: &str) -> Result<Vec<&str>> {
    let names: Vec<&str> = path.split('.').collect();
    if names.iter().any(|name| name.is_empty()) {
        return Err(Error::no_path(path, "a name is empty"));
    }
    Ok(names)
}

/// The first ten of some names, for errors.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let n_names = names.len();
    let shown = names.take(10).map(shortened).collect::<Vec<_>>().join(", ");
    match n_names {
        0 => "nothing".to_owned(),
        n if n > 10 => format!("{shown} and {} more", n - 10),
        _ => shown,
    }
}

/// Prints one line for each tensor.
impl fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMap {} {{", self.batch)?;
        for (path, tensor) in self.iter() {
            write!(f, "\n    {path}: {tensor:?}")?;
        }
        f.write_str(if self.is_empty() { "}" } else { "\n}" })
    }
}
