//! [`Tree`]: tensors in a structure, PyTorch's pytrees.

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::map::AnyTensor;
use crate::tensor::Tensor;

/// Tensors in a structure: a tensor, a tuple of up to four, an array, or a `Vec` of them. State dicts of
/// `pagelock-nn` are trees, too.
///
/// The order in which a tree visits its tensors is always the same.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a structure of tensors",
    label = "neither a tensor, nor a tuple, an array or a `Vec` of tensors",
    note = "give clones of tensors, which are handles: `&(w.clone(), b.clone())`; let the closure capture what is not differentiated"
)]
pub trait Tree: Clone {
    /// A structure like this one in which `f` has replaced each tensor.
    ///
    /// # Errors
    /// The first error of `f`; [`Error::ElementType`] if `f` returns a tensor of another kind.
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self>;
}

impl<K: Kind> Tree for Tensor<K> {
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
        f(self.into())?.kind()
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
        self.iter().map(|tree| tree.map(f)).collect()
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
        let mut all = self.clone();
        all.iter_mut().try_for_each(|tree| {
            *tree = Tree::map(tree, f)?;
            Ok(())
        })?;
        Ok(all)
    }
}

macro_rules! tuples {
    ($(($($A:ident $index:tt)*))*) => { $(
        impl<$($A: Tree),*> Tree for ($($A,)*) {
            fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
                Ok(($(self.$index.map(f)?,)*))
            }
        }
    )* };
}

tuples! { (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) }

/// The tensors in order.
pub(super) fn leaves(tree: &impl Tree) -> Result<Vec<AnyTensor>> {
    let mut all = Vec::new();
    tree.map(&mut |leaf| {
        all.push(leaf.clone());
        Ok(leaf)
    })?;
    Ok(all)
}

/// The tensors in order, all of which hold floats.
pub(super) fn float_leaves(op: &'static str, tree: &impl Tree) -> Result<Vec<Tensor>> {
    floats(op, &leaves(tree)?)
}

pub(super) fn floats(op: &'static str, leaves: &[AnyTensor]) -> Result<Vec<Tensor>> {
    let float = |(index, leaf): (usize, &AnyTensor)| {
        leaf.float().map_err(|_| {
            let (dtype, shape) = (leaf.dtype(), leaf.shape());
            Error::Argument(format!(
                "{op}: tensor {index} is {dtype} {shape}, which has no derivative; capture it in the function instead of passing it"
            ))
        })
    };
    leaves.iter().enumerate().map(float).collect()
}

/// A structure like `tree` that holds `leaves`.
pub(super) fn rebuilt<T: Tree>(tree: &T, leaves: &mut dyn Iterator<Item = AnyTensor>) -> Result<T> {
    let more = || Error::Argument("Tree::map visits more tensors than before; let it visit each tensor once".into());
    tree.map(&mut |_| leaves.next().ok_or_else(more))
}

pub(super) fn rebuilt_floats<T: Tree>(tree: &T, leaves: &[Tensor]) -> Result<T> {
    rebuilt(tree, &mut leaves.iter().map(AnyTensor::from))
}
