//! Modules made of modules: `Vec`, arrays, `Option`, `Box`, tuples. Positions become names: `"0"`, `"1"`, as in PyTorch.

use crate::{Forward, Module, Visitor, VisitorMut};
use pagelock_tensor::{Float, Result, Tensor};

/// As PyTorch's `ModuleList`.
impl<T: Float, M: Module<T>> Module<T> for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        for (position, module) in self.iter().enumerate() {
            visitor.child(&position.to_string(), module);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        self.iter_mut().for_each(|module| visitor.child(module));
    }

    fn title(&self) -> String {
        "ModuleList".to_owned()
    }
}

/// As `Vec`.
impl<T: Float, M: Module<T>, const N: usize> Module<T> for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        for (position, module) in self.iter().enumerate() {
            visitor.child(&position.to_string(), module);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        self.iter_mut().for_each(|module| visitor.child(module));
    }

    fn title(&self) -> String {
        "ModuleList".to_owned()
    }
}

/// The module under the same name, or nothing.
impl<T: Float, M: Module<T>> Module<T> for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        if let Some(module) = self {
            module.visit_mut(visitor);
        }
    }

    fn title(&self) -> String {
        self.as_ref().map_or_else(String::new, Module::title)
    }

    fn details(&self) -> String {
        self.as_ref().map_or_else(String::new, Module::details)
    }
}

/// The module under the same name.
impl<T: Float, M: Module<T> + ?Sized> Module<T> for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        (**self).visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        (**self).visit_mut(visitor);
    }

    fn title(&self) -> String {
        (**self).title()
    }

    fn details(&self) -> String {
        (**self).details()
    }
}

impl<T: Float, M: Forward<T> + ?Sized> Forward<T> for Box<M> {
    fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        (**self).forward(x)
    }

    fn forward_relu(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        (**self).forward_relu(x)
    }

    fn is_relu(&self) -> bool {
        (**self).is_relu()
    }
}

macro_rules! tuples {
    ($(($($member:ident $position:tt),+))+) => {$(
        impl<T: Float, $($member: Module<T>),+> Module<T> for ($($member,)+) {
            fn visit(&self, visitor: &mut Visitor<'_, T>) {
                $(visitor.child(stringify!($position), &self.$position);)+
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
                $(visitor.child(&mut self.$position);)+
            }

            fn title(&self) -> String {
                "ModuleList".to_owned()
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}
