//! Nothing stays allocated after a failure. One test in a process of its own: the ledger counts the whole process.

use std::fs;

use pagelock_data::{
    DataLoader, Dataset, Digits, Error, FixedSampler, Mnist, Result, Stack, Subset, SyntheticDigits, TensorDataset,
    random_split,
};
use pagelock_memory::{ByteSize, host_budget, ledger};
use pagelock_tensor::{Generator, Tensor};

fn pairs(n: usize) -> (Tensor, Tensor) {
    (Tensor::zeros([n, 3]).unwrap(), Tensor::zeros([n]).unwrap())
}

fn first_error<B: Send + 'static>(loader: DataLoader<B>) -> Error {
    loader.iter().find_map(Result::err).unwrap()
}

/// The error of opening a folder of small MNIST files, of which `name` holds `bytes`.
fn broken_mnist(name: &str, bytes: &[u8]) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let image_header = [0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 28, 0, 0, 0, 28];
    let images = [&image_header[..], &[0; 6 * 784]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 3, 4, 5];
    for prefix in ["train", "t10k"] {
        fs::write(folder.path().join(format!("{prefix}-images-idx3-ubyte")), &images).unwrap();
        fs::write(folder.path().join(format!("{prefix}-labels-idx1-ubyte")), labels).unwrap();
    }
    fs::write(folder.path().join(name), bytes).unwrap();
    Mnist::new().folder(folder.path()).offline(true).open().unwrap_err()
}

struct Ragged;

impl Dataset for Ragged {
    type Sample = Tensor;

    fn len(&self) -> usize {
        4
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        match index {
            3 => Err(Error::other("damaged")),
            index => Ok(Tensor::zeros([1 + index / 2])?),
        }
    }
}

type Failure = fn() -> Error;

const FAILURES: &[(&str, Failure)] = &[
    ("truncated", || broken_mnist("t10k-images-idx3-ubyte", &[0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 28, 0, 0, 0, 28, 1])),
    ("oversized", || broken_mnist("t10k-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 1, 2])),
    ("wrong magic", || broken_mnist("t10k-labels-idx1-ubyte", b"<html>")),
    ("lying header", || broken_mnist("train-labels-idx1-ubyte", &[0, 0, 8, 2, 255, 0, 0, 0, 255, 0, 0, 0])),
    ("wrong label", || broken_mnist("t10k-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 3, 4, 50])),
    ("labels missing", || broken_mnist("t10k-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 0])),
    ("bad bytes", || Digits::new(&[0; 100], &[1]).unwrap_err()),
    ("bad label", || Digits::new(&[0; 784], &[99]).unwrap_err()),
    ("too few images", || SyntheticDigits::new(1).train_len(3).generate().unwrap_err()),
    ("no test images", || SyntheticDigits::new(1).train_len(6).test_len(0).generate().unwrap_err()),
    ("zero batch", || first_error(DataLoader::new(TensorDataset::new(pairs(5)).unwrap()).batch_size(0))),
    ("empty dataset", || first_error(DataLoader::new(TensorDataset::new(pairs(0)).unwrap()))),
    ("no full batch", || {
        first_error(DataLoader::new(TensorDataset::new(pairs(5)).unwrap()).batch_size(6).drop_last(true))
    }),
    ("no such sample", || {
        first_error(DataLoader::new(TensorDataset::new(pairs(5)).unwrap()).sampler(FixedSampler::new([5]).unwrap()))
    }),
    ("bad sample", || first_error(DataLoader::new(Ragged))),
    ("uneven samples", || first_error(DataLoader::new(Ragged).batch_size(3))),
    ("uneven stack", || Stack::stack(vec![pairs(1), pairs(2)]).err().unwrap()),
    ("collate", || first_error(DataLoader::with_collate(Ragged, |_| Err::<(), _>(Error::other("no"))).batch_size(2))),
    ("map", || {
        let loader = DataLoader::new(TensorDataset::new(pairs(5)).unwrap());
        first_error(loader.map(|(x, _)| Ok(x.reshape([7])?)))
    }),
    ("lengths", || TensorDataset::new((Tensor::zeros([2]).unwrap(), Tensor::zeros([3]).unwrap())).err().unwrap()),
    ("subset", || Subset::new(TensorDataset::new(pairs(5)).unwrap(), [7]).err().unwrap()),
    ("split", || random_split(TensorDataset::new(pairs(5)).unwrap(), [1], &Generator::new(0)).err().unwrap()),
    ("budget for images", || {
        host_budget().set_limit(ByteSize::mib(1));
        let error = SyntheticDigits::new(1).generate().unwrap_err();
        host_budget().set_limit(ByteSize::mib(64));
        error
    }),
    ("budget for a batch", || {
        let digits = SyntheticDigits::new(1).train_len(6_000).test_len(1).generate().unwrap();
        host_budget().set_limit(ByteSize::mib(12));
        let error = first_error(DataLoader::new(digits.train).batch_size(5_000));
        host_budget().set_limit(ByteSize::mib(64));
        error
    }),
];

#[test]
fn every_failure_gives_all_memory_back() {
    host_budget().set_limit(ByteSize::mib(64));
    for (name, failure) in FAILURES {
        let error = failure();
        let text = error.to_string();
        if name.starts_with("budget") {
            assert!(text.contains("budget `host` has ") && text.contains("PAGELOCK_HOST_LIMIT"), "{text}");
        }
        drop(error);
        assert_eq!(ledger().live_bytes(), 0, "after {name}: {text}");
    }
}
