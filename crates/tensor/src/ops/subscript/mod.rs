//! Indexing as in Python: `x.i((0, 1..3, Ellipsis, &rows))`. Numbers, ranges and new dimensions give a view; index
//! tensors and masks then copy elements of that view.
//!
//! Index tensors broadcast against each other, and their common shape replaces the dimensions that they index: in
//! place if these dimensions are adjacent, otherwise in front. As in PyTorch, a dimension that a number removes does
//! not separate its neighbors.

mod items;
mod numbers;

use std::ops::Bound;

use super::in_place;
use super::scatter::{index_copied, write_entries};
use super::slice_range::SliceRange;
use crate::error::{Error, Result};
use crate::kind::{Float, Int, Kind, Numeric};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

use self::items::{AnyIndex, Item};
pub use self::items::{Ellipsis, IndexItem, Indices, NewAxis};

impl<K: Kind> Tensor<K> {
    /// The elements that an index selects, as Python's `x[…]`. Its items apply to the dimensions from the first one
    /// on.
    ///
    /// | Python | here | |
    /// |---|---|---|
    /// | `x[0]`, `x[-1]` | `x.i(0)`, `x.i(-1)` | removes the dimension |
    /// | `x[:, 1:3]` | `x.i((.., 1..3))` | a view |
    /// | `x[1:-1]` | `x.i([1, -1])` | `1..-1` means the same, but Clippy takes it for empty |
    /// | `x[..., 0]` | `x.i((Ellipsis, 0))` | |
    /// | `x[:, None]` | `x.i((.., NewAxis))` | |
    /// | `x[rows]`, `x[rows, columns]` | `x.i(&rows)`, `x.i((&rows, &columns))` | a copy; the tensors broadcast |
    /// | `x[mask]` | `x.i(&mask)` | a copy; on a device, the host waits for the mask |
    ///
    /// Ranges are clamped to the dimension, and negative numbers count from the end. Gradients flow back.
    ///
    /// ```
    /// # use pagelock_tensor::{Ellipsis, Tensor};
    /// let x = Tensor::arange(0, 24, 1)?.reshape([2, 3, 4])?;
    /// assert_eq!(x.i((1, .., 0))?.to_vec::<i64>()?, [12, 16, 20]);
    /// assert_eq!(x.i((Ellipsis, [1, -1]))?.dims(), [2, 3, 2]);
    /// let (rows, columns) = (Tensor::new([0, -1])?, Tensor::new([2, 0])?);
    /// assert_eq!(x.i((.., &rows, &columns))?.to_vec::<i64>()?, [2, 8, 14, 20]);
    /// assert_eq!(x.i(&x.gt_scalar(21)?)?.to_vec::<i64>()?, [22, 23]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for more items than dimensions, a mask of another shape, or tensors that do not broadcast;
    /// [`Error::IndexOutOfRange`].
    pub fn i<'a>(&self, indices: impl Indices<'a>) -> Result<Tensor<K>> {
        let (view, indexed) = view_and_indices("i", self.raw(), &indices.items())?;
        gather_indexed("i", view, indexed).map(Raw::typed)
    }

    /// Sets the elements that an index selects (see [`i`](Tensor::i)) to `value`, which broadcasts: Python's
    /// `x[…] = value`. If an element is selected several times, the last value stays. Never recorded. Only the
    /// selected elements are written. But with tensors in the index, the whole view that the other items select is
    /// rewritten if it is not contiguous or the indexed dimensions are not adjacent.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 3])?;
    /// x.put_((.., 1), &Tensor::new([5.0, 7.0])?)?;
    /// x.put_(&x.eq_scalar(0.0)?, &Tensor::new(-1.0)?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [-1.0, 5.0, -1.0, -1.0, 7.0, -1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`i`](Tensor::i) and [`copy_`](Tensor::copy_).
    pub fn put_<'a>(&self, indices: impl Indices<'a>, value: &Tensor<K>) -> Result<()> {
        let (view, indexed) = view_and_indices("put_", self.raw(), &indices.items())?;
        if indexed.is_empty() {
            return view.typed::<K>().copy_(value);
        }
        view.check_writable("put_", [value.raw()])?;
        put("put_", &view.without_node(), indexed, &value.raw().without_node())
    }

    /// A copy in which the elements that index tensors or masks select are replaced by `values`, which broadcast:
    /// PyTorch's `index_put`. The only other items allowed are `..` and [`Ellipsis`]. If an element is selected
    /// several times, the last value stays and gets the gradient.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (rows, columns) = (Tensor::new([0, 1])?, Tensor::new([2, 0])?);
    /// let x = Tensor::zeros([2, 3])?.index_put((&rows, &columns), &Tensor::new([5.0, 7.0])?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 5.0, 7.0, 0.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`i`](Tensor::i); [`Error::Argument`] for numbers, ranges and new dimensions.
    pub fn index_put<'a>(&self, indices: impl Indices<'a>, values: &Tensor<K>) -> Result<Tensor<K>> {
        index_put("index_put", self.raw(), &indices.items(), values.raw(), Writing::Last).map(Raw::typed)
    }
}

