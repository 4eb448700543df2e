//! User-defined operations: a forward and its backward.
//!
//! A [`Function`] becomes one node of the graph, whatever its forward does inside: the forward runs under `no_grad`. A
//! backward written in tensor operations can be differentiated again.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use pagelock_memory::text::type_name;

use super::mode::{is_grad_enabled, no_grad};
use super::node::{GradFn, NodeRef};
use super::record::{SavedTensor, is_recorded};
use super::{audit, node};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::heap;
use crate::kind::Kind;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

/// An operation with a derivative of its own, on any number of tensors.
///
/// ```
/// # use pagelock_tensor::{Result, Tensor, autograd::{Context, Function}};
/// /// Passes values on, and gradients back with their sign changed.
/// struct Reverse;
///
/// impl Function for Reverse {
///     fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
///         Ok(inputs[0].clone())
///     }
///
///     fn backward(&self, _: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![Some(grad.neg()?)])
///     }
/// }
///
/// let x = Tensor::new([1.0, 2.0])?.set_requires_grad(true);
/// Reverse.apply(&[&x])?.sum(..)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [-1.0, -1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub trait Function: Send + Sync + Sized + 'static {
    /// Computes the result, outside the graph. Give [`Context::save`] what `backward` will need.
    ///
    /// # Errors
    /// Whatever [`Function::apply`] should fail with.
    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor>;

    /// Returns one gradient per input, shaped like the input; `grad` is the gradient of the result. `None` stands for
    /// a gradient that does not exist, or that is not needed according to [`Context::needs_input_grad`].
    ///
    /// # Errors
    /// Whatever `Tensor::backward` should fail with.
    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>>;

    /// The name in errors and audits: by default, that of the type.
    fn name(&self) -> &'static str {
        type_name::<Self>()
    }

    /// Runs `forward` and records the result.
    ///
    /// # Errors
    /// Those of `forward`; [`Error::InPlaceTracked`] if it changed an input whose gradient is wanted.
    fn apply(self, inputs: &[&Tensor]) -> Result<Tensor> {
        apply(self, inputs)
    }
}

/// What a [`Function`] keeps from its forward for its backward.
pub struct Context {
    op: &'static str,
    needs: Arc<[bool]>,
    saved: Vec<Saved>,
}

/// A saved tensor, and how second derivatives treat it.
#[derive(Clone)]
struct Saved {
    kept: SavedTensor,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// An input of `apply`: it keeps its node.
    Input,
    /// The result: it gets its node back for a backward, because storing the node here would be a reference cycle.
    Output,
    /// Made inside `forward`: nothing is known about how it depends on the inputs.
    Intermediate,
    /// Declared independent of the inputs.
    Constant,
}

impl Context {
    /// Keeps a tensor for `backward`: an input, the result, or, for first derivatives only, anything else.
    pub fn save<K: Kind>(&mut self, tensor: &Tensor<K>) {
        self.push(tensor, Role::Intermediate); // until `apply` has seen the result
    }

    /// Saves a tensor whose derivative with respect to the inputs is zero: a mask, say. Second derivatives treat it
    /// as a constant.
    pub fn save_constant<K: Kind>(&mut self, tensor: &Tensor<K>) {
        self.push(&tensor.clone().with_node(None), Role::Constant);
    }

    fn push<K: Kind>(&mut self, tensor: &Tensor<K>, role: Role) {
        self.saved.push(Saved { kept: SavedTensor::new(tensor.raw().clone()), role });
    }

    /// The tensor that call number `position` of `save` or `save_constant` saved, counted from 0.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such tensor of this kind, or a second derivative would need to know how it was
    /// made; [`Error::StaleSaved`] if it was changed in place since.
    pub fn saved<K: Kind>(&self, position: usize) -> Result<Tensor<K>> {
        let Some(saved) = self.saved.get(position).filter(|saved| K::holds(saved.kept.dtype())) else {
            return Err(self.not_saved(position, K::NAME));
        };
        let raw = saved.kept.get(self.op)?;
        if saved.role == Role::Intermediate && is_grad_enabled() {
            return Err(Error::Argument(format!(
                "{}: saved tensor {position} ({}) was made inside forward, where nothing is recorded, so it has no derivative of its own; save the inputs or the result instead, or use save_constant if it does not depend on the inputs",
                self.op,
                raw.shape()
            )));
        }
        Ok(raw.typed())
    }

    fn not_saved(&self, position: usize, kind: &'static str) -> Error {
        let saved: Vec<_> = self.saved.iter().map(|saved| saved.kept.dtype().name()).collect();
        let saved = if saved.is_empty() { "none".to_owned() } else { saved.join(", ") };
        Error::Argument(format!(
            "{}: there is no saved {kind} tensor {position}: forward saved {saved}; count the calls of save from 0",
            self.op
        ))
    }

