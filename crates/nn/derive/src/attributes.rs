//! Parses `#[module(..)]` on a struct and on a field.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, LitStr, Path, Result};

/// The attributes of a struct.
#[derive(Default)]
pub(crate) struct Container {
    pub(crate) krate: Option<Path>,
    pub(crate) no_display: bool,
    /// The function that returns the text between the parentheses when the module is printed.
    pub(crate) details: Option<Path>,
}

/// The attributes of a field.
#[derive(Default)]
pub(crate) struct Field {
    pub(crate) skip: bool,
    pub(crate) rename: Option<(String, Span)>,
}

impl Container {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("crate") {
                found.krate = Some(meta.value()?.call(Path::parse_mod_style)?);
            } else if meta.path.is_ident("no_display") {
                found.no_display = true;
            } else if meta.path.is_ident("details") {
                found.details = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error(
                    "a struct takes `details = function`, `no_display` or `crate = path`; `skip` and `rename` go on a field",
                ));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

impl Field {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("skip") {
                found.skip = true;
            } else if meta.path.is_ident("rename") {
                let name: LitStr = meta.value()?.parse()?;
                found.rename = Some((checked(&name)?, name.span()));
            } else {
                return Err(meta.error("a field takes `skip` or `rename = \"name\"`"));
            }
            if found.skip && found.rename.is_some() {
                return Err(meta.error("a skipped field has no name: remove `skip` or `rename`"));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

fn each(attributes: &[Attribute], mut take: impl FnMut(ParseNestedMeta<'_>) -> Result<()>) -> Result<()> {
    let mut ours = attributes.iter().filter(|attribute| attribute.path().is_ident("module"));
    ours.try_for_each(|attribute| attribute.parse_nested_meta(&mut take))
}

/// Checks a name: it is one part of a dotted path, so it cannot contain a dot.
fn checked(name: &LitStr) -> Result<String> {
    let text = name.value();
    if text.is_empty() || text.contains('.') {
        let message = format!(
            "`{text}` cannot name a field: a name is not empty and has no dot (dots join the names of nested modules)"
        );
        return Err(syn::Error::new(name.span(), message));
    }
    Ok(text)
}
