//! Calls that fail change nothing: the same call, made again with enough memory, gives the result that it would have
//! given at first.
//!
//! Each call is tried with a growing limit until it succeeds, so that it fails at each of its allocations.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use pagelock_memory::{ByteSize, Resource, default_host, host_budget};
use pagelock_nn::metrics::{Accuracy, Auroc, ConfusionMatrix};
use pagelock_nn::optim::lr_scheduler::{LrScheduler, StepLr};
use pagelock_nn::optim::{Adam, AdamW, GradScaler, Lbfgs, Optimizer, Sgd};
use pagelock_nn::parametrizations::{SpectralNormOptions, spectral_norm};
use pagelock_nn::rnn::pack_padded_sequence;
use pagelock_nn::{
    BatchNorm1d, BatchNorm2d, Checkpoint, Checkpoints, Dropout, Error, Forward, InstanceNorm1d, Linear, Module,
    Parameter, StateDict, init,
};
use pagelock_tensor::{AnyTensor, DType, Generator, Tensor, manual_seed};

/// Runs a test while no other runs, since all share one budget. The test runs on a thread of its own, which has ended
/// and released its caches when the next test begins.
fn alone(test: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = thread::scope(|scope| scope.spawn(test).join());
    ended.unwrap_or_else(|panic| resume_unwind(panic));
}

/// Restores the limit of the budget when dropped.
struct Limited(ByteSize);

impl Limited {
    /// Frees idle memory, and limits the budget to `extra` bytes more than are in use; to 0 if `extra` is 0, since threads
    /// of other tests may end meanwhile and free the memory that they kept.
    fn to(extra: u64) -> Limited {
        default_host().trim();
        let before = host_budget().limit();
        host_budget().set_limit(ByteSize(if extra == 0 { 0 } else { host_budget().used().0 + extra }));
        Limited(before)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        host_budget().set_limit(self.0);
    }
}

/// Calls `attempt` with a growing limit until it succeeds, and checks that `state` is the same after every refusal.
fn refusals_change_nothing<S: PartialEq + std::fmt::Debug>(state: impl Fn() -> S, mut attempt: impl FnMut() -> bool) {
    let before = state();
    for extra in (0..16 << 10).step_by(64) {
        let limited = Limited::to(extra);
        let done = attempt();
        drop(limited);
        if done {
            assert!(extra > 0, "nothing was refused");
            return;
        }
        assert_eq!(state(), before, "after a refusal with {extra} B left");
    }
    panic!("16 KiB are not enough");
}

/// The running statistics, and how many batches were seen.
fn state(layer: &impl Module) -> (Vec<Vec<f32>>, Vec<i64>) {
    let (floats, counts): (Vec<_>, Vec<_>) = layer.buffers().into_iter().partition(|buffer| buffer.dtype().is_float());
    let statistics = floats.iter().map(|buffer| buffer.float().unwrap().to_vec().unwrap());
    (statistics.collect(), counts.iter().map(|count| count.int().unwrap().item().unwrap()).collect())
}

fn batch(shape: [usize; 2]) -> Tensor {
    Tensor::from_vec((0..shape[0] * shape[1]).map(|i| (i * 7 % 11) as f32).collect(), shape).unwrap()
}

#[test]
fn a_refused_batch_is_not_counted_and_moves_no_statistics() {
    alone(|| {
        for momentum in [Some(0.1), None] {
            let layer = BatchNorm1d::new(3).unwrap().momentum(momentum);
            let x = batch([4, 3]);
            for batches in 1..4 {
                refusals_change_nothing(|| state(&layer), || layer.forward(&x).is_ok());
                assert_eq!(state(&layer).1, [batches]);
            }
            let undisturbed = BatchNorm1d::new(3).unwrap().momentum(momentum);
            (0..3).for_each(|_| drop(undisturbed.forward(&x).unwrap()));
            assert_eq!(state(&layer), state(&undisturbed));
        }
    });
}

#[test]
fn a_batch_of_another_shape_is_not_counted() {
    alone(|| {
        let layer = BatchNorm2d::new(3).unwrap();
        let before = state(&layer);
        for shape in [[2, 4, 2, 2], [1, 3, 1, 1]] {
            assert!(layer.forward(&Tensor::ones(shape).unwrap()).is_err());
            assert!(layer.forward_relu(&Tensor::ones(shape).unwrap()).is_err());
        }
        assert!(layer.forward(&Tensor::ones([2, 3]).unwrap()).is_err());
        assert_eq!(state(&layer), before);
    });
}

