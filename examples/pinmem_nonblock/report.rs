//! The report: the guide as Markdown, every number from this run.

use std::fmt::Write as _;

use pagelock::prelude::ByteSize;

use crate::{
    Guide,
    advice::advice,
    factors::Factors,
    figures::{Figure, Phases},
    machine::Machine,
    place::Place,
    races::{REFUSED, Races},
    torch::Torch,
    traces::Trace,
};

/// A figure of PyTorch's, and what it is called there.
const SAME_WORK: [(&str, &[&str]); 4] = [
    ("one", &["one_1M.pageable_to", "one_1M.pin_then_to"]),
    ("small", &["small_1000x1000.to"]),
    ("large", &["big_1000x1M.to", "big_1000x1M.pin_to", "td."]),
    ("map", &["td."]),
];

/// PyTorch's fastest way from ordinary memory to the device, for that figure.
fn torch_fastest<'a>(torch: Option<&'a Torch>, figure: &str) -> Option<(&'a str, f64)> {
    let (_, starts) = SAME_WORK.iter().find(|(name, _)| *name == figure)?;
    torch?.least(starts)
}

pub(crate) fn write(guide: &Guide, torch: Option<&Torch>, place: &Place) -> String {
    let sections = [
        head(guide, torch, place),
        page_locked(&guide.machine),
        traces(&guide.traces),
        one(&guide.one, torch, place),
        small(guide, torch, place),
        large(&guide.large, torch, place),
        map(&guide.map, torch, place),
        races(&guide.races, torch),
        factors(&guide.factors, &guide.machine),
        what_to_do(guide, place),
    ];
    sections.join("\n")
}

/// The lines that are printed at the end.
pub(crate) fn summary(guide: &Guide, torch: Option<&Torch>) -> String {
    let mut lines = String::new();
    for (name, title, figure) in figures(guide) {
        let fastest = figure.fastest();
        let beside = torch_fastest(torch, name).map_or(String::new(), |(_, ms)| format!(", PyTorch {}", millis(ms)));
        let time = millis(fastest.time.median_ms);
        let _ = writeln!(lines, "{title:<42} {time:>9} ({}){beside}", fastest.name);
    }
    let tries: usize = guide.races.tried.iter().map(|race| race.tries).sum();
    let corrupted: usize = guide.races.tried.iter().map(|race| race.corrupted).sum();
    let _ = writeln!(lines, "races: {tries} tries, {corrupted} corrupted\n");
    for advice in advice(guide) {
        let _ = writeln!(lines, "- {}", advice.what);
    }
    lines
}

/// Every figure with its short name and its title.
fn figures(guide: &Guide) -> [(&'static str, &'static str, &Figure); 4] {
    [
        ("one", "1. one large tensor", &guide.one),
        ("small", "2. many small tensors", &guide.small),
        ("large", "3. many large tensors", &guide.large),
        ("map", "4. many large tensors, as a map", &guide.map),
    ]
}

fn head(guide: &Guide, torch: Option<&Torch>, place: &Place) -> String {
    let mut text = "# Getting memory to a GPU: when to page-lock it, and when to wait\n\n\
         This follows PyTorch's guide *On good usage of `non_blocking` and `pin_memory()`*, section by section, with \
         the same tensors. Every time below was measured by the run that wrote it, on the machine of the next section; \
         each is the median of several runs, until the bytes are on the device unless it says otherwise. `cargo run \
         --release --example pinmem_nonblock` repeats it.\n\n"
        .to_owned();
    if let Some(why) = place.instead_of() {
        let _ = writeln!(
            text,
            "> **There is no GPU here** ({why}). A device made of software stands in: it copies with the processor, so \
             the times below say nothing about a GPU, and tensors are smaller. The structure is the same.\n"
        );
    }
    if torch.is_some() && place.instead_of().is_some() {
        text += "> PyTorch's figures, which were given, are therefore those of another machine.\n\n";
    }
    let rows = figures(guide).map(|(name, title, figure)| {
        let fastest = figure.fastest();
        let ms = fastest.time.median_ms;
        let mut row = vec![
            title.to_owned(),
            millis(ms),
            format!("{:.1}", fastest.time.rate(figure.bytes)),
            fastest.page_locked().to_string(),
        ];
        if torch.is_some() {
            let theirs = torch_fastest(torch, name);
            row.push(theirs.map_or("–".to_owned(), |(name, theirs)| format!("{} (`{name}`)", millis(theirs))));
            row.push(theirs.map_or("–".to_owned(), |(_, theirs)| format!("{:.2}", theirs / ms)));
        }
        row
    });
    let mut header = vec!["from ordinary memory to the device, the fastest way", "time", "GB/s", "page-locked for it"];
    if torch.is_some() {
        header.extend(["PyTorch, its fastest way", "times faster"]);
    }
    text + &table(&header, rows)
}

