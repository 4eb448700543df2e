//! Recurrent layers and cells against PyTorch: outputs, states, gradients, second gradients, printed forms.
//!
//! `../golden/recurrent.py` computed the expected values; each of its cases is a line here.

use crate::layers::{Case, Cases, Inputs, all_agree_on, all_agree_on_a_gpu, all_are_tested, called, kept};
use crate::{lock_threads, pytorch};
use pagelock_nn::rnn::{self, PackedSequence};
use pagelock_nn::*;
use pagelock_tensor::{DType, Device, Generator, Recurrence, RecurrentLayer, Result, Steps, Tensor};

/// What a layer returns, as one vector.
fn flat(parts: &[&Tensor]) -> Result<Tensor> {
    let parts: Vec<Tensor> = parts.iter().map(|part| part.reshape([-1])).collect::<Result<_>>()?;
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Padded,
    Packed { batch_first: bool, enforce_sorted: bool },
}

fn packed(x: &Tensor, batch_first: bool, enforce_sorted: bool) -> Result<PackedSequence> {
    let lengths = if enforce_sorted { [5, 3, 2] } else { [2, 5, 3] };
    rnn::pack_padded_sequence(x, &lengths, batch_first, enforce_sorted)
}

macro_rules! one_state {
    ($layer:expr, $form:expr) => {{
        let form = $form;
        called($layer, move |layer, x: &Inputs| match form {
            Form::Padded => {
                let (y, h) = match x.len() {
                    1 => layer.forward(x.float(0))?,
                    _ => layer.forward_with(x.float(0), x.float(1))?,
                };
                flat(&[&y, &h])
            }
            Form::Packed { batch_first, enforce_sorted } => {
                let packed = packed(x.float(0), batch_first, enforce_sorted)?;
                let (y, h) = layer.forward_packed(&packed, (x.len() > 1).then(|| x.float(1)))?;
                flat(&[y.data(), &h])
            }
        })
    }};
}

fn lstm(options: RNNOptions, form: Form) -> Box<dyn Case> {
    called(LSTM::with(4, 5, options).unwrap(), move |layer, x: &Inputs| match form {
        Form::Padded => {
            let (y, (h, c)) = match x.len() {
                1 => layer.forward(x.float(0))?,
                _ => layer.forward_with(x.float(0), (x.float(1), x.float(2)))?,
            };
            flat(&[&y, &h, &c])
        }
        Form::Packed { batch_first, enforce_sorted } => {
            let packed = packed(x.float(0), batch_first, enforce_sorted)?;
            let states = (x.len() > 1).then(|| (x.float(1), x.float(2)));
            let (y, (h, c)) = layer.forward_packed(&packed, states)?;
            flat(&[y.data(), &h, &c])
        }
    })
}

pub(crate) fn cases() -> Cases {
    layers().into_iter().chain(cells()).collect()
}

fn layers() -> Cases {
    let new = RNNOptions::new;
    let two = |options: RNNOptions| options.num_layers(2).bidirectional(true);
    let unsorted = Form::Packed { batch_first: false, enforce_sorted: false };
    let sorted = Form::Packed { batch_first: true, enforce_sorted: true };
    let forms = [
        ("plain", new(), Form::Padded),
        ("states", new(), Form::Padded),
        ("all", two(new()).batch_first(true), Form::Padded),
        ("without bias", new().bias(false).num_layers(2), Form::Padded),
        ("unbatched", new().bidirectional(true), Form::Padded),
        ("packed", two(new()), unsorted),
        ("packed sorted", new().batch_first(true), sorted),
    ];
    let mut cases: Cases = Vec::new();
    let mut add = |kind: &str, name: &str, case: Box<dyn Case>| cases.push((kept(format!("{kind} {name}")), case));
    for (name, options, form) in forms {
        let relu = options.nonlinearity(RNNNonlinearity::Relu);
        add("rnn", name, one_state!(RNN::with(4, 5, options).unwrap(), form));
        add("rnn relu", name, one_state!(RNN::with(4, 5, relu).unwrap(), form));
        add("gru", name, one_state!(GRU::with(4, 5, options).unwrap(), form));
        add("lstm", name, lstm(options, form));
    }
    add("lstm", "projected", lstm(two(new()).proj_size(3), Form::Padded));
    add("lstm", "projected packed", lstm(new().proj_size(2), unsorted));
    cases
}

