//! The kernels of `descent.cu`, and how tensors are brought together for them.

use pagelock_cuda::{Argument, Launch};

use super::{AdamRule, AdamTensors, Rate, SgdRule, SgdTensors};
use crate::capture;
use crate::cuda::{Arguments, Code, CudaDevice};
use crate::device::{Device, common_device};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::op::same_precision;
use crate::storage::{Locked, LockedMut};
use crate::tensor::Tensor;

static CODE: Code = Code { name: "descent", text: include_str!("descent.cu") };

/// Tensors of one launch, at most: `TENSORS` of `descent.cu`, and as many as Adam has arguments for.
const MOST: usize = 6;
const MOST_OF_ADAM: usize = 5;
const THREADS: u32 = 128;
const MOST_BLOCKS: usize = 1024;

/// What a step needs for one parameter.
pub(super) trait Group: Clone {
    /// How many groups one launch takes.
    const MOST: usize;

    /// The parameter, then what else is changed, then the gradient: `None` for what is not there.
    fn tensors(&self) -> [Option<&Tensor>; 4];

    /// The same, with these for the ones that are there.
    fn with(&self, tensors: [Option<Tensor>; 4]) -> Self;

    /// Whether one launch can do both.
    fn fits(&self, other: &Self) -> bool;
}

/// Where the gradient is among the tensors of a group; those before it are changed.
const GRAD: usize = 3;

impl Group for SgdTensors {
    const MOST: usize = MOST;

    fn tensors(&self) -> [Option<&Tensor>; 4] {
        [Some(&self.parameter), self.kept.as_ref(), None, Some(&self.grad)]
    }

    fn with(&self, [parameter, kept, _, grad]: [Option<Tensor>; 4]) -> Self {
        let parameter = parameter.unwrap_or_else(|| self.parameter.clone());
        Self { parameter, grad: grad.unwrap_or_else(|| self.grad.clone()), kept, is_first: self.is_first }
    }

    fn fits(&self, other: &Self) -> bool {
        self.is_first == other.is_first && self.kept.is_some() == other.kept.is_some()
    }
}

impl Group for AdamTensors {
    const MOST: usize = MOST_OF_ADAM;

    fn tensors(&self) -> [Option<&Tensor>; 4] {
        [Some(&self.parameter), Some(&self.mean), Some(&self.square), Some(&self.grad)]
    }

    fn with(&self, [parameter, mean, square, grad]: [Option<Tensor>; 4]) -> Self {
        Self {
            parameter: parameter.unwrap_or_else(|| self.parameter.clone()),
            grad: grad.unwrap_or_else(|| self.grad.clone()),
            mean: mean.unwrap_or_else(|| self.mean.clone()),
            square: square.unwrap_or_else(|| self.square.clone()),
            steps: self.steps.clone(),
        }
    }

    fn fits(&self, other: &Self) -> bool {
        self.steps.shares_storage(&other.steps)
    }
}

/// Groups that wait for a launch.
pub(super) struct Batch<G> {
    groups: [Option<G>; MOST],
    len: usize,
}

impl<G> Batch<G> {
    pub(super) fn new() -> Self {
        Self { groups: [const { None }; MOST], len: 0 }
    }

    /// Takes a group, and launches for those before it if it has no place beside them.
    pub(super) fn add(&mut self, group: G, launch: impl Fn(&[Option<G>]) -> Result<()>) -> Result<()>
    where
        G: Group,
    {
        check(&group)?;
        if !is_plain(&group) {
            self.finish(&launch)?;
            return alone(&group, launch);
        }
        let dtype = |group: &G| group.tensors()[0].map(|parameter| parameter.dtype());
        let has_place = |other: &G| dtype(&group) == dtype(other) && group.fits(other) && !share_storage(&group, other);
        if self.len == G::MOST || !self.groups[..self.len].iter().flatten().all(has_place) {
            self.finish(&launch)?;
        }
        self.groups[self.len] = Some(group);
        self.len += 1;
        Ok(())
    }