impl<K: Numeric> Tensor<K> {
    /// Like [`index_put`](Tensor::index_put), but adds the values. An element that is selected several times gets the
    /// sum: PyTorch's `accumulate=True`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::ones([3])?.index_put_add(&Tensor::new([1, 1, -1])?, &Tensor::new([5.0, 7.0, 1.0])?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 13.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`index_put`](Tensor::index_put).
    pub fn index_put_add<'a>(&self, indices: impl Indices<'a>, values: &Tensor<K>) -> Result<Tensor<K>> {
        index_put("index_put_add", self.raw(), &indices.items(), values.raw(), Writing::Sum).map(Raw::typed)
    }
}

/// Whether an element gets the last of its values or the sum of them all.
#[derive(Clone, Copy)]
enum Writing {
    Last,
    Sum,
}

/// A dimension and the index tensor for it.
type Indexed = (usize, Raw);

/// The view that numbers, ranges and new dimensions select, and the index tensors for its dimensions.
fn view_and_indices(op: &'static str, x: &Raw, items: &[Item<'_>]) -> Result<(Raw, Vec<Indexed>)> {
    let rest = remaining_dims(op, x, items)?;
    let (mut view, mut dim, mut indexed) = (x.clone(), 0, Vec::new());
    for item in items {
        let at = dim as isize;
        dim += match *item {
            Item::At(number) => {
                view = view.select(at, number).map_err(|error| error.of_index_in(op))?;
                0
            }
            Item::Range((Bound::Unbounded, Bound::Unbounded)) => 1,
            Item::Range(range) => {
                view = view.slice(at, |size| range.within(size), 1)?;
                1
            }
            Item::NewAxis => {
                view = view.insert_dim(op, at)?;
                1
            }
            Item::Ellipsis => rest,
            Item::Index(AnyIndex(index)) => {
                indexed.push((dim, index.clone()));
                1
            }
            Item::Mask(AnyIndex(mask)) => {
                push_mask_indices(op, &view, dim, mask, &mut indexed)?;
                mask.rank()
            }
        };
    }
    Ok((view, indexed))
}

/// The number of dimensions that no item covers.
fn remaining_dims(op: &'static str, x: &Raw, items: &[Item<'_>]) -> Result<usize> {
    let covered_dims = |item: &Item<'_>| match item {
        Item::At(_) | Item::Range(_) | Item::Index(_) => 1,
        Item::Mask(AnyIndex(mask)) => mask.rank(),
        Item::Ellipsis | Item::NewAxis => 0,
    };
    let n_covered: usize = items.iter().map(covered_dims).sum();
    if items.iter().filter(|item| matches!(item, Item::Ellipsis)).count() > 1 {
        return Err(Error::Argument(format!(
            "{op}: the index has `Ellipsis` twice; only one `Ellipsis` can stand for the remaining dimensions"
        )));
    }
    x.rank().checked_sub(n_covered).ok_or_else(|| {
        let expected = format!("the index has items for {n_covered} dimensions; remove some");
        Error::wrong_shape(op, "the tensor", x.shape(), expected)
    })
}

