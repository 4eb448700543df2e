//! Random views, broadcasts, reductions and selections against index arithmetic on a `Vec`.
//!
//! Everything is checked on the CPU, and on a GPU if there is one: whole numbers exactly, means and variances within
//! 1e-9, normalizations within 1e-9 of their definition in `f64`.
//!
//! `model.rs` is a tensor as a beginner would write it; `chains.rs` applies random chains of views to a tensor and
//! its model.

#[path = "../common/mod.rs"]
mod common;

mod chains;
mod model;

use std::cell::Cell;

use pagelock_tensor::{BatchNormOptions, Element, Tensor};
use proptest::prelude::*;

use chains::{Chain, chain, viewed};
use model::Model;

/// Checks that a tensor equals the model, read directly and through a contiguous copy.
fn same<T: Element>(tensor: &Tensor<T::Kind>, model: &Model<T>) -> Result<(), TestCaseError> {
    prop_assert_eq!(tensor.dtype(), T::DTYPE);
    prop_assert_eq!(tensor.dims(), &model.shape[..]);
    prop_assert_eq!(&tensor.to_vec::<T>().unwrap(), &model.data);
    let copy = tensor.contiguous().unwrap();
    prop_assert!(copy.is_contiguous());
    prop_assert_eq!(copy.to_vec::<T>().unwrap(), &model.data[..]);
    Ok(())
}

/// Small shapes, with sizes of 0 and 1 among them.
fn shape(max_rank: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1 => Just(0_usize), 4 => Just(1), 16 => 2..5_usize], 0..=max_rank)
}

/// Two shapes that broadcast: parts of one shape with some sizes replaced by 1.
fn broadcastable() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    (shape(4), any::<u16>(), any::<u16>(), 0..3_usize).prop_map(|(shape, ones, other_ones, dropped)| {
        let with_ones = |ones: u16| -> Vec<usize> {
            shape.iter().enumerate().map(|(dim, &size)| if ones >> (3 * dim) & 7 == 0 { 1 } else { size }).collect()
        };
        let right = with_ones(other_ones);
        (with_ones(ones), right[dropped.min(right.len())..].to_vec())
    })
}

#[test]
fn chains_of_views_read_what_index_arithmetic_says() {
    for device in &common::devices() {
        proptest!(|((shape, steps) in (shape(4), chain()))| {
            let (tensor, model) = Chain::new(device, &shape).run(&steps);
            same(&tensor, &model)?;
        });
    }
}

#[test]
fn writing_through_a_chain_of_views_changes_exactly_what_it_shows() {
    for device in &common::devices() {
        let n_written = Cell::new(0_u32);
        proptest!(|((shape, steps) in (shape(4), chain()))| {
            let chain = Chain::new(device, &shape);
            let (base, mut expected) = (chain.tensor.clone(), chain.model.data.clone());
            let (view, model) = chain.run(&steps);
            if view.add_scalar_(1_000_000).is_ok() && base.version() > 0 {
                model.data.iter().for_each(|&at| expected[at as usize] += 1_000_000);
                n_written.set(n_written.get() + u32::from(!model.data.is_empty()));
            }
            prop_assert_eq!(base.to_vec::<i64>().unwrap(), expected);
        });
        // A view that shows an element twice is not written, a copy does not change the base, and some are empty.
        assert!(n_written.get() >= 64, "only {} of 256 cases changed the base on {device}", n_written.get());
    }
}

#[test]
fn operators_broadcast_as_index_arithmetic_says() {
    for device in &common::devices() {
        proptest!(|((left, right) in broadcastable(), steps in chain(), other_steps in chain())| {
            let (a, a_model) = viewed(device, &left, &steps);
            let (b, b_model) = viewed(device, &right, &other_steps);
            let (a_model, b_model) = (a_model.map(|x| x % 7 - 3), b_model.map(|x| x % 5 - 2));
            let (a, b) = (a_model.onto(&a), b_model.onto(&b));
            same(&(&a + &b).unwrap(), &a_model.zip(&b_model, |a, b| a + b).unwrap())?;
            same(&(&a - &b).unwrap(), &a_model.zip(&b_model, |a, b| a - b).unwrap())?;
            same(&(&a * &b).unwrap(), &a_model.zip(&b_model, |a, b| a * b).unwrap())?;
            same(&a.maximum(&b).unwrap(), &a_model.zip(&b_model, i64::max).unwrap())?;
            same(&a.lt(&b).unwrap(), &a_model.zip(&b_model, |a, b| a < b).unwrap())?;
            same(&a.eq(&b).unwrap(), &a_model.zip(&b_model, |a, b| a == b).unwrap())?;
        });
    }
}

