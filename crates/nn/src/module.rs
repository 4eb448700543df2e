//! [`Module`]: something that shows its parameters, buffers and modes to a [`Visitor`].
//!
//! A model is a tree. `visit` hands over the children, each under its field's name; parameters are the leaves. All that
//! PyTorch's `nn.Module` does with a model (`parameters`, `train`, `state_dict`, ..) is one walk over that tree.
//! `#[derive(Module)]` writes `visit`; `containers.rs` has it for `Vec`, `Option`, `Box`, arrays and tuples.

use crate::state_dict::{StateDict, Value};
use crate::{Parameter, Result, moving};
use pagelock_tensor::{Device, Float, Tensor};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something with parameters: a layer, a model, a list of models, or one [`Parameter`].
///
/// `T` is the element type of the parameters. Derive it; only layers with an unusual way of holding their parts write
/// `visit` by hand. How a module computes is a separate trait, [`Forward`](crate::Forward).
///
/// # Examples
/// ```
/// use pagelock_nn::{Conv2d, Forward, Module, Parameter};
/// use pagelock_tensor::{Create, Result, Tensor};
///
/// #[derive(Module)]
/// struct Net {
///     conv1: Conv2d,
///     scale: Parameter,
///     #[module(skip)]
///     name: String,
/// }
///
/// impl Forward for Net {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.conv1.forward(x)?.relu()? * &self.scale
///     }
/// }
///
/// let net = Net { conv1: Conv2d::new(1, 16, 3)?, scale: Parameter::new(Tensor::ones(1)?), name: "small".into() };
/// let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["conv1.weight", "conv1.bias", "scale"]);
/// assert_eq!(net.num_parameters(), 16 * 9 + 16 + 1);
/// # assert_eq!(net.name, "small");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// Generic structs work: the element type is the type parameter that is bounded by `Float`, else `f32`, else what
/// `#[module(element = f64)]` says. `#[module(rename = "fc")]` on a field visits it under PyTorch's name. The derive
/// also writes `Display`, which prints the tree as PyTorch's `print(model)` does; `#[module(no_display)]` prevents it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module with elements of type `{T}`",
    label = "not a module",
    note = "in a struct that derives `Module`, every field is a module (a layer, a `Parameter`, a `Buffer`, or a `Vec`, \
            `Option`, `Box`, array or tuple of those) or has the attribute `#[module(skip)]`",
    note = "`#[module(element = f64)]` on the struct changes the element type"
)]
pub trait Module<T: Float = f32> {
    /// Hands each child to the visitor, in the order and under the name that it is declared with.
    fn visit(&self, visitor: &mut Visitor<'_, T>);

    /// Hands each child that [`visit`](Self::visit) hands over to a visitor that may change it, in the same order.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>);

    /// What the module is called in print; empty for what PyTorch does not print (parameters, an absent layer).
    fn title(&self) -> String {
        let name = std::any::type_name::<Self>();
        let name = name.split('<').next().unwrap_or(name);
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }

    /// What stands between the parentheses in print: `"in_features=784, out_features=10, bias=True"`.
    fn details(&self) -> String {
        String::new()
    }

    /// All parameters, each once, in the order of declaration.
    fn parameters(&self) -> Vec<Parameter<T>> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// All parameters with their dotted names; one that is in two places comes once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Parameter<T>)> {
        let mut found: Vec<(String, Parameter<T>)> = Vec::new();
        let mut seen = HashSet::new();
        walk(self, &mut |name, event| {
            if let Event::Parameter(parameter) = event
                && seen.insert(parameter.id())
            {
                found.push((name.to_owned(), parameter.clone()));
            }
        });
        found
    }

    /// All buffers (state that is saved but not trained) with their dotted names.
    fn named_buffers(&self) -> Vec<(String, Tensor<T>)> {
        let mut found = Vec::new();
        walk(self, &mut |name, event| {
            if let Event::Buffer(buffer) = event {
                found.push((name.to_owned(), buffer.clone()));
            }
        });
        found
    }

    /// All buffers; see [`Module::named_buffers`].
    fn buffers(&self) -> Vec<Tensor<T>> {
        self.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
    }

