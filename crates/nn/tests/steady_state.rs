//! A training step in the steady state makes no heap allocation. The global allocator of this program counts on all
//! threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pagelock_data::{DataLoader, TensorDataset};
use pagelock_nn::optim::{Adam, Optimizer, RmsProp, Sgd};
use pagelock_nn::{AvgPool2d, Conv2d, Lambda, Linear, Module, ReLU, Result, Sequential, functional as F, loss_batch};
use pagelock_tensor::{Int, Tensor, manual_seed, set_num_threads};

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

const BATCH: usize = 64;
const WARM_UP: usize = 10;
const COUNTED: usize = 50;

/// The tutorial's first model.
fn logistic() -> Result<Sequential> {
    Ok(Sequential::new((Linear::new(784, 10)?,)))
}

/// The tutorial's last model.
fn cnn() -> Result<Sequential> {
    Ok(Sequential::new((
        Lambda::new(|x: &Tensor| x.view([-1, 1, 28, 28])),
        Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 10, 3)?.stride(2).padding(1),
        ReLU,
        AvgPool2d::new(4),
        Lambda::new(|x: &Tensor| x.flatten(1, -1)),
    )))
}

type Loader = DataLoader<(Tensor, Tensor<Int>)>;

/// A loader whose epoch consists of the warm-up steps and the counted steps.
fn loader() -> Result<Loader> {
    let n_samples = (WARM_UP + COUNTED) * BATCH;
    let samples = (Tensor::rand([n_samples, 784])?, Tensor::full([n_samples], 0)?);
    Ok(DataLoader::new(TensorDataset::new(samples).unwrap()).batch_size(BATCH).shuffle(0))
}

/// The number of allocations of an epoch's steps after the warm-up. A step is batch, forward, loss, backward and
/// optimizer.
fn allocations(loader: &Loader, model: &Sequential, opt: &mut dyn Optimizer) -> Result<usize> {
    let mut batches = loader.iter();
    let mut step = || {
        let (xb, yb) = batches.next().unwrap().unwrap();
        loss_batch(model, F::cross_entropy, &xb, &yb, Some(&mut *opt))
    };
    for _ in 0..WARM_UP {
        step()?;
    }
    let before = ALLOCATIONS.load(Relaxed);
    for _ in 0..COUNTED {
        step()?;
    }
    Ok(ALLOCATIONS.load(Relaxed) - before)
}

/// Checks an optimizer on both models: one of at most 20 epochs makes no allocation. Earlier epochs may allocate,
/// since the test harness may still be starting, and since with two threads a helper allocates scratch memory when it
/// first helps.
fn check<O: Optimizer>(make: impl Fn(&Sequential) -> O) -> Result<()> {
    const EPOCHS: usize = 20;
    for n_threads in [1, 2] {
        set_num_threads(n_threads);
        for model in [logistic()?, cnn()?] {
            let (loader, mut opt) = (loader()?, make(&model));
            let mut counts = Vec::with_capacity(EPOCHS);
            while counts.len() < EPOCHS && counts.last() != Some(&0) {
                counts.push(allocations(&loader, &model, &mut opt)?);
            }
            assert_eq!(counts.last(), Some(&0), "{n_threads} threads, allocations in epochs: {counts:?}\n{model:?}");
        }
    }
    Ok(())
}

/// One test, since all threads of the process are counted.
#[test]
fn after_the_first_steps_no_step_allocates() -> Result<()> {
    manual_seed(0);
    check(|model| Sgd::new(model.parameters(), 0.1).momentum(0.9))?;
    check(|model| Adam::new(model.parameters(), 1e-3))?;
    check(|model| RmsProp::new(model.parameters(), 1e-3).momentum(0.9))
}
