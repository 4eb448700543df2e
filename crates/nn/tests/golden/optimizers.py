"""Writes `optimizers.json`: ten steps of PyTorch's optimizers, with settings that `optimizers.safetensors` has not.

    python optimizers.py      # needs torch

Two parameters, a matrix and a vector, in `f32` and `f64`; gradients are a formula of step and position, which Rust computes too. The
learning rate falls after the fifth step.
"""

import json
import os

import torch
from torch import optim

LR, LESS = 0.05, 0.02
OPTIMIZERS = {
    "sgd_maximize": lambda p: optim.SGD(p, lr=LR, momentum=0.9, weight_decay=0.1, maximize=True),
    "adam_amsgrad": lambda p: optim.Adam(p, lr=LR, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True),
    "adam_maximize": lambda p: optim.Adam(p, lr=LR, weight_decay=0.1, maximize=True),
    "adamw_amsgrad": lambda p: optim.AdamW(p, lr=LR, betas=(0.8, 0.9), amsgrad=True),
    "adamw_both": lambda p: optim.AdamW(p, lr=LR, betas=(0.5, 0.7), weight_decay=0.2, amsgrad=True, maximize=True),
}


def grad(step, n):
    """Signs change, sizes too, so that running maxima and signs matter."""
    return [((7 * i + 5 * step) % 11 - 5) / (4 + 3 * (step % 4)) for i in range(n)]


def ten_steps(make, dtype):
    weight = torch.tensor([[0.5, -1.0, 0.25], [2.0, -0.125, 1.5]], dtype=dtype, requires_grad=True)
    bias = torch.tensor([0.75, -0.5], dtype=dtype, requires_grad=True)
    parameters, history = [weight, bias], []
    optimizer = make(parameters)
    for step in range(10):
        if step == 5:
            optimizer.param_groups[0]["lr"] = LESS
        for parameter in parameters:
            parameter.grad = torch.tensor(grad(step, parameter.numel()), dtype=dtype).reshape(parameter.shape)
        optimizer.step()
        history.append(torch.cat([parameter.detach().flatten() for parameter in parameters]).tolist())
    return history


if __name__ == "__main__":
    written = {name: {"f32": ten_steps(make, torch.float32), "f64": ten_steps(make, torch.float64)} for name, make in OPTIMIZERS.items()}
    lines = [f' "{name}": {json.dumps(found)}' for name, found in written.items()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.json"), "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
