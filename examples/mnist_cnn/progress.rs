//! The progress of the training: checkpoints, and scalars for TensorBoard.

use anyhow::Result;
use pagelock::board::SummaryWriter;
use pagelock::prelude::*;

use crate::Args;

/// Counts the steps of a run, and saves and reports their results.
pub(crate) struct Progress {
    /// How many steps are done.
    pub(crate) step: usize,
    checkpoints: Checkpoints,
    resumed: Option<SavedCheckpoint>,
    board: Option<SummaryWriter>,
}

impl Progress {
    /// Starts at the newest checkpoint with `--resume`. Without it, removes all checkpoints and starts at step 0.
    pub(crate) fn open(args: &Args) -> Result<Self> {
        let mut checkpoints = Checkpoints::open(args.out.join("checkpoints"))?.keep_last(2).keep_best(1);
        if !args.resume {
            checkpoints.clear()?;
        }
        let resumed = checkpoints.latest()?;
        let step = resumed.as_ref().map_or(0, |found| found.step() as usize);
        match &resumed {
            Some(found) => println!("resuming after step {step}, from {}", found.path().display()),
            None if args.resume => println!("there is no checkpoint in {}: training starts over", args.out.display()),
            None => {}
        }
        let board = if args.tensorboard {
            // The steps after the checkpoint will be taken again, so TensorBoard must forget their scalars.
            let first = resumed.as_ref().map_or(0, |found| found.step() + 1);
            let options = SummaryWriter::options().log_dir(args.out.join("tensorboard"));
            Some(options.purge_step(first as i64).open()?)
        } else {
            None
        };
        Ok(Self { step, checkpoints, resumed, board })
    }

    /// Takes the checkpoint to resume from.
    pub(crate) fn take_resumed(&mut self) -> Option<SavedCheckpoint> {
        self.resumed.take()
    }

    /// Writes a scalar of this step for TensorBoard.
    pub(crate) fn scalar(&self, tag: &str, value: f64) -> Result<()> {
        Ok(self.board.as_ref().map_or(Ok(()), |board| board.add_scalar(tag, value, self.step as i64))?)
    }

    /// Saves a checkpoint in the background, after flushing TensorBoard's scalars of the steps before it.
    pub(crate) fn save(&mut self, checkpoint: Checkpoint) -> Result<()> {
        self.board.as_ref().map_or(Ok(()), SummaryWriter::flush)?;
        Ok(self.checkpoints.save(self.step as u64, checkpoint)?)
    }

    /// Waits until everything is written, and prints the command that starts TensorBoard.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.checkpoints.wait()?;
        let Some(board) = self.board.take() else { return Ok(()) };
        println!("\nlosses and accuracy: tensorboard --logdir {}", board.log_dir().display());
        Ok(board.close()?)
    }
}
