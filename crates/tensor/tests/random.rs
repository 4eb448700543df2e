//! Random numbers: their distributions, and that every sequence replays.

use std::sync::Mutex;

use pagelock_tensor::{DType, Generator, Tensor, default_generator, manual_seed, set_num_threads, with_seed};

const N: usize = 1 << 20;

/// Held by tests that draw from the default generator.
static DEFAULT: Mutex<()> = Mutex::new(());

fn uniform(dtype: DType, generator: &Generator) -> Vec<f64> {
    Tensor::of(dtype).rand_with([N], generator).unwrap().to_vec().unwrap()
}

fn normal(dtype: DType, generator: &Generator) -> Vec<f64> {
    Tensor::of(dtype).randn_with([N], generator).unwrap().to_vec().unwrap()
}

/// The mean of `f` over the numbers.
fn mean(numbers: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    numbers.iter().map(|&x| f(x)).sum::<f64>() / numbers.len() as f64
}

/// Checks the mean of N numbers with this standard deviation. It may be off by five standard errors, and by the
/// `rounding` of the type.
fn assert_near(got: f64, expected: f64, deviation: f64, rounding: f64) {
    let allowed = 5.0 * deviation / (N as f64).sqrt() + rounding;
    assert!((got - expected).abs() < allowed, "{got} should be {expected} within {allowed}");
}

fn assert_uniform(dtype: DType, rounding: f64) {
    let numbers = uniform(dtype, &Generator::new(1));
    assert!(numbers.iter().all(|x| (0.0..1.0).contains(x)));
    assert_near(mean(&numbers, |x| x), 0.5, (1f64 / 12.0).sqrt(), rounding);
    assert_near(mean(&numbers, |x| x * x), 1.0 / 3.0, (4f64 / 45.0).sqrt(), rounding);
    for eighth in 0..8 {
        let low = f64::from(eighth) / 8.0;
        let share = mean(&numbers, |x| f64::from(u8::from((low..low + 0.125).contains(&x))));
        assert_near(share, 0.125, 0.33, rounding);
    }
}

#[test]
fn uniform_numbers_fill_the_unit_interval_evenly() {
    assert_uniform(DType::F32, 0.0);
    assert_uniform(DType::F64, 0.0);
    assert_uniform(DType::F16, 1e-3);
    assert_uniform(DType::BF16, 4e-3);
}

fn assert_normal(dtype: DType, rounding: f64) {
    let numbers = normal(dtype, &Generator::new(2));
    for (power, expected, deviation) in [(1, 0.0, 1.0), (2, 1.0, 1.42), (3, 0.0, 3.88), (4, 3.0, 9.8)] {
        assert_near(mean(&numbers, |x| x.powi(power)), expected, deviation, rounding);
    }
    for (bound, share) in [(0.5, 0.382_925), (1.0, 0.682_689), (2.0, 0.954_500), (3.0, 0.997_300)] {
        assert_near(mean(&numbers, |x| f64::from(u8::from(x.abs() < bound))), share, 0.5, rounding);
    }
    let neighbors: Vec<f64> = numbers.windows(2).map(|pair| pair[0] * pair[1]).collect();
    assert_near(mean(&neighbors, |x| x), 0.0, 1.0, rounding);
}

#[test]
fn normal_numbers_have_the_moments_and_the_shares_of_the_normal_distribution() {
    assert_normal(DType::F32, 0.0);
    assert_normal(DType::F64, 0.0);
    assert_normal(DType::F16, 2e-3);
    assert_normal(DType::BF16, 1e-2);
}

#[test]
fn doubles_use_bits_that_floats_do_not_have() {
    let numbers = uniform(DType::F64, &Generator::new(3));
    assert!(numbers.iter().any(|&x| f64::from(x as f32) != x));
    assert!(numbers.iter().any(|x| (x * (1u64 << 53) as f64) as u64 % 2 == 1));
}

#[test]
fn the_number_of_threads_does_not_change_the_numbers() {
    let draw = |threads| {
        set_num_threads(threads);
        let generator = Generator::new(4);
        (uniform(DType::F32, &generator), normal(DType::F64, &generator), generator.position())
    };
    let alone = draw(1);
    for threads in [2, 3] {
        assert!(draw(threads) == alone, "{threads} threads");
    }
}

