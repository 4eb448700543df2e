//! Errors. The texts say what went wrong, with the numbers, and what to do about it.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::text::{named, whole_text};
use crate::{ByteSize, MemoryKind, debug_is_the_message};

/// The result of everything fallible in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why memory could not be allocated or used as requested.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A budget refused; see [`OverBudget`] for the numbers.
    #[error(transparent)]
    OverBudget(Box<OverBudget>),

    /// The operating system or the allocator has no memory left.
    #[error(
        "the system cannot allocate {} of {kind} memory; free some, or set a budget below the machine's RAM \
         so that the refusal comes earlier",
        asked.amount()
    )]
    OutOfMemory {
        /// The requested bytes.
        asked: ByteSize,
        /// The kind of memory.
        kind: MemoryKind,
    },

    /// `RLIMIT_MEMLOCK` does not let `mlock` lock that much.
    #[error(
        "cannot page-lock {}: {locked} of the {limit} that RLIMIT_MEMLOCK allows are locked already; raise it \
         (`ulimit -l`, `LimitMEMLOCK=` of a service, `--ulimit memlock=-1` of a container), or let a GPU driver \
         lock the pages, which this limit does not cover",
        asked.amount()
    )]
    LockLimit {
        /// The bytes to be locked.
        asked: ByteSize,
        /// The bytes that the process has locked already.
        locked: ByteSize,
        /// The limit.
        limit: ByteSize,
    },

    /// Pages could not be locked, or unlocked, for another reason.
    #[error("cannot page-lock or unlock {}: {}; use smaller buffers, or pageable ones", asked.amount(), whole_text(&**source))]
    Lock {
        /// The bytes to be locked or unlocked.
        asked: ByteSize,
        /// The error of the system or the driver.
        r#source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A file could not be opened or mapped.
    #[error("cannot map {}: {source}", named(path.display()))]
    Map {
        /// The file.
        path: PathBuf,
        /// The system's error.
        r#source: io::Error,
    },

    /// Write access to read-only bytes was requested.
    #[error("cannot write to a {kind} buffer of {len}: it is read-only; copy it to an allocated buffer first")]
    ReadOnly {
        /// The kind of memory.
        kind: MemoryKind,
        /// The length of the buffer.
        len: ByteSize,
    },

    /// An argument is invalid, such as a range outside its buffer, or a text that is not a size. The text says which.
    #[error("{0}")]
    Argument(String),
}

impl Error {
    /// The budget refusal inside, if this is one.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::Budget;
    ///
    /// let error = Budget::new("queue", 100).reserve(120).unwrap_err();
    /// let refusal = error.over_budget().expect("nothing else can go wrong");
    /// assert_eq!((refusal.asked.0, refusal.left.0, &*refusal.budget), (120, 100, "queue"));
    /// ```
    pub fn over_budget(&self) -> Option<&OverBudget> {
        match self {
            Error::OverBudget(refusal) => Some(refusal),
            _ => None,
        }
    }
}

/// A refused reservation: who refused, the numbers, who holds the rest, and what to do.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverBudget {
    /// The requested bytes.
    pub asked: ByteSize,
    /// The budget from which the bytes were requested.
    pub asked_of: String,
    /// The budget that refused: `asked_of` itself or one above it.
    pub budget: String,
    /// The bytes that the refusing budget had left.
    pub left: ByteSize,
    /// The limit of the refusing budget.
    pub limit: ByteSize,
    /// Who holds most of the refusing budget, largest first, at most four.
    pub holders: Vec<Held>,
    /// How long a blocking reservation waited before it gave up.
    pub waited: Option<Duration>,
    /// What a user can do about it.
    pub advice: String,
}

debug_is_the_message!(Error OverBudget);

impl std::error::Error for OverBudget {}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, asked_of, budget, left, limit, holders, waited, advice } = self;
        write!(f, "cannot take {}", asked.amount())?;
        if asked_of != budget {
            write!(f, " for `{asked_of}`")?;
        }
        if let Some(waited) = waited {
            write!(f, " within {waited:?}")?;
        }
        write!(f, ": budget `{budget}` has {left} left of {limit}")?;
        for (i, held) in holders.iter().enumerate() {
            write!(f, "{}{held}", if i == 0 { "; largest holders: " } else { ", " })?;
        }
        write!(f, "; {advice}")
    }
}

/// A name and the bytes it holds. Prints as `` `loader` 1.5 GiB ``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// A [`holder`](crate::holder) or a child budget.
    pub name: String,
    /// The bytes that it holds.
    pub bytes: ByteSize,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.name, self.bytes)
    }
}
