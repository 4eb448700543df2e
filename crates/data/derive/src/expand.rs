//! The code that `#[derive(PinMemory)]` generates: a `match` over the variants (a struct counts as one), which calls
//! `PinMemory` for each field.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Ident, Index, Path, Result};

use crate::paths;

const UNION: &str = "`#[derive(PinMemory)]` works on structs and enums: a union does not know which of its fields is alive; use an enum";

/// One variant: the path that matches and constructs it, and its fields.
struct Variant<'a> {
    path: TokenStream,
    fields: Vec<Part<'a>>,
}

struct Part<'a> {
    name: TokenStream,
    variable: Ident,
    field: &'a Field,
    skip: bool,
}

pub(crate) fn pin_memory(input: &DeriveInput) -> Result<TokenStream> {
    let variants = match &input.data {
        Data::Struct(data) => vec![Variant { path: quote!(Self), fields: parts(&data.fields)? }],
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                let ident = &variant.ident;
                Ok(Variant { path: quote!(Self::#ident), fields: parts(&variant.fields)? })
            });
            variants.collect::<Result<_>>()?
        }
        Data::Union(data) => return Err(Error::new(data.union_token.span, UNION)),
    };
    let data = data_path(&input.attrs)?;
    let mut generics = input.generics.clone();
    let pinned = variants.iter().flat_map(|variant| &variant.fields).filter(|part| !part.skip);
    let pinned: Vec<TokenStream> = pinned.map(|part| part.field.ty.to_token_stream()).collect();
    for parameter in generics.type_params_mut() {
        if pinned.iter().any(|ty| mentions(ty, &parameter.ident)) {
            parameter.bounds.push(syn::parse_quote!(#data::PinMemory));
        }
    }
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let (ident, slots) = (&input.ident, format_ident!("slots", span = Span::mixed_site()));
    let pin = variants.iter().map(|variant| variant.pin(&data, &slots));
    let is_pinned = variants.iter().map(|variant| variant.is_pinned(&data));
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #data::PinMemory for #ident #type_generics #where_clause {
            fn move_into(self, #slots: &#data::Slots<'_>) -> #data::Result<Self> {
                let _ = #slots;
                ::core::result::Result::Ok(match self { #(#pin)* })
            }
            fn is_pinned(&self) -> bool {
                match *self { #(#is_pinned)* }
            }
        }
    })
}

/// Whether a type mentions a type parameter.
fn mentions(ty: &TokenStream, parameter: &Ident) -> bool {
    ty.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *parameter,
        TokenTree::Group(group) => mentions(&group.stream(), parameter),
        _ => false,
    })
}

impl Variant<'_> {
    fn pin(&self, data: &Path, slots: &Ident) -> TokenStream {
        let path = &self.path;
        let taken = self.fields.iter().map(|Part { name, variable, .. }| quote!(#name: #variable));
        let pinned = self.fields.iter().map(|Part { name, variable, field, skip }| match skip {
            true => quote!(#name: #variable),
            false => {
                let pin = call(data, field, "move_into");
                quote!(#name: #pin(#variable, #slots)?)
            }
        });
        quote!(#path { #(#taken),* } => #path { #(#pinned),* },)
    }

    fn is_pinned(&self, data: &Path) -> TokenStream {
        let path = &self.path;
        let asked = || self.fields.iter().filter(|part| !part.skip);
        let taken = asked().map(|Part { name, variable, .. }| quote!(#name: ref #variable,));
        let answers = asked().map(|Part { variable, field, .. }| {
            let is_pinned = call(data, field, "is_pinned");
            quote!(&& #is_pinned(#variable))
        });
        quote!(#path { #(#taken)* .. } => true #(#answers)*,)
    }
}

/// The path of a function for a field's type. It has the span of that type, so that the error for a field that cannot
/// be pinned points at the field.
fn call(data: &Path, field: &Field, function: &str) -> TokenStream {
    let (ty, function) = (&field.ty, format_ident!("{function}", span = field.ty.span()));
    quote_spanned!(ty.span()=> <#ty as #data::PinMemory>::#function)
}

fn parts(fields: &Fields) -> Result<Vec<Part<'_>>> {
    let part = |(position, field): (usize, _)| {
        let field: &Field = field;
        let name = match &field.ident {
            Some(ident) => ident.to_token_stream(),
            None => Index::from(position).to_token_stream(),
        };
        let variable = format_ident!("field_{position}", span = Span::mixed_site());
        Ok(Part { name, variable, field, skip: is_skipped(&field.attrs)? })
    };
    fields.iter().enumerate().map(part).collect()
}

fn is_skipped(attributes: &[Attribute]) -> Result<bool> {
    let mut skip = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("pin")) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("skip") {
            true => {
                skip = true;
                Ok(())
            }
            false => Err(meta.error("a field takes `skip`; `crate = path` goes on the type")),
        })?;
    }
    Ok(skip)
}

fn data_path(attributes: &[Attribute]) -> Result<Path> {
    let mut path = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("pin")) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("crate") {
            true => {
                path = Some(meta.value()?.call(Path::parse_mod_style)?);
                Ok(())
            }
            false => Err(meta.error("a type takes `crate = path`; `skip` goes on a field")),
        })?;
    }
    Ok(path.unwrap_or_else(paths::data))
}
