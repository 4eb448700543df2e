//! Code that the programs of "NLP from scratch" share: names to learn from, and pictures of attention and confusion.

#![allow(dead_code)] // not every program uses all of it

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pagelock::prelude::*;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The characters of names. Accents are removed, and other characters are left out.
pub(crate) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;'-";

/// The characters of a text without their accents, as `unicodeToAscii` in the tutorials removes them. Unicode has no
/// accent in `ł` and `ø`, so these are replaced here.
pub(crate) fn plain(text: &str) -> impl Iterator<Item = char> {
    let letters = text.nfd().filter(|&letter| !is_combining_mark(letter));
    letters.map(|letter| match letter {
        'ł' => 'l',
        'Ł' => 'L',
        'ø' => 'o',
        'Ø' => 'O',
        letter => letter,
    })
}

/// Names by language.
pub(crate) struct Names {
    pub(crate) languages: Vec<String>,
    /// Each name with the index of its language.
    pub(crate) all: Vec<(String, usize)>,
}

impl Names {
    /// Reads the files `LANGUAGE.txt` of a folder, or of its subfolder `names`, with one name a line. Without a
    /// folder, invents names.
    pub(crate) fn open(data: Option<&Path>, seed: u64) -> Result<Names> {
        let Some(folder) = data else {
            println!("data: names made by rules (seed {seed}); --data DIR reads the tutorial's");
            return Ok(Self::made(seed));
        };
        let inner = folder.join("names");
        let folder = if inner.is_dir() { inner } else { folder.to_owned() };
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "txt"));
        files.sort();
        let mut names = Names { languages: Vec::new(), all: Vec::new() };
        for path in files {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            let of_file = text.lines().map(|line| plain(line).filter(|&letter| LETTERS.contains(letter)).collect());
            let (number, n_before) = (names.languages.len(), names.all.len());
            names.all.extend(of_file.filter(|name: &String| !name.is_empty()).map(|name| (name, number)));
            ensure!(
                names.all.len() > n_before,
                "`{}` has no names; write one a line, or remove the file",
                path.display()
            );
            names.languages.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
        ensure!(names.languages.len() > 1, "`{}` has no files LANGUAGE.txt with names, one a line", folder.display());
        println!("data: {} names of {} languages, from {}", names.all.len(), names.languages.len(), folder.display());
        Ok(names)
    }

    /// Writes the files that [`open`](Self::open) reads, so that others can learn from the same names.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        crate::common::make_folder(folder)?;
        for (number, language) in self.languages.iter().enumerate() {
            let of_language = self.all.iter().filter(|(_, other)| *other == number);
            let text: String = of_language.flat_map(|(name, _)| [name, "\n"]).collect();
            let path = folder.join(format!("{language}.txt"));
            fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        Ok(())
    }

    /// Invented names: a beginning, perhaps a middle, and an end that is usual in the language.
    fn made(seed: u64) -> Names {
        let random = Generator::new(seed);
        let mut names = Names { languages: Vec::new(), all: Vec::new() };
        for (number, (language, [starts, middles, ends])) in RULES.iter().enumerate() {
            let [starts, middles, ends] = [starts, middles, ends].map(|parts| parts.split(' ').collect::<Vec<_>>());
            let pick = |parts: &[&str]| parts[random.below(parts.len() as u64) as usize].to_owned();
            names.languages.push((*language).to_owned());
            for _ in 0..250 {
                let middle = if random.below(2) == 0 { pick(&middles) } else { String::new() };
                names.all.push((pick(&starts) + &middle + &pick(&ends), number));
            }
        }
        names
    }
}

/// For each language: beginnings, middles and ends.
const RULES: [(&str, [&str; 3]); 6] = [
    (
        "English",
        [
            "Hart Wood Brad Ash Black Green White Stan Lang Wel",
            "ing er en le wor",
            "ton ford ley well field man brook wick",
        ],
    ),
    (
        "German",
        [
            "Schu Krau Mue Schnei Bau Hoff Wag Zim Stein Koh",
            "ster tz ch ber ck",
            "mann bauer stein berg hoff meyer ner baum",
        ],
    ),
    (
        "Italian",
        ["Ros Bian Ferra Mari Galli Conti Lom Sanc Vi Bel", "to li cel ra nto", "ini etti ella ucci ano ardi oni azzo"],
    ),
    (
        "Japanese",
        [
            "Yama Taka Naka Kawa Mori Fuji Haya Ito Shi Oka",
            "no ki shi mi ra",
            "moto saki hashi mura zawa naka guchi yama",
        ],
    ),
    (
        "Polish",
        ["Kowa Wisz Szy Krz Lew Zie Mich Wro Brzo Dab", "l n mi w czy", "ski wicz czyk owski ewicz nski lak arz"],
    ),
    (
        "Greek",
        [
            "Papa Kara Kosta Theo Geor Dimi Niko Pana Stavro Ala",
            "do giann ke lo kri",
            "poulos idis akis opoulos iadis oglou atos eas",
        ],
    ),
];

/// The index in `letters` of each character of a text, or the number of `letters` if it is not among them.
pub(crate) fn numbers(text: &str, letters: &str) -> Vec<i64> {
    let place = |letter: char| letters.chars().position(|other| other == letter).unwrap_or(letters.chars().count());
    text.chars().map(|letter| place(letter) as i64).collect()
}

/// Cuts a list into at most `pieces` pieces and returns the mean of each.
pub(crate) fn means(all: &[f64], pieces: usize) -> Vec<f64> {
    let len = all.len().div_ceil(pieces).max(1);
    all.chunks(len).map(|piece| piece.iter().sum::<f64>() / piece.len() as f64).collect()
}

/// Writes shares from 0 to 1 as SVG: squares that are darker for larger shares.
pub(crate) fn write_squares(
    path: &Path,
    title: &str,
    rows: &[String],
    columns: &[String],
    shares: &[Vec<f64>],
) -> Result<()> {
    const SIDE: usize = 36;
    const LEFT: usize = 110;
    let (width, height) = (LEFT + SIDE * columns.len() + 80, 110 + SIDE * rows.len() + 20);
    let mut text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' font-family='sans-serif' font-size='12'>\
         <rect width='{width}' height='{height}' fill='white'/><text x='10' y='20'>{title}</text>"
    );
    for (i, row) in rows.iter().enumerate() {
        let y = 110 + i * SIDE;
        write!(text, "<text x='{}' y='{}' text-anchor='end'>{}</text>", LEFT - 8, y + 23, escaped(row))?;
        for (j, share) in shares[i].iter().enumerate() {
            let light = (255.0 * (1.0 - share.clamp(0.0, 1.0))) as u8;
            let x = LEFT + j * SIDE;
            write!(text, "<rect x='{x}' y='{y}' width='{SIDE}' height='{SIDE}' fill='rgb({light},{light},255)'/>")?;
        }
    }
    for (j, column) in columns.iter().enumerate() {
        let x = LEFT + j * SIDE + SIDE / 2;
        write!(text, "<text transform='translate({x} 102) rotate(-50)'>{}</text>", escaped(column))?;
    }
    text.push_str("</svg>\n");
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
