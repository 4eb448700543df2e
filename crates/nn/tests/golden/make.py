"""Writes the golden files that the tests in `crates/nn/tests` compare with: what PyTorch does from the same start.

    python make.py [FOLDER WITH MNIST]      # needs torch and safetensors, nothing else; seeds are fixed

    training.safetensors  initial weights of the tutorial's two models, the loss after each of 100 steps and the
                          weights after the last: on pseudo-images that Rust computes too (`pseudo`), and on MNIST when
                          its folder is given (`train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz`)
    optimizers.safetensors  ten steps of each optimizer: start, data, parameters after each step
    models.json           what PyTorch prints for some models, and the names and shapes of their state dicts
    normalized.safetensors  a network with normalization: its state before and after two steps, losses, evaluation
    init.json             bound and standard deviation of the initial weights of some layers
"""

import gzip
import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn, optim

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, BATCH = 100, 64
# A ReLU that rounding turns on or off is no small difference: from most starts, PyTorch's own losses come to differ by 1e-4 to
# 1e-1 within 100 steps when the initial weights change by 2e-7 of their size. From these starts they stay within 2e-6 (as
# `training` prints), so that a bound of 1e-4 says something about the code and not about the start.
SEEDS = {"logistic": {"pseudo": 0, "mnist": 0}, "cnn": {"pseudo": 6, "mnist": 31}}


# ---- the tutorial's models --------------------------------------------------------------------------------------

def logistic():
    return nn.Linear(784, 10)


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1), nn.ReLU(),
                         nn.Conv2d(16, 16, kernel_size=3, stride=2, padding=1), nn.ReLU(),
                         nn.Conv2d(16, 10, kernel_size=3, stride=2, padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())


MODELS = {"logistic": (logistic, (784,), dict(lr=0.5)), "cnn": (cnn, (1, 28, 28), dict(lr=0.1, momentum=0.9))}


def pseudo(count):
    """Gray boxes, at a place that the label says, on black. Integers divided by 256: exact in f32."""
    i = torch.arange(count).view(-1, 1, 1)
    row, column = torch.arange(28).view(1, -1, 1), torch.arange(28).view(1, 1, -1)
    label = i * 7 % 10
    top, left = 2 + label // 5 * 11 + i % 3, 1 + label % 5 * 4 + i * i % 5
    inside = (row >= top) & (row < top + 11) & (column >= left) & (column < left + 7)
    place = i * 784 + row * 28 + column
    shade = 64 + place * 2654435761 % 2**32 // 2**24 * 3 // 4
    return (inside * shade).float().div(256).view(-1, 784), label.view(-1)


def mnist(folder):
    def idx(name, header):
        with gzip.open(os.path.join(folder, name)) as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)
    images = idx("train-images-idx3-ubyte.gz", 16).view(-1, 784)[:50000].float().div(256)
    return images, idx("train-labels-idx1-ubyte.gz", 8)[:50000].long()


def rows(step, count):
    """The samples of a batch: every one comes once before any comes again, as 7919 and `count` have no common factor."""
    return (torch.arange(step * BATCH, (step + 1) * BATCH) * 7919) % count


def train(name, weights, images, labels):
    """The loss of each batch after the step on it, and the weights after the last."""
    make, shape, settings = MODELS[name]
    model = make()
    model.load_state_dict(weights)
    opt = optim.SGD(model.parameters(), **settings)
    losses = []
    for step in range(STEPS):
        batch = rows(step, len(images))
        xb, yb = images[batch].view(-1, *shape), labels[batch]
        F.cross_entropy(model(xb), yb).backward()
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(xb), yb))
    return torch.stack(losses), {key: value.clone() for key, value in model.state_dict().items()}


def sensitivity(name, weights, images, labels, losses, tries=20):
    """By how much the losses change, at most, when the initial weights change by about 2e-7 of their size."""
    random, worst = torch.Generator().manual_seed(1), 0.0
    for _ in range(tries):
        near = {key: value * (1 + 2e-7 * torch.randn(value.shape, generator=random)) for key, value in weights.items()}
        worst = max(worst, (losses - train(name, near, images, labels)[0]).abs().max().item())
    return worst


def training(folder):
    data = {"pseudo": pseudo(1000)} | ({"mnist": mnist(folder)} if folder else {})
    tensors = {}
    for name, (make, _, _) in MODELS.items():
        for kind, (images, labels) in data.items():
            torch.manual_seed(SEEDS[name][kind])
            weights = {key: value.clone() for key, value in make().state_dict().items()}
            losses, trained = train(name, weights, images, labels)
            for when, state in ("weights", weights), ("trained", trained):
                tensors |= {f"{name}.{kind}.{when}.{key}": value for key, value in state.items()}
            tensors[f"{name}.{kind}.losses"] = losses
            spread = sensitivity(name, weights, images, labels, losses)
            print(f"{name} on {kind}: {losses[0]:.4f} to {losses[-1]:.4f}; rounding changes it by at most {spread:.1e}")
    save_file(tensors, os.path.join(HERE, "training.safetensors"))


