//! The report: the guide as Markdown, with every number from this run.

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

/// The figures, and how PyTorch's names of the same work begin.
const SAME_WORK: [(&str, &[&str]); 4] = [
    ("one", &["one_1M.pageable_to", "one_1M.pin_then_to"]),
    ("small", &["small_1000x1000.to"]),
    ("large", &["big_1000x1M.to", "big_1000x1M.pin_to", "td."]),
    ("map", &["td."]),
];

/// PyTorch's fastest way from ordinary memory to the device, for the given figure.
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
    let mut text = "# Copying memory to a GPU: when to page-lock it, and when to wait\n\n\
         This follows PyTorch's guide *On good usage of `non_blocking` and `pin_memory()`*, section by section, with \
         the same tensors. The run that wrote this report measured every time below on the machine of the next \
         section. A time is the median of several runs, until the bytes are on the device unless it says otherwise. \
         `cargo run --release --example pinmem_nonblock` repeats the measurements.\n\n"
        .to_owned();
    if let Some(why) = place.instead_of() {
        let _ = writeln!(
            text,
            "> **No GPU was used** ({why}). A software device replaces it. It copies with the processor, so the times \
             below say nothing about a GPU, and the tensors are smaller. The structure is the same.\n"
        );
    }
    if torch.is_some() && place.instead_of().is_some() {
        text += "> PyTorch's figures in this report were therefore measured on another machine.\n\n";
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
    let mut header = vec!["fastest way from ordinary memory to the device", "time", "GB/s", "page-locked memory"];
    if torch.is_some() {
        header.extend(["PyTorch's fastest way", "times faster"]);
    }
    text + &table(&header, rows)
}

fn page_locked(machine: &Machine) -> String {
    let known = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
    let cuda = machine.cuda.map_or(String::new(), |(major, minor)| format!(", driver for CUDA {major}.{minor}"));
    let facts = [
        ["device".to_owned(), format!("{}{cuda}", machine.device)],
        ["processor".to_owned(), format!("{}, {} cores for this process", known(&machine.processor), machine.cores)],
        ["page size".to_owned(), known(&machine.page)],
        ["huge page size".to_owned(), known(&machine.huge_pages)],
        [
            "memory, total and available".to_owned(),
            format!("{}, {}", known(&machine.memory), known(&machine.memory_left)),
        ],
        ["`RLIMIT_MEMLOCK` (limits `mlock`, but not GPU drivers)".to_owned(), known(&machine.lock_limit)],
        ["budget for page-locked memory".to_owned(), machine.budget.clone()],
        ["ring buffer for copies of ordinary memory".to_owned(), machine.staging.clone()],
        ["link".to_owned(), known(&machine.link)],
        ["copy engines".to_owned(), machine.copy_engines.to_string()],
    ];
    let locking = machine.locking.iter().map(|row| {
        let mib = format!("{} MiB", row.mib);
        vec![mib, millis(row.lock_ms), millis(row.unlock_ms), format!("{:.2} µs", row.again_us)]
    });
    format!(
        "## Page-locked memory on this machine\n\n\
         The system may move a page of ordinary (*pageable*) memory, or swap it out to disk, at any time. A GPU copies \
         without the processor, so it can only use pages that stay where they are: *page-locked* (*pinned*) ones. \
         Ordinary memory therefore takes two copies, through page-locked memory. Page-locking takes time, and other \
         programs cannot use the locked memory, so Pagelock limits it by a budget. Copies of ordinary memory use a \
         small ring buffer within that budget.\n\n{}\n\
         The cost of page-locking, the best of three runs: the driver clears and locks new memory; memory that was \
         locked before comes from a pool.\n\n{}",
        table(&["this machine", ""], facts.map(Vec::from)),
        table(&["size", "page-lock", "unlock", "take from the pool"], locking)
    )
}

