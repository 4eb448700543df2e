//! NVIDIA's libraries: products, convolutions and attention small enough to check by hand, and what is refused.

use pagelock_cuda::{
    Device, DeviceBuffer, Error, LibraryAbsence, Pinned,
    library::{
        Attention, AttentionGrads, Blas, Choice, Convolution, ConvolutionKind, DataType, Dnn, Exactness, Layout4,
        Matrices, Product,
    },
    software::Config,
};

use crate::tools::{Gpu, gpu, pattern};

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
    // Whole numbers up to 12. bfloat16 can represent them, but few of their sums.
    let numbers = |seed| -> Vec<f32> { pattern(seed, 64 * 1024).into_iter().map(|bits| (bits % 13) as f32).collect() };
    let halves = |numbers: &[f32]| {
        let bits: Vec<u16> = numbers.iter().map(|&number| bfloat16(number)).collect();
        stream.allocate_from(&bits).unwrap()
    };
    let (a, b) = (numbers(1), numbers(2));
    let (left, right) = (halves(&a), halves(&b));
    let mut out = stream.zeros::<f32>(64 * 64).unwrap();
    let across = Matrices { row: 1, column: 64, batch: 0 };
    let wide = Product { left: across, factors: DataType::Bf16, ..product([64, 1024, 64]) };

    let factors = [left.view().bytes(), right.view().bytes()];
    blas.multiply(&stream, &wide, factors, None, out.view_mut().bytes()).unwrap();

    let sum = |i: usize, j: usize| (0..1024).map(|k| a[64 * k + i] * b[64 * k + j]).sum::<f32>();
    let expected: Vec<f32> = (0..64 * 64).map(|at| sum(at / 64, at % 64)).collect();
    assert_eq!(stream.read(&out).unwrap(), expected);
}

#[test]
fn matrices_beyond_their_buffers_are_refused() {
    let Some((device, blas)) = there(Blas::new) else { return };
    let stream = device.stream().unwrap();
    let (small, mut out) = (stream.zeros::<f32>(63).unwrap(), stream.zeros::<f32>(64).unwrap());
    let factors = [small.view().bytes(); 2];

    let error = blas.multiply(&stream, &product([8, 8, 8]), factors, None, out.view_mut().bytes()).unwrap_err();
    let empty = blas.multiply(&stream, &product([8, 0, 8]), factors, None, out.view_mut().bytes()).unwrap_err();

    assert_eq!(error.to_string(), "the range 0..256 is not inside a buffer of 252 elements");
    assert!(empty.to_string().starts_with("cuBLASLt is not used for [8, 0] · [0, 8] of F32: "), "{empty}");
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
    assert!(error.to_string().starts_with("cuDNN is not used for Forward of image [1, 8, 4, 4] and weight"), "{error}");
}

