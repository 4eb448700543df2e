//! A training that is resumed from a checkpoint ends with the same bits, whether it was stopped between two steps or
//! killed (SIGKILL) at any moment, even while a checkpoint was written. Tested on the CPU, and on a GPU if there is
//! one.
//!
//! Not a `#[test]`: the program runs itself as the processes that are killed. With `-- 100` it kills 100 processes on
//! each device, with `-- 200 --device cuda:0` 200 on that device. It needs no other file, so it can be copied to
//! another machine.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagelock_nn::optim::lr_scheduler::{CosineAnnealingLr, LrScheduler, ReduceLrOnPlateau};
use pagelock_nn::optim::{Adam, AveragedModel, GradScaler, Optimizer};
use pagelock_nn::{
    Checkpoint, Checkpoints, Dropout, Forward, Linear, Module, ReLU, Result, SavedCheckpoint, Sequential,
};
use pagelock_tensor::{Device, Tensor, manual_seed, set_num_threads};

const KILLS: usize = 10; // unless an argument says otherwise
const STEPS: u64 = 120;

/// Everything that a checkpoint of a training saves, except for the random generator.
struct Training {
    model: Sequential,
    averaged: AveragedModel<Sequential>,
    opt: Adam,
    scheduler: LrScheduler<CosineAnnealingLr>,
    plateau: ReduceLrOnPlateau,
    scaler: GradScaler,
    total: Tensor,
    device: Device,
}

fn network(device: &Device) -> Result<Sequential> {
    Sequential::new((Linear::new(4, 8)?, ReLU, Dropout::new(0.3), Linear::new(8, 1)?)).to(device)
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let model = network(device)?;
        let mut opt = Adam::new(model.parameters(), 0.1);
        let scheduler = LrScheduler::new(&mut opt, CosineAnnealingLr::new(20))?;
        let scaler = GradScaler::new().init_scale(4.0).growth_interval(3);
        let averaged = AveragedModel::new(network(device)?)?.ema(0.9);
        let (plateau, total) = (ReduceLrOnPlateau::new().patience(1), Tensor::on(device).zeros(())?);
        Ok(Self { model, averaged, opt, scheduler, plateau, scaler, total, device: device.clone() })
    }

    fn step(&mut self) -> Result<()> {
        let x = Tensor::randn([16, 4])?.to(&self.device)?;
        let loss = self.model.forward(&x)?.pow(2.0)?.mean(..)?;
        self.scaler.scale(&loss)?.backward()?;
        self.scaler.step(&mut self.opt)?;
        self.scaler.update();
        self.opt.zero_grad();
        self.scheduler.step(&mut self.opt)?;
        self.plateau.step(&mut self.opt, loss.item()?)?;
        self.total.add_scaled_(&loss.detach(), 1.0)?;
        self.averaged.update_parameters(&self.model)
    }

    fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        Checkpoint::new()
            .model(&self.model)?
            .module("averaged", &self.averaged)?
            .optimizer(&self.opt)?
            .scheduler(&self.scheduler)?
            .plateau(&self.plateau)?
            .scaler(&self.scaler)?
            .random()?
            .tensor("total", &self.total)?
            .value("step", step)
    }

    fn load(&mut self, found: &SavedCheckpoint) -> Result<u64> {
        found.load_model(&self.model)?;
        found.load_module("averaged", &self.averaged)?;
        found.load_optimizer(&mut self.opt)?;
        found.load_scheduler(&mut self.scheduler, &mut self.opt)?;
        found.load_plateau(&mut self.plateau)?;
        found.load_scaler(&mut self.scaler)?;
        found.load_random()?;
        found.load_tensor("total", &self.total)?;
        found.value("step")
    }

    /// The bytes of a checkpoint file of this training.
    fn bits(&self) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let mut all = Checkpoints::open(folder.path()).unwrap();
        all.save(0, self.checkpoint(0).unwrap()).unwrap();
        fs::read(all.latest().unwrap().unwrap().path()).unwrap()
    }

    /// The bytes after all steps of a training that is never stopped.
    fn undisturbed(device: &Device) -> Vec<u8> {
        manual_seed(5);
        let mut training = Training::new(device).unwrap();
        (0..STEPS).for_each(|_| training.step().unwrap());
        training.bits()
    }
}

