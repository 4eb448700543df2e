//! The path of `pagelock_nn` in the crate that uses the derive: `pagelock::nn` if the crate depends on `pagelock`
//! but not on `pagelock-nn`, and `pagelock_nn` otherwise.

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

fn only_through_pagelock(manifest: &str) -> bool {
    names(manifest, "pagelock", true) && !names(manifest, "pagelock-nn", false)
}

/// Whether a manifest lists a package as a dependency, or is the manifest of `pagelock-nn` itself. `with_dev` includes
/// the dependencies of tests, examples and build scripts. Reading lines is enough: a crate that renames the package
/// uses `#[module(crate = ..)]`.
fn names(manifest: &str, package: &str, with_dev: bool) -> bool {
    let mut is_dev = false;
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            is_dev = line.contains("dev-dependencies") || line.contains("build-dependencies");
        }
        let table = line.trim_start_matches('[').trim_end_matches(']');
        let key = table.rsplit("dependencies.").next().unwrap_or(table);
        let key = key.split(['=', '.', ' ']).next().unwrap_or(key).trim_matches('"');
        let own = line.strip_prefix("name").map_or("", |rest| rest.trim_matches([' ', '=', '"']));
        (with_dev || !is_dev) && (key == package || (own == package && package != "pagelock"))
    })
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

    #[test]
    fn a_dependency_of_tests_alone_is_none_of_the_library() {
        assert!(only_through_pagelock("[dependencies]\npagelock = \"0.1\"\n[dev-dependencies]\npagelock-nn = \"0.1\""));
        assert!(!only_through_pagelock(
            "[dev-dependencies]\npagelock = \"0.1\"\n[dependencies]\npagelock-nn = \"0.1\""
        ));
    }
}
