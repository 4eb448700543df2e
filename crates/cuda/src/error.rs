//! Everything that can go wrong, with the numbers and the way out in the text.

use std::{fmt, io, path::PathBuf};

use pagelock_memory::{ByteSize, Held};

use crate::{
    driver::{Failure, Status},
    host_function,
    sanitize::Race,
};

/// The result of everything fallible in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a device, its memory or a copy could not be had.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA on this machine, or it cannot be used.
    #[error("no CUDA here: {0}")]
    Absent(Absence),

    /// A device of that number does not exist.
    #[error("there is no device {ordinal}: {}; check CUDA_VISIBLE_DEVICES", seen(*count))]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many devices there are.
        count: u32,
    },

    /// The driver refused.
    #[error(transparent)]
    Driver(Failure),

    /// Source and target of a copy differ in length.
    #[error("cannot copy {source_len} elements to {target_len}: the lengths differ; take a slice of the longer one")]
    Length {
        /// Elements of the source.
        source_len: usize,
        /// Elements of the target.
        target_len: usize,
    },

    /// The elements take more bytes than can be counted.
    #[error("{len} elements of {element} are more bytes than the address space has")]
    TooLong {
        /// How many elements.
        len: usize,
        /// What one takes.
        element: ByteSize,
    },

    /// Something was used with a stream of another device.
    #[error("the {what} is on device {device}, the {} on device {stream}: {}", what.used_with(), what.way_out())]
    OtherDevice {
        /// What it was.
        what: OnDevice,
        /// Which device has it.
        device: u32,
        /// Which device has the stream.
        stream: u32,
    },

    /// Something was used with a stream of a device whose driver knows nothing of it.
    #[error("the {what} is of another driver than the {}: {}", what.used_with(), what.way_out_of_driver())]
    OtherDriver {
        /// What it was.
        what: OnDevice,
    },

    /// The time between two events of different devices was asked for.
    #[error(
        "one event is of device {start}, the other of device {end}, and their clocks differ: take both on one device, or \
         use a `Timeline`, which compares clocks"
    )]
    OtherClock {
        /// Which device has the first.
        start: u32,
        /// Which device has the second.
        end: u32,
    },

    /// The time of an event was asked for that was recorded without.
    #[error("the event was recorded without its time: record it with `Stream::record_timed`")]
    Untimed,

    /// There is nothing to compile kernels with.
    #[error("no NVRTC to compile kernels: {0}")]
    NoCompiler(CompilerAbsence),

    /// Something else was given for compiled kernels.
    #[error("{len_bytes} bytes that are no archive of kernels, or not all of one: write it anew")]
    NoArchive {
        /// How many were given.
        len_bytes: usize,
    },

    /// A library of NVIDIA's is not there.
    #[error(transparent)]
    NoLibrary(#[from] LibraryAbsence),

    /// A library of NVIDIA's refused.
    #[error("{library} refuses {what}: {call} returned {status}")]
    Library {
        /// Which library.
        library: &'static str,
        /// What it was asked for, with its sizes.
        what: String,
        /// Which of its functions refused.
        call: &'static str,
        /// What that returned.
        status: i32,
    },

    /// A kernel's source does not compile.
    #[error("cannot compile {name} (status {status} of NVRTC):\n{log}")]
    Compile {
        /// What the source is called.
        name: String,
        /// What NVRTC returned.
        status: i32,
        /// What it said, with the lines of the source.
        log: String,
    },

    /// A module has no kernel of that name.
    #[error("`{module}` has no kernel `{kernel}`; check the name, and that it is `extern \"C\" __global__`")]
    NoKernel {
        /// What was asked for.
        kernel: String,
        /// Where.
        module: String,
    },

    /// A kernel takes something else than its signature says.
    #[error(
        "kernel `{kernel}` has parameters of {found:?} bytes, its signature declares {declared:?}: make them agree, 8 \
         bytes for a buffer"
    )]
    Signature {
        /// Which kernel.
        kernel: String,
        /// Bytes of its parameters.
        found: Vec<usize>,
        /// Bytes of the signature's.
        declared: Vec<usize>,
    },

    /// Arguments do not meet what a kernel requires.
    #[error("kernel `{kernel}` requires that {requirement}")]
    Arguments {
        /// Which kernel.
        kernel: String,
        /// What is not met.
        requirement: &'static str,
    },

    /// A block of that size cannot be launched.
    #[error(
        "a block of {block:?} threads cannot be launched: the device runs 1 to {most}; use smaller blocks and more"
    )]
    Launch {
        /// Threads of a block, in three dimensions.
        block: [u32; 3],
        /// The most altogether.
        most: u32,
    },

    /// The device has no memory left.
    #[error(
        "device {device} has no {asked} left: buffers hold {live} of {reserved}, {free} of {total} are free for \
         all processes{}; drop buffers, use smaller batches or another device",
        largest(holders)
    )]
    OutOfMemory {
        /// Which device.
        device: u32,
        /// What was asked for.
        asked: ByteSize,
        /// What this program's buffers hold.
        live: ByteSize,
        /// What this program has taken of the device.
        reserved: ByteSize,
        /// What is left for everybody.
        free: ByteSize,
        /// All of it.
        total: ByteSize,
        /// Who holds most of what buffers hold, largest first, at most three; see [`holder`](pagelock_memory::holder).
        holders: Vec<Held>,
    },

    /// Host memory could not be had, or the limit on device memory was reached.
    #[error(transparent)]
    Memory(#[from] pagelock_memory::Error),

    /// The device cannot say any more whether it uses some memory, so that memory was leaked, and counted.
    #[error("{leaked} were leaked, because the device cannot say whether it is done with them: {failure}")]
    Lost {
        /// How much.
        leaked: ByteSize,
        /// What the driver said.
        failure: Failure,
    },

    /// `unsafe` code used memory that a copy was using; found with `PAGELOCK_SANITIZE=1`, on stderr too.
    #[error("{0}")]
    Raced(Box<Race>),

    /// A function that a stream called on the host panicked.
    #[error("a host function panicked: {message}")]
    HostPanicked {
        /// What it said.
        message: String,
    },

    /// A host function tried to use a device.
    #[error("a host function cannot use devices: let another thread do it, and only wake it from here")]
    InsideHostFunction,

    /// The stream is capturing work for a graph.
    #[error(
        "work is being captured for a graph: only kernels, fills and copies on the device can be part of it, on the \
         stream and the thread of the capture"
    )]
    Capturing,

    /// A graph was not given all buffers that it uses.
    #[error("the graph uses {used} buffers, and only {given} of them were given to it: give it all")]
    NotOwned {
        /// How many its work uses.
        used: usize,
        /// How many of these it was given.
        given: usize,
    },

    /// A graph cannot take over the work of another one.
    #[error("the new graph has another shape than the old one: make a graph of its own from it")]
    GraphShape,

    /// The environment names no folder for a cache.
    #[error(
        "${variable} is `{}`, which is no folder; name a folder, leave the variable empty to keep nothing, or unset it",
        path.display()
    )]
    CacheVariable {
        /// Which variable.
        variable: &'static str,
        /// What it says.
        path: PathBuf,
    },

    /// A file could not be read.
    #[error("cannot read the file: {}", unreadable(source))]
    File {
        /// What the system said.
        r#source: io::Error,
    },

    /// Rows do not fit the buffer.
    #[error(
        "{rows} rows of {width} elements, {stride} apart, need {needed} elements with the stride at least the width, \
         but there are {len}"
    )]
    Rows {
        /// How many rows.
        rows: usize,
        /// Elements of a row.
        width: usize,
        /// Elements from one row's start to the next.
        stride: usize,
        /// Elements from the first row's start to the last one's end.
        needed: usize,
        /// Elements of the buffer.
        len: usize,
    },

    /// A buffer that a graph has too cannot be cut into parts.
    #[error("a graph has this buffer too, so that it cannot be cut into parts: cut it before, or drop the graph")]
    Shared,

    /// A range is not inside the buffer.
    #[error("the range {start}..{end} is not inside a buffer of {len} elements")]
    Range {
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
        /// Elements of the buffer.
        len: usize,
    },

    /// The buffer is not page-locked.
    #[error("the buffer is {kind}: only page-locked memory can be copied while the program goes on")]
    NotPageLocked {
        /// Which kind of memory it is.
        kind: pagelock_memory::MemoryKind,
    },
}

