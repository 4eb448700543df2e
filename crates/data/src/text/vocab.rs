//! [`Vocab`]: numbers for tokens.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use pagelock_tensor::{Int, Tensor};

use super::lines::{self, GrowingReservation};
use crate::{Error, Result};

/// The first line of a file.
const HEAD: &str = "pagelock vocabulary 1";
/// The overhead of a token in bytes: its entries in the list and in the map while they grow, with the allocator's own.
const TOKEN_OVERHEAD: u64 = 224;

/// Numbers tokens from 0: special tokens first, then those of the training data, the most frequent first. Equally
/// frequent tokens are in the order of their bytes. This is the order of torchtext's `build_vocab_from_iterator`.
///
/// Cloning is cheap: the tokens are shared. Their memory is counted in the host's budget.
///
/// # Examples
/// ```
/// use pagelock_data::text::Vocab;
///
/// let texts = ["to be or not to be", "to do"];
/// let tokens = texts.iter().flat_map(|text| text.split(' '));
/// let vocab = Vocab::build(tokens, &["<pad>", "<unk>"], 2)?.unknown("<unk>")?; // what comes twice at least
/// assert_eq!(vocab.tokens(), ["<pad>", "<unk>", "to", "be"]);
/// assert_eq!(vocab.encode("to be or".split(' '))?.to_vec::<i64>()?, [2, 3, 1]);
/// assert_eq!(vocab.decode(&[3, 2])?, ["be", "to"]);
///
/// let file = tempfile::NamedTempFile::new()?;
/// vocab.save(file.path())?;
/// assert_eq!(Vocab::load(file.path())?, vocab);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vocab {
    tokens: Arc<[String]>,
    ids: Arc<HashMap<String, i64>>,
    unknown: Option<i64>,
    _counted: Arc<GrowingReservation>,
}

impl PartialEq for Vocab {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens && self.unknown == other.unknown
    }
}

impl Eq for Vocab {}

impl Vocab {
    /// The `specials`, then the tokens that occur at least `min_freq` times. Special tokens need not occur.
    ///
    /// # Errors
    /// [`Error::Argument`] if a special token is repeated; [`Error::Memory`] if the budget refuses.
    pub fn build<'a>(tokens: impl IntoIterator<Item = &'a str>, specials: &[&str], min_freq: u64) -> Result<Self> {
        Self::build_from(&mut tokens.into_iter(), specials, min_freq)
    }

    fn build_from(tokens: &mut dyn Iterator<Item = &str>, specials: &[&str], min_freq: u64) -> Result<Self> {
        let (mut counts, mut reservation) = (HashMap::<String, u64>::new(), GrowingReservation::default());
        for token in tokens {
            if let Some(count) = counts.get_mut(token) {
                *count += 1;
                continue;
            }
            reservation.reserve(token.len() as u64 + TOKEN_OVERHEAD)?;
            counts.insert(token.to_owned(), 1);
        }
        counts.retain(|token, _| !specials.contains(&token.as_str()));
        let mut frequent: Vec<(String, u64)> = counts.into_iter().filter(|&(_, count)| count >= min_freq).collect();
        frequent.sort_unstable_by(|(a, n_a), (b, n_b)| n_b.cmp(n_a).then_with(|| a.cmp(b)));
        let specials = specials.iter().map(|&special| special.to_owned());
        Self::of_tokens(&mut specials.chain(frequent.into_iter().map(|(token, _)| token)).map(Ok))
    }

    /// These tokens, in this order.
    ///
    /// # Errors
    /// [`Error::Argument`] if a token is repeated; [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::text::Vocab;
    ///
    /// let vocab = Vocab::new(["yes", "no"])?;
    /// assert_eq!((vocab.id("no"), vocab.id("perhaps")), (Some(1), None));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new<S: Into<String>>(tokens: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::of_tokens(&mut tokens.into_iter().map(|token| Ok(token.into())))
    }

    fn of_tokens(given: &mut dyn Iterator<Item = Result<String>>) -> Result<Self> {
        let mut reservation = GrowingReservation::default();
        let (mut tokens, mut ids) = (Vec::new(), HashMap::new());
        for (token, id) in given.zip(0..) {
            let token = token?;
            reservation.reserve(2 * token.len() as u64 + TOKEN_OVERHEAD)?;
            if let Some(before) = ids.insert(token.clone(), id) {
                let text = format!("`{token}` is given twice, at {before} and {id}; name each once");
                return Err(Error::Argument(text));
            }
            tokens.push(token);
        }
        Ok(Self { tokens: tokens.into(), ids: Arc::new(ids), unknown: None, _counted: Arc::new(reservation) })
    }

    /// The characters of a text, in the order of their code points.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// See [the module](super).
    pub fn of_chars(text: &str) -> Result<Self> {
        let chars: std::collections::BTreeSet<char> = text.chars().collect();
        Self::of_tokens(&mut chars.into_iter().map(|char| Ok(char.into())))
    }

    /// Makes every token that the vocabulary does not have count as `token`. Without this, such a token is an error.
    ///
    /// # Errors
    /// [`Error::Argument`] if the vocabulary does not have `token`.
    pub fn unknown(mut self, token: &str) -> Result<Self> {
        let Some(&id) = self.ids.get(token) else { return Err(no_token(token)) };
        self.unknown = Some(id);
        Ok(self)
    }

    /// The tokens, in the order of their numbers.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The number of a token; for one that the vocabulary does not have, that of the unknown token if there is one.
    pub fn id(&self, token: &str) -> Option<i64> {
        self.ids.get(token).copied().or(self.unknown)
    }

    /// The numbers of tokens, `[tokens]`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a token that the vocabulary does not have, unless there is an unknown token;
    /// [`Error::Tensor`] if memory is refused.
    pub fn encode<'a>(&self, tokens: impl IntoIterator<Item = &'a str>) -> Result<Tensor<Int>> {
        self.encode_all(&mut tokens.into_iter())
    }

    /// The numbers of a text's characters, `[characters]`.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    ///
    /// # Examples
    /// See [the module](super).
    pub fn encode_chars(&self, text: &str) -> Result<Tensor<Int>> {
        let ends = text.char_indices().map(|(start, char)| &text[start..start + char.len_utf8()]);
        self.encode_all(&mut { ends })
    }

    fn encode_all(&self, tokens: &mut dyn Iterator<Item = &str>) -> Result<Tensor<Int>> {
        let mut ids = tokens.map(|token| self.id(token).ok_or_else(|| no_token(token)));
        let (ids, _listed) = GrowingReservation::list(&mut ids)?;
        let len = ids.len();
        Ok(Tensor::from_vec(ids, len)?)
    }

    /// The tokens with these numbers.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number that no token has; [`Error::Memory`] if the budget refuses.
    pub fn decode(&self, ids: &[i64]) -> Result<Vec<&str>> {
        let token = |&id: &i64| usize::try_from(id).ok().and_then(|id| self.tokens.get(id)).map(String::as_str);
        let missing = |id: &i64| {
            let len = self.len();
            Error::Argument(format!(
                "there is no token {id}: the vocabulary has {len} tokens, counted from 0; check the model"
            ))
        };
        let (tokens, _listed) =
            GrowingReservation::list(&mut ids.iter().map(|id| token(id).ok_or_else(|| missing(id))))?;
        Ok(tokens)
    }

    /// Writes the vocabulary to a file, which is replaced as a whole: a line for each token, in which `\`, line feeds
    /// and carriage returns are `\\`, `\n` and `\r`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        lines::save(path.as_ref(), |file| {
            writeln!(file, "{HEAD}\nunknown {}", self.unknown.unwrap_or(-1))?;
            for token in self.tokens.iter() {
                for &byte in token.as_bytes() {
                    match byte {
                        b'\\' => file.write_all(br"\\")?,
                        b'\n' => file.write_all(br"\n")?,
                        b'\r' => file.write_all(br"\r")?,
                        byte => file.write_all(&[byte])?,
                    }
                }
                file.write_all(b"\n")?;
            }
            Ok(())
        })
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if the file has another format or is damaged; [`Error::Memory`] if the
    /// budget refuses.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (text, _counted) = lines::load(path, HEAD)?;
        let wrong = |problem: String| Error::content(path, problem);
        let Some((unknown, rest)) = text.split_once('\n') else {
            return Err(wrong("it ends after its first line; write it again".into()));
        };
        let unknown: Option<i64> = unknown.strip_prefix("unknown ").and_then(|id| id.parse().ok());
        let unknown = unknown.ok_or_else(|| wrong("it does not name its unknown token; write it again".into()))?;
        let mut tokens = rest.split_terminator('\n').map(|line| {
            let not_a_token = || wrong(format!("it has a line `{line}` that is not a token; write it again"));
            unescaped(line).ok_or_else(not_a_token)
        });
        let vocab = Self::of_tokens(&mut tokens).map_err(|error| match error {
            Error::Argument(problem) => wrong(problem),
            other => other,
        })?;
        match usize::try_from(unknown) {
            Ok(id) if id >= vocab.len() => Err(wrong(format!("it lacks its unknown token {id}; write it again"))),
            unknown => Ok(Self { unknown: unknown.ok().map(|id| id as i64), ..vocab }),
        }
    }
}

