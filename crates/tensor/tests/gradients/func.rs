//! `func`: compared with `torch.func` (`golden/func.py` has the same functions), and its refusals.

use std::cell::Cell;
use std::rc::Rc;

use pagelock_tensor::{AnyTensor, DType, Int, Result, Tensor, func, no_grad};
use serde_json::Value;

/// The same numbers as in Python.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let eighth = |i: usize| (((seed + 7 * i) % 23) as f64 - 11.0) / 8.0;
    let count = shape.iter().product();
    Tensor::from_vec((0..count).map(eighth).collect::<Vec<_>>(), shape).unwrap()
}

fn x() -> Tensor {
    numbers(&[5], 1)
}

fn y() -> Tensor {
    numbers(&[5], 4)
}

fn u() -> Tensor {
    numbers(&[5], 13)
}

fn layer(x: &Tensor) -> Result<Tensor> {
    numbers(&[4, 5], 2).matmul(x)?.tanh()
}

fn energy(x: &Tensor) -> Result<Tensor> {
    let waves = ((x * 0.5)?.exp()? * x.sin()?)?.sum(..)?;
    waves + ((x.select(0, 0)? * x.select(0, 1)?)? * x.select(0, 2)?)
}

fn pair((x, y): &(Tensor, Tensor)) -> Result<Tensor> {
    (x * y.sin()?)?.sum(..)? / (1.0 + (y * y)?.sum(..)?)?
}

#[track_caller]
fn check(case: &str, found: &[&Tensor]) {
    let golden: Value = serde_json::from_str(include_str!("../golden/func.json")).unwrap();
    let expected = golden[case].as_array().unwrap_or_else(|| panic!("the file has no `{case}`"));
    assert_eq!(expected.len(), found.len(), "{case}");
    for (expected, found) in expected.iter().zip(found) {
        let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).unwrap();
        let values: Vec<f64> = serde_json::from_value(expected["values"].clone()).unwrap();
        assert_eq!((found.dims(), found.dtype()), (&shape[..], DType::F64), "{case}");
        for (found, expected) in found.to_vec::<f64>().unwrap().into_iter().zip(values) {
            let is_close = (found - expected).abs() <= 1e-12 * expected.abs().max(1.0);
            assert!(is_close, "{case}: {found:e} instead of {expected:e}");
        }
    }
}

#[test]
fn gradients_are_those_of_pytorch() -> Result<()> {
    check("grad", &[&func::grad(energy, &x())?]);
    let (dx, dy) = func::grad(pair, &(x(), y()))?;
    check("grad of two", &[&dx, &dy]);
    let [dx, dy] = func::grad(|[x, y]| pair(&(x.clone(), y.clone())), &[x(), y()])?;
    check("grad of two", &[&dx, &dy]);
    let (slope, value) = func::grad_and_value(energy, &x())?;
    check("grad", &[&slope]);
    assert_eq!(value.item::<f64>()?, energy(&x())?.item::<f64>()?);
    Ok(())
}

#[test]
fn derivatives_of_derivatives_are_those_of_pytorch() -> Result<()> {
    check("grad of grad", &[&func::grad(|x| (func::grad(energy, x)? * u())?.sum(..), &x())?]);
    let through_both = |x: &Tensor| (x * func::grad(|y| pair(&(x.clone(), y.clone())), &y())?)?.sum(..);
    check("grad of what captures", &[&func::grad(through_both, &x())?]);
    check("jvp of grad", &[&func::jvp(|x| func::grad(energy, x), &x(), &u())?.1]);
    check("grad of jvp", &[&func::grad(|x| func::jvp(layer, x, &u())?.1.sum(..), &x())?]);
    check("jacfwd of jacrev", &[&func::jacfwd(|x| func::jacrev(energy, x), &x())?]);
    check("hessian", &[&func::hessian(energy, &x())?]);
    check("hessian of vectors", &[&func::hessian(layer, &x())?]);
    Ok(())
}

#[test]
fn products_and_jacobians_are_those_of_pytorch() -> Result<()> {
    let (value, pullback) = func::vjp(layer, &x())?;
    let v = numbers(&[4], 9);
    check("vjp", &[&value, &pullback.call(&v)?]);
    check("vjp", &[&value, &pullback.call(&v)?]); // may be called any number of times
    let (value, along) = func::jvp(layer, &x(), &u())?;
    check("jvp", &[&value, &along]);
    let (value, along) = func::jvp(pair, &(x(), y()), &(u(), x()))?;
    check("jvp of two", &[&value, &along]);
    check("jacrev", &[&func::jacrev(layer, &x())?]);
    check("jacfwd", &[&func::jacfwd(layer, &x())?]);
    let both = |(x, y): &(Tensor, Tensor)| x * y.cos()?;
    let (dx, dy) = func::jacrev(both, &(x(), y()))?;
    check("jacrev of two", &[&dx, &dy]);
    let (dx, dy) = func::jacfwd(both, &(x(), y()))?;
    check("jacrev of two", &[&dx, &dy]);
    Ok(())
}

