//! How tensors print: as PyTorch prints them, character for character, but for its `torch.` in type names and for our
//! operation names in `grad_fn=<…>`.
//!
//! Two passes over the shown elements find one style and width that fits all of them ([`Column`]), a third one
//! writes. Elements that are left out are never read.

use std::fmt::{self, Write};

use crate::element::{DType, Element, Scalar};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_dtype};
use crate::transfer::readable;

const PREFIX: &str = "tensor(";
const LINE_WIDTH: usize = 80;
/// Tensors with more elements than this are abbreviated (see [`EDGE`]).
const SUMMARIZE_ABOVE: usize = 1000;
/// An abbreviated tensor shows this many entries at both ends of every dimension that has more than twice as many.
const EDGE: usize = 3;
/// Digits behind the decimal point, unless the format string says otherwise.
const PRECISION: usize = 4;

/// As PyTorch prints: aligned columns, four digits, `...` in the middle of large tensors.
///
/// `{:.2}` shows two digits instead of four.
///
/// ```
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[1.0, 2.5], [-3.0, 4.0]])?;
/// assert_eq!(x.to_string(), "tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]])");
/// assert_eq!(format!("{x:.1}"), "tensor([[ 1.0,  2.5],\n        [-3.0,  4.0]])");
/// assert_eq!(Tensor::from_slice(&[7_u8, 42], 2)?.to_string(), "tensor([ 7, 42], dtype=uint8)");
/// assert_eq!(Tensor::zeros([0, 3])?.to_string(), "tensor([], size=(0, 3))");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
impl<K: Kind> fmt::Display for Tensor<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw().print(f)
    }
}

/// The same text as [`Display`](fmt::Display).
impl<K: Kind> fmt::Debug for Tensor<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Raw {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from(PREFIX);
        self.write_elements(&mut text, f.precision().unwrap_or(PRECISION))?;
        self.write_suffixes(&mut text)?;
        f.write_str(&text)
    }

    fn write_elements(&self, text: &mut String, precision: usize) -> fmt::Result {
        if self.shape().elements() == 0 {
            return text.write_str("[]");
        }
        match readable(self) {
            Ok(here) => by_dtype!(here.dtype(), T => write_shown::<T>(&here, text, precision)),
            Err(unreadable) => write!(text, "<{unreadable}>"),
        }
    }

    /// Writes what the elements do not show: the size of empty tensors, types other than the usual ones, the
    /// gradient.
    fn write_suffixes(&self, text: &mut String) -> fmt::Result {
        let is_empty = self.shape().elements() == 0;
        let size = (is_empty && self.rank() != 1).then(|| format!("size={}", Tuple(self.shape())));
        let usual = match self.dtype() {
            DType::F32 => true,
            DType::I64 | DType::Bool => !is_empty,
            _ => false,
        };
        let dtype = (!usual).then(|| format!("dtype={}", self.dtype()));
        let device = self.storage.device();
        let device = (!device.is_cpu()).then(|| format!("device='{device}'"));
        let gradient = self.node.as_ref().map(|node| match node.is_leaf() {
            true => "requires_grad=True".to_owned(),
            false => format!("grad_fn=<{}>", node.name()),
        });
        // PyTorch counts two characters more than the last line has.
        let mut line_len = text.len() - text.rfind('\n').map_or(0, |newline| newline + 1) + 2;
        for suffix in [device, size, dtype, gradient].into_iter().flatten() {
            if line_len + suffix.len() + 2 > LINE_WIDTH {
                write!(text, ",\n{:indent$}{suffix}", "", indent = PREFIX.len())?;
                line_len = PREFIX.len() + suffix.len();
            } else {
                write!(text, ", {suffix}")?;
                line_len += suffix.len() + 2;
            }
        }
        text.write_char(')')
    }
}

/// `(0, 3)`
struct Tuple<'a>(&'a Shape);

impl fmt::Display for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "({})", sizes.join(", "))
    }
}

fn write_shown<T: Element>(here: &Raw, text: &mut String, precision: usize) -> fmt::Result {
    let reading = here.read::<T>("print").map_err(|_| fmt::Error)?;
    let (elements, layout) = (reading.of(&here.layout), &here.layout);
    let shown = Shown { elements, layout, summarize: here.shape().elements() > SUMMARIZE_ABOVE };
    let mut column = Column::new(T::DTYPE, precision);
    shown.visit(0, 0, &mut |value| column.note_style(value));
    shown.visit(0, 0, &mut |value| column.note_width(value));
    shown.write(text, &column, 0, 0)
}

/// The elements of a tensor that get printed.
struct Shown<'a, T> {
    elements: &'a [T],
    layout: &'a Layout,
    summarize: bool,
}

