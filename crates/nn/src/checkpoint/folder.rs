//! [`Checkpoints`]: a folder of checkpoints that a background thread writes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use pagelock_tensor::{self as tensor, TensorFile};

use super::Checkpoint;
use super::saved::{SavedCheckpoint, score_in};
use crate::setters::setters;
use crate::{Error, Result, StateDict};

/// A file name is `step-`, the step in at least [`DIGITS`] digits, then `.safetensors`.
const PREFIX: &str = "step-";
const DIGITS: usize = 10;
const SUFFIX: &str = ".safetensors";

/// A folder of checkpoints, one file per checkpoint.
///
/// [`save`](Self::save) copies the tensors, and a thread writes the copies while the training continues. A file
/// appears under its name only when it is whole and on the disk. A process that is killed loses at most the
/// checkpoint that it was writing, and the next save removes the unfinished file. One checkpoint is written at a
/// time, so the next `save` waits for the write before it. Dropping a `Checkpoints` waits too, but cannot report an
/// error of the write. Call [`wait`](Self::wait) for that.
///
/// The copies need as much host memory as the tensors, and count against the host budget. Copies of a GPU's tensors
/// are page-locked.
///
/// # Examples
/// ```
/// use pagelock_nn::{Checkpoint, Checkpoints, Linear, Module, optim::{Adam, Optimizer}};
///
/// # let runs = tempfile::tempdir()?;
/// # let folder = runs.path().join("checkpoints");
/// let model = Linear::new(3, 2)?;
/// let mut opt = Adam::new(model.parameters(), 0.1);
/// let mut checkpoints = Checkpoints::open(&folder)?.keep_last(3).keep_best(1); // such as "runs/first/checkpoints"
/// let mut epoch = 0;
/// if let Some(found) = checkpoints.latest()? {
///     found.load_model(&model)?;
///     found.load_optimizer(&mut opt)?;
///     found.load_random()?;
///     epoch = found.value("epoch")?;
/// }
/// while epoch < 5 {
///     // … train for an epoch
///     epoch += 1;
///     let checkpoint = Checkpoint::new().model(&model)?.optimizer(&opt)?.random()?.value("epoch", epoch)?;
///     checkpoints.save(100 * epoch, checkpoint.score(0.9))?; // returns at once
/// }
/// checkpoints.wait()?;
/// assert_eq!(checkpoints.steps()?, [100, 300, 400, 500]); // 100 is the first of equal scores
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: Keep,
    writer: Option<JoinHandle<Result<()>>>,
}

/// Which checkpoints stay after a save; all of them if both fields are `None`.
#[derive(Debug, Clone, Copy, Default)]
struct Keep {
    last: Option<usize>,
    best: Option<usize>,
}

setters! { Checkpoints,
    /// After each save, removes all but the last `keep_last` checkpoints and those that [`keep_best`](Self::keep_best) keeps.
    /// The newest always stays.
    keep_last: usize => keep.last = Some(keep_last.max(1));
    /// After each save, removes all but the `keep_best` checkpoints with the highest [`score`](Checkpoint::score) and those
    /// that [`keep_last`](Self::keep_last) keeps. Of equal scores, the earliest steps stay. The newest checkpoint
    /// always stays. A damaged checkpoint is not among the best: the thread that writes also reads these files to verify
    /// their checksums.
    keep_best: usize => keep.best = Some(keep_best);
}