    /// Puts every layer that has a [`Mode`] (such as [`Dropout`](crate::Dropout)) into training mode.
    fn train(&self) {
        set_mode(self, true);
    }

    /// Puts every layer that has a [`Mode`] into evaluation mode.
    fn eval(&self) {
        set_mode(self, false);
    }

    /// Whether any layer is in training mode; `false` where no layer depends on the mode.
    fn is_training(&self) -> bool {
        let mut training = false;
        walk(self, &mut |_, event| {
            if let Event::Mode(mode) = event {
                training |= mode.is_training();
            }
        });
        training
    }

    /// Forgets the gradient of every parameter.
    fn zero_grad(&self) {
        walk(self, &mut |_, event| {
            if let Event::Parameter(parameter) = event {
                parameter.as_tensor().zero_grad();
            }
        });
    }

    /// This model with all parameters and buffers on `device`, without their gradients. What two places share they share
    /// there too, and optimizers follow with their state in their next step.
    ///
    /// # Errors
    /// As [`Tensor::to`], if there is no room.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, tensor::Device};
    ///
    /// let device = Device::best(); // a GPU where there is one
    /// let model = Linear::new(784, 10)?.to(&device)?;
    /// assert_eq!(model.weight.device(), device);
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    fn to(mut self, device: &Device) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_(device)?;
        Ok(self)
    }

    /// As [`to`](Self::to), in place; after an error nothing has moved.
    ///
    /// # Errors
    /// As [`to`](Self::to).
    fn to_(&mut self, device: &Device) -> Result<()> {
        moving::move_to(self, device)
    }

    /// This model with its weights of four dimensions laid as [`Tensor::channels_last`] says, without their gradients: for
    /// images that lie so, whose convolutions then need no copies of them. Optimizers follow in their next step.
    ///
    /// # Errors
    /// As [`Tensor::channels_last`], if there is no room; the model is then as it was.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Conv2d, Module, tensor::Device};
    ///
    /// let model = Conv2d::new(16, 32, 3)?.to(&Device::best())?.channels_last()?;
    /// assert!(model.weight.is_channels_last());
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    fn channels_last(mut self) -> Result<Self>
    where
        Self: Sized,
    {
        moving::lay_channels_last(&mut self)?;
        Ok(self)
    }

    /// How many numbers the parameters hold together; a shared parameter counts once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|parameter| parameter.len()).sum()
    }

    /// All parameters, buffers and counters by name. The tensors are the model's own: a later step changes them.
    fn state_dict(&self) -> StateDict<T> {
        let mut dict = StateDict::new();
        walk(self, &mut |name, event| match event {
            Event::Parameter(parameter) => dict.add(name, Value::Tensor(parameter.detach())),
            Event::Buffer(buffer) => dict.add(name, Value::Tensor(buffer.clone())),
            Event::Counter(count) => dict.add(name, Value::Count(count.clone())),
            _ => {}
        });
        dict
    }

    /// Copies the values of `dict` into the parameters, buffers and counters of the same names. A counter whose count is
    /// missing keeps its own, as in PyTorch; one whose count has the element type `T`, as older files have it, takes the whole
    /// number.
    ///
    /// # Errors
    /// [`Error::StateDict`](crate::Error::StateDict) has every name that is missing, unexpected or of another shape;
    /// [`Error::NameTwice`](crate::Error::NameTwice) if two tensors of the model have one name. Nothing has been loaded then.
    fn load_state_dict(&self, dict: &StateDict<T>) -> Result<()> {
        dict.copy_into(&self.state_dict())
    }
}

