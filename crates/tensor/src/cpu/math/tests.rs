//! Accuracy of the elementary functions, against the standard library in twice the precision or in the same.

use super::{Division, Functions, angles, erf, f32 as single, f64 as double};

/// About one in a thousand of all floats, and edge cases.
fn floats() -> impl Iterator<Item = f32> {
    let edges =
        [0.0, 1e-45, f32::MIN_POSITIVE, 1.0, 88.72284, 88.72283, 103.97, 0.625, f32::MAX, f32::INFINITY, f32::NAN];
    let some = (0..=u32::MAX).step_by(1_021).map(f32::from_bits);
    edges.into_iter().flat_map(|x| [x, -x]).chain(some)
}

/// The largest error of `f` in units in the last place, and where it is.
fn worst_single(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
    let error = |x: f32| {
        let (y, exact) = (f(x), exact(f64::from(x)));
        if y == exact as f32 || y.is_nan() && exact.is_nan() {
            return 0.0;
        }
        let magnitude = (exact as f32).abs().clamp(f32::MIN_POSITIVE, f32::MAX);
        let unit = f64::from(magnitude) - f64::from(f32::from_bits(magnitude.to_bits() - 1));
        (f64::from(y) - exact).abs() / unit
    };
    floats().map(|x| (error(x), x)).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

/// The model of [`single::exp_below`], which is 0 below a bound.
fn exp_below(x: f64) -> f64 {
    if x < f64::from(-88.722_84_f32) { 0.0 } else { x.exp() }
}

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

#[test]
fn single_precision_is_within_two_units_in_the_last_place() {
    for (name, (error, x)) in [
        ("exp", worst_single(single::exp, f64::exp)),
        ("exp_below", worst_single(|x| single::exp_below(-x.abs()), |x| exp_below(-x.abs()))),
        ("ln", worst_single(single::ln, f64::ln)),
        ("tanh", worst_single(single::tanh, f64::tanh)),
        ("sigmoid", worst_single(single::sigmoid, |x| if exp_below(x) == 0.0 { 0.0 } else { sigmoid(x) })),
        ("sin", worst_single(|x| if x.is_far() { x.far_sin() } else { Functions::sin(x) }, libm::sin)),
        ("cos", worst_single(|x| if x.is_far() { x.far_cos() } else { Functions::cos(x) }, libm::cos)),
        ("asin", worst_single(single::asin, libm::asin)),
        ("acos", worst_single(single::acos, libm::acos)),
        ("log1p", worst_single(single::ln_1p, libm::log1p)),
        ("one_minus_exp_below", worst_single(|x| single::one_minus_exp_below(-x.abs()), |x| -(-x.abs()).exp_m1())),
        ("log1p_exp", worst_single(|x| single::log1p_exp(-x.abs()), |x| (-x.abs()).exp().ln_1p())),
        ("exp2", worst_single(single::exp2, libm::exp2)),
        ("log2", worst_single(single::log2, libm::log2)),
        ("log10", worst_single(single::log10, libm::log10)),
        ("erf", worst_single(single::erf, libm::erf)),
        ("erfinv", worst_single(single::erfinv, erf::erfinv)),
    ] {
        println!("{name}: {error} at {x:e}");
        assert!(error < 2.0, "{name}({x:e}) is off by {error} units");
    }
}

/// Numbers of all magnitudes, and many near 1.
fn doubles() -> impl Iterator<Item = f64> {
    let edges =
        [0.0, 5e-324, f64::MIN_POSITIVE, 1.0, 709.782, 709.783, 745.13, 0.625, f64::MAX, f64::INFINITY, f64::NAN];
    let all = (0..2_000_000_u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let near_one = (0..2_000_000).map(|i| f64::from(i) * 1.000_123e-5);
    edges.into_iter().chain(all).chain(near_one).flat_map(|x| [x, -x])
}

/// The largest difference between `f` and `model` in units in the last place, and where it is.
fn worst_double(f: impl Fn(f64) -> f64, model: impl Fn(f64) -> f64) -> (u64, f64) {
    worst_of(doubles(), f, model)
}

/// The largest difference between `f` and `model` for these numbers, in units in the last place, and where it is.
fn worst_of(numbers: impl Iterator<Item = f64>, f: impl Fn(f64) -> f64, model: impl Fn(f64) -> f64) -> (u64, f64) {
    let error = |x: f64| {
        let (y, model) = (f(x), model(x));
        if y == model || y.is_nan() && model.is_nan() { 0 } else { y.to_bits().abs_diff(model.to_bits()) }
    };
    numbers.map(|x| (error(x), x)).max_by_key(|worst| worst.0).unwrap()
}

/// The tail of the distribution function is as precise as the square in its exponent.
#[test]
fn the_distribution_function_has_few_errors_up_to_its_tail() {
    let normal = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    for (least, most) in [(-0.5, 4.0), (-5.0, 25.0), (-12.5, 120.0)] {
        let within = |x: f64, y: f64| if x < least { 0.0 } else { y };
        let (error, x) =
            worst_single(|x| within(x.into(), single::normal_and_bell(x).0.into()) as f32, |x| within(x, normal(x)));
        assert!(error < most, "Φ({x:e}) is off by {error} units");
    }
}

/// The model has errors of its own, of up to one unit (two for `tanh`).
#[test]
fn double_precision_is_near_the_standard_library() {
    for (name, (error, x)) in [
        ("exp", worst_double(double::exp, f64::exp)),
        ("ln", worst_double(double::ln, f64::ln)),
        ("ln_1p", worst_double(double::ln_1p, f64::ln_1p)),
        ("ln_1p near 0", worst_double(|x| double::ln_1p(x * 1e-9), |x| (x * 1e-9).ln_1p())),
        ("tanh", worst_double(double::tanh, f64::tanh)),
        ("sigmoid", worst_double(double::sigmoid, sigmoid)),
    ] {
        println!("{name}: {error} at {x:e}");
        assert!(error <= 3, "{name}({x:e}) differs by {error} units");
    }
}

#[test]
fn functions_of_double_precision_are_near_the_libm_crate() {
    fn worst_few(f: impl Fn(f64) -> f64, model: impl Fn(f64) -> f64) -> (u64, f64) {
        worst_of(doubles().step_by(11), f, model)
    }
    for (name, (error, x)) in [
        ("exp2", worst_few(double::exp2, f64::exp2)),
        ("expm1", worst_few(double::exp_m1, f64::exp_m1)),
        ("log2", worst_few(double::log2, f64::log2)),
        ("log10", worst_few(double::log10, f64::log10)),
        ("sinh", worst_few(double::sinh, libm::sinh)),
        ("cosh", worst_few(double::cosh, libm::cosh)),
        ("acosh", worst_few(|x| double::acosh(x.abs() + 1.0), |x| libm::acosh(x.abs() + 1.0))),
        ("atanh", worst_few(double::atanh, libm::atanh)),
        ("one_minus_exp_below", worst_few(|x| double::one_minus_exp_below(-x.abs()), |x| -(-x.abs()).exp_m1())),
        ("log1p_exp", worst_few(|x| double::log1p_exp(-x.abs()), |x| (-x.abs()).exp().ln_1p())),
        ("sin", worst_few(|x| if x.is_far() { x } else { angles::sin(x) }, |x| if x.is_far() { x } else { x.sin() })),
        ("cos", worst_few(|x| if x.is_far() { x } else { angles::cos(x) }, |x| if x.is_far() { x } else { x.cos() })),
        ("tan", worst_few(|x| if x.is_far() { x } else { angles::tan(x) }, |x| if x.is_far() { x } else { x.tan() })),
        ("asin", worst_few(angles::asin, libm::asin)),
        ("acos", worst_few(angles::acos, libm::acos)),
        ("atan", worst_few(angles::atan, libm::atan)),
        ("atan2", worst_few(|x| angles::atan2(x, -1e-300), |x| libm::atan2(x, -1e-300))),
        ("erf", worst_few(erf::erf, libm::erf)),
    ] {
        println!("{name}: {error} at {x:e}");
        assert!(error <= 3, "{name}({x:e}) differs by {error} units");
    }
}

#[test]
fn the_inverse_of_the_error_function_leads_back() {
    for x in doubles().step_by(11).filter(|x| x.abs() < 1.0) {
        let back = libm::erf(erf::erfinv(x));
        assert!((back - x).abs() <= 1e-15 * x.abs() + 5e-324, "{x:e} became {back:e}");
    }
    assert_eq!([1.0, -1.0].map(erf::erfinv), [f64::INFINITY, f64::NEG_INFINITY]);
    assert!([1.5, -1.5, f64::NAN].into_iter().all(|x| erf::erfinv(x).is_nan()));
}

#[test]
fn remainders_are_those_of_the_standard_library() {
    let edges = [0, 1, 2, 3, 7, 1 << 31, (1 << 50) - 1, 1 << 50, (1 << 51) - 1, (1 << 53) + 1, i64::MAX, i64::MIN];
    let spread = (0..400_i64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)) >> (i % 60));
    let all: Vec<i64> = edges.into_iter().chain(spread).flat_map(|x| [x, x.wrapping_neg()]).collect();
    for (&a, &b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        for (a, b) in [(a, b), (a.wrapping_mul(b), b), (a.wrapping_mul(b).wrapping_sub(1), b)] {
            let exact = if b == 0 { 0 } else { (i128::from(a) % i128::from(b)) as i64 };
            let quotient = if b == 0 { 0 } else { i128::from(a).div_euclid(i128::from(b)) };
            let floor = quotient - i128::from(b < 0 && i128::from(a).rem_euclid(i128::from(b)) != 0);
            assert_eq!((a.fmod(b), a.floor_div(b)), (exact, floor as i64), "{a} and {b}");
            if !a.needs_long_division(b) {
                assert_eq!((a.near_fmod(b), a.near_floor_div(b)), (exact, floor as i64), "{a} and {b}");
            }
        }
    }
    let pairs = doubles().step_by(7).zip(doubles().skip(3).step_by(5));
    let close = (0..100_000).map(|i| (f64::from(i) * 0.1, 0.1 + f64::from(i % 7)));
    for (a, b) in pairs.chain(close).flat_map(|(a, b)| [(a, b), (a * b, b)]) {
        let (c, d) = (a as f32, b as f32);
        let is_right = |rest: f64, exact: f64| rest.to_bits() == exact.to_bits() || rest.is_nan() && exact.is_nan();
        assert!(a.needs_long_division(b) || is_right(a.near_fmod(b), a % b), "{a:e} % {b:e}: {:e}", a.near_fmod(b));
        assert!(c.needs_long_division(d) || is_right(c.near_fmod(d).into(), (c % d).into()), "{c:e} % {d:e}");
    }
    for (a, b) in [i32::MIN, -7, -1, 0, 1, 3, i32::MAX]
        .into_iter()
        .flat_map(|a| [i32::MIN, -3, -1, 0, 2, i32::MAX].map(|b| (a, b)))
    {
        assert_eq!(a.near_fmod(b), a.fmod(b), "{a} % {b}");
        let quotient = if b == 0 { 0 } else { (i64::from(a) as f64 / f64::from(b)).floor() as i64 as i32 };
        assert_eq!(a.floor_div(b), quotient, "{a} // {b}");
    }
}

