"""Recurrent layers in PyTorch, forward and backward: the rows of `cargo bench --bench recurrent`.

    python benches/torch_recurrent.py [threads]

As there: milliseconds, the best of some rounds.
"""

import sys
import time

import torch
from torch import nn


def milliseconds(f, calls, device):
    best = float("inf")
    for _ in range(6):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e3


def layer(kind, hidden, batch, steps, dtype, device):
    model = getattr(nn, kind)(hidden, hidden, 2, device=device, dtype=dtype)
    x = torch.randn(steps, batch, hidden, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.ones(steps, batch, hidden, device=device, dtype=dtype)

    def step():
        y, _ = model(x)
        y.backward(gradient)
        x.grad = None
        model.zero_grad()

    return step


def cell(kind, hidden, batch, steps, device):
    model = getattr(nn, kind)(hidden, hidden, device=device)
    x = torch.randn(steps, batch, hidden, device=device)

    def step():
        state = torch.zeros(batch, hidden, device=device)
        state = (state, state) if kind == "LSTMCell" else state
        for i in range(steps):
            state = model(x[i], state)
        (state[0] if kind == "LSTMCell" else state).sum().backward()
        model.zero_grad()

    return step


def say(kind, hidden, batch, steps, dtype, device, f, calls):
    print(f"{kind:9} {hidden:>5} {batch:>3} x {steps:<4} {str(dtype)[6:]:9} {device:5} {milliseconds(f, calls, device):9.3f} ms", flush=True)


torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
for kind in ("LSTM", "GRU", "RNN"):
    say(kind, 256, 32, 64, torch.float32, "cpu", layer(kind, 256, 32, 64, torch.float32, "cpu"), 2)
if torch.cuda.is_available():
    torch.set_float32_matmul_precision("high")  # for cells, as recurrent.rs does; cuDNN's layers use TF32 by default
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("LSTM", "GRU", "RNN"):
            for hidden in (1024, 128):
                say(kind, hidden, 64, 128, dtype, "cuda", layer(kind, hidden, 64, 128, dtype, "cuda"), 5)
    for kind in ("RNNCell", "GRUCell", "LSTMCell"):
        say(kind, 256, 64, 20, torch.float32, "cuda", cell(kind, 256, 64, 20, "cuda"), 10)
