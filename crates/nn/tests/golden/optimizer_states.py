"""Writes `optimizer_states.json`: what PyTorch's `state_dict()` has after three steps of each optimizer in `OPTIMIZERS`.

    python optimizer_states.py      # needs torch

Two groups of two parameters each; the third parameter has no gradient in the first two steps. The settings that say how PyTorch
computes (`foreach`, `fused`, ..) are left out.
"""

import json
import os

import torch
from torch import optim

START = [[1.0, -2.0, 0.5], [0.1, 0.2, 0.3], [3.0, 1.0, -1.0], [0.7, -0.3, 1.1]]
HOW = {"foreach", "capturable", "differentiable", "fused"}
OPTIMIZERS = {
    "sgd": lambda groups: optim.SGD(groups, lr=0.1),
    "sgd_momentum": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1),
    "adam": lambda groups: optim.Adam(groups, lr=0.1, betas=(0.8, 0.99), weight_decay=0.1),
    "adamw": lambda groups: optim.AdamW(groups, lr=0.1),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=0.1),
    "rmsprop_both": lambda groups: optim.RMSprop(groups, lr=0.1, momentum=0.7, centered=True),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2),
    "adadelta": lambda groups: optim.Adadelta(groups, lr=0.1),
    "adamax": lambda groups: optim.Adamax(groups, lr=0.1),
    "nadam": lambda groups: optim.NAdam(groups, lr=0.1, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": lambda groups: optim.RAdam(groups, lr=0.1, betas=(0.5, 0.7)),
    "asgd": lambda groups: optim.ASGD(groups, lr=0.1, lambd=0.1, t0=1.0),
    "adamw_amsgrad": lambda groups: optim.AdamW(groups, lr=0.1, amsgrad=True, maximize=True),
}


def state_dict(make):
    torch.set_default_dtype(torch.float64)  # else PyTorch's numbers of the step are f32
    parameters = [torch.tensor(start, dtype=torch.float64, requires_grad=True) for start in START]
    optimizer = make([{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0, "lr": 0.01}])
    for count in range(3):
        for i, parameter in enumerate(parameters):
            grad = torch.tensor([0.5, -0.25, (count + i) / 8], dtype=torch.float64)
            parameter.grad = grad if i != 2 or count >= 2 else None
        optimizer.step()
    found = optimizer.state_dict()
    state = {f"{number}.{name}": value.tolist() for number, entries in found["state"].items() for name, value in entries.items()}
    groups = [{name: value for name, value in group.items() if name not in HOW} for group in found["param_groups"]]
    return {"state": state, "param_groups": groups}


if __name__ == "__main__":
    written = {name: state_dict(make) for name, make in OPTIMIZERS.items()}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizer_states.json"), "w") as file:
        json.dump(written, file, indent=1)
        file.write("\n")
