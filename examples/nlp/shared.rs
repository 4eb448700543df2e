//! What the programs after "NLP from scratch" share: names to learn from, and pictures.

#![allow(dead_code)] // not every program uses all of it

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pagelock::prelude::*;

/// What names consist of; other characters are left out, and accents of letters too.
pub(crate) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;'-";

/// A letter without its accent.
pub(crate) fn plain(letter: char) -> char {
    const ACCENTS: [(&str, char); 14] = [
        ("àáâãäåąă", 'a'),
        ("çćč", 'c'),
        ("èéêëęě", 'e'),
        ("ìíîï", 'i'),
        ("łľ", 'l'),
        ("ñńň", 'n'),
        ("òóôõöøő", 'o'),
        ("ŕř", 'r'),
        ("śšş", 's'),
        ("ťţ", 't'),
        ("ùúûüűů", 'u'),
        ("ýÿ", 'y'),
        ("źżž", 'z'),
        ("ÁÀÂÄ", 'A'),
    ];
    let of = |(accented, to): &(&str, char)| accented.contains(letter).then_some(*to);
    ACCENTS.iter().find_map(of).unwrap_or(letter)
}

/// Names by language.
pub(crate) struct Names {
    pub(crate) languages: Vec<String>,
    /// Each with the number of its language.
    pub(crate) all: Vec<(String, usize)>,
}

impl Names {
    /// Those of the files `LANGUAGE.txt` of a folder (or of `names` in it), a name a line; or made ones.
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
            let of_file =
                text.lines().map(|line| line.chars().map(plain).filter(|&letter| LETTERS.contains(letter)).collect());
            let number = names.languages.len();
            names.all.extend(of_file.filter(|name: &String| !name.is_empty()).map(|name| (name, number)));
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

/// Of each language: beginnings, middles and ends.
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

/// A number for each letter of a text, by its place in `letters`; `len` for what is not there.
pub(crate) fn numbers(text: &str, letters: &str) -> Vec<i64> {
    let place = |letter: char| letters.chars().position(|other| other == letter).unwrap_or(letters.chars().count());
    text.chars().map(|letter| place(letter) as i64).collect()
}

/// The mean of each piece of a list.
pub(crate) fn means(all: &[f64], pieces: usize) -> Vec<f64> {
    let len = all.len().div_ceil(pieces).max(1);
    all.chunks(len).map(|piece| piece.iter().sum::<f64>() / piece.len() as f64).collect()
}

/// A curve as SVG.
pub(crate) fn write_curve(path: &Path, title: &str, values: &[f64]) -> Result<()> {
    let (width, height) = (600.0, 320.0);
    let highest = values.iter().copied().fold(1e-9, f64::max);
    let step = width / (values.len().max(2) - 1) as f64;
    let points = values.iter().enumerate().fold(String::new(), |mut points, (i, value)| {
        let _ = write!(points, "{:.1},{:.1} ", 50.0 + i as f64 * step, 40.0 + height * (1.0 - value / highest));
        points
    });
    let text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='680' height='400' font-family='sans-serif' font-size='13'>\
         <rect width='680' height='400' fill='white'/><text x='340' y='24' text-anchor='middle'>{title}</text>\
         <path d='M50 40V360H650' fill='none' stroke='black'/><text x='44' y='44' text-anchor='end'>{highest:.2}</text>\
         <text x='44' y='364' text-anchor='end'>0</text>\
         <polyline points='{points}' fill='none' stroke='#1f77b4' stroke-width='2'/></svg>\n"
    );
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Shares from 0 to 1 as squares that are darker where they are larger, as SVG.
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
