//! Attention in one kernel, compared with the operations that define it in `f64`.

use std::sync::RwLockReadGuard;

use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{
    CapturedStep, DType, Half, Kernels, Result, Tensor, autocast, with_deterministic_algorithms, with_kernels,
};

use crate::agreement::same;
use crate::common::{Gpu, gpu};
use crate::libraries::has_libraries;
use crate::networks::{largest, random};

/// A case: sizes of query, key and value, and whether it is causal.
struct Case {
    name: &'static str,
    sizes: [[usize; 4]; 3],
    is_causal: bool,
}

fn cases() -> Vec<Case> {
    let same = |sizes: [usize; 4]| [sizes; 3];
    let case = |name, sizes, is_causal| Case { name, sizes, is_causal };
    vec![
        case("long", same([2, 3, 512, 64]), false),
        case("long and causal", same([2, 3, 512, 64]), true),
        case("uneven", same([2, 3, 77, 32]), false),
        case("uneven and causal", same([3, 2, 131, 96]), true),
        case("as wide as it may be", same([1, 2, 256, 128]), true),
        case("across", [[2, 3, 50, 64], [2, 3, 170, 64], [2, 3, 170, 24]], false),
        case("one query", [[2, 3, 1, 64], [2, 3, 300, 64], [2, 3, 300, 64]], false),
        case("few", same([1, 1, 2, 8]), true),
    ]
}

/// Attention written as other operations.
fn written_out(x: &[Tensor], is_causal: bool, scale: f64) -> Result<Tensor> {
    let scores = x[0].matmul(&x[1].transpose(-2, -1)?)?.mul_scalar(scale)?;
    let [queries, keys] = [x[0].dims()[2], x[1].dims()[2]];
    let place = |count: usize| Tensor::on(&scores.device()).arange(0_i64, count as i64, 1);
    let is_later = place(queries)?.unsqueeze(1)?.lt(&place(keys)?)?;
    let scores = if is_causal { scores.masked_fill(&is_later, f64::NEG_INFINITY)? } else { scores };
    scores.softmax(-1)?.matmul(&x[2])
}

fn fused(x: &[Tensor], is_causal: bool, scale: f64) -> Result<Tensor> {
    Ok(x[0].fused_attention(&x[1], &x[2], is_causal, scale)?.expect("the GPU has the kernel"))
}

/// The result, and the gradients of the sum of its squares with respect to all inputs, in the order of the inputs.
fn with_gradients(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let inputs: Vec<_> = inputs.iter().map(|x| x.detach().set_requires_grad(true)).collect();
    let out = f(&inputs)?;
    out.mul(&out)?.sum(..)?.backward()?;
    Ok([out.detach()].into_iter().chain(inputs.iter().filter_map(Tensor::grad)).collect())
}

/// The inputs of a case: numbers around 0, mostly between −1 and 1.
fn numbers(case: &Case, dtype: DType) -> Vec<Tensor> {
    let small = |(sizes, seed): (&[usize; 4], u64)| random(dtype, sizes, seed).mul_scalar(0.25).unwrap();
    case.sizes.iter().zip(1..).map(small).collect()
}

/// A Hopper GPU with a cuDNN that has the kernel, and whether the kernel takes any number of keys.
fn capable() -> Option<(Gpu<RwLockReadGuard<'static, ()>>, bool)> {
    let gpu = gpu().filter(has_libraries)?;
    let takes = |words: usize| {
        let x = random(DType::BF16, &[1, 1, words, 64], 1).to(&gpu).unwrap();
        let found = with_kernels(Kernels::Library, || x.fused_attention(&x, &x, false, 1.0));
        let is_there = matches!(found, Ok(Some(_)));
        if !is_there {
            eprintln!("SKIPPED: no kernel for attention of {words} words: {found:?}");
        }
        is_there
    };
    let (even, uneven) = (takes(128), takes(70));
    even.then_some((gpu, uneven))
}

