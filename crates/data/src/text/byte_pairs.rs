//! [`BytePairs`]: byte-pair encoding, with pieces of bytes that often occur together.
//!
//! R. Sennrich, B. Haddow, A. Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016,
//! <https://arxiv.org/abs/1508.07909>, on bytes, as in GPT-2.
//!
//! Pairs are joined only inside words. A word is a run of letters, of digits or of other characters, with one space
//! before it, or a run of spaces. So each distinct word is handled once, however often it occurs. Words are cut at
//! [`LONGEST_WORD`] bytes, which bounds the time for a word and the length of a piece.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::path::Path;
use std::sync::Arc;

use pagelock_memory::HeapReservation;
use pagelock_tensor::{Int, Tensor};

use super::lines::{self, GrowingReservation};
use crate::{Error, Result};

const HEAD: &str = "pagelock byte pairs 1";
const LONGEST_WORD: usize = 128;

type Pair = (u32, u32);

/// Cuts texts into pieces and back without loss. Pieces below 256 are bytes, and each further piece is a pair of
/// earlier ones, in the order in which they were learned.
///
/// # Examples
/// ```
/// use pagelock_data::text::BytePairs;
///
/// let pieces = BytePairs::train(["low lower lowest", "new newer newest"], 262)?;
/// let ids = pieces.encode("the lowest ä")?;
/// assert!(ids.len() < "the lowest ä".len());
/// assert_eq!(pieces.decode(&ids.to_vec::<i64>()?)?, "the lowest ä");
///
/// let file = tempfile::NamedTempFile::new()?;
/// pieces.save(file.path())?;
/// assert_eq!(BytePairs::load(file.path())?, pieces);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BytePairs {
    pairs: Arc<[Pair]>,
    ids: Arc<HashMap<Pair, u32>>,
    lens: Arc<[usize]>, // in bytes, by number
    _counted: Arc<GrowingReservation>,
}

impl PartialEq for BytePairs {
    fn eq(&self, other: &Self) -> bool {
        self.pairs == other.pairs
    }
}

impl Eq for BytePairs {}

impl BytePairs {
    /// Learns from `texts` until there are `n_pieces` pieces, or no pair occurs twice. Of equally frequent pairs, the
    /// one with the smaller numbers comes first, so the same texts give the same pieces.
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer than 256 pieces, the number of bytes, or more than 2³¹; [`Error::Memory`] if the
    /// budget refuses.
    pub fn train<S: AsRef<str>>(texts: impl IntoIterator<Item = S>, n_pieces: usize) -> Result<Self> {
        if !(256..=1 << 31).contains(&n_pieces) {
            let text = format!("{n_pieces} pieces are too few or too many; give 256 (one for each byte) to 2147483648");
            return Err(Error::Argument(text));
        }
        let (mut counts, mut reservation) = (BTreeMap::<Vec<u8>, u64>::new(), GrowingReservation::default());
        for text in texts {
            count_words(text.as_ref(), &mut counts, &mut reservation)?;
        }
        Self::of_pairs(Learner::new(counts, &mut reservation)?.learn(n_pieces - 256))
    }

    /// From pairs, each of which has to consist of earlier pieces.
    fn of_pairs(pairs: Vec<Pair>) -> Result<Self> {
        let mut reservation = GrowingReservation::default();
        reservation.reserve(pairs.len() as u64 * 64)?;
        let (mut lens, mut ids) = (vec![1_usize; 256], HashMap::with_capacity(pairs.len()));
        for (&(left, right), id) in pairs.iter().zip(256_u32..) {
            let len = |piece: u32| lens.get(piece as usize).copied();
            let len = len(left).zip(len(right)).map(|(left, right)| left + right).filter(|&len| len <= LONGEST_WORD);
            let (Some(len), None) = (len, ids.insert((left, right), id)) else {
                return Err(Error::Argument(format!(
                    "piece {id} cannot join {left} and {right}: a pair joins earlier pieces, occurs once, and has at \
                     most {LONGEST_WORD} bytes"
                )));
            };
            lens.push(len);
        }
        Ok(Self { pairs: pairs.into(), ids: Arc::new(ids), lens: lens.into(), _counted: Arc::new(reservation) })
    }

