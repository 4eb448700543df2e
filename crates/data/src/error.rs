//! Errors. Every message states the numbers and the fix.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelock_memory::text::whole_text;

use crate::NoDownload;
use crate::panics::{drop_panic, panic_message};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
///
/// # Examples
/// ```
/// use pagelock_data::Error;
///
/// // A dataset of one's own wraps what it runs into:
/// fn first_label(labels: &[u8]) -> pagelock_data::Result<u8> {
///     labels.first().copied().ok_or_else(|| Error::other("there are no labels"))
/// }
/// assert_eq!(first_label(&[]).unwrap_err().to_string(), "there are no labels");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid: a setting, an index, weights, sizes that do not match, an empty dataset, or an
    /// environment variable. The text names it, with the numbers.
    #[error("{0}")]
    Argument(String),

    /// A file or folder could not be read or written.
    #[error("cannot {action} `{}`: {source}; check the path and its permissions", path.display())]
    Io {
        /// The action that failed: "open", "create", …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        r#source: io::Error,
    },

    /// The content of a file or folder is damaged, of another format, or does not match the request.
    #[error("`{}` {problem}", path.display())]
    Content {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do: "cannot be used: …".
        problem: String,
    },

    /// A data file is missing and will not be downloaded.
    #[error(
        "`{file}` is not in `{}` and {}; put {} (md5 {md5}) there, or set PAGELOCK_DATA to a folder that has \
         `{set}/{file}`, or {}",
        folder.display(), because.reason(), urls.join(" or "), because.remedy()
    )]
    Missing {
        /// The name of the file.
        file: &'static str,
        /// The data set that it belongs to, and the folder's name in `$PAGELOCK_DATA`.
        set: &'static str,
        /// Where it was looked for.
        folder: PathBuf,
        /// Its checksum.
        md5: &'static str,
        /// Where to get it.
        urls: Vec<String>,
        /// Why it was not downloaded.
        because: NoDownload,
    },

    /// No mirror delivered the file.
    #[error(
        "cannot download `{file}` (md5 {md5}) into `{}`: {}; check the network, put the file there by hand, or set \
         PAGELOCK_DATA to a folder that has `{set}/{file}`",
        folder.display(), attempts.join("; ")
    )]
    Download {
        /// The name of the file.
        file: &'static str,
        /// The data set that it belongs to, and the folder's name in `$PAGELOCK_DATA`.
        set: &'static str,
        /// The folder for the file.
        folder: PathBuf,
        /// The checksum that it should have had.
        md5: &'static str,
        /// For each address, in the order in which they were tried, what failed.
        attempts: Vec<String>,
    },

    /// There is no folder for data files: neither is one set, nor is there a home directory.
    #[error(
        "no folder for data files: PAGELOCK_DATA is not set and there is no home directory ({because}); \
         set PAGELOCK_DATA or give a folder"
    )]
    NoFolder {
        /// The error of the look-up of the home directory.
        because: String,
    },

    /// A loader cannot resume from a state: the text is not a state or is damaged, or the state belongs to another
    /// loader or is past the end of the epoch. [`Loader::set_epoch`](crate::Loader::set_epoch) begins an epoch
    /// instead.
    #[error("{0}")]
    State(String),

    /// The dataset could not give a sample.
    #[error(
        "{} could not get {}: {source}; skip_bad_samples(true) leaves such samples out",
        worker_name(*worker), sample_of(*index, *shard)
    )]
    Sample {
        /// Its index in the dataset, or in its shard.
        index: usize,
        /// Its shard, if it comes from a stream.
        shard: Option<usize>,
        /// The worker that tried to fetch it, counted from 0; `None` for the calling thread.
        worker: Option<usize>,
        /// The error of the dataset.
        r#source: Box<Error>,
    },

    /// A shard of a stream could not be opened; it gives no samples in this epoch.
    #[error("{} could not open shard {shard}: {source}", worker_name(*worker))]
    Shard {
        /// Which shard, counted from 0.
        shard: usize,
        /// The worker that tried to open it, counted from 0; `None` for the calling thread.
        worker: Option<usize>,
        /// The error of the dataset.
        r#source: Box<Error>,
    },

    /// A batch could not be made, and no single sample is the cause: collating it failed, or there was no memory for it.
    #[error("{} could not make {}: {source}", worker_name(*worker), batch_of(*n_samples, *first, *shard))]
    Batch {
        /// How many samples the batch has.
        n_samples: usize,
        /// The first sample's index in the dataset, or in its shard.
        first: usize,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// The worker that tried to make it, counted from 0; `None` for the calling thread.
        worker: Option<usize>,
        /// The cause.
        r#source: Box<Error>,
    },

    /// A panic while a batch was made; the loader goes on with the next.
    #[error(
        "{} panicked{}: {message}; RUST_BACKTRACE=1 shows where",
        worker_name(*worker), sample.map_or_else(String::new, |sample| format!(" at {}", sample_of(sample, *shard)))
    )]
    Panicked {
        /// The worker, counted from 0; `None` for the calling thread.
        worker: Option<usize>,
        /// The sample that was being fetched, if any: its index in the dataset, or in its shard.
        sample: Option<usize>,
        /// Its shard, if it comes from a stream.
        shard: Option<usize>,
        /// The message of the panic.
        message: String,
    },

    /// All samples of a batch failed, and were left out.
    #[error(
        "{} could get none of the {n_samples} samples of a batch; the last of them, {}: {error}; look at skipped(), or at \
         the dataset",
        worker_name(*worker), sample_of(*index, *shard)
    )]
    AllSkipped {
        /// How many samples the batch was to have.
        n_samples: usize,
        /// The index of the last of them in the dataset, or in its shard.
        index: usize,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// The worker that tried to fetch them, counted from 0; `None` for the calling thread.
        worker: Option<usize>,
        /// The error of the last of them.
        error: String,
    },

    /// A batch was not ready in time. The epoch goes on without it, and a worker that was making it was replaced. In
    /// a stream, the batch comes later instead.
    #[error("batch {batch} was not ready after {waited:.1?}: {}", late(*worker, *sample, *first, *shard))]
    Timeout {
        /// The worker that makes it, counted from 0, if one had started.
        worker: Option<usize>,
        /// The number of the batch in its epoch.
        batch: usize,
        /// The sample that the worker is fetching, if any: its index in the dataset, or in its shard.
        sample: Option<usize>,
        /// The first sample of the batch, if the worker has begun it.
        first: Option<usize>,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// How long the program waited.
        waited: Duration,
    },

    /// A worker could not start: the system gave no thread, or `worker_init` failed.
    #[error("worker {worker} could not start: {source}")]
    Worker {
        /// Which worker, counted from 0.
        worker: usize,
        /// The cause.
        r#source: Box<Error>,
    },

    /// The samples of a batch have different shapes.
    #[error(
        "sample {index} is {shape:?}, but sample {first} of the same batch is {first_shape:?}; bring all samples to one \
         shape, or batch them with a function of your own (DataLoader::with_collate)"
    )]
    Uneven {
        /// The sample that differs: its index in the dataset (its position in the batch if stacked by hand).
        index: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// The first sample of the batch, in the same numbering.
        first: usize,
        /// The shape of the first sample.
        first_shape: Vec<usize>,
    },

    /// Host memory was refused.
    #[error(transparent)]
    Memory(#[from] pagelock_memory::Error),

    /// A tensor operation was refused.
    #[error(transparent)]
    Tensor(Box<pagelock_tensor::Error>),

    /// An error of the program's own, from a dataset for example.
    #[error("{}", whole_text(&**.0))]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

pagelock_memory::debug_is_the_message!(Error);

impl From<pagelock_tensor::Error> for Error {
    fn from(error: pagelock_tensor::Error) -> Self {
        Self::Tensor(error.into())
    }
}

impl Error {
    /// Wraps an error or a text of your own.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Error;
    ///
    /// let error = "x".parse::<f32>().map_err(Error::other).unwrap_err();
    /// assert_eq!(error.to_string(), "invalid float literal");
    /// ```
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Turns positions in a batch into the indices of samples.
    pub(crate) fn locate(self, sample: impl Fn(usize) -> usize) -> Self {
        match self {
            Error::Uneven { index, shape, first, first_shape } => {
                Error::Uneven { index: sample(index), shape, first: sample(first), first_shape }
            }
            other => other,
        }
    }

    /// Adds which batch failed and which worker made it. Unchanged if no batch was begun.
    pub(crate) fn of_batch(self, indices: &[usize], shard: Option<usize>, worker: Option<usize>) -> Self {
        match indices.first() {
            Some(&first) => Error::Batch { n_samples: indices.len(), first, shard, worker, source: self.into() },
            None => self,
        }
    }

    /// Whether memory was refused, for which no single sample is to blame.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Memory(_) => true,
            Error::Tensor(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// An error with the message of a panic, the worker and the sample. Drops the panic's payload, whose drop may
    /// panic again.
    pub(crate) fn panicked(
        worker: Option<usize>,
        sample: Option<usize>,
        shard: Option<usize>,
        panic: Box<dyn Any + Send>,
    ) -> Self {
        let message = panic_message(&*panic).to_owned();
        drop_panic(panic);
        Self::Panicked { worker, sample, shard, message }
    }

    /// Runs `work`; a panic becomes an error that names the worker and the sample.
    pub(crate) fn catch<R>(
        worker: Option<usize>,
        sample: Option<usize>,
        shard: Option<usize>,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.unwrap_or_else(|panic| Err(Self::panicked(worker, sample, shard, panic)))
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }

    /// The content of a file is not usable.
    pub(crate) fn content(path: &Path, problem: impl fmt::Display) -> Self {
        Self::Content { path: path.into(), problem: format!("cannot be used: {problem}") }
    }

    pub(crate) fn empty_dataset() -> Self {
        let text =
            "the dataset is empty, so there is no batch to load; check the path, filter or split that it came from";
        Self::Argument(text.into())
    }
}

/// Why something in a file cannot be used, from code that does not know the file's path.
pub(crate) enum Problem {
    /// The content is wrong; the text says why, and how to fix it.
    Content(String),
    Other(Error),
}

impl Problem {
    /// The error for the file at `path`.
    pub(crate) fn at(self, path: &Path) -> Error {
        match self {
            Self::Content(problem) => Error::content(path, problem),
            Self::Other(error) => error,
        }
    }

    /// Replaces the text about the content.
    pub(crate) fn explained(self, explain: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Content(problem) => Self::Content(explain(problem)),
            other => other,
        }
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Content(problem)
    }
}

impl From<pagelock_memory::Error> for Problem {
    fn from(refusal: pagelock_memory::Error) -> Self {
        Self::Other(refusal.into())
    }
}

impl From<pagelock_tensor::Error> for Problem {
    fn from(error: pagelock_tensor::Error) -> Self {
        Self::Other(error.into())
    }
}

/// Refuses a setting above `most`.
pub(crate) fn check_most(setting: &str, value: usize, most: usize, usual: &str) -> Result<()> {
    match value > most {
        true => Err(Error::Argument(format!("{setting} is {value}, but must be at most {most}; {usual}"))),
        false => Ok(()),
    }
}

/// Refuses a rank that is not below `world_size`.
pub(crate) fn check_rank(rank: usize, world_size: usize) -> Result<()> {
    if rank < world_size {
        return Ok(());
    }
    Err(Error::Argument(format!("there is no rank {rank} among {world_size} processes; ranks count from 0")))
}

/// "worker 3".
pub(crate) fn worker_name(worker: Option<usize>) -> String {
    worker.map_or_else(|| "the calling thread".to_owned(), |worker| format!("worker {worker}"))
}

/// "sample 5 of shard 2".
pub(crate) fn sample_of(index: usize, shard: Option<usize>) -> String {
    shard.map_or_else(|| format!("sample {index}"), |shard| format!("sample {index} of shard {shard}"))
}

/// "a batch of 64 samples, the first of them sample 5".
pub(crate) fn batch_of(n_samples: usize, first: usize, shard: Option<usize>) -> String {
    let first = sample_of(first, shard);
    match n_samples {
        1 => format!("a batch of {first}"),
        _ => format!("a batch of {n_samples} samples, the first of them {first}"),
    }
}

/// Why a batch is not ready, and what to do.
pub(crate) fn late(worker: Option<usize>, sample: Option<usize>, first: Option<usize>, shard: Option<usize>) -> String {
    let Some(worker) = worker else { return "no worker was free; raise the timeout, or use more workers".to_owned() };
    let (at, look_at) = match (sample, first) {
        (Some(sample), _) => (format!(" at {}", sample_of(sample, shard)), "that sample"),
        (None, Some(first)) => (format!(", with {} as its first", sample_of(first, shard)), "how it is collated"),
        (None, None) => {
            return format!(
                "worker {worker} has not begun it; raise the timeout, or look at worker_init, the sampler and the budget"
            );
        }
    };
    format!("worker {worker} is making it{at}; raise the timeout, or look at {look_at}")
}

/// "5, 7 and 9".
pub(crate) fn listed(numbers: &[usize]) -> String {
    let words: Vec<_> = numbers.iter().map(usize::to_string).collect();
    match words.split_last() {
        None => "0".to_owned(),
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
