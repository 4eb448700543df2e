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
    "rmsprop": lambda p: optim.RMSprop(p, lr=LR),
    "rmsprop_momentum": lambda p: optim.RMSprop(p, lr=LR, alpha=0.8, eps=1e-3, weight_decay=0.1, momentum=0.7),
    "rmsprop_centered": lambda p: optim.RMSprop(p, lr=LR, alpha=0.8, centered=True, maximize=True),
    "rmsprop_both": lambda p: optim.RMSprop(p, lr=LR, alpha=0.8, momentum=0.7, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=LR),
    "adagrad_settings": lambda p: optim.Adagrad(p, lr=LR, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-3),
    "adagrad_maximize": lambda p: optim.Adagrad(p, lr=LR, maximize=True),
    "adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "adadelta_settings": lambda p: optim.Adadelta(p, lr=LR, rho=0.7, eps=1e-2, weight_decay=0.1, maximize=True),
    "adamax": lambda p: optim.Adamax(p, lr=LR),
    "adamax_settings": lambda p: optim.Adamax(p, lr=LR, betas=(0.7, 0.8), eps=1e-2, weight_decay=0.1, maximize=True),
    "nadam": lambda p: optim.NAdam(p, lr=LR),
    "nadam_settings": lambda p: optim.NAdam(p, lr=LR, betas=(0.7, 0.8), eps=1e-2, weight_decay=0.1, momentum_decay=0.2, maximize=True),
    "nadam_decoupled": lambda p: optim.NAdam(p, lr=LR, weight_decay=0.1, momentum_decay=0.2, decoupled_weight_decay=True),
    "radam": lambda p: optim.RAdam(p, lr=LR),
    "radam_settings": lambda p: optim.RAdam(p, lr=LR, betas=(0.7, 0.9), eps=1e-2, weight_decay=0.1, maximize=True),
    "radam_decoupled": lambda p: optim.RAdam(p, lr=LR, betas=(0.8, 0.95), weight_decay=0.1, decoupled_weight_decay=True),
    "asgd": lambda p: optim.ASGD(p, lr=LR),
    "asgd_settings": lambda p: optim.ASGD(p, lr=LR, lambd=0.1, alpha=0.6, t0=2.0, weight_decay=0.1, maximize=True),
    "lion": lambda p: Lion(p, lr=LR),
    "lion_settings": lambda p: Lion(p, lr=LR, betas=(0.7, 0.8), weight_decay=0.1),
    "adamw_both": lambda p: optim.AdamW(p, lr=LR, betas=(0.5, 0.7), weight_decay=0.2, amsgrad=True, maximize=True),
}


class Lion(optim.Optimizer):
    """The authors' program, https://github.com/google/automl/blob/master/lion/lion_pytorch.py, since PyTorch has none."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(torch.sign(mean * beta1 + p.grad * (1 - beta1)), alpha=-lr)
                mean.mul_(beta2).add_(p.grad, alpha=1 - beta2)


# For matrices alone.
MUONS = {
    "muon": lambda p: optim.Muon(p, lr=LR),
    "muon_settings": lambda p: optim.Muon(p, lr=LR, weight_decay=0.3, momentum=0.8, nesterov=False, ns_coefficients=(2.0, -1.5, 0.5), ns_steps=9),
    "muon_rms": lambda p: optim.Muon(p, lr=LR, adjust_lr_fn="match_rms_adamw"),
    "muon_spectral": lambda p: optim.Muon(p, lr=LR, adjust_lr_fn="spectral_unclamped"),
}


def grad(step, n):
    """Signs change, sizes too, so that running maxima and signs matter."""
    return [((7 * i + 5 * step) % 11 - 5) / (4 + 3 * (step % 4)) for i in range(n)]


def ten_steps(make, dtype, matrices=False):
    torch.set_default_dtype(dtype)  # else PyTorch's numbers of the step are f32
    weight = torch.tensor([[0.5, -1.0, 0.25], [2.0, -0.125, 1.5]], dtype=dtype, requires_grad=True)
    bias = torch.tensor([[0.75], [-0.5], [1.0]] if matrices else [0.75, -0.5], dtype=dtype, requires_grad=True)
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
    written |= {name: {"f32": ten_steps(make, torch.float32, matrices=True)} for name, make in MUONS.items()}
    lines = [f' "{name}": {json.dumps(found)}' for name, found in written.items()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.json"), "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
