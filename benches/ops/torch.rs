//! [`Torch`]: the child process that computes the same expressions with PyTorch.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use pagelock::tensor::{DType, Device};
use serde_json::{Value, json};

use super::operations::{Operation, Sample};

/// The child process. It answers each line of JSON with one line of JSON.
pub(crate) struct Torch {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Torch {
    pub(crate) fn start(python: &Path, threads: usize, device: &Device) -> Result<Torch> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/torch_ops.py");
        let mut command = Command::new(python);
        command.args([script, &threads.to_string(), &device.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
        let (questions, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Ok(Torch { child, questions, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        writeln!(self.questions, "{question}")?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            bail!("torch_ops.py ended early; is PyTorch installed for the interpreter of --python?");
        }
        serde_json::from_str(&answer)
            .with_context(|| format!("torch_ops.py answered with something else than JSON: {answer}"))
    }

    /// Makes the inputs in the child process. Returns PyTorch's message if it does not support the case.
    pub(crate) fn prepare(
        &mut self,
        operation: &Operation,
        sample: &Sample,
        dtype: DType,
        pass: &str,
    ) -> Result<Option<String>> {
        let question =
            json!({ "torch": operation.torch, "dtype": dtype.name(), "pass": pass, "sample": sample.json() });
        Ok(self.ask(&question)?["lacks"].as_str().map(str::to_owned))
    }

    /// Milliseconds of the fastest call among those that start within `milliseconds`.
    pub(crate) fn least(&mut self, milliseconds: u64) -> Result<f64> {
        self.ask(&json!({ "turn": milliseconds }))?["least"].as_f64().context("torch_ops.py did not answer with a time")
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