fn cells() -> Cases {
    let plain = |cell: RNNCell| called(cell, |cell, x: &Inputs| flat(&[&cell.forward_with(x.float(0), x.float(1))?]));
    let gru = called(GRUCell::new(4, 5).unwrap(), |cell, x| flat(&[&cell.forward_with(x.float(0), x.float(1))?]));
    let without = GRUCell::new(4, 5).unwrap().without_bias();
    let lstm = || {
        called(LSTMCell::new(4, 5).unwrap(), |cell, x| {
            let (h, c) = cell.forward_with(x.float(0), (x.float(1), x.float(2)))?;
            flat(&[&h, &c])
        })
    };
    vec![
        ("rnn cell", plain(RNNCell::new(4, 5).unwrap())),
        ("rnn relu cell", plain(RNNCell::new(4, 5).unwrap().nonlinearity(RNNNonlinearity::Relu))),
        ("gru cell", gru),
        ("gru cell without", called(without, |cell, x| flat(&[&cell.forward(x.float(0))?]))),
        ("lstm cell", lstm()),
        ("lstm cell unbatched", lstm()),
    ]
}

#[test]
fn recurrent_layers_are_pytorchs() {
    all_agree_on(&Device::Cpu, "recurrent.safetensors", cases);
    all_are_tested("recurrent.json", cases);
}

#[test]
fn recurrent_layers_on_a_gpu_are_pytorchs() {
    all_agree_on_a_gpu("recurrent.safetensors", cases);
}

#[test]
fn recurrent_layers_print_as_in_pytorch() {
    let json = pytorch::json("recurrent.json");
    for (name, mut case) in cases() {
        assert_eq!(print(case.module()).to_string(), json["prints"][name].as_str().unwrap(), "{name}");
    }
    let dropout = LSTM::with(4, 5, RNNOptions::new().num_layers(2).dropout(0.25)).unwrap();
    assert_eq!(dropout.to_string(), json["prints"]["dropout"]);
}

#[test]
fn a_fast_gradient_is_that_of_the_operations_that_it_is_made_of() {
    use pagelock_tensor::autograd::{self, Backward};
    // Narrow states, and states so wide that their weight is split into parts.
    for (shape, [rnn, gated], options) in [
        ([9, 19, 4], [21, 21], RNNOptions::new().num_layers(2).bidirectional(true)),
        ([3, 9, 4], [288, 160], RNNOptions::new()),
    ] {
        let x = Tensor::of(DType::F64).randn(shape).unwrap().set_requires_grad(true);
        let relu = options.nonlinearity(RNNNonlinearity::Relu);
        check_ways("RNN", &x, RNN::with(4, rnn, options).unwrap(), |layer, x| layer.forward(x));
        check_ways("relu", &x, RNN::with(4, rnn, relu).unwrap(), |layer, x| layer.forward(x));
        check_ways("GRU", &x, GRU::with(4, gated, options).unwrap(), |layer, x| layer.forward(x));
        check_ways("LSTM", &x, LSTM::with(4, gated, options).unwrap(), |layer, x| {
            layer.forward(x).map(|(y, (_, c))| (y, c))
        });
    }

    fn check_ways<M: Module>(name: &str, x: &Tensor, layer: M, run: impl Fn(&M, &Tensor) -> Result<(Tensor, Tensor)>) {
        layer.parameters().iter().for_each(|parameter| assert_eq!(parameter.dtype(), DType::F32));
        let mut layer = layer;
        layer.to_dtype_(DType::F64).unwrap();
        let parameters = layer.parameters();
        let targets: Vec<&Tensor> = std::iter::once(x).chain(parameters.iter().map(Parameter::as_tensor)).collect();
        let of = |create_graph| {
            let (y, last) = run(&layer, x).unwrap();
            let loss = (y.mul(&y).unwrap().sum(..).unwrap() + last.exp().unwrap().sum(..)).unwrap();
            autograd::grad(&[&loss], &targets, Backward { create_graph, ..Backward::default() }).unwrap()
        };
        for (fast, slow) in of(false).into_iter().zip(of(true)) {
            let (fast, slow) = (fast.unwrap(), slow.unwrap().detach());
            assert!(fast.allclose(&slow, 1e-10, 1e-10).unwrap(), "{name}: {}", fast.shape());
        }
    }
}