    /// How many pieces there are.
    #[allow(clippy::len_without_is_empty)] // there are 256 at least
    pub fn len(&self) -> usize {
        256 + self.pairs.len()
    }

    /// The numbers of a text's pieces, `[pieces]`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn encode(&self, text: &str) -> Result<Tensor<Int>> {
        let (mut ids, mut reservation) = (Vec::new(), GrowingReservation::default());
        reservation.reserve(2 * (size_of::<i64>() * text.len()) as u64)?;
        for word in words(text) {
            let mut pieces: Vec<u32> = word.bytes().map(u32::from).collect();
            // A word has at most 128 bytes, so looking at all its pairs again is quick.
            let first =
                |pieces: &[u32]| pieces.windows(2).filter_map(|pair| self.ids.get(&(pair[0], pair[1])).copied()).min();
            while let Some(id) = first(&pieces) {
                join(&mut pieces, self.pairs[id as usize - 256], id);
            }
            ids.extend(pieces.into_iter().map(i64::from));
        }
        let len = ids.len();
        Ok(Tensor::from_vec(ids, len)?)
    }

    /// The text of pieces. Bytes that are not UTF-8, which a model may produce, become `U+FFFD`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number that no piece has; [`Error::Memory`] if the budget refuses.
    pub fn decode(&self, ids: &[i64]) -> Result<String> {
        let known = |&id: &i64| usize::try_from(id).ok().filter(|&id| id < self.len()).map(|id| id as u32);
        let missing = |id: &i64| {
            let len = self.len();
            Error::Argument(format!("there is no piece {id}: there are {len}, counted from 0; check the model"))
        };
        let mut n_bytes = 0;
        for id in ids {
            n_bytes += self.lens[known(id).ok_or_else(|| missing(id))? as usize];
        }
        let _decoded = HeapReservation::new(n_bytes as u64)?;
        let mut bytes = Vec::with_capacity(n_bytes);
        let mut rest = Vec::new();
        for id in ids.iter().filter_map(known) {
            rest.push(id);
            while let Some(piece) = rest.pop() {
                match piece.checked_sub(256) {
                    None => bytes.push(piece as u8),
                    Some(pair) => rest.extend([self.pairs[pair as usize].1, self.pairs[pair as usize].0]),
                }
            }
        }
        String::from_utf8(bytes).or_else(|broken| {
            // A byte may become the three of U+FFFD, in a text that doubles its length when it grows.
            let _replaced = HeapReservation::new(4 * n_bytes as u64)?;
            Ok(String::from_utf8_lossy(broken.as_bytes()).into_owned())
        })
    }

    /// Writes the pairs to a file, which is replaced as a whole: a line for each pair, with the numbers of its
    /// pieces.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        lines::save(path.as_ref(), |file| {
            writeln!(file, "{HEAD}")?;
            self.pairs.iter().try_for_each(|(left, right)| writeln!(file, "{left} {right}"))
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
        let pair = |line: &str| -> Option<Pair> {
            let (left, right) = line.split_once(' ')?;
            Some((left.parse().ok()?, right.parse().ok()?))
        };
        let wrong = |line: &str| {
            Error::content(path, format!("it has a line `{line}` that is not a pair of numbers; write it again"))
        };
        let n_pairs = text.lines().count();
        let _listed = HeapReservation::new((n_pairs * size_of::<Pair>()) as u64)?;
        let mut pairs = Vec::with_capacity(n_pairs);
        for line in text.lines() {
            pairs.push(pair(line).ok_or_else(|| wrong(line))?);
        }
        Self::of_pairs(pairs).map_err(|error| match error {
            Error::Argument(problem) => Error::content(path, problem),
            other => other,
        })
    }
}

