//! PyTorch's figures for the same machine, from a JSON object that maps names to numbers.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

/// See the head of the file. Values that are not numbers, such as the text of an error, are ignored.
pub(crate) struct Torch {
    values: BTreeMap<String, Value>,
}

impl Torch {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let values = serde_json::from_str(&text).with_context(|| format!("{} is not a JSON object", path.display()))?;
        Ok(Self { values })
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name)?.as_f64()
    }

    /// The least number whose name begins with one of `starts`, and its name.
    pub(crate) fn least(&self, starts: &[&str]) -> Option<(&str, f64)> {
        let named = self.values.iter().filter(|(name, _)| starts.iter().any(|start| name.starts_with(start)));
        let numbers = named.filter_map(|(name, value)| Some((&**name, value.as_f64()?)));
        numbers.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
