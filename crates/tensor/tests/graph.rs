//! The graph across threads, at their end, under hooks, in-place changes and half types.

use std::cell::RefCell;
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use half::bf16;
use pagelock_tensor::autograd::{self, Backward, Context, Function};
use pagelock_tensor::{DType, Error, Reduction, Result, Tensor, enable_grad, no_grad};

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap().set_requires_grad(true)
}

fn retained() -> Backward {
    Backward { retain_graph: true, ..Backward::default() }
}

#[test]
fn a_graph_made_on_one_thread_goes_backward_on_another() -> Result<()> {
    let x = leaf(&[2.0, 3.0]);
    let y = (&x * &x)?.sum(..)?;
    thread::spawn(move || y.backward()).join().unwrap()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [4.0, 6.0]);
    Ok(())
}

#[test]
fn threads_that_go_backward_to_one_leaf_lose_no_gradient() -> Result<()> {
    const THREADS: usize = 4;
    const ROUNDS: usize = 500;
    let x = leaf(&[1.0; 64]);
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                (0..ROUNDS).try_for_each(|_| x.sum(..)?.backward()).unwrap();
            });
        }
    });
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [(THREADS * ROUNDS) as f32; 64]);
    Ok(())
}

#[test]
fn threads_that_copy_between_the_same_tensors_never_wait_for_each_other_for_ever() -> Result<()> {
    let (a, b, c) = (Tensor::zeros([256])?, Tensor::ones([256])?, Tensor::ones([256])?);
    let (done, all_done) = mpsc::channel();
    for (to, from, other) in [(&a, &b, &c), (&b, &a, &c), (&c, &b, &a), (&b, &c, &a)] {
        let (to, from, other, done) = (to.clone(), from.clone(), other.clone(), done.clone());
        thread::spawn(move || {
            for _ in 0..5_000 {
                to.copy_(&from).unwrap();
                to.addcmul_(&from, &other, 0.0).unwrap();
                from.add(&other).unwrap();
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        assert!(all_done.recv_timeout(Duration::from_secs(120)).is_ok(), "a thread is stuck");
    }
    Ok(())
}

/// The result of a hook that only keeps something alive.
fn holding(_: &Arc<()>) -> Result<Option<Tensor>> {
    Ok(None)
}

/// A chain long enough to overflow a thread's stack if nodes were dropped recursively.
fn long_chain(alive: &Arc<()>) -> Result<Tensor> {
    let x = leaf(&[1.0]);
    let alive = Arc::clone(alive);
    x.register_hook(move |_| holding(&alive))?;
    (0..100_000).try_fold(x, |y, _| &y * 1.0)
}

thread_local! {
    static KEPT: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

#[test]
fn a_long_graph_is_freed_when_its_thread_ends() {
    let alive = Arc::new(());
    for graph_first in [true, false] {
        let alive = Arc::clone(&alive);
        let kept = thread::spawn(move || {
            if !graph_first {
                KEPT.set(None); // initializes this thread-local before those of the graph
            }
            drop(long_chain(&alive).unwrap());
            KEPT.set(Some(long_chain(&alive).unwrap()));
        });
        kept.join().unwrap();
    }
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_long_graph_whose_last_handles_two_threads_drop_at_once_is_freed() -> Result<()> {
    let alive = Arc::new(());
    for _ in 0..20 {
        let (first, start) = (long_chain(&alive)?, Barrier::new(2));
        let second = first.clone();
        thread::scope(|scope| {
            for handle in [first, second] {
                scope.spawn(|| {
                    let handle = handle;
                    start.wait();
                    drop(handle);
                });
            }
        });
        assert_eq!(Arc::strong_count(&alive), 1);
    }
    Ok(())
}

#[test]
fn a_reused_node_keeps_no_gradient_and_no_hook_of_its_first_use() -> Result<()> {
    let alive = Arc::new(());
    for _ in 0..3 {
        let (x, held) = (leaf(&[3.0]), Arc::clone(&alive));
        let y = x.exp()?;
        y.retain_grad();
        y.register_hook(move |_| holding(&held))?;
        y.backward()?;
        assert!(y.grad().is_some());
        drop((x, y));
        assert_eq!(Arc::strong_count(&alive), 1);
        let again = leaf(&[3.0]).exp()?;
        again.backward()?;
        assert!(again.grad().is_none());
    }
    Ok(())
}

#[test]
fn gradients_that_have_graphs_are_freed_without_recursion() -> Result<()> {
    let alive = Arc::new(());
    let x = leaf(&[1.0]);
    x.set_grad(Some(long_chain(&alive)?))?;
    let holder = leaf(&[1.0]);
    holder.register_hook(move |_| Ok(Some(x.clone())))?;
    drop(holder);
    assert_eq!(Arc::strong_count(&alive), 1);
    Ok(())
}

/// Passes numbers and gradients on, and holds a tensor.
struct Holding(#[expect(dead_code, reason = "it is only held")] Tensor);

impl Function for Holding {
    fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].deep_clone()
    }

    fn backward(&self, _: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.clone())])
    }
}

#[test]
fn long_chains_through_gradients_hooks_and_functions_are_freed_without_recursion() -> Result<()> {
    let mut x = leaf(&[1.0]);
    for i in 0..200_000 {
        x = match i % 3 {
            0 => {
                let next = leaf(&[1.0]);
                next.set_grad(Some(x))?;
                next
            }
            1 => {
                let next = leaf(&[1.0]);
                next.register_hook(move |_| Ok(Some(x.clone())))?;
                next
            }
            _ => Holding(x).apply(&[&leaf(&[1.0])])?,
        };
    }
    drop(x);
    Ok(())
}

#[test]
fn zeroing_a_gradient_frees_the_leaf_that_its_graph_leads_to() -> Result<()> {
    let alive = Arc::new(());
    let x = leaf(&[3.0]);
    let held = Arc::clone(&alive);
    x.register_hook(move |_| holding(&held))?;
    x.pow(3.0)?.backward_with(Backward { create_graph: true, ..Backward::default() })?;
    assert!(x.grad().unwrap().requires_grad());
    x.zero_grad();
    drop(x);
    assert_eq!(Arc::strong_count(&alive), 1);
    Ok(())
}

#[test]
fn a_hook_that_fails_ends_backward_and_changes_no_gradient() -> Result<()> {
    let (x, w) = (leaf(&[1.0, 2.0]), leaf(&[1.0, 1.0]));
    w.register_hook(|grad| grad.reshape([7]).map(Some))?;
    let y = (&x * &w)?.sum(..)?;
    assert_eq!(
        y.backward().unwrap_err().to_string(),
        "reshape: [2] has 2 elements, which do not fill [7]; make the product of the sizes 2 (one size may be -1)"
    );
    assert!(x.grad().is_none() && w.grad().is_none());
    Ok(())
}

#[test]
fn a_hook_that_returns_another_shape_is_refused() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let y = (&x * 2.0)?;
    y.register_hook(|grad| grad.sum(..).map(Some))?;
    assert_eq!(
        y.sum(..)?.backward().unwrap_err().to_string(),
        "hook: the gradient is float32 [], but float32 [2] was expected; a gradient is shaped like its tensor"
    );
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn hooks_run_in_order_and_see_each_complete_gradient_once() -> Result<()> {
    let x = leaf(&[1.0]);
    let (seen, order) = mpsc::channel();
    let again = seen.clone();
    x.register_hook(move |grad| {
        seen.send(("first", grad.item::<f32>()?)).unwrap();
        (grad * 10.0).map(Some)
    })?;
    x.register_hook(move |grad| {
        again.send(("second", grad.item::<f32>()?)).unwrap();
        Ok(None)
    })?;
    (&x * &x)?.backward()?;
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [("first", 2.0), ("second", 20.0)]);
    assert_eq!(x.grad().unwrap().item::<f32>()?, 20.0);
    Ok(())
}