pagelock_memory::debug_is_the_message!(Error CompilerAbsence LibraryAbsence Absence);

// Not by `#[from]`, which would make them causes too: the text says them already.
impl From<Absence> for Error {
    fn from(absence: Absence) -> Self {
        Error::Absent(absence)
    }
}

impl From<CompilerAbsence> for Error {
    fn from(absence: CompilerAbsence) -> Self {
        Error::NoCompiler(absence)
    }
}

/// What belongs to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDevice {
    /// A buffer.
    Buffer,
    /// A kernel.
    Kernel,
    /// A graph.
    Graph,
    /// Work captured for a graph.
    Recording,
    /// An event.
    Event,
    /// A device whose memory is to be accessed.
    Peer,
    /// A library of NVIDIA's, started for a device.
    Library,
}

impl fmt::Display for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnDevice::Buffer => "buffer",
            OnDevice::Kernel => "kernel",
            OnDevice::Graph => "graph",
            OnDevice::Recording => "recording",
            OnDevice::Event => "event",
            OnDevice::Peer => "peer",
            OnDevice::Library => "library",
        })
    }
}

impl OnDevice {
    /// What it was used with.
    fn used_with(self) -> &'static str {
        match self {
            OnDevice::Recording => "graph",
            OnDevice::Peer => "device",
            _ => "stream",
        }
    }

    fn way_out(self) -> &'static str {
        match self {
            OnDevice::Buffer => {
                "use a stream of the buffer's device, or copy the buffer to the other device with `Stream::copy`"
            }
            OnDevice::Kernel => "use a stream of the kernel's device, or compile it for the other device too",
            OnDevice::Graph => "launch it on a stream of its device, or capture its work on the other device",
            OnDevice::Recording => "capture the work on the graph's device",
            OnDevice::Event | OnDevice::Peer => "use one of the same device",
            OnDevice::Library => "use a stream of its device, or start the library for the other device too",
        }
    }

    fn way_out_of_driver(self) -> &'static str {
        match self {
            OnDevice::Buffer => "copy it through the host, with `Stream::read` on a stream of its own device",
            OnDevice::Event => "wait for it on the host, with `Event::wait`",
            OnDevice::Peer => "copy through the host",
            _ => self.way_out(),
        }
    }
}

