//! Errors of loaders, without the name of the worker, which differs from run to run.

/// What follows `worker 0 could ` or `the calling thread could ` in the text of an error.
pub(crate) fn without_worker_name(text: String) -> String {
    text.split_once(" could ").map_or(text.clone(), |(_, rest)| rest.to_owned())
}
