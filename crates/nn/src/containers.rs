//! Modules made of modules: `Vec`, arrays, `Option`, `Box`, tuples. Positions become names: `"0"`, `"1"`, as in PyTorch.

use crate::{Forward, Module, VisitEvent, Visitor, VisitorMut};
use pagelock_tensor::{Result, Tensor};

/// `lists! { docs [generics] type; .. }`
macro_rules! lists {
    ($($(#[$docs:meta])* [$($generics:tt)+] $list:ty;)+) => {$(
        $(#[$docs])*
        impl<$($generics)+> Module for $list {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                for (position, module) in self.iter().enumerate() {
                    visitor.child_at(position, module);
                }
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                self.iter_mut().for_each(|module| visitor.child(module));
            }

            fn title(&self) -> String {
                "ModuleList".to_owned()
            }
        }
    )+};
}

lists! {
    /// As PyTorch's `ModuleList`.
    [M: Module] Vec<M>;
    /// As for `Vec`.
    [M: Module, const N: usize] [M; N];
}

/// The module in `Some`, under the name of the option; nothing for `None`.
impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            visitor.report(VisitEvent::Inside { address: std::ptr::from_ref(module).addr() });
            module.visit(visitor);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
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

/// The boxed module, under the name of the box.
impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Inside { address: std::ptr::from_ref(&**self).cast::<()>().addr() });
        (**self).visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        (**self).visit_mut(visitor);
    }

    fn title(&self) -> String {
        (**self).title()
    }

    fn details(&self) -> String {
        (**self).details()
    }
}

impl<M: Forward + ?Sized> Forward for Box<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }

    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward_relu(x)
    }

    fn is_relu(&self) -> bool {
        (**self).is_relu()
    }
}

macro_rules! tuples {
    ($(($($member:ident $position:tt),+))+) => {$(
        impl<$($member: Module),+> Module for ($($member,)+) {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(visitor.child(stringify!($position), &self.$position);)+
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
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
