//! Learning rate schedulers against PyTorch's, bit for bit over 1000 steps. `../golden/lr_schedulers.py` wrote
//! PyTorch's rates.

use pagelock_nn::optim::lr_scheduler::{
    Anneal, ChainedScheduler, ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, CyclicLr, CyclicMode,
    ExponentialLr, LambdaLr, LinearLr, LrScheduler, LrState, MultiStepLr, MultiplicativeLr, OneCycleLr, PlateauMode,
    PlateauState, PolynomialLr, ReduceLrOnPlateau, Schedule, SequentialLr, StepLr, SwaLr, Threshold,
};
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::{Error, Parameter};
use pagelock_tensor::Tensor;

use crate::pytorch;

const STEPS: u64 = 1000;
const BASE: f64 = 0.3;

fn sgd() -> Sgd {
    Sgd::new([Parameter::new(Tensor::zeros([1]).unwrap())], BASE)
}

/// The schedules, under their names in the script.
fn schedules() -> Vec<(&'static str, Box<dyn Schedule>)> {
    let multiplied = || MultiplicativeLr::new(|step| 1.0 - 1.0 / (step as f64 + 3.0));
    let warm_up = LinearLr::new(50).start_factor(0.1);
    let sequence = SequentialLr::new(ConstantLr::new(0.5, 3))
        .then(10, ExponentialLr::new(0.99))
        .then(300, CosineAnnealingWarmRestarts::new(9))
        .then(700, multiplied());
    let chained = ChainedScheduler::new(LinearLr::new(20).start_factor(0.2))
        .and(ExponentialLr::new(0.995))
        .and(StepLr::new(100).gamma(0.5));
    let restarted = SequentialLr::new(StepLr::new(2))
        .then(5, ConstantLr::new(0.3, 0))
        .then(10, ExponentialLr::new(0.9))
        .then(15, SwaLr::new(0.7));
    let cyclic = |up| CyclicLr::new(0.01, 0.1).step_size(up);
    let linear = OneCycleLr::new(0.4, 1001).pct_start(0.21).anneal_strategy(Anneal::Linear);
    vec![
        ("step", Box::new(StepLr::new(30).gamma(0.7))),
        ("multi_step", Box::new(MultiStepLr::new([10, 20, 20, 500]).gamma(0.3))),
        ("multi_step_at_0", Box::new(MultiStepLr::new([0, 7]))),
        ("constant", Box::new(ConstantLr::new(1.0 / 3.0, 5))),
        ("linear", Box::new(LinearLr::new(5))),
        ("linear_down", Box::new(LinearLr::new(700).start_factor(1.0).end_factor(0.05))),
        ("exponential", Box::new(ExponentialLr::new(0.993))),
        ("polynomial", Box::new(PolynomialLr::new(900).power(1.7))),
        ("polynomial_short", Box::new(PolynomialLr::new(4))),
        ("lambda", Box::new(LambdaLr::new(|step| 1.0 / (1.0 + step as f64)))),
        ("multiplicative", Box::new(multiplied())),
        ("cosine", Box::new(CosineAnnealingLr::new(1000))),
        ("cosine_again", Box::new(CosineAnnealingLr::new(37).eta_min(0.01))),
        ("cosine_of_1", Box::new(CosineAnnealingLr::new(1).eta_min(0.01))),
        ("restarts", Box::new(CosineAnnealingWarmRestarts::new(13))),
        ("restarts_longer", Box::new(CosineAnnealingWarmRestarts::new(7).t_mult(2).eta_min(0.003))),
        ("cyclic", Box::new(cyclic(60))),
        ("cyclic_2", Box::new(cyclic(17).step_size_down(40).mode(CyclicMode::Triangular2))),
        ("cyclic_exp", Box::new(cyclic(50).mode(CyclicMode::ExpRange(0.999)))),
        ("swa", Box::new(SwaLr::new(0.05).anneal_epochs(40))),
        ("swa_linear", Box::new(SwaLr::new(0.7).anneal_epochs(13).anneal_strategy(Anneal::Linear))),
        ("swa_at_once", Box::new(SwaLr::new(0.05).anneal_epochs(0))),
        ("one_cycle", Box::new(OneCycleLr::new(0.4, 1001))),
        ("one_cycle_linear", Box::new(linear.div_factor(7.0).final_div_factor(33.0))),
        ("one_cycle_3", Box::new(OneCycleLr::new(0.4, 1001).pct_start(0.4).three_phase(true))),
        ("one_cycle_of_3", Box::new(OneCycleLr::new(0.4, 1003).pct_start(0.0005))),
        (
            "warm_up_and_cosine",
            Box::new(SequentialLr::new(warm_up).then(50, CosineAnnealingLr::new(950).eta_min(0.001))),
        ),
        ("sequence", Box::new(sequence)),
        ("restarted", Box::new(restarted)),
        ("chained", Box::new(chained)),
    ]
}

