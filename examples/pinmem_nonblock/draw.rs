//! The pictures: bars, lanes and lines. Each has a background of its own, so that any page can show it, and dark
//! colors for readers who prefer a dark color scheme.

use std::path::Path;

use anyhow::{Context, Result};
use pagelock::{
    cuda::{Span, Track},
    prelude::ByteSize,
};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{Guide, common::pictures::cannot_draw, figures::Figure, report::millis, torch::Torch, traces::Trace};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const INK: RGBColor = RGBColor(38, 44, 54);
const FAINT: RGBColor = RGBColor(218, 222, 228);
const OURS: RGBColor = RGBColor(31, 119, 180);
const OURS_TOO: RGBColor = RGBColor(140, 186, 220); // page-locked beforehand, or only a part of the way
const TORCH: RGBColor = RGBColor(238, 118, 60);
const GREEN: RGBColor = RGBColor(44, 150, 80);
const GREY: RGBColor = RGBColor(150, 156, 164);
/// Colors and their replacements on a dark background.
const DARK: [(RGBColor, RGBColor); 6] = [
    (WHITE, RGBColor(17, 22, 29)),
    (INK, RGBColor(228, 232, 238)),
    (FAINT, RGBColor(62, 70, 82)),
    (OURS, RGBColor(75, 163, 227)),
    (OURS_TOO, RGBColor(48, 96, 138)),
    (GREEN, RGBColor(65, 185, 107)),
];
const WIDTH: i32 = 900;
// Font sizes; plotters draws letters at four fifths of them.
const TITLE: i32 = 22;
const LARGE: i32 = 17;
const SMALL: i32 = 15;

pub(crate) fn all(guide: &Guide, torch: Option<&Torch>, out: &Path) -> Result<()> {
    lanes(&guide.traces, &out.join("traces.svg"))?;
    let titles = [
        ("figure1.svg", "Figure 1: one large tensor", &guide.one),
        ("figure2.svg", "Figure 2: many small tensors", &guide.small),
        ("figure3.svg", "Figure 3: many large tensors", &guide.large),
        ("figure4.svg", "Figure 4: many large tensors as a map", &guide.map),
    ];
    for (file, title, figure) in titles {
        bars(title, figure, torch, &out.join(file))?;
    }
    let factors = &guide.factors;
    let cores = [
        ("to the device", OURS, factors.cores.iter().map(|row| (row.threads as f64, row.to_gpu)).collect()),
        ("from the device", GREEN, factors.cores.iter().map(|row| (row.threads as f64, row.from_gpu)).collect()),
    ];
    let axes = Axes {
        title: "Copies of ordinary memory, by number of threads",
        x: "helping threads",
        y: "GB/s",
        scale: Scale::Linear,
    };
    lines(&axes, &cores, &out.join("cores.svg"))?;
    let sizes = factors.sizes.iter();
    let by_size = [
        ("x.to(gpu)", OURS, sizes.clone().map(|row| (row.bytes as f64, row.rate(row.pageable_ms))).collect()),
        (
            "x.pin_memory().to(gpu)",
            GREY,
            sizes.clone().map(|row| (row.bytes as f64, row.rate(row.pin_first_ms))).collect(),
        ),
        (
            "page-locked before",
            GREEN,
            sizes.filter_map(|row| Some((row.bytes as f64, row.rate(row.page_locked_ms?)))).collect(),
        ),
    ];
    let axes = Axes { title: "One tensor, by size", x: "size", y: "GB/s", scale: Scale::LogBytes };
    lines(&axes, &by_size, &out.join("sizes.svg"))?;
    let counts = factors.counts.iter();
    let by_count = [
        ("to, one by one", GREY, counts.clone().map(|row| (row.count as f64, row.one_by_one_ms)).collect()),
        ("Tensor::all_to", OURS, counts.map(|row| (row.count as f64, row.as_one_ms)).collect()),
    ];
    let axes = Axes {
        title: "Time to copy the same bytes, by number of tensors",
        x: "tensors",
        y: "ms",
        scale: Scale::LogBoth,
    };
    lines(&axes, &by_count, &out.join("counts.svg"))
}