#[test]
fn a_refused_batch_of_instances_moves_no_statistics() {
    alone(|| {
        let tracked = || InstanceNorm1d::new(3).affine().unwrap().track_running_stats().unwrap();
        let (layer, undisturbed) = (tracked(), tracked());
        let x = batch([6, 4]).reshape([2, 3, 4]).unwrap();
        for _ in 0..2 {
            refusals_change_nothing(|| state(&layer), || layer.forward(&x).is_ok());
            undisturbed.forward(&x).unwrap();
            assert_eq!(state(&layer), state(&undisturbed));
        }
    });
}

#[test]
fn refused_dropout_draws_nothing() {
    alone(|| {
        let (layer, x) = (Dropout::new(0.5), batch([5, 7]));
        manual_seed(11);
        let expected: Vec<f32> = layer.forward(&x).unwrap().to_vec().unwrap();
        manual_seed(11);
        let mut found: Option<Vec<f32>> = None;
        refusals_change_nothing(
            || pagelock_tensor::default_generator().position(),
            || layer.forward(&x).inspect(|y| found = Some(y.to_vec().unwrap())).is_ok(),
        );
        assert_eq!(found.unwrap(), expected);
    });
}

/// Two parameters of different sizes, with gradients.
fn parameters(dtype: DType) -> Vec<Parameter> {
    let generator = Generator::new(5);
    [3, 40]
        .map(|n| {
            let parameter = Parameter::new(Tensor::of(dtype).randn_with([n], &generator).unwrap());
            parameter.pow(2.0).unwrap().sum(..).unwrap().backward().unwrap();
            parameter
        })
        .to_vec()
}

fn values(parameters: &[Parameter]) -> Vec<Vec<f64>> {
    parameters.iter().map(|parameter| parameter.detach().to_vec().unwrap()).collect()
}

fn gradients(parameters: &[Parameter]) -> Vec<Vec<f32>> {
    parameters.iter().map(|parameter| parameter.grad().unwrap().to_vec().unwrap()).collect()
}

fn a_refused_step_leaves_no_trace<O: Optimizer>(make: impl Fn(Vec<Parameter>) -> O) {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let (disturbed, undisturbed) = (parameters(dtype), parameters(dtype));
        let (mut one, mut other) = (make(disturbed.clone()), make(undisturbed.clone()));
        refusals_change_nothing(|| values(&disturbed), || one.step().is_ok());
        one.step().unwrap();
        (0..2).for_each(|_| other.step().unwrap());
        assert_eq!(values(&disturbed), values(&undisturbed));
        let limited = Limited::to(0);
        one.step().unwrap(); // later steps allocate nothing
        drop(limited);
        other.step().unwrap();
        assert_eq!(values(&disturbed), values(&undisturbed), "a later step in {dtype}");
    }
}

#[test]
fn a_refused_step_of_an_optimizer_leaves_no_trace() {
    alone(|| {
        a_refused_step_leaves_no_trace(|parameters| {
            Sgd::new(parameters, 0.1).momentum(0.9).dampening(0.5).weight_decay(0.1)
        });
        a_refused_step_leaves_no_trace(|parameters| Adam::new(parameters, 0.1).weight_decay(0.1));
        a_refused_step_leaves_no_trace(|parameters| AdamW::new(parameters, 0.1));
    });
}

#[test]
fn a_closure_that_fails_and_leaves_no_memory_leaves_parameters_as_they_were() {
    alone(|| {
        let both: Vec<_> = [DType::F32, DType::F64].into_iter().flat_map(parameters).collect();
        let before = values(&both);
        let (mut n_calls, mut limited) = (0, None);
        let mut opt = Lbfgs::new(both.clone(), 0.1);
        let failed = opt.step(|| {
            n_calls += 1;
            if n_calls == 2 {
                limited = Some(Limited::to(0));
                return Err(Error::Argument("no data".to_owned()));
            }
            Ok(Tensor::ones(())?)
        });
        drop(limited);
        assert_eq!(failed.unwrap_err().to_string(), "no data");
        assert_eq!(values(&both), before);
    });
}