#[test]
fn shapes_broadcast_exactly_if_their_sizes_are_equal_or_one() {
    for device in &common::devices() {
        proptest!(|(left in shape(4), right in shape(4))| {
            let (a, a_model) = viewed(device, &left, &[]);
            let (b, b_model) = viewed(device, &right, &[]);
            match (a.add(&b), a_model.zip(&b_model, |a, b| a + b)) {
                (Ok(sum), Some(expected)) => same(&sum, &expected)?,
                (Err(_), None) => {}
                (got, expected) => prop_assert!(false, "{:?} but {:?}", got.map(|x| *x.shape()), expected),
            }
        });
    }
}

#[test]
fn reductions_fold_what_index_arithmetic_says() {
    for device in &common::devices() {
        proptest!(|(shape in shape(4), steps in chain(), axes in any::<u8>())| {
            let (tensor, model) = viewed(device, &shape, &steps);
            let model = model.map(|x| (x * 31) % 11);
            let tensor = model.onto(&tensor);
            let axes: Vec<usize> = (0..tensor.rank()).filter(|dim| axes >> dim & 1 == 1).collect();
            let named: Vec<isize> = axes.iter().rev().map(|&dim| dim as isize).collect();
            for keepdim in [false, true] {
                let sum = if keepdim { tensor.sum_keepdim(&named[..]) } else { tensor.sum(&named[..]) };
                same(&sum.unwrap(), &model.reduce(&axes, keepdim, |group| group.iter().sum::<i64>()))?;
                let max = if keepdim { tensor.max_keepdim(&named[..]) } else { tensor.max(&named[..]) };
                let min = if keepdim { tensor.min_keepdim(&named[..]) } else { tensor.min(&named[..]) };
                if model.reduce(&axes, keepdim, |group| group.len()).data.iter().all(|&len| len > 0) {
                    same(&max.unwrap(), &model.reduce(&axes, keepdim, |group| *group.iter().max().unwrap()))?;
                    same(&min.unwrap(), &model.reduce(&axes, keepdim, |group| *group.iter().min().unwrap()))?;
                } else {
                    prop_assert!(max.is_err() && min.is_err());
                }
            }
        });
    }
}

#[test]
fn means_and_variances_are_those_of_the_groups() {
    for device in &common::devices() {
        proptest!(|(shape in shape(3), steps in chain(), axes in any::<u8>())| {
            let (tensor, model) = viewed(device, &shape, &steps);
            let model = model.map(|x| ((x * 31) % 11) as f64);
            let tensor = model.onto(&tensor);
            let axes: Vec<usize> = (0..tensor.rank()).filter(|dim| axes >> dim & 1 == 1).collect();
            let named: Vec<isize> = axes.iter().map(|&dim| dim as isize).collect();
            let mean = |group: &[f64]| group.iter().sum::<f64>() / group.len() as f64;
            let var = |group: &[f64]| {
                let mean = mean(group);
                group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (group.len() as f64 - 1.0).max(0.0)
            };
            let close = |got: Tensor, expected: Model<f64>| {
                let pairs: Vec<_> = got.to_vec::<f64>().unwrap().into_iter().zip(expected.data).collect();
                got.dims() == expected.shape
                    && pairs.iter().all(|(a, b)| (a - b).abs() <= 1e-9 || (a.is_nan() && b.is_nan()))
            };
            prop_assert!(close(tensor.mean(&named[..]).unwrap(), model.reduce(&axes, false, mean)));
            prop_assert!(close(tensor.var(&named[..]).unwrap(), model.reduce(&axes, false, var)));
        });
    }
}

#[test]
fn argmax_is_the_first_of_the_largest() {
    for device in &common::devices() {
        proptest!(|(shape in shape(4), steps in chain(), dim in any::<usize>())| {
            let (tensor, model) = viewed(device, &shape, &steps);
            prop_assume!(tensor.rank() > 0);
            let dim = dim % tensor.rank();
            prop_assume!(tensor.dims()[dim] > 0);
            let model = model.map(|x| (x * 31) % 5);
            let tensor = model.onto(&tensor);
            let first = |group: &[i64]| group.iter().position(|x| Some(x) == group.iter().max()).unwrap() as i64;
            same(&tensor.argmax(dim as isize).unwrap(), &model.reduce(&[dim], false, first))?;
            same(&tensor.argmax_keepdim(dim as isize).unwrap(), &model.reduce(&[dim], true, first))?;
        });
    }
}