    /// Launches for all that wait.
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

/// What changes may be changed, all have the parameter's shape, and all are on one device.
fn check<G: Group>(group: &G) -> Result<()> {
    let [Some(parameter), .., Some(grad)] = group.tensors() else { unreachable!("every group has these") };
    for changed in group.tensors().into_iter().take(GRAD).flatten() {
        changed.raw().check_writable(OP, [grad.raw(), parameter.raw()])?;
        same_precision(OP, &[changed.raw(), grad.raw(), parameter.raw()])?;
        for tensor in [changed, grad] {
            if tensor.shape() != parameter.shape() {
                let expected = format!("it must have the parameter's shape, {}", parameter.shape());
                return Err(Error::WrongShape { op: OP, operand: "a tensor", expected, shape: *tensor.shape() });
            }
        }
    }
    Ok(())
}

/// Whether kernels can take the group as it is: without gaps, in one order, and each tensor in a storage of its own.
fn is_plain<G: Group>(group: &G) -> bool {
    let tensors = group.tensors();
    let apart =
        |i: usize| tensors[..i].iter().flatten().all(|other| tensors[i].is_none_or(|x| !x.shares_storage(other)));
    let mut layouts = tensors.iter().flatten().map(|tensor| tensor.layout());
    let are_rows = layouts.clone().all(Layout::is_contiguous);
    (are_rows || layouts.all(Layout::is_channels_last)) && (0..4).all(apart)
}

fn tensors_of<G: Group>(group: &Option<G>) -> [Option<&Tensor>; 4] {
    group.as_ref().map_or([None; 4], G::tensors)
}

fn share_storage<G: Group>(one: &G, other: &G) -> bool {
    let others = other.tensors();
    one.tensors().iter().flatten().any(|x| others.iter().flatten().any(|y| x.shares_storage(y)))
}

/// Launches for copies of the group's tensors, and brings what was changed back.
fn alone<G: Group>(group: &G, launch: impl Fn(&[Option<G>]) -> Result<()>) -> Result<()> {
    let mut copies = [const { None }; 4];
    for (copy, tensor) in copies.iter_mut().zip(group.tensors()) {
        *copy = tensor.map(|tensor| tensor.deep_copy(OP)).transpose()?;
    }
    launch(&[Some(group.with(copies.clone()))])?;
    let changed = group.tensors().into_iter().zip(&copies).take(GRAD);
    changed.filter_map(|(to, from)| to.zip(from.as_ref())).try_for_each(|(to, from)| to.copy_(from))
}

pub(super) fn sgd(groups: &[Option<SgdTensors>], rule: SgdRule, lr: &Rate) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    let (device, lr) = on_device(&first.parameter, lr)?;
    let numbers = [rule.momentum, rule.share(first.is_first), rule.weight_decay].map(f64::to_bits);
    let flags = [first.kept.is_some(), first.is_first, rule.nesterov].map(u64::from);
    let locked = lr.storage().lock();
    let scalars = [locked.cuda(lr.layout(), DType::F64).argument()];
    launch(&device, ("sgd", MOST), groups, [true, true, false, true], scalars, [numbers, flags].as_flattened())
}

pub(super) fn adam(groups: &[Option<AdamTensors>], rule: AdamRule, lr: &Rate) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    check_steps(first)?;
    let (device, lr) = on_device(&first.parameter, lr)?;
    let [keep_mean, keep_square] = rule.betas;
    let numbers = [keep_mean, keep_square, rule.eps, rule.weight_decay].map(f64::to_bits);
    let (lr_locked, steps_locked) = (lr.storage().lock(), first.steps.storage().lock());
    let scalars = [
        lr_locked.cuda(lr.layout(), DType::F64).argument(),
        steps_locked.cuda(first.steps.layout(), DType::F64).argument(),
    ];
    let rule = [&numbers[..], &[rule.is_decoupled.into()]].concat();
    launch(&device, ("adam", MOST_OF_ADAM), groups, [true; 4], scalars, &rule)
}

fn check_steps(AdamTensors { parameter, steps, .. }: &AdamTensors) -> Result<()> {
    common_device(OP, &[parameter.raw(), steps.raw()])?;
    if steps.dtype() != DType::F64 {
        return Err(Error::MixedTypes { op: OP, left: DType::F64, right: steps.dtype(), wider: DType::F64 });
    }
    if steps.len() == 1 {
        return Ok(());
    }
    let expected = "it must have one element".to_owned();
    Err(Error::WrongShape { op: OP, operand: "steps", expected, shape: *steps.shape() })
}

