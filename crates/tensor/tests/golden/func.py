"""Writes func.json: what torch.func makes of small functions, in float64. Needs torch, no arguments.

`../gradients/func.rs` has the same functions. Inputs are multiples of 1/8; numbers are written with all digits.
"""

import json
import pathlib

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

torch.set_default_dtype(torch.float64)


def numbers(*shape, seed):
    """The same numbers as in Rust: (seed + 7 i) mod 23 eighths, less 11 eighths."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + seed) % 23 - 11).double().reshape(shape) / 8


x, y = numbers(5, seed=1), numbers(5, seed=4)
w, v, u = numbers(4, 5, seed=2), numbers(4, seed=9), numbers(5, seed=13)
rows = numbers(3, 5, seed=6)

layer = lambda x: torch.tanh(w @ x)  # noqa: E731
energy = lambda x: (torch.exp(x * 0.5) * torch.sin(x)).sum() + (x[0] * x[1] * x[2])  # noqa: E731
pair = lambda x, y: (x * y.sin()).sum() / (1 + (y * y).sum())  # noqa: E731

golden = {
    "grad": [grad(energy)(x)],
    "grad of two": list(grad(pair, argnums=(0, 1))(x, y)),
    "grad of grad": [grad(lambda x: (grad(energy)(x) * u).sum())(x)],
    "grad of what captures": [grad(lambda x: (x * grad(lambda y: pair(x, y))(y)).sum())(x)],
    "vjp": [vjp(layer, x)[0], vjp(layer, x)[1](v)[0]],
    "jvp": list(jvp(layer, (x,), (u,))),
    "jvp of two": list(jvp(pair, (x, y), (u, x))),
    "jacrev": [jacrev(layer)(x)],
    "jacrev of two": list(jacrev(lambda x, y: x * y.cos(), argnums=(0, 1))(x, y)),
    "jacfwd": [jacfwd(layer)(x)],
    "hessian": [hessian(energy)(x)],
    "hessian of vectors": [hessian(layer)(x)],
    "jvp of grad": [jvp(grad(energy), (x,), (u,))[1]],
    "grad of jvp": [grad(lambda x: jvp(layer, (x,), (u,))[1].sum())(x)],
    "jacfwd of jacrev": [jacfwd(jacrev(energy))(x)],
    "vmap": [vmap(layer)(rows)],
    "vmap of grad": [vmap(grad(energy))(rows)],
    "grad of vmap": [grad(lambda rows: vmap(energy)(rows).pow(2).sum())(rows)],
}


def written(tensor):
    return {"shape": list(tensor.shape), "values": tensor.flatten().tolist()}


path = pathlib.Path(__file__).with_name("func.json")
cases = {name: [written(tensor) for tensor in tensors] for name, tensors in golden.items()}
path.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()) + "\n}\n")
