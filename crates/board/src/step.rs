//! The training step and the wall time of a value.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Result, ensure};

/// The training step of a value, and its wall time. An integer is a step at the time of the call.
///
/// # Examples
/// ```
/// use pagelock_board::{Step, SummaryWriter};
///
/// let folder = tempfile::tempdir()?;
/// let writer = SummaryWriter::new(folder.path())?;
/// for (step, loss) in [0.9, 0.5].into_iter().enumerate() {
///     writer.add_scalar("loss", loss, step)?; // now
/// }
/// writer.add_scalar("loss", 0.3, Step::from(2).at(1.7e9))?; // in 2023
/// writer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    number: i128,
    wall_time: Option<f64>,
}

impl Step {
    /// The same step at another wall time, in seconds since 1970. PyTorch's `walltime`.
    pub fn at(self, wall_time: f64) -> Self {
        Self { wall_time: Some(wall_time), ..self }
    }

    /// The step as event files store it.
    pub(crate) fn number(self) -> Result<i64> {
        let number = i64::try_from(self.number);
        ensure!(number.is_ok(), "the step {} is too big: the largest is {}", self.number, i64::MAX);
        Ok(number.unwrap_or_default())
    }

    pub(crate) fn wall_time(self) -> f64 {
        self.wall_time.unwrap_or_else(now)
    }

    /// The same step with its wall time fixed, so that several values share it.
    pub(crate) fn timed(self) -> Self {
        self.at(self.wall_time())
    }
}

/// Seconds since 1970; negative if the clock is set to an earlier date.
pub(crate) fn now() -> f64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

macro_rules! steps {
    ($($number:ty)+) => {$(
        impl From<$number> for Step {
            fn from(number: $number) -> Self {
                Self { number: number as i128, wall_time: None }
            }
        }
    )+};
}
steps!(i32 i64 u32 u64 usize);
