"""Models that are trained here and there in turn, for `suite/torch_models.rs`, which has the same models.

    python torch_models.py train FOLDER        # NAME.pt after five steps, what it holds, and the losses of five more steps
    python torch_models.py continue FOLDER     # goes on from what Rust read and wrote (NAME.back.pt), and what it trained (NAME.rust.pt)
"""

import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn, optim

from torch_files import describe

# Settings that say how PyTorch computes, not what.
HOW = ["foreach", "capturable", "differentiable", "fused"]
STEPS = 5  # before a file is written, and after it


class Net(nn.Module):
    """Modules under their names, and what is done with them."""

    def __init__(self, call, **parts):
        super().__init__()
        self.call = call
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *x):
        return self.call(self, *x)


def block(inputs, outputs, stride):
    """A residual block."""
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)) if inputs != outputs else None

    def call(net, x):
        y = net.bn1(net.conv1(x)).relu()
        y = net.bn2(net.conv2(y))
        return (y + (x if net.downsample is None else net.downsample(x))).relu()

    return Net(call, conv1=nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), bn1=nn.BatchNorm2d(outputs),
               conv2=nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), bn2=nn.BatchNorm2d(outputs), downsample=shortcut)


def resnet():
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    net = Net(lambda net, x: net.head(net.body(net.embed(x)).mean((2, 3))), embed=stem,
              body=nn.Sequential(block(4, 4, 1), block(4, 8, 2)), head=nn.Linear(8, 5))
    return net.to(memory_format=torch.channels_last)


def tied():
    net = Net(lambda net, x: net.head(net.body(net.embed(x)).tanh()), embed=nn.Embedding(9, 6), body=nn.Linear(6, 6), head=nn.Linear(6, 9, bias=False))
    net.head.weight = net.embed.weight
    return net


def mixed():
    """Weights of half precision that are not trained, and buffers of other kinds."""

    def call(net, x):
        features = F.linear(x[:, net.columns], net.table.float()) * net.scale.float()
        return net.head(features.masked_fill(net.hidden, 0.5))

    table = nn.Parameter(torch.randn(6, 3).bfloat16(), requires_grad=False)
    return Net(call, table=table, scale=torch.rand(6).half(), columns=torch.tensor([3, 0, 2]),
               hidden=torch.tensor([False, True, False, False, False, True]), head=nn.Linear(6, 1))


def transformer():
    body = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    return Net(lambda net, x, y: net.head(net.body(net.embed(x), net.embed(y))), embed=nn.Linear(4, 8), body=body, head=nn.Linear(8, 2))


def cells():
    def call(net, x):
        h = c = torch.zeros(len(x), 5)
        g = torch.zeros(len(x), 4)
        for word in x.unbind(1):
            h, c = net.embed(word, (h, c))
            g = net.body(h, g)
        return net.head(g)

    return Net(call, embed=nn.LSTMCell(3, 5), body=nn.GRUCell(5, 4), head=nn.Linear(4, 1))


def unet():
    def call(net, x):
        wide = net.embed(x).relu()
        deep = F.interpolate(net.body(F.max_pool2d(wide, 2)).relu(), scale_factor=2)
        return net.head(torch.cat([wide, deep], 1))

    return Net(call, embed=nn.Conv2d(1, 4, 3, padding=1), body=nn.Conv2d(4, 4, 3, padding=1), head=nn.Conv2d(8, 1, 1))


def lists():
    def call(net, x):
        for layer, scale in zip(net.layers, net.scales):
            x = layer(x).tanh() * scale
        return net.heads["first"](x) + net.heads["second"](x)

    layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    scales = nn.ParameterList([torch.ones(4), torch.full((4,), 0.5)])
    return Net(call, layers=layers, scales=scales, heads=nn.ModuleDict({"first": nn.Linear(4, 1), "second": nn.Linear(4, 1)}))


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
    return Net(lambda net, x: net.head(net.body(net.embed(x)).mean(1)), embed=nn.Embedding(9, 8), body=body, head=nn.Linear(8, 4))


def recurrent(layer, *head):
    return Net(lambda net, x: net.head(net.body(x)[0][:, -1]), body=layer, head=nn.Linear(*head))


def perceptron(*more):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), *more)


def groups(parameters):
    """Two groups: weights, and what has fewer dimensions."""
    weights = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    return optim.AdamW([{"params": weights}, {"params": others, "weight_decay": 0.0, "lr": 0.002}], lr=0.01, weight_decay=0.1)


def scheduled(parameters):
    optimizer = optim.RMSprop(parameters, lr=0.005, momentum=0.5)
    optim.lr_scheduler.StepLR(optimizer, 1)  # which notes `initial_lr`
    return optimizer


