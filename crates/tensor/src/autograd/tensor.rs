//! The methods of tensors that concern gradients.

use std::sync::Arc;

use super::audit::{CutBy, note_cut};
use super::engine::{self, Options, RootGradient};
use super::node::NodeRef;
use crate::error::{Error, Result};
use crate::tensor::{Raw, Tensor};

/// How [`Tensor::backward_with`] and [`grad`] walk the graph.
#[derive(Clone, Default)]
pub struct Backward {
    /// The gradient to start from, shaped like the tensor; `None` means 1, for a tensor that is one number.
    pub gradient: Option<Tensor>,
    /// Keep saved tensors, so that the same graph can be walked again.
    pub retain_graph: bool,
    /// Record the derivatives, so that they can be differentiated (implies `retain_graph`).
    ///
    /// Gradients that [`Tensor::backward_with`] then stores in leaves have graphs that lead back to these leaves:
    /// such a leaf is freed only after [`Tensor::zero_grad`]. [`grad`] returns gradients instead of storing them.
    pub create_graph: bool,
}

impl Backward {
    fn engine_options(&self) -> Options {
        Options { retain_graph: self.retain_graph || self.create_graph, create_graph: self.create_graph }
    }
}

impl Tensor {
    /// This tensor as a leaf whose gradient is wanted (`true`), or cut off from the graph (`false`).
    ///
    /// A tensor that requires grad already is returned as it is. Other handles to the same elements are not changed.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let w = Tensor::new([2.0, 3.0])?.set_requires_grad(true);
    /// (&w * &w)?.sum(..)?.backward()?;
    /// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [4.0, 6.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn set_requires_grad(self, requires_grad: bool) -> Tensor {
        match (requires_grad, self.requires_grad()) {
            (true, false) => {
                let leaf = NodeRef::leaf(self.dtype(), *self.shape());
                self.with_node(Some(leaf))
            }
            (false, true) => {
                note_cut("set_requires_grad", CutBy::Itself, self.node().into_iter());
                self.with_node(None)
            }
            _ => self,
        }
    }

    /// Whether operations on this tensor are recorded.
    pub fn requires_grad(&self) -> bool {
        self.node().is_some()
    }

    /// Whether this tensor was made by the user rather than by a recorded operation.
    pub fn is_leaf(&self) -> bool {
        self.node().is_none_or(|node| node.is_leaf())
    }

    /// The operation that made this tensor, if it was recorded: `"matmul"`, say.
    pub fn grad_fn(&self) -> Option<&'static str> {
        self.node().filter(|node| !node.is_leaf()).map(|node| node.name())
    }

    /// The same elements outside the graph: no gradient flows through the result.
    #[must_use]
    pub fn detach(&self) -> Tensor {
        if let Some(node) = self.node() {
            note_cut("detach", CutBy::Itself, [node].into_iter());
        }
        self.clone().with_node(None)
    }

    /// The gradient that `backward` stored in this tensor.
    pub fn grad(&self) -> Option<Tensor> {
        self.node().and_then(|node| node.grad()).map(Raw::typed)
    }

    /// Replaces the gradient. Later changes in place, such as clipping, change the elements of `grad` itself. Only a
    /// `grad` whose elements share memory, as those of an expanded tensor, is copied.
    ///
    /// # Errors
    /// [`Error::Argument`] if its shape or precision is not the tensor's; [`Error::NoGraph`] if the tensor does not
    /// require grad; [`Error::Memory`] if a copy does not fit the budget.
    pub fn set_grad(&self, mut grad: Option<Tensor>) -> Result<()> {
        let node = self.tracked("set_grad")?;
        if let Some(grad) = &mut grad {
            node.check_grad("set_grad", grad.raw())?;
            if grad.layout().overlaps() {
                *grad = grad.contiguous()?;
            }
        }
        drop(node.replace_grad(grad.map(Tensor::into_raw)));
        Ok(())
    }

    /// Removes the gradient, if there is one.
    pub fn zero_grad(&self) {
        if let Some(node) = self.node() {
            drop(node.replace_grad(None));
        }
    }

    /// Makes `backward` store a gradient in this tensor although it is not a leaf.
    pub fn retain_grad(&self) {
        if let Some(node) = self.node() {
            node.keep_grad();
        }
    }

    /// Calls `hook` with this tensor's gradient in every `backward`. A gradient that the hook returns replaces it.
    ///
    /// # Errors
    /// [`Error::NoGraph`] if the tensor does not require grad. An error of the hook becomes the error of the
    /// `backward`.
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let node = self.tracked("register_hook")?.clone();
        let id = node.add_hook(Arc::new(move |grad: Raw| {
            let grad = grad.typed();
            Ok(hook(&grad)?.unwrap_or(grad).into_raw())
        }));
        Ok(HookHandle { node, id })
    }

    /// Computes the gradient of this one number with respect to every leaf that it depends on, and adds it to the
    /// leaf's [`Tensor::grad`]. If several threads add to the gradient of one leaf, they do it in the order in which
    /// they get there, so the bits of the sum may differ from run to run.
    ///
    /// # Errors
    /// [`Error::Argument`] if the tensor is not one number; [`Error::NoGraph`] if it does not require grad;
    /// [`Error::GraphFreed`] when called twice; [`Error::StaleSaved`] if a tensor that it needs was changed in place.
    /// On an error no leaf's gradient is changed.
    pub fn backward(&self) -> Result<()> {
        self.backward_with(Backward::default())
    }

    /// [`Tensor::backward`] with a gradient to start from, or for a graph that is walked again.
    ///
    /// # Errors
    /// As [`Tensor::backward`].
    pub fn backward_with(&self, options: Backward) -> Result<()> {
        let node = self.tracked("backward")?;
        let engine_options = options.engine_options();
        let start = match options.gradient {
            None if self.rank() == 0 => RootGradient::One(&|| Ok(self.ones_like()?.into_raw())),
            given => RootGradient::Given(self.start_gradient(given)?),
        };
        engine::backward(node, start, engine_options)
    }

    fn tracked(&self, op: &'static str) -> Result<&NodeRef> {
        self.node().ok_or(Error::NoGraph { op, shape: *self.shape() })
    }

    fn start_gradient(&self, given: Option<Tensor>) -> Result<Raw> {
        let gradient = match given {
            Some(gradient) => gradient,
            None if self.len() == 1 => self.ones_like()?,
            None => {
                return Err(Error::Argument(format!(
                    "backward: {} is not one number; reduce it (sum, mean) or give Backward::gradient of that shape",
                    self.shape()
                )));
            }
        };
        Ok(gradient.into_raw())
    }
}