#[test]
fn a_hook_may_go_backward_itself_and_be_removed_while_it_holds_its_tensor() -> Result<()> {
    struct LooksWhenDropped(Tensor);
    impl Drop for LooksWhenDropped {
        fn drop(&mut self) {
            assert_eq!(self.0.grad().unwrap().item::<f32>().unwrap(), 1.0);
        }
    }
    let (x, other) = (leaf(&[1.0]), leaf(&[5.0]));
    let (own, inner) = (LooksWhenDropped(x.clone()), other.clone());
    let handle = x.register_hook(move |_| {
        assert!(own.0.requires_grad());
        enable_grad(|| &inner * 2.0)?.backward()?;
        Ok(None)
    })?;
    (&x * 1.0)?.backward()?;
    handle.remove();
    assert_eq!(other.grad().unwrap().item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn grad_sets_no_gradients_of_leaves_and_returns_none_for_unrelated_tensors() -> Result<()> {
    let (x, w) = (leaf(&[2.0]), leaf(&[3.0]));
    let early = (&x * &w)?;
    let y = early.exp()?;
    let found = autograd::grad(&[&y, &early], &[&early, &w], retained())?;
    let [by_early, by_w] = [&found[0], &found[1]].map(|found| found.as_ref().unwrap().item::<f32>().unwrap());
    assert_eq!((by_early, by_w), (6f32.exp() + 1.0, 2.0 * (6f32.exp() + 1.0)));
    let unrelated = leaf(&[1.0]);
    assert!(autograd::grad(&[&y], &[&unrelated], Backward::default())?[0].is_none());
    assert!(x.grad().is_none() && w.grad().is_none());
    Ok(())
}

#[test]
fn a_change_through_any_view_makes_a_new_version_of_all() -> Result<()> {
    let x = Tensor::zeros([4, 4])?;
    let views = [x.t()?, x.narrow(0, 1, 2)?, x.select(1, 3)?, x.reshape([16])?, x.detach(), x.clone()];
    for (changes, view) in views.iter().enumerate() {
        view.add_scalar_(1.0)?;
        let versions: Vec<_> = views.iter().map(Tensor::version).collect();
        assert_eq!(versions, [changes as u64 + 1; 6]);
    }
    assert_eq!(x.sum(..)?.item::<f32>()?, (16 + 8 + 4 + 16 + 16 + 16) as f32);
    assert_eq!(x.t()?.contiguous()?.version(), 0, "a copy has its own");
    Ok(())
}

#[test]
fn a_saved_view_is_stale_when_what_it_views_was_changed() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let table = Tensor::ones([3, 2])?;
    let y = (&x * &table.select(0, 1)?)?.sum(..)?;
    table.select(0, 2)?.zero_()?; // other elements, but the storage has only one version
    assert!(matches!(y.backward(), Err(Error::StaleSaved { op: "mul", saved: 0, now: 1, .. })));
    let y = (&x * &x)?.exp()?.sum(..)?;
    no_grad(|| x.zero_())?;
    assert!(matches!(y.backward(), Err(Error::StaleSaved { op: "mul", .. })));
    Ok(())
}

#[test]
fn a_mask_is_stale_when_it_was_changed() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let mask = Tensor::new([true, false])?;
    let chosen = x.where_cond(&mask, &Tensor::zeros([2])?)?.sum(..)?;
    let (filled, selected) = (x.masked_fill(&mask, 0.0)?.sum(..)?, x.masked_select(&mask)?.sum(..)?);
    mask.copy_(&Tensor::new([false, true])?)?;
    assert!(matches!(chosen.backward(), Err(Error::StaleSaved { op: "where", saved: 0, now: 1, .. })));
    assert!(matches!(filled.backward(), Err(Error::StaleSaved { op: "masked_fill", saved: 0, now: 1, .. })));
    assert!(matches!(selected.backward(), Err(Error::StaleSaved { op: "masked_select", saved: 0, now: 1, .. })));
    Ok(())
}

