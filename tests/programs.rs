//! The examples under adverse conditions: wrong arguments, closed output, a folder that cannot be written, Ctrl-C,
//! and environment variables without a sensible value.
//!
//! `cargo test` builds the examples first. To run this test alone, run `cargo build --examples` before it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// All examples but [`TUTORIALS`].
const EXAMPLES: [&str; 14] = [
    "autograd",
    "budgets",
    "classify_names",
    "copy_engines",
    "custom_batch",
    "custom_dataset",
    "generate_names",
    "mnist_cnn",
    "mnist_walkthrough",
    "overlap",
    "pinmem_nonblock",
    "tensorboard_fashion_mnist",
    "tensors",
    "translate",
];

/// Ports of PyTorch's tutorials, and an example of each kind of model. They check their results, and have `--quick`.
const TUTORIALS: [&str; 18] = [
    "basics_autograd",
    "basics_build_model",
    "basics_data",
    "basics_optimization",
    "basics_quickstart",
    "basics_save_load",
    "basics_tensors",
    "basics_transforms",
    "blitz_autograd",
    "blitz_cifar10",
    "blitz_networks",
    "blitz_tensors",
    "models_finetune",
    "models_gru",
    "models_resnet",
    "models_tabular",
    "models_unet",
    "models_vae",
];

/// A program that runs in an empty folder, without data, network or GPU.
struct Program {
    command: Command,
    folder: TempDir,
}

impl Program {
    fn new(name: &str, arguments: &[&str]) -> Self {
        let tests = std::env::current_exe().unwrap();
        let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
        assert!(path.exists(), "there is no `{}`: run `cargo build --examples` first", path.display());
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(path);
        command.args(arguments).current_dir(folder.path()).env("PAGELOCK_OFFLINE", "1").env("CUDA_VISIBLE_DEVICES", "");
        command.env("PAGELOCK_DATA", folder.path()).env_remove("PAGELOCK_NUM_THREADS").env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, folder }
    }

    fn env(mut self, variable: &str, value: &str) -> Self {
        self.command.env(variable, value);
        self
    }

    fn run(mut self) -> Said {
        Said::of(self.command.output().unwrap())
    }

    /// Runs it, and closes its output after the first line.
    fn run_head(mut self) -> Said {
        let mut child = self.command.spawn().unwrap();
        let mut first = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut first).unwrap();
        drop(stdout);
        Said::of_child(child, first)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// How a program ended, and what it printed.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    fn of_child(mut child: Child, stdout: String) -> Self {
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Self { code: child.wait().unwrap().code(), stdout, stderr }
    }

    #[track_caller]
    fn assert_refused(&self, parts: &[&str]) {
        assert!(matches!(self.code, Some(1 | 2)), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        assert!(parts.iter().all(|part| self.stderr.contains(part)), "{parts:?} in {self:?}");
        assert_eq!(self.stdout, "", "it printed results before it refused");
    }
}

/// `mnist_cnn` with settings that make it short.
fn mnist_cnn(arguments: &[&str]) -> Program {
    Program::new("mnist_cnn", &[&["--epochs", "1", "--batch-size", "500", "--threads", "1"], arguments].concat())
}

#[test]
fn every_example_has_help_and_refuses_what_it_does_not_know() {
    for name in EXAMPLES.into_iter().chain(TUTORIALS) {
        let help = Program::new(name, &["--help"]).run();
        assert_eq!(help.code, Some(0), "{name}: {help:?}");
        assert!(help.stdout.contains("Usage: ") && help.stdout.lines().next().unwrap().len() > 10, "{name}: {help:?}");
        Program::new(name, &["--nonsense"]).run().assert_refused(&["--nonsense", "--help"]);
        Program::new(name, &["nonsense"]).run().assert_refused(&["nonsense", "--help"]);
    }
}

#[test]
fn every_tutorial_keeps_its_promises_and_first_says_what_data_it_uses() {
    for name in TUTORIALS {
        let said = Program::new(name, &["--quick", "--device=cpu"]).run();
        assert_eq!((said.code, &*said.stderr), (Some(0), ""), "{name}: {said:?}");
        let first = said.stdout.lines().next().unwrap();
        assert!(
            ["no data", "generated digits", "drawn shapes"].iter().any(|data| first.starts_with(data)),
            "{name}: {first}"
        );
    }
}

