//! What can go wrong, with the numbers and the fix in every text.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelock_memory::text::{number, whole_text};

use crate::NoDownload;
use crate::error_text::{batch_of, late, listed, sample_of, who};
use crate::idx::IdxError;
use crate::panics::{drop_panic, panic_message};
use crate::state::{LoaderState, StreamState};

/// `Result` with this crate's [`Error`].
///
/// # Examples
/// ```
/// fn first_label(labels: &[u8]) -> pagelock_data::Result<u8> {
///     labels.first().copied().ok_or(pagelock_data::Error::EmptyDataset)
/// }
/// assert_eq!(first_label(&[7]).unwrap(), 7);
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that this crate reports.
///
/// # Examples
/// ```
/// use pagelock_data::Error;
///
/// // A dataset of one's own wraps what it runs into:
/// let error = Error::other("row 7 has no label");
/// assert_eq!(error.to_string(), "row 7 has no label");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("cannot {action} `{}`: {source}; check the path and its permissions", path.display())]
    Io {
        /// What was tried: "open", "create", …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        r#source: io::Error,
    },

    /// The content of a file is not usable.
    #[error("`{}` is not a usable IDX file: {problem}", path.display())]
    Idx {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: IdxError,
    },

    /// A data file is not there and is not going to be downloaded.
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

    /// No mirror gave the file.
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
        /// Where it should have gone.
        folder: PathBuf,
        /// The checksum that it should have had.
        md5: &'static str,
        /// For each address in turn, what happened there.
        attempts: Vec<String>,
    },

    /// Neither a folder nor an environment in which to find one.
    #[error(
        "no folder for data files: PAGELOCK_DATA is not set and there is no home directory ({because}); \
         set PAGELOCK_DATA or give a folder"
    )]
    NoFolder {
        /// What the look-up of the home directory says.
        because: String,
    },

    /// Files that are each fine do not fit together.
    #[error("`{}` cannot be used: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },

    /// A batch size of zero.
    #[error("the batch size is 0, so an epoch over {n_samples} samples would never end; give at least 1 (64 is usual)")]
    ZeroBatch {
        /// How many samples the dataset has.
        n_samples: usize,
    },

    /// A sampler that gives no index.
    #[error("the sampler visits none of the dataset's {n_samples} samples; check what it was made from")]
    EmptySampler {
        /// How many samples the dataset has.
        n_samples: usize,
    },

    /// The only batch was the last one, and incomplete last batches are left out.
    #[error(
        "{n_samples} samples do not fill one batch of {batch_size}, and drop_last leaves incomplete batches out; \
         use a batch size of at most {n_samples} or keep the last batch"
    )]
    NoBatch {
        /// How many samples one epoch visits.
        n_samples: usize,
        /// How many a batch wants.
        batch_size: usize,
    },

    /// A sample that the dataset does not have.
    #[error(
        "there is no sample {index}: the dataset has {n_samples} samples, counted from 0; check the sampler or the range"
    )]
    NoSample {
        /// The index asked for.
        index: usize,
        /// How many samples there are.
        n_samples: usize,
    },

    /// A range that does not lie within a dataset.
    #[error("samples {}..{} do not lie within the dataset's {n_samples}; keep start <= end <= {n_samples}", range.start, range.end)]
    Range {
        /// The range asked for.
        range: Range<usize>,
        /// How many samples there are.
        n_samples: usize,
    },

    /// Bytes that are not labelled images of digits.
    #[error("{problem}")]
    Digits {
        /// What is wrong with them, and what to do.
        problem: String,
    },

    /// One sample could not be had.
    #[error(
        "{} could not get {}: {source}; skip_bad_samples(true) leaves such samples out",
        who(*worker), sample_of(*index, *shard)
    )]
    Sample {
        /// Its index in the dataset, or in its shard.
        index: usize,
        /// Its shard, if it comes from a stream.
        shard: Option<usize>,
        /// The worker that was to get it, counted from 0; none if that was the calling thread.
        worker: Option<usize>,
        /// What the dataset ran into.
        r#source: Box<Error>,
    },

    /// A shard of a stream could not be opened; nothing comes of it in this epoch.
    #[error("{} could not open shard {shard}: {source}", who(*worker))]
    Shard {
        /// Which shard, counted from 0.
        shard: usize,
        /// The worker that was to open it, counted from 0; none if that was the calling thread.
        worker: Option<usize>,
        /// What the dataset ran into.
        r#source: Box<Error>,
    },

    /// A loader of streams that was asked for batches of no samples.
    #[error("the batch size is 0; a batch has at least one sample: give StreamLoader::batch_size another")]
    ZeroStreamBatch,

    /// The state of another loader of streams.
    #[error(
        "cannot go on from epoch {}, round {}, turn {}: {}; resume with the dataset, shards and batch size that the state is \
         of, or begin an epoch with set_epoch",
        state.epoch, state.round, state.turn, state.differences(here)
    )]
    OtherStreamState {
        /// The state.
        state: Box<StreamState>,
        /// That of this loader.
        here: Box<StreamState>,
    },

    /// A state of a loader of streams before which no batch came.
    #[error(
        "cannot go on from epoch {epoch}, round {round}, turn {turn}: that is behind the end of shard {shard}, which has \
         {n_samples} samples and none at {sample}; resume with the dataset that the state is of, or begin an epoch with set_epoch"
    )]
    BehindStream {
        /// The epoch.
        epoch: u64,
        /// The round.
        round: u64,
        /// The turn.
        turn: usize,
        /// The shard whose turn was before.
        shard: usize,
        /// The first sample of its batch then.
        sample: u64,
        /// How many it has.
        n_samples: u64,
    },

    /// Samples that do not stack.
    #[error(
        "sample {index} is {shape:?}, but sample {first} of the same batch is {first_shape:?}; bring all samples to one \
         shape, or batch them with a function of your own (DataLoader::with_collate)"
    )]
    Uneven {
        /// The sample that differs: its index in the dataset (its position in the batch if stacked by hand).
        index: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// The first sample of the batch, likewise.
        first: usize,
        /// What the others have to be like.
        first_shape: Vec<usize>,
    },

    /// A batch could not be made, for a reason that is none of its samples' alone: how it is collated, or no memory for it.
    #[error("{} could not make {}: {source}", who(*worker), batch_of(*n_samples, *first, *shard))]
    Batch {
        /// How many samples the batch has.
        n_samples: usize,
        /// The first sample's index in the dataset, or in its shard.
        first: usize,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// The worker that was to make it, counted from 0; none if that was the calling thread.
        worker: Option<usize>,
        /// What it ran into.
        r#source: Box<Error>,
    },

    /// A panic while a batch was made; the loader goes on with the next.
    #[error(
        "{} panicked{}: {message}; RUST_BACKTRACE=1 shows where",
        who(*worker), sample.map_or_else(String::new, |sample| format!(" at {}", sample_of(sample, *shard)))
    )]
    Panicked {
        /// The worker, counted from 0; none if it was the calling thread.
        worker: Option<usize>,
        /// The sample that it was getting, if it was: its index in the dataset, or in its shard.
        sample: Option<usize>,
        /// Its shard, if it comes from a stream.
        shard: Option<usize>,
        /// What the panic says.
        message: String,
    },

    /// All samples of a batch failed, and were left out.
    #[error(
        "{} could get none of the {n_samples} samples of a batch; the last of them, {}: {error}; look at skipped(), or at \
         the dataset",
        who(*worker), sample_of(*index, *shard)
    )]
    AllSkipped {
        /// How many samples the batch was to have.
        n_samples: usize,
        /// The last one's index in the dataset, or in its shard.
        index: usize,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// The worker that was to get them, counted from 0; none if that was the calling thread.
        worker: Option<usize>,
        /// What the last one ran into.
        error: String,
    },

    /// A batch was not there in time. The epoch goes on without it; a worker that was making it was replaced. Of a stream it
    /// comes later.
    #[error("batch {batch} was not ready after {waited:.1?}: {}", late(*worker, *sample, *first, *shard))]
    Timeout {
        /// Which worker, counted from 0, if one had taken it up.
        worker: Option<usize>,
        /// The number of the batch in its epoch.
        batch: usize,
        /// The sample that the worker is getting, if it is: its index in the dataset, or in its shard.
        sample: Option<usize>,
        /// The first sample of the batch, if the worker has begun it.
        first: Option<usize>,
        /// Their shard, if they come from a stream.
        shard: Option<usize>,
        /// How long the program waited.
        waited: Duration,
    },

    /// What a worker was to do first went wrong.
    #[error("worker {worker} could not start: {source}")]
    WorkerInit {
        /// Which worker, counted from 0.
        worker: usize,
        /// What it ran into.
        r#source: Box<Error>,
    },

    /// The system gave no thread.
    #[error("cannot start worker {worker}: {source}; use fewer workers, or raise the system's limit on threads")]
    NoWorker {
        /// Which worker, counted from 0.
        worker: usize,
        /// What the system says.
        r#source: io::Error,
    },

    /// A weight that is no chance.
    #[error("weight {index} is {}; a weight is a number from 0 upwards", number(*weight))]
    Weight {
        /// Which of the weights, counted from 0.
        index: usize,
        /// What it is.
        weight: f64,
    },

    /// Weights of which none can be drawn.
    #[error(
        "the {n_weights} weights add up to {}, so no sample can be drawn; give at least one above 0, and none huge",
        number(*sum)
    )]
    NoWeight {
        /// How many there are.
        n_weights: usize,
        /// Their sum.
        sum: f64,
    },

    /// A process that does not exist.
    #[error("there is no rank {rank} among {world_size} processes; ranks count from 0")]
    Rank {
        /// The rank.
        rank: usize,
        /// How many processes there are.
        world_size: usize,
    },

    /// A text that is not the state of a loader, or was damaged.
    #[error("`{text}` is not the state of a loader, or it was damaged; it reads like `{example}`")]
    NoState {
        /// The start of the text.
        text: String,
        /// What one is like.
        example: &'static str,
    },

    /// The state of a loader that does not say which loader's.
    #[error(
        "`{text}` is a state of an older version, which does not say of which order and dataset it is; begin its epoch anew \
         with set_epoch({epoch})"
    )]
    OldState {
        /// The text.
        text: String,
        /// Its epoch.
        epoch: u64,
    },

    /// The state of another loader.
    #[error(
        "cannot go on from epoch {}, batch {}: {}; resume with the dataset, order and batch size that the state is of, or \
         begin an epoch with set_epoch",
        state.epoch, state.batch, state.differences(here)
    )]
    OtherState {
        /// The state.
        state: Box<LoaderState>,
        /// That of this loader.
        here: Box<LoaderState>,
    },

    /// A state behind the last batch.
    #[error(
        "cannot go on from epoch {epoch}, batch {batch}: an epoch has {n_batches} batches, counted from 0; begin an epoch \
         with set_epoch"
    )]
    BehindEnd {
        /// The epoch.
        epoch: u64,
        /// The number of the batch.
        batch: usize,
        /// How many there are.
        n_batches: usize,
    },

    /// A setting that cannot be meant.
    #[error("{setting} is {value}, and the most is {most}; {usual}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What it was set to.
        value: usize,
        /// The largest value that is accepted.
        most: usize,
        /// What to use.
        usual: &'static str,
    },

    /// An environment variable that says nothing sensible.
    #[error("{variable} is `{value}`, and {expected}")]
    Variable {
        /// Which.
        variable: &'static str,
        /// What it was set to.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },

    /// Tensors that should have one row per sample have different numbers of rows.
    #[error(
        "the tensors of a TensorDataset have {} rows; each needs one row per sample, so slice them to one length",
        listed(lens)
    )]
    Lengths {
        /// The size of each tensor's first dimension.
        lens: Vec<usize>,
    },

    /// A tensor without dimensions has no rows.
    #[error(
        "tensor {position} of a TensorDataset has no dimensions; the first dimension counts the samples: use unsqueeze(0) for one sample"
    )]
    NoRows {
        /// Which of the tensors, counted from 0.
        position: usize,
    },

    /// Parts that do not add up to the whole.
    #[error(
        "a split into {} is {sum} samples, but the dataset has {n_samples}; make the parts add up to {n_samples}",
        listed(lens)
    )]
    Split {
        /// The sizes of the parts.
        lens: Vec<usize>,
        /// Their sum.
        sum: u128,
        /// How many samples there are.
        n_samples: usize,
    },

    /// Host memory was refused.
    #[error(transparent)]
    Memory(#[from] pagelock_memory::Error),

    /// A tensor operation was refused.
    #[error(transparent)]
    Tensor(Box<pagelock_tensor::Error>),

    /// There is nothing to load.
    #[error("the dataset is empty, so there is no batch to load; check the path, filter or split that it came from")]
    EmptyDataset,

    /// Anything else, in a dataset of one's own say.
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
    /// Wraps an error, or a text, of one's own.
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
    pub(crate) fn locate(self, indices: &[usize]) -> Self {
        match self {
            Error::Uneven { index, shape, first, first_shape } => {
                // A function of the user's may have stacked something longer than the batch.
                let sample = |position: usize| indices.get(position).copied().unwrap_or(position);
                Error::Uneven { index: sample(index), shape, first: sample(first), first_shape }
            }
            other => other,
        }
    }

    /// Says which batch it is about, and who was to make that; nothing, if no batch was begun.
    pub(crate) fn of_batch(self, indices: &[usize], shard: Option<usize>, worker: Option<usize>) -> Self {
        match indices.first() {
            Some(&first) => Error::Batch { n_samples: indices.len(), first, shard, worker, source: self.into() },
            None => self,
        }
    }

    /// Whether memory was refused, which no single sample is to blame for.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Memory(_) => true,
            Error::Tensor(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// What a panic said, with who was at what. Ends the panic: what it carries is dropped, which may panic again.
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

    pub(crate) fn digits(problem: String) -> Self {
        Self::Digits { problem }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_system_without_threads_or_folders_say_what_to_do() {
        let source = || io::Error::other("resource temporarily unavailable");
        assert_eq!(
            Error::NoWorker { worker: 3, source: source() }.to_string(),
            "cannot start worker 3: resource temporarily unavailable; use fewer workers, or raise the system's limit on \
             threads"
        );
        assert_eq!(
            Error::NoFolder { because: "no home".into() }.to_string(),
            "no folder for data files: PAGELOCK_DATA is not set and there is no home directory (no home); set \
             PAGELOCK_DATA or give a folder"
        );
    }
}
