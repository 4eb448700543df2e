//! Models called with other parameters and buffers than their own: PyTorch's `torch.func.functional_call` and
//! `stack_module_state`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::mem::swap;

use pagelock_tensor::func::Tree;
use pagelock_tensor::{self as tensor, AnyTensor, Bool, Error, Int, Kind, Tensor};

use crate::walk::{self, Of, OfMut, Visit, VisitMut};
use crate::{Misfit, Module, Parameter, Result, StateDict, VisitEvent, VisitEventMut, VisitorMut};

/// Calls `f` with the model while the tensors of `state` replace its parameters and buffers of the same names. All
/// others stay. Afterwards the model has its own tensors again, also after a panic.
///
/// Gradients flow to the tensors of `state`, so [`func`](pagelock_tensor::func) can differentiate a loss as a
/// function of them. A parameter that the model has in two places is replaced in both. A layer that changes a buffer
/// in place, such as a batch norm while training, changes the buffer in `state`.
///
/// # Examples
/// ```
/// use pagelock_nn::tensor::{Tensor, func};
/// use pagelock_nn::{Forward, Linear, Module, StateDict, functional_call};
///
/// let mut model = Linear::new(3, 1)?;
/// let (x, y) = (Tensor::randn([8, 3])?, Tensor::randn([8, 1])?);
/// let parameters: StateDict = model.named_parameters().into_iter().collect();
/// let (grads, loss) = func::grad_and_value(
///     |parameters| functional_call(&mut model, parameters, |model| (model.forward(&x)? - &y)?.pow(2.0)?.mean(..)),
///     &parameters,
/// )?;
/// assert_eq!(grads.names().collect::<Vec<_>>(), ["weight", "bias"]);
/// # assert!(loss.item::<f32>()? > 0.0 && model.weight.grad().is_none());
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] if the model lacks a name of `state`, a tensor has another shape or kind than the model's, or
/// `state` has different tensors for two names of one parameter; `f` is then not called. Otherwise those of `f`.
pub fn functional_call<M: Module, R>(
    model: &mut M,
    state: &StateDict,
    f: impl FnOnce(&M) -> tensor::Result<R>,
) -> tensor::Result<R> {
    let found = Found::new(&Of(model), state)?;
    let guard = ReplacementGuard::new(model, found);
    f(guard.model)
}

/// The parameters and the buffers of several models of one architecture, each stacked by name: PyTorch's
/// `stack_module_state`. [`vmap`](pagelock_tensor::func::vmap) over them runs all models.
///
/// # Examples
/// ```
/// use pagelock_nn::tensor::{Tensor, func};
/// use pagelock_nn::{Forward, Linear, functional_call, stack_module_state};
///
/// let mut models = [Linear::new(3, 2)?, Linear::new(3, 2)?];
/// let (parameters, _) = stack_module_state(&models)?;
/// assert_eq!(parameters.get("weight").unwrap().dims(), [2, 2, 3]);
/// let x = Tensor::ones([4, 3])?;
/// let both = func::vmap(|own| functional_call(&mut models[0], own, |model| model.forward(&x)), &parameters)?;
/// assert_eq!(both.dims(), [2, 4, 2]);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if there are no models, or their names differ;
/// [`Error::Tensor`](crate::Error::Tensor) if shapes, kinds or precisions differ.
pub fn stack_module_state<M: Module>(models: &[M]) -> Result<(StateDict, StateDict)> {
    let parameters = models.iter().map(|model| model.named_parameters().into_iter().collect()).collect();
    let buffers = models.iter().map(|model| model.named_buffers().into_iter().collect()).collect();
    Ok((stacked(parameters)?, stacked(buffers)?))
}

fn stacked(dicts: Vec<StateDict>) -> Result<StateDict> {
    let Some(first) = dicts.first() else {
        return Err(crate::Error::Argument("stack_module_state: there are no models; give at least one".to_owned()));
    };
    if let Some(index) = dicts.iter().position(|dict| !dict.names().eq(first.names())) {
        return Err(crate::Error::Argument(format!(
            "stack_module_state: model {index} has other names than the first; give models of one architecture"
        )));
    }
    let stack = |name: &str| {
        let all: Vec<&AnyTensor> = dicts.iter().filter_map(|dict| dict.get_any(name)).collect();
        Ok((name.to_owned(), AnyTensor::stack(&all, 0)?))
    };
    first.names().map(stack).collect()
}

/// The tensors of a dict, in its order.
impl Tree for StateDict {
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> tensor::Result<AnyTensor>) -> tensor::Result<Self> {
        self.iter().map(|(name, tensor)| Ok((name.to_owned(), f(tensor.clone())?))).collect()
    }
}

/// A parameter's elements, detached from the graph, as in a state dict.
impl From<Parameter> for AnyTensor {
    fn from(parameter: Parameter) -> AnyTensor {
        parameter.detach().into()
    }
}

/// The tensor that replaces a parameter or buffer; with `None` the model keeps its own.
enum Replacement {
    None,
    Parameter(Parameter),
    Buffer(Tensor),
    IntBuffer(Tensor<Int>),
    BoolBuffer(Tensor<Bool>),
}

/// A model whose tensors are replaced until this guard is dropped.
struct ReplacementGuard<'a, M: Module> {
    model: &'a mut M,
    replacements: Vec<Replacement>,
}

