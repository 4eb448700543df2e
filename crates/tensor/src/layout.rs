//! How a tensor's elements lie in its storage: shape, strides and offset, and the views that only change these.

use std::cmp::Reverse;

use arrayvec::ArrayVec;

use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape};

/// Element `[i0, i1, …]` of a view is storage element `offset + i0·strides[0] + i1·strides[1] + …`.
///
/// Invariant: for a view with elements, every such position is inside the storage it was made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
    contiguous: bool,
}

impl Layout {
    /// A scalar: the storage's first element.
    pub(crate) const SCALAR: Layout =
        Layout { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: 0, contiguous: true };

    /// Row-major, without gaps, from the storage's first element.
    pub(crate) fn contiguous(shape: Shape) -> Layout {
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for dim in (0..shape.rank()).rev() {
            strides[dim] = step;
            step *= shape[dim].max(1);
        }
        Layout { shape, strides, offset: 0, contiguous: true }
    }

    /// Four dimensions without gaps, the second one (channels) innermost.
    pub(crate) fn channels_last(shape: Shape) -> Layout {
        debug_assert_eq!(shape.rank(), 4);
        Layout::in_order(shape, &[0, 2, 3, 1])
    }

    /// Without gaps. `order` lists the dimensions from the outermost to the innermost in memory.
    pub(crate) fn in_order(shape: Shape, order: &[usize]) -> Layout {
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for &dim in order.iter().rev() {
            strides[dim] = step;
            step *= shape[dim].max(1);
        }
        Layout::strided(shape, strides, 0)
    }

    /// The dimensions from the outermost to the innermost in memory; `None` if they are in ascending order, or if
    /// elements are repeated.
    pub(crate) fn order(&self) -> Option<ArrayVec<usize, MAX_RANK>> {
        if self.contiguous || self.shape.elements() == 0 || self.overlaps() {
            return None;
        }
        let dims = || 0..self.shape.rank();
        // The position of a dimension of size 1 does not matter. They come first.
        let mut order: ArrayVec<usize, MAX_RANK> = dims().filter(|&dim| self.shape[dim] == 1).collect();
        let of_one = order.len();
        order.extend(dims().filter(|&dim| self.shape[dim] > 1));
        order[of_one..].sort_by_key(|&dim| Reverse(self.strides[dim]));
        if order[of_one..].is_sorted() { None } else { Some(order) }
    }

    /// Without gaps and repeated elements, in the same order, at the start of a storage.
    pub(crate) fn dense(&self) -> Layout {
        match self.order() {
            Some(order) => Layout::in_order(self.shape, &order),
            None => Layout::contiguous(self.shape),
        }
    }

    /// Whether the elements lie as in [`channels_last`](Self::channels_last), wherever they start.
    pub(crate) fn is_channels_last(&self) -> bool {
        let [batch, channels, height, width] = *self.shape else { return false };
        let strides = [height * width * channels, 1, width * channels, channels];
        let fits = |dim: usize, size| size == 1 || self.strides[dim] == strides[dim];
        self.shape.elements() == 0
            || [batch, channels, height, width].into_iter().enumerate().all(|(dim, size)| fits(dim, size))
    }

    /// Any view of a storage that has `n_elements` elements.
    ///
    /// # Errors
    /// [`Error::Argument`] if an element would be outside, or if strides other than 0 may name an element twice.
    pub(crate) fn in_storage(shape: Shape, given: &[usize], offset: usize, n_elements: usize) -> Result<Layout> {
        let refused = |problem: String| {
            let fix = "check shape, strides and offset";
            let view = format!("{shape} with strides {given:?} from element {offset}");
            Err(Error::Argument(format!("as_strided: {view} {problem}; {fix}")))
        };
        if given.len() != shape.rank() {
            return refused(format!("has {} sizes and {} strides", shape.rank(), given.len()));
        }
        let whole = Layout::contiguous(shape);
        if shape.elements() == 0 {
            return Ok(whole); // its strides are never used
        }
        let mut strides = whole.strides; // those of dimensions of size 1 are never used either
        let mut end = offset;
        for (dim, &size) in shape.iter().enumerate().filter(|(_, size)| **size > 1) {
            strides[dim] = given[dim];
            end = end.saturating_add((size - 1).saturating_mul(given[dim]));
        }
        if end >= n_elements {
            return refused(format!("ends at element {end}, but the storage has {n_elements}"));
        }
        if meet(shape.iter().zip(given).filter(|(_, stride)| **stride != 0)) {
            return refused("names an element twice".to_owned());
        }
        Ok(Layout::strided(shape, strides, offset))
    }

