//! What a file has in some precision is read in that precision, as the kind that is asked for; another kind is refused.

mod content;
mod problem;

use std::path::PathBuf;

use pagelock_data::{CsvTable, Dataset, StoredRows};
use pagelock_tensor::{Bool, DType, Float, Int, Tensor};
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
        assert_eq!(text, format!("its elements are {dtype}, which are no integers; open it as StoredRows::<Float>"));
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
        assert_eq!(text, format!("its elements are {dtype}, which are no bools; open it as StoredRows::<Int>"));
    }
    let (_folder, path) = npy("|b1", &[1, 0]);
    assert_eq!(StoredRows::<Bool>::npy(&path).unwrap().read().unwrap().to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(
        problem(StoredRows::<Float>::npy(&path)),
        "its elements are bool, which are no floats; open it as StoredRows::<Bool>"
    );
    assert_eq!(
        problem(StoredRows::<Int>::raw(&path, DType::F32, &[1])),
        "its elements are float32, which are no integers; open it as StoredRows::<Float>"
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
    assert!(other_kind.contains("float32 is no precision of integer tensors"), "{other_kind}");
}