/// Adds the positions at which a mask is true, as one index tensor for each of its dimensions.
fn push_mask_indices(op: &'static str, view: &Raw, dim: usize, mask: &Raw, indexed: &mut Vec<Indexed>) -> Result<()> {
    let covered = view.shape().get(dim..dim + mask.rank());
    if mask.rank() == 0 || covered != Some(&mask.shape()[..]) {
        let sizes = format!("the sizes of {} from dimension {dim} on", view.shape());
        let expected = format!("its shape must equal {sizes}, for at least one dimension");
        return Err(Error::wrong_shape(op, "the mask", mask.shape(), expected));
    }
    let indices = mask.clone().typed::<crate::kind::Bool>().nonzero()?;
    for i in 0..mask.rank() {
        indexed.push((dim + i, indices.raw().select(1, i as isize)?));
    }
    Ok(())
}

fn are_adjacent(indexed: &[Indexed]) -> bool {
    indexed.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1)
}

/// The index tensors joined into one, for a tensor whose indexed dimensions are merged into one.
struct Plan {
    /// The indexed dimensions, then the others.
    order: Vec<isize>,
    n_indexed: usize,
    /// The common shape of the index tensors, and the dimension of the result at which it begins.
    shape: Shape,
    at: usize,
    /// One index into the merged dimension for each selected entry.
    index: Raw,
    /// Whether the indexed dimensions are adjacent, so that they can be merged where they are.
    are_adjacent: bool,
}

impl Plan {
    fn new(op: &'static str, x: &Raw, indexed: Vec<Indexed>) -> Result<Plan> {
        let shape =
            indexed.iter().try_fold(Shape::SCALAR, |shape, (_, index)| Shape::broadcast(op, &shape, index.shape()))?;
        let dims: Vec<usize> = indexed.iter().map(|(dim, _)| *dim).collect();
        let are_adjacent = are_adjacent(&indexed);
        let others = (0..x.rank()).filter(|dim| !dims.contains(dim));
        let order = dims.iter().copied().chain(others).map(|dim| dim as isize).collect();
        let index = numbers::join_indices(op, x, &indexed)?.expand(shape)?.reshape(&[-1])?;
        Ok(Plan {
            order,
            n_indexed: dims.len(),
            shape,
            at: if are_adjacent { dims[0] } else { 0 },
            index,
            are_adjacent,
        })
    }

    /// The shape of the result: the common shape in place of the indexed dimensions.
    fn out_shape(&self, x: &Shape) -> Result<Shape> {
        let mut out = Shape::SCALAR;
        self.order[self.n_indexed..].iter().try_for_each(|&dim| out.push(x[dim as usize]))?;
        self.shape.iter().enumerate().try_for_each(|(i, &size)| out.insert(self.at + i, size))?;
        out.check_size()?;
        Ok(out)
    }

    /// The shape with the indexed dimensions, which are adjacent, merged.
    fn merged_shape(&self, x: &Shape) -> Result<Shape> {
        let (front, back) = x.split_at(self.at);
        let (indexed, others) = back.split_at(self.n_indexed);
        Shape::new(&[front, &[indexed.iter().product()], others].concat())
    }

    /// The tensor with its indexed dimensions merged, the merged dimension, and the values, which have one entry per
    /// index in that dimension.
    fn entries(&self, x: &Raw, values: &Raw) -> Result<(Raw, usize, Raw)> {
        let values = values.expand(self.out_shape(x.shape())?)?;
        let (entries, dim, values) = match self.are_adjacent {
            true => (x.reshape_to(self.merged_shape(x.shape())?)?, self.at, values),
            false => (self.with_indexed_dims_in_front(x)?, 0, self.move_index_dims(&values, true)?),
        };
        let entries_shape = entries.shape().with(dim, self.index.shape()[0]);
        Ok((entries, dim, values.reshape_to(entries_shape)?))
    }

    /// The tensor with its indexed dimensions merged and in front.
    fn with_indexed_dims_in_front(&self, x: &Raw) -> Result<Raw> {
        let ordered = x.permute(&self.order)?;
        let mut rows = Shape::new(&ordered.shape()[self.n_indexed..])?;
        rows.insert(0, ordered.shape()[..self.n_indexed].iter().product())?;
        ordered.reshape_to(rows)
    }