#[test]
fn inputs_of_an_operation_that_saves_none_may_change_before_backward() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let other = Tensor::ones([2])?;
    let y = (&x + &other)?.sum(..)?;
    other.zero_()?;
    no_grad(|| x.zero_())?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

/// Fits y = 3x − 1 with weights in `f32` and the forward pass in another precision.
fn trains_through(dtype: DType) -> Result<()> {
    let (w, b) = (leaf(&[0.0]), leaf(&[0.0]));
    let x = Tensor::from_slice(&[-1.0f32, -0.5, 0.0, 0.5, 1.0], [5, 1])?;
    let target = ((&x * 3.0)? - 1.0)?.to_dtype(dtype)?;
    for _ in 0..200 {
        let y = (x.to_dtype(dtype)?.mul(&w.to_dtype(dtype)?)?.add(&b.to_dtype(dtype)?))?;
        let loss = y.mse_loss(&target, Reduction::Mean)?;
        loss.to_dtype(DType::F32)?.backward()?;
        for parameter in [&w, &b] {
            let grad = parameter.grad().unwrap();
            no_grad(|| parameter.add_scaled_(&grad, -0.2))?;
            parameter.zero_grad();
        }
    }
    let (w, b) = (w.item::<f32>()?, b.item::<f32>()?);
    assert!((w - 3.0).abs() < 0.05 && (b + 1.0).abs() < 0.05, "{dtype}: w {w}, b {b}");
    Ok(())
}