/// Undoes the escapes of a token in a file.
fn unescaped(line: &str) -> Option<String> {
    let (mut token, mut letters) = (String::with_capacity(line.len()), line.chars());
    while let Some(letter) = letters.next() {
        token.push(match letter {
            '\\' => match letters.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(token)
}

fn no_token(token: &str) -> Error {
    let start: String = token.chars().take(40).collect();
    Error::Argument(format!(
        "the vocabulary has no token `{start}`; add it, or name the unknown token with Vocab::unknown"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_comes_back_from_a_file_and_other_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let vocab = Vocab::new(["", "\n", "\\n", "a\\\r", " ä "]).unwrap().unknown("\n").unwrap();
        vocab.save(file.path()).unwrap();
        assert_eq!(Vocab::load(file.path()).unwrap(), vocab);
        for (text, problem) in [
            ("other", "cannot be used: it does not begin with the line"),
            ("pagelock vocabulary 1\n", "cannot be used: it ends after its first line"),
            ("pagelock vocabulary 1\nunknown x\n", "it does not name its unknown token"),
            ("pagelock vocabulary 1\nunknown 1\na\n", "it lacks its unknown token 1"),
            ("pagelock vocabulary 1\nunknown -1\na\na\n", "`a` is given twice, at 0 and 1"),
            ("pagelock vocabulary 1\nunknown -1\na\\x\n", "that is not a token"),
            ("pagelock vocabulary 1\nunknown -1\nab\nc", "its last line has no end: it is cut off; write it again"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = Vocab::load(file.path()).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let vocab = Vocab::of_chars("abba").unwrap();
        assert_eq!(
            vocab.encode_chars("abc").unwrap_err().to_string(),
            "the vocabulary has no token `c`; add it, or name the unknown token with Vocab::unknown"
        );
        assert_eq!(
            vocab.decode(&[0, -1]).unwrap_err().to_string(),
            "there is no token -1: the vocabulary has 2 tokens, counted from 0; check the model"
        );
    }
}