#[test]
fn joined_tensors_lie_one_after_another() {
    for device in &common::devices() {
        proptest!(|(shape in shape(4), steps in chain(), cut in (any::<usize>(), any::<usize>()), dim in any::<usize>())| {
            let (whole, model) = viewed(device, &shape, &steps);
            let stacked = Tensor::stack(&[&whole, &whole, &whole], (dim % (whole.rank() + 1)) as isize).unwrap();
            same(&stacked, &model.repeat_along(dim % (whole.rank() + 1), 3))?;
            prop_assume!(whole.rank() > 0);
            let dim = dim % whole.rank();
            let size = whole.dims()[dim];
            let (first, second) = (cut.0 % (size + 1), cut.1 % (size + 1));
            let (first, second) = (first.min(second), first.max(second));
            let part = |start: usize, end: usize| whole.narrow(dim as isize, start, end - start).unwrap();
            let parts = [part(0, first), part(first, second), part(second, size)];
            same(&Tensor::cat(&parts.each_ref(), dim as isize).unwrap(), &model)?;
        });
    }
}

#[test]
fn index_select_reads_what_the_index_names() {
    for device in &common::devices() {
        proptest!(|(shape in shape(4), steps in chain(), dim in any::<usize>(), index in prop::collection::vec(any::<u32>(), 0..6))| {
            let (tensor, model) = viewed(device, &shape, &steps);
            prop_assume!(tensor.rank() > 0);
            let dim = dim % tensor.rank();
            let size = tensor.dims()[dim];
            prop_assume!(size > 0);
            let index: Vec<i64> = index.iter().map(|&at| i64::from(at) % size as i64).collect();
            let mut shape = model.shape.clone();
            shape[dim] = index.len();
            let expected = Model::build(&shape, |place| {
                let mut place = place.to_vec();
                place[dim] = index[place[dim]] as usize;
                model.at(&place)
        });
        let index = Tensor::from_slice(&index, index.len()).unwrap().to(device).unwrap();
        same(&tensor.index_select(dim as isize, &index).unwrap(), &expected)?;
        });
    }
}

#[test]
fn gather_reads_what_each_index_names() {
    for device in &common::devices() {
        proptest!(|(shape in shape(3), steps in chain(), dim in any::<usize>(), count in 0..5_usize, seed in any::<u32>())| {
            let (tensor, model) = viewed(device, &shape, &steps);
            prop_assume!(tensor.rank() > 0);
            let dim = dim % tensor.rank();
            let size = tensor.dims()[dim];
            prop_assume!(size > 0);
            let mut shape: Vec<usize> =
                model.shape.iter().enumerate().map(|(i, &size)| size - (seed >> i & 1) as usize % (size + 1).min(2)).collect();
            shape[dim] = count;
            let mut next = seed;
            let index = Model::build(&shape, |_| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                i64::from(next >> 8) % size as i64
        });
        let expected = Model::build(&shape, |place| {
            let mut source = place.to_vec();
            source[dim] = index.at(place) as usize;
            model.at(&source)
        });
        let index = Tensor::from_slice(&index.data, &shape[..]).unwrap().to(device).unwrap();
        same(&tensor.gather(dim as isize, &index).unwrap(), &expected)?;
        });
    }
}

#[test]
fn matrix_products_sum_over_the_inner_size() {
    for device in &common::devices() {
        proptest!(|((left, right) in broadcastable(), (m, k, n) in (0..4_usize, 0..4_usize, 0..4_usize), turned in any::<[bool; 2]>())| {
            let matrix = |batch: &[usize], rows: usize, columns: usize, turned: bool| {
                let shape = [batch, &if turned { [columns, rows] } else { [rows, columns] }].concat();
                let (tensor, model) = viewed(device, &shape, &[]);
                let tensor = model.map(|x| (x * 31) % 7 - 3).onto(&tensor);
                if turned { tensor.transpose(-1, -2).unwrap() } else { tensor }
            };
            let (a, b) = (matrix(&left, m, k, turned[0]), matrix(&right, k, n, turned[1]));
            // The definition: unsqueeze, multiply with broadcasting, sum.
            let expected = (a.unsqueeze(-1).unwrap() * b.unsqueeze(-3).unwrap()).unwrap().sum(-2).unwrap();
            let product = a.matmul(&b).unwrap();
            prop_assert_eq!(product.shape(), expected.shape());
            prop_assert_eq!(product.to_vec::<i64>().unwrap(), expected.to_vec::<i64>().unwrap());
        });
    }
}

