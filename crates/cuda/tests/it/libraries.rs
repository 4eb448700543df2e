//! NVIDIA's libraries: products, convolutions and attention of few numbers that can be checked by hand, and what is refused.

use pagelock_cuda::{
    Device, DeviceBuffer, Error, LibraryAbsence, Pinned,
    library::{
        Attention, AttentionGrads, Blas, Choice, Convolution, ConvolutionKind, DataType, Dnn, Exactness, Layout4,
        Matrices, Product,
    },
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
        image: Layout4::without_gaps([1, 8, 4, 4]),
        weight: Layout4::without_gaps([8, 8, 3, 3]),
        result: Layout4::without_gaps([1, 8, 4, 4]),
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
fn attention_with_scores_of_zero_takes_means_of_values_and_sizes_have_to_belong_together() {
    let Some((device, dnn)) = there(Dnn::new) else { return };
    if device.properties().compute_capability.0 != 9 {
        return eprintln!("SKIPPED: {} is no Hopper GPU", device.properties().name);
    }
    const WORDS: usize = 128;
    let stream = device.stream().unwrap();
    let halves = |number: fn(usize) -> f32| {
        let bits: Vec<u16> = (0..WORDS * 64).map(|i| (number(i / 64).to_bits() >> 16) as u16).collect();
        let mut buffer = stream.allocate::<u16>(bits.len()).unwrap();
        stream.upload(Pinned::from_slice(&device, &bits).unwrap(), &mut buffer).unwrap().wait().unwrap();
        buffer
    };
    let numbers = |buffer: &DeviceBuffer<u16>| -> Vec<f32> {
        let bits = stream.read(buffer).unwrap();
        bits.iter().step_by(64).map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
    };
    let (zeros, words, ones) = (halves(|_| 0.0), halves(|word| word as f32), halves(|_| 1.0));
    let (mut out, mut log_sums) = (halves(|_| f32::NAN), stream.zeros::<f32>(WORDS).unwrap());
    let layout = Layout4::without_gaps([1, 1, WORDS, 64]);
    let attention = Attention {
        data_type: DataType::Bf16,
        is_causal: true,
        choice: Choice::First,
        query: layout,
        key: layout,
        value: layout,
        result: layout,
    };
    let inputs = [zeros.view().bytes(), zeros.view().bytes(), words.view().bytes()];

    let (to, sums) = (out.view_mut().bytes(), log_sums.view_mut().bytes());
    match dnn.attend(&stream, &attention, 1.0, inputs, to, sums) {
        Err(Error::Library { status: 0, .. }) => return eprintln!("SKIPPED: cuDNN is older than 9.10.2"),
        done => done.unwrap(),
    }
    let of = attention;
    let grads =
        AttentionGrads { of, result: layout, query: layout, key: layout, value: layout, is_deterministic: true };
    let [mut query_grad, mut key_grad, mut value_grad] = [0; 3].map(|_| halves(|_| f32::NAN));
    let kept = [out.view().bytes(), log_sums.view().bytes(), ones.view().bytes()];
    let made = [&mut query_grad, &mut key_grad, &mut value_grad].map(|grad| grad.view_mut().bytes());
    dnn.attend_grads(&stream, &grads, 1.0, inputs, kept, made).unwrap();
    let unfit = Attention { key: Layout4::without_gaps([1, 1, WORDS - 1, 64]), ..attention };
    let (to, sums) = (out.view_mut().bytes(), log_sums.view_mut().bytes());
    let error = dnn.attend(&stream, &unfit, 1.0, inputs, to, sums).unwrap_err();

    // Word i is the mean of 0 to i; the sum of its exponentials i + 1.
    let means = numbers(&out);
    assert!(means.iter().enumerate().all(|(i, &mean)| (mean - i as f32 / 2.0).abs() <= 0.01 * i as f32), "{means:?}");
    let sums = stream.read(&log_sums).unwrap();
    assert!(sums.iter().enumerate().all(|(i, &sum)| (sum - (i as f32 + 1.0).ln()).abs() < 1e-4), "{sums:?}");
    // Value j is 1/(i + 1) of each word i from j on.
    let of_values = numbers(&value_grad);
    let expected = |j: usize| (j..WORDS).map(|i| 1.0 / (i as f32 + 1.0)).sum::<f32>();
    assert!(of_values.iter().enumerate().all(|(j, &of_value)| (of_value - expected(j)).abs() < 0.02), "{of_values:?}");
    assert!(numbers(&query_grad).iter().chain(&numbers(&key_grad)).all(|&grad| grad == 0.0), "all keys are equal");
    assert!(error.to_string().starts_with("cuDNN refuses attention of [1, 1, 128, 64] to [1, 1, 127, 64]"), "{error}");
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
