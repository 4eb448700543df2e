//! [`KernelSource`]: CUDA C++ and the options to compile it with.

use std::fmt::{self, Write};

/// CUDA C++ source with a name for error messages, and options for the compiler.
///
/// Mark kernels `extern "C" __global__`, so that they keep their names.
///
/// # Examples
/// ```
/// use pagelock_cuda::KernelSource;
///
/// // y[i] = a * x[i] for i < n
/// const SCALE: &str = r#"
///     extern "C" __global__ void scale(const float* x, float* y, float a, unsigned n) {
///         for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i];
///     }
/// "#;
/// let source = KernelSource::new("scale.cu", SCALE).define("UNROLL", 4).option("--use_fast_math");
/// assert_eq!(source.name(), "scale.cu");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    name: String,
    text: String,
    options: Vec<String>,
}

impl KernelSource {
    /// Source with a name for error messages.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), options: Vec::new() }
    }

    /// Adds an option for NVRTC.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Defines a macro.
    pub fn define(self, name: &str, value: impl fmt::Display) -> Self {
        self.option(format!("--define-macro={name}={value}"))
    }

    /// The name in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text of the source.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The options for NVRTC.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// The compiler's log, with the line of the source under each message that names one.
    pub(super) fn annotated(&self, log: &str) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let mut annotated = String::new();
        for complaint in log.trim_end().lines() {
            let _ = writeln!(annotated, "{complaint}");
            let number = self.line_of(complaint);
            if let Some((number, line)) = number.and_then(|number| Some((number, lines.get(number.checked_sub(1)?)?))) {
                let _ = writeln!(annotated, "{number:>6} | {line}");
            }
        }
        annotated.trim_end().to_owned()
    }

    /// The line that a message names: 12 for `name(12): error: …`.
    fn line_of(&self, complaint: &str) -> Option<usize> {
        let (number, _) = complaint.strip_prefix(&self.name)?.strip_prefix('(')?.split_once("):")?;
        number.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_followed_by_the_line_that_they_name() {
        let source = KernelSource::new("a.cu", "one\n  two();\nthree");
        let log =
            "a.cu(2): error: identifier \"two\" is undefined\n    two();\n    ^\n\n1 error detected\na.cu(9): x\n";
        assert_eq!(
            source.annotated(log),
            "a.cu(2): error: identifier \"two\" is undefined\n     2 |   two();\n    two();\n    ^\n\n\
             1 error detected\na.cu(9): x"
        );
    }
}
