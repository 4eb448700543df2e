//! `#[derive(Module)]`: visits the parameters, buffers and modes of a struct, field by field.
//!
//! Used through `pagelock_nn::Module`, which has the documentation with examples. Reading order: [`derive_module`],
//! then `attributes.rs` (the contents of `#[module(..)]`), then `expand.rs` (the generated code).
//!
//! Every error points at the mistake in the user's code and says what to write instead.

mod attributes;
mod expand;
mod paths;

use proc_macro::TokenStream;

/// Implements `Module` (and `Display`, which prints the tree of modules) for a struct.
///
/// Each field is visited under its own name, so `conv1: Conv2d` gives the parameters `conv1.weight` and `conv1.bias`.
///
/// - on a field: `#[module(skip)]` leaves the field out, `#[module(rename = "name")]` visits it under another name;
/// - on the struct: `#[module(details = function)]` names a `fn(&Self) -> String` that returns the text between the
///   parentheses when the module is printed, `#[module(no_display)]` leaves `Display` to you, and
///   `#[module(crate = path::to::nn)]` gives the path of `pagelock_nn`, for crates that depend neither on it nor on
///   `pagelock`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::module(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
