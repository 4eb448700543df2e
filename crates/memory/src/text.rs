//! Functions for the texts of errors, for all crates that use this one. The texts leave out no cause, say nothing
//! twice, and show invisible characters.

use std::error::Error;
use std::fmt::{self, Write};

/// The text of an error, followed by the texts of its causes that it does not contain yet.
///
/// # Examples
/// ```
/// use pagelock_memory::{Error, text::whole_text};
///
/// let error = "plenty".parse::<pagelock_memory::ByteSize>().unwrap_err();
/// assert_eq!(whole_text(&error), error.to_string());
/// ```
pub fn whole_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            let _ = write!(text, ": {said}"); // writing to a string cannot fail
        }
        next = cause.source();
    }
    text
}

/// A name or a path, in quotes if it is empty, has spaces at its ends, or contains control characters.
///
/// # Examples
/// ```
/// use pagelock_memory::text::named;
///
/// assert_eq!((&*named("cpu"), &*named("")), ("cpu", "\"\""));
/// ```
pub fn named(name: impl fmt::Display) -> String {
    let name = name.to_string();
    match name.is_empty() || name.trim() != name || name.chars().any(char::is_control) {
        true => format!("{name:?}"),
        false => name,
    }
}

/// The name of a type without its path and its parameters, since these may change from build to build.
///
/// # Examples
/// ```
/// use pagelock_memory::text::type_name;
///
/// assert_eq!((type_name::<Vec<String>>(), type_name::<str>()), ("Vec", "str"));
/// ```
pub fn type_name<T: ?Sized>() -> &'static str {
    last_part(std::any::type_name::<T>())
}

/// Not generic, so that programs need not compile it again.
fn last_part(path: &'static str) -> &'static str {
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}

/// The first 200 characters of a text that may be of any length.
///
/// # Examples
/// ```
/// use pagelock_memory::text::shortened;
///
/// assert_eq!(shortened("conv1.weight"), "conv1.weight");
/// assert_eq!(shortened(&"x".repeat(1_000)).chars().count(), 201); // with `…` at the end
/// ```
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A number, in at most 24 characters.
///
/// # Examples
/// ```
/// use pagelock_memory::text::number;
///
/// assert_eq!((number(0.5), number(1e300)), ("0.5".to_owned(), "1e300".to_owned()));
/// ```
pub fn number(number: f64) -> String {
    match number.is_finite() && number != 0.0 && !(1e-6..1e16).contains(&number.abs()) {
        true => format!("{number:e}"),
        false => number.to_string(),
    }
}

/// Makes `Debug` of an error its message, since `main` and `unwrap` print errors with `Debug`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_the_message {
    ($($error:ty)+) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&$crate::text::whole_text(self))
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An error with a text and a cause.
    #[derive(Debug)]
    struct Outer(&'static str, io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn causes_are_said_once() {
        let cause = || io::Error::other("the disk is full");
        assert_eq!(whole_text(&Outer("cannot save", cause())), "cannot save: the disk is full");
        assert_eq!(whole_text(&Outer("cannot save: the disk is full", cause())), "cannot save: the disk is full");
    }

    #[test]
    fn what_cannot_be_seen_is_quoted() {
        assert_eq!([named("a b"), named(" a"), named("a\n")], ["a b", "\" a\"", "\"a\\n\""]);
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, -0.0, 0.1, 64.0, 1e16, f64::MAX, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY];
        let texts = numbers.map(number);
        assert_eq!(&texts[..5], ["0", "-0", "0.1", "64", "1e16"]);
        assert!(texts.iter().all(|text| text.len() <= 24), "{texts:?}");
    }
}