/// What a [`Visitor`] reports, with the dotted path at which it is.
#[non_exhaustive]
pub enum Event<'a, T: Float = f32> {
    /// A child begins; the path is its own.
    Enter {
        /// The last step of the path.
        name: &'a str,
        /// The child.
        module: &'a dyn Module<T>,
    },
    /// The child that began last and has not ended ends.
    Leave,
    /// A parameter.
    Parameter(&'a Parameter<T>),
    /// Saved state that is not trained.
    Buffer(&'a Tensor<T>),
    /// A saved count, one number.
    Counter(&'a Tensor<i64>),
    /// A switch between training and evaluation.
    Mode(&'a Mode),
}

/// Walks over a module and reports what it meets.
///
/// # Examples
/// A layer that writes `visit` by hand:
/// ```
/// use pagelock_nn::{Module, Parameter, Visitor, VisitorMut};
/// use pagelock_tensor::{Create, Tensor};
///
/// struct Scale(Parameter);
/// impl Module for Scale {
///     fn visit(&self, visitor: &mut Visitor<'_>) {
///         visitor.child("weight", &self.0);
///     }
///     fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
///         visitor.child(&mut self.0);
///     }
/// }
/// assert_eq!(Scale(Parameter::new(Tensor::ones(1)?)).named_parameters()[0].0, "weight");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Visitor<'a, T: Float = f32> {
    path: String,
    report: &'a mut dyn FnMut(&str, Event<'_, T>),
}

impl<T: Float> Visitor<'_, T> {
    /// Visits a child under a name, which becomes the next step of the path.
    pub fn child(&mut self, name: &str, module: &dyn Module<T>) {
        let parent_len = self.path.len();
        if parent_len > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.report(Event::Enter { name, module });
        module.visit(self);
        self.report(Event::Leave);
        self.path.truncate(parent_len);
    }

    /// Reports a parameter, buffer, counter or mode at the current path.
    pub fn report(&mut self, event: Event<'_, T>) {
        (self.report)(&self.path, event);
    }
}

/// What a [`VisitorMut`] reports.
#[non_exhaustive]
pub enum EventMut<'a, T: Float = f32> {
    /// A parameter.
    Parameter(&'a mut Parameter<T>),
    /// Saved state that is not trained.
    Buffer(&'a mut Tensor<T>),
    /// A saved count, one number.
    Counter(&'a mut Tensor<i64>),
}

/// Walks over a module and may change what it meets; see [`Visitor`] for a layer that writes `visit_mut` by hand.
pub struct VisitorMut<'a, T: Float = f32> {
    report: &'a mut dyn FnMut(EventMut<'_, T>),
}

impl<'a, T: Float> VisitorMut<'a, T> {
    pub(crate) fn new(report: &'a mut dyn FnMut(EventMut<'_, T>)) -> Self {
        Self { report }
    }

    /// Visits a child.
    pub fn child(&mut self, module: &mut dyn Module<T>) {
        module.visit_mut(self);
    }

    /// Reports a parameter, buffer or counter.
    pub fn report(&mut self, event: EventMut<'_, T>) {
        (self.report)(event);
    }
}

/// Visits everything in `module`; the paths start below it.
pub(crate) fn walk<T: Float, M: Module<T> + ?Sized>(module: &M, report: &mut dyn FnMut(&str, Event<'_, T>)) {
    module.visit(&mut Visitor { path: String::new(), report });
}

fn set_mode<T: Float, M: Module<T> + ?Sized>(module: &M, training: bool) {
    walk(module, &mut |_, event| {
        if let Event::Mode(mode) = event {
            mode.set_training(training);
        }
    });
}

/// Whether a layer trains or evaluates: a field of layers that compute differently in the two, such as dropout.
///
/// # Examples
/// ```
/// use pagelock_nn::{Mode, Module};
///
/// #[derive(Module)]
/// struct Noise {
///     mode: Mode,
/// }
/// let noise = Noise { mode: Mode::default() };
/// assert!(noise.mode.is_training());
/// noise.eval();
/// assert!(!noise.mode.is_training());
/// ```
#[derive(Debug)]
pub struct Mode {
    training: AtomicBool, // Relaxed everywhere: guards no other memory
}

impl Mode {
    /// Whether the layer trains; true until `eval` is called.
    pub fn is_training(&self) -> bool {
        self.training.load(Ordering::Relaxed)
    }

    /// Changes the mode. [`Module::train`] and [`Module::eval`] call this for a whole model.
    pub fn set_training(&self, training: bool) {
        self.training.store(training, Ordering::Relaxed);
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self { training: AtomicBool::new(true) }
    }
}

impl<T: Float> Module<T> for Mode {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        visitor.report(Event::Mode(self));
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_, T>) {}

    fn title(&self) -> String {
        String::new()
    }
}
