"""Writes `linalg.safetensors`, with which `tests/golden.rs` compares: what torch.linalg gives, and gradients.

    python make.py

`NAME.in.I` are the inputs, `NAME.out` the result of `CASES`, which does not depend on the signs of vectors, `NAME.grad.I` the gradient of
`sum(out * weight)`, with the weights 1, 2, 3, … in the order of the result's elements. All are float64.
"""

import os

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
L = torch.linalg
random = torch.Generator().manual_seed(3)


def matrices(*shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def definite(*shape):
    x = matrices(*shape)
    return x @ x.mT + torch.eye(shape[-1], dtype=torch.float64)


def weights(n):
    return torch.arange(1, n + 1, dtype=torch.float64)


def qr(x):
    """With a diagonal that is not negative."""
    q, r = L.qr(x)
    signs = r.diagonal(dim1=-2, dim2=-1).sign().detach()
    return torch.cat([(q * signs.unsqueeze(-2)).flatten(), (r * signs.unsqueeze(-1)).flatten()])


def svd(x):
    u, s, vt = L.svd(x, full_matrices=False)
    return (u * weights(s.shape[-1])) @ vt


def eigh(x):
    values, vectors = L.eigh((x + x.mT) / 2)
    return (vectors * weights(values.shape[-1])) @ vectors.mT


CASES = {
    "solve": (L.solve, [matrices(2, 3, 3), matrices(2, 3, 2)]),
    "solve_vector": (L.solve, [matrices(3, 3), matrices(3)]),
    "solve_broadcast": (L.solve, [matrices(2, 1, 3, 3), matrices(4, 3, 2)]),
    "inv": (L.inv, [matrices(2, 3, 3)]),
    "det": (L.det, [matrices(2, 3, 3)]),
    "slogdet": (lambda x: L.slogdet(x)[0].detach() * 10 + L.slogdet(x)[1], [matrices(3, 4, 4)]),
    "cholesky": (lambda x: L.cholesky((x + x.mT) / 2), [definite(2, 3, 3)]),
    "qr": (qr, [matrices(2, 4, 3)]),
    "qr_square": (qr, [matrices(3, 3)]),
    "svd": (svd, [matrices(2, 3, 3)]),
    "svd_tall": (svd, [matrices(4, 3)]),
    "svd_wide": (svd, [matrices(3, 5)]),
    "svdvals": (L.svdvals, [matrices(2, 4, 3)]),
    "eigh": (eigh, [matrices(2, 3, 3)]),
    "eigvalsh": (lambda x: L.eigvalsh((x + x.mT) / 2), [matrices(2, 3, 3)]),
    "pinv": (L.pinv, [matrices(2, 4, 3)]),
    "norm_fro": (lambda x: L.matrix_norm(x, "fro"), [matrices(2, 4, 3)]),
    "norm_nuc": (lambda x: L.matrix_norm(x, "nuc"), [matrices(2, 4, 3)]),
    "norm_spectral": (lambda x: L.matrix_norm(x, 2), [matrices(2, 4, 3)]),
    "norm_columns": (lambda x: L.matrix_norm(x, 1), [matrices(2, 4, 3)]),
    "norm_rows": (lambda x: L.matrix_norm(x, float("inf")), [matrices(2, 4, 3)]),
}

if __name__ == "__main__":
    tensors = {}
    for name, (call, inputs) in CASES.items():
        inputs = [x.clone().requires_grad_() for x in inputs]
        out = call(*inputs)
        grads = torch.autograd.grad((out * weights(out.numel()).reshape(out.shape)).sum(), inputs)
        tensors[f"{name}.out"] = out.detach().clone().contiguous()
        for i, (x, grad) in enumerate(zip(inputs, grads)):
            tensors[f"{name}.in.{i}"] = x.detach().clone().contiguous()
            tensors[f"{name}.grad.{i}"] = grad.clone().contiguous()
    save_file(tensors, os.path.join(HERE, "linalg.safetensors"))
    print(f"{len(tensors)} tensors")
