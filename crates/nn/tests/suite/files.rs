//! Weights in files: round trips, damaged files, and false headers.

use crate::{cnn, pytorch};
use pagelock_nn::{Error, Linear, Module, StateDict, load_safetensors, save_safetensors};
use pagelock_tensor::{self as tensor, DType, Generator, Tensor};
use std::path::{Path, PathBuf};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file of these bytes, and returns the error of loading it.
    fn refusal(&self, bytes: &[u8]) -> String {
        let path = self.file("w.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let error = load_safetensors(&path).unwrap_err();
        assert!(matches!(error, Error::Tensor(tensor::Error::Content { .. })), "{error:?}");
        error.to_string().replace(&path.display().to_string(), "w.safetensors")
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// The bytes of a safetensors file: the length of the header, the header as JSON, and the data.
fn with_header(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
}

fn round_trip(path: &Path, dtype: DType, values: &[f64]) {
    let exact = |tensor: &Tensor| (tensor.dtype(), tensor.to_vec::<f64>().unwrap());
    let tensor = Tensor::from_slice(values, [2, 2]).unwrap().to_dtype(dtype).unwrap();
    let turned = tensor.t().unwrap();
    let dict: StateDict =
        [("a".to_owned(), tensor.clone()), ("b.turned".to_owned(), turned.clone())].into_iter().collect();
    save_safetensors(&dict, path).unwrap();
    let back = load_safetensors(path).unwrap();
    assert_eq!(back.names().collect::<Vec<_>>(), ["a", "b.turned"]);
    assert_eq!(exact(&back.get("a").unwrap()), exact(&tensor));
    assert_eq!(exact(&back.get("b.turned").unwrap()), exact(&turned));
}

#[test]
fn every_element_type_survives_a_round_trip() {
    let folder = Folder::new();
    let values = [1.0, -0.5, f64::INFINITY, 0.1];
    round_trip(&folder.file("f32"), DType::F32, &values);
    round_trip(&folder.file("f64"), DType::F64, &values);
    round_trip(&folder.file("f16"), DType::F16, &values);
    round_trip(&folder.file("bf16"), DType::BF16, &values);
}

#[test]
fn a_model_reads_what_pytorch_saved() {
    let weights = pytorch::under(&pytorch::training(), "cnn.pseudo.weights.");
    let model = cnn().unwrap();
    model.load_state_dict(&weights).unwrap();
    let first: Vec<f32> = weights.get("0.weight").unwrap().to_vec().unwrap();
    assert_eq!(model.parameters()[0].to_vec::<f32>().unwrap(), first);
}

#[test]
fn saving_replaces_a_file_and_leaves_nothing_else_behind() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    std::fs::write(&path, "old").unwrap();
    let model = Linear::new(3, 2).unwrap();
    save_safetensors(&model.state_dict(), &path).unwrap();
    assert_eq!(load_safetensors(&path).unwrap().len(), 2);
    assert_eq!(folder.names(), ["w.safetensors"]);
}

#[test]
fn saving_where_it_cannot_be_done_leaves_things_as_they_were() {
    let folder = Folder::new();
    let dict = Linear::new(3, 2).unwrap().state_dict();
    let missing = save_safetensors(&dict, folder.file("no/such/folder/w")).unwrap_err();
    assert!(matches!(missing, Error::Tensor(tensor::Error::Io { action: "write", .. })), "{missing}");

    std::fs::create_dir(folder.file("taken")).unwrap();
    std::fs::write(folder.file("taken/inside"), "x").unwrap();
    let taken = save_safetensors(&dict, folder.file("taken")).unwrap_err();
    assert!(matches!(taken, Error::Tensor(tensor::Error::Io { action: "write", .. })), "{taken}");
    assert_eq!(folder.names(), ["taken"]);
}

#[test]
fn a_missing_file_is_named() {
    let error = load_safetensors("no-such.safetensors").unwrap_err();
    assert!(error.to_string().starts_with("cannot open no-such.safetensors: "), "{error}");
}

#[test]
fn every_truncation_of_a_file_is_refused() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    save_safetensors(&Linear::new(3, 2).unwrap().state_dict(), &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() {
        let said = folder.refusal(&whole[..len]);
        assert!(said.starts_with("w.safetensors: ") && said.ends_with("get it again"), "{len} bytes: {said}");
    }
    let longer = [&whole[..], b"!"].concat();
    folder.refusal(&longer);
}

#[test]
fn a_file_with_changed_bytes_is_read_or_refused() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    save_safetensors(&Linear::new(3, 2).unwrap().state_dict(), &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let random = Generator::new(11);
    for _ in 0..500 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let place = random.below(bytes.len() as u64) as usize;
            bytes[place] = random.below(256) as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        match load_safetensors(&path) {
            Ok(dict) => assert!(dict.iter().map(|(_, tensor)| tensor.len_bytes()).sum::<usize>() <= whole.len()),
            Err(error) => assert!(matches!(error, Error::Tensor(tensor::Error::Content { .. })), "{error}"),
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = Folder::new();
    folder.refusal(b"");
    folder.refusal(b"PK\x03\x04 a zip file, not safetensors");
    folder.refusal(&u64::MAX.to_le_bytes());
    folder.refusal(&[&(1u64 << 40).to_le_bytes()[..], b"{}"].concat());
    folder.refusal(&with_header("not json", b""));
    for entry in [
        r#"{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}"#,
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000000000]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"w":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
    ] {
        folder.refusal(&with_header(entry, &[0; 4]));
    }
}

#[test]
fn a_shape_with_too_many_dimensions_is_a_tensor_error() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let json = r#"{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#;
    std::fs::write(&path, with_header(json, &[0; 4])).unwrap();
    assert!(load_safetensors(&path).unwrap_err().to_string().contains("9 dimensions, but a tensor has at most 8"));
}

#[test]
fn an_element_type_that_no_tensor_has_is_named() {
    let said =
        Folder::new().refusal(&with_header(r#"{"w":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}"#, &[0; 2]));
    assert_eq!(
        said,
        "w.safetensors: `w` has elements of I16, which no tensor can hold; \
         convert them to F64, F32, F16, BF16, I64, I32, U8 or BOOL"
    );
}

#[test]
fn an_empty_state_dict_can_be_saved() {
    let path = Folder::new();
    let path = path.file("w.safetensors");
    save_safetensors(&StateDict::new(), &path).unwrap();
    assert!(load_safetensors(&path).unwrap().is_empty());
}
