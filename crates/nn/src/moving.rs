//! Moving a model to a device, or to another order in memory.

use std::collections::HashMap;

use crate::{EventMut, Module, Parameter, Result, VisitorMut};
use pagelock_tensor::{self as tensor, Device, Element, Float, Tensor};

/// Puts every parameter, buffer and counter on `device`; a refusal leaves the model as it is.
pub(crate) fn move_to<T: Float, M: Module<T> + ?Sized>(module: &mut M, device: &Device) -> Result<()> {
    change(module, |tensor| moved(tensor, device), |count| moved(count, device))
}

fn moved<T: Element>(tensor: &Tensor<T>, device: &Device) -> tensor::Result<Option<Tensor<T>>> {
    if tensor.device() == *device { Ok(None) } else { tensor.to(device).map(Some) }
}

/// Lays the channels of every parameter with four dimensions together; a refusal leaves the model as it is.
pub(crate) fn lay_channels_last<T: Float, M: Module<T> + ?Sized>(module: &mut M) -> Result<()> {
    let is_image = |tensor: &Tensor<T>| tensor.dims().len() == 4 && !tensor.is_channels_last();
    change(module, |tensor| if is_image(tensor) { tensor.channels_last().map(Some) } else { Ok(None) }, |_| Ok(None))
}

/// Puts others in the place of parameters, buffers and counters. First everything is made, then everything is replaced.
fn change<T: Float, M: Module<T> + ?Sized>(
    module: &mut M,
    make: impl Fn(&Tensor<T>) -> tensor::Result<Option<Tensor<T>>>,
    make_count: impl Fn(&Tensor<i64>) -> tensor::Result<Option<Tensor<i64>>>,
) -> Result<()> {
    let mut made = Made { parameters: HashMap::new(), buffers: Vec::new(), counts: Vec::new() };
    let mut result = Ok(());
    module.visit_mut(&mut VisitorMut::new(&mut |event| {
        if result.is_ok() {
            result = made.copy(&event, &make, &make_count);
        }
    }));
    result?;
    let (mut buffers, mut counts) = (made.buffers.into_iter(), made.counts.into_iter());
    module.visit_mut(&mut VisitorMut::new(&mut |event| match event {
        EventMut::Parameter(parameter) => {
            if let Some((_, Some(copy))) = made.parameters.get(&parameter.id()) {
                parameter.replace(copy);
            }
        }
        EventMut::Buffer(buffer) => buffers.by_ref().take(1).for_each(|copy| *buffer = copy),
        EventMut::Counter(count) => counts.by_ref().take(1).for_each(|copy| *count = copy),
    }));
    Ok(())
}

/// The copies.
struct Made<T: Float> {
    /// Each parameter once by its id, with its copy if it needs one; the handle keeps the id from being used again.
    parameters: HashMap<*const (), (Parameter<T>, Option<Parameter<T>>)>,
    /// In the order of the visit.
    buffers: Vec<Tensor<T>>,
    /// In the order of the visit.
    counts: Vec<Tensor<i64>>,
}

impl<T: Float> Made<T> {
    fn copy(
        &mut self,
        event: &EventMut<'_, T>,
        make: impl Fn(&Tensor<T>) -> tensor::Result<Option<Tensor<T>>>,
        make_count: impl Fn(&Tensor<i64>) -> tensor::Result<Option<Tensor<i64>>>,
    ) -> tensor::Result<()> {
        match event {
            EventMut::Buffer(buffer) => self.buffers.push(make(buffer)?.unwrap_or_else(|| (*buffer).clone())),
            EventMut::Counter(count) => self.counts.push(make_count(count)?.unwrap_or_else(|| (*count).clone())),
            EventMut::Parameter(parameter) if !self.parameters.contains_key(&parameter.id()) => {
                let copy = make(&parameter.detach())?.map(|copy| parameter.with_elements_of(copy));
                self.parameters.insert(parameter.id(), ((*parameter).clone(), copy));
            }
            EventMut::Parameter(_) => {}
        }
        Ok(())
    }
}
