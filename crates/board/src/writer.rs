//! [`SummaryWriter`]: a folder of event files, and the calls for text and numbers. The calls for pictures, curves,
//! graphs and other values are in files of their own.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::array::ToScalar;
use crate::error::{Result, create_error, ensure};
use crate::names;
use crate::proto::{
    Content, Event, SESSION_START, STRING, SessionLog, Summary, Tensor, TensorShape, TextPlugin, Value, What,
};
use crate::queue::{FileId, FileSink, Queue};
use crate::record::record;
use crate::step::{Step, now};

/// The version of the format, in the first event of each file.
const FILE_VERSION: &str = "brain.Event:2";

/// TensorBoard requests a tag by a URL of at most 64 KiB, in which a byte of the tag may take three bytes.
const MAX_TAG_BYTES: usize = 16 * 1024;

/// Writes event files that TensorBoard shows, with the names of PyTorch's `torch.utils.tensorboard.SummaryWriter`.
///
/// A call encodes its values and queues them; a worker thread writes them, at the latest after
/// [`flush_interval`](WriterOptions::flush_interval). Nothing that was queued is lost: calls wait while the queue is
/// full. If the worker thread cannot write, the next call of any kind returns its error, and the worker tries again.
/// Dropping a writer writes the rest, but cannot return an error: [`close`](Self::close) can.
///
/// A file is readable up to its last whole event, wherever it was cut off. A writer never continues a file: in a folder
/// with event files it makes a new one, which TensorBoard reads after the older ones. Of those, TensorBoard ignores the
/// events from [`purge_step`](WriterOptions::purge_step) on.
///
/// # Examples
/// ```
/// use pagelock_board::SummaryWriter;
///
/// let runs = tempfile::tempdir()?;
/// let writer = SummaryWriter::new(runs.path().join("first"))?;
/// for step in 0..100 {
///     writer.add_scalar("loss/train", 1.0 / f64::from(step + 1), step)?;
/// }
/// writer.add_text("notes", "learning rate **0.1**", 0)?; // Markdown
/// writer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// Then `tensorboard --logdir runs`.
pub struct SummaryWriter {
    log_dir: PathBuf,
    options: WriterOptions,
    pub(crate) main: FileId,
    /// The files in subfolders, of `add_scalars` and `add_hparams`, by folder.
    others: Mutex<HashMap<PathBuf, FileId>>,
    /// Held while `projector_config.pbtxt` is read and replaced.
    pub(crate) projector: Mutex<()>,
    queue: Queue,
}

/// How a [`SummaryWriter`] is opened; made by [`SummaryWriter::options`].
#[derive(Debug, Clone)]
pub struct WriterOptions {
    log_dir: Option<PathBuf>,
    comment: String,
    purge_step: Option<Step>,
    queue_bytes: usize,
    flush_interval: Duration,
    filename_suffix: String,
}

impl WriterOptions {
    /// The folder, which is created if it does not exist. By default `runs/Nov23_19-10-44_host`, with the time in UTC.
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// A suffix of the default folder's name, unused if [`log_dir`](Self::log_dir) is set.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = comment.into();
        self
    }

    /// For a run that resumes from a checkpoint and repeats steps: TensorBoard hides the events that earlier files have
    /// from this step on, also in the folders of [`add_scalars`](SummaryWriter::add_scalars).
    pub fn purge_step(mut self, step: impl Into<Step>) -> Self {
        self.purge_step = Some(step.into());
        self
    }

    /// How many bytes the queue may hold before calls wait; 8 MiB by default. PyTorch's `max_queue` counts events
    /// instead.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// How long an event may stay queued; a killed program loses the events of this time. One second by default.
    /// PyTorch's `flush_secs`.
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval;
        self
    }

    /// A suffix of the name of each event file.
    pub fn filename_suffix(mut self, suffix: impl Into<String>) -> Self {
        self.filename_suffix = suffix.into();
        self
    }

    /// Makes the folder and an event file in it.
    ///
    /// # Errors
    /// [`Error::Create`](crate::Error::Create) if the folder, the file or the worker thread cannot be made;
    /// [`Error::Argument`](crate::Error::Argument) if [`purge_step`](Self::purge_step) is above `i64::MAX` or the
    /// suffix has a character that file names cannot have.
    pub fn open(self) -> Result<SummaryWriter> {
        let suffix = &self.filename_suffix;
        ensure!(
            !suffix.contains(['/', '\\', '\0']),
            "the suffix `{suffix}` of file names has a `/`, `\\` or zero byte"
        );
        if let Some(step) = self.purge_step {
            step.number()?;
        }
        let log_dir = self.log_dir.clone().unwrap_or_else(|| names::default_log_dir(&self.comment));
        let queue = Queue::new(self.queue_bytes, self.flush_interval)?;
        let main = open_file(&queue, &log_dir, &self)?;
        Ok(SummaryWriter { log_dir, options: self, main, others: Mutex::default(), projector: Mutex::default(), queue })
    }
}