fn page_locked(machine: &Machine) -> String {
    let unknown = || "this system does not say".to_owned();
    let said = |fact: &Option<String>| fact.clone().unwrap_or_else(unknown);
    let cuda = machine.cuda.map_or(String::new(), |(major, minor)| format!(", driver of CUDA {major}.{minor}"));
    let facts = [
        ["device".to_owned(), format!("{}{cuda}", machine.device)],
        ["processor".to_owned(), format!("{}, {} cores for this process", said(&machine.processor), machine.cores)],
        ["a page".to_owned(), said(&machine.page)],
        ["a huge page".to_owned(), said(&machine.huge_pages)],
        [
            "memory, and what is left of it".to_owned(),
            format!("{}, {}", said(&machine.memory), said(&machine.memory_left)),
        ],
        ["`RLIMIT_MEMLOCK`, which binds `mlock`, not GPU drivers".to_owned(), said(&machine.lock_limit)],
        ["budget for page-locked memory".to_owned(), machine.budget.clone()],
        ["ring for copies of ordinary memory".to_owned(), machine.staging.clone()],
        ["link".to_owned(), said(&machine.link)],
        ["copy engines".to_owned(), machine.copy_engines.to_string()],
    ];
    let locking = machine.locking.iter().map(|row| {
        let mib = format!("{} MiB", row.mib);
        vec![mib, millis(row.lock_ms), millis(row.unlock_ms), format!("{:.2} µs", row.again_us)]
    });
    format!(
        "## Page-locked memory, and what there is of it here\n\n\
         The system may move a page of ordinary (*pageable*) memory, or put it on disk, at any time. A GPU copies by \
         itself, without the processor, so it can only use pages that stay where they are: *page-locked*, or *pinned*, \
         ones. Ordinary memory reaches it in two steps, through page-locked memory in between. Locking takes time, \
         and what is locked is missing elsewhere, so it is bounded here: by a budget, of which copies of ordinary \
         memory use a small ring again and again.\n\n{}\n\
         What locking costs, the best of three: fresh memory is cleared and locked by the driver; memory that was \
         locked before comes from a pool.\n\n{}",
        table(&["this machine", ""], facts.map(Vec::from)),
        table(&["page-lock", "fresh", "let go of it", "from the pool"], locking)
    )
}

fn traces(traces: &[Trace]) -> String {
    let rows = traces.iter().map(|trace| {
        let ms = [trace.computing_ms, trace.copying_ms, trace.overlapped_ms, trace.total_ms].map(millis);
        let file = format!("[{0}]({0})", trace.file());
        [vec![trace.name()], ms.to_vec(), vec![format!("{:.0} %", 100.0 * trace.overlap()), file]].concat()
    });
    format!(
        "## When a copy goes on while the device computes\n\n\
         Four times the same rounds: queue some computing, queue a copy that has nothing to do with it, wait for both. \
         A stream does its work in order, so on the same stream a copy waits for the computing before it. On a stream \
         of its own it need not; and since copies of ordinary memory are staged by threads and the device together, \
         they overlap too, where `cudaMemcpyAsync` of such memory would hold up the caller.\n\n\
         ![what was done when](traces.svg)\n\n{}\n\
         *At once* is what the devices' events say, as a share of the shorter of the two. That it is nothing on one \
         stream, and most of it on two of a GPU, is asserted by the program that wrote this. The traces open in \
         <https://ui.perfetto.dev> and in chrome://tracing.\n",
        table(&["memory and stream", "computing", "copying", "at once", "altogether", "at once, %", "trace"], rows)
    )
}

