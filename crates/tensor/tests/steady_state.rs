//! Operations, backward and in-place changes make no heap allocation when they are repeated: counted on all threads, by
//! the program's own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use half::bf16;
use pagelock_tensor::{
    Conv2dOptions, Create, Float, Pool2dOptions, Reduction, Result, Tensor, no_grad, set_num_threads,
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Asserts that `step` comes to allocate nothing: one of some rounds of 50 steps is free of allocations. Not the first
/// ones, in which containers grow to their size and the test harness still starts.
fn settles(what: &str, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    const ROUNDS: usize = 20;
    let mut counts = Vec::with_capacity(ROUNDS);
    while counts.len() < ROUNDS && counts.last() != Some(&0) {
        let before = ALLOCATIONS.load(Relaxed);
        for _ in 0..50 {
            step()?;
        }
        counts.push(ALLOCATIONS.load(Relaxed) - before);
    }
    assert_eq!(counts.last(), Some(&0), "allocations of {what} in rounds of 50 steps: {counts:?}");
    Ok(())
}

fn random<T: Float, const N: usize>(shape: [usize; N]) -> Result<Tensor<T>> {
    Tensor::<f32>::randn(shape)?.cast()
}

/// Moves each parameter against its gradient.
fn descend<T: Float>(parameters: &[&Tensor<T>]) -> Result<()> {
    for parameter in parameters {
        if let Some(grad) = parameter.grad() {
            no_grad(|| parameter.add_scaled_(&grad, T::from_f64(-0.01)))?;
        }
        parameter.zero_grad();
    }
    Ok(())
}

fn convolutions<T: Float>() -> Result<()> {
    let (x, labels) = (random::<T, 4>([8, 3, 12, 12])?, Tensor::<i64>::zeros([8])?);
    let weight = random::<T, 4>([6, 3, 3, 3])?.set_requires_grad(true);
    let bias = random::<T, 1>([6])?.set_requires_grad(true);
    settles(&format!("a convolution in {}", T::DTYPE), || {
        let y = x
            .conv2d(&weight, Some(&bias), Conv2dOptions::new().padding(1))?
            .relu()?
            .max_pool2d(Pool2dOptions::new(2))?;
        y.mean([2, 3])?.cross_entropy(&labels, Reduction::Mean)?.backward()?;
        descend(&[&weight, &bias])
    })
}

fn matrices<T: Float>() -> Result<()> {
    let (x, target) = (random::<T, 2>([16, 32])?, random::<T, 2>([16, 4])?);
    let [w1, w2] = [random([32, 24])?, random([24, 4])?].map(|w: Tensor<T>| w.set_requires_grad(true));
    let scale = random::<T, 1>([4])?.set_requires_grad(true);
    settles(&format!("matrix products in {}", T::DTYPE), || {
        let y = x.matmul(&w1)?.tanh()?.matmul(&w2)?.mul(&scale)?;
        y.mse_loss(&target, Reduction::Mean)?.backward()?;
        descend(&[&w1, &w2, &scale])
    })
}

/// More gradients wait at once than any container has room for at first.
fn many_parameters() -> Result<()> {
    let parameters: Vec<_> = (0..300).map(|_| Tensor::ones([3]).unwrap().set_requires_grad(true)).collect();
    let x = Tensor::ones([3])?;
    settles("300 parameters", || {
        let y = parameters.iter().try_fold(x.clone(), |y, parameter| y.mul(parameter))?;
        y.sum(..)?.backward()?;
        parameters.iter().for_each(Tensor::zero_grad);
        Ok(())
    })
}

fn views_and_data() -> Result<()> {
    let (x, index) = (Tensor::rand([40, 6])?, Tensor::<i64>::zeros([8])?);
    settles("views and selections", || {
        let rows = x.index_select(0, &index)?.narrow(1, 1, 4)?.t()?.reshape([2, 16])?;
        let best = rows.argmax(1)?.eq(&Tensor::<i64>::zeros([2])?)?.cast::<f32>()?.mean(..)?;
        best.item().map(drop)
    })
}

/// One test, since all threads of the process are counted.
#[test]
fn what_is_repeated_allocates_nothing() -> Result<()> {
    set_num_threads(1); // helpers take what they need when they first happen to help
    convolutions::<f32>()?;
    convolutions::<f64>()?;
    convolutions::<bf16>()?;
    matrices::<f32>()?;
    matrices::<f64>()?;
    matrices::<bf16>()?;
    many_parameters()?;
    views_and_data()
}
