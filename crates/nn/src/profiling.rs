//! Modules in profiles and graphs: which module an operation belongs to, and what its path is.
//!
//! A layer reports its call with [`module_scope`]. A [`Sequential`](crate::Sequential) reports the calls of its
//! children, with their positions. Paths of other modules are found by their addresses, which [`module_names`]
//! collects.

use crate::module::VisitEvent;
use crate::walk::{Of, Visit, walk};
use crate::{Forward, Layer, Module};
use pagelock_tensor::profiler::{self, GraphRecorder, ModuleNames, RecordedGraph, Running};
use pagelock_tensor::{Result, Tensor};

/// Enters a module until the result is dropped: in profiles and graphs, operations belong to it. The layers of this
/// crate call this themselves. Call it in a module of your own if its operations should not belong to the enclosing
/// module.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, Module, module_names, module_scope};
/// use pagelock_tensor::{Result, Tensor, profiler::Profiler};
///
/// #[derive(Module)]
/// struct Residual {
///     linear: Linear,
/// }
///
/// impl Forward for Residual {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let _scope = module_scope(self);
///         self.linear.forward(x)? + x
///     }
/// }
///
/// let model = Residual { linear: Linear::new(2, 2)? };
/// let x = Tensor::zeros([1, 2])?;
/// let profile = Profiler::new().with_modules(module_names(&model)).profile(|| model.forward(&x).map(drop))?;
/// let table = profile.key_averages_by_module();
/// let module_of = |key| table.get(key).and_then(|row| row.module.as_deref());
/// assert_eq!((module_of("linear"), module_of("add")), (Some("linear (Linear)"), Some("(Residual)")));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[inline]
pub fn module_scope<M: Module + ?Sized>(module: &M) -> Running {
    profiler::module_scope(address(module), None, &|| module.title())
}

/// Enters a layer of a list.
#[inline]
pub(crate) fn child_scope(layer: &dyn Layer, position: usize) -> Running {
    profiler::module_scope(address(layer), Some(position), &|| layer.title())
}

/// The names of a model's modules, for [`Profiler::with_modules`](profiler::Profiler::with_modules).
///
/// # Examples
/// See [`module_scope`].
pub fn module_names<M: Module + ?Sized>(model: &M) -> ModuleNames<'_> {
    names(&Of(model), address(model), model.title())
}

/// The operations of `model.forward(input)` as a graph, for `add_graph` of `pagelock-board`: with the model's
/// modules, parameters and buffers. Unused ones are left out. In a `Sequential`, a `ReLU` belongs to the layer before
/// it, which computes both.
///
/// # Errors
/// The errors of the forward, and of [`GraphRecorder::record`].
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, ReLU, Sequential, record_graph};
/// use pagelock_tensor::Tensor;
///
/// let model = Sequential::new((Linear::new(3, 2)?, ReLU));
/// let graph = record_graph(&model, &Tensor::zeros([4, 3])?)?;
/// let names: Vec<_> = graph.nodes.iter().map(|node| &*node.name).collect();
/// assert!(names.contains(&"Sequential/Linear[0]/weight") && names.contains(&"Sequential/Linear[0]/relu"), "{names:?}");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn record_graph<M: Module + Forward + ?Sized>(model: &M, input: &Tensor) -> Result<RecordedGraph> {
    graph(&Of(model), module_names(model), &model.title(), input, &|| {
        let _scope = module_scope(model);
        model.forward(input)
    })
}

fn address<M: ?Sized>(module: &M) -> usize {
    std::ptr::from_ref(module).cast::<()>().addr()
}

fn names<'m>(visit: Visit<'_>, address: usize, title: String) -> ModuleNames<'m> {
    let mut names = ModuleNames::new();
    let root = title.clone();
    names.add(address, title, "", root.clone());
    each_module(visit, &root, &mut |path, ModulePath { title, graph }, event| {
        let address = match event {
            VisitEvent::Enter { module, .. } => self::address(module),
            VisitEvent::Inside { address } => address,
            _ => return,
        };
        names.add(address, title.clone(), path, graph.clone());
    });
    names
}

fn graph(
    visit: Visit<'_>,
    names: ModuleNames<'_>,
    root: &str,
    input: &Tensor,
    forward: &dyn Fn() -> Result<Tensor>,
) -> Result<RecordedGraph> {
    let mut recorder = GraphRecorder::new().with_modules(names);
    recorder.input("input", input);
    each_module(visit, root, &mut |_, ModulePath { graph, .. }, event| match event {
        VisitEvent::Parameter(parameter) => recorder.parameter(graph, parameter.as_tensor()),
        VisitEvent::Buffer(buffer) => recorder.parameter(graph, buffer),
        VisitEvent::IntBuffer(buffer) => recorder.parameter(graph, buffer),
        VisitEvent::BoolBuffer(buffer) => recorder.parameter(graph, buffer),
        _ => {}
    });
    recorder.record(forward)
}

/// A module that the traversal is in.
struct ModulePath {
    title: String,
    /// `Net/Sequential[layers]/Conv2d[0]`; a module without a title, such as a parameter, appears by its name alone.
    graph: String,
}

/// Traverses a model whose type is `root`, and passes each event to `report` with the dotted path and the place of the
/// module.
fn each_module(visit: Visit<'_>, root: &str, report: &mut dyn FnMut(&str, &ModulePath, VisitEvent<'_>)) {
    let mut stack = vec![ModulePath { title: root.to_owned(), graph: root.to_owned() }];
    walk(visit, &mut |path, event| {
        if let VisitEvent::Leave = event {
            stack.pop();
            return;
        }
        if let VisitEvent::Enter { name, module } = &event {
            let (title, parent) = (module.title(), stack.last().map_or("", |module| &module.graph));
            let graph = if title.is_empty() { format!("{parent}/{name}") } else { format!("{parent}/{title}[{name}]") };
            stack.push(ModulePath { title, graph });
        }
        if let Some(module) = stack.last() {
            report(path, module, event);
        }
    });
}
