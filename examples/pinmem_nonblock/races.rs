//! The guide's races, tried many times: safe code corrupts nothing, since every access waits for the copies of its
//! memory.
//!
//! The device is kept busy before each copy, so that the copy is in flight when the program accesses its memory. A
//! control forces a race with `unsafe`, which shows that the tries would see one. Programs that do not compile are
//! quoted from a test of `pagelock-cuda`, which checks the compiler's messages.

use std::{env, process::Command};

use anyhow::{Result, ensure};
use pagelock::{
    cuda::{self, DeviceBuffer, Stream, software},
    memory::HostBuffer,
    prelude::*,
};
use serde::Serialize;

use crate::place::{Place, Work};

const FLOATS: usize = 1 << 20; // as in PyTorch's script
const COMPUTED: usize = 1 << 22;

/// The results of all races.
#[derive(Serialize)]
pub(crate) struct Races {
    pub(crate) tried: Vec<Race>,
    pub(crate) control: Race,
    /// The sanitizer's messages about the control.
    pub(crate) sanitizer: Vec<String>,
}

#[derive(Serialize)]
pub(crate) struct Race {
    pub(crate) what: &'static str,
    pub(crate) tries: usize,
    /// How often the copy was running, or had not begun, when the program accessed its memory.
    pub(crate) in_flight: usize,
    pub(crate) corrupted: usize,
    /// PyTorch's name of the same race, in the file of its figures; it tries 20 times.
    pub(crate) torch: Option<&'static str>,
}

/// A race that does not compile: the program, and the compiler's message.
pub(crate) struct Refused {
    pub(crate) what: &'static str,
    pub(crate) program: &'static str,
    pub(crate) compiler: &'static str,
}

/// The guide's two races, as programs that do not compile.
pub(crate) const REFUSED: [Refused; 2] = [
    Refused {
        what: "Changing the source of a copy in flight",
        program: include_str!("../../crates/cuda/tests/ui/rustc-1.95/source_changed_in_flight.rs"),
        compiler: include_str!("../../crates/cuda/tests/ui/rustc-1.95/source_changed_in_flight.stderr"),
    },
    Refused {
        what: "Reading the target of a copy in flight",
        program: include_str!("../../crates/cuda/tests/ui/rustc-1.95/target_read_in_flight.rs"),
        compiler: include_str!("../../crates/cuda/tests/ui/rustc-1.95/target_read_in_flight.stderr"),
    },
];

/// Tries all races that compile.
pub(crate) fn run(place: &Place) -> Result<Races> {
    let mut arena = Arena::new(place)?;
    let changed = ("source changed in flight", Some("hazard.pinned_source_corrupted_of_20"));
    let read = ("target read in flight", Some("hazard.d2h_wrong_of_20"));
    let dropped = ("source dropped in flight, its memory reused", None);
    let tried = vec![
        arena.try_often(place, changed, Arena::source_changed)?,
        arena.try_often(place, read, Arena::target_read)?,
        arena.try_often(place, dropped, Arena::source_dropped)?,
    ];
    let corrupted: usize = tried.iter().map(|race| race.corrupted).sum();
    ensure!(corrupted == 0, "safe code corrupted {corrupted} copies, which must not be possible");
    let control = arena.try_often(place, ("control: the first race, forced with `unsafe`", None), Arena::control)?;
    Ok(Races { tried, control, sanitizer: sanitize(place)? })
}

/// Runs the control once on the same device, in a child process whose sanitizer looks for races.
fn sanitize(place: &Place) -> Result<Vec<String>> {
    place.doing("the control, with PAGELOCK_SANITIZE=1");
    let device = if place.is_gpu { &[][..] } else { &["--software"] };
    let output = Command::new(env::current_exe()?).arg("--race").args(device).env("PAGELOCK_SANITIZE", "1").output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let races: Vec<_> = said.lines().filter(|line| line.starts_with("pagelock: ")).map(str::to_owned).collect();
    ensure!(!races.is_empty(), "PAGELOCK_SANITIZE=1 did not report the race that was forced; standard error: {said}");
    Ok(races)
}

/// Runs the control once.
pub(crate) fn force(place: &Place) -> Result<()> {
    Arena::new(place)?.control(1.0).map(drop)
}

/// The result of one try.
struct Try {
    in_flight: bool,
    corrupted: bool,
}