#[test]
fn half_types_train_through_casts() -> Result<()> {
    trains_through(DType::F16)?;
    trains_through(DType::BF16)?;
    trains_through(DType::F64)
}

#[test]
fn the_gradient_of_a_half_tensor_is_half() -> Result<()> {
    let x = Tensor::from_slice(&[1.0f32, 2.0], 2)?.to_dtype(DType::BF16)?.set_requires_grad(true);
    x.to_dtype(DType::F32)?.pow(2.0)?.to_dtype(DType::F64)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().dtype(), DType::BF16);
    assert_eq!(x.grad().unwrap().to_vec::<bf16>()?, [2.0f32, 4.0].map(bf16::from_f32));
    Ok(())
}

#[test]
fn a_hook_that_removes_itself_leaves_the_next_one() -> Result<()> {
    let x = leaf(&[1.0]);
    let handle: Arc<Mutex<Option<autograd::HookHandle>>> = Arc::default();
    let own = handle.clone();
    let first = x.register_hook(move |_| {
        if let Some(first) = own.lock().unwrap().take() {
            first.remove();
        }
        Ok(None)
    })?;
    *handle.lock().unwrap() = Some(first);
    let _second = x.register_hook(|grad| (grad * 10.0).map(Some))?;
    for expected in [20.0, 40.0] {
        (&x * 2.0)?.backward()?;
        assert_eq!(x.grad().unwrap().item::<f32>()?, expected);
    }
    Ok(())
}

#[test]
fn the_order_in_which_a_graph_was_made_does_not_change_the_order_of_sums() -> Result<()> {
    let of_order = |order: [usize; 3]| {
        let w = leaf(&[1.0]);
        let mut losses = [const { None }; 3];
        for i in order {
            losses[i] = Some(w.mul_scalar([1e8, 1.0, -1e8][i])?); // as if each was made by a thread of its own
        }
        let [a, b, c] = losses.map(|loss| loss.expect("each was made"));
        a.add(&b)?.add(&c)?.backward()?;
        w.grad().expect("a gradient").to_vec::<f32>()
    };
    let first = of_order([0, 1, 2])?;
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(of_order(order)?, first, "{order:?}");
    }
    Ok(())
}

#[test]
fn a_start_gradient_of_another_shape_is_refused_also_where_it_leads_to_no_target() -> Result<()> {
    let (x, y) = (leaf(&[1.0, 2.0]), leaf(&[3.0]));
    let (a, b) = (x.mul_scalar(2.0)?, y.mul_scalar(2.0)?);
    let start = Backward { gradient: Some(Tensor::ones([2])?), ..Backward::default() };
    assert!(autograd::grad(&[&a, &b], &[&x], start).is_err());
    Ok(())
}
