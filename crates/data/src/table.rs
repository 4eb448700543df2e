//! Columns of tables beyond plain numbers: texts, categories and missing cells; and standardized numbers.
//!
//! [`Categories`] and [`Standardize`] are fitted to training data and kept, so that test data gets the same codes and
//! the same scale.

use std::collections::BTreeSet;

use pagelock_memory::HeapReservation;
use pagelock_tensor::{Bool, DType, Error as TensorError, Int, Tensor};

use crate::csv::{CsvTable, LONGEST_FIELD};
use crate::elements::try_build;
use crate::text::Vocab;
use crate::text::lines::GrowingReservation;
use crate::{Error, Result};

/// The overhead of a text in bytes, with the allocator's own.
const TEXT_OVERHEAD: u64 = size_of::<String>() as u64 + 32;

/// The names of a column's categories. The code of a category is the index of its name.
///
/// # Examples
/// ```
/// use pagelock_data::{Categories, CsvTable};
///
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(&file, "color,price\nred,1\nblue,2\nred,3\n")?;
/// let train = CsvTable::open(file.path())?;
/// let colors = train.categories("color")?; // in order of their letters
/// assert_eq!(colors.names(), ["blue", "red"]);
/// assert_eq!(train.codes("color", &colors)?.to_vec::<i64>()?, [1, 0, 1]);
///
/// std::fs::write(&file, "color,price\ngreen,1\nred,2\n")?;
/// let test = CsvTable::open(file.path())?;
/// assert!(test.codes("color", &colors).unwrap_err().to_string().contains("line 2: `green` in column `color`"));
/// assert_eq!(test.codes("color", &colors.unknown(2))?.to_vec::<i64>()?, [2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Categories {
    names: Vocab, // without an unknown token
    unknown: Option<i64>,
}

impl Categories {
    /// Categories with these names, in this order.
    ///
    /// # Errors
    /// [`Error::Argument`] if a name is repeated; [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Categories;
    ///
    /// let sizes = Categories::new(["small", "medium", "large"])?;
    /// assert_eq!((sizes.len(), sizes.code("large"), sizes.code("huge")), (3, Some(2), None));
    /// assert!(Categories::new(["a", "a"]).is_err());
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Result<Self> {
        Ok(Self { names: Vocab::new(names)?, unknown: None })
    }

    /// The distinct texts, in the order of their bytes, so that codes do not depend on the order of rows.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Categories;
    ///
    /// let texts = ["b", "a", "b"].map(String::from);
    /// let categories = Categories::of(&texts)?;
    /// assert_eq!(categories.names(), ["a", "b"]);
    /// assert_eq!(categories.codes(&texts)?.to_vec::<i64>()?, [1, 0, 1]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn of(texts: &[String]) -> Result<Self> {
        let _sorted = HeapReservation::new(size_of_val(texts) as u64)?; // more than a set of references takes
        let different: BTreeSet<&String> = texts.iter().collect();
        Self::new(different)
    }

    /// Gives `code` to every text that is not a category, and to missing cells. Without this, they are errors.
    pub fn unknown(mut self, code: i64) -> Self {
        self.unknown = Some(code);
        self
    }

    /// The names, in the order of their codes.
    pub fn names(&self) -> &[String] {
        self.names.tokens()
    }

    /// How many categories there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are no categories.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The code of a text: that of its category, else the code for unknown texts if there is one.
    pub fn code(&self, text: &str) -> Option<i64> {
        self.names.id(text).or(self.unknown)
    }

    /// The codes of texts, `[texts]`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a text that is not a category, with its index, unless there is a code for unknown
    /// texts; [`Error::Tensor`] if memory is refused.
    pub fn codes(&self, texts: &[String]) -> Result<Tensor<Int>> {
        try_build(texts.len(), |out: &mut [i64]| {
            for (at, (out, text)) in out.iter_mut().zip(texts).enumerate() {
                let unknown = || Error::Argument(format!("text {at}, `{text}`, {}", self.no_category()));
                *out = self.code(text).ok_or_else(unknown)?;
            }
            Ok(())
        })
    }

    fn no_category(&self) -> String {
        format!("is none of the {} categories; give unknown ones a code with Categories::unknown", self.names.len())
    }
}

