//! Checkpoints: counts of batches as integers, reserved and unusual names, and many names.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pagelock_nn::{
    BatchNorm1d, Error, Forward, Linear, Module, Parameter, StateDict, Visitor, VisitorMut, load_safetensors,
    save_safetensors,
};
use pagelock_tensor::{DType, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::pytorch;

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    (folder, path)
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The element type, shape and value of a tensor that holds one integer, as the file has it.
fn integer(path: &Path, name: &str) -> (Dtype, Vec<usize>, i64) {
    let bytes = fs::read(path).unwrap();
    let view = SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap();
    (view.dtype(), view.shape().to_vec(), i64::from_le_bytes(view.data().try_into().unwrap()))
}

fn layer(precision: DType) -> BatchNorm1d {
    BatchNorm1d::new(1).unwrap().to_dtype(precision).unwrap()
}

/// Writes a layer's state in a precision, with the count of batches given by `dtype` and `bytes`.
fn file_with_count(path: &Path, precision: DType, dtype: Dtype, bytes: &[u8]) {
    let layer = layer(precision);
    save_safetensors(&layer.state_dict(), path).unwrap();
    let saved = fs::read(path).unwrap();
    let parsed = SafeTensors::deserialize(&saved).unwrap();
    let mut views: HashMap<String, TensorView<'_>> = parsed.tensors().into_iter().collect();
    views.insert("num_batches_tracked".to_owned(), TensorView::new(dtype, vec![], bytes).unwrap());
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn counts_exactly(precision: DType) {
    let (_folder, path) = place();
    let x = Tensor::of(precision).new([[0.0], [1.0]]).unwrap();
    let trained = layer(precision);
    for _ in 0..2_100 {
        trained.forward(&x).unwrap();
    }
    save_safetensors(&trained.state_dict(), &path).unwrap();
    assert_eq!(integer(&path, "num_batches_tracked"), (Dtype::I64, vec![], 2_100), "{precision}");

    let next = layer(precision);
    next.load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
    next.forward(&x).unwrap();
    save_safetensors(&next.state_dict(), &path).unwrap();
    assert_eq!(integer(&path, "num_batches_tracked"), (Dtype::I64, vec![], 2_101), "{precision}");
}

#[test]
fn batches_are_counted_exactly_and_saved_as_integers_whatever_the_precision() {
    counts_exactly(DType::F32);
    counts_exactly(DType::F64);
    counts_exactly(DType::F16);
    counts_exactly(DType::BF16);
}

#[test]
fn counts_that_older_versions_saved_as_floats_are_loaded() {
    let (_folder, path) = place();
    file_with_count(&path, DType::F32, Dtype::F32, &70_000_f32.to_le_bytes());
    let layer = layer(DType::F32);
    layer.load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
    save_safetensors(&layer.state_dict(), &path).unwrap();
    assert_eq!(integer(&path, "num_batches_tracked"), (Dtype::I64, vec![], 70_000));
}

#[test]
fn counts_beyond_every_float_survive_a_round_trip() {
    let (_folder, path) = place();
    let large = (1_i64 << 53) + 1;
    file_with_count(&path, DType::BF16, Dtype::I64, &large.to_le_bytes());
    let layer = layer(DType::BF16);
    layer.load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
    save_safetensors(&layer.state_dict(), &path).unwrap();
    assert_eq!(integer(&path, "num_batches_tracked"), (Dtype::I64, vec![], large));
}

#[test]
fn pytorchs_counts_are_loaded_and_saved_again_as_pytorch_saves_them() {
    let (_folder, path) = place();
    let golden = load_safetensors(pytorch::path("normalized.safetensors")).unwrap();
    let model = crate::normalizing::model().unwrap();
    model.load_state_dict(&pytorch::under(&golden, "after.")).unwrap();
    save_safetensors(&model.state_dict(), &path).unwrap();
    assert_eq!(integer(&path, "1.num_batches_tracked"), (Dtype::I64, vec![], 3));
}

fn one(name: &str) -> StateDict {
    [(name.to_owned(), Tensor::new([1.0]).unwrap())].into_iter().collect()
}

#[test]
fn a_name_that_the_format_keeps_for_itself_is_refused_and_the_file_stays() {
    let (folder, path) = place();
    save_safetensors(&one("w"), &path).unwrap();
    let before = fs::read(&path).unwrap();
    let error = save_safetensors(&one("__metadata__"), &path).unwrap_err().to_string();
    assert!(error.contains("`__metadata__`") && error.contains("w.safetensors"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names_in(folder.path()), ["w.safetensors"]);
}

#[test]
fn names_of_any_kind_are_read_back_as_they_were_saved() {
    let (_folder, path) = place();
    let long = "n".repeat(100_000);
    let names =
        ["", ".", "a..b", "__metadata__.x", "_", "quote\"\\", "line\nfeed", "nul\0", "ü𝔘", "../w", long.as_str()];
    let dict: StateDict = names.iter().map(|name| ((*name).to_owned(), Tensor::new([1.0]).unwrap())).collect();
    save_safetensors(&dict, &path).unwrap();
    let back = load_safetensors(&path).unwrap();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(back.names().collect::<Vec<_>>(), sorted);
}

#[test]
fn a_header_longer_than_the_format_allows_is_refused_and_the_file_stays() {
    let (_folder, path) = place();
    save_safetensors(&one("w"), &path).unwrap();
    let before = fs::read(&path).unwrap();
    let error = save_safetensors(&one(&"n".repeat(100_000_000)), &path).unwrap_err().to_string();
    assert!(error.len() < 1_000 && error.contains("100000000"), "{} bytes", error.len());
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[cfg(unix)]
#[test]
fn names_of_files_may_be_as_long_as_the_system_allows_and_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;

    let (folder, _) = place();
    let dict = Linear::new(3, 2).unwrap().state_dict();
    for name in [vec![b'n'; 255], b"\xff\xfe.safetensors".to_vec()] {
        let path = folder.path().join(std::ffi::OsStr::from_bytes(&name));
        save_safetensors(&dict, &path).unwrap();
        assert_eq!(load_safetensors(&path).unwrap().len(), 2);
    }
}

/// A model of many parameters, each of one number.
fn many(n_parameters: usize) -> Vec<Parameter> {
    let zero = Tensor::new([0.0]).unwrap();
    (0..n_parameters).map(|_| Parameter::new(zero.clone())).collect()
}

/// The CPU time of this thread, or wall time if the system does not report CPU time.
fn time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = stat.and_then(|stat| stat.split_whitespace().next()?.parse().ok());
    nanoseconds.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// The shortest of three runs, but at least 5 ms, since the system updates CPU times only every few milliseconds.
fn least(mut act: impl FnMut()) -> Duration {
    let once = |_| {
        let start = time();
        act();
        time().saturating_sub(start)
    };
    (0..3).map(once).min().unwrap_or_default().max(Duration::from_millis(5))
}

/// Asserts that 16 times as many names take less than 100 times as long: linear time gives 16, quadratic time 256.
fn grows_with_the_names(what: &str, mut act: impl FnMut(&Vec<Parameter>)) {
    let (few, all) = (many(5_000), many(80_000));
    let (short, long) = (least(|| act(&few)), least(|| act(&all)));
    assert!(long < short * 100, "{what}: {short:?} for 5,000 names and {long:?} for 80,000");
}

#[test]
fn the_time_to_make_and_load_a_state_dict_grows_with_the_number_of_names() {
    grows_with_the_names("state_dict and load_state_dict", |model| {
        model.load_state_dict(&model.state_dict()).unwrap();
    });
}

#[test]
fn the_time_to_list_parameters_grows_with_their_number() {
    grows_with_the_names("named_parameters", |model| {
        assert_eq!(model.named_parameters().len(), model.len());
    });
}

#[test]
fn the_time_to_save_and_load_a_file_grows_with_the_number_of_names() {
    let (_folder, path) = place();
    grows_with_the_names("save_safetensors and load_safetensors", |model| {
        save_safetensors(&model.state_dict(), &path).unwrap();
        assert_eq!(load_safetensors(&path).unwrap().len(), model.len());
    });
}

#[test]
fn the_difference_between_many_names_is_told_in_a_few_lines() {
    let model = many(10_000);
    let others: StateDict =
        (0..10_000).map(|at| (format!("other{at}.{}", "x".repeat(500)), Tensor::zeros(1).unwrap())).collect();
    let error = model.load_state_dict(&others).unwrap_err();
    let said = error.to_string();
    assert!(said.len() < 8_000, "{} bytes", said.len());
    assert!(said.contains("and 9990 more"), "{said}");
    let Error::StateDict(misfit) = error else { panic!("{said}") };
    assert_eq!((misfit.missing.len(), misfit.unexpected.len()), (10_000, 10_000));

    let wide: StateDict = (0..10_000).map(|at| (at.to_string(), Tensor::zeros(2).unwrap())).collect();
    let said = model.load_state_dict(&wide).unwrap_err().to_string();
    assert!(said.len() < 2_000 && said.contains("and 9990 more"), "{said}");
}

#[test]
fn removing_and_replacing_keep_the_order_of_a_state_dict() {
    let number = |value: f32| Tensor::from_vec(vec![value], 1).unwrap();
    let mut dict: StateDict = ["a", "b", "c"].iter().map(|name| ((*name).to_owned(), number(0.0))).collect();
    dict.insert("b", number(2.0));
    assert_eq!(dict.remove("a").unwrap().float().unwrap().item::<f32>().unwrap(), 0.0);
    assert!(dict.remove("a").is_none() && dict.get("a").is_none());
    dict.insert("a", number(1.0));
    let values: Vec<(String, f32)> =
        dict.iter().map(|(name, tensor)| (name.to_owned(), tensor.float().unwrap().item().unwrap())).collect();
    assert_eq!(values, [("b".to_owned(), 2.0), ("c".to_owned(), 0.0), ("a".to_owned(), 1.0)]);
    assert_eq!(dict.len(), 3);
}

/// A layer whose hand-written visit gives two tensors the same name.
struct Twins(Parameter, Parameter);

impl Module for Twins {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.child("weight", &self.0);
        visitor.child("weight", &self.1);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.child(&mut self.0);
        visitor.child(&mut self.1);
    }
}

#[test]
fn a_model_that_gives_two_tensors_one_name_is_neither_saved_nor_loaded() {
    let (folder, path) = place();
    let number = |value: f32| Parameter::new(Tensor::from_vec(vec![value], 1).unwrap());
    let twins = Twins(number(1.0), number(2.0));
    let saved = save_safetensors(&twins.state_dict(), &path).unwrap_err();
    let loaded = twins.load_state_dict(&one("weight")).unwrap_err();
    for error in [saved, loaded] {
        assert!(error.to_string().starts_with("two tensors have the name `weight`"), "{error}");
    }
    assert_eq!(names_in(folder.path()), [""; 0]);
    assert_eq!(twins.1.item::<f32>().unwrap(), 2.0);
    let both = (Linear::new(1, 1).unwrap(), Linear::new(1, 1).unwrap()).state_dict();
    let shortened = both.renamed(|name| name.split('.').next_back().map(str::to_owned));
    assert!(save_safetensors(&shortened, &path).is_err());
}

#[test]
fn a_count_that_is_missing_keeps_the_models_as_in_pytorch() {
    let layer = BatchNorm1d::new(1).unwrap();
    let mut tensors = layer.state_dict();
    tensors.remove("num_batches_tracked").unwrap();
    layer.forward(&Tensor::new([[0.0], [1.0]]).unwrap()).unwrap();
    layer.load_state_dict(&tensors).unwrap();
    assert_eq!(layer.state_dict().get_int("num_batches_tracked").unwrap().item::<i64>().unwrap(), 1);
}

#[test]
fn renaming_keeps_counts_and_their_exact_values() {
    let layer = layer(DType::F16);
    let mut dict = layer.state_dict();
    dict.insert("num_batches_tracked", Tensor::full((), 2_049).unwrap());
    let dict =
        dict.renamed(|name| Some(format!("body.{name}"))).renamed(|name| name.strip_prefix("body.").map(str::to_owned));
    layer.load_state_dict(&dict).unwrap();
    assert_eq!(layer.num_batches_tracked.unwrap().item::<i64>().unwrap(), 2_049);
}

#[test]
fn a_mean_over_all_batches_is_exact_beyond_what_a_half_counts() {
    let layer = layer(DType::BF16).momentum(None);
    let mut dict = layer.state_dict();
    dict.insert("num_batches_tracked", Tensor::full((), 999).unwrap());
    layer.load_state_dict(&dict).unwrap();
    let x = Tensor::of(DType::BF16).full([2, 1], 1_000.0).unwrap();
    layer.forward(&x).unwrap();
    let mean: f32 = layer.running_mean.unwrap().item().unwrap();
    assert_eq!(mean, 1.0, "a thousandth of the batch's mean");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_at_once_both_ways() {
    let (folder, path) = place();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let loaded = load_safetensors(&path).unwrap_err().to_string();
    let saved = save_safetensors(&one("w"), &path).unwrap_err().to_string();
    assert!(loaded.contains("not a regular file") && saved.contains("name a file"), "{loaded}; {saved}");
    assert_eq!(names_in(folder.path()), ["w.safetensors"]);
}
