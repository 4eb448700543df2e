//! Inputs at the edges of a precision: NaN, infinities, zeros of both signs, the smallest subnormal, the smallest
//! normal and the largest number, and magnitudes across the whole range, alone and in pairs.

use pagelock_tensor::DType;
use serde_json::{Value, json};

use super::input::{Fill, Input, index, values};
use super::{Bound, Operation, Sample, sample};

/// The largest, the smallest normal and the smallest subnormal number.
fn limits(dtype: DType) -> [f64; 3] {
    let [fraction, least, most] = match dtype {
        DType::F64 => [52, -1022, 1023],
        DType::F32 => [23, -126, 127],
        DType::F16 => [10, -14, 15],
        DType::BF16 => [7, -126, 127],
        other => panic!("{other} is not a floating-point type"),
    };
    let two = 2_f64;
    [(2.0 - two.powi(-fraction)) * two.powi(most), two.powi(least), two.powi(least) * two.powi(-fraction)]
}

fn edges(dtype: DType) -> Vec<f64> {
    let [most, normal, least] = limits(dtype);
    let both = [f64::INFINITY, most, normal, least, 0.0, 1.0].into_iter().flat_map(|x| [x, -x]);
    [f64::NAN].into_iter().chain(both).collect()
}

/// `count` numbers of both signs across the range of normal numbers, each exactly representable in the type.
fn magnitudes(dtype: DType, count: usize) -> Vec<f64> {
    let [most, normal, _] = limits(dtype);
    let (low, high) = (normal.log2(), most.log2());
    let number = |i: usize| {
        let exponent = low + (high - low) * (i as f64 + 0.5) / count as f64;
        let whole = exponent.floor();
        let digits = ((exponent - whole).exp2() * 64.0).round() / 64.0;
        (if i.is_multiple_of(2) { 1.0 } else { -1.0 }) * digits * whole.exp2()
    };
    (0..count).map(number).collect()
}

fn column(numbers: Vec<f64>) -> Input {
    values([numbers.len()], numbers)
}

/// One input of edges, magnitudes and some ordinary numbers.
pub(super) fn numbers(dtype: DType) -> Vec<Sample> {
    let plain = [0.5, -2.5, 3.0, -7.0, 11.0, 88.0, -104.0, 0.99];
    let all = edges(dtype).into_iter().chain(magnitudes(dtype, 9)).chain(plain);
    vec![sample([column(all.collect())])]
}

/// Numbers that fit in every integer type once they are truncated.
pub(super) fn whole_numbers(dtype: DType) -> Vec<Sample> {
    vec![sample([column(vec![0.0, -0.0, 0.99, 1.0, 2.6, 100.0, limits(dtype)[1]])])]
}

/// All pairs of edges and magnitudes, and pairs whose quotient is in range although their squares are not.
pub(super) fn pairs(dtype: DType) -> Vec<Sample> {
    let ratios = match dtype {
        DType::F16 => [(3000.0, 300.0), (1e-3, 1e-4), (0.0, 1e-4)],
        DType::F64 => [(1e200, 1e180), (1e-250, 1e-200), (0.0, 1e-250)],
        _ => [(1e25, 1e20), (1e-30, 1e-23), (0.0, 1e-30)],
    };
    let mut numbers: Vec<_> = edges(dtype).into_iter().filter(|&x| x != -1.0).collect();
    numbers.extend(magnitudes(dtype, 4));
    let all = numbers.iter().flat_map(|&a| numbers.iter().map(move |&b| (a, b))).chain(ratios);
    let (left, right) = all.unzip();
    vec![sample([column(left), column(right)])]
}

/// [`pairs`] with a constant as the last input, and as the first.
pub(super) fn triples(dtype: DType) -> Vec<Sample> {
    pairs(dtype)
        .into_iter()
        .flat_map(|pairs| {
            let [x, y] = &pairs.inputs[..] else { unreachable!("pairs") };
            let constant = |value: f64| values(x.shape.clone(), vec![value; x.shape[0]]);
            [sample([x.clone(), y.clone(), constant(1.5)]), sample([constant(1.0), x.clone(), y.clone()])]
        })
        .collect()
}