#[test]
fn packed_sequences_come_back_as_they_were() {
    let sequences = [[3, 2], [5, 2], [1, 2]].map(|shape| Tensor::randn(shape).unwrap());
    for batch_first in [false, true] {
        let padded = rnn::pad_sequence(&sequences.each_ref(), batch_first, -1.0).unwrap();
        let packed = rnn::pack_padded_sequence(&padded, &[3, 5, 1], batch_first, false).unwrap();
        assert_eq!((packed.batch_sizes(), packed.sorted_indices()), (&[3, 2, 2, 1, 1][..], Some(&[1, 0, 2][..])));
        let (again, lengths) = rnn::pad_packed_sequence(&packed, batch_first, -1.0, None).unwrap();
        assert_eq!((again.to_vec::<f32>().unwrap(), lengths), (padded.to_vec::<f32>().unwrap(), vec![3, 5, 1]));
        let long = rnn::pad_packed_sequence(&packed, batch_first, 0.0, Some(7)).unwrap().0;
        assert_eq!(long.dims(), if batch_first { [3, 7, 2] } else { [7, 3, 2] });
    }
    let packed = rnn::pack_sequence(&sequences.each_ref(), false).unwrap();
    for (ours, theirs) in rnn::unpack_sequence(&packed).unwrap().iter().zip(&sequences) {
        assert_eq!(ours.to_vec::<f32>().unwrap(), theirs.to_vec::<f32>().unwrap());
    }
    let refused = |lengths: &[usize], enforce_sorted| {
        rnn::pack_padded_sequence(&Tensor::zeros([5, 3, 2]).unwrap(), lengths, false, enforce_sorted)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&[3, 5], false),
        "pack_padded_sequence: the number of lengths is 2, but it must be 3, one for each sequence"
    );
    assert_eq!(
        refused(&[3, 6, 1], false),
        "pack_padded_sequence: a length is 6, but it must be from 1 to 5, the number of steps"
    );
    assert_eq!(
        refused(&[3, 5, 1], true),
        "pack_padded_sequence: the order of lengths is not sorted, but it must be the longest first; sort them, or set \
         enforce_sorted to false"
    );
}

#[test]
fn sequences_that_no_machine_can_hold_are_refused() {
    let zeros = |shape: [usize; 3]| Tensor::zeros(shape).unwrap();
    let huge = 1_usize << 40;
    let two = rnn::pack_padded_sequence(&zeros([3, 2, 1]), &[3, 1], false, true).unwrap();
    let none = rnn::pack_padded_sequence(&zeros([3, 0, 1]), &[], false, true).unwrap();
    for (packed, steps) in [(&two, huge), (&two, usize::MAX), (&none, usize::MAX)] {
        for batch_first in [false, true] {
            assert!(rnn::pad_packed_sequence(packed, batch_first, 0.0, Some(steps)).is_err());
        }
    }
    let long = zeros([1, 1, 1]).expand([huge, 1, 1]).unwrap();
    assert!(rnn::pack_padded_sequence(&long, &[huge], false, true).unwrap_err().is_out_of_memory());
    assert!(rnn::pack_sequence(&[&long.squeeze(1).unwrap()], true).unwrap_err().is_out_of_memory());
}

