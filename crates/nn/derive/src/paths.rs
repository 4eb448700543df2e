//! Where `pagelock_nn` is for the crate that derives: a dependency of its own, or `pagelock::nn`.

use syn::{Path, parse_quote};

/// The path that the generated code starts with.
pub(crate) fn nn() -> Path {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").ok();
    let text = manifest.and_then(|folder| std::fs::read_to_string(format!("{folder}/Cargo.toml")).ok());
    if text.is_some_and(|text| only_through_pagelock(&text)) {
        return parse_quote!(::pagelock::nn);
    }
    parse_quote!(::pagelock_nn)
}

/// Whether a manifest names `pagelock`, but not `pagelock-nn`.
///
/// Reading lines is enough: a manifest that renames either crate says so with `#[module(crate = ..)]`.
fn only_through_pagelock(manifest: &str) -> bool {
    let mut whole = false;
    for line in manifest.lines().map(str::trim) {
        let key = line.trim_start_matches('[').trim_end_matches(']');
        let key = key.split("dependencies.").last().unwrap_or(key);
        let key = key.split(['=', '.', ' ']).next().unwrap_or(key).trim_matches('"');
        let package = line.strip_prefix("name").map_or("", |rest| rest.trim_matches([' ', '=', '"']));
        if key == "pagelock-nn" || package == "pagelock-nn" {
            return false;
        }
        whole |= key == "pagelock";
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::only_through_pagelock;

    #[test]
    fn a_manifest_with_the_nn_crate_uses_it_directly() {
        assert!(!only_through_pagelock("[dependencies]\npagelock-nn = \"0.1\"\npagelock = \"0.1\""));
        assert!(!only_through_pagelock("[dependencies]\npagelock-nn.workspace = true"));
        assert!(!only_through_pagelock("[dependencies.pagelock-nn]\nversion = \"0.1\""));
        assert!(!only_through_pagelock("[package]\nname = \"pagelock-nn\"\n[dependencies]"));
    }

    #[test]
    fn a_manifest_with_only_the_whole_stack_goes_through_it() {
        assert!(only_through_pagelock("[dependencies]\npagelock = { path = \"..\" }\nanyhow = \"1\""));
        assert!(only_through_pagelock("[dependencies.pagelock]\nversion = \"0.1\""));
        assert!(only_through_pagelock("[target.'cfg(unix)'.dependencies.pagelock]\nversion = \"0.1\""));
    }

    #[test]
    fn a_manifest_with_neither_uses_the_usual_name() {
        assert!(!only_through_pagelock("[dependencies]\nnn = { package = \"pagelock-nn\", version = \"0.1\" }"));
    }
}