/// The gradients of the sum of `outputs` with respect to `inputs`, leaving [`Tensor::grad`] alone; `None` for an input that
/// no output depends on.
///
/// ```
/// # use pagelock_tensor::{Tensor, autograd::{self, Backward}};
/// let x = Tensor::new([3.0])?.set_requires_grad(true);
/// let y = x.pow(3.0)?;
/// let first = autograd::grad(&[&y], &[&x], Backward { create_graph: true, ..Backward::default() })?.remove(0).unwrap();
/// let second = autograd::grad(&[&first], &[&x], Backward::default())?.remove(0).unwrap();
/// assert_eq!([first.item::<f32>()?, second.item()?], [27.0, 18.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::backward`]; [`Error::NoGraph`] if an input does not require grad.
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: Backward) -> Result<Vec<Option<Tensor>>> {
    let engine_options = options.engine_options();
    let mut roots = Vec::with_capacity(outputs.len());
    for output in outputs {
        let node = output.tracked("grad")?.clone();
        roots.push((node, output.start_gradient(options.gradient.clone())?));
    }
    let targets = inputs.iter().map(|input| input.tracked("grad").cloned()).collect::<Result<Vec<NodeRef>>>()?;
    let found = engine::gradients(roots, &targets, engine_options)?;
    Ok(found.into_iter().map(|grad| grad.map(Raw::typed)).collect())
}

/// A registered hook. [`HookHandle::remove`] removes it; dropping the handle does not.
pub struct HookHandle {
    node: NodeRef,
    id: u64,
}

impl HookHandle {
    /// Removes the hook.
    pub fn remove(self) {
        self.node.remove_hook(self.id);
    }
}
