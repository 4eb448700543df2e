"""What normalizations cost in PyTorch on a GPU: the rows of `cargo bench -p pagelock-tensor --bench cuda -- norms`.

    python benches/torch_norms.py

As there: the best of some rounds of 20 calls with one wait at the end, each element counted as often as it has to be moved.
"""

import time

import torch
import torch.nn.functional as F


def per_call(f, calls=20):
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def norms(dtype):
    def random(*shape):
        return torch.randn(shape, device="cuda", dtype=dtype)

    def show(name, moved, f):
        seconds = per_call(f)
        print(f"{name:34} {seconds * 1e3:8.3f} {moved * dtype.itemsize / 1e9 / seconds:8.0f}", flush=True)

    def backward(y, inputs, gradient):
        return lambda: torch.autograd.grad(y, inputs, gradient, retain_graph=True)

    print(f"{'normalizing ' + str(dtype)[6:]:34} {'ms':>8} {'GB/s':>8}")
    x, g, copy = random(8192, 8192), random(8192, 8192), random(8192, 8192)
    w, b, n = random(8192), random(8192), 8192 * 8192
    show("copy_", 2 * n, lambda: copy.copy_(x))
    show("softmax", 2 * n, lambda: F.softmax(x, 1))
    show("log_softmax", 2 * n, lambda: F.log_softmax(x, 1))
    show("layer_norm", 2 * n, lambda: F.layer_norm(x, (8192,), w, b))
    for tensor in (x, w, b):
        tensor.requires_grad_()
    show("softmax backward", 3 * n, backward(F.softmax(x, 1), (x,), g))
    show("layer_norm backward", 3 * n, backward(F.layer_norm(x, (8192,), w, b), (x, w, b), g))
    for shape in ([256, 64, 64, 64], [512, 64, 32, 32], [512, 512, 4, 4]):
        for order in ("", ", channels last"):
            def lay(x):
                return x.to(memory_format=torch.channels_last) if order else x
            x, g = lay(random(*shape)), lay(random(*shape))
            layer, n = torch.nn.BatchNorm2d(shape[1], device="cuda", dtype=dtype), x.numel()
            with torch.no_grad():
                show(f"batch_norm {shape}{order}", 3 * n, lambda: layer(x))
            x.requires_grad_()
            show(f"backward{order}", 5 * n, backward(layer(x), (x, layer.weight, layer.bias), g))


for dtype in (torch.float32, torch.bfloat16):
    norms(dtype)