# The last input is the target: classes where it has integers. `ints(n, …)` are below n.
floats, ints = lambda *shape: (shape, None), lambda limit, *shape: (shape, limit)
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)),
            [floats(16, 4), floats(16, 1)], lambda p: optim.SGD(p, lr=0.05, momentum=0.9)),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 5)),
            [floats(8, 1, 10, 10), ints(5, 8)], lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "resnet": (resnet, [floats(8, 3, 8, 8), ints(5, 8)], lambda p: optim.Adam(p, lr=0.01)),
    "lstm": (lambda: Net(lambda net, x: net.head(net.body(net.embed(x))[0]), embed=nn.Embedding(7, 5),
                         body=nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True), head=nn.Linear(12, 3)),
             [ints(7, 6, 5), ints(3, 6, 5)], lambda p: optim.AdamW(p, lr=0.01)),
    "gru": (lambda: recurrent(nn.GRU(4, 6, batch_first=True), 6, 2), [floats(6, 5, 4), floats(6, 2)], scheduled),
    "rnn": (lambda: recurrent(nn.RNN(4, 6, 2, nonlinearity="relu", batch_first=True), 6, 2),
            [floats(6, 5, 4), floats(6, 2)], lambda p: optim.Adagrad(p, lr=0.02, lr_decay=0.1)),
    "encoder": (encoder, [ints(9, 6, 5), ints(4, 6)], lambda p: optim.AdamW(p, lr=0.003, amsgrad=True)),
    "attention": (lambda: Net(lambda net, x, y: net.head(net.body(net.embed(x), net.embed(y), net.embed(y))[0]), embed=nn.Linear(4, 8),
                              body=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3)),
                  [floats(6, 5, 4), floats(6, 3, 4), floats(6, 5, 3)], lambda p: optim.NAdam(p, lr=0.01)),
    "tied": (tied, [ints(9, 32), ints(9, 32)], lambda p: optim.RAdam(p, lr=0.02)),
    "norms": (lambda: nn.Sequential(nn.Conv1d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
                                    nn.Conv1d(6, 4, 1), nn.LayerNorm([4, 6]), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(24, 2)),
              [floats(8, 3, 8), floats(8, 2)], lambda p: optim.Adamax(p, lr=0.01)),
    "conv_transpose": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(), nn.ConvTranspose2d(4, 1, 2, 2)),
                       [floats(6, 1, 8, 8), floats(6, 1, 8, 8)], lambda p: optim.Adadelta(p, lr=0.5)),
    "asgd": (lambda: perceptron().double(), [floats(16, 4), floats(16, 1)], lambda p: optim.ASGD(p, lr=0.05, t0=3, weight_decay=0.01)),
    "lbfgs": (lambda: perceptron().double(), [floats(16, 4), floats(16, 1)],
              lambda p: optim.LBFGS(p, lr=1.0, max_iter=3, history_size=4, line_search_fn="strong_wolfe")),
    "groups": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(24, 3)),
               [floats(8, 3, 6), ints(3, 8)], groups),
    "mixed": (mixed, [floats(16, 4), floats(16, 1)], lambda p: optim.Adam(p, lr=0.02, weight_decay=0.01)),
    "transformer": (transformer, [floats(4, 5, 4), floats(4, 3, 4), floats(4, 3, 2)], lambda p: optim.Adam(p, lr=0.003, betas=(0.8, 0.95))),
    "embedding_bag": (lambda: Net(lambda net, x: net.head(net.body(net.embed(x)).relu()), embed=nn.EmbeddingBag(9, 4),
                                  body=nn.Linear(4, 4), head=nn.Linear(4, 3)),
                      [ints(9, 8, 4), ints(3, 8)], lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1)),
    "unet": (unet, [floats(4, 1, 8, 8), floats(4, 1, 8, 8)], lambda p: optim.RMSprop(p, lr=0.003, centered=True)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.PReLU(3), nn.Flatten(), nn.Linear(81, 2)),
               [floats(6, 1, 4, 4, 4), ints(2, 6)], lambda p: optim.RAdam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    "bilinear": (lambda: Net(lambda net, x, y: net.head(net.body(net.embed(x), y).sigmoid()), embed=nn.Linear(3, 4), body=nn.Bilinear(4, 3, 5), head=nn.Linear(5, 1)),
                 [floats(16, 3), floats(16, 3), floats(16, 1)], lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    "cells": (cells, [floats(6, 4, 3), floats(6, 1)], lambda p: optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.3)),
    "weight_norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)),
                    [floats(16, 4), floats(16, 1)], lambda p: optim.SGD(p, lr=0.1)),
    "lists": (lists, [floats(16, 4), floats(16, 1)], lambda p: optim.Adamax(p, lr=0.01, weight_decay=0.01)),
    "bf16": (lambda: perceptron().bfloat16(), [floats(16, 4), floats(16, 1)], lambda p: optim.AdamW(p, lr=0.01)),
}
# PyTorch rounds the weights to bf16 in each step; ours are kept in f32, as `master_weight`.
TOLERANCES = {"bf16": 0.03}


