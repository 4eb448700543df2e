//! Lists and dictionaries of modules and parameters.

use super::{IntoLayers, debug_is_display};
use crate::functional::pieces::wrong_argument;
use crate::{Layer, Module, Parameter, Visitor, VisitorMut, print};
use pagelock_tensor::Result;
use std::fmt;
use std::ops::Index;

/// Layers of several types in a list, named by their position, as PyTorch's `nn.ModuleList`. Layers of one type are a `Vec`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, ModuleList, ReLU};
/// use pagelock_tensor::Tensor;
///
/// let layers = ModuleList::new((Linear::new(3, 4)?, ReLU)).append(Linear::new(4, 2)?);
/// let y = layers.iter().try_fold(Tensor::ones([1, 3])?, |x, layer| layer.forward(&x))?;
/// assert_eq!((layers.len(), y.dims()), (3, &[1, 2][..]));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct ModuleList {
    layers: Vec<Box<dyn Layer>>,
}

impl ModuleList {
    /// From a tuple of layers (at most 16), or a `Vec<Box<dyn Layer>>`.
    pub fn new(layers: impl IntoLayers) -> Self {
        Self { layers: layers.into_layers() }
    }

    /// With one more layer at the end.
    #[must_use]
    pub fn append(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// The layers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Layer> {
        self.layers.iter().map(|layer| &**layer)
    }

    /// The layer at a position, if there is one.
    pub fn get(&self, position: usize) -> Option<&dyn Layer> {
        self.layers.get(position).map(|layer| &**layer)
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Module for ModuleList {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.layers.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layers.visit_mut(visitor);
    }
}

/// Layers by name, in the order in which they came, as PyTorch's `nn.ModuleDict`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, ModuleDict, Module};
/// use pagelock_tensor::Tensor;
///
/// let heads = ModuleDict::new().insert("color", Linear::new(8, 3)?)?.insert("size", Linear::new(8, 1)?)?;
/// let y = heads.get("size").unwrap().forward(&Tensor::ones([1, 8])?)?;
/// assert_eq!(y.dims(), [1, 1]);
/// assert_eq!(heads.named_parameters()[0].0, "color.weight");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct ModuleDict {
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl ModuleDict {
    /// Without layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a layer under a name, in place of what had it before.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) for a name that is empty or has a dot.
    pub fn insert(mut self, name: &str, layer: impl Layer + 'static) -> Result<Self> {
        if name.is_empty() || name.contains('.') {
            let name = pagelock_tensor::text::shortened(name);
            return Err(wrong_argument(
                "ModuleDict",
                "a name",
                format!("`{name}`"),
                "one or more characters without dots",
            ));
        }
        let layer: Box<dyn Layer> = Box::new(layer);
        match self.layers.iter_mut().find(|(other, _)| other == name) {
            Some((_, place)) => *place = layer,
            None => self.layers.push((name.to_owned(), layer)),
        }
        Ok(self)
    }

    /// The layer of a name, if there is one.
    pub fn get(&self, name: &str) -> Option<&dyn Layer> {
        self.layers.iter().find(|(other, _)| other == name).map(|(_, layer)| &**layer)
    }

    /// Names and layers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &dyn Layer)> {
        self.layers.iter().map(|(name, layer)| (&**name, &**layer))
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Module for ModuleDict {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.layers.iter().for_each(|(name, layer)| visitor.child(name, layer));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layers.iter_mut().for_each(|(_, layer)| visitor.child(layer));
    }
}

/// Parameters named by their position, as PyTorch's `nn.ParameterList`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Module, Parameter, ParameterList};
/// use pagelock_tensor::Tensor;
///
/// let list = ParameterList::new([Parameter::new(Tensor::ones(2)?), Parameter::new(Tensor::zeros([2, 3])?)]);
/// assert_eq!(list[1].dims(), [2, 3]);
/// assert_eq!(list.named_parameters()[1].0, "1");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct ParameterList {
    parameters: Vec<Parameter>,
}

impl ParameterList {
    /// These parameters.
    pub fn new(parameters: impl IntoIterator<Item = Parameter>) -> Self {
        Self { parameters: parameters.into_iter().collect() }
    }

    /// With one more parameter at the end.
    #[must_use]
    pub fn append(mut self, parameter: Parameter) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// The parameters, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter()
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }
}

impl Index<usize> for ParameterList {
    type Output = Parameter;

    /// The parameter at a position; panics behind the last, as a slice does.
    fn index(&self, position: usize) -> &Parameter {
        &self.parameters[position]
    }
}

impl Module for ParameterList {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.parameters.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.parameters.visit_mut(visitor);
    }

    fn details(&self) -> String {
        let line = |(position, parameter): (usize, &Parameter)| {
            let sizes: Vec<String> = parameter.dims().iter().map(usize::to_string).collect();
            let device = if parameter.device().is_cpu() { String::new() } else { format!(" ({})", parameter.device()) };
            let (dtype, sizes) = (parameter.dtype(), sizes.join("x"));
            format!("  ({position}): Parameter containing: [torch.{dtype} of size {sizes}{device}]")
        };
        let lines: Vec<String> = self.parameters.iter().enumerate().map(line).collect();
        lines.join("\n")
    }
}

macro_rules! display {
    ($($name:ident)+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(self).fmt(f)
            }
        }

        debug_is_display!($name);
    )+};
}

display! { ModuleList ModuleDict ParameterList }