fn on_device<K: Kind>(parameter: &Tensor<K>, lr: &Rate) -> Result<(CudaDevice, Tensor)> {
    let Device::Cuda(device) = parameter.device() else { unreachable!("only tensors on a device come here") };
    Ok((device, lr.on(&parameter.device())?))
}

/// Launches a kernel for the groups: pointers to `places` of each, the scalars, and the lengths before `rule`.
fn launch<G: Group, const SCALARS: usize>(
    device: &CudaDevice,
    (kernel, most): (&'static str, usize),
    groups: &[Option<G>],
    places: [bool; 4],
    scalars: [Argument<'_>; SCALARS],
    rule: &[u64],
) -> Result<()> {
    let mut locks = [const { [const { Lock::None }; 4] }; MOST];
    lock_all(groups, &mut locks);
    let mut numbers = [0; MOST + MOST_NUMBERS];
    for (number, group) in numbers.iter_mut().zip(groups) {
        *number = tensors_of(group)[0].map_or(0, |parameter| parameter.len() as u64);
    }
    let first = groups.iter().flatten().find_map(|group| group.tensors()[0]);
    let dtype = first.map_or(DType::F32, |parameter| parameter.dtype());
    let longest = numbers.iter().copied().max().unwrap_or(0) as usize;
    numbers[MOST..][..rule.len()].copy_from_slice(rule);

    let pointers =
        locks.iter_mut().take(most).zip(groups.iter().chain(std::iter::repeat(&None))).flat_map(|(locks, group)| {
            let group = tensors_of(group);
            locks
                .iter_mut()
                .zip(group)
                .zip(places)
                .filter(|(_, is_taken)| *is_taken)
                .map(|((lock, tensor), _)| tensor.map_or(Argument::Value(&NULL), |tensor| lock.argument(tensor)))
        });
    let settings = bytemuck::cast_slice(&numbers[..MOST + rule.len()]);
    let arguments: Arguments<'_> = pointers.chain(scalars).chain([Argument::Value(settings)]).collect();
    let blocks = longest.div_ceil(THREADS as usize).min(MOST_BLOCKS);
    let launch = Launch { grid: [blocks as u32, groups.len() as u32, 1], ..Launch::covering(1, THREADS) };
    // SAFETY: the kernels take these, in this order; they touch, of each group, the elements of tensors without gaps of one
    // length (`check`, `is_plain`), which are different memory for different groups, and one element of each scalar.
    unsafe { CODE.launch(device, OP, ([dtype; 2], kernel), launch, &arguments) }
}

/// A storage locked for as long as a launch takes.
enum Lock<'a> {
    None,
    Read(Locked<'a>),
    Write(LockedMut<'a>),
}

impl Lock<'_> {
    fn argument<'a>(&'a mut self, tensor: &'a Tensor) -> Argument<'a> {
        match self {
            Lock::None => unreachable!("what is passed is locked"),
            Lock::Read(locked) => locked.cuda(tensor.layout(), tensor.dtype()).argument(),
            Lock::Write(locked) => locked.cuda(tensor.layout(), tensor.dtype()).into_argument(),
        }
    }
}

/// Locks all storages in the order for all threads; no two of them are one.
fn lock_all<'a, G: Group>(groups: &'a [Option<G>], locks: &mut [[Lock<'a>; 4]; MOST]) {
    let mut order = [None; 4 * MOST];
    let all = groups.iter().enumerate().flat_map(|(i, group)| {
        tensors_of(group).into_iter().enumerate().filter_map(move |(k, tensor)| tensor.map(|tensor| (tensor, i, k)))
    });
    order.iter_mut().zip(all).for_each(|(place, found)| *place = Some(found));
    order.sort_unstable_by_key(|found| found.map(|(tensor, ..)| tensor.storage().address()));
    for (tensor, i, k) in order.into_iter().flatten() {
        locks[i][k] = if k == GRAD {
            Lock::Read(tensor.storage().lock())
        } else {
            capture::note_write(tensor.storage());
            Lock::Write(tensor.storage().lock_mut())
        };
    }
}

const OP: &str = "descent";
const NULL: [u8; 8] = [0; 8];
const MOST_NUMBERS: usize = 6; // of a rule
