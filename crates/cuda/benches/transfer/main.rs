//! How fast bytes move between this host and its GPU, and what launches cost. Each figure is printed with its limit:
//! what the wire allows, or what the driver's own call takes.
//!
//! ```sh
//! cargo bench -p pagelock-cuda --bench transfer              # a table
//! cargo bench -p pagelock-cuda --bench transfer -- --json    # one JSON object instead; `--json FILE` writes it there
//! cargo bench -p pagelock-cuda --bench transfer -- --sweep   # staged copies, for rings of many shapes
//! ```
//! Every figure is a median. To compare with another library, run both on the same machine, one after the other.

mod copies;
mod launches;
mod sweep;

use std::{error::Error, fs, process::ExitCode, time::Instant};

use pagelock_cuda::Device;

/// One measurement.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What the wire allows, or the driver's own call takes, measured in the same run, in the same unit.
    pub(crate) limit: Option<f64>,
}

impl Figure {
    pub(crate) fn new(name: &'static str, value: f64, unit: &'static str, limit: Option<f64>) -> Self {
        Self { name, value, unit, limit }
    }
}

fn main() -> ExitCode {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &Device) -> Result<(), Box<dyn Error>> {
    if std::env::args().any(|argument| argument == "--sweep") {
        return Ok(sweep::run(device)?);
    }
    let figures = measure(device)?;
    let mut from_json = std::env::args().skip_while(|argument| argument != "--json");
    let (is_json, file) = (from_json.next().is_some(), from_json.next().filter(|file| !file.starts_with('-')));
    match file {
        Some(file) => {
            fs::write(&file, json(device, &figures)).map_err(|error| format!("cannot write {file}: {error}"))?;
        }
        None if is_json => println!("{}", json(device, &figures)),
        None => figures.iter().for_each(print),
    }
    Ok(())
}

fn measure(device: &Device) -> pagelock_cuda::Result<Vec<Figure>> {
    let mut figures = copies::measure(device)?;
    figures.extend(launches::measure(device)?);
    Ok(figures)
}

fn print(figure: &Figure) {
    let limit = figure.limit.map_or(String::new(), |limit| format!("limit {limit:.2}"));
    println!("{:<64} {:>10.3} {:<4} {limit}", figure.name, figure.value, figure.unit);
}

fn json(device: &Device, figures: &[Figure]) -> String {
    let fields = figures.iter().map(|Figure { name, value, unit, limit }| {
        let limit = limit.map_or("null".to_owned(), |limit| format!("{limit:.4}"));
        format!("\"{name}\": {{\"value\": {value:.4}, \"unit\": \"{unit}\", \"limit\": {limit}}}")
    });
    format!("{{\"device\": \"{}\", {}}}", device.properties().name, fields.collect::<Vec<_>>().join(", "))
}

/// The median time of `runs` runs, in milliseconds, after two warm-up runs.
pub(crate) fn millis<E>(runs: usize, mut run: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut times = Vec::with_capacity(runs);
    for index in 0..runs + 2 {
        let start = Instant::now();
        run()?;
        if index >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(quantile(&mut times, 0.5))
}

pub(crate) fn quantile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * part).round() as usize]
}