fn traces(traces: &[Trace]) -> String {
    let rows = traces.iter().map(|trace| {
        let ms = [trace.computing_ms, trace.copying_ms, trace.overlapped_ms, trace.total_ms].map(millis);
        let file = format!("[{0}]({0})", trace.file());
        [vec![trace.name()], ms.to_vec(), vec![format!("{:.0} %", 100.0 * trace.overlap()), file]].concat()
    });
    format!(
        "## When copies overlap with computing\n\n\
         The same rounds, four times: queue some computing, queue an independent copy, wait for both. A stream does \
         its work in order, so on the same stream the copy waits for the computing before it. On a separate stream it \
         does not. Copies of ordinary memory overlap too, since threads and the device stage them together; \
         `cudaMemcpyAsync` from such memory would block the caller.\n\n\
         ![timelines of the host, the copies and the computing](traces.svg)\n\n{}\n\
         *Overlap* is measured with the device's events; its percentage is a share of the shorter of copying and \
         computing. The program asserts that it is 0 on one stream and, on a GPU, most of the time on two. The traces \
         open in <https://ui.perfetto.dev> and in chrome://tracing.\n",
        table(&["memory and stream", "computing", "copying", "overlap", "total", "overlap, %", "trace"], rows)
    )
}

fn one(figure: &Figure, torch: Option<&Torch>, place: &Place) -> String {
    format!(
        "## Figure 1: one tensor of {} floats\n\n\
         Is it worth page-locking a tensor to copy it? A copy from page-locked memory is as fast as the link. But the \
         total time counts: with `pin_memory()`, the device starts only after all bytes are copied to page-locked \
         memory, whereas in `to`, several threads and the device work as a pipeline. The device reads data more slowly \
         while it is still in the caches of the cores that wrote it; the last way is measured after the data has been \
         evicted from their caches.\n\n\
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
         Launching such a small copy takes longer than the copy itself. Waiting after each copy (as `to` does in \
         PyTorch without `non_blocking=True`) adds a round trip to each; waiting once does not. But only one call for \
         all tensors saves the calls: several threads pack the tensors into the ring buffer, and they move as one \
         copy. `upload_packed` leaves all data in one buffer; the difference to it is the time to make and drop that \
         many tensors.\n\n\
         ![figure 2](figure2.svg)\n\n{}{}\n\
         The time by phase, from a separate run with a clock around each call. *Copy* is filling a slot of the ring \
         buffer and launching its copy. The last way allocates within its one call:\n\n{}",
        place.sizes.n_small,
        place.sizes.small_floats,
        ways(&guide.small, torch),
        verdict(&guide.small, torch_fastest(torch, "small")),
        table(&["way", "calls", "allocate", "copy", "wait", "total"], rows)
    )
}

fn large(figure: &Figure, torch: Option<&Torch>, place: &Place) -> String {
    let left_out: String = figure.left_out.iter().map(|why| format!("\nNot measured: {why}.\n")).collect();
    format!(
        "## Figure 3: {} tensors of {} floats\n\n\
         Here the bytes take the time, not the calls. With a wait after each tensor, the host threads idle while the \
         device finishes, and the device idles while they start the next. With one wait, the threads read the next \
         tensor while the device still copies the one before, with or without `pin_memory()`. `Tensor::all_to` knows \
         all tensors in advance, and keeps the threads and the device busy. *Page-locked before* leaves out the cost \
         of page-locking, and needs all bytes page-locked.\n\n\
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
         Tensors that belong together have names: in a `TensorMap` here, in a `TensorDict` in PyTorch. They move with \
         one call. In PyTorch, `non_blocking_pin` page-locks each tensor with the given number of threads before it is \
         copied. Here, that many threads help the calling one to fill the small ring buffer; with 0, the calling \
         thread copies alone. PyTorch's other threads copy too, whatever the number is.\n\n\
         ![figure 4](figure4.svg)\n\n{}{}",
        place.sizes.n_large,
        ways(figure, torch),
        verdict(figure, torch_fastest(torch, "map"))
    )
}

