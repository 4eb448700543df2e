//! Moving a model to a device.

use crate::{EventMut, Module, Parameter, Result, VisitorMut};
use pagelock_tensor::{self as tensor, Device, Float, Tensor};

/// Puts every parameter and buffer on `device`. First everything is copied, then everything changes its place, so that
/// a refusal leaves the model as it is.
pub(crate) fn move_to<T: Float, M: Module<T> + ?Sized>(module: &mut M, device: &Device) -> Result<()> {
    let mut moved = Moved { parameters: Vec::new(), buffers: Vec::new() };
    let mut result = Ok(());
    module.visit_mut(&mut VisitorMut::new(&mut |event| {
        if result.is_ok() {
            result = moved.copy(&event, device);
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
    fn copy(&mut self, event: &EventMut<'_, T>, device: &Device) -> tensor::Result<()> {
        match event {
            EventMut::Buffer(buffer) => self.buffers.push(buffer.to(device)?),
            EventMut::Parameter(parameter) => {
                let is_known = self.parameters.iter().any(|(known, _)| known.is_same(parameter));
                if !is_known && parameter.device() != *device {
                    let copy = parameter.copy_on(device)?;
                    self.parameters.push(((*parameter).clone(), copy));
                }
            }
        }
        Ok(())
    }
}
