//! The code that `#[derive(Module)]` generates: `visit` and `visit_mut`, which visit each field, and `Display`.

use crate::attributes::{Container, Field};
use crate::paths;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use std::collections::HashMap;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Data, DeriveInput, Error, Fields, Generics, Ident, Index, Path, Result, Type};

const ENUM: &str = "`#[derive(Module)]` works on structs: to choose a layer at run time, hold a `Box<dyn Layer>` \
    (or one `Option<Layer>` per choice) in a struct";
const UNION: &str =
    "`#[derive(Module)]` works on structs: a union does not know which of its fields is alive; use a struct";

/// A field that is visited.
struct Child {
    access: TokenStream,
    name: String,
    name_span: Span,
    ty: Type,
}

pub(crate) fn module(input: &DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => return Err(Error::new(data.enum_token.span, ENUM)),
        Data::Union(data) => return Err(Error::new(data.union_token.span, UNION)),
    };
    let container = Container::parse(&input.attrs)?;
    let children = children(fields)?;
    reject_equal_names(&children)?;

    let nn = container.krate.clone().unwrap_or_else(paths::nn);
    let generics = bounded(&input.generics, &children, &nn);
    let module = implementation(input, &container, &generics, &children, &nn);
    let display = if container.no_display { TokenStream::new() } else { display(input, &generics, &nn) };
    Ok(quote! { #module #display })
}

/// The fields to visit, with the names that they are visited under.
fn children(fields: &Fields) -> Result<Vec<Child>> {
    let mut children = Vec::new();
    for (position, field) in fields.iter().enumerate() {
        let attributes = Field::parse(&field.attrs)?;
        if attributes.skip {
            continue;
        }
        let access = match &field.ident {
            Some(ident) => ident.to_token_stream(),
            None => Index::from(position).to_token_stream(),
        };
        let plain = access.to_string();
        let (name, name_span) =
            attributes.rename.unwrap_or_else(|| (plain.trim_start_matches("r#").to_owned(), field.span()));
        children.push(Child { access, name, name_span, ty: field.ty.clone() });
    }
    Ok(children)
}

fn reject_equal_names(children: &[Child]) -> Result<()> {
    let mut first = HashMap::new();
    for child in children {
        if let Some(access) = first.insert(&child.name, &child.access) {
            let message = format!("the field `{access}` is visited as `{}` already: choose another name", child.name);
            return Err(Error::new(child.name_span, message));
        }
    }
    Ok(())
}

/// The struct's generics, with the bound `Module` on every field type that mentions a type parameter.
fn bounded(generics: &Generics, children: &[Child], nn: &Path) -> Generics {
    let mut generics = generics.clone();
    let parameters: Vec<Ident> = generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    for Child { ty, .. } in children {
        if mentions(ty, &parameters) {
            generics.make_where_clause().predicates.push(syn::parse_quote!(#ty: #nn::Module));
        }
    }
    generics
}

/// Whether a type names one of the parameters.
fn mentions(ty: &Type, parameters: &[Ident]) -> bool {
    struct Finder<'a>(&'a [Ident], bool);
    impl<'ast> Visit<'ast> for Finder<'_> {
        fn visit_path(&mut self, path: &'ast Path) {
            self.1 |=
                self.0.iter().any(|parameter| path.segments.first().is_some_and(|first| first.ident == *parameter));
            syn::visit::visit_path(self, path);
        }
    }
    let mut finder = Finder(parameters, false);
    finder.visit_type(ty);
    finder.1
}

fn implementation(
    input: &DeriveInput,
    container: &Container,
    generics: &Generics,
    children: &[Child],
    nn: &Path,
) -> TokenStream {
    let ident = &input.ident;
    let title = ident.to_string();
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let visitor = format_ident!("visitor", span = Span::mixed_site());
    let visits = children.iter().map(|Child { access, name, ty, .. }| {
        // With the span of the type, so that the error for a field that is no module points at the field.
        quote_spanned! { ty.span() => #nn::Visitor::child(#visitor, #name, &self.#access); }
    });
    let visits_mut = children.iter().map(|Child { access, ty, .. }| {
        quote_spanned! { ty.span() => #nn::VisitorMut::child(#visitor, &mut self.#access); }
    });
    let details = container.details.iter().map(|function| {
        quote! {
            fn details(&self) -> ::std::string::String {
                #function(self)
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl #impl_generics #nn::Module for #ident #type_generics #where_clause {
            fn visit(&self, #visitor: &mut #nn::Visitor<'_>) {
                let _ = &#visitor;
                #(#visits)*
            }
            fn visit_mut(&mut self, #visitor: &mut #nn::VisitorMut<'_>) {
                let _ = &#visitor;
                #(#visits_mut)*
            }
            fn title(&self) -> ::std::string::String {
                ::std::string::String::from(#title)
            }
            #(#details)*
        }
    }
}

fn display(input: &DeriveInput, generics: &Generics, nn: &Path) -> TokenStream {
    let ident = &input.ident;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::std::fmt::Display for #ident #type_generics #where_clause {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&#nn::print(self), formatter)
            }
        }
    }
}