fn plateaus() -> [(&'static str, ReduceLrOnPlateau); 2] {
    let highest = ReduceLrOnPlateau::new().mode(PlateauMode::Max).factor(0.9).patience(2).cooldown(4).min_lr(0.02);
    [
        ("plateau", ReduceLrOnPlateau::new().factor(0.5).patience(3)),
        ("plateau_max", highest.threshold(Threshold::Abs(0.01))),
    ]
}

/// The function `metric` of the script.
fn metric(step: u64) -> f64 {
    1.0 / f64::from(1 + (step + 1).ilog2())
}

/// The 64-bit FNV-1a hash.
fn hashed(numbers: &[f64]) -> String {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

fn compare(name: &str, rates: &[f64]) {
    let golden = &pytorch::json("lr_schedulers.json")[name];
    for (step, theirs) in golden["rates"].as_object().unwrap() {
        let (ours, theirs) = (rates[step.parse::<usize>().unwrap()], theirs.as_str().unwrap().parse::<f64>().unwrap());
        assert_eq!(ours.to_bits(), theirs.to_bits(), "{name}: {ours} after {step} steps, PyTorch {theirs}");
    }
    assert_eq!(hashed(rates), golden["hash"], "{name}: some rate of 1000 steps differs");
}

#[test]
fn a_thousand_rates_are_pytorchs_to_the_last_bit() {
    let mut names: Vec<String> = Vec::new();
    for (name, schedule) in schedules() {
        let mut opt = sgd();
        let mut scheduler = LrScheduler::new(&mut opt, schedule).unwrap();
        let mut rates = vec![opt.lr()];
        for _ in 0..STEPS {
            scheduler.step(&mut opt).unwrap();
            rates.push(opt.lr());
            assert_eq!([opt.lr()], scheduler.last_lr());
        }
        compare(name, &rates);
        names.push(name.into());
    }
    for (name, mut scheduler) in plateaus() {
        let mut opt = sgd();
        let mut rates = vec![opt.lr()];
        for step in 0..STEPS {
            scheduler.step(&mut opt, metric(step)).unwrap();
            rates.push(opt.lr());
        }
        compare(name, &rates);
        names.push(name.into());
    }
    let golden = pytorch::json("lr_schedulers.json");
    assert!(
        golden.as_object().unwrap().keys().all(|name| names.contains(name)),
        "a schedule of the script is not tried"
    );
}

#[test]
fn a_scheduler_goes_on_from_its_state() {
    for ((name, schedule), (_, again)) in schedules().into_iter().zip(schedules()) {
        let (mut opt, mut other) = (sgd(), sgd());
        let mut scheduler = LrScheduler::new(&mut opt, schedule).unwrap();
        (0..321).for_each(|_| scheduler.step(&mut opt).unwrap());

        let mut resumed = LrScheduler::new(&mut other, again).unwrap();
        resumed.load_state(&mut other, scheduler.state()).unwrap();
        for _ in 0..STEPS {
            assert_eq!(opt.lr().to_bits(), other.lr().to_bits(), "{name}");
            scheduler.step(&mut opt).unwrap();
            resumed.step(&mut other).unwrap();
        }
    }
    for ((name, mut scheduler), (_, mut resumed)) in plateaus().into_iter().zip(plateaus()) {
        let (mut opt, mut other) = (sgd(), sgd());
        (0..57).for_each(|step| scheduler.step(&mut opt, metric(step)).unwrap());
        other.set_lr(opt.lr());
        resumed.load_state(scheduler.state());
        for step in 57..STEPS {
            scheduler.step(&mut opt, metric(step)).unwrap();
            resumed.step(&mut other, metric(step)).unwrap();
            assert_eq!(opt.lr().to_bits(), other.lr().to_bits(), "{name}");
        }
    }
}

#[test]
fn settings_outside_their_ranges_are_refused_and_change_nothing() {
    let refused: Vec<(Box<dyn Schedule>, &str)> = vec![
        (Box::new(StepLr::new(0)), "StepLr: step_size is 0; it must be at least 1"),
        (Box::new(ConstantLr::new(0.0, 3)), "ConstantLr: factor is 0; it must be above 0, and at most 1"),
        (Box::new(ConstantLr::new(f64::NAN, 3)), "ConstantLr: factor is NaN; it must be above 0, and at most 1"),
        (Box::new(LinearLr::new(0)), "LinearLr: total_iters is 0; it must be at least 1"),
        (Box::new(LinearLr::new(1).end_factor(1.5)), "LinearLr: end_factor is 1.5; it must be from 0 to 1"),
        (Box::new(PolynomialLr::new(0)), "PolynomialLr: total_iters is 0; it must be at least 1"),
        (Box::new(CosineAnnealingLr::new(0)), "CosineAnnealingLr: t_max is 0; it must be at least 1"),
        (
            Box::new(CosineAnnealingWarmRestarts::new(3).t_mult(0)),
            "CosineAnnealingWarmRestarts: t_mult is 0; it must be at least 1",
        ),
        (Box::new(CyclicLr::new(0.1, 0.2).step_size(0)), "CyclicLr: step_size_up is 0; it must be at least 1"),
        (Box::new(OneCycleLr::new(0.1, 0)), "OneCycleLr: total_steps is 0; it must be at least 1"),
        (Box::new(OneCycleLr::new(0.1, 9).pct_start(2.0)), "OneCycleLr: pct_start is 2; it must be from 0 to 1"),
        (
            Box::new(SequentialLr::new(StepLr::new(3)).then(0, StepLr::new(1))),
            "SequentialLr: milestone 0 is listed after 0; give each `then` a later step than the one before",
        ),
        (
            Box::new(ChainedScheduler::new(StepLr::new(3)).and(StepLr::new(0))),
            "StepLr: step_size is 0; it must be at least 1",
        ),
    ];
    let mut opt = sgd();
    for (schedule, why) in refused {
        let Err(Error::Argument(said)) = LrScheduler::new(&mut opt, schedule) else { panic!("{why}: not refused") };
        assert_eq!(said, why);
        assert_eq!(opt.lr(), BASE);
    }
    let Err(Error::Argument(said)) = ReduceLrOnPlateau::new().factor(1.0).step(&mut opt, 0.0) else { panic!() };
    assert_eq!(said, "ReduceLrOnPlateau: factor is 1; it must be at least 0 and below 1");
}

#[test]
fn rates_are_finite_at_the_ends_of_what_can_be_asked_for() {
    let most = u64::MAX;
    let extreme: Vec<Box<dyn Schedule>> = vec![
        Box::new(CosineAnnealingLr::new(most)),
        Box::new(CosineAnnealingWarmRestarts::new(1).t_mult(most)),
        Box::new(CyclicLr::new(0.1, 0.2).step_size(most)),
        Box::new(OneCycleLr::new(0.1, most)),
        Box::new(OneCycleLr::new(0.1, 1)),
        Box::new(OneCycleLr::new(0.1, 10).pct_start(0.1)),
        Box::new(PolynomialLr::new(most)),
        Box::new(LinearLr::new(most)),
    ];
    for schedule in extreme {
        schedule.check().unwrap();
        assert!(schedule.first(0.1, 0.1).is_finite());
        for step in [1, 2, 3, 1 << 40, most - 1, most] {
            assert!(schedule.next(step, 0.1, 0.1).is_finite());
        }
    }
}

#[test]
fn each_group_of_parameters_follows_from_its_own_rate() {
    let parameters = [(); 2].map(|()| Parameter::new(Tensor::zeros([1]).unwrap()));
    let [first, second] = parameters.clone();
    let mut opt = Sgd::new([first], 0.5).group([second.clone()], |group| group.with_lr(0.25));
    let mut scheduler = LrScheduler::new(&mut opt, StepLr::new(1).gamma(0.5)).unwrap();
    scheduler.step(&mut opt).unwrap();
    assert_eq!((opt.lrs(), opt.lr()), (vec![0.25, 0.125], 0.25));

    let mut plateau = ReduceLrOnPlateau::new().patience(0).factor(0.5).min_lr(0.1);
    [1.0, 1.0].iter().for_each(|loss| plateau.step(&mut opt, *loss).unwrap());
    assert_eq!(opt.lrs(), [0.125, 0.1]);

    let mut other = Sgd::new(parameters, 0.5);
    let Err(Error::Argument(said)) = scheduler.step(&mut other) else { panic!() };
    assert_eq!(said, "LrScheduler: 2 learning rates were given for 1 groups of parameters; give one for each");
    assert_eq!(other.lr(), 0.5);
}

#[test]
fn a_rate_that_falls_to_0_never_becomes_negative() {
    for total_iters in 1..200 {
        let weight = Parameter::new(Tensor::ones([2]).unwrap());
        let mut opt = Sgd::new(vec![weight.clone()], 0.1);
        let mut scheduler = LrScheduler::new(&mut opt, LinearLr::new(total_iters).end_factor(0.0)).unwrap();
        for _ in 0..total_iters + 2 {
            weight.sum(..).unwrap().backward().unwrap();
            opt.step().unwrap_or_else(|error| panic!("{total_iters}: {error}"));
            scheduler.step(&mut opt).unwrap();
        }
        assert!(opt.lr() < 1e-15);
    }
}

#[test]
fn counters_of_a_checkpoint_stop_at_the_largest_number() {
    let mut opt = Sgd::new(Vec::<Parameter>::new(), 0.1);
    let mut scheduler = LrScheduler::new(&mut opt, CosineAnnealingLr::new(10)).unwrap();
    scheduler.load_state(&mut opt, LrState { step: u64::MAX, ..scheduler.state() }).unwrap();
    scheduler.step(&mut opt).unwrap();
    assert_eq!(scheduler.state().step, u64::MAX);

    let mut plateau = ReduceLrOnPlateau::new().patience(u64::MAX);
    plateau.load_state(PlateauState { best: Some(0.0), bad_epochs: u64::MAX, cooldown: 0 });
    plateau.step(&mut opt, 1.0).unwrap();
    assert_eq!(plateau.state().bad_epochs, u64::MAX);
}

#[test]
fn schedules_that_are_used_without_a_check_return() {
    assert_eq!(CosineAnnealingWarmRestarts::new(0).first(0.1, 0.1), 0.1);
    assert_eq!(CosineAnnealingWarmRestarts::new(2).t_mult(0).next(4, 0.1, 0.1), 0.1);
    let first = |schedule: &dyn Schedule| schedule.next(0, 0.1, 0.1);
    let all = [first(&LinearLr::new(5)), first(&PolynomialLr::new(5)), first(&CosineAnnealingLr::new(5))];
    assert!(all.iter().all(|rate| rate.is_finite()), "{all:?}");
}
