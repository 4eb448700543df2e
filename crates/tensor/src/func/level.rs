//! The computations of [`func`](super), compiled once for all functions.
//!
//! A [`Level`] gives a function inputs with nodes of their own. An outside tensor that requires grad is passed as a
//! view of itself, so that this level's derivative stops at the view, while the recorded graph continues to the
//! tensor. All nodes of the level have larger numbers than those outside. These numbers tell the engine where to
//! stop, and [`Level::run`] whether the result depends on an outside tensor that requires grad. Only then are
//! derivatives recorded.

use std::collections::HashSet;

use super::tree::floats;
use crate::autograd::NodeRef;
use crate::autograd::{Options, enable_grad, gradients, is_grad_enabled};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::map::AnyTensor;
use crate::op::{View, apply_view};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

/// A function of tensors.
type Function<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>;

/// Inputs at which a function is differentiated.
pub(super) struct Level {
    op: &'static str,
    /// The inputs of the function, with nodes of their own.
    inputs: Vec<Tensor>,
    nodes: Vec<NodeRef>,
    /// Whether operations outside are recorded.
    outer_records: bool,
}

/// A function that ran.
pub(super) struct Pass {
    level: Level,
    outputs: Vec<Tensor>,
    /// Whether the outputs depend on an outside tensor whose derivative may be requested.
    records: bool,
}

impl Level {
    pub(super) fn new(op: &'static str, inputs: &[AnyTensor]) -> Result<Level> {
        let outer_records = is_grad_enabled();
        let tracked = |input: Tensor| match outer_records && input.requires_grad() {
            true => apply_view(Alias, &input),
            false => {
                let leaf = NodeRef::leaf(input.dtype(), *input.shape());
                Ok(input.with_node(Some(leaf)))
            }
        };
        let inputs = floats(op, inputs)?.into_iter().map(tracked).collect::<Result<Vec<_>>>()?;
        let nodes = inputs.iter().filter_map(|input| input.node().cloned()).collect();
        Ok(Level { op, inputs, nodes, outer_records })
    }

    pub(super) fn run(self, f: Function<'_>) -> Result<Pass> {
        let outputs = enable_grad(|| f(&self.inputs))?;
        let records = self.outer_records && leads_outside(outputs.iter().filter_map(Tensor::node), self.oldest());
        Ok(Pass { level: self, outputs, records })
    }

    /// The number of the level's first node.
    fn oldest(&self) -> u64 {
        self.nodes.iter().map(|node| node.seq()).min().unwrap_or(u64::MAX)
    }
}

/// Whether any of the nodes depends on a node before `oldest`.
fn leads_outside<'a>(from: impl Iterator<Item = &'a NodeRef>, oldest: u64) -> bool {
    let mut open: Vec<&NodeRef> = from.collect();
    let mut seen = HashSet::new();
    while let Some(node) = open.pop() {
        if node.seq() < oldest {
            return true;
        }
        if seen.insert(node.seq()) {
            open.extend(node.function().edges().iter().flatten());
        }
    }
    false
}

impl Pass {
    /// The function's results. They have no graph if they depend on no outside tensor that requires grad.
    pub(super) fn values(&self) -> Vec<Tensor> {
        let value = |output: &Tensor| if self.records { output.clone() } else { output.clone().with_node(None) };
        self.outputs.iter().map(value).collect()
    }

    /// The product of cotangents and the Jacobian; keeps the graph.
    pub(super) fn backward(&self, cotangents: &[Tensor]) -> Result<Vec<Tensor>> {
        check_like(self.level.op, ["cotangent", "result"], cotangents, &self.outputs)?;
        let create_graph = self.records || (is_grad_enabled() && cotangents.iter().any(Tensor::requires_grad));
        self.product(cotangents, Options { retain_graph: true, create_graph })
    }

    fn product(&self, cotangents: &[Tensor], options: Options) -> Result<Vec<Tensor>> {
        let found = products(&self.outputs, cotangents, &self.level.nodes, options)?;
        self.or_zeros(found)
    }