const EXPONENTS: [f64; 9] = [2.7, -0.3, 1.0 / 3.0, 7.0, -3.0, 31.5, -250.0, 1e-3, 1e5];

#[test]
fn powers_in_single_precision_are_within_a_unit_in_the_last_place() {
    for y in EXPONENTS.map(|y| y as f32) {
        let (error, x) = worst_single(|x| single::pow(x, y), |x| x.powf(f64::from(y)));
        println!("{y}: {error} at {x:e}");
        assert!(error < 1.0, "{x:e}^{y} is off by {error} units");
    }
}

/// Large exponents multiply the error of the logarithm.
#[test]
fn powers_in_double_precision_are_near_the_standard_library() {
    for y in EXPONENTS {
        let (error, x) = worst_double(|x| double::pow(x, y), |x| x.powf(y));
        println!("{y}: {error} at {x:e}");
        assert!(error <= if y.abs() < 100.0 { 2 } else { 10 }, "{x:e}^{y} differs by {error} units");
    }
}

#[test]
fn powers_at_the_edges_are_those_of_the_standard_library() {
    let edges = [0.0, 1e-45, 0.5, 1.0, 1.5, 2.0, 3.0, 1e9, 1e30, f64::INFINITY, f64::NAN];
    let all = || edges.into_iter().flat_map(|x| [x, -x]);
    for (x, y) in all().flat_map(|x| all().filter(|&y| y != 0.0).map(move |y| (x, y))) {
        let same = |a: f64, b: f64| a == b && a.is_sign_negative() == b.is_sign_negative() || a.is_nan() && b.is_nan();
        let (wide, narrow) = (double::pow(x, y), single::pow(x as f32, y as f32));
        assert!(same(wide, x.powf(y)) || (wide / x.powf(y) - 1.0).abs() < 1e-15, "{x}^{y} became {wide}");
        let expected = (x as f32).powf(y as f32);
        let is_near = (narrow / expected - 1.0).abs() < 1e-6 || (narrow - expected).abs() < 3e-45;
        assert!(same(narrow.into(), expected.into()) || is_near, "{x}^{y} became {narrow} in f32");
    }
}

