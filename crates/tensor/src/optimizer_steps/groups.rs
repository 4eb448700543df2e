//! [`Group`]: the tensors that a step needs for one parameter. [`Batch`]: groups that are collected for one launch.
//!
//! Kernels, also those of the CPU, visit the elements of a group in the order of memory. Tensors in another order, or
//! with gaps, are copied, and those that were changed are copied back.

use crate::capture;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::layout::Layout;
use crate::op::same_precision;
use crate::storage::{Locked, LockedMut, StorageRef};
use crate::tensor::Tensor;

/// The maximum number of groups of one launch: `TENSORS` of `steps.cu`.
pub(super) const MAX_GROUPS: usize = 6;
/// The maximum number of state tensors of a parameter.
pub(super) const MAX_STATE_TENSORS: usize = 3;
/// The maximum number of tensors of a group.
pub(super) const MAX_TENSORS: usize = MAX_STATE_TENSORS + 3;
/// The index of the half-precision copy. The parameter is the first tensor; the state tensors are between them.
pub(super) const HALF_COPY: usize = MAX_STATE_TENSORS + 1;
/// The index of the gradient. Tensors before it are changed.
pub(super) const GRAD: usize = MAX_STATE_TENSORS + 2;

/// The tensors of a group, in this order; `None` for those that it does not have.
pub(super) type GroupTensors<'a> = [Option<&'a Tensor>; MAX_TENSORS];

/// The tensors that a step needs for one parameter.
pub(super) trait Group: Clone {
    /// The maximum number of groups like this one that a launch takes.
    fn max_groups(&self) -> usize;

    /// The parameter, its state tensors, its half-precision copy, and its gradient.
    fn tensors(&self) -> GroupTensors<'_>;

    /// The same group, with these tensors for those that are present.
    fn with(&self, tensors: [Option<Tensor>; MAX_TENSORS]) -> Self;

    /// Whether one launch can take both groups.
    fn fits(&self, other: &Self) -> bool;
}

/// A group of one tensor. A launch reads it, or changes it.
#[derive(Clone)]
pub(super) struct Single {
    pub(super) tensor: Tensor,
    pub(super) is_changed: bool,
}

/// Which tensor of its group a [`Single`] is if it is changed, and if it is read.
pub(super) const CHANGED: [bool; MAX_TENSORS] = [true, false, false, false, false, false];
pub(super) const READ: [bool; MAX_TENSORS] = [false, false, false, false, false, true];

impl Group for Single {
    fn max_groups(&self) -> usize {
        MAX_GROUPS
    }

    fn tensors(&self) -> GroupTensors<'_> {
        let is_present = if self.is_changed { CHANGED } else { READ };
        is_present.mapped(|is_present| is_present.then_some(&self.tensor))
    }

    fn with(&self, mut tensors: [Option<Tensor>; MAX_TENSORS]) -> Self {
        let copy = tensors.iter_mut().find_map(Option::take);
        Self { tensor: copy.unwrap_or_else(|| self.tensor.clone()), is_changed: self.is_changed }
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }
}

/// Groups that are collected for a launch.
pub(super) struct Batch<G> {
    groups: [Option<G>; MAX_GROUPS],
    len: usize,
}

impl<G: Group> Batch<G> {
    pub(super) fn new() -> Self {
        Self { groups: [const { None }; MAX_GROUPS], len: 0 }
    }

    /// Adds a group. If a launch cannot take it together with the groups before it, these are launched first. On the
    /// CPU each launch has one group.
    pub(super) fn add(&mut self, group: G, launch: impl Fn(&[Option<G>]) -> Result<()>) -> Result<()> {
        check(&group)?;
        if !is_plain(&group) {
            self.finish(&launch)?;
            return alone(&group, launch);
        }
        let can_join = |other: &G| are_alike(&group, other) && group.fits(other) && !share_storage(&group, other);
        let is_on_cpu = group.tensors().iter().flatten().any(|tensor| *tensor.storage().device() == Device::Cpu);
        if is_on_cpu || self.len == group.max_groups() || !self.groups[..self.len].iter().flatten().all(can_join) {
            self.finish(&launch)?;
        }
        self.groups[self.len] = Some(group);
        self.len += 1;
        Ok(())
    }

    /// Launches all groups that are left.
    pub(super) fn finish(&mut self, launch: impl Fn(&[Option<G>]) -> Result<()>) -> Result<()> {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return Ok(());
        }
        let launched = launch(&self.groups[..len]);
        self.groups[..len].fill_with(|| None);
        launched
    }
}

/// Checks that the tensors before the gradient may be changed, that all have one shape and device, and that a step
/// takes their types.
fn check<G: Group>(group: &G) -> Result<()> {
    let tensors = group.tensors();
    let Some(first) = tensors.iter().flatten().next() else { unreachable!("no group is empty") };
    let last = tensors[GRAD].unwrap_or(first);
    for (i, tensor) in tensors.iter().enumerate().filter_map(|(i, tensor)| Some((i, (*tensor)?))) {
        if i < GRAD {
            tensor.raw().check_writable(OP, [last.raw(), first.raw()])?;
        }
        if tensor.shape() != first.shape() {
            let expected = format!("it must have the parameter's shape, {}", first.shape());
            return Err(Error::wrong_shape(OP, "a tensor", tensor.shape(), expected));
        }
        let of = if i < HALF_COPY { first } else { tensors[HALF_COPY].unwrap_or(first) };
        same_precision(OP, &[of.raw(), tensor.raw()])?;
    }
    let Some(half_copy) = tensors[HALF_COPY] else { return Ok(()) };
    if half_copy.dtype() == first.dtype() {
        let fix = "give one of float16 or bfloat16, or none";
        return Err(Error::Argument(format!("{OP}: the half-precision copy is {}; {fix}", half_copy.dtype())));
    }
    match half_copy.dtype().computing() == first.dtype() {
        true => Ok(()),
        false => same_precision(OP, &[first.raw(), half_copy.raw()]).map(drop),
    }
}

