//! Selecting and scattering by index tensors. On the CPU indices are checked before any loop runs. On a device the
//! kernels check them, and the host gets the error when it next reads from the device.

pub(super) mod cuda;

use self::cuda::Index;
use crate::autograd::{Saved, SavedTensor, is_grad_enabled, record};
use crate::cpu::{self, Stored, StoredMut};
use crate::create::filled;
use crate::device::{Device, common_device};
use crate::element::{DType, Num, Scalar};
use crate::error::{Error, Result};
use crate::kind::{Int, Kind, Number, Numeric};
use crate::op::{Derivative, LockedInputs, on_cpu, on_cuda, same_precision};
use crate::ops::scatter::{self, cuda::Call};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_bits, by_num};

impl<K: Kind> Tensor<K> {
    /// The entries of a dimension at the indices in `index` (one-dimensional), in that order; indices may repeat.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// let rows = Tensor::new([1, 1, 0])?;
    /// assert_eq!(x.index_select(0, &rows)?.to_vec::<f32>()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or `index` is not one-dimensional; [`Error::IndexOutOfRange`].
    pub fn index_select(&self, dim: isize, index: &Tensor<Int>) -> Result<Tensor<K>> {
        self.raw().index_select(dim, index.raw()).map(Raw::typed)
    }

    /// One element of a dimension per element of `index`: `out[i][j] = self[i][index[i][j]]` for `dim` 1.
    ///
    /// `index` has this tensor's rank, and is not larger than this tensor except in `dim`. The result has the shape
    /// of `index`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn gather(&self, dim: isize, index: &Tensor<Int>) -> Result<Tensor<K>> {
        self.raw().gather(dim, index.raw()).map(Raw::typed)
    }
}

impl<K: Numeric> Tensor<K> {
    /// This tensor with every element of `source` added at its index: `out[i][index[i][j]] += source[i][j]` for `dim` 1. A
    /// copy; `index` and `source` have this tensor's rank.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([3])?;
    /// let sum = x.scatter_add(0, &Tensor::new([2, 0, 2])?, &Tensor::new([1.0, 2.0, 3.0])?)?;
    /// assert_eq!(sum.to_vec::<f32>()?, [2.0, 0.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn scatter_add(&self, dim: isize, index: &Tensor<Int>, source: &Tensor<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("scatter_add", dim)?;
        let source = same_dtype("scatter_add", self.raw(), source.raw())?;
        added_to(self.raw(), source, dim, index.raw()).map(Raw::typed)
    }

    /// A copy of this tensor in which every entry `j` of `source` is added to entry `index[j]`; `index` is
    /// one-dimensional.
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn index_add(&self, dim: isize, index: &Tensor<Int>, source: &Tensor<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("index_add", dim)?;
        let source = same_dtype("index_add", self.raw(), source.raw())?;
        let index = own_index("index_add", [self.raw(), source], index.raw())?;
        let picks = Picks::of_entries(self.shape(), dim, index)?;
        if *source.shape() != picks.shapes[1] {
            let expected = format!("it must be {}; reshape or expand it", picks.shapes[1]);
            return Err(Error::wrong_shape("index_add", "the source", source.shape(), expected));
        }
        picks.added_to(self.raw(), source).map(Raw::typed)
    }

    /// A copy of this tensor with `value` in the entries of a dimension at the indices in `index` (one-dimensional).
    ///
    /// # Errors
    /// As [`Tensor::scatter_add`].
    pub fn index_fill(&self, dim: isize, index: &Tensor<Int>, value: impl Number<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("index_fill", dim)?;
        let device = self.raw().storage.device();
        let ones = filled(device, "index_fill", *index.shape(), DType::I64, Scalar::Int(1))?;
        let counts = scatter_added(&ones, 0, index.raw(), Shape::new(&[self.shape()[dim]])?)?;
        let counts = counts.reshape_to(scatter::along(dim, self.shape())?)?;
        self.masked_fill(&counts.converted(DType::Bool)?.typed(), value)
    }
}

