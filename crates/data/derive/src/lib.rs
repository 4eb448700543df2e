//! `#[derive(PinMemory)]`: moves the tensors of a batch into page-locked memory, field by field.
//!
//! Used through `pagelock_data::PinMemory`, which has the documentation with examples. Reading order:
//! [`derive_pin_memory`], then `expand.rs` (the generated code), `paths.rs` (the path of `pagelock_data`).
//!
//! Every error points at the mistake in the user's code and says what to write instead.

mod expand;
mod paths;

use proc_macro::TokenStream;

/// Implements `PinMemory` for a struct or an enum.
///
/// - `#[pin(skip)]` on a field leaves it where it is;
/// - `#[pin(crate = path::to::data)]` on the type gives the path of `pagelock_data`, for crates that depend neither on
///   it nor on `pagelock`.
#[proc_macro_derive(PinMemory, attributes(pin))]
pub fn derive_pin_memory(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::pin_memory(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
