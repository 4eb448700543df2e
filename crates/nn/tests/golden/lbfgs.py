"""Writes `lbfgs.json` and `lbfgs.pt`: twelve steps of PyTorch's LBFGS, and its state after six.

    python lbfgs.py                # needs torch
    python lbfgs.py continue FILE  # loads FILE, which `optimizer.state_dict()` of ours was saved as, and says where it goes on

The loss is a valley with a bend, of a matrix and a vector in `f64`. The learning rate without a line search is small.
"""

import json
import os
import sys

import torch
from torch import optim

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIMIZERS = {
    "fixed": lambda p: optim.LBFGS(p, lr=0.3, max_iter=3),
    "fixed_short_history": lambda p: optim.LBFGS(p, lr=0.3, max_iter=4, history_size=2),
    "wolfe": lambda p: optim.LBFGS(p, max_iter=2, line_search_fn="strong_wolfe"),
    "wolfe_long": lambda p: optim.LBFGS(p, lr=5.0, max_iter=3, max_eval=6, history_size=3, line_search_fn="strong_wolfe"),
    "wolfe_maximize": lambda p: optim.LBFGS(p, lr=0.8, max_iter=2, line_search_fn="strong_wolfe", maximize=True),
}


def parameters():
    weight = torch.tensor([[0.5, -1.0], [0.25, 1.5]], dtype=torch.float64, requires_grad=True)
    return [weight, torch.tensor([0.75, -0.5], dtype=torch.float64, requires_grad=True)]


def closure(p, maximize):
    def evaluate():
        for parameter in p:
            parameter.grad = None
        x = torch.cat([parameter.flatten() for parameter in p])
        x, y = x[:-1], x[1:]
        loss = ((y - x**2) ** 2 * 10 + (x - 1) ** 2).mean()
        loss = -loss if maximize else loss
        loss.backward()
        return loss

    return evaluate


def steps(p, optimizer, n_steps, evaluate):
    history = []
    for _ in range(n_steps):
        loss = optimizer.step(evaluate)
        history.append([loss.item()] + torch.cat([parameter.detach().flatten() for parameter in p]).tolist())
    return history


if __name__ == "__main__":
    if sys.argv[1:2] == ["continue"]:
        saved = torch.load(sys.argv[2])
        p = parameters()
        for parameter, value in zip(p, [saved["weight"], saved["bias"]]):
            parameter.data.copy_(value)
        optimizer = OPTIMIZERS["wolfe"](p)
        optimizer.load_state_dict(saved["optimizer"])
        ours = steps(p, optimizer, 6, closure(p, False))
        theirs = json.load(open(os.path.join(HERE, "lbfgs.json")))["wolfe"][6:]
        worst = max(abs(a - b) for left, right in zip(ours, theirs) for a, b in zip(left, right))
        print(f"largest difference of six steps: {worst:.1e}")
        sys.exit(worst > 1e-9)
    written = {}
    for name, make in OPTIMIZERS.items():
        p = parameters()
        optimizer, evaluate = make(p), closure(p, "maximize" in name)
        written[name] = steps(p, optimizer, 6, evaluate)
        if name == "wolfe":
            saved = {"weight": p[0].detach(), "bias": p[1].detach(), "optimizer": optimizer.state_dict()}
            torch.save(saved, os.path.join(HERE, "lbfgs.pt"))
        written[name] += steps(p, optimizer, 6, evaluate)
    with open(os.path.join(HERE, "lbfgs.json"), "w") as file:
        lines = [f' "{name}": {json.dumps(found)}' for name, found in written.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