def made(name):
    make, shapes, make_optimizer = MODELS[name]
    model = make()
    return model, make_optimizer(list(model.parameters())), shapes


def inputs(model, shapes):
    """All steps' inputs, stacked; floats in the precision of what is trained."""
    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.requires_grad)
    drawn = lambda shape, limit: torch.randn(2 * STEPS, *shape).to(dtype) if limit is None else torch.randint(limit, (2 * STEPS, *shape))
    return {str(i): drawn(*shape) for i, shape in enumerate(shapes)}


def compute_loss(model, x):
    *x, y = x
    output = model(*x)
    return F.mse_loss(output, y) if y.dtype.is_floating_point else F.cross_entropy(output.flatten(0, -2), y.flatten())


def train(model, optimizer, data, first):
    losses = []
    for step in range(first, first + STEPS):
        def closure():
            optimizer.zero_grad()
            loss = compute_loss(model, [x[step] for x in data.values()])
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def train_all(folder):
    for name in MODELS:
        model, optimizer, shapes = made(name)
        data = inputs(model, shapes)
        train(model, optimizer, data, 0)
        saved = state(model, optimizer) | {"data": data}
        torch.save(saved, os.path.join(folder, name + ".pt"))
        write(folder, name + ".json", {part: describe(value, {}) for part, value in saved.items()})
        write(folder, name + ".losses", [TOLERANCES.get(name, 1e-6), *train(model, optimizer, data, STEPS)])


def load(folder, name):
    """A new model and optimizer with what a file of Rust's holds; that file."""
    model, optimizer, _ = made(name.split(".")[0])
    saved = torch.load(os.path.join(folder, name), weights_only=True)
    model.load_state_dict(saved["model"], strict=True)
    optimizer.load_state_dict(saved["optimizer"])
    assert describe(model.state_dict(), {}) == describe(saved["model"], {}), f"{name}: the model has other bits than the file"
    return model, optimizer, saved


def check_bits(folder, name):
    """That Rust's file of what PyTorch saved is loaded as PyTorch's own is."""
    (model, optimizer, _), (same_model, same, _) = load(folder, name + ".back.pt"), load(folder, name + ".pt")
    assert describe(model.state_dict(), {}) == describe(same_model.state_dict(), {}), f"{name}: the model came back with other bits"
    found, wanted = optimizer.state_dict(), same.state_dict()
    assert found["state"].keys() == wanted["state"].keys(), f"{name}: {found['state'].keys()}"
    for number, kept in wanted["state"].items():
        other = found["state"][number]
        assert other.keys() | {"al"} == kept.keys() | {"al"}, f"{name}: {number} has {other.keys()}"
        for entry in kept.keys() - {"al"}:  # where LBFGS works
            bits = [describe(state[entry], {}) for state in (other, kept)]
            assert bits[0] == bits[1], f"{name}: {number}.{entry} came back with other bits"
    for group, other in zip(found["param_groups"], wanted["param_groups"], strict=True):
        for setting, value in other.items():
            is_same = not group.get(setting) and not value if setting in HOW else group.get(setting) == value
            assert is_same, f"{name}: {setting} is {group.get(setting)}, and was {value}"


def go_on(folder):
    worst = 0.0
    for name in MODELS:
        check_bits(folder, name)
        for file, losses in [(name + ".back.pt", name + ".losses"), (name + ".rust.pt", name + ".rust.losses")]:
            model, optimizer, _ = load(folder, file)
            data = torch.load(os.path.join(folder, name + ".pt"), weights_only=True)["data"]
            tolerance, *wanted = read(folder, losses)
            found = train(model, optimizer, data, STEPS)
            difference = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
            assert difference <= tolerance, f"{file}: the losses are {found}, and not {wanted}"
            worst = max(worst, difference if tolerance == 1e-6 else 0.0)
    print(f"PyTorch goes on with {len(MODELS)} models from files of Rust's; losses differ by at most {worst:.1e}")


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    {"train": train_all, "continue": go_on}[sys.argv[1]](sys.argv[2])
