//! Normal forms of Unicode, and words: by `unicode-normalization` and `unicode-segmentation`.

use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

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

/// `text` in a normal form.
///
/// # Examples
/// ```
/// use pagelock_data::text::{NormalForm, normalize};
///
/// assert_eq!(normalize("e\u{301}", NormalForm::Nfc), "é");
/// assert_eq!(normalize("ﬁ²", NormalForm::Nfkc), "fi2");
/// ```
pub fn normalize(text: &str, form: NormalForm) -> String {
    match form {
        NormalForm::Nfd => text.nfd().collect(),
        NormalForm::Nfc => text.nfc().collect(),
        NormalForm::Nfkd => text.nfkd().collect(),
        NormalForm::Nfkc => text.nfkc().collect(),
    }
}

/// `text` without accents, and without the characters that are still not ASCII: `unicodeToAscii` of PyTorch's
/// tutorials, with NFKD.
///
/// # Examples
/// ```
/// assert_eq!(pagelock_data::text::fold_to_ascii("Ślusàrski"), "Slusarski");
/// ```
pub fn fold_to_ascii(text: &str) -> String {
    text.nfkd().filter(char::is_ascii).collect()
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