#[test]
fn one_kernel_computes_what_is_written_out_with_the_same_bits_each_time() {
    let Some((gpu, takes_any)) = capable() else { return };
    for (dtype, bound) in [(DType::BF16, 0.02), (DType::F16, 0.003)] {
        for case in cases().into_iter().filter(|case| takes_any || case.sizes[1][2].is_multiple_of(128)) {
            let here = numbers(&case, dtype);
            let (scale, is_causal) = (0.3, case.is_causal);
            let wide: Vec<_> = here.iter().map(|x| x.to_dtype(DType::F64).unwrap()).collect();
            let expected = with_gradients(&wide, |x| written_out(x, is_causal, scale)).unwrap();
            let there: Vec<_> = here.iter().map(|x| x.to(&gpu).unwrap()).collect();
            let turned = |x: &Tensor| x.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
            let apart: Vec<_> = there.iter().map(turned).collect();
            let run = |x: &[Tensor]| {
                with_kernels(Kernels::Library, || with_gradients(x, |x| fused(x, is_causal, scale))).unwrap()
            };
            let (found, again, of_words) = (run(&there), run(&there), run(&apart));
            // The second run gets scratch memory that still has the sums of the first.
            let in_any_order = with_deterministic_algorithms(false, || {
                run(&there);
                run(&there)
            });
            assert_eq!(found.len(), 4);
            for (i, expected) in expected.iter().enumerate() {
                let name = format!("{} in {dtype}, output or gradient {i}", case.name);
                let bound = bound * largest(expected).max(1.0);
                same(expected, &found[i].to_dtype(DType::F64).unwrap(), bound, &name);
                same(expected, &in_any_order[i].to_dtype(DType::F64).unwrap(), bound, &format!("{name}, in any order"));
                same(&found[i], &again[i], 0.0, &format!("{name}, again"));
                same(&found[i], &of_words[i], 0.0, &format!("{name}, of words whose heads lie together"));
            }
            if case.sizes[0][1] > 1 && case.sizes[0][2] > 1 {
                assert!(of_words[0].transpose(1, 2).unwrap().is_contiguous(), "{}: so they stay", case.name);
            }
        }
    }
}

#[test]
fn heads_may_be_views_of_one_projection() {
    let Some((gpu, _)) = capable() else { return };
    let all = random(DType::BF16, &[2, 128, 3, 4, 32], 1).mul_scalar(0.25).unwrap();
    let part = |x: &Tensor, i: isize| x.select(2, i).and_then(|x| x.transpose(1, 2));
    let of = |x: &Tensor, f: fn(&[Tensor], bool, f64) -> Result<Tensor>| {
        with_gradients(std::slice::from_ref(x), |x| f(&[part(&x[0], 0)?, part(&x[0], 1)?, part(&x[0], 2)?], true, 0.2))
    };
    let expected = of(&all.to_dtype(DType::F64).unwrap(), written_out).unwrap();
    let found = with_kernels(Kernels::Library, || of(&all.to(&gpu).unwrap(), fused)).unwrap();
    for (expected, found) in expected.iter().zip(&found) {
        same(expected, &found.to_dtype(DType::F64).unwrap(), 0.02 * largest(expected), "one projection");
    }
}

#[test]
fn tensors_may_begin_anywhere() {
    let Some((gpu, _)) = capable() else { return };
    let all = random(DType::BF16, &[1 + 2 * 128 * 32], 1).mul_scalar(0.25).unwrap().to(&gpu).unwrap();
    let here = |start: usize| all.narrow(0, start, 2 * 128 * 32).and_then(|x| x.reshape([1, 2, 128, 32])).unwrap();
    let x = here(1);
    let run = |x: &Tensor| {
        let inputs = [x.clone(), x.clone(), x.clone()];
        with_kernels(Kernels::Library, || with_gradients(&inputs, |x| fused(x, true, 0.2))).unwrap()
    };
    let aligned = x.deep_clone().unwrap();
    for (found, expected) in run(&x).iter().zip(&run(&aligned)) {
        same(found, expected, 0.0, "two bytes behind");
    }
}

#[test]
fn a_captured_step_attends_with_the_same_bits() {
    let Some((gpu, _)) = capable() else { return };
    let case = Case { name: "captured", sizes: [[4, 8, 256, 64]; 3], is_causal: true };
    let inputs: Vec<_> = numbers(&case, DType::BF16).iter().map(|x| x.to(&gpu).unwrap()).collect();
    let eager = with_gradients(&inputs, |x| fused(x, true, 0.1)).unwrap();
    let mut step = CapturedStep::new(&gpu);
    for _ in 0..4 {
        let inputs = (inputs[0].clone(), inputs[1].clone(), inputs[2].clone());
        let found = step
            .run(inputs, |(q, k, v)| -> Result<_> {
                let all = with_gradients(&[q.clone(), k.clone(), v.clone()], |x| fused(x, true, 0.1))?;
                let [out, q, k, v] = all.try_into().expect("four tensors");
                Ok((out, q, k, v))
            })
            .unwrap();
        for (eager, found) in eager.iter().zip([&found.0, &found.1, &found.2, &found.3]) {
            same(eager, found, 0.0, "captured");
        }
    }
}