/// Replaces each occurrence of a pair by `id`.
fn join(pieces: &mut Vec<u32>, (left, right): Pair, id: u32) {
    let (mut from, mut to) = (0, 0);
    while from < pieces.len() {
        let is_pair = pieces[from] == left && pieces.get(from + 1) == Some(&right);
        pieces[to] = if is_pair { id } else { pieces[from] };
        (from, to) = (from + 1 + usize::from(is_pair), to + 1);
    }
    pieces.truncate(to);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
}

fn class(letter: char) -> Class {
    match letter {
        letter if letter.is_alphabetic() => Class::Letter,
        letter if letter.is_numeric() => Class::Digit,
        letter if letter.is_whitespace() => Class::Space,
        _ => Class::Other,
    }
}

/// The words of a text. Joined, they are the text again.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let len = word_len(rest);
        let (word, after) = rest.split_at(len);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// How many bytes the first word has; 0 for an empty text.
fn word_len(text: &str) -> usize {
    let mut letters = text.char_indices().map(|(at, letter)| (at, letter, class(letter))).peekable();
    let Some((_, first, mut kind)) = letters.next() else { return 0 };
    let mut len = first.len_utf8();
    if let (' ', Some(&(_, _, next))) = (first, letters.peek()) {
        kind = next; // one space belongs to the word after it
    }
    for (at, letter, class) in letters {
        let end = at + letter.len_utf8();
        // The last of several spaces belongs to the word after them.
        let is_before_word = letter == ' ' && text[end..].chars().next().is_some_and(|next| !next.is_whitespace());
        if class != kind || end > LONGEST_WORD || is_before_word {
            break;
        }
        len = end;
    }
    len
}

fn count_words(text: &str, counts: &mut BTreeMap<Vec<u8>, u64>, reservation: &mut GrowingReservation) -> Result<()> {
    for word in words(text) {
        if let Some(count) = counts.get_mut(word.as_bytes()) {
            *count += 1;
            continue;
        }
        // Its bytes, four bytes for each of them during learning, and an entry in the lists of its pairs.
        reservation.reserve(64 * word.len() as u64 + 128)?;
        counts.insert(word.as_bytes().to_vec(), 1);
    }
    Ok(())
}

/// Joins the most frequent pair again and again. Only the counts of words that change are updated.
struct Learner {
    words: Vec<(Vec<u32>, u64)>,
    pairs: HashMap<Pair, (u64, BTreeSet<usize>)>, // how often a pair occurs, and in which words
    heap: BinaryHeap<(u64, std::cmp::Reverse<Pair>)>, // with counts that may be outdated
}

impl Learner {
    fn new(counts: BTreeMap<Vec<u8>, u64>, reservation: &mut GrowingReservation) -> Result<Self> {
        reservation.reserve(counts.len() as u64 * 32)?;
        let words =
            counts.into_iter().map(|(word, count)| (word.into_iter().map(u32::from).collect(), count)).collect();
        let mut learner = Self { words, pairs: HashMap::new(), heap: BinaryHeap::new() };
        for word in 0..learner.words.len() {
            learner.count_pairs(word);
        }
        learner.heap = learner.pairs.iter().map(|(&pair, &(count, _))| (count, std::cmp::Reverse(pair))).collect();
        Ok(learner)
    }

    /// Adds the pairs of a word.
    fn count_pairs(&mut self, word: usize) {
        let (pieces, count) = &self.words[word];
        for pair in pieces.windows(2) {
            let (sum, word_indices) = self.pairs.entry((pair[0], pair[1])).or_default();
            *sum += count;
            word_indices.insert(word);
        }
    }

    /// Removes the pairs of a word.
    fn uncount_pairs(&mut self, word: usize) {
        let (pieces, count) = &self.words[word];
        for pair in pieces.windows(2) {
            if let Some((sum, word_indices)) = self.pairs.get_mut(&(pair[0], pair[1])) {
                *sum = sum.saturating_sub(*count);
                word_indices.remove(&word);
            }
        }
    }

