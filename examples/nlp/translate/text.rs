//! Pairs of sentences, and numbers for their words.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagelock::prelude::*;

use crate::shared::plain;

/// The numbers of the start and the end of a sentence. Short sentences are padded with `SOS` after their end.
pub(crate) const SOS: i64 = 0;
pub(crate) const EOS: i64 = 1;

/// True where a sentence is padded: a sentence to translate does not begin with `SOS`.
pub(crate) fn padding(sentences: &Tensor<Int>) -> Result<Tensor<Bool>> {
    Ok(sentences.eq_scalar(SOS)?)
}

/// The words of a language.
#[derive(Default)]
pub(crate) struct Words {
    numbers: HashMap<String, i64>,
    words: Vec<String>,
}

impl Words {
    fn add(&mut self, sentence: &str) {
        for word in sentence.split(' ') {
            if !self.numbers.contains_key(word) {
                self.numbers.insert(word.to_owned(), self.words.len() as i64 + 2);
                self.words.push(word.to_owned());
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len() + 2
    }

    /// The words of these numbers, joined with spaces.
    pub(crate) fn text(&self, numbers: impl Iterator<Item = i64>) -> String {
        numbers
            .filter_map(|number| self.words.get(number as usize - 2))
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Sentences in two languages.
pub(crate) struct Pairs {
    pub(crate) all: Vec<(String, String)>,
    pub(crate) from: Words,
    pub(crate) to: Words,
}

impl Pairs {
    /// Reads `eng-fra.txt` of a folder as pairs of French and English, and keeps short sentences that begin like the
    /// tutorial's. Without a folder, makes up pairs.
    pub(crate) fn open(data: Option<&Path>, seed: u64, max_length: usize) -> Result<Pairs> {
        let all = match data {
            None => {
                println!(
                    "data: sentences made by a small grammar (seed {seed}); --data DIR reads the tutorial's eng-fra.txt"
                );
                made(seed)
            }
            Some(folder) => {
                let path = folder.join("eng-fra.txt");
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
                println!("data: {}", path.display());
                read(&text, max_length)
            }
        };
        ensure!(!all.is_empty(), "there are no pairs of short sentences: a line is English, a tab, French");
        let (mut from, mut to) = (Words::default(), Words::default());
        all.iter().for_each(|(one, other)| (from.add(one), to.add(other)).1);
        Ok(Pairs { all, from, to })
    }

    /// Source sentences `[sentences, max_length]`: the numbers of words, `EOS`, and padding.
    pub(crate) fn input(&self, which: &[usize], max_length: usize, device: &Device) -> Result<Tensor<Int>> {
        numbers(which.iter().map(|&i| (&self.all[i].0, &self.from)), max_length, device)
    }

    pub(crate) fn target(&self, which: &[usize], max_length: usize, device: &Device) -> Result<Tensor<Int>> {
        numbers(which.iter().map(|&i| (&self.all[i].1, &self.to)), max_length, device)
    }
}

fn numbers<'a>(
    sentences: impl Iterator<Item = (&'a String, &'a Words)>,
    max_length: usize,
    device: &Device,
) -> Result<Tensor<Int>> {
    let mut all = Vec::new();
    for (sentence, words) in sentences {
        let end = all.len() + max_length;
        all.extend(sentence.split(' ').map(|word| words.numbers[word]).take(max_length - 1).chain([EOS]));
        all.resize(end, SOS);
    }
    let rows = all.len() / max_length;
    Ok(Tensor::from_slice(&all, [rows, max_length])?.to(device)?)
}

/// A sentence in lower case without accents, with `!` and `?` as separate words.
fn normalized(text: &str) -> String {
    let mut out = String::new();
    for letter in plain(text.to_lowercase().trim()) {
        match letter {
            'a'..='z' => out.push(letter),
            '!' | '?' => out.extend([' ', letter]),
            _ => out.push(' '),
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read(text: &str, max_length: usize) -> Vec<(String, String)> {
    const STARTS: [&str; 12] = [
        "i am ", "i m ", "he is", "he s ", "she is", "she s ", "you are", "you re ", "we are", "we re ", "they are",
        "they re ",
    ];
    let pair = |line: &str| {
        let (english, french) = line.split_once('\t')?;
        let (french, english) = (normalized(french), normalized(english));
        let is_short = [&french, &english].iter().all(|sentence| sentence.split(' ').count() < max_length);
        (is_short && STARTS.iter().any(|start| english.starts_with(start))).then_some((french, english))
    };
    text.lines().filter_map(pair).collect()
}

/// Sentences of a pronoun, an adverb and an adjective, and their negations, as pairs of French and English.
fn made(seed: u64) -> Vec<(String, String)> {
    const PRONOUNS: [(&str, &str, usize); 6] = [
        ("je suis", "i am", 0),
        ("il est", "he is", 0),
        ("elle est", "she is", 1),
        ("nous sommes", "we are", 2),
        ("ils sont", "they are", 2),
        ("elles sont", "they are", 3),
    ];
    const ADVERBS: [(&str, &str); 5] =
        [("", ""), ("tres ", "very "), ("trop ", "too "), ("toujours ", "always "), ("presque ", "almost ")];
    // Masculine, feminine, masculine plural, feminine plural.
    const ADJECTIVES: [([&str; 4], &str); 10] = [
        (["grand", "grande", "grands", "grandes"], "tall"),
        (["petit", "petite", "petits", "petites"], "small"),
        (["fatigue", "fatiguee", "fatigues", "fatiguees"], "tired"),
        (["content", "contente", "contents", "contentes"], "glad"),
        (["fort", "forte", "forts", "fortes"], "strong"),
        (["lent", "lente", "lents", "lentes"], "slow"),
        (["prudent", "prudente", "prudents", "prudentes"], "careful"),
        (["poli", "polie", "polis", "polies"], "polite"),
        (["seul", "seule", "seuls", "seules"], "alone"),
        (["patient", "patiente", "patients", "patientes"], "patient"),
    ];
    let mut pairs = Vec::new();
    for (french, english, form) in PRONOUNS {
        for (adverb, in_english) in ADVERBS {
            for (forms, adjective) in ADJECTIVES {
                pairs.push((format!("{french} {adverb}{}", forms[form]), format!("{english} {in_english}{adjective}")));
                let (subject, verb) = french.split_once(' ').unwrap_or((french, ""));
                let (who, is) = english.split_once(' ').unwrap_or((english, ""));
                let denied = format!("{subject} ne {verb} pas {adverb}{}", forms[form]);
                pairs.push((denied, format!("{who} {is} not {in_english}{adjective}")));
            }
        }
    }
    Generator::new(seed).shuffle(&mut pairs);
    pairs
}
