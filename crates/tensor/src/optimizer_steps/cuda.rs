//! The kernels of `optimizer_steps.cu`, and how they are launched.

use arrayvec::ArrayVec;
use pagelock_cuda::{Argument, Launch};

use super::groups::{GRAD, Group, Lock, MOST, OP, PLACES, SCALARS, lock_all, shares_storage_with, tensors_of};
use super::{AdamRule, AdamTensors, Rate, SgdRule, SgdTensors};
use crate::cuda::{Arguments, Code, CudaDevice};
use crate::device::{Device, common_device};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// `kernels.bin` knows it by this name.
static CODE: Code = Code { name: "descent", text: include_str!("optimizer_steps.cu") };

const THREADS: u32 = 128;
const MOST_BLOCKS: usize = 1024;

pub(super) fn sgd(groups: &[Option<SgdTensors>], rule: SgdRule, lr: &Rate) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    let (device, lr) = on_device(&first.parameter, lr)?;
    let numbers = [rule.momentum, rule.share(first.is_first), rule.weight_decay].map(f64::to_bits);
    let flags = [first.kept.is_some(), first.is_first, rule.nesterov].map(u64::from);
    let has_half = first.half.is_some();
    let name = if has_half { "sgd_of_halves" } else { "sgd" };
    let kernel = Kernel { code: &CODE, name, places: [true, true, false, has_half, true], blocks: MOST_BLOCKS };
    kernel.launch(&device, groups, [&lr], None, [numbers, flags].as_flattened())
}

pub(super) fn adam(groups: &[Option<AdamTensors>], rule: AdamRule, lr: &Rate) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    check_steps(first)?;
    let (device, lr) = on_device(&first.parameter, lr)?;
    let [keep_mean, keep_square] = rule.betas;
    let numbers = [keep_mean, keep_square, rule.eps, rule.weight_decay].map(f64::to_bits);
    let rule = [&numbers[..], &[rule.is_decoupled.into()]].concat();
    let has_half = first.half.is_some();
    let name = if has_half { "adam_of_halves" } else { "adam" };
    let kernel = Kernel { code: &CODE, name, places: [true, true, true, has_half, true], blocks: MOST_BLOCKS };
    kernel.launch(&device, groups, [&lr, &first.steps], None, &rule)
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
    Err(Error::wrong_shape(OP, "steps", steps.shape(), expected))
}

fn on_device(parameter: &Tensor, lr: &Rate) -> Result<(CudaDevice, Tensor)> {
    let Device::Cuda(device) = parameter.device() else { unreachable!("only tensors on a device come here") };
    Ok((device, lr.on(&parameter.device())?))
}

/// A kernel for some groups at once, which blockIdx.y tells apart.
pub(super) struct Kernel {
    pub(super) code: &'static Code,
    pub(super) name: &'static str,
    /// Of which places of a group it takes pointers.
    pub(super) places: [bool; PLACES],
    /// Most blocks for one group.
    pub(super) blocks: usize,
}

impl Kernel {
    /// Launches the kernel. Its arguments are pointers to the places of each group (null behind the last), the scalars, the
    /// result, and the groups' lengths before `settings`.
    pub(super) fn launch<G: Group, const N: usize>(
        &self,
        device: &CudaDevice,
        groups: &[Option<G>],
        scalars: [&Tensor; N],
        result: Option<Argument<'_>>,
        settings: &[u64],
    ) -> Result<()> {
        let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
        let scalars = unchanged(groups, scalars)?;
        let mut locks = lock_all(groups, &scalars);
        let mut numbers = [0; MOST + MOST_NUMBERS];
        for (number, group) in numbers.iter_mut().zip(groups) {
            *number = tensors_of(group).into_iter().flatten().next().map_or(0, |tensor| tensor.len() as u64);
        }
        let longest = numbers.iter().copied().max().unwrap_or(0) as usize;
        numbers[MOST..][..settings.len()].copy_from_slice(settings);
        let padded = groups.iter().chain(std::iter::repeat(&None));
        let (of_groups, [of_scalars, ..]) = locks.split_at_mut(SCALARS) else { unreachable!("their row is the last") };
        let pointers = of_groups.iter_mut().take(first.most()).zip(padded).flat_map(|(locks, group)| {
            let places = locks.iter_mut().zip(tensors_of(group)).zip(self.places);
            let taken = places.filter_map(|(place, is_taken)| is_taken.then_some(place));
            taken.map(|(lock, tensor)| tensor.map_or(Argument::Value(&NULL), |tensor| lock.argument(tensor)))
        });
        let scalars = of_scalars.iter_mut().zip(&scalars).map(|(lock, scalar)| lock.argument(scalar));
        let settings = bytemuck::cast_slice(&numbers[..MOST + settings.len()]);
        let arguments: Arguments<'_> =
            pointers.chain(scalars).chain(result).chain([Argument::Value(settings)]).collect();
        let blocks = longest.div_ceil(THREADS as usize).min(self.blocks);
        let launch = Launch { grid: [blocks as u32, groups.len() as u32, 1], ..Launch::covering(1, THREADS) };
        // SAFETY: the kernel takes these, in this order; it touches, of each group, the elements of tensors without gaps of
        // one length (`check`, `is_plain`), which are different memory for different groups, and what it knows of scalars.
        unsafe { self.code.launch(device, OP, (types(first), self.name), launch, &arguments) }
    }
}

/// The scalars, copied where they are in a storage that the kernel changes.
fn unchanged<G: Group, const N: usize>(groups: &[Option<G>], scalars: [&Tensor; N]) -> Result<ArrayVec<Tensor, N>> {
    let unchanged = scalars.map(|scalar| match groups.iter().any(|group| shares_storage_with(group, scalar)) {
        true => scalar.deep_copy(OP),
        false => Ok(scalar.clone()),
    });
    unchanged.into_iter().collect()
}

/// Of the parameter, and of the gradient.
fn types<G: Group>(group: &G) -> [DType; 2] {
    let tensors = group.tensors();
    let dtype = |place: usize, other: usize| tensors[place].or(tensors[other]).map_or(DType::F32, |x| x.dtype());
    [dtype(0, GRAD), dtype(GRAD, 0)]
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

const NULL: [u8; 8] = [0; 8];
const MOST_NUMBERS: usize = 6; // of settings