#[test]
fn the_first_numbers_do_not_depend_on_how_many_follow() {
    let long = Tensor::randn_with([1000], &Generator::new(5)).unwrap().to_vec::<f32>().unwrap();
    for n in [1, 15, 16, 17, 63, 64, 65, 999] {
        let short = Tensor::randn_with([n], &Generator::new(5)).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(short, long[..n]);
    }
}

#[test]
fn consecutive_draws_never_share_a_number() {
    let generator = Generator::new(6);
    let draws: Vec<f64> =
        (1..200).flat_map(|n| Tensor::of(DType::F64).rand_with([n], &generator).unwrap().to_vec().unwrap()).collect();
    let mut distinct = draws.clone();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    assert_eq!(distinct.len(), draws.len());
}

#[test]
fn streams_of_one_seed_are_uncorrelated() {
    let root = Generator::new(7);
    let [a, b, c] = [&root, &root.stream(1), &root.stream(2)].map(|generator| normal(DType::F32, generator));
    for (x, y) in [(&a, &b), (&a, &c), (&b, &c)] {
        let products: Vec<f64> = x.iter().zip(y).map(|(x, y)| x * y).collect();
        assert_near(mean(&products, |x| x), 0.0, 1.0, 0.0);
    }
}

#[test]
fn a_stream_depends_on_its_number_and_not_on_what_was_drawn_before() {
    let (fresh, used) = (Generator::new(8), Generator::new(8));
    used.next_u64();
    assert_eq!(fresh.stream(3).next_u64(), used.stream(3).next_u64());
    assert_ne!(fresh.stream(3).next_u64(), fresh.stream(4).next_u64());
    assert_ne!(fresh.stream(3).next_u64(), Generator::new(9).stream(3).next_u64());
}

#[test]
fn going_back_to_a_position_replays_what_followed() {
    let generator = Generator::new(10);
    generator.next_u64();
    let position = generator.position();
    let first = (generator.next_f64(), uniform(DType::F32, &generator), generator.below(1000));

    generator.set_position(position);

    assert!(first == (generator.next_f64(), uniform(DType::F32, &generator), generator.below(1000)));
}

#[test]
fn random_permutations_hold_every_number_once_and_differ() {
    let generator = Generator::new(11);
    let [first, second] = [(); 2].map(|()| Tensor::randperm_with(1000, &generator).unwrap().to_vec::<i64>().unwrap());
    assert_ne!(first, second);
    for mut permutation in [first, second] {
        permutation.sort_unstable();
        assert!(permutation.into_iter().eq(0..1000));
    }
    assert!(Tensor::randperm_with(0, &generator).unwrap().is_empty());
}

#[test]
fn every_order_of_three_is_equally_likely() {
    let generator = Generator::new(12);
    let mut counts = std::collections::HashMap::new();
    for _ in 0..6000 {
        let mut order = [0, 1, 2];
        generator.shuffle(&mut order);
        *counts.entry(order).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|&count| (850..1150).contains(&count)), "{counts:?}");
}

/// The only test here that draws from the default generator, since others would move it meanwhile.
#[test]
fn a_manual_seed_replays_the_default_generator() {
    let _alone = DEFAULT.lock();
    let draw = || {
        let tensors = (Tensor::rand([100]).unwrap(), Tensor::randn([100]).unwrap(), Tensor::randperm(100).unwrap());
        (tensors.0.to_vec::<f32>().unwrap(), tensors.1.to_vec::<f32>().unwrap(), tensors.2.to_vec::<i64>().unwrap())
    };
    manual_seed(13);
    let (first, next) = (draw(), draw());
    manual_seed(13);
    assert_eq!(draw(), first);
    assert_eq!(draw(), next);
    manual_seed(14);
    assert_ne!(draw(), first);
}

/// A seed gives the same bits in every version, and on a GPU. If you change a function that `fill.rs` uses, change
/// `random.cu` too, and tell users that their runs do not repeat.
#[test]
fn a_seed_always_gives_the_same_bits() {
    let bits_of = |dtype| {
        let numbers = normal(dtype, &Generator::new(1));
        numbers.iter().fold(0, |all: u64, x| all.rotate_left(7) ^ x.to_bits())
    };
    assert_eq!((bits_of(DType::F32), bits_of(DType::F64)), (2_920_422_069_707_757_808, 17_502_158_054_473_671_924));
}

