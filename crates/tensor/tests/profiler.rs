//! Profiles: the contents of the table, how events nest, and that nothing is recorded outside a profile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use pagelock_cuda::software::Config;
use pagelock_tensor::profiler::{self, Category, FunctionEvent, Observer, Profile, Profiler, SortBy, record_function};
use pagelock_tensor::{CapturedStep, Conv2dOptions, Device, Error, Float, Result, Tensor};

/// A process records only one profile at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn profile(work: impl FnOnce() -> Result<()>) -> Profile {
    profiler::profile(work).unwrap()
}

fn row(profile: &Profile, key: &str) -> (u64, u64, u64) {
    let table = profile.key_averages();
    let row = table.get(key).unwrap_or_else(|| panic!("no {key} in\n{table}"));
    (row.calls, row.bytes, row.flops)
}

fn ones<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::<Float>::ones(shape).unwrap()
}

#[test]
fn calls_bytes_and_flops_of_products_are_exact() {
    let _alone = alone();
    let (x, w) = (ones([5, 3]), ones([3, 7]).set_requires_grad(true));
    let batches = ones([2, 5, 3]);

    let profile = profile(|| {
        let y = x.matmul(&w)?;
        batches.permute([0, 1, 2])?.matmul(&w)?;
        y.exp()?.sum(..)?.backward()
    });

    let forward = 5 * 7 * 4 + 10 * 7 * 4;
    assert_eq!(row(&profile, "matmul"), (3, forward + 3 * 7 * 4, 2 * 5 * 3 * 7 * 4));
    assert_eq!(row(&profile, "exp"), (1, 5 * 7 * 4, 0));
    assert_eq!(row(&profile, "exp backward"), (1, 5 * 7 * 4, 0), "a product with the result");
    assert_eq!(row(&profile, "matmul backward"), (1, 3 * 7 * 4, 2 * 5 * 3 * 7));
}

#[test]
fn calls_bytes_and_flops_of_convolutions_are_exact() {
    let _alone = alone();
    let image = ones([2, 4, 9, 9]).set_requires_grad(true);
    let weight = ones([6, 2, 3, 3]).set_requires_grad(true);
    let options = Conv2dOptions::new().stride(2).padding(1).groups(2);

    let factor = ones([2, 6, 5, 5]); // makes the gradient of the result contiguous

    let profile = profile(|| image.conv2d(&weight, None, options)?.mul(&factor)?.sum(..)?.backward());

    let flops = 2 * 2 * 6 * 5 * 5 * 2 * 3 * 3;
    let made = 4 * (2 * 6 * 5 * 5 + 2 * 4 * 9 * 9 + 6 * 2 * 3 * 3);
    assert_eq!(row(&profile, "conv2d"), (3, made, 3 * flops));
    assert_eq!(row(&profile, "conv2d backward"), (1, 4 * (2 * 4 * 9 * 9 + 6 * 2 * 3 * 3), 2 * flops));
}

#[test]
fn an_operation_of_several_kernels_is_one_call() {
    let _alone = alone();
    let (x, mean, variance) = (ones([8, 3, 4, 4]), ones([3]), ones([3]));

    let profile = profile(|| x.batch_norm(Some([&mean, &variance]), None, None, Default::default()).map(drop));

    assert_eq!(row(&profile, "batch_norm").0, 1);
}

fn named<'a>(events: &'a [FunctionEvent<'a>], name: &str) -> Vec<&'a FunctionEvent<'a>> {
    events.iter().filter(|event| event.name == name).collect()
}

#[test]
fn events_nest_and_their_own_times_add_up_to_the_whole() {
    let _alone = alone();
    let w = ones([20, 20]).set_requires_grad(true);
    let profile = profile(|| {
        record_function("outer", || record_function("inner", || ones([10, 20]).matmul(&w))?.exp()?.sum(..)?.backward())
    });

    let events = profile.events();
    for event in &events {
        let Some(parent) = event.parent else { continue };
        let parent = events.iter().find(|other| (other.thread, other.number) == (event.thread, parent)).unwrap();
        assert!(parent.start <= event.start, "{parent:?} {event:?}");
        assert!(event.start + event.host_time <= parent.start + parent.host_time, "{parent:?} {event:?}");
    }
    let outer = named(&events, "outer")[0];
    let whole: std::time::Duration = events.iter().map(|event| event.self_host_time).sum();
    assert_eq!(whole, outer.host_time);
    let inside: Vec<&str> = events.iter().filter(|event| event.parent == Some(1)).map(|event| &*event.name).collect();
    assert_eq!((&*events[1].name, inside), ("inner", vec!["ones", "matmul"]));
    let exp_backward = named(&events, "exp backward")[0];
    assert_eq!(exp_backward.category, Category::Backward);
    assert!(events.iter().any(|event| event.name == "mul" && event.parent == Some(exp_backward.number)));
}