    /// Moves the dimensions of the common shape from the front to dimension `at`, or back if `reverse`.
    fn move_index_dims(&self, x: &Raw, reverse: bool) -> Result<Raw> {
        let [front, back]: [Vec<isize>; 2] = [
            (0..self.shape.rank()).map(|i| i as isize).collect(),
            (0..self.shape.rank()).map(|i| (self.at + i) as isize).collect(),
        ];
        let (from, to) = if reverse { (back, front) } else { (front, back) };
        super::split::movedim(x, &from, &to)
    }
}

fn gather_indexed(op: &'static str, view: Raw, indexed: Vec<Indexed>) -> Result<Raw> {
    if indexed.is_empty() {
        return Ok(view);
    }
    let in_op = |error: Error| error.of_index_in(op);
    let plan = Plan::new(op, &view, indexed)?;
    let out = plan.out_shape(view.shape())?;
    if plan.are_adjacent {
        let entries = view.reshape_to(plan.merged_shape(view.shape())?)?.index_select(plan.at as isize, &plan.index);
        return entries.map_err(in_op)?.reshape_to(out);
    }
    let rows = plan.with_indexed_dims_in_front(&view)?;
    let gathered = rows.index_select(0, &plan.index).map_err(in_op)?;
    let mut shape = plan.shape;
    rows.shape()[1..].iter().try_for_each(|&size| shape.push(size))?;
    plan.move_index_dims(&gathered.reshape_to(shape)?, false)
}

fn index_put(op: &'static str, x: &Raw, items: &[Item<'_>], values: &Raw, writing: Writing) -> Result<Raw> {
    let is_view = |item: &Item<'_>| match item {
        Item::At(_) | Item::NewAxis => true,
        Item::Range(range) => *range != (Bound::Unbounded, Bound::Unbounded),
        _ => false,
    };
    if items.iter().any(is_view) {
        return Err(Error::Argument(format!(
            "{op}: the index contains numbers, ranges or new dimensions; give only tensors, masks, `..` and \
             `Ellipsis`, or use put_, which takes all items"
        )));
    }
    let (x, indexed) = view_and_indices(op, x, items)?;
    put_in_copy(op, &x, indexed, values, writing)
}

/// A copy of `x` with `values` in the entries that the index tensors select.
fn put_in_copy(op: &'static str, x: &Raw, indexed: Vec<Indexed>, values: &Raw, writing: Writing) -> Result<Raw> {
    super::index::same_dtype(op, x, values)?;
    let plan = Plan::new(op, x, indexed)?;
    let (entries, dim, values) = plan.entries(x, values)?;
    let changed = match writing {
        Writing::Last => index_copied(op, &entries, dim, &plan.index, &values)?,
        Writing::Sum => index_add(&entries, dim, &plan.index, &values)?,
    };
    if plan.are_adjacent {
        return changed.reshape_to(*x.shape());
    }
    let ordered = x.permute(&plan.order)?;
    let mut back = vec![0; plan.order.len()];
    plan.order.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as isize);
    changed.reshape_to(*ordered.shape())?.permute(&back)
}

/// Writes the values to the entries that the index tensors select. Rewrites the whole view if it is not contiguous or
/// the indexed dimensions are not adjacent.
fn put(op: &'static str, view: &Raw, indexed: Vec<Indexed>, values: &Raw) -> Result<()> {
    super::index::same_dtype(op, view, values)?;
    if !view.is_contiguous() || !are_adjacent(&indexed) {
        return in_place::copy(view, &put_in_copy(op, view, indexed, values, Writing::Last)?);
    }
    let plan = Plan::new(op, view, indexed)?;
    let (entries, dim, values) = plan.entries(view, values)?;
    write_entries(op, &entries, dim, &plan.index, &values)
}

/// [`Tensor::index_add`] to entries of any numeric kind.
fn index_add(entries: &Raw, dim: usize, index: &Raw, values: &Raw) -> Result<Raw> {
    let (index, dim): (Tensor<Int>, isize) = (index.clone().typed(), dim as isize);
    match entries.dtype().is_float() {
        true => entries.clone().typed::<Float>().index_add(dim, &index, &values.clone().typed()).map(Tensor::into_raw),
        false => entries.clone().typed::<Int>().index_add(dim, &index, &values.clone().typed()).map(Tensor::into_raw),
    }
}