fn one(figure: &Figure, torch: Option<&Torch>, place: &Place) -> String {
    format!(
        "## Figure 1: one tensor of {} floats\n\n\
         Is it worth page-locking a tensor to copy it? From page-locked memory a copy is as fast as the link. But what \
         counts is the whole way: `pin_memory()` copies all bytes first, and only then does the device begin, whereas \
         `to` lets several threads and the device work at the same bytes, one behind the other. What was copied to \
         page-locked memory just now is read more slowly, out of the caches of the cores that copied it; the last way \
         is measured after they have let go of it.\n\n\
         ![figure 1](figure1.svg)\n\n{}{}",
        place.sizes.one_floats,
        ways(figure, torch),
        verdict(figure, torch_fastest(torch, "one"))
    )
}

fn small(guide: &Guide, torch: Option<&Torch>, place: &Place) -> String {
    let rows = guide.phases.iter().map(|phases: &Phases| {
        let total = phases.allocate_ms + phases.copy_ms + phases.wait_ms;
        let cell = |ms: f64| format!("{} ({:.0} %)", millis(ms), 100.0 * ms / total);
        let cells = [phases.allocate_ms, phases.copy_ms, phases.wait_ms].map(cell);
        [vec![format!("`{}`", phases.way), phases.calls.to_string()], cells.to_vec(), vec![millis(total)]].concat()
    });
    format!(
        "## Figure 2: {} tensors of {} floats\n\n\
         So small a copy takes longer to ask for than to do. Waiting after each (what `to` does in PyTorch without \
         `non_blocking=True`) adds the way there and back to each; waiting once does not. But only one call for all of \
         them saves the asking: the tensors are packed into the ring by several threads and go over as one copy. What \
         it takes beyond `upload_packed`, which leaves all in one buffer, is making and dropping that many tensors.\n\n\
         ![figure 2](figure2.svg)\n\n{}{}\n\
         Where the time goes, call by call, in a run of its own with a clock around each of them. To *copy* is to fill \
         a slot of the ring and to ask the device; the allocation of the last way is part of its one call:\n\n{}",
        place.sizes.n_small,
        place.sizes.small_floats,
        ways(&guide.small, torch),
        verdict(&guide.small, torch_fastest(torch, "small")),
        table(&["way", "calls", "allocate", "copy", "wait", "altogether"], rows)
    )
}

fn large(figure: &Figure, torch: Option<&Torch>, place: &Place) -> String {
    let left_out: String = figure.left_out.iter().map(|why| format!("\nLeft out: {why}.\n")).collect();
    format!(
        "## Figure 3: {} tensors of {} floats\n\n\
         Now bytes count, not calls. Waiting for each, threads stand idle while the device ends, and the device while \
         they begin. With one wait, the next tensor is read while the device still has the one before, with \
         `pin_memory()` on the way or without. `Tensor::all_to` knows all tensors beforehand, and keeps threads and \
         device busy without a pause. *Page-locked before* is what is left when somebody else has paid for the \
         locking, with all bytes page-locked.\n\n\
         ![figure 3](figure3.svg)\n\n{}{}{left_out}",
        place.sizes.n_large,
        place.sizes.large_floats,
        ways(figure, torch),
        verdict(figure, torch_fastest(torch, "large"))
    )
}

