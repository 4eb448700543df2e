//! The kernels of `steps.cu`, and how they are launched.

use arrayvec::ArrayVec;
use pagelock_cuda::{Argument, Launch};

use super::groups::{
    GRAD, Group, HALF_COPY, Lock, MAX_GROUPS, MAX_STATE_TENSORS, MAX_TENSORS, OP, SCALARS, lock_all,
    shares_storage_with, tensors_of,
};
use super::step::{MAX_NUMBERS, Ruled};
use crate::cuda::{Arguments, Code, CudaDevice, NULL};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::{Array, Slice, from_fn};
use crate::profiler;
use crate::tensor::Tensor;

const THREADS: u32 = 128;
/// The most blocks for one group: a constant, since sums must not depend on the device.
pub(super) const MAX_BLOCKS: usize = 1024;

/// The kernels of `steps.cu` by the number of state tensors, without and with half-precision copies.
const NAMES: [[&str; 2]; MAX_STATE_TENSORS] =
    [["step_1", "step_1_of_halves"], ["step_2", "step_2_of_halves"], ["step_3", "step_3_of_halves"]];

/// Steps several groups at once, which must [fit](Group::fits).
pub(super) fn step(device: &CudaDevice, groups: &[Option<Ruled<'_>>]) -> Result<()> {
    let Some(Ruled { tensors: first, formula, lr }) = groups.iter().flatten().next() else { return Ok(()) };
    let lrs = lr.all_on(&first.parameter.device())?;
    let (has_half_copy, n_state) = (first.half_copy.is_some(), first.n_state_tensors());
    let name = NAMES[n_state - 1][usize::from(has_half_copy)];
    let takes = from_fn(|i| match i {
        HALF_COPY => has_half_copy,
        i => i <= n_state || i == GRAD,
    });
    let mut of_each = [[0; MAX_GROUPS]; OF_EACH];
    for (i, group) in groups.iter().enumerate().filter_map(|(i, group)| Some((i, group.as_ref()?))) {
        let [sign, decay, shrink] = group.formula.prelude().numbers().mapped(f64::to_bits);
        let numbers = [group.lr.index() as u64, sign, decay, shrink];
        of_each.iter_mut().zip(numbers).for_each(|(of, number)| of[i] = number);
    }
    let (rule, len) = formula.numbers(first);
    let mut settings = ArrayVec::<u64, MAX_SETTINGS>::new();
    settings.extend(of_each.into_iter().flatten());
    settings.extend(rule.into_iter().take(len));
    let kernel = Kernel { code: formula.code(), name, takes };
    let clock = first.clock.as_ref().filter(|_| formula.clock().0 > 0);
    kernel.launch(device, groups, &[Some(&lrs), clock], None, &settings)
}

/// A kernel for several groups at once; blockIdx.y selects one.
pub(super) struct Kernel {
    pub(super) code: &'static Code,
    pub(super) name: &'static str,
    /// For which tensors of a group it takes pointers.
    pub(super) takes: [bool; MAX_TENSORS],
}

/// How many blocks each group gets.
pub(super) fn blocks_for<G: Group>(groups: &[Option<G>]) -> usize {
    let longest = groups.iter().map(len_of).max().unwrap_or(0);
    longest.div_ceil(THREADS as usize).min(MAX_BLOCKS)
}

impl Kernel {
    /// Launches the kernel. Its arguments are pointers to the tensors of each group (null for missing groups), the
    /// scalars (null for missing ones), the result, and a struct of the groups' lengths and then `settings`.
    pub(super) fn launch<G: Group>(
        &self,
        device: &CudaDevice,
        groups: &[Option<G>],
        scalars: &[Option<&Tensor>],
        result: Option<Argument<'_>>,
        settings: &[u64],
    ) -> Result<()> {
        let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
        let (has, scalars) = (scalars, unchanged(groups, scalars)?);
        let mut locks = lock_all(groups, &scalars);
        let mut numbers = [0; MAX_GROUPS + MAX_SETTINGS];
        for (number, group) in numbers.iter_mut().zip(groups) {
            *number = len_of(group) as u64;
        }
        numbers[MAX_GROUPS..][..settings.len()].copy_from(settings);
        let padded = groups.iter().chain(std::iter::repeat(&None));
        let (of_groups, [of_scalars, ..]) = locks.split_at_mut(SCALARS) else { unreachable!("the scalars come last") };
        let pointers = of_groups.iter_mut().take(first.max_groups()).zip(padded).flat_map(|(locks, group)| {
            let tensors = locks.iter_mut().zip(tensors_of(group)).zip(self.takes);
            let taken = tensors.filter_map(|(tensor, is_taken)| is_taken.then_some(tensor));
            taken.map(|(lock, tensor)| tensor.map_or(NULL, |tensor| lock.argument(tensor)))
        });
        let mut present = of_scalars.iter_mut().zip(&scalars).map(|(lock, scalar)| lock.argument(scalar));
        let scalars = has.iter().map(|scalar| scalar.and_then(|_| present.next()).unwrap_or(NULL));
        let settings = bytemuck::cast_slice(&numbers[..MAX_GROUPS + settings.len()]);
        let arguments: Arguments<'_> =
            pointers.chain(scalars).chain(result).chain([Argument::Value(settings)]).collect();
        let grid = [blocks_for(groups) as u32, groups.len() as u32, 1];
        let launch = Launch { grid, ..Launch::covering(1, THREADS) };
        let enqueue = || {
            // SAFETY: the kernel takes these arguments, in this order. Of each group, it accesses tensors without
            // gaps and of one length (`check`, `is_plain`), which share no memory with other groups; of scalars, only
            // the elements that they have.
            unsafe { self.code.launch(device, OP, (types(first), self.name), launch, &arguments) }
        };
        profiler::on_stream(self.name, || device.stream(), enqueue)
    }
}

/// The number of elements of each tensor of a group.
fn len_of<G: Group>(group: &Option<G>) -> usize {
    tensors_of(group).into_iter().flatten().next().map_or(0, Tensor::len)
}

/// The scalars that are present, copied if they are in a storage that the kernel changes.
fn unchanged<G: Group>(groups: &[Option<G>], scalars: &[Option<&Tensor>]) -> Result<ArrayVec<Tensor, MAX_TENSORS>> {
    let unchanged = |scalar: &Tensor| match groups.iter().any(|group| shares_storage_with(group, scalar)) {
        true => scalar.detached_copy(OP),
        false => Ok(scalar.clone()),
    };
    scalars.iter().flatten().map(|scalar| unchanged(scalar)).collect()
}

/// The element types of the parameter and of the gradient.
fn types<G: Group>(group: &G) -> [DType; 2] {
    let tensors = group.tensors();
    let dtype = |i: usize, other: usize| tensors[i].or(tensors[other]).map_or(DType::F32, |x| x.dtype());
    [dtype(0, GRAD), dtype(GRAD, 0)]
}

impl Lock<'_> {
    fn argument<'a>(&'a mut self, tensor: &'a Tensor) -> Argument<'a> {
        match self {
            Lock::None => unreachable!("every passed tensor is locked"),
            Lock::Read(locked) => locked.cuda(tensor.layout(), tensor.dtype()).argument(),
            Lock::Write(locked) => locked.cuda(tensor.layout(), tensor.dtype()).into_argument(),
        }
    }
}

/// Numbers that each tensor of a step has: the index of its learning rate, and its prelude.
const OF_EACH: usize = 4;
const MAX_SETTINGS: usize = OF_EACH * MAX_GROUPS + MAX_NUMBERS;
