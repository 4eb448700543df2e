//! Moving a model to a device, or to another order in memory.

use crate::{EventMut, Module, Parameter, Result, VisitorMut};
use pagelock_tensor::{self as tensor, Device, Float, Tensor};

/// Puts every parameter and buffer on `device`; a refusal leaves the model as it is.
pub(crate) fn move_to<T: Float, M: Module<T> + ?Sized>(module: &mut M, device: &Device) -> Result<()> {
    change(module, |tensor| if tensor.device() == *device { Ok(None) } else { tensor.to(device).map(Some) })
}

/// Lays the channels of every parameter with four dimensions together; a refusal leaves the model as it is.
pub(crate) fn lay_channels_last<T: Float, M: Module<T> + ?Sized>(module: &mut M) -> Result<()> {
    let is_image = |tensor: &Tensor<T>| tensor.dims().len() == 4 && !tensor.is_channels_last();
    change(module, |tensor| if is_image(tensor) { tensor.channels_last().map(Some) } else { Ok(None) })
}

/// Puts others in the place of parameters and buffers. First everything is made, then everything is replaced.
fn change<T: Float, M: Module<T> + ?Sized>(
    module: &mut M,
    make: impl Fn(&Tensor<T>) -> tensor::Result<Option<Tensor<T>>>,
) -> Result<()> {
    let mut moved = Moved { parameters: Vec::new(), buffers: Vec::new() };
    let mut result = Ok(());
    module.visit_mut(&mut VisitorMut::new(&mut |event| {
        if result.is_ok() {
            result = moved.copy(&event, &make);
        }
    }));
    result?;
    let mut buffers = moved.buffers.into_iter();
    module.visit_mut(&mut VisitorMut::new(&mut |event| match event {
        EventMut::Parameter(parameter) => {
            if let Some((_, copy)) = moved.parameters.iter().find(|(from, _)| from.is_same(parameter)) {
                parameter.replace(copy);
            }
        }
        EventMut::Buffer(buffer) => buffers.by_ref().take(1).for_each(|copy| *buffer = copy),
    }));
    Ok(())
}

/// The copies.
struct Moved<T: Float> {
    /// Each parameter once, with its copy.
    parameters: Vec<(Parameter<T>, Parameter<T>)>,
    /// In the order of the visit.
    buffers: Vec<Tensor<T>>,
}

impl<T: Float> Moved<T> {
    fn copy(
        &mut self,
        event: &EventMut<'_, T>,
        make: impl Fn(&Tensor<T>) -> tensor::Result<Option<Tensor<T>>>,
    ) -> tensor::Result<()> {
        match event {
            EventMut::Buffer(buffer) => self.buffers.push(make(buffer)?.unwrap_or_else(|| (*buffer).clone())),
            EventMut::Parameter(parameter) if self.parameters.iter().all(|(known, _)| !known.is_same(parameter)) => {
                if let Some(copy) = make(&parameter.detach())? {
                    self.parameters.push(((*parameter).clone(), parameter.with_elements_of(copy)));
                }
            }
            EventMut::Parameter(_) => {}
        }
        Ok(())
    }
}
