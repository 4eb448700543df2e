//! [`NestedArray`]: arrays of arrays of numbers, as they are written in a program.

use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::Raw;

/// Nested arrays, slices and vectors of numbers: `[[1.0, 2.0], [3.0, 4.0]]`.
pub trait NestedArray {
    /// The type of the numbers.
    #[doc(hidden)]
    type Element: Element;
    /// Appends the sizes, outermost first.
    #[doc(hidden)]
    fn sizes(&self, sizes: &mut Vec<usize>);
    /// Every row must have the sizes given.
    #[doc(hidden)]
    fn check(&self, sizes: &[usize]) -> Result<()>;
    /// Appends the elements, row-major.
    #[doc(hidden)]
    fn elements(&self, out: &mut Vec<Self::Element>);
}

impl<T: Element> NestedArray for T {
    type Element = T;

    fn sizes(&self, _: &mut Vec<usize>) {}

    fn check(&self, _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn elements(&self, out: &mut Vec<T>) {
        out.push(*self);
    }
}

impl<A: NestedArray> NestedArray for [A] {
    type Element = A::Element;

    fn sizes(&self, sizes: &mut Vec<usize>) {
        sizes.push(self.len());
        if let Some(first) = self.first() {
            first.sizes(sizes);
        }
    }

    fn check(&self, sizes: &[usize]) -> Result<()> {
        for row in self {
            let mut row_sizes = Vec::new();
            row.sizes(&mut row_sizes);
            if row_sizes != sizes[1..] {
                return Err(Error::Argument(format!(
                    "new: rows of a nested array differ in length: {:?} and {row_sizes:?}; pad or cut them to the \
                     same length",
                    &sizes[1..]
                )));
            }
            row.check(&sizes[1..])?;
        }
        Ok(())
    }

    fn elements(&self, out: &mut Vec<A::Element>) {
        self.iter().for_each(|row| row.elements(out));
    }
}

macro_rules! nested_like_slice {
    ($type:ty $(, const $n:ident)?) => {
        impl<A: NestedArray $(, const $n: usize)?> NestedArray for $type {
            type Element = A::Element;

            fn sizes(&self, sizes: &mut Vec<usize>) {
                self[..].sizes(sizes);
            }

            fn check(&self, sizes: &[usize]) -> Result<()> {
                self[..].check(sizes)
            }

            fn elements(&self, out: &mut Vec<A::Element>) {
                self[..].elements(out);
            }
        }
    };
}

nested_like_slice!([A; N], const N);
nested_like_slice!(Vec<A>);
nested_like_slice!(&[A]);

/// A tensor of nested arrays, of type `dtype`.
pub(super) fn nested<A: NestedArray>(data: &A, dtype: DType) -> Result<Raw> {
    let mut sizes = Vec::new();
    data.sizes(&mut sizes);
    data.check(&sizes)?;
    let shape = Shape::new(&sizes)?;
    shape.check_size()?;
    let bytes = shape.elements().saturating_mul(size_of::<A::Element>());
    let _counted = crate::heap::reserve("new", "nested arrays", bytes)?;
    let mut elements = Vec::with_capacity(shape.elements());
    data.elements(&mut elements);
    let out = Fresh::allocate("new", shape, dtype)?;
    Ok(out.converted(A::Element::DTYPE, bytemuck::cast_slice(&elements)).share())
}