/// The device and the buffers of all tries.
struct Arena<'a> {
    cuda: cuda::Device,
    gpu: Device,
    stream: Stream, // the stream that moves the device's tensors
    work: &'a Work,
    numbers: DeviceBuffer<f32>, // for the work
}

impl<'a> Arena<'a> {
    /// Uses the GPU, or a software device that does its work as late as possible: only when the host waits for it.
    fn new(place: &'a Place) -> Result<Self> {
        let execution = software::Execution::Stepped { haste: 0 };
        let cuda = match place.is_gpu {
            true => place.cuda.clone(),
            false => cuda::Device::software(software::Config { execution, ..Default::default() })?,
        };
        let gpu = Device::try_from(&cuda)?;
        let Device::Cuda(device) = &gpu else { unreachable!("it was made of a device of CUDA") };
        let stream = device.stream();
        let numbers = stream.zeros(COMPUTED)?;
        Ok(Self { cuda, gpu, stream, work: &place.work, numbers })
    }

    /// Each try has a value of its own, so that bytes left over from an earlier try do not count as correct.
    fn try_often(
        &mut self,
        place: &Place,
        (what, torch): (&'static str, Option<&'static str>),
        attempt: impl Fn(&mut Self, f32) -> Result<Try>,
    ) -> Result<Race> {
        place.doing(what);
        let tries = place.sizes.tries;
        let mut race = Race { what, tries, in_flight: 0, corrupted: 0, torch };
        for number in 1..=tries {
            let Try { in_flight, corrupted } = attempt(self, number as f32)?;
            race.in_flight += usize::from(in_flight);
            race.corrupted += usize::from(corrupted);
        }
        Ok(race)
    }

    /// Queues work, so that the next copy has to wait.
    fn keep_busy(&mut self) -> Result<()> {
        Ok(self.work.queue(&self.stream, &mut self.numbers)?)
    }

    fn is_in_flight(&self) -> Result<bool> {
        Ok(!self.stream.is_idle()?)
    }

    fn source_changed(&mut self, value: f32) -> Result<Try> {
        let source = Tensor::full([FLOATS], value)?.pin_memory_for(&self.gpu)?;
        self.keep_busy()?;
        let copy = source.to(&self.gpu)?;
        let in_flight = self.is_in_flight()?;
        source.zero_()?; // waits for the copy
        Ok(Try { in_flight, corrupted: differs(&copy.to_vec()?, value) })
    }

    fn target_read(&mut self, value: f32) -> Result<Try> {
        let on_device = Tensor::full([FLOATS], value)?.to(&self.gpu)?;
        self.keep_busy()?;
        let copy = on_device.to(&Device::Cpu)?;
        let in_flight = self.is_in_flight()?;
        Ok(Try { in_flight, corrupted: differs(&copy.to_vec()?, value) }) // reading waits for the copy
    }

    fn source_dropped(&mut self, value: f32) -> Result<Try> {
        let source = Tensor::full([FLOATS], value)?.pin_memory_for(&self.gpu)?;
        self.keep_busy()?;
        let copy = source.to(&self.gpu)?;
        let in_flight = self.is_in_flight()?;
        drop(source); // waits for the copy; then the pool may reuse the memory
        let _others = Tensor::full([FLOATS], -1.0)?.pin_memory_for(&self.gpu)?;
        Ok(Try { in_flight, corrupted: differs(&copy.to_vec()?, value) })
    }

    /// Changes the source of a copy in flight, which safe code cannot do.
    fn control(&mut self, value: f32) -> Result<Try> {
        let mut source = HostBuffer::allocate(self.cuda.page_locked(), 4 * FLOATS)?;
        source.bytes_mut()?.fill(value as u8);
        let mut target = self.stream.allocate::<u8>(4 * FLOATS)?;
        self.keep_busy()?;
        self.stream.upload_from(&source, &mut target)?;
        let in_flight = self.is_in_flight()?;
        // SAFETY: the buffer is live and has this length, and nothing else in the program uses it. The device may be
        // reading it: that is the race that this control shows, and its effects are only counted.
        unsafe { source.as_ptr().as_ptr().write_bytes(0, source.len_bytes()) };
        let arrived = self.stream.read(&target)?;
        Ok(Try { in_flight, corrupted: arrived.iter().any(|&byte| byte != value as u8) })
    }
}

fn differs(arrived: &[f32], sent: f32) -> bool {
    arrived.iter().any(|&element| element != sent)
}