pub(super) fn same_dtype<'a>(op: &'static str, x: &Raw, source: &'a Raw) -> Result<&'a Raw> {
    same_precision(op, &[x, source]).map(|_| source)
}

impl<K: Kind> Tensor<K> {
    /// [`gather`](Tensor::gather) with an index that broadcasts against this tensor in every other dimension, such as
    /// a result of [`argsort`](Tensor::argsort) or [`argmax_keepdim`](Tensor::argmax_keepdim).
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn take_along_dim(&self, index: &Tensor<Int>, dim: isize) -> Result<Tensor<K>> {
        let at = self.shape().dim("take_along_dim", dim)?;
        if index.rank() != self.rank() {
            let expected = format!("it must have the rank of {}", self.shape());
            return Err(Error::wrong_shape("take_along_dim", "the index", index.shape(), expected));
        }
        let others = Shape::broadcast("take_along_dim", &self.shape().with(at, 1), &index.shape().with(at, 1))?;
        let (size, taken) = (self.shape()[at], index.shape()[at]);
        self.raw()
            .expand(others.with(at, size))?
            .gather(dim, &index.raw().expand(others.with(at, taken))?)
            .map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn index_select(&self, dim: isize, index: &Raw) -> Result<Raw> {
        let dim = self.shape().dim("index_select", dim)?;
        Picks::of_entries(self.shape(), dim, plain_index("index_select", self, index)?)?.pick(self)
    }

    pub(crate) fn gather(&self, dim: isize, index: &Raw) -> Result<Raw> {
        let dim = self.shape().dim("gather", dim)?;
        Picks::of_elements(self.shape(), dim, plain_index("gather", self, index)?)?.pick(self)
    }

    /// [`gather`](Self::gather) with an index that selects no element twice, so that its derivative has nothing to
    /// add up.
    pub(crate) fn gather_once(&self, dim: isize, index: &Raw) -> Result<Raw> {
        let dim = self.shape().dim("gather", dim)?;
        let picks = Picks::of_elements(self.shape(), dim, plain_index("gather", self, index)?)?;
        Picks { is_once: true, ..picks }.pick(self)
    }
}

/// [`scatter_add`] of any kind, which checks the shapes and the index.
pub(super) fn scatter_added(source: &Raw, dim: usize, index: &Raw, into: Shape) -> Result<Raw> {
    scatter_added_own(source, dim, own_index("scatter_add", [source, source], index)?, into)
}

/// Zeros of shape `into`, with each entry `j` of `source` added to entry `index[j]` along `dim`. The caller has
/// checked the shapes.
pub(super) fn entries_added(source: &Raw, dim: usize, index: &Raw, into: Shape) -> Result<Raw> {
    Picks::of_entries(&into, dim, index.clone())?.add(source)
}

/// [`Tensor::scatter_add`].
pub(super) fn added_to(x: &Raw, source: &Raw, dim: usize, index: &Raw) -> Result<Raw> {
    added_to_own(x, source, dim, own_index("scatter_add", [x, source], index)?)
}

/// [`scatter_added`] with an index in its own storage.
pub(super) fn scatter_added_own(source: &Raw, dim: usize, index: Raw, into: Shape) -> Result<Raw> {
    let (picks, source) = picks_to_add(source, dim, index, into)?;
    picks.add_to_zeros(&source, true)
}

/// [`added_to`] with an index in its own storage.
pub(super) fn added_to_own(x: &Raw, source: &Raw, dim: usize, index: Raw) -> Result<Raw> {
    let (picks, source) = picks_to_add(source, dim, index, *x.shape())?;
    picks.added_to(x, &source)
}

/// An index for each element reduced to a vector, if it selects whole entries of a tensor of that shape.
pub(super) fn entries_of(index: &Raw, dim: usize, x: &Shape) -> Result<Option<Raw>> {
    let (shape, strides) = (index.shape(), index.layout.strides());
    let is_whole = |at: usize| at == dim || shape[at] == x[at] && (shape[at] == 1 || strides[at] == 0);
    if shape.contains(&0) || !(0..shape.rank()).all(is_whole) {
        return Ok(None);
    }
    let mut others = (0..shape.rank()).rev().filter(|&at| at != dim);
    others.try_fold(index.clone(), |index, at| index.select(at as isize, 0)).map(Some)
}

/// The part of `source` that is as large as the index, and the elements to which it is added.
fn picks_to_add(source: &Raw, dim: usize, index: Raw, into: Shape) -> Result<(Picks, Raw)> {
    let picks = Picks::of_elements(&into, dim, index)?;
    let source = scatter::indexed_part("scatter_add", source, picks.index.shape())?;
    let picks = match entries_of(&picks.index, dim, &into)? {
        Some(entries) if entries.is_contiguous() && into.rank() > 1 => Picks::of_entries(&into, dim, entries)?,
        _ => picks,
    };
    Ok((picks, source))
}

/// Zeros of shape `into`, with each element of `source` added at its index along `dim`: the transpose of `gather`.
pub(crate) fn scatter_add(source: &Tensor, dim: usize, index: Raw, into: Shape) -> Result<Tensor> {
    let shapes = [into, *index.shape()];
    Picks { way: Way::Elements, dim, index, shapes, is_once: false }.add(source.raw()).map(Raw::typed)
}

/// The index, [`without_gaps`]. If a derivative will need it, it is copied to a storage that in-place operations cannot
/// change.
pub(super) fn own_index(op: &'static str, inputs: [&Raw; 2], index: &Raw) -> Result<Raw> {
    common_device(op, &[inputs[0], index])?;
    without_gaps(op, index, is_grad_enabled() && inputs.iter().any(|input| input.node.is_some()))
}

/// The index, [`without_gaps`], possibly in its own storage: a derivative saves the version of that storage with it.
fn plain_index(op: &'static str, x: &Raw, index: &Raw) -> Result<Raw> {
    common_device(op, &[x, index])?;
    without_gaps(op, index, false)
}

/// The index as `i64`, contiguous but for dimensions along which it repeats: these are not copied. It is in a storage of
/// its own if it `is_copied`.
fn without_gaps(op: &'static str, index: &Raw, is_copied: bool) -> Result<Raw> {
    let repeats = |&dim: &usize| index.layout.strides()[dim] == 0 && index.shape()[dim] > 1;
    let once = (0..index.rank()).filter(repeats).try_fold(index.clone(), |x, dim| x.narrow(dim as isize, 0, 1))?;
    let once = match once.dtype() {
        DType::I64 if once.is_contiguous() && !is_copied => once.without_node(),
        DType::I64 => once.detached_copy(op)?,
        _ => once.converted(DType::I64)?,
    };
    once.expand(*index.shape())
}

/// Checks that an index with an element for each element has the rank of `x`, and is no larger except along `dim`.
pub(super) fn check_index_shape(op: &'static str, index: &Shape, dim: usize, x: &Shape) -> Result<()> {
    let mut sizes = index.iter().zip(x.iter()).enumerate();
    if index.rank() == x.rank() && sizes.all(|(at, (mine, size))| at == dim || mine <= size) {
        return Ok(());
    }
    let expected = format!("it must have the rank of {x} and be no larger, except in dimension {dim}");
    Err(Error::wrong_shape(op, "the index", index, expected))
}

/// Checks that every index is below the size of dimension `dim`, and not negative.
pub(crate) fn check_range(op: &'static str, index: &[i64], dim: usize, shape: &Shape) -> Result<()> {
    if cpu::all_below(index, shape[dim]) {
        return Ok(());
    }
    let is_outside = |index: i64| index as u64 >= shape[dim] as u64; // negative ones are above all sizes
    let first = index.iter().copied().find(|&index| is_outside(index));
    first.map_or(Ok(()), |index| Err(Error::IndexOutOfRange { op, index, dim, shape: *shape, from_end: false }))
}

/// A selection of elements along a dimension. Picking the elements, and adding to them, are each other's derivatives.
#[derive(Clone)]
struct Picks {
    way: Way,
    dim: usize,
    index: Raw,
    /// The shapes of the tensor, and of the picked elements.
    shapes: [Shape; 2],
    /// Whether no element is picked twice.
    is_once: bool,
}

#[derive(Clone, Copy)]
enum Way {
    /// Whole entries of the dimension: `index_select`.
    Entries,
    /// One element for each element of the index: `gather`.
    Elements,
}

impl Picks {
    fn of_entries(x: &Shape, dim: usize, index: Raw) -> Result<Picks> {
        if index.rank() != 1 {
            let expected = "it must have one dimension; flatten it";
            return Err(Error::wrong_shape("index_select", "the index", index.shape(), expected));
        }
        let shapes = [*x, x.with(dim, index.shape()[0])];
        Ok(Picks { way: Way::Entries, dim, index: index.gap_free()?, shapes, is_once: false })
    }

