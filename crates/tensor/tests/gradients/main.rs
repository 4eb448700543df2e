//! Every derivative of the table of operations against central differences in `f64`, away from kinks.
//!
//! `checked` runs an operation on inputs that are contiguous, permuted in memory, and with gaps between their
//! elements; `checked_twice` also checks the derivative of the derivative. Both run on the CPU, and on a GPU if there
//! is one. `combined.rs` tests what the table lacks: composed operations, and inputs without gradients. `func.rs`
//! tests derivatives of functions.

mod combined;
#[path = "../common/mod.rs"]
mod common;
mod func;

use pagelock_operations::{Derivative, Fill, Input, Inputs, Operation, Sample, table};
use pagelock_tensor::autograd::{Context, Function, Tolerance, gradcheck, gradgradcheck};
use pagelock_tensor::{AnyTensor, DType, Device, Error, Result, Tensor};

use self::common::reversed;

/// A test for each group of entries, so that the groups run at the same time.
macro_rules! groups {
    ($($group:ident)+) => {
        $(
            #[test]
            fn $group() {
                for operation in pagelock_operations::$group::entries() {
                    check(&operation);
                }
            }
        )+

        /// The entries of all groups.
        fn grouped() -> Vec<Operation> {
            [$(pagelock_operations::$group::entries()),+].into_iter().flatten().collect()
        }
    };
}

groups! { elementwise functions arrangements reductions products images rows recurrent views selections scattered further everyday }

#[test]
fn the_groups_have_every_operation_with_a_derivative() {
    let differentiable = |operation: &&Operation| operation.derivative == Derivative::Twice;
    let checked = grouped().iter().filter(differentiable).count();
    assert_eq!(checked, table().iter().filter(differentiable).count());
}

/// Checks all samples that have a derivative. Samples of given numbers are left out, since they are at kinks.
fn check(operation: &Operation) {
    for sample in &operation.samples {
        let at_a_kink = sample.inputs.iter().any(|input| matches!(input.fill, Fill::Values(_)));
        // Central differences of many numbers take long, and find nothing more.
        let many = sample.inputs.iter().any(|input| input.shape.iter().product::<usize>() > 150);
        let rounds = sample.args["to"].as_str().is_some_and(|to| to != "float64");
        if !at_a_kink && !many && !rounds && operation.has_gradients(sample, DType::F64) {
            let is_index = |input: &&Input| matches!(input.fill, Fill::Index(_));
            let bases = sample.inputs.iter().enumerate().filter(|(_, input)| !is_index(input));
            let bases: Vec<_> = bases
                .map(|(i, input)| input.base(DType::F64, &Device::Cpu, i).and_then(|base| base.float()).unwrap())
                .collect();
            println!("{} {}", operation.name, sample.title());
            checked(|x| call(operation, sample, x), &bases);
            // Squared, so that linear operations have second derivatives too.
            twice(|x| call(operation, sample, x).and_then(|y| y.mul(&y)), &bases);
        }
    }
}

/// Calls the operation on views of these bases.
fn call(operation: &Operation, sample: &Sample, bases: &[Tensor]) -> Result<Tensor> {
    let device = bases[0].device();
    let mut inputs = Inputs { dtype: DType::F64, device: device.clone(), values: Vec::new(), indices: Vec::new() };
    let mut next = bases.iter();
    for (i, input) in sample.inputs.iter().enumerate() {
        match input.fill {
            Fill::Index(_) => inputs.indices.push(input.make(DType::I64, &device, i)?.int()?),
            _ => inputs.values.push(input.view_of(AnyTensor::from(next.next().expect("a base for every input")))?),
        }
    }
    operation.call(&inputs, &sample.args)?.float()
}

/// Numbers between 0.2 and 1.8, at least a few thousandths apart and far from kinks.
fn positive(shape: &[usize], seed: usize) -> Tensor {
    let n_values = shape.iter().product();
    let golden = 0.618_033_988_749_895;
    let value = |i: usize| 0.2 + 1.6 * (golden * (i + 1) as f64 + 0.37 * seed as f64).fract();
    Tensor::from_vec((0..n_values).map(value).collect(), shape).unwrap()
}