/// Whether kernels can take the group as it is: without gaps, in one order, and each tensor in a storage of its own.
fn is_plain<G: Group>(group: &G) -> bool {
    let tensors = group.tensors();
    let apart =
        |i: usize| tensors[..i].iter().flatten().all(|other| tensors[i].is_none_or(|x| !x.shares_storage(other)));
    let mut layouts = tensors.iter().flatten().map(|tensor| tensor.layout());
    let are_rows = layouts.clone().all(Layout::is_contiguous);
    (are_rows || layouts.all(Layout::is_channels_last)) && (0..MAX_TENSORS).all(apart)
}

pub(super) fn tensors_of<G: Group>(group: &Option<G>) -> GroupTensors<'_> {
    group.as_ref().map_or([None; MAX_TENSORS], G::tensors)
}

/// Whether both have the same of these tensors, of the same types and on the same devices.
fn are_alike<G: Group>(one: &G, other: &G) -> bool {
    let alike = |(x, y): (&Tensor, &Tensor)| x.dtype() == y.dtype() && x.storage().device() == y.storage().device();
    let mut pairs = one.tensors().into_iter().zip(other.tensors());
    pairs.all(|(x, y)| x.is_some() == y.is_some() && x.zip(y).is_none_or(alike))
}

pub(super) fn shares_storage_with<G: Group>(group: &Option<G>, tensor: &Tensor) -> bool {
    tensors_of(group).iter().flatten().any(|other| other.shares_storage(tensor))
}

fn share_storage<G: Group>(one: &G, other: &G) -> bool {
    let others = other.tensors();
    one.tensors().iter().flatten().any(|x| others.iter().flatten().any(|y| x.shares_storage(y)))
}

/// Launches for copies of the group's tensors, and copies back those that were changed.
fn alone<G: Group>(group: &G, launch: impl Fn(&[Option<G>]) -> Result<()>) -> Result<()> {
    let mut copies = [const { None }; MAX_TENSORS];
    for (copy, tensor) in copies.iter_mut().zip(group.tensors()) {
        *copy = tensor.map(|tensor| tensor.detached_copy(OP)).transpose()?;
    }
    launch(&[Some(group.with(copies.clone()))])?;
    let changed = group.tensors().into_iter().zip(&copies).take(GRAD);
    changed.filter_map(|(to, from)| to.zip(from.as_ref())).try_for_each(|(to, from)| to.copy_(from))
}

/// A storage locked for as long as a launch takes.
pub(super) enum Lock<'a> {
    None,
    Read(Locked<'a>),
    Write(LockedMut<'a>),
}

/// The locks of the groups of one launch, and of its scalars.
pub(super) type Locks<'a> = [[Lock<'a>; MAX_TENSORS]; MAX_GROUPS + 1];
/// The index of the locks of scalars.
pub(super) const SCALARS: usize = MAX_GROUPS;

/// Locks the storages of groups, and those of scalars for reading, in the one order that all threads use. All
/// storages must differ.
pub(super) fn lock_all<'a, G: Group>(groups: &'a [Option<G>], scalars: &'a [Tensor]) -> Locks<'a> {
    let mut order = [None; MAX_TENSORS * (MAX_GROUPS + 1)];
    let of_groups = groups.iter().enumerate().flat_map(|(i, group)| {
        let tensors = tensors_of(group).into_iter().enumerate();
        tensors.filter_map(move |(k, tensor)| tensor.map(|tensor| (tensor.storage(), i, k)))
    });
    let all = of_groups.chain(scalars.iter().enumerate().map(|(k, tensor)| (tensor.storage(), SCALARS, k)));
    order.iter_mut().zip(all).for_each(|(to, found)| *to = Some(found));
    lock_each(order)
}

/// Locks the storages of one group.
pub(super) fn lock_one<G: Group>(group: &G) -> [Lock<'_>; MAX_TENSORS] {
    let mut order = [None; MAX_TENSORS * (MAX_GROUPS + 1)];
    for (k, (to, tensor)) in order.iter_mut().zip(group.tensors()).enumerate() {
        *to = tensor.map(|tensor| (tensor.storage(), 0, k));
    }
    let [locks, ..] = lock_each(order);
    locks
}

/// Locks storages, each with the index of its group and its index there. (Not generic: a sort takes long to compile.)
fn lock_each(mut order: [Option<(&StorageRef, usize, usize)>; MAX_TENSORS * (MAX_GROUPS + 1)]) -> Locks<'_> {
    let mut locks = [const { [const { Lock::None }; MAX_TENSORS] }; MAX_GROUPS + 1];
    order.sort_unstable_by_key(|found| found.map(|(storage, ..)| storage.lock_key()));
    for (storage, i, k) in order.into_iter().flatten() {
        locks[i][k] = if k == GRAD || i == SCALARS {
            Lock::Read(storage.lock())
        } else {
            capture::note_write(storage);
            Lock::Write(storage.lock_mut())
        };
    }
    locks
}

pub(super) const OP: &str = "optimizer_step";