#[test]
fn a_tutorial_refuses_a_device_that_there_is_not_and_a_folder_without_data() {
    for name in TUTORIALS {
        Program::new(name, &["--device=abacus"]).run().assert_refused(&["abacus", "cpu"]);
    }
    for name in ["basics_quickstart", "blitz_cifar10"] {
        let program = Program::new(name, &["--data=empty"]);
        fs::create_dir(program.path("empty")).unwrap();
        program.run().assert_refused(&["empty"]);
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_is_done() {
    for (argument, values) in [
        ("--lr", &["inf", "-inf", "nan", "NaN", "0", "-0.1", "1e400", "1e-320", "fast"][..]),
        ("--epochs", &["0", "-1", "1.5", "many", "18446744073709551615", "99999999999999999999"]),
        ("--batch-size", &["0", "-64", "9223372036854775808", "18446744073709551615", "99999999999999999999"]),
        ("--threads", &["0", "-1", "1000000000000", "all"]),
        ("--seed", &["-1", "1.5", "18446744073709551616"]),
        ("--arch", &["resnet", "5"]),
        ("--save-every", &["0", "-1", "often"]),
    ] {
        for value in values {
            let said = Program::new("mnist_cnn", &[&format!("{argument}={value}")]).run();
            said.assert_refused(&[argument, &format!("'{value}'")]);
        }
    }
    for device in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999999999999"] {
        Program::new("mnist_cnn", &["--device", device]).run().assert_refused(&["a device is called `cpu`, `cuda`"]);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_told_before_anything_is_done() {
    let taken = "taken";
    for (name, argument) in [("mnist_cnn", "--out"), ("pinmem_nonblock", "--out")] {
        for place in [taken, "taken/below"] {
            let program = Program::new(name, &[argument, place]);
            fs::write(program.path(taken), "a file").unwrap();
            program.run().assert_refused(&[place, "results"]);
        }
    }
    for name in ["copy_engines", "overlap"] {
        Program::new(name, &["--software", "--json", "nowhere/figures.json"])
            .run()
            .assert_refused(&["nowhere/figures.json"]);
    }
}

#[test]
fn a_folder_without_the_right_to_write_is_told_before_anything_is_done() {
    let program = Program::new("mnist_cnn", &["--out", "closed"]);
    let closed = program.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(closed.join("probe"), "").is_ok() {
        println!("skipped: this user may write everywhere");
        return;
    }
    program.run().assert_refused(&["closed", "results"]);
}

#[test]
fn a_closed_output_ends_a_program_without_a_panic() {
    let programs = EXAMPLES.map(|name| match name {
        "mnist_cnn" => mnist_cnn(&[]),
        name => Program::new(name, &[]),
    });
    for program in programs {
        let said = program.run_head();
        assert_eq!((said.code, &*said.stderr), (Some(0), ""), "{said:?}");
    }
}

#[test]
fn without_the_files_the_first_line_is_short_and_the_reason_follows() {
    let said = mnist_cnn(&["--out", "results"]).run();
    let mut lines = said.stdout.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("generated digits (seed 42)") && first.len() <= 100, "{first}");
    let second = lines.next().unwrap();
    assert!(second.contains("MNIST could not be used") && second.len() <= 250, "{second}");
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_folder_of_data_that_is_given_is_read_and_nothing_else() {
    for name in ["mnist_cnn", "mnist_walkthrough", "tensorboard_fashion_mnist"] {
        let program = Program::new(name, &["--data", "empty"]);
        fs::create_dir(program.path("empty")).unwrap();
        let said = program.run();
        said.assert_refused(&["train-images-idx3-ubyte.gz", "`empty`", "PAGELOCK_OFFLINE is set"]);
        assert_eq!(said.stderr.matches("PAGELOCK_OFFLINE is set").count(), 1, "said twice: {said:?}");
    }
}

#[test]
fn the_walkthrough_with_tensorboard_leaves_what_tensorboard_shows() {
    let mut program = Program::new("tensorboard_fashion_mnist", &["--out=results", "--steps=1000"]);
    let folder = program.path("results");
    let said = Said::of(program.command.output().unwrap());
    assert!(said.stdout.starts_with("generated digits (seed 42)"), "{said:?}");
    assert!(said.stdout.contains("step 1000: loss ") && said.code == Some(0), "{said:?}");
    for file in ["projector_config.pbtxt", "00000/default/tensors.tsv", "00000/default/sprite.png"] {
        assert!(folder.join(file).is_file(), "there is no {file}");
    }
}

#[test]
fn programs_about_language_learn_what_they_promise() {
    for (name, picture) in
        [("classify_names", "confusion.svg"), ("generate_names", "loss.svg"), ("translate", "attention.svg")]
    {
        let mut program = Program::new(name, &["--quick", "--out=results"]);
        let picture = program.path("results").join(picture);
        let said = Said::of(program.command.output().unwrap());
        assert!(said.stdout.starts_with("data: ") && said.code == Some(0), "{said:?}");
        assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg"), "{}", picture.display());
    }
}

/// Writes names of languages into the folder `names` of a program.
fn write_names(program: &Program, languages: &[(&str, &str)]) {
    fs::create_dir(program.path("names")).unwrap();
    for (language, names) in languages {
        fs::write(program.path("names").join(format!("{language}.txt")), names).unwrap();
    }
}

#[test]
fn a_language_without_names_is_refused() {
    for name in ["classify_names", "generate_names"] {
        let program = Program::new(name, &["--quick", "--data=names"]);
        write_names(&program, &[("Czech", "Novak\n"), ("Polish", "\n")]);
        program.run().assert_refused(&["Polish.txt` has no names", "remove the file"]);
    }
}

#[test]
fn names_are_read_without_their_accents() {
    let mut program = Program::new("classify_names", &["--quick", "--data=names", "--out=results"]);
    write_names(&program, &[("French", "Éluard\nBe\u{301}la\n"), ("Polish", "Ślusarski\nŁoś\n")]);

    program.command.output().unwrap(); // writes the names, and then learns too little from four of them

    let written = |language: &str| fs::read_to_string(program.path("results/names").join(language)).unwrap();
    assert_eq!(written("French.txt"), "Eluard\nBela\n");
    assert_eq!(written("Polish.txt"), "Slusarski\nLos\n");
}

/// Sends SIGINT, as Ctrl-C does.
fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn ctrl_c_saves_what_was_trained() {
    let arguments = ["--epochs=1000000", "--batch-size=500", "--threads=1", "--out=results", "--profile=profile"];
    let mut program = Program::new("mnist_cnn", &arguments);
    let mut child = program.command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("epoch  train loss") {
        assert_ne!(stdout.read_line(&mut seen).unwrap(), 0, "it ended: {seen}");
    }
    interrupt(&child);
    stdout.read_to_string(&mut seen).unwrap();
    let said = Said::of_child(child, seen);
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(said.stderr.contains("stopping after this batch"), "{said:?}");
    assert!(said.stdout.contains("stopped after ") && said.stdout.contains("are in results"), "{said:?}");
    assert_saved(&program.path("results"));
    for file in ["trace.json", "memory.svg"] {
        assert!(program.path("profile").join(file).is_file(), "there is no {file}");
    }
}

#[test]
fn a_training_that_is_killed_again_and_again_ends_with_the_same_weights() {
    let arguments = ["--out=results", "--save-every=7", "--tensorboard", "--resume"];
    let weights = |program: &Program| fs::read(program.path("results/model.safetensors")).unwrap();
    let mut whole = mnist_cnn(&["--out=results"]);
    let folder = whole.path("results");
    assert!(whole.command.output().unwrap().status.success());
    let expected = fs::read(folder.join("model.safetensors")).unwrap();

    let mut killed = mnist_cnn(&arguments);
    for kill in 0..4 {
        let checkpoints = killed.path("results/checkpoints");
        let mut child = killed.command.spawn().unwrap();
        let n_files = || fs::read_dir(&checkpoints).map_or(0, |files| files.count());
        while n_files() <= kill / 2 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let said = Said::of(killed.command.output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(weights(&killed) == expected, "other weights");
}

/// Checks that the weights can be loaded, and that the report lists the epochs that were trained.
fn assert_saved(results: &Path) {
    let weights = pagelock::nn::load_safetensors(results.join("model.safetensors")).unwrap();
    assert!(!weights.is_empty());
    let report: serde_json::Value = serde_json::from_slice(&fs::read(results.join("report.json")).unwrap()).unwrap();
    assert!(report["test_accuracy"].is_null(), "nothing was tested: {report}");
    assert!(!report["epochs"].as_array().unwrap().is_empty(), "{report}");
}

#[test]
fn variables_that_say_nothing_sensible_are_errors_that_name_them() {
    for value in ["many", "0", "-2", "1.5", "99999999999999999999"] {
        let said = Program::new("tensors", &[]).env("PAGELOCK_NUM_THREADS", value).run();
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stderr.contains("PAGELOCK_NUM_THREADS") && said.stderr.contains(value), "{said:?}");
    }
    for value in ["plenty", "-1", "8 potatoes"] {
        let said = Program::new("tensors", &[]).env("PAGELOCK_HOST_LIMIT", value).run();
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.stderr.contains("PAGELOCK_HOST_LIMIT") && said.stderr.contains(value), "{said:?}");
    }
    for value in ["maybe", "2", "never"] {
        mnist_cnn(&[]).env("PAGELOCK_OFFLINE", value).run().assert_refused(&["PAGELOCK_OFFLINE", value, "1"]);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    mnist_cnn(&[]).env("PAGELOCK_DATA", path).run().assert_refused(&["PAGELOCK_DATA", path, "not a folder"]);
}

#[test]
fn variables_that_are_empty_are_as_if_they_were_not_set() {
    let program = Program::new("tensors", &[]).env("PAGELOCK_NUM_THREADS", "").env("PAGELOCK_HOST_LIMIT", "");
    assert_eq!(program.run().code, Some(0));
}

#[test]
fn a_program_that_sets_its_threads_does_not_ask_the_variable() {
    let said = mnist_cnn(&["--out", "results"]).env("PAGELOCK_NUM_THREADS", "many").run();
    assert_eq!(said.code, Some(0), "{said:?}");
}
