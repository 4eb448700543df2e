//! [`Module`]: something that reports its parameters, buffers and modes to a [`Visitor`].
//!
//! A model is a tree whose leaves are parameters. `visit` passes each child to the visitor under its field's name.
//! Everything that PyTorch's `nn.Module` does with a model (`parameters`, `train`, `state_dict`, ..) is one traversal
//! of that tree. `#[derive(Module)]` writes `visit`; `containers.rs` has it for `Vec`, `Option`, `Box`, arrays and
//! tuples.

use crate::state_dict::StateDict;
use crate::walk::{self, Of, OfMut};
use crate::{Misfit, Parameter, Result, moving};
use pagelock_tensor::text::type_name;
use pagelock_tensor::{AnyTensor, Bool, DType, Device, Generator, Int, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something with parameters: a layer, a model, a list of models, or one [`Parameter`].
///
/// Derive it; only layers with an unusual way of holding their parts write `visit` by hand. How a module computes is a
/// separate trait, [`Forward`](crate::Forward).
///
/// # Examples
/// ```
/// use pagelock_nn::{Conv2d, Forward, Module, Parameter};
/// use pagelock_tensor::{Result, Tensor};
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
/// Each parameter and buffer has its own precision, so they may differ; see [`to_dtype`](Self::to_dtype).
///
/// Generic structs work. `#[module(rename = "fc")]` on a field visits it under PyTorch's name. The derive also writes
/// `Display`, which prints the tree as PyTorch's `print(model)` does; `#[module(no_display)]` prevents it, and
/// `#[module(details = Self::describe)]` names the function that returns the text between the parentheses, like
/// PyTorch's `extra_repr`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "in a struct that derives `Module`, every field is a module (a layer, a `Parameter`, a `Buffer`, or a `Vec`, \
            `Option`, `Box`, array or tuple of those) or has the attribute `#[module(skip)]`"
)]
pub trait Module {
    /// Passes each child to the visitor, in the order of declaration and under its declared name.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Passes the children of [`visit`](Self::visit), in the same order, to a visitor that may change them.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);

    /// The module's name in a printed model; empty for what PyTorch does not print (parameters, an absent layer).
    fn title(&self) -> String {
        type_name::<Self>().to_owned()
    }

    /// The text between the parentheses in a printed model: `"in_features=784, out_features=10, bias=True"`.
    fn details(&self) -> String {
        String::new()
    }

    /// All parameters, each once, in the order of declaration.
    fn parameters(&self) -> Vec<Parameter> {
        walk::parameters(&Of(self))
    }