/// In each row, shares are those of the weights within five standard errors. A position without weight is never
/// drawn.
#[test]
fn places_are_drawn_as_often_as_their_weights_say() {
    for weights in [[0.0, 3.0, 1.0, 0.0], [0.0, 0.0, 7.0, 0.0], [1e-300, 0.0, 3e-300, 0.0], [5e-324, 0.0, 0.0, 0.0]] {
        let total: f64 = weights.iter().sum();
        for dtype in [DType::F64, DType::F16] {
            if dtype == DType::F16 && total < 1.0 {
                continue; // these weights are zeros in halves
            }
            let rows = Tensor::of(dtype).new([weights, weights]).unwrap();
            let places = rows.multinomial_with(N, true, &Generator::new(3)).unwrap().to_vec::<i64>().unwrap();
            for row in places.chunks(N) {
                for (place, weight) in weights.iter().enumerate() {
                    let share = row.iter().filter(|&&drawn| drawn == place as i64).count() as f64 / N as f64;
                    let expected = weight / total;
                    assert_near(share, expected, (expected * (1.0 - expected)).sqrt(), f64::MIN_POSITIVE);
                }
            }
            let is_certain = weights.iter().filter(|&&weight| weight > 0.0).count() == 1;
            assert!(is_certain || places[..N] != places[N..], "rows are drawn apart");
        }
    }
}

/// Without replacement every place is drawn once, and those without weight last.
#[test]
fn places_that_are_not_put_back_are_drawn_once() {
    let weights = Tensor::new([0.0, 2.0, 1.0]).unwrap();
    for seed in 0..50 {
        let drawn = weights.multinomial_with(3, false, &Generator::new(seed)).unwrap().to_vec::<i64>().unwrap();
        assert!(drawn == [1, 2, 0] || drawn == [2, 1, 0], "{drawn:?}");
    }
}

#[test]
fn multinomial_refuses_weights_without_a_finite_positive_sum() {
    let _alone = DEFAULT.lock();
    let refused = |weights: Tensor| weights.multinomial(2, true).unwrap_err().to_string();
    let expected = "its elements must be at least 0, and each row needs a finite sum above 0";
    for weights in [[1.0, -1.0, 2.0], [1.0, f32::NAN, 1.0], [0.0; 3], [1.0, f32::INFINITY, 1.0]] {
        let message = refused(Tensor::new([[1.0; 3], weights]).unwrap());
        assert!(message.starts_with("multinomial: the tensor is [2, 3]") && message.ends_with(expected), "{message}");
    }
    assert!(refused(Tensor::zeros([2, 0]).unwrap()).contains("must have elements"));
    assert!(refused(Tensor::ones([1, 1, 1]).unwrap()).contains("one or two dimensions"));
    assert_eq!(
        Tensor::ones([3]).unwrap().multinomial(4, false).unwrap_err().to_string(),
        "multinomial: samples is 4, but without replacement, at most 3 can be drawn from [3]"
    );
}

#[test]
fn a_scope_with_a_seed_leaves_the_default_generator_as_it_was() {
    let _alone = DEFAULT.lock();
    manual_seed(3);
    let first = Tensor::randn([5]).unwrap();
    let before = default_generator().state();
    let draw = || Tensor::randn([5]).unwrap().to_vec::<f32>().unwrap();
    let [inside, again] = [0; 2].map(|_| with_seed(9, || [draw(), with_seed(9, draw), draw()]));
    assert_eq!(inside, again);
    assert_eq!(inside[0], inside[1]);
    assert_ne!(inside[0], inside[2]);
    assert_eq!(inside[0], Tensor::randn_with([5], &Generator::new(9)).unwrap().to_vec::<f32>().unwrap());
    with_seed(1, || manual_seed(9));
    assert!(std::panic::catch_unwind(|| with_seed(1, || panic!("inside"))).is_err());
    assert_eq!(default_generator().state(), before);
    manual_seed(3);
    assert_eq!(Tensor::randn([5]).unwrap().to_vec::<f32>().unwrap(), first.to_vec::<f32>().unwrap());
}