    /// A view without elements starts at offset 0, wherever it was cut out: its storage may have no elements.
    fn strided(shape: Shape, strides: [usize; MAX_RANK], offset: usize) -> Layout {
        let offset = if shape.elements() == 0 { 0 } else { offset };
        let contiguous = is_row_major(&shape, &strides);
        Layout { shape, strides, offset, contiguous }
    }

    #[inline]
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank()]
    }

    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The same view in a storage that starts with the view's first element.
    pub(crate) fn at_start(self) -> Layout {
        Layout { offset: 0, ..self }
    }

    /// Becomes `other`, but starts at the storage's first element.
    #[inline]
    pub(crate) fn set_from_start(&mut self, other: &Layout) {
        *self = *other;
        self.offset = 0;
    }

    /// The same view, starting at another element of a storage, which must be large enough.
    pub(crate) fn starting_at(self, offset: usize) -> Layout {
        Layout { offset: if self.shape.elements() == 0 { 0 } else { offset }, ..self }
    }

    /// Whether no element of the storage between the view's first and last is left out or shown twice.
    #[inline]
    pub(crate) fn is_dense(&self) -> bool {
        self.contiguous || (self.span() == self.shape.elements() && !self.overlaps())
    }

    #[inline]
    pub(crate) fn is_contiguous(&self) -> bool {
        self.contiguous
    }

    /// Whether two indices may name the same storage element, as after `expand` and `unfold`.
    pub(crate) fn overlaps(&self) -> bool {
        !self.contiguous && meet(self.shape.iter().zip(self.strides()))
    }

    /// How many storage elements from `offset` on the view may touch.
    #[inline]
    pub(crate) fn span(&self) -> usize {
        if self.shape.elements() == 0 {
            return 0;
        }
        1 + self.shape.iter().zip(self.strides()).map(|(&size, &stride)| (size - 1) * stride).sum::<usize>()
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Layout {
        let (mut shape, mut strides) = (self.shape, [0; MAX_RANK]);
        for (to, &from) in order.iter().enumerate() {
            shape.set(to, self.shape[from]);
            strides[to] = self.strides[from];
        }
        Layout::strided(shape, strides, self.offset)
    }

    /// Indices `start, start + step, …` of one dimension, `len` of them; the caller checked that they exist.
    pub(crate) fn slice(&self, dim: usize, start: usize, len: usize, step: usize) -> Layout {
        let mut strides = self.strides;
        let offset = self.offset + if len == 0 { 0 } else { start * strides[dim] };
        strides[dim] = strides[dim].saturating_mul(step); // too large only where it is never used
        Layout::strided(self.shape.with(dim, len), strides, offset)
    }

    /// The elements at which the indices of two dimensions differ by `offset`, as the last dimension.
    pub(crate) fn diagonal(&self, [rows, columns]: [usize; 2], offset: isize) -> Layout {
        let (mut shape, mut strides) = (self.shape, self.strides);
        let [down, right] = [offset.min(0).unsigned_abs(), offset.max(0).unsigned_abs()];
        let len = shape[rows].saturating_sub(down).min(shape[columns].saturating_sub(right));
        let (step, start) = (strides[rows].saturating_add(strides[columns]), [down, right]);
        for dim in [rows.max(columns), rows.min(columns)] {
            shape.remove(dim);
            strides.copy_within(dim + 1.., dim);
        }
        let rank = shape.rank();
        let shape = shape.with_last(len);
        strides[rank] = step;
        // Where there is no such diagonal, its start may be outside.
        let from = if len == 0 { 0 } else { start[0] * self.strides[rows] + start[1] * self.strides[columns] };
        Layout::strided(shape, strides, self.offset + from)
    }

    /// Windows of `size` indices of one dimension, `step` apart, as the last dimension; the caller checked that they exist.
    pub(crate) fn unfold(&self, dim: usize, size: usize, step: usize) -> Result<Layout> {
        let mut shape = self.shape.with(dim, (self.shape[dim] - size) / step + 1);
        shape.push(size)?;
        let mut strides = self.strides;
        strides[self.shape.rank()] = strides[dim];
        strides[dim] = strides[dim].saturating_mul(step); // too large only where it is never used
        Ok(Layout::strided(shape, strides, self.offset))
    }

    /// The view without a dimension of size 1.
    pub(crate) fn remove(&self, dim: usize) -> Layout {
        let (mut shape, mut strides) = (self.shape, self.strides);
        shape.remove(dim);
        strides.copy_within(dim + 1.., dim);
        Layout::strided(shape, strides, self.offset)
    }

    /// The view with a new dimension of size 1.
    pub(crate) fn insert(&self, dim: usize) -> Result<Layout> {
        let (mut shape, mut strides) = (self.shape, self.strides);
        shape.insert(dim, 1)?;
        strides.copy_within(dim..MAX_RANK - 1, dim + 1);
        strides[dim] = 1;
        Ok(Layout::strided(shape, strides, self.offset))
    }

    /// Repeats dimensions of size 1, and adds new ones in front, without copying: their stride is 0.
    pub(crate) fn expand(&self, op: &'static str, to: &Shape) -> Result<Layout> {
        if *to == self.shape {
            return Ok(*self);
        }
        let mismatch = || {
            Error::wrong_shape(
                op,
                "the tensor",
                &self.shape,
                format!("to expand to {to}, sizes aligned at the end must be equal or 1"),
            )
        };
        let lead = to.rank().checked_sub(self.shape.rank()).ok_or_else(mismatch)?;
        let mut strides = [0; MAX_RANK];
        for dim in lead..to.rank() {
            let size = self.shape[dim - lead];
            match size {
                _ if size == to[dim] => strides[dim] = self.strides[dim - lead],
                1 => {}
                _ => return Err(mismatch()),
            }
        }
        Ok(Layout::strided(*to, strides, self.offset))
    }

    /// The same elements in the same order under another shape, if there are strides for that.
    ///
    /// Runs of dimensions that are contiguous among themselves are split and merged freely (the method of NumPy's
    /// `reshape` without copy and of PyTorch's `view`).
    pub(crate) fn reshape(&self, to: &Shape) -> Option<Layout> {
        if self.contiguous {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(*to) });
        }
        if to.elements() == 0 {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(*to) });
        }
        let mut strides = [1; MAX_RANK];
        let mut next = to.rank();
        let mut dim = self.shape.rank();
        while dim > 0 {
            // One run of source dimensions in which each stride is the inner stride times the inner size …
            dim -= 1;
            let run_stride = self.strides[dim];
            let mut run_size = self.shape[dim];
            while dim > 0 && (self.shape[dim - 1] == 1 || self.strides[dim - 1] == run_stride * run_size) {
                dim -= 1;
                run_size *= self.shape[dim];
            }
            // … must be a whole number of target dimensions.
            let mut filled = 1;
            while next > 0 && (filled < run_size || to[next - 1] == 1) {
                next -= 1;
                strides[next] = run_stride * filled;
                filled *= to[next];
            }
            if filled != run_size {
                return None;
            }
        }
        Some(Layout::strided(*to, strides, self.offset))
    }
}

/// Whether two indices may name one element, given the size and stride of each dimension. They cannot if every stride
/// exceeds the sum of the distances that the smaller strides span.
fn meet<'a>(dims: impl Iterator<Item = (&'a usize, &'a usize)>) -> bool {
    let reaches =
        dims.filter(|(size, _)| **size > 1).map(|(&size, &stride)| (stride, (size - 1).saturating_mul(stride)));
    let mut reaches: ArrayVec<(usize, usize), MAX_RANK> = reaches.collect();
    reaches.sort_unstable();
    let mut last = 0_usize;
    reaches.into_iter().any(|(stride, reach)| {
        let meets = stride <= last;
        last = last.saturating_add(reach);
        meets
    })
}

fn is_row_major(shape: &Shape, strides: &[usize; MAX_RANK]) -> bool {
    let mut step = 1;
    for dim in (0..shape.rank()).rev() {
        if shape[dim] == 0 {
            return true;
        }
        if shape[dim] != 1 {
            if strides[dim] != step {
                return false;
            }
            step *= shape[dim];
        }
    }
    true
}
