//! Where `pagelock_data` is for the crate that derives: a dependency of its own, or `pagelock::data`.

use syn::{Path, parse_quote};

/// The path that the generated code starts with.
pub(crate) fn data() -> Path {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").ok();
    let text = manifest.and_then(|folder| std::fs::read_to_string(format!("{folder}/Cargo.toml")).ok());
    match text.is_some_and(|text| names(&text, "pagelock") && !names(&text, "pagelock-data")) {
        true => parse_quote!(::pagelock::data),
        false => parse_quote!(::pagelock_data),
    }
}

/// Whether a manifest depends on a package, or is that package's. A manifest that renames it says so with
/// `#[pin(crate = ..)]`, so reading lines is enough.
fn names(manifest: &str, package: &str) -> bool {
    manifest.lines().map(str::trim).any(|line| {
        let table = line.trim_start_matches('[').trim_end_matches(']');
        let key = table.rsplit("dependencies.").next().unwrap_or(table);
        let key = key.split(['=', '.', ' ']).next().unwrap_or(key).trim_matches('"');
        let own = line.strip_prefix("name").map_or("", |rest| rest.trim_matches([' ', '=', '"']));
        key == package || (own == package && package != "pagelock")
    })
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_dependency_is_found_in_every_form() {
        for manifest in [
            "[dependencies]\npagelock-data = \"0.1\"",
            "[dependencies]\npagelock-data.workspace = true",
            "[dependencies.pagelock-data]\nversion = \"0.1\"",
            "[target.'cfg(unix)'.dependencies.pagelock-data]\nversion = \"0.1\"",
            "[package]\nname = \"pagelock-data\"",
        ] {
            assert!(names(manifest, "pagelock-data"), "{manifest}");
            assert!(!names(manifest, "pagelock"), "{manifest}");
        }
    }

    #[test]
    fn a_package_with_a_longer_name_is_another_one() {
        assert!(!names("[dependencies]\npagelock-data-derive = \"0.1\"", "pagelock-data"));
        assert!(names("[dependencies]\npagelock = { path = \"..\" }", "pagelock"));
    }
}