#[test]
fn refused_unscaling_leaves_all_gradients_scaled() {
    alone(|| {
        let parameters = parameters(DType::F32);
        let mut opt = Sgd::new(parameters.clone(), 0.1);
        let mut scaler = GradScaler::new().init_scale(4.0);
        let expected: Vec<Vec<f32>> =
            gradients(&parameters).iter().map(|g| g.iter().map(|g| g / 4.0).collect()).collect();
        refusals_change_nothing(|| gradients(&parameters), || scaler.unscale(&mut opt).is_ok());
        assert_eq!(gradients(&parameters), expected);
    });
}

#[test]
fn a_refused_change_of_precision_changes_nothing() {
    alone(|| {
        for dtype in [DType::F64, DType::F16] {
            let model = RefCell::new((Linear::new(4, 8).unwrap(), BatchNorm1d::new(8).unwrap()));
            let state = || {
                let (model, read) =
                    (model.borrow(), |tensor: &Tensor| (tensor.dtype(), tensor.to_vec::<f64>().unwrap()));
                let parameters: Vec<_> = model.parameters().iter().map(|parameter| read(parameter)).collect();
                let floats = model.buffers().into_iter().filter_map(|buffer| buffer.float().ok());
                (parameters, floats.map(|buffer| read(&buffer)).collect::<Vec<_>>())
            };
            refusals_change_nothing(state, || model.borrow_mut().to_dtype_(dtype).is_ok());
            assert!(model.borrow().parameters().iter().all(|parameter| parameter.dtype() == dtype));
        }
    });
}

/// All values that a model saves, as `f64`.
fn saved(model: &impl Module) -> Vec<Vec<f64>> {
    let read = |tensor: &AnyTensor| match tensor.float() {
        Ok(floats) => floats.to_vec().unwrap(),
        Err(_) => tensor.int().unwrap().to_vec::<i64>().unwrap().iter().map(|&count| count as f64).collect(),
    };
    model.state_dict().iter().map(|(_, tensor)| read(tensor)).collect()
}

#[test]
fn a_refused_state_dict_has_loaded_nothing() {
    alone(|| {
        // With little memory, the first layer still fits and the last one does not.
        let make = || (Linear::new(2, 1).unwrap(), BatchNorm1d::new(8).unwrap(), Linear::new(8, 32).unwrap());
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let (model, other) = (make(), make());
            other.1.forward(&batch([4, 8])).unwrap();
            let dict = other.state_dict().to_dtype(dtype).unwrap();
            if dtype != DType::F32 {
                refusals_change_nothing(|| saved(&model), || model.load_state_dict(&dict).is_ok());
            }
            model.load_state_dict(&dict).unwrap();
            let loaded = other.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
            assert_eq!(saved(&model), saved(&loaded), "{dtype}");
        }
    });
}

#[test]
fn a_refused_state_of_an_optimizer_has_loaded_nothing() {
    alone(|| {
        for dtype in [DType::F32, DType::BF16] {
            let trained = |lr: f64, steps: usize| {
                let model = Linear::new(8, 4).unwrap().to_dtype(dtype).unwrap();
                let mut opt = AdamW::new(model.parameters(), lr);
                for _ in 0..steps {
                    let loss = model.forward(&batch([2, 8]).to_dtype(dtype).unwrap()).unwrap().pow(2.0).unwrap();
                    loss.sum(..).unwrap().backward().unwrap();
                    opt.step().unwrap();
                }
                opt
            };
            let saved = trained(0.5, 3).state_dict().unwrap();
            let mut opt = trained(0.1, 1);
            let numbers = |opt: &AdamW| -> Vec<Vec<f64>> {
                let dict = opt.state_dict().unwrap();
                let state = dict.state.iter().map(|(_, tensor)| tensor.float().unwrap().to_vec().unwrap());
                [vec![opt.lr()]].into_iter().chain(state).collect()
            };
            let opt = RefCell::new(&mut opt);
            let state = || numbers(&opt.borrow());
            refusals_change_nothing(state, || opt.borrow_mut().load_state_dict(&saved).is_ok());
            assert_eq!(state()[0], [0.5]);
            let loaded: Vec<f64> = saved.state.get("0.exp_avg").unwrap().to_vec().unwrap();
            assert!(state().contains(&loaded), "{dtype}");
        }
    });
}

