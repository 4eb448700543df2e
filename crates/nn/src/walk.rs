//! The methods of [`Module`](crate::Module) as traversals of a module tree, compiled here once for all types of
//! modules.
//!
//! A traversal uses only the `visit` of a module, so each method that the trait provides is one call.

use std::collections::HashSet;

use pagelock_tensor::{AnyTensor, GeneratorState};

use crate::module::{VisitEvent, Visitor, VisitorMut};
use crate::{Misfit, Module, Parameter, Result, StateDict};

/// The part of a module that a traversal uses, without its type.
pub(crate) trait Walked {
    fn visit(&self, visitor: &mut Visitor<'_>);
}

/// As [`Walked`], for traversals that change modules.
pub(crate) trait WalkedMut {
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);
}

/// A module to traverse.
pub(crate) struct Of<'a, M: ?Sized>(pub(crate) &'a M);

/// A module to traverse and change.
pub(crate) struct OfMut<'a, M: ?Sized>(pub(crate) &'a mut M);

impl<M: Module + ?Sized> Walked for Of<'_, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}

impl<M: Module + ?Sized> WalkedMut for OfMut<'_, M> {
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.0.visit_mut(visitor);
    }
}

pub(crate) type Visit<'a> = &'a dyn Walked;

pub(crate) type VisitMut<'a> = &'a mut dyn WalkedMut;

pub(crate) fn walk(visit: Visit<'_>, report: &mut dyn FnMut(&str, VisitEvent<'_>)) {
    visit.visit(&mut Visitor::new(report));
}

pub(crate) fn named_parameters(visit: Visit<'_>) -> Vec<(String, Parameter)> {
    let mut found: Vec<(String, Parameter)> = Vec::new();
    let mut seen = HashSet::new();
    walk(visit, &mut |name, event| {
        if let VisitEvent::Parameter(parameter) = event
            && seen.insert(parameter.id())
        {
            found.push((name.to_owned(), parameter.clone()));
        }
    });
    found
}

pub(crate) fn parameters(visit: Visit<'_>) -> Vec<Parameter> {
    named_parameters(visit).into_iter().map(|(_, parameter)| parameter).collect()
}

pub(crate) fn num_parameters(visit: Visit<'_>) -> usize {
    parameters(visit).iter().map(|parameter| parameter.len()).sum()
}

pub(crate) fn named_buffers(visit: Visit<'_>) -> Vec<(String, AnyTensor)> {
    let mut found = Vec::new();
    walk(visit, &mut |name, event| {
        found.extend(event.buffer().map(|buffer| (name.to_owned(), buffer)));
    });
    found
}

pub(crate) fn buffers(visit: Visit<'_>) -> Vec<AnyTensor> {
    named_buffers(visit).into_iter().map(|(_, buffer)| buffer).collect()
}

/// Calls `f` with each module below the root, each before its children. Modules without a title, such as parameters,
/// are left out.
pub(crate) fn modules(visit: Visit<'_>, f: &mut dyn FnMut(&dyn Module)) {
    walk(visit, &mut |_, event| {
        if let VisitEvent::Enter { module, .. } = event
            && !module.title().is_empty()
        {
            f(module);
        }
    });
}

pub(crate) fn set_mode(visit: Visit<'_>, training: bool) {
    walk(visit, &mut |_, event| {
        if let VisitEvent::Mode(mode) = event {
            mode.set_training(training);
        }
    });
}

pub(crate) fn is_training(visit: Visit<'_>) -> bool {
    let mut training = false;
    walk(visit, &mut |_, event| {
        if let VisitEvent::Mode(mode) = event {
            training |= mode.is_training();
        }
    });
    training
}

pub(crate) fn zero_grad(visit: Visit<'_>) {
    walk(visit, &mut |_, event| {
        if let VisitEvent::Parameter(parameter) = event {
            parameter.zero_grad();
        }
    });
}

pub(crate) fn state_dict(visit: Visit<'_>) -> StateDict {
    let mut dict = StateDict::new();
    walk(visit, &mut |name, event| match event {
        VisitEvent::Parameter(parameter) => dict.add(name, parameter.detach().into()),
        event => event.buffer().into_iter().for_each(|buffer| dict.add(name, buffer)),
    });
    dict
}

/// The states of all generators, in the order of declaration.
pub(crate) fn generators(visit: Visit<'_>) -> Vec<(String, GeneratorState)> {
    let mut found = Vec::new();
    walk(visit, &mut |name, event| {
        if let VisitEvent::Generator(generator) = event {
            found.push((name.to_owned(), generator.state()));
        }
    });
    found
}

/// Sets the states of all generators, which are in the order of [`generators`].
pub(crate) fn set_generators(visit: Visit<'_>, states: &[GeneratorState]) {
    let mut states = states.iter();
    walk(visit, &mut |_, event| {
        if let VisitEvent::Generator(generator) = event {
            states.next().into_iter().for_each(|&state| generator.set_state(state));
        }
    });
}

pub(crate) fn load_state_dict(visit: Visit<'_>, dict: &StateDict) -> Result<()> {
    dict.copy_into(&state_dict(visit))
}

pub(crate) fn load_state_dict_partly(visit: Visit<'_>, dict: &StateDict) -> Result<Misfit> {
    dict.copy_partly_into(&state_dict(visit))
}