fn map(figure: &Figure, torch: Option<&Torch>, place: &Place) -> String {
    format!(
        "## Figure 4: the same {} tensors as a map\n\n\
         Tensors that belong together have names, in a `TensorMap` here, in a `TensorDict` with PyTorch, and move with \
         one call. There, `non_blocking_pin` page-locks each of them, with that many threads, before it is copied; here \
         the threads fill the same small ring again and again. Ours are all that copy beside the caller: with 0 it \
         copies alone. PyTorch's own threads copy too, whatever the number says.\n\n\
         ![figure 4](figure4.svg)\n\n{}{}",
        place.sizes.n_large,
        ways(figure, torch),
        verdict(figure, torch_fastest(torch, "map"))
    )
}

/// The table of a figure.
fn ways(figure: &Figure, torch: Option<&Torch>) -> String {
    let mut header = vec!["way", "time", "least to most", "GB/s", "page-locked for it"];
    if torch.is_some() {
        header.push("PyTorch, the same way");
    }
    let rows = figure.ways.iter().map(|way| {
        let spread = format!("{} to {}", millis(way.time.least_ms), millis(way.time.most_ms));
        let rate = format!("{:.2}", way.time.rate(figure.bytes));
        let mut row =
            vec![format!("`{}`", way.name), millis(way.time.median_ms), spread, rate, way.page_locked().to_string()];
        if let Some(torch) = torch {
            row.push(way.torch.and_then(|name| torch.get(name)).map_or("–".to_owned(), millis));
        }
        row
    });
    table(&header, rows)
}

/// One sentence about a figure.
fn verdict(figure: &Figure, torch: Option<(&str, f64)>) -> String {
    let fastest = figure.fastest();
    let ms = fastest.time.median_ms;
    let mut text = format!(
        "\nFrom ordinary memory, `{}` is the fastest: {}, with {} page-locked",
        fastest.name,
        millis(ms),
        fastest.page_locked()
    );
    if let Some((name, theirs)) = torch {
        let (times, word) = if theirs >= ms { (theirs / ms, "faster") } else { (ms / theirs, "slower") };
        let _ = write!(text, "; {times:.2} times {word} than PyTorch's fastest way, `{name}`, {}", millis(theirs));
    }
    text + ".\n"
}

fn races(races: &Races, torch: Option<&Torch>) -> String {
    let mut header = vec!["race", "tries", "copy in flight", "corrupted"];
    if torch.is_some() {
        header.push("PyTorch, of 20 tries");
    }
    let rows = races.tried.iter().chain([&races.control]).map(|race| {
        let counts = [race.tries, race.in_flight, race.corrupted].map(|count| count.to_string());
        let mut row = [vec![race.what.to_owned()], counts.to_vec()].concat();
        if let Some(torch) = torch {
            let theirs = race.torch.and_then(|name| torch.get(name));
            row.push(theirs.map_or("–".to_owned(), |count| format!("{count:.0}")));
        }
        row
    });
    let mut text = format!(
        "## The races\n\n\
         A copy in the background uses its memory after the call has returned. In PyTorch, changing a page-locked \
         source too early sends what was meant for later, and reading a target too early reads what was there before; \
         both without an error. Here the tensor knows its copies, and whoever goes for its memory waits for them. Each \
         try keeps the device busy first, so that the copy is in flight when the program goes for its memory:\n\n{}\n\
         The last row is there to show that the tries would see a race. Of its program, run once more with \
         `PAGELOCK_SANITIZE=1`, which is there for programs with `unsafe` of their own, this was said:\n\n\
         ```text\n{}\n```\n\n\
         With buffers instead of tensors, nobody has to wait, since the copy owns its memory until it is done. What \
         would race does not compile (the words are those of rustc 1.95):\n",
        table(&header, rows),
        races.sanitizer.join("\n")
    );
    for refused in REFUSED {
        let _ = write!(
            text,
            "\n{}:\n\n```rust\n{}```\n\n```text\n{}```\n",
            refused.what,
            body(refused.program),
            refused.compiler.trim_start()
        );
    }
    text
}

