//! The options that the programs of PyTorch's tutorials have in common.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args as _, Command, FromArgMatches as _};
use pagelock::prelude::*;

/// The options of a tutorial's program.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder of the data set [default: for a data set of `pagelock::data`, its folder in $PAGELOCK_DATA or in the
    /// cache folder; else data is generated]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Folder for pictures and files, if the program makes some [default: runs/ and the program's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Little data and few steps: ends within seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seed of weights, order and generated data; the same seed gives the same bits
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Where to compute: cpu, cuda, cuda:1 [default: the first GPU; the CPU if there is none or the network is small]
    #[arg(long)]
    device: Option<String>,
}

impl Options {
    /// Reads the arguments, and sets the seed. A device that does not exist is an error before anything else happens.
    pub(crate) fn read(about: &'static str) -> Result<Self> {
        super::end_quietly_when_output_closes();
        let command = Options::augment_args(Command::new(env!("CARGO_BIN_NAME"))).about(about);
        let options = Options::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
        if let Some(name) = &options.device {
            name.parse::<Device>()?;
        }
        manual_seed(options.seed);
        Ok(options)
    }

    /// The device of `--device`, or the best one.
    pub(crate) fn device(&self) -> Result<Device> {
        self.device_or(Device::best())
    }

    /// The device of `--device`, or `usual`.
    pub(crate) fn device_or(&self, usual: Device) -> Result<Device> {
        Ok(self.device.as_ref().map_or(Ok(usual), |name| name.parse())?)
    }

    /// The folder for results. It is created if needed, and can be written.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        let usual = || Path::new("runs").join(env!("CARGO_BIN_NAME"));
        let folder = self.out.clone().unwrap_or_else(usual);
        super::make_folder(&folder)?;
        Ok(folder)
    }

    /// One of two numbers: the first with `--quick`.
    pub(crate) fn pick(&self, quick: usize, whole: usize) -> usize {
        if self.quick { quick } else { whole }
    }
}
