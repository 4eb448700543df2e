//! The errors of this crate. Their texts have the numbers and a fix.

use std::{fmt, io};

use pagelock_memory::{ByteSize, Held};

use crate::{
    driver::{Failure, Status},
    host_function,
    sanitize::Race,
};

/// The result of the fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation of this crate failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA on this machine, or it cannot be used.
    #[error("CUDA is not available: {0}")]
    Absent(Absence),

    /// A device of that number does not exist.
    #[error("there is no device {ordinal}: {}; check CUDA_VISIBLE_DEVICES", seen(*count))]
    NoSuchDevice {
        /// The requested number.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },

    /// A call of the driver failed.
    #[error(transparent)]
    Driver(Failure),

    /// An impossible request: lengths that differ, a range outside of a buffer, arguments that do not fit a kernel. The
    /// text has the numbers.
    #[error("{0}")]
    Argument(String),

    /// Something was used with a stream of another device.
    #[error("the {what} is on device {device}, the {} on device {stream}: {}", what.used_with(), what.fix())]
    OtherDevice {
        /// The kind of object.
        what: OnDevice,
        /// The device of the object.
        device: u32,
        /// The device of the stream.
        stream: u32,
    },

    /// Something was used with a stream whose driver cannot use the object's handles.
    #[error("the {what} belongs to another driver than the {}: {}", what.used_with(), what.fix_for_other_driver())]
    OtherDriver {
        /// The kind of object.
        what: OnDevice,
    },

    /// NVRTC, which compiles kernels, cannot be used.
    #[error("{0}")]
    NoCompiler(LibraryAbsence),

    /// A library of NVIDIA's cannot be used.
    #[error(transparent)]
    NoLibrary(#[from] LibraryAbsence),

    /// A call of a library of NVIDIA's failed.
    #[error("{library} refuses {what}: {call} returned {status}")]
    Library {
        /// The name of the library.
        library: &'static str,
        /// The requested operation, with its sizes.
        what: String,
        /// The function that failed.
        call: &'static str,
        /// The status that it returned.
        status: i32,
    },

    /// A library of NVIDIA's is not used for such an operation, or its sizes do not match.
    #[error("{library} is not used for {what}: {requirement}")]
    Unsupported {
        /// The name of the library.
        library: &'static str,
        /// The requested operation, with its sizes.
        what: String,
        /// The condition that it does not meet.
        requirement: &'static str,
    },

    /// A kernel's source does not compile.
    #[error("cannot compile {name} (status {status} of NVRTC):\n{log}")]
    Compile {
        /// The name of the source.
        name: String,
        /// The status that NVRTC returned.
        status: i32,
        /// The log of NVRTC, with the lines of the source.
        log: String,
    },

    /// The device has no memory left.
    #[error(
        "device {device} cannot allocate {asked}: buffers hold {live} of the reserved {reserved}, {free} of {total} \
         are free for all processes{}; drop buffers, use smaller batches or another device",
        largest(holders)
    )]
    OutOfMemory {
        /// The device.
        device: u32,
        /// The requested size.
        asked: ByteSize,
        /// The size of this program's buffers.
        live: ByteSize,
        /// The memory that this program has allocated from the driver.
        reserved: ByteSize,
        /// The free memory of the device, for all processes.
        free: ByteSize,
        /// All memory of the device.
        total: ByteSize,
        /// The largest holders of buffers, largest first, at most four; see [`holder`](pagelock_memory::holder).
        holders: Vec<Held>,
    },

    /// An allocation of host memory failed, or the budget of device memory is exhausted.
    #[error(transparent)]
    Memory(#[from] pagelock_memory::Error),

    /// The driver can no longer say whether the device uses some memory. The memory was leaked, and counted.
    #[error("{leaked} were leaked, because the driver cannot say whether the device is done with them: {failure}")]
    Lost {
        /// The size of the leaked memory.
        leaked: ByteSize,
        /// The failure of the driver.
        failure: Failure,
    },

    /// `unsafe` code used memory that a copy was using. Found with `PAGELOCK_SANITIZE=1`, and printed to stderr too.
    #[error("{0}")]
    Raced(Box<Race>),

    /// A function that a stream called on the host panicked.
    #[error("a host function panicked: {message}")]
    HostPanicked {
        /// The message of the panic.
        message: String,
    },

    /// A host function tried to use a device.
    #[error("a host function cannot use devices: let another thread do it, and only wake it from here")]
    InsideHostFunction,

    /// The stream is capturing work for a graph.
    #[error(
        "work is being captured for a graph: only kernels, fills and copies on the device can be part of it, on the \
         stream and the thread of the capture, and only these can use buffers that are made there"
    )]
    Capturing,

    /// A graph was not given all buffers that it uses.
    #[error("the graph uses {used} buffers, but got {given} of them: pass all of them to `Recording::with`")]
    NotOwned {
        /// The number of buffers that its work uses.
        used: usize,
        /// How many of these buffers it was given.
        given: usize,
    },

    /// A graph cannot be updated with work of another shape.
    #[error("the recording has another shape than the graph: make a new graph from the recording")]
    GraphShape,

    /// A file could not be read.
    #[error("cannot read the file: {}", unreadable(source))]
    File {
        /// The error of the operating system.
        r#source: io::Error,
    },

    /// A buffer that a graph shares cannot be cut into parts.
    #[error("a graph shares this buffer: split it before the capture, or drop the graph")]
    Shared,
}