#[test]
fn a_backward_belongs_to_the_module_of_its_forward() {
    let _alone = alone();
    let w = ones([4, 4]).set_requires_grad(true);
    let module = 0u8;
    let profile = profile(|| {
        let inside = profiler::module_scope((&raw const module).addr(), Some(3), &|| "Linear".to_owned());
        let again = profiler::module_scope((&raw const module).addr(), None, &|| "Linear".to_owned());
        let y = ones([2, 4]).matmul(&w)?;
        drop((again, inside));
        y.exp()?.sum(..)?.backward()
    });

    let events = profile.events();
    let module = |name: &str| named(&events, name).iter().map(|event| event.module).collect::<Vec<_>>();
    let linear = Some("3 (Linear)");
    assert_eq!(module("matmul"), [linear; 2], "forward, and the product of its derivative");
    assert_eq!(module("matmul backward"), [linear]);
    assert_eq!((module("exp"), module("exp backward")), (vec![None], vec![None]));
    assert_eq!(module("3 (Linear)"), [linear], "the call inside of the same module is part of it");
    let by_module = profile.key_averages_by_module();
    assert!(by_module.iter().any(|row| row.key == "matmul" && row.module.as_deref() == linear && row.calls == 2));
    assert!(profile.key_averages().get("3 (Linear)").is_none());
}

#[test]
fn every_thread_has_events_of_its_own() {
    let _alone = alone();
    let profile = profile(|| {
        let work = |n: usize| move || (0..n).try_for_each(|_| ones([3]).exp().map(drop));
        let threads: Vec<_> =
            (1..5).map(|n| thread::Builder::new().name(format!("worker {n}")).spawn(work(n)).unwrap()).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    });

    assert_eq!(row(&profile, "exp").0, 1 + 2 + 3 + 4);
    let events = profile.events();
    let mut by_thread = std::collections::HashMap::<usize, u64>::new();
    named(&events, "exp").iter().for_each(|event| *by_thread.entry(event.thread).or_default() += 1);
    let mut counts: Vec<u64> = by_thread.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 3, 4]);
    assert!(profile.chrome_trace().contains(r#""args":{"name":"worker 3"}"#));
}

#[test]
fn nothing_is_recorded_before_the_start_and_behind_the_stop() {
    let _alone = alone();
    ones([2]).exp().unwrap();
    let active = Profiler::new().start().unwrap();
    ones([2]).sqrt().unwrap();
    let profile = active.stop().unwrap();
    ones([2]).tanh().unwrap();

    let table = profile.key_averages();
    let mut keys: Vec<&str> = table.iter().map(|row| &*row.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["ones", "sqrt"]);
}

#[test]
fn a_second_profile_is_refused_and_the_first_goes_on() {
    let _alone = alone();
    let active = Profiler::new().start().unwrap();
    let refused = profiler::profile(|| -> Result<()> { Ok(()) }).unwrap_err();
    ones([2]).exp().unwrap();
    assert_eq!(refused.to_string(), "profiler: a profile is being recorded already; stop that one first");
    assert_eq!(row(&active.stop().unwrap(), "exp").0, 1);
}

#[test]
fn errors_and_panics_inside_leave_the_profiler_off() {
    let _alone = alone();
    let failed = profiler::profile(|| ones([2]).matmul(&ones([3])).map(drop));
    assert!(failed.unwrap_err().to_string().starts_with("matmul"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        profiler::profile(|| -> Result<()> { record_function("doomed", || panic!("on purpose")) })
    }));
    assert!(panicked.is_err());

    let profile = profile(|| ones([2]).exp().map(drop));
    let keys: Vec<_> = profile.events().iter().map(|event| (event.name.to_string(), event.parent)).collect();
    assert_eq!(keys, [("ones".to_owned(), None), ("exp".to_owned(), None)]);
}

#[test]
fn an_operation_that_fails_or_unwinds_has_ended() {
    let _alone = alone();
    let profile = profile(|| {
        let _wrong = ones([2, 3]).matmul(&ones([2, 3]));
        let _caught = catch_unwind(|| record_function("unwinds", || panic!("on purpose")));
        ones([2]).exp().map(drop)
    });

    let events = profile.events();
    assert_eq!(named(&events, "unwinds").len(), 1);
    assert_eq!(named(&events, "exp")[0].parent, None);
}