/// Rows of four numbers: with each edge in one position, in the middle two, and in all four; then rows of nearly
/// equal numbers, and rows of several magnitudes.
fn rows_of(dtype: DType) -> [Vec<[f64; 4]>; 2] {
    // In f64, sums of the largest numbers have no exact result to compare with.
    let bounded = |x: &f64| dtype != DType::F64 || !(1e300 < x.abs() && x.abs() < f64::INFINITY);
    let edges = edges(dtype);
    let mut around: Vec<_> = edges.iter().map(|&x| [x, 1.0, 2.0, -3.0]).collect();
    around.extend(edges.iter().copied().filter(bounded).map(|x| [1.0, x, x, 2.0]));
    around.extend(edges.iter().copied().filter(bounded).map(|x| [x; 4]));
    let near = [[256.0, 258.0, 256.0, 258.0], [1.0, 1.25, 1.0, 1.5], [3.0; 4], [-1e4, -1.1e4, -1e4, -1e4]];
    let scaled = [1e-4, 1e-2, 1.0, 30.0, 200.0, 3000.0].map(|m| [0.1 * m, -0.2 * m, 0.7 * m, 0.9 * m]);
    [around, near.into_iter().chain(scaled).collect()]
}

fn matrix(rows: &[[f64; 4]]) -> Input {
    values([rows.len(), 4], rows.concat())
}

pub(super) fn rows(dtype: DType) -> Vec<Sample> {
    rows_of(dtype).iter().map(|rows| sample([matrix(rows)])).collect()
}

/// The rows, with a weight and a bias of four numbers.
pub(super) fn rows_with_parameters(dtype: DType) -> Vec<Sample> {
    let parameters = [values([4], [1.0, 2.0, -0.5, 3.0]), values([4], [0.0, 1.0, -1.0, 0.5])];
    let [weight, bias] = parameters;
    rows_of(dtype).iter().map(|rows| sample([matrix(rows), weight.clone(), bias.clone()])).collect()
}

/// The rows as columns.
pub(super) fn columns(dtype: DType) -> Vec<Sample> {
    let turned = |rows: &Vec<[f64; 4]>| {
        let numbers: Vec<_> = (0..4).flat_map(|i| rows.iter().map(move |row| row[i])).collect();
        sample([values([4, rows.len()], numbers)])
    };
    rows_of(dtype).iter().map(turned).collect()
}

/// Rows with a label for each.
pub(super) fn labeled_rows(dtype: DType) -> Vec<Sample> {
    rows_of(dtype).iter().map(|rows| sample([matrix(rows), index(4, [rows.len()])])).collect()
}

/// The numbers of a matrix with an edge in each row, for products.
pub(super) fn factors(dtype: DType) -> Vec<f64> {
    edges(dtype).into_iter().chain(magnitudes(dtype, 5)).flat_map(|x| [x, 1.5]).collect()
}

pub(super) fn factor(dtype: DType) -> Input {
    let numbers = factors(dtype);
    values([numbers.len() / 2, 2], numbers)
}

/// Images of one channel, each with an edge; the first `skip` edges are left out.
pub(super) fn images(dtype: DType, skip: usize) -> Input {
    let numbers: Vec<_> = edges(dtype).into_iter().skip(skip).map(|x| [x, 1.5, -0.5, 0.25, 2.0, 1.0]).collect();
    values([numbers.len(), 1, 2, 3], numbers.concat())
}

/// Images with an edge in several places.
pub(super) fn planes(dtype: DType) -> Input {
    let numbers: Vec<_> = edges(dtype).into_iter().map(|x| [x, 1.5, -0.5, x, 0.25, 2.0, x, x]).collect();
    values([numbers.len(), 1, 2, 4], numbers.concat())
}