pagelock_memory::debug_is_the_message!(Error LibraryAbsence Absence);

impl Error {
    /// Source and target of a copy differ in length.
    pub(crate) fn lengths(source: usize, target: usize) -> Self {
        Error::Argument(format!(
            "cannot copy {source} elements to {target}: the lengths differ; take a slice of the longer one"
        ))
    }

    /// The elements have more bytes than the address space.
    pub(crate) fn too_long(len: usize, element: ByteSize) -> Self {
        Error::Argument(format!("{len} elements of {element} are more bytes than the address space has"))
    }

    /// A range is not inside a buffer of `len` elements.
    pub(crate) fn range(start: usize, end: usize, len: usize) -> Self {
        Error::Argument(format!("the range {start}..{end} is not inside a buffer of {len} elements"))
    }
}

// No `#[from]`: it would make the absence the error's source, and error chains would print its text twice.
impl From<Absence> for Error {
    fn from(absence: Absence) -> Self {
        Error::Absent(absence)
    }
}

/// The kinds of objects that belong to one device.
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
    /// A device whose memory another device accesses.
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
    /// The kind of object with which it was used.
    fn used_with(self) -> &'static str {
        match self {
            OnDevice::Recording => "graph",
            OnDevice::Peer => "device",
            _ => "stream",
        }
    }

    fn fix(self) -> &'static str {
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

    fn fix_for_other_driver(self) -> &'static str {
        match self {
            OnDevice::Buffer => "copy it through the host, with `Stream::read` on a stream of its own device",
            OnDevice::Event => "wait for it on the host, with `Event::wait`",
            OnDevice::Peer => "copy through the host",
            _ => self.fix(),
        }
    }
}

fn unreadable(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            "it ends before the requested bytes and may be truncated: check the range, or get the file again".to_owned()
        }
        _ => source.to_string(),
    }
}

/// The holders as text for the end of a clause.
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

/// Why a library of NVIDIA's cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryAbsence {
    /// The library was not found.
    #[error(
        "no {library}: the dynamic linker finds none of {names}, and {}; {install}, or name the library's folder in {variable}",
        looked_in(folders)
    )]
    NoLibrary {
        /// The name of the library.
        library: &'static str,
        /// The names that the dynamic linker tried.
        names: String,
        /// The other folders that were searched.
        folders: Vec<String>,
        /// How to install the library.
        install: &'static str,
        /// The variable that names its folder.
        variable: &'static str,
    },
    /// The library is not in the folder that the environment names.
    #[error(
        "no {library}: ${variable} is `{folder}`, but none of {names} can be loaded from there; name the library's \
         folder, or unset the variable"
    )]
    NotInFolder {
        /// The name of the library.
        library: &'static str,
        /// The names that were tried there.
        names: String,
        /// The variable that names its folder.
        variable: &'static str,
        /// The value of the variable.
        folder: String,
    },
    /// The library lacks a function.
    #[error("{library} has no `{name}`; install a newer one")]
    NoSymbol {
        /// The name of the library.
        library: &'static str,
        /// The name of the function.
        name: &'static str,
    },
    /// The library does not start on this device.
    #[error("{library} does not start: it returned {status}; check that it fits the driver and the device")]
    NotStarted {
        /// The name of the library.
        library: &'static str,
        /// The status that it returned.
        status: i32,
    },
    /// The device is not a CUDA device.
    #[error("{library} works on GPUs only, and this is a software device")]
    OtherDevice {
        /// The name of the library.
        library: &'static str,
    },
}

fn looked_in(folders: &[String]) -> String {
    match folders {
        [] => "there is no CUDA toolkit and no Python package that could have it".to_owned(),
        folders => format!("it is not in {}", folders.join(", ")),
    }
}

/// Why CUDA cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absence {
    /// The dynamic linker finds no driver library.
    #[error(
        "the dynamic linker finds no {looked_for}; install NVIDIA's driver, or start the container with `--gpus all`"
    )]
    NoLibrary {
        /// The names that were tried.
        looked_for: &'static str,
    },
    /// The library is the toolkit's stub, against which programs are linked on machines without a driver.
    #[error(
        "the driver library found first is a stub; take the toolkit's `stubs` folder off LD_LIBRARY_PATH, or install \
         NVIDIA's driver"
    )]
    Stub,
    /// The driver works but sees no device.
    #[error("the driver sees no device; check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver library lacks a function: it is older than CUDA 12.0.
    #[error("the driver library has no `{name}`; update NVIDIA's driver to one that supports CUDA 12.0")]
    NoSymbol {
        /// The name of the function.
        name: &'static str,
    },
    /// The driver did not start.
    #[error("the driver does not start: {0}")]
    NotStarted(Failure),
}

/// A failure of the driver. Inside a host function, where every call fails, the error says so.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let is_refused = failure.status == Status::NOT_PERMITTED && host_function::is_inside();
        if is_refused { Error::InsideHostFunction } else { Error::Driver(failure) }
    }
}