impl<'a, M: Module> ReplacementGuard<'a, M> {
    fn new(model: &'a mut M, found: Found) -> Self {
        let replacements = found.in_order_of(&mut OfMut(&mut *model));
        let mut guard = ReplacementGuard { model, replacements };
        exchange(&mut OfMut(&mut *guard.model), &mut guard.replacements);
        guard
    }
}

impl<M: Module> Drop for ReplacementGuard<'_, M> {
    fn drop(&mut self) {
        exchange(&mut OfMut(&mut *self.model), &mut self.replacements);
    }
}

/// Swaps the model's tensors with `replacements`, which are in the order of `visit_mut`.
fn exchange(module: VisitMut<'_>, replacements: &mut [Replacement]) {
    let mut replacements = replacements.iter_mut();
    module.visit_mut(&mut VisitorMut::new(&mut |event| match (event, replacements.next()) {
        (VisitEventMut::Parameter(own), Some(Replacement::Parameter(other))) => swap(own, other),
        (VisitEventMut::Buffer(own), Some(Replacement::Buffer(other))) => swap(own, other),
        (VisitEventMut::IntBuffer(own), Some(Replacement::IntBuffer(other))) => swap(own, other),
        (VisitEventMut::BoolBuffer(own), Some(Replacement::BoolBuffer(other))) => swap(own, other),
        _ => {}
    }));
}

/// The tensors of a state that replace those of a model.
struct Found {
    /// By the id of the model's parameter, with the first name under which the state has it.
    parameters: HashMap<*const (), (String, Parameter)>,
    /// In the order of the visit; with `None` the model keeps its own.
    buffers: Vec<Replacement>,
}

impl Found {
    fn new(visit: Visit<'_>, state: &StateDict) -> tensor::Result<Self> {
        state.check_names().map_err(|error| Error::Argument(error.to_string()))?;
        let mut fitting = Fitting { state, misfit: Misfit::default(), known: HashSet::new() };
        let (mut parameters, mut buffers, mut tied) = (HashMap::new(), Vec::new(), None);
        walk::walk(visit, &mut |name, event| match event {
            VisitEvent::Parameter(own) => {
                let Some(other) = fitting.find(name, &own.detach()) else { return };
                match parameters.entry(own.id()) {
                    Entry::Vacant(entry) => drop(entry.insert((name.to_owned(), Parameter::in_graph(other)))),
                    Entry::Occupied(first) if is_same(&first.get().1, &other) => {}
                    Entry::Occupied(first) => tied = Some((first.get().0.clone(), name.to_owned())),
                }
            }
            VisitEvent::Buffer(own) => {
                buffers.push(fitting.find(name, own).map_or(Replacement::None, Replacement::Buffer));
            }
            VisitEvent::IntBuffer(own) => {
                buffers.push(fitting.find(name, own).map_or(Replacement::None, Replacement::IntBuffer));
            }
            VisitEvent::BoolBuffer(own) => {
                buffers.push(fitting.find(name, own).map_or(Replacement::None, Replacement::BoolBuffer));
            }
            _ => {}
        });
        fitting.finish()?;
        match tied {
            None => Ok(Self { parameters, buffers }),
            Some((first, second)) => Err(Error::Argument(format!(
                "functional_call: `{first}` and `{second}` are one parameter of the model, which was not called, but \
                 the state has different tensors for them; give one of them, or the same tensor twice"
            ))),
        }
    }

    /// The replacements in the order of `visit_mut`, which may report parameters in another order than `visit`.
    fn in_order_of(self, module: VisitMut<'_>) -> Vec<Replacement> {
        let (mut buffers, mut replacements) = (self.buffers.into_iter(), Vec::new());
        module.visit_mut(&mut VisitorMut::new(&mut |event| {
            replacements.push(match event {
                VisitEventMut::Parameter(own) => {
                    let found = self.parameters.get(&own.id());
                    found.map_or(Replacement::None, |(_, other)| Replacement::Parameter(other.clone()))
                }
                _ => buffers.next().unwrap_or(Replacement::None),
            });
        }));
        replacements
    }
}

/// Whether two tensors of one shape have the same elements in memory.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    let [a, b] = [a, b].map(AnyTensor::from);
    (a.storage_id(), a.storage_offset(), a.strides()) == (b.storage_id(), b.storage_offset(), b.strides())
}

/// Compares a state with a model.
struct Fitting<'a> {
    state: &'a StateDict,
    misfit: Misfit,
    known: HashSet<String>,
}

impl Fitting<'_> {
    /// The tensor of the state under `name`, if it has the shape and kind of `own`. Otherwise notes the misfit.
    fn find<K: Kind>(&mut self, name: &str, own: &Tensor<K>) -> Option<Tensor<K>> {
        self.known.insert(name.to_owned());
        let other = self.state.get_any(name)?;
        if other.shape() != own.shape() {
            self.misfit.misshapen.push((name.to_owned(), *other.shape(), *own.shape()));
            return None;
        }
        let fits = other.kind().ok();
        if fits.is_none() {
            self.misfit.mistyped.push((name.to_owned(), other.dtype(), own.dtype()));
        }
        fits
    }

    fn finish(mut self) -> tensor::Result<()> {
        let unknown = self.state.names().filter(|name| !self.known.contains(*name));
        self.misfit.unexpected = unknown.map(str::to_owned).collect();
        if self.misfit.is_empty() {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "functional_call: the state does not fit the model, which was not called: {}; give tensors of the names, shapes and \
             kinds of the model's state_dict",
            self.misfit
        )))
    }
}