#[test]
fn a_state_dict_of_the_model_itself_is_loaded_as_it_was() {
    alone(|| {
        let layers = (Linear::new(8, 8).unwrap(), Linear::new(8, 8).unwrap());
        let [first, second] = [&layers.0, &layers.1].map(saved);
        let swapped = layers.state_dict().renamed(|name| {
            Some(name.strip_prefix("0.").map_or_else(|| name.replacen("1.", "0.", 1), |rest| format!("1.{rest}")))
        });
        refusals_change_nothing(|| saved(&layers), || layers.load_state_dict(&swapped).is_ok());
        assert_eq!((saved(&layers.0), saved(&layers.1)), (second, first));
    });
}

#[test]
fn nothing_is_loaded_where_one_parameter_cannot_be_changed() {
    alone(|| {
        let model = [Tensor::ones([8]).unwrap(), Tensor::ones([1]).unwrap().expand([8]).unwrap()].map(Parameter::new);
        let dict: StateDict =
            ["0", "1"].map(|name| (name.to_owned(), Tensor::zeros([8]).unwrap())).into_iter().collect();
        let refused = model.load_state_dict(&dict).unwrap_err().to_string();
        assert!(refused.contains("copy_"), "{refused}");
        assert_eq!(saved(&model), [[1.0; 8]; 2]);
    });
}

/// A training step, up to the first error.
fn train_step(model: &Linear, opt: &mut Adam, x: &Tensor) -> pagelock_nn::Result<()> {
    model.forward(x)?.pow(2.0)?.mean(..)?.backward()?;
    opt.step()
}

#[test]
fn a_refusal_while_training_names_who_holds_how_much() {
    alone(|| {
        // A thread of its own ends, and releases its caches, before another test begins.
        std::thread::spawn(refusals_name_holders).join().unwrap();
    });
}

fn refusals_name_holders() {
    let model = Linear::new(256, 256).unwrap().without_bias(); // 256 KiB
    let mut opt = Adam::new(model.parameters(), 0.1);
    let x = Tensor::ones([512, 256]).unwrap();

    model.forward(&x).unwrap().pow(2.0).unwrap().mean(..).unwrap().backward().unwrap();
    let limited = Limited::to(300 << 10); // enough for one of the two tensors of the optimizer's state
    let error = opt.step().unwrap_err().to_string();
    for held in ["`parameters` 256 KiB", "`gradients` 256 KiB", "`optimizer state` 256.01 KiB"] {
        assert!(error.contains(held), "{error}");
    }
    drop(limited);

    opt.step().unwrap();
    let limited = Limited::to(600 << 10); // enough for the product, but not for its square
    let error = train_step(&model, &mut opt, &x).unwrap_err().to_string();
    for held in ["`parameters` 256 KiB", "`gradients` 256 KiB", "`optimizer state` 512.01 KiB", "`activations` 512 KiB"]
    {
        assert!(error.contains(held), "{error}");
    }
    drop(limited);

    model.zero_grad();
    let _own = pagelock_memory::holder("teacher");
    let limited = Limited::to(600 << 10);
    let error = train_step(&model, &mut opt, &x).unwrap_err().to_string();
    assert!(error.contains("`teacher` 512 KiB") && !error.contains("`activations`"), "{error}");
    drop(limited);
}

#[test]
fn a_forward_that_fails_moves_no_vectors_of_a_spectral_norm() {
    alone(|| {
        let layer = spectral_norm(Linear::new(3, 4).unwrap(), SpectralNormOptions::default()).unwrap();
        let vectors = || saved(&layer);
        let before = vectors();
        assert!(layer.forward(&Tensor::zeros([2, 5]).unwrap()).is_err());
        assert_eq!(vectors(), before);
        layer.forward(&Tensor::zeros([2, 3]).unwrap()).unwrap();
        assert_ne!(vectors(), before, "one that works moves them");
    });
}

#[test]
fn the_lists_of_initializers_count() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape).unwrap();
    let generator = Generator::new(1);
    let initializers: [(&str, &(dyn Fn() -> pagelock_tensor::Result<()> + Sync)); 4] = [
        ("trunc_normal_", &|| init::trunc_normal_(&zeros(&[1024, 1024]), (0.0, 1.0), (-2.0, 2.0), &generator)),
        ("eye_", &|| init::eye_(&zeros(&[1024, 1024]))),
        ("dirac_", &|| init::dirac_(&zeros(&[1024, 1024, 1]), 1)),
        ("sparse_", &|| init::sparse_(&zeros(&[1024, 1024]), 0.5, 1.0, &generator)),
    ];
    for (name, initialize) in initializers {
        // The tensors of 4, 8 and 4 bytes per element fit, but not the list of 8 bytes per element.
        alone(|| {
            host_budget().trim_pools(); // of lists, too
            let _limited = Limited::to(20 << 20);
            let refused = initialize().expect_err(name);
            assert!(refused.is_out_of_memory(), "{name}: {refused}");
        });
        alone(|| {
            let _limited = Limited::to(48 << 20);
            initialize().expect(name);
        });
    }
}