    /// Whether the gradient of input number `i` is needed.
    pub fn needs_input_grad(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }
}

fn apply<F: Function>(function: F, inputs: &[&Tensor]) -> Result<Tensor> {
    let op = function.name();
    heap::check_for_node(op)?;
    let nodes = || inputs.iter().map(|input| input.node());
    let recorded = is_recorded(op, nodes(), DType::F32); // its result is a float
    let needs = nodes().map(|node| recorded && node.is_some()).collect();
    let mut context = Context { op, needs, saved: Vec::new() };
    let versions: Vec<u64> = inputs.iter().map(|input| input.version()).collect();
    let out = audit::without_cuts(nodes().flatten(), || no_grad(|| function.forward(&mut context, inputs)))?;
    let out = out.with_node(None);
    if !recorded {
        return Ok(out);
    }
    for (input, version) in inputs.iter().zip(versions) {
        if input.node().is_some() && input.version() != version {
            return Err(Error::InPlaceTracked { op, operand: "an input", shape: *input.shape() });
        }
    }
    assign_roles(&mut context.saved, inputs, &out);
    let node = FunctionNode {
        function: Some(function),
        edges: nodes().map(|node| node.cloned()).collect(),
        shapes: inputs.iter().map(|input| *input.shape()).collect(),
        saves: !context.saved.is_empty(),
        context: Mutex::new(Some(context)),
        op,
    };
    let node = NodeRef::new(out.dtype(), *out.shape(), node);
    Ok(out.with_node(Some(node)))
}

/// Finds out which saved tensors are inputs, and which is the result.
fn assign_roles(saved: &mut [Saved], inputs: &[&Tensor], out: &Tensor) {
    for saved in saved.iter_mut().filter(|saved| saved.role == Role::Intermediate) {
        let raw = saved.kept.raw();
        if inputs.iter().any(|input| raw.is_same_view(input.raw()) && same_node(raw, input.raw())) {
            saved.role = Role::Input;
        } else if raw.is_same_view(out.raw()) {
            saved.role = Role::Output;
            saved.kept.set_node(None);
        }
    }
}

fn same_node(a: &Raw, b: &Raw) -> bool {
    a.node.as_ref().map(|node| node.seq()) == b.node.as_ref().map(|node| node.seq())
}

/// The node of a [`Function`].
struct FunctionNode<F> {
    function: Option<F>, // `None` only while the node is dropped
    edges: Vec<Option<NodeRef>>,
    shapes: Vec<Shape>, // of the inputs
    saves: bool,
    context: Mutex<Option<Context>>, // emptied by a backward that does not retain the graph
    op: &'static str,
}

impl<F: Function> FunctionNode<F> {
    /// The context for one backward: a saved result has its node again.
    fn context(&self, this: &NodeRef) -> Result<Context> {
        let lock = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let (needs, mut saved) = match &*lock {
            Some(context) => (Arc::clone(&context.needs), context.saved.clone()),
            None if self.saves => return Err(Error::GraphFreed { op: self.op }),
            None => (self.edges.iter().map(Option::is_some).collect(), Vec::new()),
        };
        for saved in saved.iter_mut().filter(|saved| saved.role == Role::Output) {
            saved.kept.set_node(Some(this.clone()));
        }
        Ok(Context { op: self.op, needs, saved })
    }

    fn check(&self, gradients: &[Option<Tensor>]) -> Result<()> {
        if gradients.len() != self.edges.len() {
            return Err(Error::Argument(format!(
                "{}: backward returned {} gradients for {} inputs; return one per input, None where there is none",
                self.op,
                gradients.len(),
                self.edges.len()
            )));
        }
        for (gradient, expected) in gradients.iter().zip(&self.shapes) {
            if let Some(gradient) = gradient {
                node::check_grad(self.op, gradient.raw(), gradient.dtype(), expected)?;
            }
        }
        Ok(())
    }
}

impl<F: Function> GradFn for FunctionNode<F> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edges
    }

    fn backward(&self, this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        let Some(function) = &self.function else { unreachable!("no pass visits a node that is being dropped") };
        let gradients = function.backward(&self.context(this)?, &grad.typed())?;
        self.check(&gradients)?;
        for (input, gradient) in gradients.into_iter().enumerate() {
            if let Some(gradient) = gradient {
                send(input, gradient.into_raw())?;
            }
        }
        Ok(())
    }

    fn release(&self) {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(context); // after the lock
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edges.iter_mut().filter_map(Option::take));
        if let Some(context) = self.context.get_mut().unwrap_or_else(PoisonError::into_inner) {
            context.saved.iter_mut().for_each(|saved| saved.kept.take_link(links));
        }
    }

    fn take_rest(&mut self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.function.take()?))
    }
}
