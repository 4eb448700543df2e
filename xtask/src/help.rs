//! `cargo xtask help`: the list of commands.

use anyhow::Result;
use lexopt::Parser;
use xshell::Shell;

use crate::{COMMANDS, no_more_arguments};

pub(crate) fn run(_sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    println!("usage: cargo xtask COMMAND\n");
    for command in COMMANDS {
        let usage = format!("{} {}", command.name, command.arguments);
        println!("  {usage:<42}{}", command.summary);
    }
    Ok(())
}