/// The samples, filled with edges, which operations that only move elements have to keep.
pub(super) fn moved(samples: &[Sample], dtype: DType) -> Vec<Sample> {
    let edges = edges(dtype);
    let filled = |input: &Input| match input.fill {
        Fill::Index(_) => input.clone(),
        _ => Input {
            fill: Fill::Values(edges.iter().cycle().take(input.shape.iter().product()).copied().collect()),
            ..input.clone()
        },
    };
    let of = |sample: &Sample| Sample { inputs: sample.inputs.iter().map(filled).collect(), ..sample.clone() };
    samples.iter().map(of).collect()
}

/// Operations whose special samples have only numbers of few bits, and why.
const FEW_BITS: &[(&str, &str)] = &[
    ("unique_inverse", "finite: PyTorch numbers each NaN in another order"),
    ("var_mean", "finite: PyTorch's mean of an infinity is NaN"),
];
/// Operations whose intermediate results overflow, but for other numbers than in PyTorch. They are tested without the
/// smallest and the largest numbers.
const WITHOUT_LIMITS: &[&str] = &["nanquantile", "std_mean"];

/// All these operations. Those without special samples get those of [`of_edges`].
pub(super) fn at_edges<const N: usize>(operations: [Vec<Operation>; N]) -> Vec<Operation> {
    let at_edges =
        |operation: Operation| if (operation.special)(DType::F32).is_empty() { of_edges(operation) } else { operation };
    operations.into_iter().flatten().map(at_edges).collect()
}

/// Gives an operation two special samples like its first sample: one of numbers of few bits, whose sums and products
/// are exact, and one of edges.
fn of_edges(operation: Operation) -> Operation {
    let first = operation.samples[0].clone().without_gradients();
    let summed_dim = if operation.bound == Bound::Exact { operation.summed_dim } else { Some(1) };
    let name = operation.name;
    let edged = move |dtype: DType| match name {
        _ if why_of_few_bits(name).is_some() => None,
        _ if WITHOUT_LIMITS.contains(&name) => {
            Some(vec![1.5, f64::NAN, f64::INFINITY, -2.0, f64::NEG_INFINITY, 0.0, -0.0])
        }
        _ => Some(edges(dtype)),
    };
    let few = [1.0, 0.5, -2.0, 3.0, 0.25, 4.0, -0.75, 1.5];
    let of = move |dtype| {
        let filled = |numbers: &[f64], start: usize| {
            let fill = |(i, input): (usize, &Input)| {
                let n = input.shape.iter().product();
                let numbers = numbers.iter().copied().cycle().skip(i * start).take(n);
                let fill = match input.fill {
                    Fill::Signed => Fill::Values(numbers.collect()),
                    Fill::Positive => Fill::Values(numbers.map(f64::abs).collect()),
                    _ => input.fill.clone(),
                };
                Input { fill, ..input.clone() }
            };
            Sample { inputs: first.inputs.iter().enumerate().map(fill).collect(), ..first.clone() }
        };
        [filled(&few, 0)].into_iter().chain(edged(dtype).map(|edges| filled(&edges, 5))).collect()
    };
    Operation { summed_dim, ..operation.special(of) }
}

/// Why the special samples of an operation have only numbers of few bits, if they do.
pub fn why_of_few_bits(name: &str) -> Option<&'static str> {
    FEW_BITS.iter().find(|(of, _)| *of == name).map(|(_, why)| *why)
}

/// Each sample with each of the arguments.
pub(super) fn with(samples: Vec<Sample>, args: &[Value]) -> Vec<Sample> {
    args.iter().flat_map(|args| samples.iter().map(|sample| sample.clone().args(args.clone()))).collect()
}

/// Arguments named `s`.
pub(super) fn scalars(numbers: &[f64]) -> Vec<Value> {
    numbers.iter().map(|s| json!({ "s": s })).collect()
}
