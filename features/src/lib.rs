//! Nothing: this crate is its `Cargo.toml`, which names features of other crates. README.md says why.