impl Checkpoints {
    /// Opens the folder, or creates it. All checkpoints in it are kept, unless [`keep_last`](Self::keep_last) or
    /// [`keep_best`](Self::keep_best) is called.
    ///
    /// # Errors
    /// [`Error::Checkpoints`] if the folder cannot be created or read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open_at(folder.as_ref())
    }

    fn open_at(folder: &Path) -> Result<Self> {
        let failed = |source| Error::Checkpoints { action: "make the folder", path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = std::path::absolute(folder).map_err(failed)?;
        let checkpoints = Self { folder, keep: Keep::default(), writer: None };
        checkpoints.steps()?;
        Ok(checkpoints)
    }

    /// Copies the tensors of `checkpoint` and starts to write the copies; a checkpoint of the same step is replaced.
    /// Waits for the previous save, if that is still being written, and for a GPU to finish the copies.
    ///
    /// # Errors
    /// That of the previous save, as [`wait`](Self::wait), or of copying the tensors, as
    /// [`snapshot_all`](tensor::snapshot_all). `checkpoint` is then not saved. [`Error::Checkpoints`] if no thread
    /// can be started.
    pub fn save(&mut self, step: u64, checkpoint: Checkpoint) -> Result<()> {
        self.wait()?;
        let (copies, path) = (checkpoint.snapshot()?, self.path(step));
        let (folder, keep) = (self.folder.clone(), self.keep);
        let write = move || {
            TensorFile::save_checked(&path, copies.iter())?;
            drop::<StateDict>(copies);
            keep.prune(&folder, step)
        };
        let spawned = thread::Builder::new().name("pagelock-checkpoint".to_owned()).spawn(write);
        let failed = |source| Error::Checkpoints { action: "start a thread for", path: self.folder.clone(), source };
        self.writer = Some(spawned.map_err(failed)?);
        Ok(())
    }

    /// Waits until the last save is on the disk.
    ///
    /// # Errors
    /// As [`TensorFile::save`]: the checkpoint is then not in the folder, unless the message says so.
    /// [`Error::Checkpoints`] if an older checkpoint cannot be removed. With [`keep_best`](Self::keep_best), the error
    /// of a checkpoint that cannot be read, such as memory that is refused; nothing is removed then. A damaged
    /// checkpoint is no such error.
    pub fn wait(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.join().unwrap_or_else(|_| {
            let source = io::Error::other("its thread panicked");
            Err(Error::Checkpoints { action: "write into", path: self.folder.clone(), source })
        })
    }

    /// The newest checkpoint, or `None` if the folder has none. Reads its whole file once to verify the checksums.
    ///
    /// # Errors
    /// [`Error::DamagedCheckpoint`] if it is damaged; the error names the newest earlier checkpoint that is whole. As
    /// [`wait`](Self::wait).
    pub fn latest(&mut self) -> Result<Option<SavedCheckpoint>> {
        self.wait()?;
        self.steps()?.last().map(|&step| self.open_step(step)).transpose()
    }

    /// The intact checkpoint with the highest [`score`](Checkpoint::score), of equal scores the earliest; `None` if no
    /// intact checkpoint has a score. Reads the files of the highest scores to verify the checksums, up to the first
    /// intact one.
    ///
    /// # Errors
    /// The error of a checkpoint that cannot be read; as [`wait`](Self::wait).
    pub fn best(&mut self) -> Result<Option<SavedCheckpoint>> {
        self.wait()?;
        by_score(&self.folder, &self.steps()?)?.next().transpose()
    }

    /// The checkpoint of a step.
    ///
    /// # Errors
    /// As [`latest`](Self::latest); [`Error::Argument`] if there is no checkpoint of that step.
    pub fn at(&mut self, step: u64) -> Result<SavedCheckpoint> {
        self.wait()?;
        let steps = self.steps()?;
        if steps.contains(&step) {
            return self.open_step(step);
        }
        let folder = self.folder.display();
        Err(Error::Argument(format!("{folder} has no checkpoint of step {step}, only of {steps:?}; name one of them")))
    }

    /// The steps of all checkpoints, in ascending order.
    ///
    /// # Errors
    /// [`Error::Checkpoints`] if the folder cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>> {
        steps_in(&self.folder)
    }

    /// Removes all checkpoints.
    ///
    /// # Errors
    /// [`Error::Checkpoints`] if one cannot be removed; as [`wait`](Self::wait).
    pub fn clear(&mut self) -> Result<()> {
        self.wait()?;
        self.steps()?.into_iter().try_for_each(|step| remove(&self.path(step)))
    }

    /// The folder, as an absolute path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, step: u64) -> PathBuf {
        path_in(&self.folder, step)
    }

    fn open_step(&self, step: u64) -> Result<SavedCheckpoint> {
        match SavedCheckpoint::open(step, self.path(step)) {
            Err(Error::Tensor(error @ tensor::Error::Content { .. })) => {
                let is_whole = |other: &u64| *other < step && SavedCheckpoint::open(*other, self.path(*other)).is_ok();
                let previous = self.steps()?.into_iter().rev().find(is_whole);
                Err(Error::DamagedCheckpoint { path: self.path(step), problem: error.to_string(), previous })
            }
            opened => opened,
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

impl Keep {
    /// Removes the checkpoints that are not kept. `written` is the step that was just saved.
    fn prune(self, folder: &Path, written: u64) -> Result<()> {
        let Self { last, best } = self;
        if last.is_none() && best.is_none() {
            return Ok(());
        }
        let steps = steps_in(folder)?;
        let n_last = last.unwrap_or(1).min(steps.len());
        let mut kept = steps[steps.len() - n_last..].to_vec();
        kept.push(written);
        if let Some(n_best) = best {
            for best in by_score(folder, &steps)?.take(n_best) {
                kept.push(best?.step());
            }
        }
        let rest = steps.into_iter().filter(|step| !kept.contains(step));
        rest.into_iter().try_for_each(|step| remove(&path_in(folder, step)))
    }
}

fn path_in(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{step:0DIGITS$}{SUFFIX}"))
}

/// The step in a file name, if it is the name of a checkpoint.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let step = digits.parse().ok()?;
    (format!("{step:0DIGITS$}") == digits).then_some(step)
}

fn steps_in(folder: &Path) -> Result<Vec<u64>> {
    let failed = |source| Error::Checkpoints { action: "read the folder", path: folder.to_owned(), source };
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        steps.extend(entry.map_err(failed)?.file_name().to_str().and_then(step_of));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The intact checkpoints that have a score: the highest score first, equal scores by step. Each is verified when the
/// iterator comes to it.
///
/// # Errors
/// Those of opening and reading a file that is not damaged.
fn by_score(folder: &Path, steps: &[u64]) -> Result<impl Iterator<Item = Result<SavedCheckpoint>>> {
    let mut scored: Vec<(f64, u64)> = Vec::new();
    for &step in steps {
        let score = TensorFile::open(path_in(folder, step)).map_err(Error::from).and_then(|file| score_in(&file));
        let score = unless_damaged(score)?.flatten();
        scored.extend(score.map(|score| (if score.is_nan() { f64::NEG_INFINITY } else { score }, step)));
    }
    scored.sort_by(|one, other| other.0.total_cmp(&one.0)); // stable: equal scores stay ordered by step
    let open = |(_, step)| unless_damaged(SavedCheckpoint::open(step, path_in(folder, step))).transpose();
    Ok(scored.into_iter().filter_map(open))
}

/// `None` if the error is that of a damaged file.
fn unless_damaged<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(Error::Tensor(tensor::Error::Content { .. })) => Ok(None),
        read => read.map(Some),
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Checkpoints { action: "remove", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