    fn of_elements(x: &Shape, dim: usize, index: Raw) -> Result<Picks> {
        check_index_shape("gather", index.shape(), dim, x)?;
        let (shapes, is_once) = ([*x, *index.shape()], index.shape()[dim] <= 1);
        Ok(Picks { way: Way::Elements, dim, index, shapes, is_once })
    }

    fn pick(self, x: &Raw) -> Result<Raw> {
        let op = match self.way {
            Way::Entries => "index_select",
            Way::Elements => "gather",
        };
        let (inputs, shape_and_dtype, dim) = ([Some(x), Some(&self.index)], (self.shapes[1], x.dtype()), self.dim);
        let out = match x.storage.device() {
            Device::Cpu => on_cpu(op, inputs, shape_and_dtype, &mut |inputs, out| {
                let index = inputs.view::<i64>(1);
                let check = || check_range(op, index.data.plain(), dim, &self.shapes[0]);
                by_bits!(inputs.dtype(), B => match (self.way, inputs.bits_of::<B>(0)) {
                    (Way::Entries, x) => check().map(|()| cpu::index_select(x, dim, index.data.plain(), out.bits())),
                    (Way::Elements, x) if x.data.len() > 0 && cpu::gather(x, dim, index, out.bits()) => Ok(()),
                    (Way::Elements, _) => check(),
                })
            }),
            Device::Cuda(device) => on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
                let (x, index) = (inputs.cuda_view(0), self.on_cuda(inputs));
                match self.way {
                    Way::Entries => cuda::select_entries(device, op, x, index, out),
                    Way::Elements => cuda::gather(device, op, x, index, out),
                }
            }),
        }?;
        Ok(record(op, Picked(self.saved(op)), [Some(x)], out))
    }

    /// `x` with each element of `source` added to the element that its index picks. Checks the index.
    fn added_to(self, x: &Raw, source: &Raw) -> Result<Raw> {
        if !x.storage.device().is_cpu() {
            return x.add(&self.add_to_zeros(source, true)?);
        }
        let (op, base) = (self.name_of_add(), x.gap_free()?);
        let inputs = [Some(source), Some(&self.index), Some(&base)];
        let out = on_cpu(
            op,
            inputs,
            (*x.shape(), x.dtype()),
            &mut |inputs, out| by_num!(inputs.dtype(), T => self.run_on_cpu::<T, 3>(inputs, out.stored(), inputs.data::<T>(2), true)),
        )?;
        Ok(record(op, AddPicked(self.saved(op)), [Some(x), Some(source)], out))
    }

    /// Adds the first input at the indices of the second, to `base` or to zeros.
    fn run_on_cpu<T: Num, const N: usize>(
        &self,
        inputs: &LockedInputs<'_, N>,
        out: StoredMut<'_, T>,
        base: Option<Stored<'_, T>>,
        checks: bool,
    ) -> Result<()> {
        let (x, index) = (inputs.view::<T>(0), inputs.view::<i64>(1));
        let (op, dim, whole) = (self.name_of_add(), self.dim, &self.shapes[0]);
        let numbers = index.data.plain();
        match self.way {
            Way::Entries => {
                if checks {
                    check_range(op, numbers, dim, whole)?;
                }
                cpu::index_add(out, whole, dim, numbers, x, base).map_err(Error::scratch(op))
            }
            Way::Elements => match cpu::scatter_add(out, (whole, dim), index, x, base) {
                Ok(true) => Ok(()),
                Ok(false) => check_range(op, numbers, dim, whole),
                Err(error) => Err(Error::scratch(op)(error)),
            },
        }
    }

    fn name_of_add(&self) -> &'static str {
        match self.way {
            Way::Entries => "index_add",
            Way::Elements => "scatter_add",
        }
    }

    /// Zeros, with each element of `x` added to the element that its index picks. On the CPU, the index must be in
    /// range.
    fn add(self, x: &Raw) -> Result<Raw> {
        self.add_to_zeros(x, false)
    }

    fn add_to_zeros(self, x: &Raw, checks: bool) -> Result<Raw> {
        let op = self.name_of_add();
        let (inputs, whole) = ([Some(x), Some(&self.index)], &self.shapes[0]);
        let out = match x.storage.device() {
            Device::Cpu if self.is_once => on_cpu(op, inputs, (*whole, x.dtype()), &mut |inputs, out| {
                let index = inputs.view::<i64>(1);
                let are_inside = by_bits!(inputs.dtype(), B => {
                    cpu::fill(out.bits::<B>(), 0);
                    cpu::scatter(out.bits(), whole, self.dim, index, inputs.bits_of::<B>(0), |_, new| new)
                });
                if are_inside { Ok(()) } else { check_range(op, index.data.plain(), self.dim, whole) }
            }),
            Device::Cpu => on_cpu(
                op,
                inputs,
                (*whole, x.dtype()),
                &mut |inputs, out| by_num!(inputs.dtype(), T => self.run_on_cpu::<T, 2>(inputs, out.stored(), None, checks)),
            ),
            Device::Cuda(device) => on_cuda(op, device, inputs, (*whole, x.dtype()), &mut |inputs, out| {
                let call = Call { device, op, index: self.on_cuda(inputs), source: inputs.cuda_view(0) };
                match self.way {
                    Way::Entries if !self.is_once => scatter::entries::add_entries(&call, out),
                    _ => scatter::cuda::add(&call, self.is_once, out),
                }
            }),
        }?;
        Ok(record(op, AddToPicked(self.saved(op)), [Some(x)], out))
    }

    fn saved(self, op: &'static str) -> SavedPicks {
        SavedPicks { op, index: SavedTensor::new(self.index.clone()), picks: self }
    }

    fn on_cuda<'a>(&self, inputs: &'a LockedInputs<'_, 2>) -> Index<'a> {
        match self.way {
            Way::Entries => Index::of_entries(inputs.cuda_view(1), self.dim),
            Way::Elements => Index::of_elements(inputs.cuda_view(1), self.dim),
        }
    }
}

/// A selection whose index must not change before the derivative is computed.
struct SavedPicks {
    op: &'static str,
    index: SavedTensor,
    picks: Picks,
}

impl SavedPicks {
    fn get(&self) -> Result<Picks> {
        self.index.get(self.op)?;
        Ok(self.picks.clone())
    }
}

/// The derivative of [`Picks::pick`].
struct Picked(SavedPicks);

impl Derivative<1> for Picked {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.0.get()?.add(grad.raw())?.typed())])
    }
}

/// The derivative of [`Picks::add`].
struct AddToPicked(SavedPicks);

impl Derivative<1> for AddToPicked {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.0.get()?.pick(grad.raw())?.typed())])
    }
}

/// The derivative of [`Picks::added_to`].
struct AddPicked(SavedPicks);

impl Derivative<2> for AddPicked {
    fn backward(&self, _: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        Ok([Some(grad.clone()), Some(self.0.get()?.pick(grad.raw())?.typed())])
    }
}
