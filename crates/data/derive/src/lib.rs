//! `#[derive(PinMemory)]`: teaches a batch type to put its tensors into page-locked memory, field by field.
//!
//! Used through `pagelock_data::PinMemory`, where its documentation with examples is. Reading order:
//! [`derive_pin_memory`], then `expand.rs` (what is generated), `paths.rs` (where `pagelock_data` is).
//!
//! Promise: whatever is wrong is said at the place in the user's code where it is wrong, with what to write instead.

mod expand;
mod paths;

use proc_macro::TokenStream;

/// Implements `PinMemory` for a struct or an enum.
///
/// - `#[pin(skip)]` on a field leaves it where it is;
/// - `#[pin(crate = path::to::data)]` on the type says where `pagelock_data` is when it is neither a dependency nor in
///   `pagelock`.
#[proc_macro_derive(PinMemory, attributes(pin))]
pub fn derive_pin_memory(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::pin_memory(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