#[test]
fn attention_with_scores_of_zero_takes_means_of_values_and_sizes_have_to_belong_together() {
    let Some((device, dnn)) = there(Dnn::new) else { return };
    if device.properties().compute_capability.0 != 9 {
        return eprintln!("SKIPPED: {} is no Hopper GPU", device.properties().name);
    }
    const WORDS: usize = 128;
    let stream = device.stream().unwrap();
    let halves = |number: fn(usize, usize) -> f32| {
        let bits: Vec<u16> = (0..WORDS * 64).map(|i| bfloat16(number(i / 64, i % 64))).collect();
        let mut buffer = stream.allocate::<u16>(bits.len()).unwrap();
        stream.upload(Pinned::from_slice(&device, &bits).unwrap(), &mut buffer).unwrap().wait().unwrap();
        buffer
    };
    let numbers = |buffer: &DeviceBuffer<u16>, column: usize| -> Vec<f32> {
        let bits = stream.read(buffer).unwrap();
        bits.iter().skip(column).step_by(64).map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
    };
    // No column has numbers of both queries and keys. So all scores are zero, and their gradients are not.
    let queries = halves(|word, column| if column < 32 { (word + 1) as f32 / 64.0 } else { 0.0 });
    let keys = halves(|word, column| if column < 32 { 0.0 } else { word as f32 / 64.0 });
    let (words, ones) = (halves(|word, _| word as f32), halves(|_, _| 1.0));
    let (mut out, mut log_sums) = (halves(|_, _| f32::NAN), stream.zeros::<f32>(WORDS).unwrap());
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
    let inputs = [queries.view().bytes(), keys.view().bytes(), words.view().bytes()];

    let (to, sums) = (out.view_mut().bytes(), log_sums.view_mut().bytes());
    match dnn.attend(&stream, &attention, 1.0, inputs, to, sums) {
        Err(Error::Unsupported { .. }) => return eprintln!("SKIPPED: cuDNN is older than 9.10.2"),
        done => done.unwrap(),
    }
    let of = attention;
    let grads =
        AttentionGrads { of, result: layout, query: layout, key: layout, value: layout, is_deterministic: true };
    let [mut query_grad, mut key_grad, mut value_grad] = [0; 3].map(|_| halves(|_, _| f32::NAN));
    let kept = [out.view().bytes(), log_sums.view().bytes(), ones.view().bytes()];
    let made = [&mut query_grad, &mut key_grad, &mut value_grad].map(|grad| grad.view_mut().bytes());
    dnn.attend_grads(&stream, &grads, 1.0, inputs, kept, made).unwrap();
    let unfit = Attention { key: Layout4::without_gaps([1, 1, WORDS - 1, 64]), ..attention };
    let (to, sums) = (out.view_mut().bytes(), log_sums.view_mut().bytes());
    let error = dnn.attend(&stream, &unfit, 1.0, inputs, to, sums).unwrap_err();

    // Result i is the mean of 0 to i, and the sum of its exponentials is i + 1.
    let means = numbers(&out, 0);
    assert!(means.iter().enumerate().all(|(i, &mean)| (mean - i as f32 / 2.0).abs() <= 0.01 * i as f32), "{means:?}");
    let sums = stream.read(&log_sums).unwrap();
    assert!(sums.iter().enumerate().all(|(i, &sum)| (sum - (i as f32 + 1.0).ln()).abs() < 1e-4), "{sums:?}");
    // Value j contributes 1/(i + 1) to each result i from j on.
    let of_values = numbers(&value_grad, 0);
    let expected = |j: usize| (j..WORDS).map(|i| 1.0 / (i as f32 + 1.0)).sum::<f32>();
    assert!(of_values.iter().enumerate().all(|(j, &of_value)| (of_value - expected(j)).abs() < 0.02), "{of_values:?}");
    // Result i is the sum of words j, each with the weight 1/(i + 1), and has the gradient 1 in 64 columns.
    let of_score = |i: usize, j: usize| 64.0 * (j as f32 - i as f32 / 2.0) / (i as f32 + 1.0);
    assert_near(&numbers(&query_grad, 63), |i| (0..=i).map(|j| of_score(i, j) * j as f32 / 64.0).sum());
    assert_near(&numbers(&key_grad, 0), |j| (j..WORDS).map(|i| of_score(i, j) * (i + 1) as f32 / 64.0).sum());
    let elsewhere = [numbers(&query_grad, 0), numbers(&key_grad, 63)].concat();
    assert!(elsewhere.iter().all(|&grad| grad == 0.0), "the keys, or the queries, are zero there: {elsewhere:?}");
    assert!(
        error.to_string().starts_with("cuDNN is not used for attention of query [1, 1, 128, 64], key [1, 1, 127, 64]"),
        "{error}"
    );
}

#[test]
fn a_device_made_of_software_has_no_libraries() {
    let device = Device::software(Config::default()).unwrap();
    for missing in [Blas::new(&device).unwrap_err(), Dnn::new(&device).unwrap_err()] {
        // Which of the two depends on whether this machine has the library.
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

/// The bits of a number in bfloat16, rounded toward zero.
fn bfloat16(number: f32) -> u16 {
    (number.to_bits() >> 16) as u16
}

/// Panics if a number differs from the expected one by more than 2 % of the largest expected number.
#[track_caller]
fn assert_near(found: &[f32], expected: impl Fn(usize) -> f32) {
    let expected: Vec<f32> = (0..found.len()).map(expected).collect();
    let largest = expected.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 0.02 * largest;
    assert!(found.iter().zip(&expected).all(is_near), "{found:?} instead of {expected:?}");
}

/// The GPU and the library. Prints what is missing and returns `None` if there is no GPU or no library.
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
