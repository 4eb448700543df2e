//! The errors of all crates, as `main` prints them: `Debug` is the message, a chain of causes repeats nothing and
//! loses nothing, and messages with strange values are readable.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use pagelock::board;
use pagelock::cuda::{self, Absence};
use pagelock::data;
use pagelock::memory::{self, Budget, ByteSize, MemoryKind};
use pagelock::nn;
use pagelock::prelude::*;
use pagelock::tensor;

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such file here")
}

fn refused() -> memory::Error {
    Budget::new("small", ByteSize(10)).reserve(100).unwrap_err()
}

fn shape(sizes: &[usize]) -> Shape {
    Shape::new(sizes).unwrap()
}

type Any = Box<dyn StdError + Send + Sync>;

fn any(error: impl StdError + Send + Sync + 'static) -> Any {
    error.into()
}

/// From every crate, an error of each kind that wraps another error.
fn nested() -> Vec<Any> {
    let path = || PathBuf::from("a.bin");
    let told = || anyhow::Error::from(absent()).context("cannot read the index");
    let bad_sample = || data::Error::other(told());
    let cuda_memory = || cuda::Error::Memory(refused());
    let io = || tensor::Error::Io { action: "read", path: path(), source: absent() };
    let batch = || nn::Error::Batch { which: "training", index: 3, epoch: 1, source: Box::new(sample(bad_sample())) };
    let (op, dtype) = ("add", DType::F32);
    vec![
        any(refused()),
        any(refused().over_budget().unwrap().clone()),
        any(memory::Error::Map { path: path(), source: absent() }),
        any(memory::Error::Lock { asked: ByteSize(1), source: told().into() }),
        any(cuda::Error::from(Absence::NoDevice)),
        any(cuda::Error::File { source: absent() }),
        any(cuda_memory()),
        any(tensor::Error::NotWritable { op, shape: shape(&[2]), source: refused() }),
        any(tensor::Error::NoDevice(cuda::Error::from(Absence::NoDevice))),
        any(tensor::Error::DeviceMemory { op, shape: shape(&[2]), dtype, source: cuda_memory() }),
        any(tensor::Error::Cuda { op, inputs: String::new(), source: cuda_memory() }),
        any(tensor::Error::Library { op, sizes: "[2]".into(), source: cuda_memory() }),
        any(tensor::Error::Memory { op, shape: shape(&[2]), dtype, source: refused() }),
        any(tensor::Error::WorkingMemory { op, purpose: "a copy", source: refused() }),
        any(io()),
        any(tensor::Error::At { path: "a.b".into(), source: Box::new(io()) }),
        any(nn::Error::Tensor(io())),
        any(batch()),
        any(data::Error::Io { action: "open", path: path(), source: absent() }),
        any(bad_sample()),
        any(sample(bad_sample())),
        any(data::Error::Shard { shard: 1, worker: None, source: sample(bad_sample()).into() }),
        any(data::Error::Batch { n_samples: 2, first: 0, shard: None, worker: Some(1), source: bad_sample().into() }),
        any(data::Error::Worker { worker: 0, source: bad_sample().into() }),
        any(data::Error::Memory(refused())),
        any(data::Error::from(io())),
        any(board::Error::Create { path: path(), error: absent() }),
        any(board::Error::Write { path: path(), error: absent() }),
        any(board::Error::Tensor(io())),
    ]
}

fn sample(source: data::Error) -> data::Error {
    data::Error::Sample { index: 5, shard: None, worker: Some(0), source: source.into() }
}

/// The texts that `main` prints if it returns the error itself, and if it returns an `anyhow::Error`.
fn printed(error: Any) -> (String, String) {
    let alone = format!("{error:?}");
    let chained = format!("{:?}", anyhow::Error::from_boxed(error));
    let chained = chained.split("\n\nStack backtrace:").next().unwrap_or_default(); // with RUST_BACKTRACE=1
    (alone, chained.to_owned())
}

#[test]
fn an_error_that_main_returns_is_its_message_with_every_cause_once() {
    let causes =
        ["no such file here", "cannot read the index", "budget `small` has 10 B left", "the driver sees no device"];
    for error in nested() {
        let message = error.to_string();
        let (alone, chained) = printed(error);
        assert_eq!(alone, message);
        for text in [&alone, &chained] {
            let n_said = causes.map(|cause| text.matches(cause).count());
            assert!(n_said.iter().all(|&n| n <= 1), "said twice: {text}");
            assert!(n_said.iter().sum::<usize>() >= 1, "lost: {text}");
            assert!(!text.contains('{') && !text.contains("Some("), "a structure: {text}");
        }
        if message.contains("cannot read the index") {
            assert!(message.contains("no such file here"), "the cause of the cause is lost: {message}");
        }
    }
}