/// Numbers with fractions, which repeat with a period that fits neither a warp nor a pack.
fn fractions(model: &Model<i64>) -> Model<f64> {
    model.map(|x| ((x * 37) % 101) as f64 / 8.0 - 5.0)
}

fn is_close(tensor: &Tensor, model: &Model<f64>) -> Result<(), TestCaseError> {
    prop_assert_eq!(tensor.dims(), &model.shape[..]);
    for (found, expected) in tensor.to_vec::<f64>().unwrap().into_iter().zip(&model.data) {
        prop_assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} instead of {expected}");
    }
    Ok(())
}

#[test]
fn rows_are_normalized_by_their_definition() {
    for device in &common::devices() {
        proptest!(|((rows, n) in (1..6_usize, 2..300_usize), turned in any::<bool>())| {
            let shape = if turned { [n, rows] } else { [rows, n] };
            let (tensor, model) = viewed(device, &shape, &[]);
            let model = fractions(&model);
            let tensor = model.onto(&tensor);
            let (axis, dim) = if turned { (0, 0_isize) } else { (1, 1) };
            let along = |f: &dyn Fn(&[f64]) -> f64| model.reduce(&[axis], true, f);
            let with = |x: &Model<f64>, y: &Model<f64>, f: &dyn Fn(f64, f64) -> f64| x.zip(y, f).unwrap();
            let mean = along(&|row| row.iter().sum::<f64>() / row.len() as f64);
            let centered = with(&model, &mean, &|x, mean| x - mean);
            let variance = centered.reduce(&[axis], true, |row| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64);
            let normal = with(&centered, &variance, &|x, variance| x / (variance + 1e-5).sqrt());
            let rows = if turned { tensor.t().unwrap() } else { tensor.clone() };
            let found = rows.layer_norm(n, None, None, 1e-5).unwrap();
            is_close(&if turned { found.t().unwrap() } else { found }, &normal)?;
            let sum = along(&|row| row.iter().map(|x| x.exp()).sum());
            is_close(&tensor.softmax(dim).unwrap(), &with(&model, &sum, &|x, sum| x.exp() / sum))?;
            is_close(&tensor.log_softmax(dim).unwrap(), &with(&model, &sum, &|x, sum| x - sum.ln()))?;
        });
    }
}

#[test]
fn channels_are_normalized_by_their_definition() {
    for device in &common::devices() {
        proptest!(|((batch, channels, plane) in (2..5_usize, 1..20_usize, 1..40_usize), last in any::<bool>())| {
            let (tensor, model) = viewed(device, &[batch, channels, plane], &[]);
            let model = fractions(&model);
            let mut tensor = model.onto(&tensor);
            if last {
                tensor = tensor.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
            }
            let mean = model.reduce(&[0, 2], true, |group| group.iter().sum::<f64>() / group.len() as f64);
            let centered = model.zip(&mean, |x, mean| x - mean).unwrap();
            let squares = centered.reduce(&[0, 2], true, |group| group.iter().map(|x| x * x).sum::<f64>());
            let n = (batch * plane) as f64;
            let normal = centered.zip(&squares, |x, squares| x / (squares / n + 1e-5).sqrt()).unwrap();
            let numbers = |x: f64| Tensor::from_vec(vec![x; channels], channels).unwrap().to(device).unwrap();
            let running = [numbers(0.0), numbers(1.0)];
            let options = BatchNormOptions { momentum: 0.25, ..BatchNormOptions::default() };
            is_close(&tensor.batch_norm(Some(running.each_ref()), None, None, options).unwrap(), &normal)?;
            let flat = |model: Model<f64>| Model { shape: vec![channels], data: model.data };
            is_close(&running[0], &flat(mean.map(|mean| 0.25 * mean)))?;
            is_close(&running[1], &flat(squares.map(|squares| 0.75 + 0.25 * squares / (n - 1.0))))?;
        });
    }
}