    /// All parameters with their dotted names. A shared parameter is listed once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Parameter)> {
        walk::named_parameters(&Of(self))
    }

    /// All buffers (state that is saved but not trained) with their dotted names: floats, integers and truth values.
    fn named_buffers(&self) -> Vec<(String, AnyTensor)> {
        walk::named_buffers(&Of(self))
    }

    /// All buffers; see [`Module::named_buffers`].
    fn buffers(&self) -> Vec<AnyTensor> {
        walk::buffers(&Of(self))
    }

    /// Puts every layer that has a [`Mode`] (such as [`Dropout`](crate::Dropout)) into training mode.
    fn train(&self) {
        walk::set_mode(&Of(self), true);
    }

    /// Puts every layer that has a [`Mode`] into evaluation mode.
    fn eval(&self) {
        walk::set_mode(&Of(self), false);
    }

    /// Whether any layer is in training mode; `false` where no layer depends on the mode.
    fn is_training(&self) -> bool {
        walk::is_training(&Of(self))
    }

    /// Drops the gradient of every parameter.
    fn zero_grad(&self) {
        walk::zero_grad(&Of(self));
    }

    /// Moves all parameters and buffers to `device`. A parameter that moves loses its gradient, and a shared
    /// parameter stays shared. Optimizers move their state in their next step.
    ///
    /// # Errors
    /// As [`Tensor::to`], if there is not enough memory.
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

    /// As [`to`](Self::to), in place. On an error nothing is moved.
    ///
    /// # Errors
    /// As [`to`](Self::to).
    fn to_(&mut self, device: &Device) -> Result<()> {
        moving::move_to(&mut OfMut(self), device)
    }

    /// Converts all parameters and float buffers to the precision `dtype`. Integer and boolean buffers stay as they
    /// are, so counts stay exact. A converted parameter loses its gradient, and a shared parameter stays shared.
    /// Optimizers convert their state in their next step: it is `f64` for `f64` parameters and `f32` for all others.
    /// For half-precision parameters they also keep `f32` weights.
    ///
    /// # Errors
    /// As [`Tensor::to_dtype`]: [`Error::WrongKind`](pagelock_tensor::Error::WrongKind) if `dtype` is not a float, or
    /// if there is not enough memory.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, tensor::DType};
    ///
    /// let model = Linear::new(784, 10)?.to_dtype(DType::BF16)?;
    /// assert_eq!(model.weight.dtype(), DType::BF16);
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    fn to_dtype(mut self, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype_(dtype)?;
        Ok(self)
    }

    /// As [`to_dtype`](Self::to_dtype), in place. On an error nothing is changed.
    ///
    /// # Errors
    /// As [`to_dtype`](Self::to_dtype).
    fn to_dtype_(&mut self, dtype: DType) -> Result<()> {
        moving::change_precision(&mut OfMut(self), dtype)
    }

    /// This model in `f16`; see [`to_dtype`](Self::to_dtype).
    ///
    /// # Errors
    /// As [`to_dtype`](Self::to_dtype).
    fn half(self) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype(DType::F16)
    }

    /// This model in `bf16`; see [`to_dtype`](Self::to_dtype).
    ///
    /// # Errors
    /// As [`to_dtype`](Self::to_dtype).
    fn bfloat16(self) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype(DType::BF16)
    }

    /// This model in `f32`; see [`to_dtype`](Self::to_dtype).
    ///
    /// # Errors
    /// As [`to_dtype`](Self::to_dtype).
    fn float(self) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype(DType::F32)
    }

    /// This model in `f64`; see [`to_dtype`](Self::to_dtype).
    ///
    /// # Errors
    /// As [`to_dtype`](Self::to_dtype).
    fn double(self) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype(DType::F64)
    }

    /// Converts all float tensors with four dimensions to the memory order of [`Tensor::channels_last`], so that
    /// convolutions of images in that order need no copies. A converted weight loses its gradient. Optimizers convert
    /// their state in their next step.
    ///
    /// # Errors
    /// As [`Tensor::channels_last`], if there is not enough memory. The model is unchanged then.
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
        moving::to_channels_last(&mut OfMut(&mut self))?;
        Ok(self)
    }

    /// Sets whether `backward` computes gradients of the parameters. With `false` they are constants: operations
    /// record nothing for them, and optimizers skip them from their next step on.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Forward, Linear, Module, Sequential, ReLU};
    /// use pagelock_tensor::Tensor;
    ///
    /// let mut body = Sequential::new((Linear::new(8, 4)?, ReLU));
    /// body.requires_grad_(false);
    /// assert!(!body.forward(&Tensor::ones([1, 8])?)?.requires_grad());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    fn requires_grad_(&mut self, requires_grad: bool) {
        moving::set_requires_grad(&Of(self), &mut |_| Some(requires_grad));
    }

    /// Freezes the parameters whose dotted names `is_frozen` accepts, as
    /// [`requires_grad_(false)`](Self::requires_grad_) does. A shared parameter goes by its first name. The other
    /// parameters stay as they are.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, ReLU, Sequential};
    ///
    /// let mut model = Sequential::new((Linear::new(8, 4)?, ReLU, Linear::new(4, 2)?));
    /// model.freeze(|name| name.starts_with("0."));
    /// let trained = model.named_parameters().into_iter().filter(|(_, parameter)| parameter.requires_grad());
    /// assert_eq!(trained.map(|(name, _)| name).collect::<Vec<_>>(), ["2.weight", "2.bias"]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    fn freeze(&mut self, is_frozen: impl Fn(&str) -> bool)
    where
        Self: Sized,
    {
        let names = self.named_parameters();
        moving::set_requires_grad(&Of(self), &mut |parameter| {
            let name = names.iter().find(|(_, other)| other.is_same(parameter)).map(|(name, _)| name);
            name.filter(|name| is_frozen(name)).map(|_| false)
        });
    }

    /// Calls `f` with each module in the tree, this one first, each before its children. Parameters are left out.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, ReLU, Sequential, init};
    ///
    /// let model = Sequential::new((Linear::new(8, 4)?, ReLU, Linear::new(4, 2)?));
    /// model.apply(|module| {
    ///     if module.title() == "Linear" {
    ///         module.parameters().iter().try_for_each(|parameter| init::constant_(parameter, 0.5)).unwrap();
    ///     }
    /// });
    /// assert!(model.parameters().iter().all(|parameter| parameter.to_vec::<f32>().unwrap().iter().all(|&w| w == 0.5)));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    fn apply(&self, mut f: impl FnMut(&dyn Module))
    where
        Self: Sized,
    {
        f(self);
        walk::modules(&Of(self), &mut f);
    }

    /// The number of elements of all parameters; a shared parameter counts once.
    fn num_parameters(&self) -> usize {
        walk::num_parameters(&Of(self))
    }

    /// All parameters and buffers by name. The tensors are the model's own: a later step changes them.
    fn state_dict(&self) -> StateDict {
        walk::state_dict(&Of(self))
    }

    /// Copies the values of `dict` into the parameters and buffers of the same names, converted to the model's
    /// precision. A count (an `i64` without dimensions) that is missing keeps its value, as in PyTorch. A count that
    /// `dict` has as a float, as older files do, is converted to an integer.
    ///
    /// # Errors
    /// [`Error::StateDict`](crate::Error::StateDict) lists every name that is missing, unexpected, or of another
    /// shape or kind; [`Error::Argument`](crate::Error::Argument) if two tensors of the model have the same name.
    /// Nothing is loaded then.
    fn load_state_dict(&self, dict: &StateDict) -> Result<()> {
        walk::load_state_dict(&Of(self), dict)
    }

    /// As [`load_state_dict`](Self::load_state_dict), for the names that both have, like PyTorch's `strict=False`.
    /// Returns which names only the model has (`missing`), and which only `dict` has (`unexpected`). To load under
    /// other names, see [`StateDict::renamed`].
    ///
    /// # Errors
    /// [`Error::StateDict`](crate::Error::StateDict) if a name that both have differs in shape or kind;
    /// [`Error::Argument`](crate::Error::Argument) if two tensors of the model have the same name. Nothing is loaded
    /// then.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module};
    ///
    /// let mut dict = Linear::new(3, 2)?.state_dict();
    /// dict.remove("bias");
    /// let misfit = Linear::new(3, 2)?.load_state_dict_partly(&dict)?;
    /// assert_eq!((misfit.missing, misfit.unexpected.len()), (vec!["bias".to_owned()], 0));
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    fn load_state_dict_partly(&self, dict: &StateDict) -> Result<Misfit> {
        walk::load_state_dict_partly(&Of(self), dict)
    }
}

