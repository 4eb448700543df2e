"""Operations other than products and convolutions on a GPU in PyTorch: the rows of `cargo bench --bench wide`.

    python benches/torch_wide.py [--json]

As there: milliseconds, forward and with both passes, each the best of ten rounds of calls that take some 10 ms, with one wait at
the end of each, after a second of work.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

BF16 = torch.bfloat16


def milliseconds(f):
    def round_of(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / calls

    round_of(3)
    calls = int(min(max(10 / round_of(3), 5), 1000))
    return min(round_of(calls) for _ in range(10))


def warm_up():
    x, start = torch.randn(4096, 4096, device="cuda"), time.perf_counter()
    while time.perf_counter() - start < 1:
        x @ x
        torch.cuda.synchronize()


def say(name, forward, both=None):
    if "--json" in sys.argv:
        print(json.dumps({"name": name, "forward": forward, "both": both}), flush=True)
    else:
        print(f"{name:44} {forward:9.4f} {both:9.4f}" if both else f"{name:44} {forward:9.4f}", flush=True)


def pair(name, of, f):
    gradient = torch.randn_like(f())
    say(name, milliseconds(f), milliseconds(lambda: torch.autograd.grad(f(), of, gradient)))


def tensor(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=True)


def index(high, *shape):
    return torch.randint(0, high, shape, device="cuda")


def attention():
    for b, h, t, d in ((16, 12, 1024, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)):
        for causal in (True, False):
            q, k, v = (tensor(b, h, t, d, dtype=BF16) for _ in range(3))
            name = f"attention.{b}x{h}x{t}x{d}.{'causal' if causal else 'full'}"
            attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            pair(name, (q, k, v), attend)
            torch.use_deterministic_algorithms(True)
            pair(f"{name}.deterministic", (q, k, v), attend)
            torch.use_deterministic_algorithms(False)


def vocabulary():
    weight, words = tensor(50304, 768), index(50304, 16, 1024)
    pair("embedding.50304x768.16x1024", (weight,), lambda: F.embedding(words, weight))
    for dtype, name in ((torch.float32, "float32"), (BF16, "bfloat16")):
        scores, classes = tensor(16384, 50304, dtype=dtype), index(50304, 16384)
        pair(f"cross_entropy.16384x50304.{name}", (scores,), lambda: F.cross_entropy(scores, classes))


def square():
    side = 8192
    x, places = tensor(side, side), index(side, side, side)
    positive = x.detach() > 0
    say("copy.8192x8192", milliseconds(lambda: x.detach().clone()))
    for name, f in {
        "gelu": lambda: F.gelu(x),
        "gelu_tanh": lambda: F.gelu(x, approximate="tanh"),
        "silu": lambda: F.silu(x),
        "softplus": lambda: F.softplus(x),
        "clamp": lambda: x.clamp(-1, 1),
        "dropout": lambda: F.dropout(x, 0.1),
        "rms_norm": lambda: F.rms_norm(x, (side,)),
        "cumsum": lambda: x.cumsum(1),
        "logsumexp": lambda: x.logsumexp(1),
        "where": lambda: torch.where(positive, x, 0.1),
        "sort": lambda: x.sort(1)[0],
        "topk": lambda: x.topk(50, 1)[0],
        "var": lambda: x.var(1),
        "norm": lambda: x.norm(dim=1),
        "prod": lambda: x.prod(1),
        "flip": lambda: x.flip(1),
        "roll": lambda: x.roll(17, 1),
        "gather": lambda: x.gather(1, places),
        "tril": lambda: x.tril(),
    }.items():
        pair(f"{name}.8192x8192", (x,), f)


def convolutions():
    x, weight = tensor(64, 256, 32, 32), tensor(256, 128, 4, 4)
    pair("conv_transpose2d.64x256x32x32.k4s2", (x, weight), lambda: F.conv_transpose2d(x, weight, stride=2, padding=1))
    pair("interpolate.bilinear.x2", (x,), lambda: F.interpolate(x, scale_factor=2, mode="bilinear"))
    pair("group_norm.64x256x32x32.g32", (x,), lambda: F.group_norm(x, 32))
    x, weight = tensor(64, 256, 4096), tensor(256, 256, 5)
    pair("conv1d.64x256x4096.k5", (x, weight), lambda: F.conv1d(x, weight, padding=2))


def photos():
    for dtype, name in ((torch.float32, "float32"), (BF16, "bfloat16")):

        def row(what, of, f):
            pair(f"photos.{what}.{name}", of, f)

        x, weight, bias = tensor(32, 64, 112, 112, dtype=dtype), tensor(64), tensor(64)
        row("batch_norm", (x, weight, bias), lambda: F.batch_norm(x, None, None, weight, bias, True))
        row("relu", (x,), lambda: F.relu(x))
        row("max_pool2d.k3s2", (x,), lambda: F.max_pool2d(x, 3, 2, 1))
        row("avg_pool2d.k2", (x,), lambda: F.avg_pool2d(x, 2))
        row("instance_norm", (x,), lambda: F.instance_norm(x))
        row("channels_last", (x,), lambda: x.contiguous(memory_format=torch.channels_last))
        deep = tensor(32, 2048, 7, 7, dtype=dtype)
        row("adaptive_avg_pool2d", (deep,), lambda: F.adaptive_avg_pool2d(deep, 1))
        y = tensor(8, 64, 128, 128, dtype=dtype)
        row("cat", (y,), lambda: torch.cat((y, y), 1))
        row("pad.reflect", (y,), lambda: F.pad(y, (3, 3, 3, 3), "reflect"))
        row("pixel_shuffle", (y,), lambda: F.pixel_shuffle(y, 2))
        row("interpolate.nearest", (y,), lambda: F.interpolate(y, scale_factor=2))
        row("interpolate.bilinear", (y,), lambda: F.interpolate(y, scale_factor=2, mode="bilinear"))
        grid = tensor(8, 128, 128, 2, dtype=dtype)
        row("grid_sample", (y, grid), lambda: F.grid_sample(y, grid, align_corners=False))
        kernel = tensor(64, 32, 2, 2, dtype=dtype)
        row("conv_transpose2d.k2s2", (y, kernel), lambda: F.conv_transpose2d(y, kernel, stride=2))
        scores, classes = tensor(8, 21, 256, 256, dtype=dtype), index(21, 8, 256, 256)
        row("softmax.of_channels", (scores,), lambda: scores.softmax(1))
        row("cross_entropy.of_pixels", (scores,), lambda: F.cross_entropy(scores, classes))
        say(f"photos.argmax.of_channels.{name}", milliseconds(lambda: scores.argmax(1)))
        words, w, b = tensor(32, 3136, 96, dtype=dtype), tensor(96, dtype=dtype), tensor(96, dtype=dtype)
        row("layer_norm.96", (words, w, b), lambda: F.layer_norm(words, (96,), w, b))
        matrix = tensor(384, 96, dtype=dtype)
        row("linear.96to384", (words, matrix), lambda: F.linear(words, matrix))
        flat, large = tensor(32, 25088, dtype=dtype), tensor(4096, 25088, dtype=dtype)
        row("linear.25088to4096", (flat, large), lambda: F.linear(flat, large))


def layers():
    for hidden, dtype, name in ((1024, torch.float32, "float32"), (1024, BF16, "bfloat16"), (128, torch.float32, "float32")):
        x = tensor(64, 128, hidden, dtype=dtype)
        for kind in ("LSTM", "GRU", "RNN"):
            layer = getattr(nn, kind)(hidden, hidden, 2, batch_first=True).to("cuda", dtype)
            pair(f"{kind}.2x{hidden}.64x128.{name}", (x, *layer.parameters()), lambda: layer(x)[0])


def cells():
    x = torch.randn(1, 128, device="cuda")
    for kind in ("LSTM", "GRU", "RNN"):
        cell = getattr(nn, f"{kind}Cell")(128, 128).to("cuda")

        def steps():
            state = (x, x) if kind == "LSTM" else x
            for _ in range(20):
                state = cell(x, state)
            return state[0] if kind == "LSTM" else state

        pair(f"{kind}Cell.128.20", tuple(cell.parameters()), steps)


def optimizers():
    block = [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
    parameters = [tensor(*shape) for shape in [(50304, 768)] + block * 12]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optim = torch.optim
    say("optimizer.sgd.124M", milliseconds(optim.SGD(parameters, 1e-3, 0.9, fused=True).step))
    say("optimizer.adamw.124M", milliseconds(optim.AdamW(parameters, 1e-3, fused=True).step))
    say("optimizer.adagrad.124M", milliseconds(optim.Adagrad(parameters, 1e-3).step))
    say("optimizer.rmsprop.124M", milliseconds(optim.RMSprop(parameters, 1e-3).step))
    say("clip_grad_norm.124M", milliseconds(lambda: nn.utils.clip_grad_norm_(parameters, 1.0)))


def transformer():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0).to("cuda", BF16)
    x = tensor(64, 256, 512, dtype=BF16)
    pair("TransformerEncoderLayer.512.64x256.bf16", (x, *layer.parameters()), lambda: layer(x))


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")  # as convolutions are
    warm_up()
    attention()
    vocabulary()
    square()
    convolutions()
    photos()
    layers()
    cells()
    optimizers()
    transformer()