#[test]
fn autocast_takes_it_and_gradients_are_wide() {
    let Some((gpu, _)) = capable() else { return };
    let case = Case { name: "autocast", sizes: [[4, 8, 256, 64]; 3], is_causal: false };
    let inputs: Vec<_> = numbers(&case, DType::F32).iter().map(|x| x.to(&gpu).unwrap()).collect();
    let expected = with_gradients(&inputs, |x| written_out(x, false, 0.1)).unwrap();
    let found =
        with_gradients(&inputs, |x| autocast(Half::BF16, || fused(x, false, 0.1))?.to_dtype(DType::F32)).unwrap();
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found.dtype(), DType::F32);
        same(expected, found, 0.03 * largest(expected), "autocast");
    }
}

#[test]
fn second_derivatives_are_those_of_what_it_computes() {
    let Some((gpu, _)) = capable() else { return };
    let case = Case { name: "twice", sizes: [[1, 2, 128, 16]; 3], is_causal: true };
    let of = |inputs: &[Tensor], f: fn(&[Tensor], bool, f64) -> Result<Tensor>| -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = inputs.iter().map(|x| x.detach().set_requires_grad(true)).collect();
        let all: Vec<&Tensor> = inputs.iter().collect();
        let out = f(&inputs, true, 0.3)?;
        let loss = out.mul(&out)?.sum(..)?;
        let first = grad(&[&loss], &all, Backward { create_graph: true, ..Backward::default() })?;
        let squares = first.iter().flatten().map(|x| x.mul(x)?.sum(..));
        let sum = squares.reduce(|a, b| a?.add(&b?)).expect("there are gradients")?;
        Ok(grad(&[&sum], &all, Backward::default())?.into_iter().flatten().collect())
    };
    let here = numbers(&case, DType::F16);
    let wide: Vec<_> = here.iter().map(|x| x.to_dtype(DType::F64).unwrap()).collect();
    let there: Vec<_> = here.iter().map(|x| x.to(&gpu).unwrap()).collect();
    let expected = of(&wide, written_out).unwrap();
    let found = with_kernels(Kernels::Library, || of(&there, fused)).unwrap();
    assert_eq!(found.len(), 3);
    for (expected, found) in expected.iter().zip(&found) {
        same(expected, &found.to_dtype(DType::F64).unwrap(), 0.03 * largest(expected), "twice");
    }
}

#[test]
fn fused_attention_is_none_where_there_is_no_kernel() {
    let here = random(DType::BF16, &[2, 2, 64, 64], 1);
    assert!(here.fused_attention(&here, &here, false, 1.0).unwrap().is_none(), "on the CPU");
    let Some((gpu, _)) = capable() else { return };
    let on = |dtype, sizes: &[usize]| random(dtype, sizes, 1).to(&gpu).unwrap();
    let none =
        |x: &Tensor, key: &Tensor, is_causal: bool| x.fused_attention(key, key, is_causal, 1.0).unwrap().is_none();
    let large = on(DType::BF16, &[4, 8, 256, 64]);
    assert!(!none(&large, &large, true));
    with_kernels(Kernels::Own, || assert!(none(&large, &large, true), "this crate's kernels"));
    assert!(none(&on(DType::BF16, &[1, 2, 16, 64]), &on(DType::BF16, &[1, 2, 16, 64]), true), "too small");
    with_kernels(Kernels::Library, || {
        let wide = on(DType::F32, &[4, 8, 256, 64]);
        assert!(none(&wide, &wide, false) && none(&wide, &large, false), "f32");
        for features in [12, 136] {
            let other = on(DType::BF16, &[2, 2, 64, features]);
            assert!(none(&other, &other, false), "{features} features");
        }
        let few = on(DType::BF16, &[4, 8, 128, 64]);
        assert!(none(&large, &few, true) && !none(&large, &few, false), "causal, of other sizes");
        assert!(none(&large, &on(DType::BF16, &[1, 8, 256, 64]), false), "keys that would be repeated");
        let nothing = on(DType::BF16, &[4, 8, 0, 64]);
        assert!(none(&nothing, &nothing, false), "no words");
    });
}