#[test]
fn a_full_recording_stops_and_its_table_says_so() {
    let _alone = alone();
    let x = ones([2]);
    let profile = Profiler::new().max_events(2_000).profile(|| (0..5_000).try_for_each(|_| x.exp().map(drop))).unwrap();

    assert_eq!(row(&profile, "exp").0, 2_048, "the limit, rounded up to a chunk");
    let why = profile.stopped_because().unwrap();
    assert!(why.ends_with("it has 2000 events, the most that it may record; raise max_events"), "{why}");
    assert!(profile.to_string().ends_with(&format!("{why}\n")));
    assert!(!profile.to_string().contains("-0"));
}

#[test]
fn a_recording_is_counted_in_the_budget_of_the_host() {
    let _alone = alone();
    let budget = pagelock_memory::host_budget();
    let held = || budget.holders().iter().filter(|held| held.name == "profiler").map(|held| held.bytes.0).sum::<u64>();
    let x = ones([2]);
    let profile = profile(|| (0..3_000).try_for_each(|_| x.exp().map(drop)));
    assert!(held() >= 3 * 1024 * 72, "{} B", held());
    drop(profile);

    let limit = budget.limit();
    budget.set_limit(budget.used().0 + (1 << 20));
    let profile = Profiler::new().profile(|| (0..50_000).try_for_each(|_| x.exp().map(drop)));
    budget.set_limit(limit);
    let profile = profile.unwrap();
    let why = profile.stopped_because().unwrap().to_owned();
    assert!(why.contains("budget `host` has") && row(&profile, "exp").0 < 50_000, "{why}");
}

