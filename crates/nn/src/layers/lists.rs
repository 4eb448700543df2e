//! Lists and dictionaries of modules and parameters.

use super::sequential::layer_list;
use super::{IntoLayers, debug_is_display};
use crate::functional::shared::wrong_argument;
use crate::{Layer, Module, Parameter, Visitor, VisitorMut, print};
use pagelock_tensor::{DType, Result};
use std::fmt;
use std::ops::Index;

/// A list of layers of different types, named by their positions, as PyTorch's `nn.ModuleList`. For layers of one
/// type, use a `Vec`.
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

layer_list! { ModuleList }

impl ModuleList {
    /// The layer at a position, if there is one.
    pub fn get(&self, position: usize) -> Option<&dyn Layer> {
        self.layers.get(position).map(|layer| &**layer)
    }
}

/// Layers by name, in the order of insertion, as PyTorch's `nn.ModuleDict`.
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

    /// With a layer under a name, which replaces a layer of the same name.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) for a name that is empty or has a dot.
    pub fn insert(mut self, name: &str, layer: impl Layer + 'static) -> Result<Self> {
        check_name("ModuleDict", name)?;
        let layer: Box<dyn Layer> = Box::new(layer);
        match self.layers.iter_mut().find(|(other, _)| other == name) {
            Some((_, existing)) => *existing = layer,
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

/// Parameters named by their positions, as PyTorch's `nn.ParameterList`.
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

    /// The parameter at a position; panics if there is none, as a slice does.
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
        let names: Vec<String> = (0..self.len()).map(|position| position.to_string()).collect();
        shown(std::iter::zip(names.iter().map(String::as_str), self.iter()), |parameter| {
            format!("torch.{}", parameter.dtype())
        })
    }
}

/// Parameters by name, in the order of insertion, as PyTorch's `nn.ParameterDict`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Module, Parameter, ParameterDict};
/// use pagelock_tensor::Tensor;
///
/// let dict = ParameterDict::new().insert("left", Parameter::new(Tensor::ones(2)?))?;
/// assert_eq!(dict.get("left").unwrap().dims(), [2]);
/// assert_eq!(dict.named_parameters()[0].0, "left");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct ParameterDict {
    parameters: Vec<(String, Parameter)>,
}

impl ParameterDict {
    /// Without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a parameter under a name, which replaces a parameter of the same name.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) for a name that is empty or has a dot.
    pub fn insert(mut self, name: &str, parameter: Parameter) -> Result<Self> {
        check_name("ParameterDict", name)?;
        match self.parameters.iter_mut().find(|(other, _)| other == name) {
            Some((_, existing)) => *existing = parameter,
            None => self.parameters.push((name.to_owned(), parameter)),
        }
        Ok(self)
    }

    /// The parameter of a name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, parameter)| parameter)
    }

    /// Names and parameters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.parameters.iter().map(|(name, parameter)| (&**name, parameter))
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

impl Module for ParameterDict {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.parameters.iter().for_each(|(name, parameter)| visitor.child(name, parameter));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.parameters.iter_mut().for_each(|(_, parameter)| visitor.child(parameter));
    }

    fn details(&self) -> String {
        shown(self.iter(), tensor_type)
    }
}

/// Names and parameters as PyTorch prints them in lists. `type_name` gives the name of a parameter's element type.
fn shown<'a>(
    parameters: impl Iterator<Item = (&'a str, &'a Parameter)>,
    type_name: fn(&Parameter) -> String,
) -> String {
    let line = |(name, parameter): (&str, &Parameter)| {
        let sizes: Vec<String> = parameter.dims().iter().map(usize::to_string).collect();
        let device = if parameter.device().is_cpu() { String::new() } else { format!(" ({})", parameter.device()) };
        let (of, sizes) = (type_name(parameter), sizes.join("x"));
        format!("  ({name}): Parameter containing: [{of} of size {sizes}{device}]")
    };
    parameters.map(line).collect::<Vec<_>>().join("\n")
}

/// PyTorch's legacy name of a tensor type, which `ParameterDict` prints.
fn tensor_type(parameter: &Parameter) -> String {
    let device = if parameter.device().is_cpu() { "" } else { "cuda." };
    let elements = match parameter.dtype() {
        DType::F16 => "Half",
        DType::BF16 => "BFloat16",
        DType::F64 => "Double",
        _ => "Float",
    };
    format!("torch.{device}{elements}Tensor")
}

/// Checks that a name can be one component of a dotted path.
fn check_name(op: &str, name: &str) -> Result<()> {
    if !name.is_empty() && !name.contains('.') {
        return Ok(());
    }
    let name = format!("`{}`", pagelock_tensor::text::shortened(name));
    Err(wrong_argument(op, "a name", name, "one or more characters without dots"))
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

display! { ModuleList ModuleDict ParameterList ParameterDict }