/// Stops a training after some steps, and resumes it in a new `Training`.
fn stopped_trainings_go_on(device: &Device) {
    let expected = Training::undisturbed(device);
    for stop in [0, 1, 57, STEPS] {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
        manual_seed(5);
        let mut first = Training::new(device).unwrap();
        (0..stop).for_each(|_| first.step().unwrap());
        checkpoints.save(stop, first.checkpoint(stop).unwrap()).unwrap();
        first.step().unwrap(); // must not change the copies in the checkpoint

        let mut resumed = Training::new(device).unwrap();
        let begun = resumed.load(&checkpoints.latest().unwrap().unwrap()).unwrap();
        assert_eq!(begun, stop);
        (begun..STEPS).for_each(|_| resumed.step().unwrap());
        assert!(resumed.bits() == expected, "on {device}, stopped after {stop} steps");
    }
    println!("on {device}, trainings that were stopped go on with the same bits");
}

/// Trains from the newest checkpoint to the end, and saves after each step. Prints the step at which it begins.
fn train(folder: &Path, device: &Device) {
    manual_seed(5);
    let mut checkpoints = Checkpoints::open(folder).unwrap().keep_last(2);
    let mut training = Training::new(device).unwrap();
    let found = checkpoints.latest().unwrap();
    let begun = found.map_or(0, |found| training.load(&found).unwrap());
    println!("begun at {begun}");
    std::io::stdout().flush().unwrap();
    for step in begun + 1..=STEPS {
        training.step().unwrap();
        checkpoints.save(step, training.checkpoint(step).unwrap()).unwrap();
    }
    checkpoints.wait().unwrap();
    fs::write(folder.join("bits"), training.bits()).unwrap();
}

/// Starts a process that trains. Returns the process, and the step at which it began.
fn begin(folder: &Path, device: &str) -> (Child, u64) {
    let mut child = Command::new(env::current_exe().unwrap());
    let mut child = child.args(["train", device]).arg(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let begun = line.trim().strip_prefix("begun at ").and_then(|step| step.parse().ok());
    (child, begun.unwrap_or_else(|| panic!("a training did not begin: {line:?}")))
}

/// Kills trainings `n_kills` times in all, and resumes each after a kill. When one reaches its end, a new one begins.
fn killed_trainings_go_on(device: &Device, n_kills: usize) {
    let expected = Training::undisturbed(device);
    let name = device.to_string();
    let (mut n_killed, mut n_whole, mut n_left) = (0, 0, 0);
    while n_killed < n_kills || n_whole == 0 {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        loop {
            let (mut child, begun) = begin(folder.path(), &name);
            assert!(begun >= last, "a checkpoint of step {last} was lost: {begun}");
            last = begun;
            let (start, delay) = (Instant::now(), Duration::from_micros(n_killed as u64 * 7_919 % 60_000));
            while n_killed < n_kills && start.elapsed() < delay {}
            if n_killed < n_kills {
                child.kill().unwrap(); // SIGKILL
            }
            if child.wait().unwrap().success() {
                break;
            }
            n_killed += 1;
            let is_temporary = |name: std::ffi::OsString| name.to_string_lossy().ends_with(".tmp");
            n_left +=
                fs::read_dir(folder.path()).unwrap().filter(|e| is_temporary(e.as_ref().unwrap().file_name())).count();
        }
        assert!(fs::read(folder.path().join("bits")).unwrap() == expected, "on {name}: other bits");
        n_whole += 1;
    }
    println!(
        "on {name}, {n_killed} kills, {n_left} in the middle of a file: {n_whole} trainings ended with the same bits"
    );
}

/// The named device, or the CPU and, if there is one, a GPU.
fn devices(named: Option<&str>) -> Vec<Device> {
    if let Some(name) = named {
        return vec![name.parse().unwrap_or_else(|error| panic!("--device {name}: {error}"))];
    }
    match Device::cuda(0) {
        Ok(gpu) => vec![Device::Cpu, gpu],
        Err(error) => {
            println!("skipped on a GPU: {error}");
            vec![Device::Cpu]
        }
    }
}

fn main() {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let named = arguments.iter().position(|argument| argument == "--device").map(|place| {
        arguments.remove(place);
        assert!(place < arguments.len(), "--device takes a name, such as cuda:0");
        arguments.remove(place)
    });
    arguments.retain(|argument| !argument.starts_with("--")); // those of `cargo test`
    set_num_threads(1);
    if let ["train", device, folder] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return train(Path::new(folder), &device.parse().unwrap());
    }
    let n_kills = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    for device in devices(named.as_deref()) {
        stopped_trainings_go_on(&device);
        killed_trainings_go_on(&device, n_kills);
    }
}
