//! Normal forms of Unicode, and words: by `unicode-normalization` and `unicode-segmentation`.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;
use unicode_segmentation::UnicodeSegmentation;

/// A normal form of Unicode: <https://www.unicode.org/reports/tr15/>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalForm {
    /// Letters and their accents apart.
    Nfd,
    /// Letters and their accents together, where Unicode has a character for them.
    Nfc,
    /// As `Nfd`, and what only looks different is the same: `ﬁ` is `fi`, `²` is `2`.
    Nfkd,
    /// As `Nfc`, and what only looks different is the same.
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

/// `text` with accents taken off, and without what is not ASCII then: what PyTorch's tutorials call `unicodeToAscii`, with NFKD.
///
/// # Examples
/// ```
/// assert_eq!(pagelock_data::text::fold_to_ascii("Ślusàrski"), "Slusarski");
/// ```
pub fn fold_to_ascii(text: &str) -> String {
    text.nfkd().filter(|&letter| letter.is_ascii() && !is_combining_mark(letter)).collect()
}

/// The words of a text, as Unicode's word boundaries say: <https://www.unicode.org/reports/tr29/>. Spaces and punctuation are none.
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