    /// Zeros for inputs that nothing depends on.
    fn or_zeros(&self, found: Vec<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let all = found.into_iter().zip(&self.level.inputs);
        all.map(|(grad, input)| grad.map_or_else(|| input.zeros_like(), Ok)).collect()
    }

    /// Prepares derivatives along directions: records how the product of cotangents and the Jacobian depends on the cotangents.
    pub(super) fn forward(&self) -> Result<Forward<'_>> {
        let cotangent = |output: &Tensor| Ok(output.zeros_like()?.set_requires_grad(true));
        let cotangents = self.outputs.iter().map(cotangent).collect::<Result<Vec<_>>>()?;
        let options = Options { retain_graph: true, create_graph: true };
        let grads = products(&self.outputs, &cotangents, &self.level.nodes, options)?;
        Ok(Forward { pass: self, cotangents, grads })
    }

    /// The result of a function that returns one tensor.
    fn output(&self) -> &Tensor {
        let [output] = &self.outputs[..] else { unreachable!("the function returns one tensor") };
        output
    }

    /// The Jacobian for each input: a row for each element of the result.
    pub(super) fn rows(&self) -> Result<Vec<Tensor>> {
        let output = self.output();
        let rows = (0..output.len()).map(|row| self.backward(&[unit_like(output, row)?]));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let jacobian = |(index, input): (usize, &Tensor)| {
            let shape = joined(output.shape(), input.shape())?;
            match rows.len() {
                0 => zeros_on(input, shape),
                _ => Tensor::stack(&Vec::from_iter(rows.iter().map(|row| &row[index])), 0)?.reshape_to(shape),
            }
        };
        self.level.inputs.iter().enumerate().map(jacobian).collect()
    }

    /// Like [`rows`](Self::rows), but computed by columns: one for each element of the inputs.
    pub(super) fn columns(&self) -> Result<Vec<Tensor>> {
        let (output, forward) = (self.output(), self.forward()?);
        let mut tangents = self.level.inputs.iter().map(Tensor::zeros_like).collect::<Result<Vec<_>>>()?;
        let mut jacobians = Vec::with_capacity(tangents.len());
        for (index, input) in self.level.inputs.iter().enumerate() {
            let mut columns = Vec::with_capacity(input.len());
            for column in 0..input.len() {
                tangents[index] = unit_like(input, column)?;
                columns.extend(forward.along(&tangents)?);
            }
            tangents[index] = input.zeros_like()?;
            let shape = joined(output.shape(), input.shape())?;
            jacobians.push(match columns.len() {
                0 => zeros_on(input, shape)?,
                _ => Tensor::stack(&columns, -1)?.reshape_to(shape)?,
            });
        }
        Ok(jacobians)
    }
}

/// A function that ran, ready for derivatives along directions.
pub(super) struct Forward<'a> {
    pass: &'a Pass,
    /// Zeros, of which `grads` are linear functions.
    cotangents: Vec<Tensor>,
    grads: Vec<Option<Tensor>>,
}

impl Forward<'_> {
    /// The product of the Jacobian and tangents.
    pub(super) fn along(&self, tangents: &[Tensor]) -> Result<Vec<Tensor>> {
        check_like(self.pass.level.op, ["tangent", "input"], tangents, &self.pass.level.inputs)?;
        let create_graph = self.pass.records || (is_grad_enabled() && tangents.iter().any(Tensor::requires_grad));
        let (grads, tangents): (Vec<_>, Vec<_>) =
            self.grads.iter().zip(tangents).filter_map(|(grad, along)| Some((grad.clone()?, along.clone()))).unzip();
        let nodes: Vec<NodeRef> = self.cotangents.iter().filter_map(|zeros| zeros.node().cloned()).collect();
        let found = products(&grads, &tangents, &nodes, Options { retain_graph: true, create_graph })?;
        let along = found.into_iter().zip(&self.cotangents);
        along.map(|(along, zeros)| along.map_or_else(|| zeros.zeros_like(), Ok)).collect()
    }
}