/// The lines inside `main` that are not there for the compiler.
fn body(program: &str) -> String {
    let lines = program.lines().filter_map(|line| line.strip_prefix("    "));
    lines.filter(|line| *line != "Ok(())").map(|line| format!("{line}\n")).collect()
}

fn factors(factors: &Factors, machine: &Machine) -> String {
    let cores = factors
        .cores
        .iter()
        .map(|row| vec![row.threads.to_string(), format!("{:.1}", row.to_gpu), format!("{:.1}", row.from_gpu)]);
    let engines = factors.engines.iter().map(|row| {
        let rates = [row.to_gpu, row.from_gpu, row.both].map(|rate| format!("{rate:.1}"));
        [vec![row.memory.to_owned()], rates.to_vec()].concat()
    });
    let sizes = factors.sizes.iter().map(|row| {
        let cell = |ms: f64| format!("{} ({:.2} GB/s)", millis(ms), row.rate(ms));
        let size = ByteSize(row.bytes as u64).to_string();
        let page_locked = row.page_locked_ms.map_or("no room".to_owned(), cell);
        vec![size, cell(row.pageable_ms), cell(row.pin_first_ms), page_locked]
    });
    let counts = factors.counts.iter().map(|row| {
        let ms = [row.one_by_one_ms, row.as_one_ms].map(millis);
        [vec![format!("{} of {}", row.count, ByteSize(row.bytes as u64))], ms.to_vec()].concat()
    });
    let link = machine.link.as_deref().unwrap_or("a link of which nothing is known");
    format!(
        "## What it depends on\n\n\
         **Memory headroom.** {}.\n\n\
         **Cores.** Threads copy ordinary memory to and from the ring; large copies, GB/s:\n\n\
         ![rates by threads](cores.svg)\n\n{}\n\
         **Link and copy engines.** {link}; {} copy engines, so copies of both directions can go on at once. \
         GB/s:\n\n{}\n\
         **How large a tensor is.** Until it is there:\n\n![rates by size](sizes.svg)\n\n{}\n\
         **How many tensors there are.** The same bytes, cut into more and more tensors of ordinary memory:\n\n\
         ![times by count](counts.svg)\n\n{}\n\
         **How `to` decides.** Page-locked memory the device copies by itself. Ordinary memory passes through the ring; tensors \
         that move together share blocks of the device's memory, so that one copy takes many of them.\n",
        headroom(machine),
        table(&["helping threads", "to the device", "from the device"], cores),
        machine.copy_engines,
        table(&["memory", "to the device", "from the device", "both at once, sum"], engines),
        table(&["bytes", "`x.to(gpu)`", "`x.pin_memory().to(gpu)`", "page-locked before"], sizes),
        table(&["tensors", "`x.to(gpu)`, one by one", "`Tensor::all_to(&tensors, gpu)`"], counts),
    )
}

fn headroom(machine: &Machine) -> String {
    let left = machine.memory_left.as_deref().unwrap_or("an unknown amount");
    format!(
        "{left} of memory are left; the budget for page-locked memory is {}, and copies of ordinary memory need a \
             ring of {}",
        machine.budget, machine.staging
    )
}

fn what_to_do(guide: &Guide, place: &Place) -> String {
    let mut text = "## What to do on this machine\n\n".to_owned();
    if place.instead_of().is_some() {
        text += "So the figures of this run have it; since its device is made of software, of no GPU.\n\n";
    }
    for (i, advice) in advice(guide).iter().enumerate() {
        let _ = writeln!(text, "{}. **{}** {}", i + 1, advice.what, advice.because);
    }
    text
}

fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// As in `0.102 ms`, with three digits that count.
pub(crate) fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{ms:.3} ms"),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms => format!("{ms:.1} ms"),
    }
}