/// A new event file in `folder`, with its first events.
fn open_file(queue: &Queue, folder: &Path, options: &WriterOptions) -> Result<FileId> {
    let purge_step = options.purge_step.map(|step| step.number()).transpose()?;
    queue.check()?; // before anything is created
    fs::create_dir_all(folder).map_err(create_error(folder))?;
    let (file, path) = names::new_event_file(folder, &options.filename_suffix)?;
    let file = queue.add_file(Box::new(FileSink { file, path, len: 0 }));
    let event = |step, what| record(&Event { wall_time: now(), step, what: Some(what) });
    let mut events = vec![event(0, What::FileVersion(FILE_VERSION.to_owned()))?];
    if let Some(step) = purge_step {
        events.push(event(step, What::FileVersion(FILE_VERSION.to_owned()))?);
        events.push(event(step, What::SessionLog(SessionLog { status: SESSION_START }))?);
    }
    let events: Vec<_> = events.into_iter().map(|event| (file, event)).collect();
    queue.append_all(&events)?;
    Ok(file)
}

impl SummaryWriter {
    /// Opens a writer for a folder, with the default [`options`](Self::options).
    ///
    /// # Errors
    /// As [`WriterOptions::open`].
    pub fn new(log_dir: impl Into<PathBuf>) -> Result<Self> {
        Self::options().log_dir(log_dir).open()
    }

