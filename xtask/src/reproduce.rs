//! `cargo xtask reproduce NAME`: repeats a measurement of the documentation on this machine.
//!
//! The arguments after the name go to the program that measures.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

/// The names of measurements, and the examples that make them.
const EXAMPLES: &[(&str, &str)] = &[("pinmem", "pinmem_nonblock")];

pub(crate) fn run(sh: &Shell, mut parser: Parser) -> Result<()> {
    let name: OsString = parser.value().context("name what to reproduce: pinmem")?;
    let example = example(&name.to_string_lossy())?;
    let arguments: Vec<OsString> = parser.raw_args()?.collect();
    cmd!(sh, "cargo run --quiet --release --example {example} -- {arguments...}").quiet().run()?;
    Ok(())
}

fn example(name: &str) -> Result<&'static str> {
    let Some((_, example)) = EXAMPLES.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = EXAMPLES.iter().map(|(known, _)| *known).collect();
        bail!("there is nothing to reproduce that is called `{name}`; there is: {}", known.join(", "));
    };
    Ok(example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_an_example() {
        assert_eq!(example("pinmem").unwrap(), "pinmem_nonblock");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = example("mnist").unwrap_err();

        assert_eq!(error.to_string(), "there is nothing to reproduce that is called `mnist`; there is: pinmem");
    }
}
