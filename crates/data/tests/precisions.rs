//! Elements are read in the precision that the file has, as the kind that the program names. Another kind is refused.

mod content;
mod problem;

use std::path::PathBuf;

use pagelock_data::{CsvTable, Dataset, StoredRows, save_npy, save_npz};
use pagelock_tensor::{AnyTensor, Bool, DType, Float, Int, Tensor};
use tempfile::TempDir;

use content::file;
use problem::problem;

/// A `.npy` file of two rows of one element.
fn npy(descr: &str, elements: &[u8]) -> (TempDir, PathBuf) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 1), }}");
    file(&content::npy(&header, elements))
}

#[test]
fn every_element_type_of_a_kind_is_read_as_it_was_written() {
    let halves = [half::f16::from_f32(0.1), half::f16::from_f32(-7.0)].map(half::f16::to_le_bytes);
    for (descr, elements, dtype, values) in [
        ("<f2", halves.concat(), DType::F16, [f64::from(half::f16::from_f32(0.1)), -7.0]),
        ("<f4", [0.1_f32, -7.0].map(f32::to_le_bytes).concat(), DType::F32, [f64::from(0.1_f32), -7.0]),
        ("<f8", [0.1_f64, -7.0].map(f64::to_le_bytes).concat(), DType::F64, [0.1, -7.0]),
    ] {
        let (_folder, path) = npy(descr, &elements);
        let rows = StoredRows::<Float>::npy(&path).unwrap();
        let (all, last) = (rows.read().unwrap(), rows.get(1).unwrap());
        assert_eq!([rows.dtype(), all.dtype(), last.dtype()], [dtype; 3]);
        assert_eq!(
            (all.to_vec::<f64>().unwrap(), last.to_vec::<f64>().unwrap()),
            (values.to_vec(), values[1..].to_vec())
        );
        let text = problem(StoredRows::<Int>::npy(&path));
        assert_eq!(
            text,
            format!("its elements are {dtype}, which are not of kind integer; open it as StoredRows::<Float>")
        );
    }
    for (descr, elements, dtype, values) in [
        ("|u1", vec![3, 255], DType::U8, [3, 255]),
        ("<i4", [3_i32, -7].map(i32::to_le_bytes).concat(), DType::I32, [3, -7]),
        ("<i8", [i64::MAX, -7].map(i64::to_le_bytes).concat(), DType::I64, [i64::MAX, -7]),
    ] {
        let (_folder, path) = npy(descr, &elements);
        let rows = StoredRows::<Int>::npy(&path).unwrap();
        let batch = rows.gather(&[1, 0]).unwrap().unwrap();
        assert_eq!((batch.dtype(), batch.to_vec::<i64>().unwrap()), (dtype, vec![values[1], values[0]]));
        let text = problem(StoredRows::<Bool>::npy(&path));
        assert_eq!(text, format!("its elements are {dtype}, which are not of kind bool; open it as StoredRows::<Int>"));
    }
    let (_folder, path) = npy("|b1", &[1, 0]);
    assert_eq!(StoredRows::<Bool>::npy(&path).unwrap().read().unwrap().to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(
        problem(StoredRows::<Float>::npy(&path)),
        "its elements are bool, which are not of kind float; open it as StoredRows::<Bool>"
    );
    assert_eq!(
        problem(StoredRows::<Int>::raw(&path, DType::F32, &[1])),
        "its elements are float32, which are not of kind integer; open it as StoredRows::<Float>"
    );
}

#[test]
fn a_csv_column_is_read_as_the_kind_and_the_precision_that_are_asked_for() {
    let (_folder, path) = file(b"whole,part,truth\n7,0.1,true\n255,-2,false\n");
    let table = CsvTable::open(&path).unwrap();
    let whole: Tensor<Int> = table.column("whole").unwrap();
    assert_eq!((whole.to_vec::<i64>().unwrap(), whole.dtype()), (vec![7, 255], DType::I64));
    let part: Tensor = table.column("part").unwrap();
    assert_eq!((part.to_vec::<f32>().unwrap(), part.dtype()), (vec![0.1, -2.0], DType::F32));
    assert_eq!(table.column::<Bool>("truth").unwrap().to_vec::<bool>().unwrap(), [true, false]);
    for dtype in [DType::U8, DType::I32, DType::I64] {
        let whole: Tensor<Int> = table.column_of(dtype, "whole").unwrap();
        assert_eq!((whole.to_vec::<i64>().unwrap(), whole.dtype()), (vec![7, 255], dtype));
    }
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let both: Tensor = table.numbers_of(dtype, &["part", "whole"]).unwrap();
        let expected = Tensor::of(dtype).new([0.1, 7.0, -2.0, 255.0]).unwrap().to_vec::<f64>().unwrap();
        assert_eq!((both.dims(), both.dtype(), both.to_vec::<f64>().unwrap()), (&[2, 2][..], dtype, expected));
    }
    let other_kind = table.column_of::<Int>(DType::F32, "whole").unwrap_err().to_string();
    assert!(other_kind.contains("float32 is not a precision of integer tensors"), "{other_kind}");
}

