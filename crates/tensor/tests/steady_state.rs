//! Operations, backward and in-place changes make no heap allocation when they are repeated. The global allocator of
//! this program counts on all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pagelock_tensor::{Conv2dOptions, DType, Pool2dOptions, Reduction, Result, Tensor, no_grad, set_num_threads};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator.
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

/// Asserts that `step` stops allocating: one of at most 20 rounds of 50 steps makes no allocation. The first rounds
/// may allocate, since containers grow and the test harness may still be starting.
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

fn random<const N: usize>(dtype: DType, shape: [usize; N]) -> Result<Tensor> {
    Tensor::of(dtype).randn(shape)
}

/// Moves each parameter against its gradient.
fn descend(parameters: &[&Tensor]) -> Result<()> {
    for parameter in parameters {
        if let Some(grad) = parameter.grad() {
            no_grad(|| parameter.add_scaled_(&grad, -0.01))?;
        }
        parameter.zero_grad();
    }
    Ok(())
}

fn convolutions(dtype: DType) -> Result<()> {
    let (x, labels) = (random(dtype, [8, 3, 12, 12])?, Tensor::full([8], 0)?);
    let weight = random(dtype, [6, 3, 3, 3])?.set_requires_grad(true);
    let bias = random(dtype, [6])?.set_requires_grad(true);
    settles(&format!("a convolution in {dtype}"), || {
        let y = x
            .conv2d(&weight, Some(&bias), Conv2dOptions::new().padding(1))?
            .relu()?
            .max_pool2d(Pool2dOptions::new(2))?;
        y.mean([2, 3])?.cross_entropy(&labels, Reduction::Mean)?.backward()?;
        descend(&[&weight, &bias])
    })
}

fn matrices(dtype: DType) -> Result<()> {
    let (x, target) = (random(dtype, [16, 32])?, random(dtype, [16, 4])?);
    let [w1, w2] = [random(dtype, [32, 24])?, random(dtype, [24, 4])?].map(|w| w.set_requires_grad(true));
    let scale = random(dtype, [4])?.set_requires_grad(true);
    settles(&format!("matrix products in {dtype}"), || {
        let y = x.matmul(&w1)?.tanh()?.matmul(&w2)?.mul(&scale)?;
        y.mse_loss(&target, Reduction::Mean)?.backward()?;
        descend(&[&w1, &w2, &scale])
    })
}

/// More gradients are pending at once than any container first has capacity for.
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
    let (x, index) = (Tensor::rand([40, 6])?, Tensor::full([8], 0)?);
    settles("views and selections", || {
        let rows = x.index_select(0, &index)?.narrow(1, 1, 4)?.t()?.reshape([2, 16])?;
        let best = rows.argmax(1)?.eq(&Tensor::full([2], 0)?)?.to_float()?.mean(..)?;
        best.item::<f32>().map(drop)
    })
}

/// One test, since all threads of the process are counted.
#[test]
fn repeated_operations_allocate_nothing() -> Result<()> {
    set_num_threads(1); // helper threads allocate scratch memory when they first help
    convolutions(DType::F32)?;
    convolutions(DType::F64)?;
    convolutions(DType::BF16)?;
    matrices(DType::F32)?;
    matrices(DType::F64)?;
    matrices(DType::BF16)?;
    many_parameters()?;
    views_and_data()
}