    /// The default options, to change some of them.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::SummaryWriter;
    ///
    /// let folder = tempfile::tempdir()?;
    /// // A checkpoint of step 1000 is loaded, but the program that wrote it got to step 1400.
    /// let writer = SummaryWriter::options().log_dir(folder.path()).purge_step(1000).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn options() -> WriterOptions {
        WriterOptions {
            log_dir: None,
            comment: String::new(),
            purge_step: None,
            queue_bytes: 8 << 20,
            flush_interval: Duration::from_secs(1),
            filename_suffix: String::new(),
        }
    }

    /// The folder of the event files.
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// Adds one number to the curve `tag`; `/` in tags groups curves. It is stored as `f32`; NaN and infinities
    /// are allowed.
    ///
    /// # Errors
    /// Like all calls: [`Error::Argument`](crate::Error::Argument) if the tag is empty or longer than 16 KiB, or the
    /// step is above `i64::MAX`; [`Error::Write`](crate::Error::Write) if the worker thread could not write;
    /// [`Error::Memory`](crate::Error::Memory) if there is no memory for the event. This call also returns the error of a
    /// tensor that has not exactly one element or cannot be read.
    pub fn add_scalar(&self, tag: &str, value: impl ToScalar, step: impl Into<Step>) -> Result<()> {
        self.add_value(self.main, scalar(tag, value.to_scalar()?), step.into())
    }

    /// Adds numbers to curves that share one chart. Each curve is a run of its own, in the folder `main_tag_NAME`.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Create`](crate::Error::Create) if a run's file cannot be made.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_board::SummaryWriter;
    /// # let folder = tempfile::tempdir()?;
    /// # let writer = SummaryWriter::new(folder.path())?;
    /// writer.add_scalars("loss", &[("train", 0.5), ("valid", 0.7)], 0)?;
    /// writer.close()?;
    /// assert!(folder.path().join("loss_valid").is_dir());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_scalars(&self, main_tag: &str, values: &[(&str, impl ToScalar)], step: impl Into<Step>) -> Result<()> {
        let step = step.into().timed();
        check_tag(main_tag)?;
        let mut curves = Vec::new();
        for (name, value) in values {
            ensure!(!name.is_empty(), "a curve of `{main_tag}` has an empty name; name it");
            let folder = format!("{}_{name}", main_tag.replace('/', "_"));
            checked_folder(&folder)?;
            let value = scalar(main_tag, value.to_scalar()?);
            curves.push((folder, event(step, What::Summary(Summary { value: vec![value] }))?));
        }
        // Nothing is created or queued before all is checked.
        let curves = curves.into_iter().map(|(folder, event)| Ok((self.other_file(&folder)?, event)));
        self.queue.append_all(&curves.collect::<Result<Vec<_>>>()?)
    }

    /// Queues events with one value each for a file: all or, on an error, none.
    pub(crate) fn add_each(&self, folder: &str, values: Vec<Value>, step: Step) -> Result<()> {
        values.iter().try_for_each(|value| check_tag(&value.tag))?;
        let events = values.into_iter().map(|value| event(step, What::Summary(Summary { value: vec![value] })));
        let events = events.collect::<Result<Vec<_>>>()?;
        let file = self.other_file(folder)?;
        self.queue.append_all(&events.into_iter().map(|event| (file, event)).collect::<Vec<_>>())
    }

    /// Adds a text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar).
    pub fn add_text(&self, tag: &str, text: &str, step: impl Into<Step>) -> Result<()> {
        check_tag(tag)?;
        let tensor = strings(vec![text.as_bytes().to_vec()], &[1]);
        let value = Value::of_plugin(format!("{tag}/text_summary"), "text", &TextPlugin {}, Some(tensor));
        self.add_value(self.main, value, step.into())
    }

    /// Waits until everything that was queued is in the files. Other programs can read it then, and a crash of this
    /// program does not lose it.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn flush(&self) -> Result<()> {
        self.queue.flush()
    }

    /// [`flush`](Self::flush), then ends the worker thread.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write). The worker then tries once more to write what is queued, and loses it if
    /// that fails. To keep it, call `flush` until it succeeds before `close`.
    pub fn close(self) -> Result<()> {
        self.flush()
    }

    /// The event file of a run in a folder inside the writer's folder, created at its first use.
    pub(crate) fn other_file(&self, folder: &str) -> Result<FileId> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.log_dir.join(checked_folder(folder)?);
        if let Some(&file) = others.get(&path) {
            return Ok(file);
        }
        let file = open_file(&self.queue, &path, &self.options)?;
        others.insert(path, file);
        Ok(file)
    }

    pub(crate) fn add_value(&self, file: FileId, value: Value, step: Step) -> Result<()> {
        self.add_values(file, vec![value], step)
    }

    /// Queues one event.
    pub(crate) fn add_values(&self, file: FileId, values: Vec<Value>, step: Step) -> Result<()> {
        values.iter().try_for_each(|value| check_tag(&value.tag))?;
        self.add_event(file, step, What::Summary(Summary { value: values }))
    }

    pub(crate) fn add_event(&self, file: FileId, step: Step, what: What) -> Result<()> {
        self.queue.append(file, &event(step, what)?)
    }
}

/// The record of an event.
fn event(step: Step, what: What) -> Result<Vec<u8>> {
    record(&Event { wall_time: step.wall_time(), step: step.number()?, what: Some(what) })
}

impl std::fmt::Debug for SummaryWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SummaryWriter").field("log_dir", &self.log_dir).finish_non_exhaustive()
    }
}

pub(crate) fn scalar(tag: &str, value: f64) -> Value {
    Value { tag: tag.to_owned(), metadata: None, content: Some(Content::Scalar(value as f32)) }
}

/// A tensor of strings or of encoded messages.
pub(crate) fn strings(strings: Vec<Vec<u8>>, shape: &[usize]) -> Tensor {
    Tensor { dtype: STRING, shape: Some(TensorShape::new(shape)), floats: Vec::new(), strings }
}

pub(crate) fn check_tag(tag: &str) -> Result<()> {
    ensure!(!tag.is_empty(), "a tag is empty; name what is shown, such as \"loss/train\"");
    let len = tag.len();
    ensure!(len <= MAX_TAG_BYTES, "a tag has {len} bytes; TensorBoard takes at most {MAX_TAG_BYTES}");
    Ok(())
}

/// The folder that `name` names inside another folder.
fn checked_folder(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(is_below && !name.is_empty(), "`{name}` is not a folder below the writer's; leave out `..`");
    Ok(path)
}