/// Draws a picture, adds its dark colors, and saves it.
fn picture(path: &Path, height: i32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(cannot_draw)?;
        draw(&root)?;
        root.present().map_err(cannot_draw)?;
    }
    let name = |RGBColor(red, green, blue)| format!("#{red:02X}{green:02X}{blue:02X}");
    let rules = DARK.map(|(light, dark)| {
        let (light, dark) = (name(light), name(dark));
        format!("[fill=\"{light}\"] {{ fill: {dark} }} [stroke=\"{light}\"] {{ stroke: {dark} }}\n")
    });
    let style = format!("<style>@media (prefers-color-scheme: dark) {{\n{}}}</style>\n<rect", rules.concat());
    let svg = svg.replacen("<rect", &style, 1);
    pagelock_files::replace(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

fn text(area: &Area<'_>, words: &str, at: (i32, i32), size: i32, side: HPos) -> Result<()> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(words.to_owned(), at, style)).map_err(cannot_draw)
}

fn block(area: &Area<'_>, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<()> {
    area.draw(&Rectangle::new([from, to], color.filled())).map_err(cannot_draw)
}

/// Draws the meaning of a picture's colors, in one row.
fn legend(area: &Area<'_>, y: i32, entries: &[(&str, RGBColor)]) -> Result<()> {
    let mut x = 24;
    for (name, color) in entries {
        block(area, (x, y - 6), (x + 14, y + 6), *color)?;
        text(area, name, (x + 20, y), SMALL, HPos::Left)?;
        x += 48 + 7 * name.chars().count() as i32;
    }
    Ok(())
}

/// Draws a bar for each way, and PyTorch's below it.
fn bars(title: &str, figure: &Figure, torch: Option<&Torch>, path: &Path) -> Result<()> {
    const LEFT: i32 = 330;
    const TOP: i32 = 84;
    let theirs = |name: Option<&str>| torch.and_then(|torch| torch.get(name?));
    let all = figure.ways.iter().flat_map(|way| [Some(way.time.median_ms), theirs(way.torch)]);
    let longest = all.flatten().fold(0.0, f64::max);
    let row = if torch.is_some() { 46 } else { 34 };
    let height = TOP + row * figure.ways.len() as i32 + 20;
    let megabytes = (figure.bytes as f64 / 1e5).round() / 10.0;
    let title = format!("{title}, {megabytes} MB: time until the data is on the device, in ms");
    let meanings =
        [("Pagelock, from ordinary memory", OURS), ("Pagelock, a part of the work", OURS_TOO), ("PyTorch", TORCH)];
    let room = f64::from(WIDTH - LEFT - 110);
    picture(path, height, |root| {
        text(root, &title, (24, 26), TITLE, HPos::Left)?;
        legend(root, 56, if torch.is_some() { &meanings } else { &meanings[..2] })?;
        let bar = |y: i32, ms: f64, color| {
            let end = LEFT + ((ms / longest * room) as i32).max(1);
            block(root, (LEFT, y), (end, y + 16), color)?;
            text(root, &millis(ms), (end + 6, y + 8), SMALL, HPos::Left)
        };
        for (i, way) in figure.ways.iter().enumerate() {
            let y = TOP + row * i as i32;
            text(root, way.name, (LEFT - 10, y + 8), SMALL, HPos::Right)?;
            bar(y, way.time.median_ms, if way.is_whole { OURS } else { OURS_TOO })?;
            if let Some(ms) = theirs(way.torch) {
                bar(y + 19, ms, TORCH)?;
            }
        }
        Ok(())
    })
}

/// Draws the timelines of the host, the copies and the computing: a panel for each trace, all at one scale.
fn lanes(traces: &[Trace], path: &Path) -> Result<()> {
    const LEFT: i32 = 130;
    const LANE: i32 = 24;
    const PANEL: i32 = 5 * LANE + 4;
    let height = 74 + PANEL * traces.len() as i32 + 34;
    let meanings = [("computing", TORCH), ("copying", OURS), ("host in a call", GREEN), ("host waiting", FAINT)];
    let longest = traces.iter().map(|trace| trace.total_ms).fold(0.0, f64::max);
    let room = f64::from(WIDTH - LEFT - 24);
    let x = |ms: f64| LEFT + (ms / longest * room) as i32;
    picture(path, height, |root| {
        text(root, "When copies overlap with computing, in ms", (24, 24), TITLE, HPos::Left)?;
        legend(root, 52, &meanings)?;
        for ms in Scaled::over([longest].into_iter(), false).ticks().into_iter().filter(|&ms| ms <= longest) {
            block(root, (x(ms), height - 40), (x(ms) + 1, height - 34), INK)?;
            text(root, &format!("{} ms", short(ms)), (x(ms), height - 22), SMALL, HPos::Center)?;
        }
        for (i, trace) in traces.iter().enumerate() {
            let top = 74 + PANEL * i as i32;
            let share = format!("{}: {:.0} % overlap", trace.name(), 100.0 * trace.overlap());
            text(root, &share, (24, top + 14), LARGE, HPos::Left)?;
            let start = trace.spans.iter().map(|span| span.start).min().unwrap_or_default();
            for (lane, name) in ["host", "copies", "computing"].iter().enumerate() {
                let y = top + LANE * (lane as i32 + 1) + 6;
                text(root, name, (LEFT - 10, y + 9), SMALL, HPos::Right)?;
                block(root, (LEFT, y + 18), (WIDTH - 24, y + 19), FAINT)?;
                for span in trace.spans.iter().filter(|span| lane_of(span) == lane) {
                    let [from, to] = [span.start - start, span.end - start].map(|time| x(crate::traces::millis(time)));
                    block(root, (from, y), (to.max(from + 1), y + 17), color_of(span))?;
                }
            }
        }
        Ok(())
    })
}

fn lane_of(span: &Span) -> usize {
    match (&span.track, &*span.name) {
        (Track::Host { .. }, _) => 0,
        (_, "copy") => 1,
        _ => 2,
    }
}

fn color_of(span: &Span) -> RGBColor {
    match &*span.name {
        "compute" => TORCH,
        "copy" => OURS,
        "wait" => FAINT,
        _ => GREEN,
    }
}

struct Axes {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    scale: Scale,
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    /// The x axis is logarithmic, and its values are bytes.
    LogBytes,
    LogBoth,
}

/// A name, a color and points.
type Series = (&'static str, RGBColor, Vec<(f64, f64)>);

/// Draws lines with points. It does not use plotters' charts, so that the axes have few and round numbers.
fn lines(axes: &Axes, series: &[Series], path: &Path) -> Result<()> {
    const LEFT: i32 = 76;
    const TOP: i32 = 84;
    const HEIGHT: i32 = 420;
    let points = || series.iter().flat_map(|(_, _, points)| points.iter());
    let x = Scaled::over(points().map(|point| point.0), axes.scale != Scale::Linear);
    let y = Scaled::over(points().map(|point| point.1), axes.scale == Scale::LogBoth);
    let at = |point: &(f64, f64)| {
        let (right, down) = (x.place(point.0), 1.0 - y.place(point.1));
        let room = (f64::from(WIDTH - LEFT - 40), f64::from(HEIGHT - TOP - 60));
        (LEFT + (right * room.0) as i32, TOP + (down * room.1) as i32)
    };
    let (marks, name): (_, fn(f64) -> String) = match axes.scale {
        Scale::LogBytes => (x.bytes(), |bytes| ByteSize(bytes as u64).to_string()),
        _ => (x.ticks(), short),
    };
    picture(path, HEIGHT, |root| {
        text(root, &format!("{}, in {}", axes.title, axes.y), (24, 26), TITLE, HPos::Left)?;
        legend(root, 56, &series.iter().map(|(name, color, _)| (*name, *color)).collect::<Vec<_>>())?;
        for tick in y.ticks() {
            let (_, down) = at(&(x.least, tick));
            block(root, (LEFT, down), (WIDTH - 40, down + 1), FAINT)?;
            text(root, &short(tick), (LEFT - 10, down), SMALL, HPos::Right)?;
        }
        for tick in marks {
            let (right, bottom) = at(&(tick, y.least));
            block(root, (right, bottom), (right + 1, bottom + 5), INK)?;
            text(root, &name(tick), (right, bottom + 16), SMALL, HPos::Center)?;
        }
        text(root, axes.x, ((LEFT + WIDTH - 40) / 2, HEIGHT - 18), SMALL, HPos::Center)?;
        for (_, color, points) in series {
            let places: Vec<_> = points.iter().map(at).collect();
            root.draw(&PathElement::new(places.clone(), color.stroke_width(2))).map_err(cannot_draw)?;
            for place in places {
                root.draw(&Circle::new(place, 3, color.filled())).map_err(cannot_draw)?;
            }
        }
        Ok(())
    })
}

/// One axis.
struct Scaled {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Scaled {
    fn over(values: impl Iterator<Item = f64> + Clone, is_log: bool) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let least = values.fold(f64::INFINITY, f64::min);
        match is_log {
            true => Self { least, most: most.max(least * 1.01), is_log },
            false => Self { least: 0.0, most: most * 1.05 + f64::MIN_POSITIVE, is_log },
        }
    }

    /// The position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        match self.is_log {
            true => (value / self.least).ln() / (self.most / self.least).ln(),
            false => (value - self.least) / (self.most - self.least),
        }
    }

    /// Marks from `least` on, each sixteen times the one before.
    fn bytes(&self) -> Vec<f64> {
        (0..).map(|i| self.least * 16_f64.powi(i)).take_while(|&bytes| bytes <= self.most).collect()
    }

    /// Round numbers between `least` and `most`.
    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.most / self.least).log10();
            let factors = if decades < 2.5 { &[1.0, 2.0, 5.0][..] } else { &[1.0] };
            let first = self.least.log10().floor() as i32;
            let ticks = (first..).flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
            let ticks = ticks.skip_while(|&tick| tick < self.least * 0.999);
            return ticks.take_while(|&tick| tick <= self.most * 1.001).collect();
        }
        let power = 10_f64.powf((self.most / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| self.most / step <= 6.0).unwrap_or(steps[3]);
        (0..).map(|i| f64::from(i) * step).take_while(|&tick| tick <= self.most).collect()
    }
}

/// Shortens a number, as in `10 k`.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{} G", value / 1e9),
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}