#[test]
fn numbers_become_the_integers_of_the_standard_library() {
    let powers = (-2..70).flat_map(|n| [-0.5, -1e-9, 0.0, 1e-9, 0.5, 0.75].map(|d| 2f64.powi(n) + d));
    for x in doubles().chain(powers.flat_map(|x| [x, -x, x.next_down(), x.next_up()])) {
        assert_eq!(double::to_i64(x), x as i64, "{x:e}");
    }
}

#[test]
fn functions_of_single_precision_are_within_one_unit_in_the_last_place() {
    use super::Functions as F;
    fn with_far(x: f32, near: fn(f32) -> f32, far: fn(f32) -> f32) -> f32 {
        if x.is_far() { far(x) } else { near(x) }
    }
    for (name, (error, x)) in [
        ("tan", worst_single(|x| with_far(x, F::tan, F::far_tan), libm::tan)),
        ("atan", worst_single(F::atan, libm::atan)),
        ("atan2", worst_single(|x| F::atan2(x, -3.0), |x| libm::atan2(x, -3.0))),
        ("sinh", worst_single(F::sinh, libm::sinh)),
        ("cosh", worst_single(F::cosh, libm::cosh)),
        ("asinh", worst_single(F::asinh, libm::asinh)),
        ("acosh", worst_single(F::acosh, F::acosh)),
        ("atanh", worst_single(F::atanh, libm::atanh)),
        ("expm1", worst_single(F::exp_m1, libm::expm1)),
        ("erfc", worst_single(F::erfc, libm::erfc)),
    ] {
        println!("{name}: {error} at {x:e}");
        assert!(error < 1.0, "{name}({x:e}) is off by {error} units");
    }
}