/// The arrays of `npz/arrays.py`.
fn arrays() -> Vec<(&'static str, AnyTensor)> {
    let f16 = |number: f32| half::f16::from_f32(number);
    vec![
        ("f4", Tensor::from_slice(&[0.0_f32, 0.25, 0.5, 0.75, 1.0, 1.25], [2, 3]).unwrap().into()),
        ("f8", Tensor::from_slice(&[0.1_f64, -2.5], [2]).unwrap().into()),
        ("f2", Tensor::from_slice(&[f16(1.5), f16(-0.25)], [2, 1, 1]).unwrap().into()),
        ("i8", Tensor::from_slice(&[-7_i64], ()).unwrap().into()),
        ("i4", Tensor::from_slice(&[1_i32 << 30, -1], [2]).unwrap().into()),
        ("u1", Tensor::from_slice(&[0_u8, 1, 2, 3, 4], [5]).unwrap().into()),
        ("b1", Tensor::from_slice(&[true, false], [1, 2]).unwrap().into()),
        ("empty", Tensor::<Float>::from_slice::<f32>(&[], [0, 3]).unwrap().into()),
    ]
}

/// The members of an archive, with their names.
fn members(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let read = |i| {
        let mut member = archive.by_index(i).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut member, &mut bytes).unwrap();
        (member.name().unwrap().to_string(), bytes)
    };
    (0..8).map(read).collect()
}

#[test]
fn arrays_of_all_element_types_are_written_with_the_bytes_that_numpy_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (npz, npy) = (folder.path().join("arrays.npz"), folder.path().join("f4.npy"));
    let arrays = arrays();
    save_npz(arrays.iter().map(|(name, tensor)| (*name, tensor)), &npz).unwrap();
    let expected = members(include_bytes!("npz/arrays.npz"));
    assert_eq!(members(&std::fs::read(&npz).unwrap()), expected);
    save_npy(arrays[0].1.clone(), &npy).unwrap();
    assert_eq!(std::fs::read(&npy).unwrap(), expected[0].1);
    assert_eq!(StoredRows::<Bool>::npz(&npz, "b1").unwrap().read().unwrap().to_vec::<bool>().unwrap(), [true, false]);
}

#[test]
fn views_are_written_in_the_order_of_their_elements() {
    let file = tempfile::NamedTempFile::new().unwrap();
    save_npy(Tensor::new([[1.0, 2.0], [3.0, 4.0]]).unwrap().t().unwrap(), file.path()).unwrap();
    assert_eq!(StoredRows::npy(file.path()).unwrap().read().unwrap().to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn what_numpy_has_not_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let refused = |tensors: &[(&str, &AnyTensor)]| {
        let text = save_npz(tensors.iter().copied(), &path).unwrap_err().to_string();
        assert!(!path.exists());
        text.replace(&path.display().to_string(), "x.npz")
    };
    let one = AnyTensor::from(Tensor::ones([2]).unwrap());
    let half = one.to_dtype(DType::BF16).unwrap();
    assert_eq!(
        refused(&[("a", &one), ("w", &half)]),
        "cannot write `x.npz`: `w` is bfloat16, which NumPy does not have; convert it with `to_dtype(DType::F32)`"
    );
    assert_eq!(
        refused(&[("a", &one), ("a", &one)]),
        "cannot write `x.npz`: the name `a` is empty or used twice; give each array a name of its own"
    );
}