#[test]
fn batches_are_those_of_pytorch() -> Result<()> {
    let rows = numbers(&[3, 5], 6);
    check("vmap", &[&func::vmap(layer, &rows)?]);
    check("vmap of grad", &[&func::vmap(|row| func::grad(energy, row), &rows)?]);
    check("grad of vmap", &[&func::grad(|rows| func::vmap(energy, rows)?.pow(2.0)?.sum(..), &rows)?]);
    let labels = Tensor::new([2, 0, 1])?;
    let (same, picked) =
        func::vmap(|(row, label)| Ok((label.clone(), row.index_select(0, &label.reshape(1)?)?)), &(rows, labels))?;
    assert_eq!((same.to_vec::<i64>()?, picked.dims()), (vec![2, 0, 1], &[3, 1][..]));
    Ok(())
}

#[test]
fn what_does_not_depend_on_an_input_has_zeros_as_its_derivative() -> Result<()> {
    let zeros = |n| vec![0.0; n];
    let three = |_: &Tensor| Tensor::of(DType::F64).full((), 3.0);
    let [unused, used] = func::grad(|[_, y]| y.sum(..), &[x(), y()])?;
    assert_eq!((unused.to_vec::<f64>()?, used.to_vec::<f64>()?), (zeros(5), vec![1.0; 5]));
    assert_eq!(func::grad(three, &x())?.to_vec::<f64>()?, zeros(5));
    assert_eq!(func::jvp(three, &x(), &u())?.1.item::<f64>()?, 0.0);
    assert_eq!(func::jacrev(three, &x())?.to_vec::<f64>()?, zeros(5));
    assert_eq!(func::jacfwd(three, &x())?.to_vec::<f64>()?, zeros(5));
    assert_eq!(func::hessian(|x| x.sum(..), &x())?.to_vec::<f64>()?, zeros(25));
    let nothing = func::jacrev(|x| x.narrow(0, 0, 0), &x())?;
    assert_eq!((nothing.dims(), func::jacfwd(|x| x.narrow(0, 0, 0), &x())?.dims()), (&[0, 5][..], &[0, 5][..]));
    let of_nothing = func::jacfwd(|x| x.sum(..), &Tensor::zeros(0)?)?;
    assert_eq!(of_nothing.dims(), [0]);
    Ok(())
}

#[test]
fn the_identity_and_views_of_an_input_have_a_derivative() -> Result<()> {
    let one = Tensor::of(DType::F64).full((), 3.0)?;
    assert_eq!(func::grad(|x| Ok(x.clone()), &one)?.item::<f64>()?, 1.0);
    assert_eq!(func::grad(|x| x.select(0, 1), &x())?.to_vec::<f64>()?, [0.0, 1.0, 0.0, 0.0, 0.0]);
    let eye = Tensor::of(DType::F64).eye(5)?.to_vec::<f64>()?;
    assert_eq!(func::jacrev(|x| Ok(x.clone()), &x())?.to_vec::<f64>()?, eye);
    assert_eq!(func::jacfwd(|x| Ok(x.clone()), &x())?.to_vec::<f64>()?, eye);
    Ok(())
}

#[test]
fn results_are_recorded_if_something_outside_wants_their_derivative() -> Result<()> {
    let cube = |x: &Tensor| x.pow(3.0)?.sum(..);
    assert!(!func::grad(cube, &x())?.requires_grad());
    let tracked = x().set_requires_grad(true);
    let (slope, value) = func::grad_and_value(cube, &tracked)?;
    (slope.sum(..)? + value)?.backward()?;
    let expected = (&(x() * 6.0)? + &(x().pow(2.0)? * 3.0)?)?;
    assert_eq!(tracked.grad().unwrap().to_vec::<f64>()?, expected.to_vec::<f64>()?);
    let captured = func::grad(|x| (x * &tracked)?.pow(2.0)?.sum(..), &y())?;
    assert!(captured.requires_grad());
    assert!(!no_grad(|| func::grad(cube, &tracked))?.requires_grad());
    assert!(!func::jvp(cube, &x(), &u())?.1.requires_grad());
    Ok(())
}

