//! [`Sequential`]: layers one after the other.

use super::debug_is_display;
use crate::profiling::{child_scope, module_scope};
use crate::{Forward, Layer, Module, Visitor, VisitorMut, print};
use pagelock_tensor::{Error, Result, Tensor};
use std::fmt;

/// Layers one after the other, named by their positions: `"0.weight"`, as PyTorch's `nn.Sequential`. Without layers,
/// the output is the input. The error for an input that does not fit names the layer, as in
/// ``layer `2` (Linear): linear: the input is ..``.
///
/// # Examples
/// ```
/// use pagelock_nn::{AdaptiveAvgPool2d, Conv2d, Flatten, Forward, Module, ReLU, Sequential};
/// use pagelock_tensor::Tensor;
///
/// let model = Sequential::new((
///     Conv2d::new(1, 16, 3)?.stride(2).padding(1),
///     ReLU,
///     Conv2d::new(16, 10, 3)?.stride(2).padding(1),
///     ReLU,
///     AdaptiveAvgPool2d::new(1),
///     Flatten::new(),
/// ));
/// assert_eq!(model.forward(&Tensor::zeros([64, 1, 28, 28])?)?.dims(), [64, 10]);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// Layers that are chosen while the program runs are appended one by one:
/// ```
/// use pagelock_nn::{Linear, ReLU, Sequential};
///
/// let sizes = [784, 64, 32, 10];
/// let mut model = Sequential::new(());
/// for pair in sizes.windows(2) {
///     model = model.append(Linear::new(pair[0], pair[1])?).append(ReLU);
/// }
/// assert_eq!(model.len(), 6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

/// `layer_list! { Name }`: the methods that `Sequential` and `ModuleList`, `$name { layers: Vec<Box<dyn Layer>> }`,
/// share.
macro_rules! layer_list {
    ($name:ident) => {
        impl $name {
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

            /// How many layers there are.
            pub fn len(&self) -> usize {
                self.layers.len()
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.layers.is_empty()
            }
        }

        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                self.layers.visit(visitor);
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                self.layers.visit_mut(visitor);
            }
        }
    };
}
pub(super) use layer_list;

layer_list! { Sequential }

impl Forward for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        let (mut x, mut layers) = (x.clone(), self.layers.iter().enumerate().peekable());
        while let Some((position, layer)) = layers.next() {
            let _scope = child_scope(&**layer, position);
            let y = match layers.next_if(|(_, next)| next.is_relu()) {
                Some(_) => layer.forward_relu(&x),
                None => layer.forward(&x),
            };
            x = y.map_err(|error| in_layer(error, position, &**layer))?;
        }
        Ok(x)
    }
}

/// Adds the name and the type of a layer to an [`Error::Argument`]; other errors stay as they are. The error of a layer
/// in a layer gets a dotted path of the positions on the way.
pub(super) fn in_layer(error: Error, name: impl fmt::Display, layer: &dyn Module) -> Error {
    match error {
        Error::Argument(text) => Error::Argument(match text.strip_prefix("layer `") {
            Some(inner) => format!("layer `{name}.{inner}"),
            None => format!("layer `{name}` ({}): {text}", layer.title()),
        }),
        other => other,
    }
}

impl fmt::Display for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self).fmt(f)
    }
}

debug_is_display!(Sequential);

/// What [`Sequential::new`] takes: tuples of at most 16 layers, and `Vec<Box<dyn Layer>>`.
pub trait IntoLayers {
    /// The layers, in order.
    fn into_layers(self) -> Vec<Box<dyn Layer>>;
}

impl IntoLayers for Vec<Box<dyn Layer>> {
    fn into_layers(self) -> Self {
        self
    }
}

macro_rules! tuples {
    () => {
        impl IntoLayers for () {
            fn into_layers(self) -> Vec<Box<dyn Layer>> {
                Vec::new()
            }
        }
    };
    ($first:ident $($member:ident)*) => {
        impl<$first: Layer + 'static, $($member: Layer + 'static),*> IntoLayers for ($first, $($member,)*) {
            #[allow(non_snake_case, reason = "one name for the member's type and value")]
            fn into_layers(self) -> Vec<Box<dyn Layer>> {
                let ($first, $($member,)*) = self;
                vec![Box::new($first), $(Box::new($member)),*]
            }
        }
        tuples!($($member)*);
    };
}

tuples!(A B C D E F G H I J K L M N O P);