/// [`positive`] with both signs.
fn signed(shape: &[usize], seed: usize) -> Tensor {
    let values = positive(shape, seed).to_vec::<f64>().unwrap();
    let values = values.iter().enumerate().map(|(i, x)| if (i * 7 + seed) % 5 < 2 { -x } else { *x }).collect();
    Tensor::from_vec(values, shape).unwrap()
}

/// The memory layout of an input.
#[derive(Debug, Clone, Copy)]
enum Stored {
    RowMajor,
    ColumnMajor,
    WithGaps,
}

impl Stored {
    /// A contiguous tensor from which [`Stored::load`] makes `x` again.
    fn store(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Stored::RowMajor => Ok(x.clone()),
            Stored::ColumnMajor => reversed(x)?.contiguous(),
            Stored::WithGaps => Tensor::stack(&[&x.zeros_like()?, x, &x.ones_like()?], -1),
        }
    }

    fn load(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Stored::RowMajor => Ok(x.clone()),
            Stored::ColumnMajor => reversed(x),
            Stored::WithGaps => x.select(-1, 1),
        }
    }
}

fn checked(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) {
    for device in common::devices() {
        for stored in [Stored::RowMajor, Stored::ColumnMajor, Stored::WithGaps] {
            let stored_on = |x: &Tensor| stored.store(x)?.to(&device);
            let inputs: Vec<_> = inputs.iter().map(|x| stored_on(x).unwrap()).collect();
            let f = |x: &[Tensor]| f(&x.iter().map(|x| stored.load(x)).collect::<Result<Vec<_>>>()?);
            let checked = gradcheck(f, &inputs.iter().collect::<Vec<_>>(), Tolerance::default());
            checked.unwrap_or_else(|error| panic!("{stored:?} on {device}: {error}"));
        }
    }
}

fn checked_twice(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) {
    checked(&f, inputs);
    twice(f, inputs);
}

fn twice(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) {
    for device in common::devices() {
        let inputs: Vec<_> = inputs.iter().map(|x| x.to(&device).unwrap()).collect();
        let checked = gradgradcheck(&f, &inputs.iter().collect::<Vec<_>>(), Tolerance::default());
        checked.unwrap_or_else(|error| panic!("second derivative on {device}: {error}"));
    }
}

#[test]
fn a_wrong_derivative_is_found_and_named() {
    // The detached factor counts as a constant, so `backward` says x where the truth is 2x.
    let x = Tensor::from_slice(&[0.5_f64, 2.0], 2).unwrap();
    let half = |x: &[Tensor]| x[0].mul(&x[0].detach());

    let error = gradcheck(half, &[&x], Tolerance::default()).unwrap_err();

    let Error::GradientMismatch { input: 0, element: 0, output: 0, analytic, numeric, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(analytic, 0.5);
    assert!((numeric - 1.0).abs() < 1e-8, "{numeric}");
    let text = error.to_string();
    assert!(text.starts_with("gradcheck: d output[0] / d input 0[0] is 5e-1 by backward and "), "{text}");
}

#[test]
fn a_wrong_second_derivative_is_found() {
    let x = Tensor::from_slice(&[0.5_f64, 2.0], 2).unwrap();
    let cube = |x: &[Tensor]| Cube.apply(&[&x[0]]);

    gradcheck(cube, &[&x], Tolerance::default()).unwrap();
    let error = gradgradcheck(cube, &[&x], Tolerance::default()).unwrap_err();

    assert!(matches!(error, Error::GradientMismatch { input: 0, element: 0, output: 0, .. }), "{error}");
}

#[test]
fn a_function_that_does_not_depend_on_an_input_has_a_derivative_of_zero() {
    let (x, unused) = (signed(&[3], 0), signed(&[2], 1));
    gradgradcheck(|x| x[0].exp(), &[&x, &unused], Tolerance::default()).unwrap();
    gradcheck(|x| x[0].sign(), &[&x], Tolerance::default()).unwrap();
}

/// x³ with a correct derivative that is detached from the graph, so that the second derivative is wrong.
struct Cube;

impl Function for Cube {
    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        context.save(inputs[0]);
        inputs[0].pow(3.0)
    }

    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let x: Tensor = context.saved(0)?;
        Ok(vec![Some(grad.mul(&x.detach().pow(2.0)?.mul_scalar(3.0)?)?)])
    }
}