    fn learn(mut self, n_pairs: usize) -> Vec<Pair> {
        let mut learned = Vec::new();
        while learned.len() < n_pairs {
            let Some((count, std::cmp::Reverse(pair))) = self.heap.pop() else { break };
            let now = self.pairs.get(&pair).map_or(0, |&(count, _)| count);
            if now != count {
                if now > 1 && now < count {
                    self.heap.push((now, std::cmp::Reverse(pair)));
                }
                continue;
            }
            if count < 2 {
                break;
            }
            self.replace(pair, 256 + learned.len() as u32);
            learned.push(pair);
        }
        learned
    }

    fn replace(&mut self, pair: Pair, id: u32) {
        let word_indices = self.pairs.get(&pair).map(|(_, word_indices)| word_indices.clone()).unwrap_or_default();
        let mut changed = BTreeSet::new();
        for word in word_indices {
            self.uncount_pairs(word);
            join(&mut self.words[word].0, pair, id);
            self.count_pairs(word);
            changed
                .extend(self.words[word].0.windows(2).filter(|pair| pair.contains(&id)).map(|pair| (pair[0], pair[1])));
        }
        self.pairs.remove(&pair);
        let heap = changed.into_iter().map(|pair| (self.pairs[&pair].0, std::cmp::Reverse(pair)));
        self.heap.extend(heap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same result, by counting everything anew for each pair.
    fn learned_slowly(texts: &[&str], n_pairs: usize) -> Vec<Pair> {
        let mut all: Vec<Vec<u32>> =
            texts.iter().flat_map(|text| words(text)).map(|word| word.bytes().map(u32::from).collect()).collect();
        let mut learned = Vec::new();
        while learned.len() < n_pairs {
            let mut counts = BTreeMap::<Pair, u64>::new();
            all.iter()
                .flat_map(|word| word.windows(2))
                .for_each(|pair| *counts.entry((pair[0], pair[1])).or_default() += 1);
            let Some((&pair, &count)) = counts.iter().max_by_key(|&(&pair, &count)| (count, std::cmp::Reverse(pair)))
            else {
                break;
            };
            if count < 2 {
                break;
            }
            all.iter_mut().for_each(|word| join(word, pair, 256 + learned.len() as u32));
            learned.push(pair);
        }
        learned
    }

    #[test]
    fn pairs_are_those_that_counting_anew_finds() {
        let texts = [
            "the cat sat on the mat, the rat too: aaaaaaa",
            "abababab  baba 1001 1001 über Überfluß",
            "\n\n  \tthe cat sat on the mat too: über Überfluß\n",
        ];
        let expected = learned_slowly(&texts, 40);
        assert!(expected.len() > 20);
        assert_eq!(*BytePairs::train(texts, 256 + 40).unwrap().pairs, *expected);
    }

    #[test]
    fn any_text_comes_back() {
        let pieces = BytePairs::train(["to be or not to be"], 300).unwrap();
        for text in ["", " ", "   to\n be", "e\u{301}🙂\u{0}", &"x".repeat(1_000), &"ä  1 ".repeat(200)] {
            assert_eq!(words(text).collect::<String>(), text);
            let ids = pieces.encode(text).unwrap().to_vec::<i64>().unwrap();
            assert_eq!(pieces.decode(&ids).unwrap(), text);
        }
        assert_eq!(
            pieces.decode(&[-1]).unwrap_err().to_string(),
            format!("there is no piece -1: there are {}, counted from 0; check the model", pieces.len())
        );
        assert!(BytePairs::train(["a"], 255).is_err());
    }

    #[test]
    fn a_file_whose_pieces_would_grow_without_end_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: String = (256..300).map(|id| format!("{id} {id}\n")).collect();
        for (text, problem) in [
            (format!("{HEAD}\n97 97\n{lines}"), "cannot be used: piece 263 cannot join 262 and 262"),
            (format!("{HEAD}\n97 256\n"), "cannot be used: piece 256 cannot join 97 and 256"),
            (format!("{HEAD}\n97 97\n97 97\n"), "cannot be used: piece 257 cannot join 97 and 97"),
            (format!("{HEAD}\n97 97\n256 9"), "its last line has no end: it is cut off; write it again"),
            (format!("{HEAD}\n97\n"), "cannot be used: it has a line `97` that is not a pair of numbers"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = BytePairs::load(file.path()).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