fn unreadable(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => "it ends before what was asked for; it was cut short: get it again".to_owned(),
        _ => source.to_string(),
    }
}

/// For the end of a clause.
fn largest(holders: &[Held]) -> String {
    let all: Vec<_> = holders.iter().map(ToString::to_string).collect();
    if all.is_empty() { String::new() } else { format!("; largest holders: {}", all.join(", ")) }
}

fn seen(count: u32) -> String {
    match count {
        0 => "the driver sees none".to_owned(),
        1 => "the driver sees one, number 0".to_owned(),
        n => format!("the driver sees {n}, numbers 0 to {}", n - 1),
    }
}

/// Why there is no compiler.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompilerAbsence {
    /// It was not found.
    #[error(
        "the dynamic linker finds none of {names}, and {}; install the CUDA toolkit or `pip install \
         nvidia-cuda-nvrtc`, or name the library's folder in PAGELOCK_NVRTC",
        looked_in(folders)
    )]
    NoLibrary {
        /// What the dynamic linker was asked for.
        names: String,
        /// Where else it was looked for.
        folders: Vec<String>,
    },
    /// It is not where the environment says.
    #[error(
        "$PAGELOCK_NVRTC is `{folder}`, which has none of {names} that can be loaded; name the library's folder, or unset the \
         variable"
    )]
    NotInFolder {
        /// What the variable says.
        folder: String,
        /// What was looked for there.
        names: String,
    },
    /// It lacks a function.
    #[error("the library has no `{name}`; install a newer one")]
    NoSymbol {
        /// Which.
        name: &'static str,
    },
}

