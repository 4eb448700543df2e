//! Tensors are accepted wherever slices are: both write the same bytes.

#![cfg(feature = "tensors")]

use std::fs;
use std::io::Write as _;
use std::path::Path;

use pagelock_board::{
    Array, Embedding, Error, GraphNode, GridOptions, Result, Step, SummaryWriter, ToArray, ToGraph, make_grid,
};
use pagelock_tensor::profiler::GraphRecorder;
use pagelock_tensor::{Bool, DType, Device, Int, Tensor};

fn at(step: i32) -> Step {
    Step::from(step).at(0.0)
}

/// The bytes that a writer writes after the first event, which contains the time.
fn written(write: impl FnOnce(&SummaryWriter) -> Result<()>) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path()).unwrap();
    write(&writer).unwrap();
    writer.close().unwrap();
    let read = |path: &Path| fs::read(path).unwrap();
    let mut entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
    let events =
        entries.find(|entry| entry.file_name().to_string_lossy().starts_with("events")).map(|entry| entry.path());
    let mut files = vec![read(&events.unwrap()).split_off(40)];
    let embedding = folder.path().join("00000/points/tensors.tsv");
    files.extend(embedding.is_file().then(|| read(&embedding)));
    files
}

/// The CPU, and the GPU where there is one, with the names that TensorBoard has for them.
fn devices() -> Vec<(Device, &'static str)> {
    let mut devices = vec![(Device::Cpu, "/device:CPU:0")];
    match Device::cuda(0) {
        Ok(gpu) => devices.push((gpu, "/device:GPU:0")),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            let _ = writeln!(std::io::stderr(), "SKIPPED on a GPU: {missing}");
        }
    }
    devices
}

#[test]
fn float_tensors_and_slices_write_the_same() {
    let values: Vec<f32> = (0..24).map(|i| i as f32 / 24.0).collect();
    let array = Array::new(&values, [2, 3, 2, 2]).unwrap();
    let points = Array::new(&values, [6, 4]).unwrap();
    fn calls(writer: &SummaryWriter, images: &impl ToArray, points: &impl ToArray) -> Result<()> {
        writer.add_histogram("values", images, at(0))?;
        writer.add_images("images", images, at(0))?;
        writer.add_image("grid", &make_grid(images, GridOptions::default())?, at(0))?;
        writer.add_embedding("points", &Embedding::new(points)?, 0)
    }
    let expected = written(|writer| calls(writer, &array, &points));
    for (device, name) in devices() {
        let tensor = Tensor::from_slice(&values, [2, 3, 2, 2]).unwrap().to(&device).unwrap();
        let points = tensor.reshape([6, 4]).unwrap();
        assert_eq!(written(|writer| calls(writer, &tensor, &points)), expected, "{name}");
    }
}

#[test]
fn every_precision_and_every_view_is_taken() {
    let x = Tensor::new([[0.5, 0.25], [1.0, 0.0]]).unwrap();
    let same = |tensor: &Tensor| tensor.to_array().unwrap() == x.to_array().unwrap();
    assert!(same(&x.t().unwrap().t().unwrap()) && same(&x.to_dtype(DType::BF16).unwrap()));
    assert!(same(&x.clone().set_requires_grad(true)));
    assert_eq!(x.t().unwrap().to_array().unwrap(), Array::new(&[0.5f32, 1.0, 0.25, 0.0], [2, 2]).unwrap());
    let wide = x.to_dtype(DType::F64).unwrap();
    assert_eq!(wide.to_array().unwrap(), Array::new(&[0.5f64, 0.25, 1.0, 0.0], [2, 2]).unwrap());

    let bytes = Tensor::from_slice(&[1u8, 255], [2]).unwrap();
    assert_eq!(bytes.to_array().unwrap(), Array::new(&[1u8, 255], [2]).unwrap());
    let integers: Tensor<Int> = Tensor::from_slice(&[-1i32, 7], [2]).unwrap();
    assert_eq!(integers.to_array().unwrap(), Array::new(&[-1i64, 7], [2]).unwrap());
    let bools: Tensor<Bool> = Tensor::new([true, false]).unwrap();
    assert_eq!(bools.to_array().unwrap(), Array::new(&[1.0f32, 0.0], [2]).unwrap());
}

#[test]
fn a_tensor_with_one_element_is_a_scalar_and_another_is_refused() {
    let loss = Tensor::new([[0.5]]).unwrap();
    let count: Tensor<Int> = Tensor::new([7]).unwrap();
    let tensors = written(|writer| writer.add_scalar("loss", &loss, at(0)).and(writer.add_scalar("n", &count, at(0))));
    let numbers = written(|writer| writer.add_scalar("loss", 0.5, at(0)).and(writer.add_scalar("n", 7, at(0))));
    assert_eq!(tensors, numbers);

    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path()).unwrap();
    let error = writer.add_scalar("loss", Tensor::new([0.5, 0.25]).unwrap(), 0).unwrap_err();
    assert!(matches!(error, Error::Tensor(_)), "{error}");
}

#[test]
fn a_recorded_graph_becomes_nodes_with_shapes_and_devices() {
    for (device, name) in devices() {
        let ones = |shape: &[usize]| Tensor::on(&device).ones(shape).unwrap();
        let (x, w) = (ones(&[4, 3]), ones(&[3, 2]));
        let mut recorder = GraphRecorder::new();
        recorder.input("x", &x);
        recorder.parameter("net/weight", &w);
        recorder.parameter("net/unused", &ones(&[1]));
        let graph = recorder.record(|| (x.matmul(&w)? + 1.0)?.add(&ones(&[2]))).unwrap();

        let node = |op_name: &str, op: &str, shape: &[usize]| {
            GraphNode::new(op_name, op).shape(shape).attributes("dtype: float32").device(name)
        };
        let expected = [
            node("input/x", "IO Node", &[4, 3]),
            node("net/weight", "Parameter", &[3, 2]),
            node("matmul", "matmul", &[4, 2]).input("input/x").input("net/weight"),
            node("add", "add", &[4, 2]).input("matmul"),
            node("Constant", "Constant", &[2]),
            node("add_1", "add", &[4, 2]).input("add").input("Constant"),
            node("output/output.1", "IO Node", &[4, 2]).input("add_1"),
        ];
        assert_eq!(*graph.to_graph(), expected);
    }
}

#[test]
fn a_tensor_larger_than_the_budget_is_refused_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path()).unwrap();
    let huge = Tensor::ones([1]).unwrap().expand([1_usize << 40]).unwrap();
    let error = writer.add_histogram("values", &huge, 0).unwrap_err().to_string();
    assert!(
        error.starts_with("to_array: no memory for the elements: cannot take 4 TiB: budget `host` has "),
        "{error}"
    );
}
