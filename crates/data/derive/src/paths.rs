//! The path of `pagelock_data` in the crate that uses the derive: a dependency of its own, or `pagelock::data`.

use syn::{Path, parse_quote};

/// The path that the generated code starts with.
pub(crate) fn data() -> Path {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").ok();
    let text = manifest.and_then(|folder| std::fs::read_to_string(format!("{folder}/Cargo.toml")).ok());
    match text.is_some_and(|text| names(&text, "pagelock", true) && !names(&text, "pagelock-data", false)) {
        true => parse_quote!(::pagelock::data),
        false => parse_quote!(::pagelock_data),
    }
}

/// Whether a manifest depends on a package, or is that package's own. `with_dev`: also only for tests and examples.
/// Reading lines is enough: a crate that renames the package uses `#[pin(crate = ..)]`.
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
            assert!(names(manifest, "pagelock-data", false), "{manifest}");
            assert!(!names(manifest, "pagelock", true), "{manifest}");
        }
    }

    #[test]
    fn a_package_with_a_longer_name_is_another_one() {
        assert!(!names("[dependencies]\npagelock-data-derive = \"0.1\"", "pagelock-data", true));
        assert!(names("[dependencies]\npagelock = { path = \"..\" }", "pagelock", false));
    }

    #[test]
    fn a_dependency_of_tests_alone_is_none_of_the_library() {
        let manifest = "[dependencies]\npagelock = \"0.1\"\n[dev-dependencies]\npagelock-data = \"0.1\"";
        assert!(names(manifest, "pagelock", false) && !names(manifest, "pagelock-data", false));
        assert!(names(manifest, "pagelock-data", true));
    }
}
