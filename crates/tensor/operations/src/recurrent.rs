//! Recurrent layers of one direction.

use pagelock_tensor::{DType, Recurrence, RecurrentLayer, Result, Steps, Tensor};
use serde_json::json;

use super::call::{Call, run};
use super::input::{Input, signed, values};
use super::{Autocast, Float, Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    use Recurrence::{Gru, Lstm, Relu, Tanh};
    let entry = |name, torch, kind: Recurrence, run: Run| {
        Operation::new(name, torch, run)
            .methods(&["run"])
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples(samples(kind))
            .special(move |dtype| vec![saturated(kind, dtype)])
            .summed_dim(1)
            .large(move |n| vec![large(kind, n)])
    };
    vec![
        entry(
            "rnn_tanh",
            "recurrent(torch.rnn_tanh, inputs, steps, reverse)",
            Tanh,
            run! { floats |c| layer(c, Tanh) },
        ),
        entry(
            "rnn_relu",
            "recurrent(torch.rnn_relu, inputs, steps, reverse)",
            Relu,
            run! { floats |c| layer(c, Relu) },
        ),
        entry("lstm", "recurrent(torch.lstm, inputs, steps, reverse)", Lstm, run! { floats |c| layer(c, Lstm) }),
        entry("gru", "recurrent(torch.gru, inputs, steps, reverse)", Gru, run! { floats |c| layer(c, Gru) }),
    ]
}

/// The states of all rows, computed from inputs and weights, and from biases and initial states if the sample has
/// them.
fn layer(c: &Call<'_, Float>, kind: Recurrence) -> Result<Tensor> {
    let (x, steps) = (c.x(), c.size("steps"));
    let bias = c.optional(3).zip(c.optional(4)).map(|(bias_ih, bias_hh)| [bias_ih, bias_hh]);
    let layer = RecurrentLayer::new(kind, c.y(), c.z()).bias(bias).reverse(c.flag("reverse"));
    let steps = Steps::even(steps, x.dims()[0] / steps);
    Ok(layer.run(x, &steps, c.optional(5), c.optional(6))?.0)
}

/// x, weights, biases and initial states of these sizes.
fn inputs(kind: Recurrence, [steps, batch, columns, hidden]: [usize; 4]) -> Vec<Input> {
    let width = kind.gates() * hidden;
    let mut inputs = vec![signed([steps * batch, columns]), signed([width, columns]), signed([width, hidden])];
    inputs.extend([signed([width]), signed([width]), signed([batch, hidden])]);
    inputs.extend((kind == Recurrence::Lstm).then(|| signed([batch, hidden])));
    inputs
}

fn samples(kind: Recurrence) -> Vec<Sample> {
    let of = |sizes: [usize; 4], reverse: bool, count: usize| {
        let inputs: Vec<Input> = inputs(kind, sizes).into_iter().take(count).collect();
        Sample { inputs, ..sample([]) }.args(json!({ "steps": sizes[0], "reverse": reverse }))
    };
    let turned = |sample: Sample| {
        let mut inputs = sample.inputs;
        let (rows, columns) = (inputs[0].shape[0], inputs[0].shape[1]);
        inputs[0] = signed([columns, rows]).view(json!(["transpose", 0, 1]));
        Sample { inputs, ..sample }
    };
    vec![
        of([3, 2, 3, 2], false, 7),
        of([2, 3, 2, 3], true, 7),
        of([4, 1, 2, 2], false, 5),
        of([2, 2, 1, 2], true, 3),
        turned(of([1, 2, 2, 1], false, 7)),
    ]
}

/// One step with numbers so large that gates are fully open or closed.
fn saturated(kind: Recurrence, dtype: DType) -> Sample {
    let (x, width) = (special::factor(dtype), kind.gates());
    let weight_ih = values([width, 2], [1.0, -0.5].repeat(width));
    let weight_hh = values([width, 1], vec![0.5; width]);
    let inputs = vec![x, weight_ih, weight_hh];
    Sample { inputs, ..sample([]) }.args(json!({ "steps": 1, "reverse": false })).without_gradients()
}

/// A layer of about `n` numbers in its weights and in its inputs.
fn large(kind: Recurrence, n: usize) -> Sample {
    let hidden = ((n / (2 * kind.gates())).isqrt() / 16 * 16).max(16);
    let steps = (n / (16 * hidden)).clamp(2, 64);
    Sample { inputs: inputs(kind, [steps, 16, hidden, hidden]), ..sample([]) }
        .args(json!({ "steps": steps, "reverse": false }))
}
