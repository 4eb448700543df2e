//! Moving a model to a device, converting its memory order or precision, and freezing its parameters.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::parameter::charged;
use crate::walk::{self, Visit, VisitMut};
use crate::{Parameter, Result, VisitEventMut, VisitorMut};
use pagelock_tensor::{self as tensor, Bool, DType, Device, Error, Int, Kind, Tensor};

/// Moves every parameter and buffer to `device`. On an error the model is unchanged.
pub(crate) fn move_to(module: VisitMut<'_>, device: &Device) -> Result<()> {
    change(module, &To(device))
}

/// Converts every float tensor with four dimensions to channels-last order. On an error the model is unchanged.
pub(crate) fn to_channels_last(module: VisitMut<'_>) -> Result<()> {
    change(module, &ChannelsLast)
}

/// Converts every parameter and float buffer to `dtype`. On an error the model is unchanged.
pub(crate) fn change_precision(module: VisitMut<'_>, dtype: DType) -> Result<()> {
    change(module, &Precision::new(dtype)?)
}

/// Sets whether parameters require a gradient, where `wanted`, which is called once for each, returns a value.
pub(crate) fn set_requires_grad(module: Visit<'_>, wanted: &mut dyn FnMut(&Parameter) -> Option<bool>) {
    for parameter in walk::parameters(module) {
        if let Some(requires_grad) = wanted(&parameter) {
            parameter.set_requires_grad(requires_grad);
        }
    }
}

/// Makes the replacement of a tensor, or `None` if the tensor stays.
trait Change {
    fn of<K: Kind>(&self, tensor: &Tensor<K>) -> tensor::Result<Option<Tensor<K>>>;
}

struct To<'a>(&'a Device);

impl Change for To<'_> {
    fn of<K: Kind>(&self, tensor: &Tensor<K>) -> tensor::Result<Option<Tensor<K>>> {
        if tensor.device() == *self.0 { Ok(None) } else { tensor.to(self.0).map(Some) }
    }
}

struct ChannelsLast;

impl Change for ChannelsLast {
    fn of<K: Kind>(&self, tensor: &Tensor<K>) -> tensor::Result<Option<Tensor<K>>> {
        let is_converted = tensor.dtype().is_float() && tensor.rank() == 4 && !tensor.is_channels_last();
        if is_converted { tensor.channels_last().map(Some) } else { Ok(None) }
    }
}

struct Precision(DType);

impl Precision {
    fn new(dtype: DType) -> tensor::Result<Self> {
        if dtype.is_float() { Ok(Self(dtype)) } else { Err(Error::WrongKind { op: "to_dtype", dtype, kind: "float" }) }
    }
}

impl Change for Precision {
    fn of<K: Kind>(&self, tensor: &Tensor<K>) -> tensor::Result<Option<Tensor<K>>> {
        let is_converted = tensor.dtype().is_float() && tensor.dtype() != self.0;
        if is_converted { tensor.to_dtype(self.0).map(Some) } else { Ok(None) }
    }
}

/// Replaces parameters and buffers. All replacements are made before the first one is used, so an error changes
/// nothing.
fn change(module: VisitMut<'_>, change: &impl Change) -> Result<()> {
    let _charged = charged();
    let mut replacements = Replacements::default();
    let mut result = Ok(());
    module.visit_mut(&mut VisitorMut::new(&mut |event| {
        if result.is_ok() {
            result = replacements.add(&event, change);
        }
    }));
    result?;
    for (parameter, copy) in replacements.parameters.into_values() {
        copy.into_iter().for_each(|copy| parameter.replace(copy));
    }
    let mut floats = replacements.floats.into_iter();
    let (mut ints, mut bools) = (replacements.ints.into_iter(), replacements.bools.into_iter());
    module.visit_mut(&mut VisitorMut::new(&mut |event| match event {
        VisitEventMut::Parameter(parameter) => drop(parameter.follow()),
        VisitEventMut::Buffer(buffer) => floats.by_ref().take(1).for_each(|copy| *buffer = copy),
        VisitEventMut::IntBuffer(buffer) => ints.by_ref().take(1).for_each(|copy| *buffer = copy),
        VisitEventMut::BoolBuffer(buffer) => bools.by_ref().take(1).for_each(|copy| *buffer = copy),
    }));
    Ok(())
}

/// The replacements of a model's tensors.
#[derive(Default)]
struct Replacements {
    /// Each parameter by its id, with its copy if it needs one. The handle keeps the parameter alive, so its id stays
    /// unique.
    parameters: HashMap<*const (), (Parameter, Option<Tensor>)>,
    /// Buffers in the order of the visit.
    floats: Vec<Tensor>,
    ints: Vec<Tensor<Int>>,
    bools: Vec<Tensor<Bool>>,
}

impl Replacements {
    fn add(&mut self, event: &VisitEventMut<'_>, change: &impl Change) -> tensor::Result<()> {
        fn replaced<K: Kind>(change: &impl Change, buffer: &Tensor<K>) -> tensor::Result<Tensor<K>> {
            Ok(change.of(buffer)?.unwrap_or_else(|| buffer.clone()))
        }
        match event {
            VisitEventMut::Buffer(buffer) => self.floats.push(replaced(change, buffer)?),
            VisitEventMut::IntBuffer(buffer) => self.ints.push(replaced(change, buffer)?),
            VisitEventMut::BoolBuffer(buffer) => self.bools.push(replaced(change, buffer)?),
            VisitEventMut::Parameter(parameter) => {
                if let Entry::Vacant(entry) = self.parameters.entry(parameter.id()) {
                    let copy = change.of(&parameter.detach())?;
                    let copy = copy.map(|copy| copy.set_requires_grad(parameter.requires_grad()));
                    if let (Some(copy), Some(grad)) = (&copy, parameter.grad()) {
                        copy.set_grad(Some(change.of(&grad)?.unwrap_or(grad)))?;
                    }
                    entry.insert((Parameter::clone(parameter), copy));
                }
            }
        }
        Ok(())
    }
}