impl<T: Element> Shown<'_, T> {
    fn rank(&self) -> usize {
        self.layout.shape().rank()
    }

    /// Where the sub-tensors (or elements) along `dim` start; `None` marks those left out.
    fn starts(&self, dim: usize, start: usize) -> impl Iterator<Item = Option<usize>> + use<T> {
        let (size, stride) = (self.layout.shape()[dim], self.layout.strides()[dim]);
        let (head, tail) = match self.summarize && size > 2 * EDGE {
            true => (EDGE, size - EDGE),
            false => (size, size),
        };
        let gap = (head < tail).then_some(None);
        (0..head).map(Some).chain(gap).chain((tail..size).map(Some)).map(move |i| i.map(|i| start + i * stride))
    }

    fn visit(&self, dim: usize, start: usize, f: &mut impl FnMut(Scalar)) {
        if dim == self.rank() {
            return f(self.elements[start].to_scalar());
        }
        self.starts(dim, start).flatten().for_each(|start| self.visit(dim + 1, start, f));
    }

    /// Writes the sub-tensor of the dimensions `dim..` that begins at `start`.
    fn write(&self, text: &mut String, column: &Column, dim: usize, start: usize) -> fmt::Result {
        let left = self.rank() - dim;
        if left == 0 {
            return column.write(text, self.elements[start].to_scalar());
        }
        let indent = PREFIX.len() + dim;
        let per_line = if left == 1 { (LINE_WIDTH.saturating_sub(indent) / (column.width + 2)).max(1) } else { 1 };
        let new_line = format!(",{}{}", "\n".repeat((left - 1).max(1)), " ".repeat(indent + 1));
        text.push('[');
        for (i, start) in self.starts(dim, start).enumerate() {
            match i % per_line {
                _ if i == 0 => {}
                0 => text.push_str(&new_line),
                _ => text.push_str(", "),
            }
            match start {
                Some(start) => self.write(text, column, dim + 1, start)?,
                None => text.push_str(if left == 1 { " ..." } else { "..." }),
            }
        }
        text.push(']');
        Ok(())
    }
}

/// How every element of one tensor is written.
struct Column {
    style: Style,
    precision: usize,
    width: usize,
    /// The smallest and the largest magnitude so far, of numbers that are neither 0 nor infinite.
    range: (f64, f64),
}

enum Style {
    Bool,
    Integer,
    /// Floats without a fraction: `1.`
    Whole,
    /// `1.2500`
    Fixed,
    /// Floats in scientific notation, with a fraction or without: `1.2500e+06`
    Scientific,
}

impl Column {
    fn new(dtype: DType, precision: usize) -> Column {
        let style = match dtype {
            DType::Bool => Style::Bool,
            _ if dtype.is_float() => Style::Whole,
            _ => Style::Integer,
        };
        Column { style, precision, width: 1, range: (f64::INFINITY, 0.0) }
    }

    /// Floats are whole until one has a fraction, and scientific once their magnitudes are too far apart or extreme.
    fn note_style(&mut self, value: Scalar) {
        let Scalar::Float(value) = value else { return };
        if value == 0.0 || !value.is_finite() {
            return;
        }
        self.range = (self.range.0.min(value.abs()), self.range.1.max(value.abs()));
        let (smallest, largest) = self.range;
        if largest / smallest > 1000.0 || largest > 1e8 || smallest < 1e-4 {
            self.style = Style::Scientific;
        } else if value.fract() != 0.0 && matches!(self.style, Style::Whole) {
            self.style = Style::Fixed;
        }
    }

    /// Zeros, infinities and NaN take the width that the other floats need.
    fn note_width(&mut self, value: Scalar) {
        if !matches!(value, Scalar::Float(float) if float == 0.0 || !float.is_finite()) {
            self.width = self.width.max(self.text(value).len());
        }
    }

    fn write(&self, text: &mut String, value: Scalar) -> fmt::Result {
        write!(text, "{:>width$}", self.text(value), width = self.width)
    }

    fn text(&self, value: Scalar) -> String {
        let precision = self.precision;
        match (value, &self.style) {
            (Scalar::Int(value), Style::Bool) => if value != 0 { "True" } else { "False" }.to_owned(),
            (Scalar::Int(value), _) => value.to_string(),
            (Scalar::Float(value), _) if value.is_nan() => "nan".to_owned(),
            (Scalar::Float(value), _) if value.is_infinite() => value.to_string(),
            (Scalar::Float(value), Style::Scientific) => scientific(value, precision),
            (Scalar::Float(value), Style::Fixed) => format!("{value:.precision$}"),
            (Scalar::Float(value), _) => format!("{value:.0}."),
        }
    }
}

/// As C writes it: a sign and at least two digits in the exponent.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text.split_once('e').map_or(text.clone(), |(digits, exponent)| format!("{digits}e+{exponent:0>2}")),
    }
}