#[test]
fn an_error_without_causes_is_its_message_too() {
    let (x, y) = (Tensor::zeros([64, 784]).unwrap(), Tensor::zeros([128, 10]).unwrap());
    let error = x.matmul(&y).err().unwrap();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert_eq!(format!("{error:#?}"), error.to_string());
    assert!(error.to_string().starts_with("matmul: inner sizes differ: left is [64, 784]"), "{error}");
    let misfit = Linear::new(2, 2).unwrap().load_state_dict(&Linear::new(3, 2).unwrap().state_dict()).unwrap_err();
    assert_eq!(format!("{misfit:?}"), misfit.to_string());
    assert_eq!(format!("{:?}", Absence::NoDevice), Absence::NoDevice.to_string());
}

/// A dataset without samples.
struct Nothing;

impl data::Dataset for Nothing {
    type Sample = i64;

    fn len(&self) -> usize {
        0
    }

    fn get(&self, _index: usize) -> data::Result<i64> {
        Err(data::Error::other("there is none"))
    }
}

/// Errors with values that nobody uses on purpose: empty names, huge sizes, numbers of 300 digits, lengths of zero.
fn strange() -> Vec<Any> {
    let most = ByteSize::MAX;
    let everything = usize::MAX;
    let unlimited = Budget::new("", ByteSize::MAX);
    let _held = unlimited.reserve(1).unwrap();
    let software = cuda::Device::software(cuda::software::Config::default()).unwrap();
    vec![
        any(unlimited.reserve(u64::MAX).unwrap_err()),
        any(Budget::new("host", 10).reserve(u64::MAX).unwrap_err()),
        any(memory::Error::OutOfMemory { asked: most, kind: MemoryKind::Pageable }),
        any(memory::Error::Lock { asked: most, source: "no".into() }),
        any(memory::Error::LockLimit { asked: most, locked: ByteSize(0), limit: ByteSize(0) }),
        any(memory::Error::Map { path: PathBuf::new(), source: absent() }),
        any("".parse::<ByteSize>().unwrap_err()),
        any("\n".parse::<Device>().unwrap_err()),
        any("".parse::<Device>().unwrap_err()),
        any(" cpu".parse::<Device>().unwrap_err()),
        any(Shape::new(&[everything, everything]).unwrap_err()),
        any(Tensor::zeros([everything]).err().unwrap()),
        any(Tensor::from_vec(Vec::<f32>::new(), [1_usize << 40]).err().unwrap()),
        any(tensor::Error::Io { action: "read", path: PathBuf::new(), source: absent() }),
        any(tensor::Error::Content { path: PathBuf::new(), problem: "it is empty".into() }),
        any(software.stream().and_then(|stream| stream.allocate::<u64>(everything)).err().unwrap()),
        any(cuda::Error::NoSuchDevice { ordinal: u32::MAX, count: 0 }),
        any(nn::load_safetensors("").err().unwrap()),
        any(nn::optim::Sgd::new(Linear::new(2, 2).unwrap().parameters(), 0.1).momentum(-f64::MAX).step().unwrap_err()),
        any(data::Error::Io { action: "open", path: PathBuf::new(), source: absent() }),
        any(data::WeightedSampler::new([-f64::MAX], 0, 0).err().unwrap()),
        any(data::WeightedSampler::new([f64::MAX, f64::MAX], 0, 0).err().unwrap()),
        any(data::WeightedSampler::new([], 0, 0).err().unwrap()),
        any(data::random_split(Nothing, [everything; 2], &Generator::new(0)).err().unwrap()),
        any(data::random_split(Nothing, [everything], &Generator::new(0)).err().unwrap()),
        any(data::DistributedSampler::new(data::SequentialSampler, 0, 0).err().unwrap()),
        any("".parse::<data::LoaderState>().unwrap_err()),
        any("round".parse::<data::LoaderState>().unwrap_err()),
        any(SyntheticDigits::new(0).train_len(everything).generate().unwrap_err()),
    ]
}

#[test]
fn errors_of_strange_values_can_be_read() {
    for error in strange() {
        let text = error.to_string();
        for nonsense in
            ["no limit for", "take no limit", "lock no limit", "has no no limit", " is ,", " is  ", " : ", "  "]
        {
            assert!(!text.contains(nonsense), "`{nonsense}` in: {text}");
        }
        assert!(!text.starts_with([':', ' ']) && !text.contains("open :") && !text.contains('\n'), "{text}");
        let longest = text.split(|letter: char| !letter.is_ascii_digit()).map(str::len).max().unwrap_or(0);
        assert!(longest <= 39, "a number of {longest} digits: {text}"); // as long as a `u128`
    }
}