#[test]
fn copies_of_a_metrics_numbers_are_counted() {
    alone(|| {
        const N: usize = 1 << 20;
        let (scores, labels) = (Tensor::zeros([N, 1]).unwrap(), Tensor::full([N], 0).unwrap());
        let (accuracy, matrix) = (Accuracy::new().unwrap(), ConfusionMatrix::new(1 << 10).unwrap());
        let auroc = Auroc::binary(N).unwrap();
        matrix.update_predictions(&Tensor::full([1], 0).unwrap(), &Tensor::full([1], 0).unwrap()).unwrap();
        auroc.update(&Tensor::new([0.1, 0.9]).unwrap(), &Tensor::new([0, 1]).unwrap()).unwrap();
        let reads: [(&str, &dyn Fn() -> pagelock_nn::Result<()>); 3] = [
            ("Accuracy", &|| accuracy.update(&scores, &labels)),
            ("ConfusionMatrix", &|| matrix.accuracy().map(drop)),
            ("Auroc", &|| auroc.compute().map(drop)),
        ];
        for (name, read) in reads {
            host_budget().trim_pools(); // of lists, too
            let limited = Limited::to(4 << 20);
            let refused = read().expect_err(name).to_string();
            assert!(refused.contains("into_elements: no memory for"), "{name}: {refused}");
            drop(limited);
            read().expect(name);
        }
    });
}

#[test]
fn the_lists_of_a_packed_sequence_count() {
    alone(|| {
        const N: usize = 1 << 19;
        let x = Tensor::zeros([N, 1, 1]).unwrap();
        host_budget().trim_pools(); // of lists, too
        let limited = Limited::to(8 << 20); // the index of 4 MiB and the rows of 2 MiB fit, but not the list of 4 MiB
        assert!(pack_padded_sequence(&x, &[N], false, true).unwrap_err().is_out_of_memory());
        drop(limited);
        pack_padded_sequence(&x, &[N], false, true).unwrap();

        let (x, lengths) = (Tensor::zeros([1, N, 1]).unwrap(), vec![1; N]);
        default_host().trim();
        let before = host_budget().used().0;
        let packed = pack_padded_sequence(&x, &lengths, false, false).unwrap();
        assert_eq!(packed.unsorted_indices().unwrap().len(), N);
        default_host().trim();
        assert!(host_budget().used().0 - before >= 10 << 20, "rows of 2 MiB, and two lists of indices of 4 MiB");
    });
}

#[test]
fn copies_of_a_checkpoints_numbers_and_texts_are_counted() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
        let rates = Tensor::of(DType::F64).zeros([1 << 20]).unwrap();
        let entries = ["base", "lrs"].map(|name| (name.to_owned(), AnyTensor::from(rates.clone())));
        let mut schedule: StateDict = entries.into_iter().collect();
        schedule.insert("step", Tensor::full((), 0).unwrap());
        let checkpoint = Checkpoint::new().value("text", "x".repeat(8 << 20)).unwrap();
        checkpoints.save(1, checkpoint.tensors("scheduler", &schedule).unwrap()).unwrap();
        let saved = checkpoints.latest().unwrap().unwrap();
        drop((rates, schedule));
        let mut opt = Sgd::new(parameters(DType::F32), 0.1);
        let mut scheduler = LrScheduler::new(&mut opt, StepLr::new(1)).unwrap();

        host_budget().trim_pools(); // of lists, too
        let refused = |error: Error| matches!(error, Error::Tensor(error) if error.is_out_of_memory());
        let limited = Limited::to(12 << 20); // the tensor of 8 MiB fits, but not its copy
        assert!(saved.value::<String>("text").is_err_and(refused));
        assert!(saved.load_scheduler(&mut scheduler, &mut opt).is_err_and(refused));
        drop(limited);
        assert_eq!(saved.value::<String>("text").unwrap().len(), 8 << 20);
        let error = saved.load_scheduler(&mut scheduler, &mut opt).unwrap_err();
        assert!(!refused(error), "the optimizer has one group");
    });
}
