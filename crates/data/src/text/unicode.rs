//! Normal forms of Unicode, and words: by `unicode-normalization` and `unicode-segmentation`.

use pagelock_memory::HeapReservation;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;
use unicode_segmentation::UnicodeSegmentation;

use super::lines::GrowingReservation;
use crate::Result;

/// A normal form of Unicode: <https://www.unicode.org/reports/tr15/>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalForm {
    /// Letters and their accents are separate characters.
    Nfd,
    /// Letters and their accents are one character, where Unicode has one.
    Nfc,
    /// As `Nfd`, and characters that only look different are replaced: `ﬁ` becomes `fi`, `²` becomes `2`.
    Nfkd,
    /// As `Nfc`, and characters that only look different are replaced.
    Nfkc,
}

/// `text` in a normal form. The returned text counts in no budget.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory) if the budget has no memory for it.
///
/// # Examples
/// ```
/// use pagelock_data::text::{NormalForm, normalize};
///
/// assert_eq!(normalize("e\u{301}", NormalForm::Nfc)?, "é");
/// assert_eq!(normalize("ﬁ²", NormalForm::Nfkc)?, "fi2");
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn normalize(text: &str, form: NormalForm) -> Result<String> {
    match form {
        NormalForm::Nfd => collect(text, &mut text.nfd()),
        NormalForm::Nfc => collect(text, &mut text.nfc()),
        NormalForm::Nfkd => collect(text, &mut text.nfkd()),
        NormalForm::Nfkc => collect(text, &mut text.nfkc()),
    }
}

/// The normalized letters of `text` as a text.
fn collect(text: &str, letters: &mut dyn Iterator<Item = char>) -> Result<String> {
    // The iterators keep a letter and all accents that follow it in lists that grow.
    let accents = text.split(|letter| canonical_combining_class(letter) == 0).map(str::len).max().unwrap_or(0);
    let _accents = HeapReservation::new((accents * ACCENT_BYTES) as u64)?;
    let (mut normal, mut counted) = (String::new(), GrowingReservation::default());
    for letter in letters {
        counted.reserve(3 * letter.len_utf8() as u64)?; // a text that grows, and the shorter one before
        normal.push(letter);
    }
    Ok(normal)
}

/// The memory that the iterators need for each byte of a run of accents.
const ACCENT_BYTES: usize = 36;

/// `text` without accents, and without the characters that are still not ASCII: `unicodeToAscii` of PyTorch's
/// tutorials, with NFKD. The returned text counts in no budget.
///
/// # Errors
/// As [`normalize`].
///
/// # Examples
/// ```
/// assert_eq!(pagelock_data::text::fold_to_ascii("Ślusàrski")?, "Slusarski");
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn fold_to_ascii(text: &str) -> Result<String> {
    collect(text, &mut text.nfkd().filter(char::is_ascii))
}

/// The words of a text, without spaces and punctuation, by Unicode's word boundaries:
/// <https://www.unicode.org/reports/tr29/>.
///
/// # Examples
/// ```
/// use pagelock_data::text::words;
///
/// assert_eq!(words("It can't be 3.14, or?").collect::<Vec<_>>(), ["It", "can't", "be", "3.14", "or"]);
/// ```
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.unicode_words()
}
