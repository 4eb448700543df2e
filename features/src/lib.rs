//! This crate has no code: its `Cargo.toml` enables features of other crates. README.md says why.
