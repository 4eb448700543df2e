"""Writes `recurrent.json` and `recurrent.safetensors`: what PyTorch's recurrent layers and cells make of the inputs here.

    python recurrent.py      # needs torch and safetensors; seeds are fixed

The cases are written as those of `layers.py`; `../suite/recurrent.rs` has a line for each.
"""

import json
import os

import layers
import torch
from layers import HERE, Attended, case
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import rnn

layers.CASES.clear()
normal = layers.numbers


def numbers(*shape):
    """Small enough that states of relu do not grow from step to step."""
    return normal(*shape) / 2


layers.numbers = numbers
LENGTHS = [2, 5, 3]


def flat(value):
    if isinstance(value, rnn.PackedSequence):
        return [value.data]
    return [value] if isinstance(value, torch.Tensor) else [part for item in value for part in flat(item)]


class Run(Attended):
    """A layer whose outputs and states come as one vector. The inputs: x, then h0 and c0, as far as there are any."""

    def forward(self, x, *states):
        if self.options.get("packed"):
            lengths = sorted(LENGTHS, reverse=True) if self.options.get("enforce_sorted") else LENGTHS
            x = rnn.pack_padded_sequence(x, lengths, batch_first=self.attention.batch_first,
                                         enforce_sorted=self.options.get("enforce_sorted", False))
        states = states[0] if len(states) == 1 else states or None
        return torch.cat([part.flatten() for part in flat(self.attention(x, states))])


def layer(name, kind, sizes, states=False, batch=3, packed=False, enforce_sorted=False, **options):
    module = kind(4, 5, **options)
    is_first = options.get("batch_first", False)
    shape = {None: (5, 4)}.get(batch, (batch, 5, 4) if is_first else (5, batch, 4))
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    of = [options.get("proj_size", 0) or 5] + ([5] if kind is nn.LSTM else [])
    state = lambda size: numbers(rows, size) if batch is None else numbers(rows, batch, size)  # noqa: E731
    inputs = lambda: [numbers(*shape)] + ([state(size) for size in of] if states else [])  # noqa: E731
    case(f"{sizes} {name}", inputs, Run(module, packed=packed, enforce_sorted=enforce_sorted))


for name, kind, more in (("rnn", nn.RNN, {}), ("rnn relu", nn.RNN, {"nonlinearity": "relu"}), ("gru", nn.GRU, {}), ("lstm", nn.LSTM, {})):
    layer("plain", kind, name, **more)
    layer("states", kind, name, states=True, **more)
    layer("all", kind, name, states=True, num_layers=2, bidirectional=True, batch_first=True, **more)
    layer("without bias", kind, name, bias=False, num_layers=2, **more)
    layer("unbatched", kind, name, batch=None, states=True, bidirectional=True, **more)
    layer("packed", kind, name, packed=True, num_layers=2, bidirectional=True, states=True, **more)
    layer("packed sorted", kind, name, packed=True, enforce_sorted=True, batch_first=True, **more)
layer("projected", nn.LSTM, "lstm", proj_size=3, states=True, num_layers=2, bidirectional=True)
layer("projected packed", nn.LSTM, "lstm", proj_size=2, packed=True)

for name, cell, count in (("rnn", nn.RNNCell(4, 5), 1), ("rnn relu", nn.RNNCell(4, 5, nonlinearity="relu"), 1),
                          ("gru", nn.GRUCell(4, 5), 1), ("lstm", nn.LSTMCell(4, 5), 2)):
    case(f"{name} cell", lambda count=count: [numbers(3, 4)] + [numbers(3, 5) for _ in range(count)], Run(cell))
case("gru cell without", lambda: [numbers(3, 4)], Run(nn.GRUCell(4, 5, bias=False)))
case("lstm cell unbatched", lambda: [numbers(4), numbers(5), numbers(5)], Run(nn.LSTMCell(4, 5)))


def main():
    tensors, prints = {}, {}
    for seed, (name, (inputs, run, second)) in enumerate(layers.CASES.items()):
        layers.RANDOM.manual_seed(1000 + seed)
        tensors |= layers.differentiated(name, inputs(), run, second)
        prints[name] = str(run.attention)
    prints["dropout"] = str(nn.LSTM(4, 5, 2, dropout=0.25))
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, os.path.join(HERE, "recurrent.safetensors"))
    with open(os.path.join(HERE, "recurrent.json"), "w") as file:
        json.dump({"cases": list(layers.CASES), "prints": prints}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
