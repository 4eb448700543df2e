//! `#[derive(Module)]`: teaches a struct to show its parameters, buffers and modes, field by field.
//!
//! Used through `pagelock_nn::Module`, where its documentation with examples is. Reading order: [`derive_module`],
//! then `attributes.rs` (what may be written in `#[module(..)]`), then `expand.rs` (what is generated).
//!
//! Promise: whatever is wrong is said at the place in the user's code where it is wrong, with what to write instead.

mod attributes;
mod expand;
mod paths;

use proc_macro::TokenStream;

/// Implements `Module` (and `Display`, which prints the tree of modules) for a struct.
///
/// Each field is visited under its own name, so `conv1: Conv2d` gives the parameters `conv1.weight` and `conv1.bias`.
///
/// - on a field: `#[module(skip)]` leaves it out, `#[module(rename = "name")]` visits it under another name;
/// - on the struct: `#[module(details = function)]` names a `fn(&Self) -> String` that writes what stands between the
///   parentheses in print, `#[module(no_display)]` leaves `Display` to you, and `#[module(crate = path::to::nn)]` says where
///   `pagelock_nn` is when it is neither a dependency nor in `pagelock`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::module(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
