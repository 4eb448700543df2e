//! PyTorch's guide "on good usage of `non_blocking` and `pin_memory()`", measured on this machine.
//!
//! `cargo run --release --example pinmem_nonblock` goes through the guide section by section and writes a report to
//! `runs/pinmem`: `report.md` with its figures as SVG, four traces for <https://ui.perfetto.dev>, and every number in
//! `figures.json`. With `--torch pinmem.json`, the report shows PyTorch's figures beside ours. Without a GPU it says
//! so, and shows the same structure with a software device, in a few seconds.
//!
//! Read `figures.rs` first: it has the guide's own code. `traces.rs` shows overlap, `races.rs` which races cannot
//! happen, `factors.rs` what the speed of copies depends on, and `advice.rs` what follows from the figures.
//! `report.rs` and `draw.rs` write the report.

mod advice;
#[path = "../common/mod.rs"]
mod common;
mod draw;
mod factors;
mod figures;
mod machine;
mod place;
mod races;
mod report;
mod torch;
mod traces;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use crate::{
    factors::Factors, figures::Figure, machine::Machine, place::Place, races::Races, torch::Torch, traces::Trace,
};

/// Measure, explain and draw how memory gets to a GPU
#[derive(Parser)]
struct Args {
    /// File with PyTorch's figures on the same machine, as written by its script
    #[arg(long)]
    torch: Option<PathBuf>,
    /// Use a software device: shows the structure of the guide, but its times say nothing about a GPU
    #[arg(long)]
    software: bool,
    /// Force one race instead, for `PAGELOCK_SANITIZE=1` to find
    #[arg(long, hide = true)]
    race: bool,
    /// Folder for the results
    #[arg(long, default_value = "runs/pinmem")]
    out: PathBuf,
}

/// All measurements, in the guide's order.
#[derive(Serialize)]
struct Guide {
    machine: Machine,
    traces: Vec<Trace>,
    one: Figure,
    small: Figure,
    phases: Vec<figures::Phases>,
    large: Figure,
    map: Figure,
    races: Races,
    factors: Factors,
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    if args.race {
        return races::force(&Place::find(args.software)?);
    }
    common::make_folder(&args.out)?;
    let torch = args.torch.as_deref().map(Torch::read).transpose()?;
    let place = Place::find(args.software)?;
    println!("{place}");

    let guide = Guide {
        machine: place.section("page-locked memory", machine::look)?,
        traces: place.section("four traces", |place| traces::record(place, &args.out))?,
        one: place.section("figure 1: one large tensor", figures::one)?,
        small: place.section("figure 2: many small tensors", figures::small)?,
        phases: place.section("figure 2: the calls by phase", figures::phases)?,
        large: place.section("figure 3: many large tensors", figures::large)?,
        map: place.section("figure 4: a map of tensors", figures::map)?,
        races: place.section("races", races::run)?,
        factors: place.section("factors", factors::measure)?,
    };
    place.finish();

    draw::all(&guide, torch.as_ref(), &args.out)?;
    let report = report::write(&guide, torch.as_ref(), &place);
    save(&args, "report.md", &report)?;
    save(&args, "figures.json", &format!("{:#}\n", serde_json::to_value(&guide)?))?;
    println!("{}", report::summary(&guide, torch.as_ref()));
    println!("The report is {}; its figures and traces are beside it.", args.out.join("report.md").display());
    Ok(())
}

fn save(args: &Args, name: &str, text: &str) -> Result<()> {
    let path = args.out.join(name);
    pagelock_files::replace(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
