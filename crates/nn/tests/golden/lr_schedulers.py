"""Writes `lr_schedulers.json`: the learning rates of PyTorch's schedulers over 1000 steps.

    python lr_schedulers.py      # needs torch

For each schedule of `crates/nn/tests/suite/lr_schedulers.rs`, under the same name: the rate after the steps of `SHOWN`, and a hash of
the bits of all rates, from the one to begin with to that after the last step.
"""

import json
import math
import os
import struct
import warnings

import torch
from torch import optim
from torch.optim import lr_scheduler as lr
from torch.optim import swa_utils

warnings.filterwarnings("ignore")
STEPS = 1000
SHOWN = [0, 1, 2, 3, 5, 8, 10, 20, 50, 100, 101, 200, 300, 500, 750, 999, 1000]
BASE = 0.3


def metric(step):
    """Falls, and stays for ever longer."""
    return 1.0 / (1 + math.floor(math.log2(step + 1)))


SCHEDULES = {
    "step": lambda o: lr.StepLR(o, 30, gamma=0.7),
    "multi_step": lambda o: lr.MultiStepLR(o, [10, 20, 20, 500], gamma=0.3),
    "multi_step_at_0": lambda o: lr.MultiStepLR(o, [0, 7]),
    "constant": lambda o: lr.ConstantLR(o, 1 / 3, 5),
    "linear": lambda o: lr.LinearLR(o, 1 / 3, 1.0, 5),
    "linear_down": lambda o: lr.LinearLR(o, 1.0, 0.05, 700),
    "exponential": lambda o: lr.ExponentialLR(o, 0.993),
    "polynomial": lambda o: lr.PolynomialLR(o, 900, power=1.7),
    "polynomial_short": lambda o: lr.PolynomialLR(o, 4),
    "lambda": lambda o: lr.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: lr.MultiplicativeLR(o, lambda step: 1 - 1 / (step + 3)),
    "cosine": lambda o: lr.CosineAnnealingLR(o, 1000),
    "cosine_again": lambda o: lr.CosineAnnealingLR(o, 37, eta_min=0.01),
    "cosine_of_1": lambda o: lr.CosineAnnealingLR(o, 1, eta_min=0.01),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 13),
    "restarts_longer": lambda o: lr.CosineAnnealingWarmRestarts(o, 7, T_mult=2, eta_min=0.003),
    "cyclic": lambda o: lr.CyclicLR(o, 0.01, 0.1, step_size_up=60, cycle_momentum=False),
    "cyclic_2": lambda o: lr.CyclicLR(o, 0.01, 0.1, step_size_up=17, step_size_down=40, mode="triangular2", cycle_momentum=False),
    "cyclic_exp": lambda o: lr.CyclicLR(o, 0.01, 0.1, step_size_up=50, mode="exp_range", gamma=0.999, cycle_momentum=False),
    "one_cycle": lambda o: lr.OneCycleLR(o, 0.4, total_steps=1001, cycle_momentum=False),
    "one_cycle_linear": lambda o: lr.OneCycleLR(o, 0.4, total_steps=1001, pct_start=0.21, anneal_strategy="linear", div_factor=7.0,
                                               final_div_factor=33.0, cycle_momentum=False),
    "one_cycle_3": lambda o: lr.OneCycleLR(o, 0.4, total_steps=1001, pct_start=0.4, three_phase=True, cycle_momentum=False),
    "one_cycle_of_3": lambda o: lr.OneCycleLR(o, 0.4, total_steps=1003, pct_start=0.0005, cycle_momentum=False),
    "warm_up_and_cosine": lambda o: lr.SequentialLR(o, [lr.LinearLR(o, 0.1, total_iters=50), lr.CosineAnnealingLR(o, 950, eta_min=0.001)], [50]),
    "sequence": lambda o: lr.SequentialLR(o, [lr.ConstantLR(o, 0.5, 3), lr.ExponentialLR(o, 0.99), lr.CosineAnnealingWarmRestarts(o, 9),
                                             lr.MultiplicativeLR(o, lambda step: 1 - 1 / (step + 3))], [10, 300, 700]),
    "restarted": lambda o: lr.SequentialLR(o, [lr.StepLR(o, 2), lr.ConstantLR(o, 0.3, 0), lr.ExponentialLR(o, 0.9), swa_utils.SWALR(o, 0.7)],
                                          [5, 10, 15]),
    "chained": lambda o: lr.ChainedScheduler([lr.LinearLR(o, 0.2, total_iters=20), lr.ExponentialLR(o, 0.995), lr.StepLR(o, 100, gamma=0.5)]),
    "swa": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=40),
    "swa_linear": lambda o: swa_utils.SWALR(o, 0.7, anneal_epochs=13, anneal_strategy="linear"),
    "swa_at_once": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=0),
    "plateau": lambda o: lr.ReduceLROnPlateau(o, factor=0.5, patience=3),
    "plateau_max": lambda o: lr.ReduceLROnPlateau(o, "max", factor=0.9, patience=2, threshold=0.01, threshold_mode="abs", cooldown=4, min_lr=0.02),
}


def rates(make):
    optimizer = optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler = make(optimizer)
    found = [optimizer.param_groups[0]["lr"]]
    for step in range(STEPS):
        scheduler.step(metric(step)) if isinstance(scheduler, lr.ReduceLROnPlateau) else scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


def hashed(numbers):
    """FNV-1a, of 64 bits."""
    found = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<d", number) for number in numbers):
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return f"{found:016x}"


if __name__ == "__main__":
    made = {name: rates(make) for name, make in SCHEDULES.items()}
    written = {name: {"rates": {str(step): repr(found[step]) for step in SHOWN}, "hash": hashed(found)} for name, found in made.items()}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lr_schedulers.json"), "w") as file:
        json.dump(written, file, indent=1)
        file.write("\n")