impl CsvTable {
    /// One column as texts, as the file has them, without quotes.
    ///
    /// # Errors
    /// [`Error::Content`] for an unknown column; [`Error::Memory`] if the budget has no memory for the texts. The
    /// returned texts count in no budget.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::CsvTable;
    /// # let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(&file, "stars,review\n5,\"good, \"\"very\"\" good\"\n")?;
    /// assert_eq!(CsvTable::open(file.path())?.texts("review")?, ["good, \"very\" good"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        let column = self.position(name)?;
        // The texts together, and the buffer for one text, are no longer than the file.
        let _counted = HeapReservation::new(2 * self.len_bytes() as u64 + self.n_rows() as u64 * TEXT_OVERHEAD)?;
        let mut texts = Vec::with_capacity(self.n_rows());
        self.each_cell(&[column], self.len_bytes(), &mut |field, _| {
            texts.push(field.text.unwrap_or_default().to_owned());
            Ok(())
        })?;
        Ok(texts)
    }

    /// The distinct texts of a column, without missing cells, in the order of their bytes.
    ///
    /// # Errors
    /// As [`texts`](Self::texts); [`Error::Content`] for a cell of more than 4096 bytes.
    pub fn categories(&self, name: &str) -> Result<Categories> {
        let column = self.position(name)?;
        let mut reservation = GrowingReservation::default(); // for `names`
        let mut names = BTreeSet::new();
        self.each_cell(&[column], LONGEST_FIELD, &mut |field, _| {
            let text = field.text.ok_or_else(|| self.wrong_cell(field, TOO_LONG))?.trim();
            if !self.is_missing(Some(text)) && !names.contains(text) {
                reservation.reserve(text.len() as u64 + 2 * TEXT_OVERHEAD)?;
                names.insert(text.to_owned());
            }
            Ok(())
        })?;
        Categories::new(names)
    }

    /// One column as codes of categories, `[rows]`; spaces around a cell do not count.
    ///
    /// # Errors
    /// [`Error::Content`] for an unknown column and, unless there is a code for unknown texts, for a missing cell or
    /// a text that is not a category (the error names the line); [`Error::Tensor`] if memory is refused.
    pub fn codes(&self, name: &str, categories: &Categories) -> Result<Tensor<Int>> {
        let column = self.position(name)?;
        try_build(self.n_rows(), |out: &mut [i64]| {
            self.each_cell(&[column], LONGEST_FIELD, &mut |field, at| {
                let text = field.text.map(str::trim).filter(|text| !self.is_missing(Some(text)));
                let code = text.and_then(|text| categories.code(text)).or(categories.unknown);
                out[at] = code.ok_or_else(|| self.wrong_cell(field, &categories.no_category()))?;
                Ok(())
            })
        })
    }

    /// Which cells of columns are missing, `[rows, columns]`: those that are empty, and those of [`na_values`](Self::na_values).
    ///
    /// # Errors
    /// [`Error::Content`] for an unknown column; [`Error::Tensor`] if memory is refused.
    pub fn missing(&self, names: &[&str]) -> Result<Tensor<Bool>> {
        let columns = self.positions(names)?;
        try_build([self.n_rows(), columns.len()], |out: &mut [bool]| {
            self.each_cell(&columns, LONGEST_FIELD, &mut |field, at| {
                out[at] = self.is_missing(field.text);
                Ok(())
            })
        })
    }
}

const TOO_LONG: &str = "is longer than 4096 bytes, too long for a category; read it with texts()";

/// Brings columns of numbers to mean 0 and standard deviation 1, with the means and deviations of training data:
/// scikit-learn's `StandardScaler`. A constant column is only shifted. NaN counts as a missing number: it is left out
/// of mean and deviation and stays NaN.
///
/// # Examples
/// ```
/// use pagelock_data::Standardize;
/// use pagelock_tensor::Tensor;
///
/// let train = Tensor::new([[1.0, 10.0], [3.0, 10.0]])?;
/// let scale = Standardize::fit(&train)?;
/// assert_eq!((&scale.mean[..], &scale.std[..]), (&[2.0, 10.0][..], &[1.0, 1.0][..]));
/// assert_eq!(scale.apply(&train)?.to_vec::<f32>()?, [-1.0, 0.0, 1.0, 0.0]);
///
/// let test = Tensor::new([[5.0, 11.0]])?;
/// assert_eq!(scale.undo(&scale.apply(&test)?)?.to_vec::<f32>()?, [5.0, 11.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Standardize {
    /// The mean of each column.
    pub mean: Vec<f64>,
    /// The standard deviation of each column, as the root of the mean square; 1 where that is 0.
    pub std: Vec<f64>,
}

