//! NVIDIA's libraries: products and convolutions of few numbers that can be checked by hand, and what is refused.

use pagelock_cuda::{
    Device, Error, LibraryAbsence, Pinned,
    library::{Blas, Choice, Convolution, ConvolutionKind, DataType, Dnn, Exactness, Layout4, Matrices, Product},
    software::Config,
};

use crate::tools::{Gpu, gpu};

/// The product of `[m, k]` and `[k, n]` matrices without gaps.
fn product([m, k, n]: [usize; 3]) -> Product {
    Product {
        sizes: [m, n, k],
        batches: 1,
        left: Matrices { row: k, column: 1, batch: 0 },
        right: Matrices { row: n, column: 1, batch: 0 },
        factors: DataType::F32,
        results: DataType::F32,
        exactness: Exactness::Exact,
        has_bias: false,
    }
}

fn without_gaps(sizes: [usize; 4]) -> Layout4 {
    let [_, channels, height, width] = sizes;
    Layout4 { sizes, strides: [channels * height * width, height * width, width, 1] }
}

#[test]
fn a_product_has_a_bias_in_each_row() {
    let Some((device, blas)) = there(Blas::new) else { return };
    let stream = device.stream().unwrap();
    let numbers = |values: &[f32]| {
        let mut buffer = stream.allocate::<f32>(values.len()).unwrap();
        stream.upload(Pinned::from_slice(&device, values).unwrap(), &mut buffer).unwrap().wait().unwrap();
        buffer
    };
    let (a, b, bias) = (numbers(&[1.0, 2.0, 3.0, 4.0]), numbers(&[5.0, 6.0, 7.0, 8.0]), numbers(&[100.0, 200.0]));
    let mut out = stream.zeros::<f32>(4).unwrap();
    let with_bias = Product { has_bias: true, ..product([2, 2, 2]) };

    let factors = [a.view().bytes(), b.view().bytes()];
    blas.multiply(&stream, &with_bias, factors, Some(bias.view().bytes()), out.view_mut().bytes()).unwrap();

    assert_eq!(stream.read(&out).unwrap(), [119.0, 222.0, 143.0, 250.0]);
}

#[test]
fn a_transposed_factor_and_halves_whose_sums_are_wide() {
    let Some((device, blas)) = there(Blas::new) else { return };
    let stream = device.stream().unwrap();
    let one = 0x3f80_u16; // 1 in bfloat16
    let mut ones = stream.allocate::<u16>(64 * 1024).unwrap();
    stream.fill(&mut ones, one).unwrap();
    let mut out = stream.zeros::<f32>(64 * 64).unwrap();
    let across = Matrices { row: 1, column: 64, batch: 0 };
    let wide = Product { left: across, factors: DataType::Bf16, ..product([64, 1024, 64]) };

    let ones = ones.view().bytes();
    blas.multiply(&stream, &wide, [ones; 2], None, out.view_mut().bytes()).unwrap();

    assert_eq!(stream.read(&out).unwrap(), [1024.0; 64 * 64]);
}

#[test]
fn matrices_beyond_their_buffers_are_refused() {
    let Some((device, blas)) = there(Blas::new) else { return };
    let stream = device.stream().unwrap();
    let (small, mut out) = (stream.zeros::<f32>(63).unwrap(), stream.zeros::<f32>(64).unwrap());
    let factors = [small.view().bytes(); 2];

    let error = blas.multiply(&stream, &product([8, 8, 8]), factors, None, out.view_mut().bytes()).unwrap_err();
    let empty = blas.multiply(&stream, &product([8, 0, 8]), factors, None, out.view_mut().bytes()).unwrap_err();

    assert!(matches!(error, Error::Range { start: 0, end: 256, len: 252 }), "{error}");
    assert!(empty.to_string().starts_with("cuBLASLt refuses [8, 0] · [0, 8] of F32: "), "{empty}");
}

#[test]
fn a_convolution_of_ones_counts_what_it_sees_and_sizes_have_to_belong_together() {
    let Some((device, dnn)) = there(Dnn::new) else { return };
    let stream = device.stream().unwrap();
    let mut ones = stream.allocate::<f32>(8 * 8 * 3 * 3).unwrap();
    stream.fill(&mut ones, 1.0).unwrap();
    let mut out = stream.zeros::<f32>(8 * 4 * 4).unwrap();
    let convolution = Convolution {
        kind: ConvolutionKind::Forward,
        data_type: DataType::F32,
        exactness: Exactness::Exact,
        choice: Choice::First,
        image: without_gaps([1, 8, 4, 4]),
        weight: without_gaps([8, 8, 3, 3]),
        result: without_gaps([1, 8, 4, 4]),
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
    };

    let inputs = [ones.view().bytes(); 2];
    dnn.convolve(&stream, &convolution, inputs, out.view_mut().bytes()).unwrap();
    let unfit = Convolution { padding: [0, 1], ..convolution };
    let error = dnn.convolve(&stream, &unfit, inputs, out.view_mut().bytes()).unwrap_err();

    let seen = [32.0, 48.0, 48.0, 32.0, 48.0, 72.0, 72.0, 48.0, 48.0, 72.0, 72.0, 48.0, 32.0, 48.0, 48.0, 32.0];
    let found = stream.read(&out).unwrap();
    assert!(found.iter().zip(seen.iter().cycle()).all(|(found, seen)| (found - seen).abs() < 1e-4), "{found:?}");
    assert!(error.to_string().starts_with("cuDNN refuses Forward of image [1, 8, 4, 4] and weight"), "{error}");
}

#[test]
fn a_device_made_of_software_has_no_libraries() {
    let device = Device::software(Config::default()).unwrap();
    for missing in [Blas::new(&device).unwrap_err(), Dnn::new(&device).unwrap_err()] {
        // One of the two, depending on whether this machine has the library.
        assert!(
            matches!(missing, Error::NoLibrary(LibraryAbsence::OtherDevice { .. } | LibraryAbsence::NoLibrary { .. })),
            "{missing}"
        );
    }
}

#[test]
fn a_missing_library_is_said_with_where_it_was_looked_for() {
    let missing = LibraryAbsence::NoLibrary {
        library: "cuDNN",
        names: "libcudnn.so.9, libcudnn.so".to_owned(),
        folders: vec!["/opt/cuda/lib64".to_owned()],
        install: "install cuDNN 9 or `pip install nvidia-cudnn-cu13`",
        variable: "PAGELOCK_CUDNN",
    };
    assert_eq!(
        Error::NoLibrary(missing).to_string(),
        "no cuDNN: the dynamic linker finds none of libcudnn.so.9, libcudnn.so, and it is not in /opt/cuda/lib64; install \
         cuDNN 9 or `pip install nvidia-cudnn-cu13`, or name the library's folder in PAGELOCK_CUDNN"
    );
}

/// The library with its device; none, after saying so, where there is none.
fn there<L>(library: impl FnOnce(&Device) -> Result<L, Error>) -> Option<(Gpu, L)> {
    let gpu = gpu()?;
    match library(&gpu) {
        Ok(library) => Some((gpu, library)),
        Err(missing) => {
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}