/// The table of a figure.
fn ways(figure: &Figure, torch: Option<&Torch>) -> String {
    let mut header = vec!["way", "time", "fastest to slowest", "GB/s", "page-locked memory"];
    if torch.is_some() {
        header.push("same way in PyTorch");
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
        "\nFrom ordinary memory, `{}` is the fastest way: {}, with {} page-locked",
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
        header.push("corrupted in PyTorch, of 20 tries");
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
         A copy in the background uses its memory after the call has returned. In PyTorch, a program that changes a \
         page-locked source too early sends the new values, and one that reads a target too early reads the old \
         values; neither is an error. Here a tensor knows its copies in flight, and any access to its memory waits for \
         them. Each try first keeps the device busy, so that the copy is in flight when the program accesses its \
         memory:\n\n{}\n\
         The last row shows that the tries would detect a race. Its program was run again with `PAGELOCK_SANITIZE=1`, \
         which checks programs with `unsafe` code. The sanitizer reported:\n\n\
         ```text\n{}\n```\n\n\
         With buffers instead of tensors, nothing has to wait, since a copy owns its memory until it is done. Programs \
         that would race do not compile (messages of rustc 1.95):\n",
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

/// The lines inside `main`, without the final `Ok(())`.
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
        let page_locked = row.page_locked_ms.map_or("over budget".to_owned(), cell);
        vec![size, cell(row.pageable_ms), cell(row.pin_first_ms), page_locked]
    });
    let counts = factors.counts.iter().map(|row| {
        let ms = [row.one_by_one_ms, row.as_one_ms].map(millis);
        [vec![format!("{} of {}", row.count, ByteSize(row.bytes as u64))], ms.to_vec()].concat()
    });
    let link = machine.link.as_deref().unwrap_or("unknown link");
    format!(
        "## What the speed depends on\n\n\
         **Memory headroom.** {}.\n\n\
         **Cores.** Threads copy ordinary memory to and from the ring buffer; large copies, GB/s:\n\n\
         ![rates by threads](cores.svg)\n\n{}\n\
         **Link and copy engines.** {link}; copy engines: {} (with two, copies in both directions run at the same \
         time). GB/s:\n\n{}\n\
         **Size of a tensor.** Time until it is on the device:\n\n![rates by size](sizes.svg)\n\n{}\n\
         **Number of tensors.** The same bytes, divided into more and more tensors in ordinary memory:\n\n\
         ![times by count](counts.svg)\n\n{}\n\
         **The route of a copy.** The device copies page-locked memory directly. Ordinary memory is staged in the ring \
         buffer. Tensors that move together share blocks of device memory, so that one copy moves many of them.\n",
        headroom(machine),
        table(&["helping threads", "to the device", "from the device"], cores),
        machine.copy_engines,
        table(&["memory", "to the device", "from the device", "both at the same time, sum"], engines),
        table(&["bytes", "`x.to(gpu)`", "`x.pin_memory().to(gpu)`", "page-locked before"], sizes),
        table(&["tensors", "`x.to(gpu)`, one by one", "`Tensor::all_to(&tensors, gpu)`"], counts),
    )
}

fn headroom(machine: &Machine) -> String {
    let left = machine.memory_left.as_deref().unwrap_or("an unknown amount");
    format!(
        "{left} of memory is available. The budget for page-locked memory is {}. Copies of ordinary memory use a ring \
         buffer of {}",
        machine.budget, machine.staging
    )
}

fn what_to_do(guide: &Guide, place: &Place) -> String {
    let mut text = "## What to do on this machine\n\n".to_owned();
    if place.instead_of().is_some() {
        text += "This advice follows from the figures of a software device, and does not apply to a GPU.\n\n";
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

/// Formats milliseconds with about three significant digits, as in `0.102 ms`.
pub(crate) fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{ms:.3} ms"),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms => format!("{ms:.1} ms"),
    }
}