#[test]
fn half_precision_and_any_number_of_threads_work() {
    let _threads = lock_threads();
    let run = |dtype, threads| {
        pagelock_tensor::set_num_threads(threads);
        let mut layer = LSTM::new_with(8, 40, RNNOptions::new(), &Generator::new(1)).unwrap();
        layer.to_dtype_(dtype).unwrap();
        let generator = Generator::new(2);
        let x = Tensor::of(DType::F32).randn_with([6, 50, 8], &generator).unwrap().to_dtype(dtype).unwrap();
        let (y, _) = layer.forward(&x).unwrap();
        y.sum(..).unwrap().backward().unwrap();
        let grad = layer.parameters()[1].grad().unwrap();
        (y.detach().to_dtype(DType::F32).unwrap(), grad.to_dtype(DType::F32).unwrap())
    };
    let (one, half) = (run(DType::F32, 1), run(DType::BF16, 2));
    let two = run(DType::F32, 2);
    assert_eq!(one.0.to_vec::<f32>().unwrap(), two.0.to_vec::<f32>().unwrap());
    assert_eq!(one.1.to_vec::<f32>().unwrap(), two.1.to_vec::<f32>().unwrap());
    assert!(one.0.allclose(&half.0, 0.05, 0.02).unwrap());
}

/// Makes a function of the number of threads: the gradients of all weights, for sequences of these lengths, up to 4.
macro_rules! gradients {
    ($layer:ident, $hidden:literal, $lengths:expr) => {
        |threads| {
            pagelock_tensor::set_num_threads(threads);
            let layer = $layer::new_with(8, $hidden, RNNOptions::new(), &Generator::new(1)).unwrap();
            let lengths: Vec<usize> = $lengths.collect();
            let x = Tensor::of(DType::F32).randn_with([4, lengths.len(), 8], &Generator::new(2)).unwrap();
            let packed = rnn::pack_padded_sequence(&x, &lengths, false, true).unwrap();
            let (y, _) = layer.forward_packed(&packed, None).unwrap();
            y.data().sum(..).unwrap().backward().unwrap();
            layer.parameters().iter().map(|weight| weight.grad().unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        }
    };
}

#[test]
fn gradients_of_tasks_with_few_sequences_do_not_depend_on_the_number_of_threads() {
    let _threads = lock_threads();
    let check = |what: &str, gradients: &dyn Fn(usize) -> Vec<Vec<f32>>| {
        let once = gradients(1);
        for threads in [2, 4, 8] {
            assert!(gradients(threads) == once, "{what}, {threads} threads");
        }
    };
    // A step is cut into tasks of 8 sequences; of these numbers, the last task has 2 or 3.
    check("LSTM, 10", &gradients!(LSTM, 256, [4; 10].into_iter()));
    check("LSTM, 50", &gradients!(LSTM, 256, [4; 50].into_iter()));
    check("GRU, 11", &gradients!(GRU, 288, [4; 11].into_iter()));
    check("packed", &gradients!(LSTM, 144, (0..40).map(|i| 4 - i / 13)));
}

fn text<T>(result: Result<T>) -> String {
    result.err().expect("this is refused").to_string()
}

#[test]
fn options_outside_their_ranges_are_named() {
    let new = RNNOptions::new;
    assert_eq!(text(LSTM::new(3, 0)), "LSTM: hidden_size is 0, but it must be at least 1");
    assert_eq!(text(GRU::with(3, 4, new().num_layers(0))), "GRU: num_layers is 0, but it must be at least 1");
    let expected = "it must be 0, or for an LSTM below hidden_size, which is 4";
    assert_eq!(text(RNN::with(3, 4, new().proj_size(2))), format!("RNN: proj_size is 2, but {expected}"));
    assert_eq!(text(LSTM::with(3, 4, new().proj_size(4))), format!("LSTM: proj_size is 4, but {expected}"));
    assert_eq!(text(GRU::with(3, 4, new().dropout(1.5))), "GRU: dropout is 1.5, but it must be from 0 to 1");
    assert_eq!(text(LSTMCell::new(3, 0)), "LSTMCell: hidden_size is 0, but it must be at least 1");
}

#[test]
fn steps_that_grow_or_are_empty_are_refused() {
    let rest = "sequences, but it must have at least one and no more than the step before it; sort sequences by length, the longest first";
    assert_eq!(text(Steps::packed(&[2, 3])), format!("Steps: step 1 has 3 {rest}"));
    assert_eq!(text(Steps::packed(&[2, 0])), format!("Steps: step 1 has 0 {rest}"));
}

/// Before the fix, each step was computed.
#[test]
fn an_empty_batch_can_have_any_number_of_steps() {
    let (out, _) = LSTM::new(8, 4).unwrap().forward(&Tensor::zeros([1_usize << 50, 0, 8]).unwrap()).unwrap();
    assert_eq!(out.dims(), [1 << 50, 0, 4]);
    out.sum(..).unwrap().backward().unwrap();
}

#[test]
fn operands_that_do_not_fit_a_recurrent_layer_are_named() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape).unwrap();
    let (weight_ih, weight_hh, x) = (zeros(&[12, 3]), zeros(&[12, 4]), zeros(&[10, 3]));
    let (bias, state, steps) = (zeros(&[12]), zeros(&[2, 4]), Steps::even(5, 2));
    let wrong = zeros(&[1, 1]);
    assert_eq!(
        text(LSTM::new(3, 4).unwrap().forward(&zeros(&[2, 5, 7]))),
        "LSTM: the input is [2, 5, 7], but its last size must be 3, the layer's input size; reshape it"
    );
    let gru = RecurrentLayer::new(Recurrence::Gru, &weight_ih, &weight_hh);
    assert!(gru.bias(Some([&bias, &bias])).run(&x, &steps, Some(&state), None).is_ok());
    let says = |result: Result<_>, operand: &str, shape: &str| {
        let text: String = text::<(Tensor, Option<Tensor>)>(result);
        let parts = ["recurrent", operand, "[1, 1]", shape];
        assert!(parts.iter().all(|part| text.contains(part)), "{text:?} says {parts:?}");
    };
    says(gru.run(&wrong, &steps, None, None), "the input", "[10, 3]");
    says(gru.run(&x, &steps, Some(&wrong), None), "h0", "[2, 4]");
    says(gru.bias(Some([&wrong, &bias])).run(&x, &steps, None, None), "bias_ih", "[12]");
    says(gru.bias(Some([&bias, &wrong])).run(&x, &steps, None, None), "bias_hh", "[12]");
    let of =
        |weight_ih, weight_hh| RecurrentLayer::new(Recurrence::Gru, weight_ih, weight_hh).run(&x, &steps, None, None);
    says(of(&wrong, &weight_hh), "weight_ih", "[3 · hidden, in]");
    says(of(&weight_ih, &wrong), "weight_hh", "[12, 4]");
    let lstm = RecurrentLayer::new(Recurrence::Lstm, &weight_ih, &bias);
    assert!(text(lstm.run(&x, &steps, None, None)).contains("weight_hh"));
    let only = "recurrent: there is a c0 or a weight_hr, which only an LSTM has";
    assert_eq!(text(gru.run(&x, &steps, None, Some(&state))), only);
    let none = text(gru.run(&zeros(&[0, 3]), &Steps::even(0, 2), None, None));
    assert_eq!(none, "recurrent: there are no steps; give at least one");
}
