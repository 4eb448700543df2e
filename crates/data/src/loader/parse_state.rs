//! How states of loaders are read from their lines. Read `../state.rs` first, which writes them.

use std::str::FromStr;

use crate::state::{LoaderState, StreamState, unchecked};
use crate::{Error, Result};

impl FromStr for LoaderState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoState`] for anything that [`LoaderState`] does not print, damaged lines too; [`Error::OldState`] for what
    /// it once printed, without order and dataset.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (sizes, rest) = unchecked(text)?.split_once("; order: ")?;
            let (order, dataset) = rest.split_once("; data: ")?;
            Some(Self { order: order.to_owned(), dataset: dataset.to_owned(), ..loader_state(sizes)? })
        };
        let example = "epoch 3, batch 17, 50000 samples in batches of 64; order: …; data: …; check …";
        parse().ok_or_else(|| not_a_state(text, example, |text| loader_state(text).map(|state| state.epoch)))
    }
}

impl FromStr for StreamState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoState`] for anything that [`StreamState`] does not print, damaged lines too; [`Error::OldState`] for what
    /// it once printed, without shards and dataset.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (sizes, rest) = unchecked(text)?.split_once("; shards: ")?;
            let (share, dataset) = rest.split_once("; data: ")?;
            Some(Self { share: share.to_owned(), dataset: dataset.to_owned(), ..stream_state(sizes)? })
        };
        let example = "epoch 3, round 17, turn 2 of 8 shards in batches of 64; shards: …; data: …; check …";
        parse().ok_or_else(|| not_a_state(text, example, |text| stream_state(text).map(|state| state.epoch)))
    }
}

/// The first part of a line, without order and dataset.
fn loader_state(text: &str) -> Option<LoaderState> {
    let [epoch, batch, n_samples, batches] = numbers(text, ["epoch ", ", batch ", ", ", " samples in "])?;
    let (drop_last, batch_size) = parse_batches(batches)?;
    let (epoch, batch, n_samples) = (epoch.parse().ok()?, batch.parse().ok()?, n_samples.parse().ok()?);
    Some(LoaderState { epoch, batch, n_samples, batch_size, drop_last, order: String::new(), dataset: String::new() })
}

/// The first part of a line, without shards and dataset.
fn stream_state(text: &str) -> Option<StreamState> {
    let names = ["epoch ", ", round ", ", turn ", " of ", " shards in "];
    let [epoch, round, turn, n_shards, batches] = numbers(text, names)?;
    let (drop_last, batch_size) = parse_batches(batches)?;
    let (epoch, round, turn) = (epoch.parse().ok()?, round.parse().ok()?, turn.parse().ok()?);
    let (n_shards, share, dataset) = (n_shards.parse().ok()?, String::new(), String::new());
    Some(StreamState { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset })
}

/// What stands behind each of the names, in their order.
fn numbers<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[&'a str; N]> {
    let mut parts = [""; N];
    let mut rest = text.strip_prefix(names[0])?;
    for (i, name) in names.iter().enumerate().skip(1) {
        (parts[i - 1], rest) = rest.split_once(name)?;
    }
    parts[N - 1] = rest;
    Some(parts)
}

/// Whether smaller batches are left out, and the batch size: "full batches of 64".
fn parse_batches(text: &str) -> Option<(bool, usize)> {
    let (drop_last, text) = text.strip_prefix("full ").map_or((false, text), |rest| (true, rest));
    Some((drop_last, text.strip_prefix("batches of ")?.parse().ok()?))
}

/// That a text is no state; one of an older version, which ended after the sizes, is told apart.
fn not_a_state(text: &str, example: &'static str, epoch: impl Fn(&str) -> Option<u64>) -> Error {
    let text = text.trim();
    match epoch(text) {
        Some(epoch) => Error::OldState { text: text.to_owned(), epoch },
        None => Error::NoState { text: text.chars().take(80).collect(), example },
    }
}