/// The gradients at `targets`, given the gradients (`cotangents`) of the results; `None` where no result depends on a
/// target.
fn products(
    results: &[Tensor],
    cotangents: &[Tensor],
    targets: &[NodeRef],
    options: Options,
) -> Result<Vec<Option<Tensor>>> {
    let oldest = targets.iter().map(|target| target.seq()).min().unwrap_or(u64::MAX);
    let roots = results.iter().zip(cotangents).filter_map(|(result, cotangent)| {
        let node = result.node().filter(|node| node.seq() >= oldest)?;
        Some((node.clone(), cotangent.raw().clone()))
    });
    let found = gradients(roots.collect(), targets, options)?;
    Ok(found.into_iter().map(|grad| grad.map(Raw::typed)).collect())
}

/// [`grad_and_value`](super::grad_and_value).
pub(super) fn gradient(op: &'static str, inputs: &[AnyTensor], f: Function<'_>) -> Result<(Vec<Tensor>, Tensor)> {
    let pass = Level::new(op, inputs)?.run(f)?;
    let output = pass.output();
    if output.len() != 1 {
        return Err(Error::Argument(format!(
            "{op}: the function returned {}, not one number; reduce it (sum, mean), or use jacrev",
            output.shape()
        )));
    }
    // As in `backward`, saved tensors are freed on the way.
    let options = Options { retain_graph: pass.records, create_graph: pass.records };
    let grads = pass.product(&[output.ones_like()?], options)?;
    Ok((grads, pass.values().remove(0)))
}

/// [`hessian`](super::hessian): the Jacobian of the Jacobian.
pub(super) fn hessian(input: &Tensor, f: &mut dyn FnMut(&[Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    let mut jacobian = |given: &[Tensor]| {
        let given: Vec<AnyTensor> = given.iter().map(AnyTensor::from).collect();
        Level::new("hessian", &given)?.run(&mut |given| Ok(vec![f(given)?]))?.rows()
    };
    Ok(Level::new("hessian", &[input.into()])?.run(&mut jacobian)?.rows()?.remove(0))
}

/// Checks that there is one vector for each tensor, of the same shape.
fn check_like(op: &'static str, [vector, tensor]: [&str; 2], given: &[Tensor], like: &[Tensor]) -> Result<()> {
    if given.len() != like.len() {
        let (n, expected) = (given.len(), like.len());
        return Err(Error::Argument(format!(
            "{op}: {n} {vector}s were given for {expected} {tensor}s; give one for each"
        )));
    }
    match given.iter().zip(like).position(|(given, like)| given.shape() != like.shape()) {
        None => Ok(()),
        Some(index) => Err(Error::Argument(format!(
            "{op}: {vector} {index} is {}, but the {tensor} is {}; give one of the same shape",
            given[index].shape(),
            like[index].shape()
        ))),
    }
}

/// Zeros, and 1 at one element in row-major order.
fn unit_like(tensor: &Tensor, element: usize) -> Result<Tensor> {
    let unit = zeros_on(tensor, *tensor.shape())?;
    unit.reshape_to(Shape::new(&[tensor.len()])?)?.narrow(0, element, 1)?.fill_(1.0)?;
    Ok(unit)
}

/// Zeros in the precision of a tensor, where it is.
fn zeros_on(like: &Tensor, shape: Shape) -> Result<Tensor> {
    Tensor::on(&like.device()).of(like.dtype()).zeros(shape)
}

fn joined(outer: &Shape, inner: &Shape) -> Result<Shape> {
    Shape::new(&[&outer[..], &inner[..]].concat())
}

/// A view of the whole tensor, with a node of its own.
struct Alias;

impl View for Alias {
    const NAME: &'static str = "alias";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(*input)
    }

    fn backward(&self, _: &Shape, grad: &Tensor) -> Result<Tensor> {
        Ok(grad.clone())
    }
}