#[test]
fn the_trace_is_json_whose_spans_nest() {
    let _alone = alone();
    let profile = profile(|| record_function("a \"name\"\n", || ones([4, 4]).matmul(&ones([4, 4]))?.exp().map(drop)));

    let trace: serde_json::Value = serde_json::from_str(&profile.chrome_trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    let time = |event: &serde_json::Value| {
        let start = event["ts"].as_f64().unwrap();
        (start, start + event["dur"].as_f64().unwrap())
    };
    let find = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
    let (outer, matmul) = (find("a \"name\"\n"), find("matmul"));
    assert!(time(outer).0 <= time(matmul).0 && time(matmul).1 <= time(outer).1 + 0.001);
    assert_eq!(matmul["args"]["flops"], 128);
    assert_eq!(matmul["args"]["category"], "operation");
    assert!(events.iter().any(|event| event["ph"] == "C" && event["name"] == "host memory"));
}

#[test]
fn memory_is_sampled_and_drawn() {
    let _alone = alone();
    let mut held = Vec::new();
    let profile = profile(|| {
        held.push(Tensor::<Float>::zeros([1 << 20])?);
        Ok(())
    });
    let samples = profile.memory();
    let (first, last) = (&samples[0], &samples[samples.len() - 1]);
    assert!(last.host.in_use.0 >= first.host.in_use.0 + (4 << 20), "{samples:?}");
    assert!(last.host.reserved >= last.host.in_use);

    let folder = tempfile::tempdir().unwrap();
    profile.export_memory_timeline(folder.path().join("memory.svg")).unwrap();
    let svg = std::fs::read_to_string(folder.path().join("memory.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains(">host</text>"));
    let error = profile.export_memory_timeline("/nowhere/memory.svg").unwrap_err();
    assert!(error.to_string().starts_with("cannot write the picture /nowhere/memory.svg: "), "{error}");
}

#[test]
fn what_a_device_does_is_timed_as_part_of_the_operations() {
    let _alone = alone();
    let software = pagelock_cuda::Device::software(Config::default()).unwrap();
    check_device(&Device::try_from(&software).unwrap());
}

#[test]
fn what_a_gpu_does_is_timed_as_part_of_the_operations() {
    let _alone = alone();
    match Device::cuda(0) {
        Ok(device) => check_device(&device),
        Err(absent) => println!("skipped: {absent}"),
    }
}

fn check_device(device: &Device) {
    let host = ones([64, 64]);
    let profile = profile(|| {
        let x = host.to(device)?;
        let y = x.to(device)?;
        y.zeros_like()?.to(&Device::Cpu).map(drop)
    });

    let table = profile.key_averages();
    for key in ["to", "zeros_like"] {
        let row = table.get(key).unwrap();
        assert!(row.self_device_time > std::time::Duration::ZERO, "{table}");
        assert!(row.device_time >= row.self_device_time);
    }
    assert_eq!(row(&profile, "to").0, 2, "a tensor that is there already is not moved");
    let trace = profile.chrome_trace();
    for name in ["upload", "download", "zeros_like"] {
        assert!(trace.contains(&format!("{{\"name\":\"{name}\",\"ph\":\"X\",\"pid\":1,")), "{trace}");
    }
    assert!(trace.contains("\"name\":\"device memory\",\"ph\":\"C\",\"pid\":1,"), "{trace}");
    assert!(table.to_string().contains("Self CUDA time total: "));
}

#[test]
fn a_captured_step_is_one_launch() {
    let _alone = alone();
    let device = Device::best();
    let mut step = CapturedStep::new(&device);
    let mut run = || step.run(ones([4]), |x| -> Result<Tensor> { x.exp() }).map(drop);
    (0..6).try_for_each(|_| run()).unwrap();

    let profile = profile(run);

    assert_eq!(row(&profile, "captured step").0, 1);
    let has_exp = profile.key_averages().get("exp").is_some();
    assert_eq!(has_exp, device.is_cpu(), "on the CPU the step runs, on a device its graph is launched");
}

#[test]
fn tables_are_sorted_as_asked_and_cut() {
    let _alone = alone();
    let x = ones([16, 16]);
    let profile = profile(|| {
        (0..5).try_for_each(|_| x.exp().map(drop))?;
        x.matmul(&x).map(drop)
    });

    let table = profile.key_averages().sort_by(SortBy::Calls).row_limit(1);
    assert_eq!((&*table[0].key, table.len()), ("exp", 2));
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("Name") && lines[1].ends_with("FLOPs  # of Calls"), "{text}");
    assert!(lines[3].starts_with("exp ") && lines[3].ends_with("5 KiB     --           5"), "{text}");
    assert_eq!(lines[5], "1 more rows are not shown; row_limit shows more");
    assert_eq!(profile.key_averages().sort_by(SortBy::Flops)[0].key, "matmul");
    assert!(profile.key_averages().sort_by(SortBy::Bytes)[0].bytes == 5 * 16 * 16 * 4);
}

#[test]
fn an_error_of_the_programs_own_passes_through() {
    let _alone = alone();
    #[derive(Debug, PartialEq)]
    struct Mine;
    impl From<Error> for Mine {
        fn from(_: Error) -> Mine {
            Mine
        }
    }
    assert_eq!(profiler::profile(|| Err(Mine)).unwrap_err(), Mine);
}

/// The calls that an observer gets on the thread of a test.
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn begin(&self, name: &str, category: Category) -> u64 {
        let mut told = self.0.lock().unwrap();
        told.push(format!("{} {name}", category.name()));
        told.len() as u64
    }

    fn end(&self, begun: u64) {
        self.0.lock().unwrap().push(format!("end of {begun}"));
    }
}

static TOLD: Told = Told(Mutex::new(Vec::new()));
static OTHER: Told = Told(Mutex::new(Vec::new()));

#[test]
fn an_observer_is_told_of_what_begins_and_ends_and_of_nothing_else() {
    let _alone = alone();
    let w = ones([2]).set_requires_grad(true);
    let module = 7;

    let observed = profiler::observe(&TOLD).unwrap();
    {
        let _inside = profiler::module_scope((&raw const module).addr(), Some(3), &|| "Exp".to_owned());
        w.exp().unwrap().sum(..).unwrap().backward().unwrap();
    }
    assert!(profiler::observe(&TOLD).is_err());
    drop(observed);
    w.exp().unwrap();

    let told = std::mem::take(&mut *TOLD.0.lock().unwrap());
    let begun: Vec<&str> = told.iter().map(|line| &**line).filter(|line| !line.starts_with("end")).collect();
    assert_eq!(begun[..2], ["module 3 (Exp)", "operation exp"]);
    assert!(begun.contains(&"backward exp"), "{begun:?}");
    let mut open = Vec::new();
    for (i, line) in told.iter().enumerate() {
        match line.strip_prefix("end of ") {
            Some(begun) => assert_eq!(Some(begun.parse::<usize>().unwrap()), open.pop()),
            None => open.push(i + 1),
        }
    }
    assert!(open.is_empty() && profiler::observe(&OTHER).is_err());
    assert_eq!(OTHER.0.lock().unwrap().len(), 0);
}
