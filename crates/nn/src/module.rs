//! [`Module`]: something that shows its parameters, buffers and modes to a [`Visitor`].
//!
//! A model is a tree. `visit` hands over the children, each under its field's name; parameters are the leaves. All that
//! PyTorch's `nn.Module` does with a model (`parameters`, `train`, `state_dict`, ..) is one walk over that tree.
//! `#[derive(Module)]` writes `visit`; `containers.rs` has it for `Vec`, `Option`, `Box`, arrays and tuples.

use crate::state_dict::StateDict;
use crate::walk::{self, Of, OfMut};
use crate::{Misfit, Parameter, Result, moving};
use pagelock_tensor::text::type_name;
use pagelock_tensor::{AnyTensor, Bool, DType, Device, Int, Tensor};
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
/// Parameters and buffers may be of different precision: it is a value that each has, see [`to_dtype`](Self::to_dtype).
///
/// Generic structs work. `#[module(rename = "fc")]` on a field visits it under PyTorch's name. The derive also writes
/// `Display`, which prints the tree as PyTorch's `print(model)` does; `#[module(no_display)]` prevents it, and
/// `#[module(details = Self::describe)]` names the function whose text stands between the parentheses, as `extra_repr` does
/// there.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "in a struct that derives `Module`, every field is a module (a layer, a `Parameter`, a `Buffer`, or a `Vec`, \
            `Option`, `Box`, array or tuple of those) or has the attribute `#[module(skip)]`"
)]
pub trait Module {
    /// Hands each child to the visitor, in the order and under the name that it is declared with.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Hands each child that [`visit`](Self::visit) hands over to a visitor that may change it, in the same order.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);

    /// What the module is called in print; empty for what PyTorch does not print (parameters, an absent layer).
    fn title(&self) -> String {
        type_name::<Self>().to_owned()
    }

    /// What stands between the parentheses in print: `"in_features=784, out_features=10, bias=True"`.
    fn details(&self) -> String {
        String::new()
    }

    /// All parameters, each once, in the order of declaration.
    fn parameters(&self) -> Vec<Parameter> {
        walk::parameters(&Of(self))
    }

    /// All parameters with their dotted names; one that is in two places comes once, under its first name.
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

    /// Forgets the gradient of every parameter.
    fn zero_grad(&self) {
        walk::zero_grad(&Of(self));
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
        moving::move_to(&mut OfMut(self), device)
    }

    /// This model with all parameters and float buffers in the precision `dtype`, without their gradients. Integers and truth
    /// values stay as they are, so counts stay exact. What two places share they share there too, and optimizers follow in
    /// their next step: their state is `f64` for parameters of `f64` and else `f32`, and beside parameters of half precision
    /// they keep weights of `f32`.
    ///
    /// # Errors
    /// As [`Tensor::to_dtype`]: [`Error::WrongKind`](pagelock_tensor::Error::WrongKind) if `dtype` is not a float, or if there
    /// is no room.
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

    /// As [`to_dtype`](Self::to_dtype), in place; after an error nothing has changed.
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
        moving::lay_channels_last(&mut OfMut(&mut self))?;
        Ok(self)
    }

    /// Whether `backward` leaves gradients at the parameters: with `false` they are constants, which optimizers pass over and which
    /// nothing is recorded for. Optimizers follow in their next step.
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
        moving::set_requires_grad(&mut OfMut(self), &mut |_| Some(requires_grad));
    }

    /// [`requires_grad_(false)`](Self::requires_grad_) for the parameters whose dotted names `is_frozen` accepts; a parameter in
    /// two places is asked for under its first name. The others stay as they are.
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
        moving::set_requires_grad(&mut OfMut(self), &mut |parameter| {
            let name = names.iter().find(|(_, other)| other.is_same(parameter)).map(|(name, _)| name);
            name.filter(|name| is_frozen(name)).map(|_| false)
        });
    }

    /// Calls `f` with each module in the tree, this one first, each before its children. Parameters are no modules.
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

    /// How many numbers the parameters hold together; a shared parameter counts once.
    fn num_parameters(&self) -> usize {
        walk::num_parameters(&Of(self))
    }

    /// All parameters and buffers by name. The tensors are the model's own: a later step changes them.
    fn state_dict(&self) -> StateDict {
        walk::state_dict(&Of(self))
    }

    /// Copies the values of `dict` into the parameters and buffers of the same names, each in the precision that the model has
    /// it in. A count (one `i64` without dimensions) that is missing keeps its value, as in PyTorch; where `dict` has it as a
    /// float, as older files do, it takes the whole number.
    ///
    /// # Errors
    /// [`Error::StateDict`](crate::Error::StateDict) has every name that is missing, unexpected, of another shape or kind;
    /// [`Error::Argument`](crate::Error::Argument) if two tensors of the model have one name. Nothing has been loaded then.
    fn load_state_dict(&self, dict: &StateDict) -> Result<()> {
        walk::load_state_dict(&Of(self), dict)
    }

    /// As [`load_state_dict`](Self::load_state_dict), for the names that both have; PyTorch's `strict=False`. Returns which names
    /// only the model has (`missing`), and which only `dict` has (`unexpected`). To load under other names, see
    /// [`StateDict::renamed`].
    ///
    /// # Errors
    /// [`Error::StateDict`](crate::Error::StateDict) if a name that both have differs in shape or kind;
    /// [`Error::Argument`](crate::Error::Argument) as there. Nothing has been loaded then.
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

/// What a [`Visitor`] reports, with the dotted path at which it is.
#[non_exhaustive]
pub enum VisitEvent<'a> {
    /// A child begins; the path is its own.
    Enter {
        /// The last step of the path.
        name: &'a str,
        /// The child.
        module: &'a dyn Module,
    },
    /// The child that began last and has not ended ends.
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
    /// The child that began last, a box or an option, has its module at this address.
    Inside {
        /// Where it is.
        address: usize,
    },
}

impl VisitEvent<'_> {
    /// The buffer that is reported, if one is.
    pub(crate) fn buffer(&self) -> Option<AnyTensor> {
        match *self {
            VisitEvent::Buffer(buffer) => Some(buffer.into()),
            VisitEvent::IntBuffer(buffer) => Some(buffer.into()),
            VisitEvent::BoolBuffer(buffer) => Some(buffer.into()),
            _ => None,
        }
    }
}

/// Walks over a module and reports what it meets.
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

    /// Visits what `visit` does, but for the child `skipped` of the module at hand.
    pub(crate) fn all_but(&mut self, skipped: &str, visit: &mut dyn FnMut(&mut Visitor<'_>)) {
        let path = if self.path.is_empty() { skipped.to_owned() } else { format!("{}.{skipped}", self.path) };
        let mut inside = 0_usize; // how many children deep the walk is in the skipped one
        let report = &mut *self.report;
        let mut filtered = |at: &str, event: VisitEvent<'_>| match event {
            VisitEvent::Enter { .. } if inside > 0 || at == path => inside += 1,
            VisitEvent::Leave if inside > 0 => inside -= 1,
            _ if inside > 0 => {}
            event => report(at, event),
        };
        visit(&mut Visitor { path: self.path.clone(), report: &mut filtered });
    }

    /// Reports a parameter, buffer or mode at the current path.
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

/// Walks over a module and may change what it meets; see [`Visitor`] for a layer that writes `visit_mut` by hand.
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

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Mode(self));
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn title(&self) -> String {
        String::new()
    }
}