/// Why a library of NVIDIA's is not used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryAbsence {
    /// It was not found.
    #[error(
        "no {library}: the dynamic linker finds none of {names}, and {}; {install}, or name the library's folder in {variable}",
        looked_in(folders)
    )]
    NoLibrary {
        /// Which library.
        library: &'static str,
        /// What the dynamic linker was asked for.
        names: String,
        /// Where else it was looked for.
        folders: Vec<String>,
        /// What gets it.
        install: &'static str,
        /// The variable that names its folder.
        variable: &'static str,
    },
    /// It is not where the environment says.
    #[error(
        "no {library}: ${variable} is `{folder}`, which has none of {names} that can be loaded; name the library's folder, or \
         unset the variable"
    )]
    NotInFolder {
        /// Which library.
        library: &'static str,
        /// What was looked for there.
        names: String,
        /// The variable that names its folder.
        variable: &'static str,
        /// What it says.
        folder: String,
    },
    /// It lacks a function.
    #[error("{library} has no `{name}`; install a newer one")]
    NoSymbol {
        /// Which library.
        library: &'static str,
        /// Which function.
        name: &'static str,
    },
    /// It does not start on this device.
    #[error("{library} does not start: it returned {status}; check that it fits the driver and the device")]
    NotStarted {
        /// Which library.
        library: &'static str,
        /// What it returned.
        status: i32,
    },
    /// The device is not one of CUDA's.
    #[error("{library} works on GPUs only, and the device is made of software")]
    OtherDevice {
        /// Which library.
        library: &'static str,
    },
}

fn looked_in(folders: &[String]) -> String {
    match folders {
        [] => "there is no CUDA toolkit and no Python package that could have it".to_owned(),
        folders => format!("it is not in {}", folders.join(", ")),
    }
}

/// Why there is no CUDA.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absence {
    /// The dynamic linker finds no driver library.
    #[error(
        "the dynamic linker finds no {looked_for}; install NVIDIA's driver, or start the container with `--gpus all`"
    )]
    NoLibrary {
        /// Which names were tried.
        looked_for: &'static str,
    },
    /// The library is the one that programs are linked against where there is no driver.
    #[error(
        "the driver library found first is a stub; take the toolkit's `stubs` folder off LD_LIBRARY_PATH, or install \
         NVIDIA's driver"
    )]
    Stub,
    /// The driver works and sees no device.
    #[error("the driver sees no device; check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver is older than this crate needs.
    #[error("the driver speaks CUDA {}.{}, at least {}.{} is needed; update NVIDIA's driver",
        .found.0, .found.1, .needed.0, .needed.1)]
    TooOld {
        /// What it speaks.
        found: (u32, u32),
        /// What is needed.
        needed: (u32, u32),
    },
    /// The driver library lacks a function.
    #[error("the driver library has no `{name}`; update NVIDIA's driver")]
    NoSymbol {
        /// Which.
        name: &'static str,
    },
    /// The driver did not start.
    #[error("the driver does not start: {0}")]
    NotStarted(Failure),
}
/// What a driver refused; where it refuses everything, inside a host function, that is said.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let is_refused = failure.status == Status::NOT_PERMITTED && host_function::is_inside();
        if is_refused { Error::InsideHostFunction } else { Error::Driver(failure) }
    }
}