/// An event that a [`Visitor`] reports together with a dotted path.
#[non_exhaustive]
pub enum VisitEvent<'a> {
    /// A child begins. The path is that of the child.
    Enter {
        /// The last step of the path.
        name: &'a str,
        /// The child.
        module: &'a dyn Module,
    },
    /// The innermost child that has begun ends.
    Leave,
    /// A parameter.
    Parameter(&'a Parameter),
    /// Saved floats that are not trained.
    Buffer(&'a Tensor),
    /// Saved integers, such as a count.
    IntBuffer(&'a Tensor<Int>),
    /// Saved truth values, such as a mask.
    BoolBuffer(&'a Tensor<Bool>),
    /// A switch between training and evaluation.
    Mode(&'a Mode),
    /// A generator of random numbers.
    Generator(&'a Generator),
    /// The innermost child that has begun is a box or an option, whose module is at this address.
    Inside {
        /// The address of the module.
        address: usize,
    },
}

impl VisitEvent<'_> {
    /// The buffer, if the event reports one.
    pub(crate) fn buffer(&self) -> Option<AnyTensor> {
        match *self {
            VisitEvent::Buffer(buffer) => Some(buffer.into()),
            VisitEvent::IntBuffer(buffer) => Some(buffer.into()),
            VisitEvent::BoolBuffer(buffer) => Some(buffer.into()),
            _ => None,
        }
    }
}

/// Traverses a module and reports each child, parameter, buffer, mode and generator.
///
/// # Examples
/// A layer that writes `visit` by hand:
/// ```
/// use pagelock_nn::{Module, Parameter, Visitor, VisitorMut};
/// use pagelock_tensor::Tensor;
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
pub struct Visitor<'a> {
    path: String,
    report: &'a mut dyn FnMut(&str, VisitEvent<'_>),
}

impl<'a> Visitor<'a> {
    pub(crate) fn new(report: &'a mut dyn FnMut(&str, VisitEvent<'_>)) -> Self {
        Self { path: String::new(), report }
    }

    /// Visits a child under a name, which becomes the next step of the path.
    pub fn child(&mut self, name: &str, module: &dyn Module) {
        let parent_len = self.path.len();
        if parent_len > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.report(VisitEvent::Enter { name, module });
        module.visit(self);
        self.report(VisitEvent::Leave);
        self.path.truncate(parent_len);
    }

    /// Visits a child of a list under its position.
    pub(crate) fn child_at(&mut self, position: usize, module: &dyn Module) {
        self.child(&position.to_string(), module);
    }

    /// Calls `visit`, but reports nothing of the child `skipped` of the current module.
    pub(crate) fn all_but(&mut self, skipped: &str, visit: &mut dyn FnMut(&mut Visitor<'_>)) {
        let path = if self.path.is_empty() { skipped.to_owned() } else { format!("{}.{skipped}", self.path) };
        let mut inside = 0_usize; // depth below the skipped child's parent; 0 outside
        let report = &mut *self.report;
        let mut filtered = |at: &str, event: VisitEvent<'_>| match event {
            VisitEvent::Enter { .. } if inside > 0 || at == path => inside += 1,
            VisitEvent::Leave if inside > 0 => inside -= 1,
            _ if inside > 0 => {}
            event => report(at, event),
        };
        visit(&mut Visitor { path: self.path.clone(), report: &mut filtered });
    }

    /// Reports a parameter, buffer, mode or generator at the current path.
    pub fn report(&mut self, event: VisitEvent<'_>) {
        (self.report)(&self.path, event);
    }
}

/// What a [`VisitorMut`] reports.
#[non_exhaustive]
pub enum VisitEventMut<'a> {
    /// A parameter.
    Parameter(&'a mut Parameter),
    /// Saved floats that are not trained.
    Buffer(&'a mut Tensor),
    /// Saved integers, such as a count.
    IntBuffer(&'a mut Tensor<Int>),
    /// Saved truth values, such as a mask.
    BoolBuffer(&'a mut Tensor<Bool>),
}

/// Traverses a module and may change its parameters and buffers. See [`Visitor`] for a layer that writes `visit_mut`
/// by hand.
pub struct VisitorMut<'a> {
    report: &'a mut dyn FnMut(VisitEventMut<'_>),
}

impl<'a> VisitorMut<'a> {
    pub(crate) fn new(report: &'a mut dyn FnMut(VisitEventMut<'_>)) -> Self {
        Self { report }
    }

    /// Visits a child.
    pub fn child(&mut self, module: &mut dyn Module) {
        module.visit_mut(self);
    }

    /// Reports a parameter or buffer.
    pub fn report(&mut self, event: VisitEventMut<'_>) {
        (self.report)(event);
    }
}

/// Training or evaluation mode: a field of layers that compute differently in the two, such as dropout.
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
    /// Whether the layer is in training mode; true until `eval` is called.
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

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Mode(self));
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn title(&self) -> String {
        String::new()
    }
}

/// A field of layers that draw random numbers of their own. It is not in the state dict, but a
/// [`Checkpoint`](crate::Checkpoint) saves its seed and position with the model.
impl Module for Generator {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Generator(self));
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn title(&self) -> String {
        String::new()
    }
}