# ---- optimizers -------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": (optim.SGD, dict(lr=0.1)),
    "sgd_decay": (optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    "sgd_momentum": (optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_dampening": (optim.SGD, dict(lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.01)),
    "sgd_nesterov": (optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True)),
    "sgd_nesterov_decay": (optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.02)),
    "adam": (optim.Adam, dict(lr=0.05)),
    "adam_settings": (optim.Adam, dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    "adamw": (optim.AdamW, dict(lr=0.05)),
    "adamw_settings": (optim.AdamW, dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2)),
}


def optimizers():
    tensors = {}
    for dtype, suffix in ((torch.float32, "f32"), (torch.float64, "f64")):
        torch.manual_seed(7)
        start = {"weight": torch.randn(3, 5, dtype=dtype), "bias": torch.randn(3, dtype=dtype)}
        x, y = torch.randn(8, 5, dtype=dtype), torch.randn(8, 3, dtype=dtype)
        tensors |= {f"x.{suffix}": x, f"y.{suffix}": y} | {f"{name}.{suffix}": value.clone() for name, value in start.items()}
        for name, (make, settings) in OPTIMIZERS.items():
            weight, bias = (start[key].clone().requires_grad_() for key in ("weight", "bias"))
            opt = make([weight, bias], **settings)
            history = []
            for _ in range(10):
                opt.zero_grad()
                F.mse_loss(torch.tanh(F.linear(x, weight, bias)), y).backward()
                opt.step()
                history.append(torch.cat([weight.detach().flatten(), bias.detach()]))
            tensors[f"{name}.{suffix}"] = torch.stack(history)
    save_file(tensors, os.path.join(HERE, "optimizers.safetensors"))


# ---- what models look like, and how they begin ------------------------------------------------------------------

def mixed():
    return nn.Sequential(nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 2), dilation=(1, 2), groups=2, bias=False), nn.Tanh(), nn.MaxPool2d(2),
                         nn.Sigmoid(), nn.AvgPool2d((2, 3), stride=(1, 2), padding=1), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(),
                         nn.Dropout(0.3), nn.Sequential(nn.Linear(36, 8, bias=False), nn.ReLU()), nn.Linear(8, 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(3, 4), nn.ReLU()])
        self.scale = nn.Parameter(torch.ones(3))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(3, momentum=0.3)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)) + x)


def normalizing():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), Residual(), nn.Flatten(), nn.LayerNorm(48),
                         nn.Linear(48, 5), nn.BatchNorm1d(5, momentum=None), nn.ReLU(), nn.LayerNorm(5, bias=False), nn.BatchNorm1d(5, affine=False))


def normalized():
    torch.manual_seed(5)
    model = normalizing()
    x, labels = torch.randn(6, 2, 6, 6), torch.arange(6) % 5
    tensors = {"x": x} | {f"before.{key}": value.clone() for key, value in model.state_dict().items()}
    opt, losses = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(3):
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach())
    tensors |= {f"after.{key}": value.clone() for key, value in model.state_dict().items()}
    model.eval()
    save_file(tensors | {"losses": torch.stack(losses), "evaluated": model(x).detach().clone()}, os.path.join(HERE, "normalized.safetensors"))


def models():
    made = {"cnn": cnn(), "logistic": logistic(), "mixed": mixed(), "net": Net(), "normalizing": normalizing()}
    shown = {name: {"print": str(model), "state_dict": {key: list(value.shape) for key, value in model.state_dict().items()}}
             for name, model in made.items()}
    with open(os.path.join(HERE, "models.json"), "w") as file:
        json.dump(shown, file, indent=1)


def init():
    """Of many draws: the largest magnitude, and the standard deviation, of weight and bias."""
    made = {"linear 784 10": lambda: nn.Linear(784, 10), "linear 5 7": lambda: nn.Linear(5, 7), "conv 1 16 3 1": lambda: nn.Conv2d(1, 16, 3),
            "conv 16 10 3 1": lambda: nn.Conv2d(16, 10, 3), "conv 8 12 5 4": lambda: nn.Conv2d(8, 12, 5, groups=4)}
    torch.manual_seed(3)
    found = {}
    for name, make in made.items():
        layers = [make() for _ in range(200)]
        stacks = {part: torch.stack([getattr(layer, part).detach() for layer in layers]) for part in ("weight", "bias")}
        found[name] = {part: {"largest": stack.abs().max().item(), "deviation": stack.std().item()} for part, stack in stacks.items()}
    with open(os.path.join(HERE, "init.json"), "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    training(sys.argv[1] if len(sys.argv) > 1 else None)
    optimizers()
    normalized()
    models()
    init()