impl Standardize {
    /// Means and deviations of the columns of `[rows, columns]`, or of one column, `[rows]`.
    ///
    /// # Errors
    /// [`Error::Tensor`] for another number of dimensions, or if memory is refused.
    pub fn fit(x: &Tensor) -> Result<Self> {
        let n_columns = n_columns("standardize", x)?;
        let _counted = HeapReservation::new(8 * x.len() as u64)?;
        let values = x.to_vec::<f64>()?;
        let column = |at: usize| values.iter().skip(at).step_by(n_columns.max(1)).filter(|value| !value.is_nan());
        let mean_of = |at: usize, f: &dyn Fn(f64) -> f64| {
            let (sum, n) = column(at).fold((0.0, 0_u64), |(sum, n), &value| (sum + f(value), n + 1));
            sum / n.max(1) as f64
        };
        let mean: Vec<f64> = (0..n_columns).map(|at| mean_of(at, &|value| value)).collect();
        let std = (0..n_columns).map(|at| {
            let std = mean_of(at, &|value| (value - mean[at]).powi(2)).sqrt();
            // Of a constant column, only rounding is left.
            if std <= 10.0 * f64::EPSILON * mean[at].abs() { 1.0 } else { std }
        });
        let std = std.collect();
        Ok(Self { mean, std })
    }

    /// `(x − mean) / std`, column by column, in the precision of `x`.
    ///
    /// # Errors
    /// [`Error::Tensor`] for another number of columns, or if memory is refused.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.each(x, &|value, mean, std| (value - mean) / std)
    }

    /// `x · std + mean`: converts results of [`apply`](Self::apply), or predictions of a model, back to the unit of
    /// the data.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn undo(&self, x: &Tensor) -> Result<Tensor> {
        self.each(x, &|value, mean, std| value * std + mean)
    }

    fn each(&self, x: &Tensor, f: &dyn Fn(f64, f64, f64) -> f64) -> Result<Tensor> {
        let n_columns = n_columns("standardize", x)?;
        if n_columns != self.mean.len() || n_columns != self.std.len() {
            let known = self.mean.len();
            let text = format!(
                "standardize: x is {}, but there are means of {known} columns; give the same columns",
                x.shape()
            );
            return Err(TensorError::Argument(text).into());
        }
        let _counted = HeapReservation::new(8 * x.len() as u64)?;
        let mut values = x.to_vec::<f64>()?;
        for row in values.chunks_exact_mut(n_columns.max(1)) {
            for (value, (mean, std)) in row.iter_mut().zip(self.mean.iter().zip(&self.std)) {
                *value = f(*value, *mean, *std);
            }
        }
        let wide = Tensor::from_vec(values, *x.shape())?;
        Ok(if x.dtype() == DType::F64 { wide } else { wide.to_dtype(x.dtype())? })
    }
}

fn n_columns(op: &str, x: &Tensor) -> Result<usize> {
    match *x.dims() {
        [_] => Ok(1),
        [_, columns] => Ok(columns),
        _ => {
            let text = format!("{op}: x is {}, but a table is [rows, columns] or one column [rows]", x.shape());
            Err(TensorError::Argument(text).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> (tempfile::NamedTempFile, CsvTable) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let table = CsvTable::open(file.path()).unwrap();
        (file, table)
    }

    #[test]
    fn texts_of_any_length_come_whole_and_are_in_the_budget_meanwhile() {
        let long = "ä".repeat(50_000);
        let (_file, table) = table(&format!("a,b\n1,{long}\n2,\" x \"\n"));
        assert_eq!(table.texts("b").unwrap(), [long.as_str(), " x "]);
        assert!(
            table
                .categories("b")
                .unwrap_err()
                .to_string()
                .contains("line 2: `…` in column `b` is longer than 4096 bytes")
        );
    }

    #[test]
    fn a_missing_cell_is_no_category() {
        let (_file, table) = table("kind,n\nb,1\n,2\nNA,3\n a ,x\n");
        let table = table.na_values(&["NA"]);
        let kinds = table.categories("kind").unwrap();
        assert_eq!(kinds.names(), ["a", "b"]);
        let refused = table.codes("kind", &kinds).unwrap_err().to_string();
        assert!(refused.ends_with("line 3: `` in column `kind` is none of the 2 categories; give unknown ones a code with Categories::unknown"), "{refused}");
        assert_eq!(table.codes("kind", &kinds.unknown(-1)).unwrap().to_vec::<i64>().unwrap(), [1, -1, -1, 0]);
        let refused = table.fill_missing(0.0).column::<Int>("n").unwrap_err().to_string();
        assert!(refused.contains("line 5: `x` in column `n` does not parse as int64"), "{refused}");
    }

    #[test]
    fn missing_numbers_do_not_count_and_stay_missing() {
        let x = Tensor::new([1.0, f64::NAN, 3.0]).unwrap();
        let scale = Standardize::fit(&x).unwrap();
        assert_eq!((scale.mean[0], scale.std[0]), (2.0, 1.0));
        assert!(scale.apply(&x).unwrap().to_vec::<f32>().unwrap()[1].is_nan());
        let wrong = scale.apply(&Tensor::zeros([2, 3]).unwrap()).unwrap_err().to_string();
        assert_eq!(wrong, "standardize: x is [2, 3], but there are means of 1 columns; give the same columns");
    }
}