#[test]
fn a_graph_outside_stays_whole() -> Result<()> {
    let tracked = x().set_requires_grad(true);
    let outside = tracked.exp()?;
    let inner = func::grad(|_: &Tensor| outside.sum(..), &y())?;
    assert_eq!(inner.to_vec::<f64>()?, [0.0; 5]);
    func::grad(|y| (y * &outside)?.sum(..), &y())?;
    outside.sum(..)?.backward()?; // its saved tensors are still there
    assert_eq!(tracked.grad().unwrap().to_vec::<f64>()?, x().exp()?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn what_has_no_derivative_is_refused() {
    let text = |result: Result<Tensor>| result.err().unwrap().to_string();
    assert_eq!(
        text(func::grad(layer, &x())),
        "grad: the function returned [4], not one number; reduce it (sum, mean), or use jacrev"
    );
    let labels: Tensor<Int> = Tensor::new([1, 2]).unwrap();
    let refused = func::grad(|(x, _)| energy(x), &(x(), labels)).err().unwrap().to_string();
    assert_eq!(
        refused,
        "grad: tensor 1 is int64 [2], which has no derivative; capture it in the function instead of passing it"
    );
    assert_eq!(
        text(func::jvp(layer, &x(), &numbers(&[4], 0)).map(|(_, along)| along)),
        "jvp: tangent 0 is [4], but the input is [5]; give one of the same shape"
    );
    assert_eq!(
        text(func::vjp(layer, &x()).and_then(|(_, pullback)| pullback.call(&x()))),
        "vjp: cotangent 0 is [5], but the result is [4]; give one of the same shape"
    );
    let tangents = func::jvp(|all: &Vec<Tensor>| energy(&all[0]), &vec![x()], &vec![]);
    assert_eq!(text(tangents.map(|(_, along)| along)), "jvp: 0 tangents were given for 1 inputs; give one for each");
    let wide = numbers(&[1, 1, 1, 1, 1], 0);
    assert_eq!(
        text(func::jacrev(|x| Ok(x.clone()), &wide)),
        "shape [1, 1, 1, 1, 1, 1, 1, 1, 1, 1] has 10 dimensions, but a tensor has at most 8; flatten some"
    );
    assert_eq!(text(func::grad(|x| x.sum(7), &x())), text(x().sum(7)), "errors of the function stay as they are");
}

#[test]
fn vmap_refuses_samples_that_do_not_form_a_batch() {
    let text = |result: Result<Tensor>| result.err().unwrap().to_string();
    let first = |(x, _): &(Tensor, Tensor)| Ok(x.clone());
    assert_eq!(
        text(func::vmap(first, &(numbers(&[2, 3], 0), x()))),
        "vmap: tensor 1 is [5], and the first one has 2 samples; give all of them the same first dimension"
    );
    assert_eq!(
        text(func::vmap(first, &(x(), Tensor::scalar(1.0).unwrap()))),
        "vmap: tensor 1 is one number, and has no samples; capture it in the function instead of passing it"
    );
    assert_eq!(
        text(func::vmap(layer, &numbers(&[0, 5], 0))),
        "vmap: the batch is empty; give at least one sample: its result determines what is returned"
    );
    assert_eq!(
        text(func::vmap(|all: &Vec<Tensor>| Ok(all[0].clone()), &vec![])),
        "vmap: the structure of inputs is empty; give at least one tensor"
    );
    let mut count = 0;
    let uneven = |x: &Tensor| {
        count += 1;
        Ok(vec![x.clone(); count])
    };
    let refused = func::vmap(uneven, &x()).err().unwrap().to_string();
    assert_eq!(refused, "vmap: sample 1 gave 2 tensors, and the first one 1; return the same structure for each");
}

/// Shows its tensor once more with each visit.
#[derive(Clone)]
struct Growing(Tensor, Rc<Cell<usize>>);

impl func::Tree for Growing {
    fn map(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
        self.1.set(self.1.get() + 1);
        (0..self.1.get()).try_for_each(|_| f((&self.0).into()).map(drop))?;
        Ok(self.clone())
    }
}

#[test]
fn a_structure_that_shows_more_tensors_than_before_is_refused() {
    let refused = func::grad(|inputs: &Growing| inputs.0.sum(..), &Growing(x(), Rc::default())).err().unwrap();
    assert_eq!(refused.to_string(), "Tree::map visits more tensors than before; let it visit each tensor once");
}
