"""Writes `special.safetensors`: every op at its edges, in every float type, from PyTorch and in f64; and `arange.json`.

    python special.py         # needs torch and safetensors, nothing else; seeds are fixed

The format is that of `make.py`, whose list of ops this uses. Two more keys per case:

    exact        the result of the same inputs in f64
    exact_grads  per input, its gradient in f64
    together     0 or 1, if the numbers of a column or a row are computed together: errors are relative to the largest

What is at the edge: NaN, infinities, zeros of both signs, the smallest subnormal, the smallest normal and the largest
number of the type, and magnitudes across its whole range, alone and in pairs.
"""

import itertools
import json
import math
import os

import torch
import torch.nn.functional as F

import make
from make import ALL, DTYPES, OPS, File, view


def changed(change):
    """An op that changes its first input in place; only the result counts."""
    def run(x, args):
        to = x[0].clone()
        change(to, x, args)
        return to
    return run


OPS.update({
    "rdiv": lambda x, a: torch.full_like(x[0], a["s"]) / x[0],
    "linear": lambda x, a: F.linear(x[0], x[1], x[2]),
    "conv2d_relu": lambda x, a: torch.relu(OPS["conv2d"](x, a)),
    "fill_": changed(lambda to, x, a: to.fill_(a["s"])),
    "copy_": changed(lambda to, x, a: to.copy_(x[1])),
    "add_": changed(lambda to, x, a: to.add_(x[1])),
    "sub_": changed(lambda to, x, a: to.sub_(x[1])),
    "mul_": changed(lambda to, x, a: to.mul_(x[1])),
    "div_": changed(lambda to, x, a: to.div_(x[1])),
    "add_scalar_": changed(lambda to, x, a: to.add_(a["s"])),
    "mul_scalar_": changed(lambda to, x, a: to.mul_(a["s"])),
    "add_scaled_": changed(lambda to, x, a: to.add_(x[1], alpha=a["s"])),
    "lerp_": changed(lambda to, x, a: to.lerp_(x[1], a["s"])),
    "addcmul_": changed(lambda to, x, a: to.addcmul_(x[1], x[2], value=a["s"])),
    "addcdiv_": changed(lambda to, x, a: to.addcdiv_(x[1], x[2], value=a["s"])),
    "sqrt_": changed(lambda to, x, a: to.sqrt_()),
})


# Ops that add up rows or columns, or normalize them: an element is a difference of numbers of the size of its neighbors.
TOGETHER = {"sum": 1, "mean": 1, "softmax": 1, "log_softmax": 1, "layer_norm": 1, "cross_entropy": 1, "var": 1, "batch_norm": 0, "batch_norm_relu": 0, "avg_pool2d": 1}


def specials(dtype):
    info = torch.finfo(DTYPES[dtype])
    edges = [math.inf, info.max, info.tiny, info.tiny * info.eps, 0.0, 1.0]
    return [math.nan] + [sign * x for x in edges for sign in (1.0, -1.0)]


def magnitudes(dtype, count):
    """Numbers of both signs across the range of normal numbers."""
    info = torch.finfo(DTYPES[dtype])
    low, high = math.log(info.tiny), math.log(info.max)
    steps = [low + (high - low) * (i + 0.5) / count for i in range(count)]
    return [(-1.0) ** i * math.exp(step) for i, step in enumerate(steps)]


class Special(File):
    def __init__(self, name, seed):
        super().__init__(name, seed)
        self.known = {}

    def put(self, tensor):
        """Equal tensors are stored once."""
        tensor = tensor.detach().clone().contiguous()
        content = (tensor.dtype, tuple(tensor.shape), bytes(tensor.reshape(-1).view(torch.uint8).tolist()))
        if content not in self.known:
            self.known[content] = super().put(tensor)
        return self.known[content]

    def each(self, op, inputs, gradient=True, dtypes=ALL, **args):
        """`inputs`: a function of the dtype that gives lists of numbers or tensors."""
        for dtype in dtypes:
            given = [x if torch.is_tensor(x) or isinstance(x, tuple) else torch.tensor(x, dtype=torch.float64) for x in inputs(dtype)]
            pairs = [x if isinstance(x, tuple) else (x, []) for x in given]
            self.one(op, pairs, dtype, gradient, args)

    def one(self, op, pairs, dtype, gradient, args):
        rounded = [(b.to(DTYPES[dtype]) if b.is_floating_point() else b, steps) for b, steps in pairs]
        output, run = self.run(op, rounded, gradient, args)
        wide = [(b.double() if b.is_floating_point() else b, steps) for b, steps in rounded]
        exact, run_exact = self.run(op, wide, gradient, args)
        case = {"op": op, "args": args, "dtype": dtype, "output": self.put(output), "exact": self.put(exact),
                "inputs": [{"tensor": self.put(b), "view": steps} for b, steps in rounded]}
        if op in TOGETHER:
            case["together"] = TOGETHER[op]
        if run is not None:
            pattern = torch.tensor([1.0, -0.5, 3.0, 2.0, -1.5, 0.25, -4.0], dtype=torch.float64)
            upstream = pattern.repeat(output.numel() // 7 + 1)[:output.numel()].reshape(output.shape)
            case["grad_output"] = self.put(upstream.to(output.dtype))
            case["grads"] = run(upstream.to(output.dtype), self)
            case["exact_grads"] = run_exact(upstream, self)
        self.cases.append(case)

    def run(self, op, pairs, gradient, args):
        bases = [b.clone() for b, _ in pairs]
        wanted = [i for i, b in enumerate(bases) if gradient and b.is_floating_point()]
        for i in wanted:
            bases[i].requires_grad_()
        output = OPS[op]([view(b, steps) for b, (_, steps) in zip(bases, pairs)], args)
        if not wanted:
            return output, None

        def grads(upstream, file):
            found = torch.autograd.grad(output, [bases[i] for i in wanted], upstream)
            return file.per_input(len(bases), wanted, found)
        return output, grads


def elements(f):
    def one(dtype):
        return [specials(dtype) + magnitudes(dtype, 9) + [0.5, -2.5, 3.0, -7.0, 11.0, 88.0, -104.0, 0.99]]
    for op in ("exp", "log", "sqrt", "abs", "neg", "tanh", "sigmoid", "relu", "sign"):
        f.each(op, one)
    for s in (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 2.75):
        f.each("pow", one, s=s)
    for op, s in [("add_scalar", 1.5), ("sub_scalar", 1.5), ("mul_scalar", -3.0), ("div_scalar", 3.0), ("rdiv", 3.0), ("rdiv", -3000.0)]:
        f.each(op, one, s=s)
    for op, s in [("fill_", -0.0), ("add_scalar_", 1.5), ("mul_scalar_", -3.0), ("sqrt_", None)]:
        f.each(op, one, gradient=False, s=s)
    for to in ALL:
        f.each("cast", one, gradient=False, to=to)
        f.each("cast_there_and_back", one, to=to)
    f.each("cast", one, gradient=False, to="bool")
    for to in ("int64", "int32", "uint8"):  # what does not fit saturates here, and is undefined in PyTorch
        f.each("cast", lambda dtype: [[0.0, -0.0, 0.99, 1.0, 2.6, 100.0, torch.finfo(DTYPES[dtype]).tiny]], gradient=False, to=to)


def pairs(f):
    def two(dtype):
        # Quotients that are in range, of numbers whose squares are not: what a derivative must not square.
        ratios = {"float16": [(3000, 300), (1e-3, 1e-4), (0, 1e-4)], "bfloat16": [(1e25, 1e20), (1e-30, 1e-23), (0, 1e-30)],
                  "float32": [(1e25, 1e20), (1e-30, 1e-23), (0, 1e-30)], "float64": [(1e200, 1e180), (1e-250, 1e-200), (0, 1e-250)]}
        numbers = [x for x in specials(dtype) if x != -1.0] + magnitudes(dtype, 4)
        all = list(itertools.product(numbers, numbers)) + ratios[dtype]
        return [[a for a, _ in all], [b for _, b in all]]
    for op in ("add", "sub", "mul", "div", "maximum"):
        f.each(op, two)
    for op in ("eq", "ne", "lt", "le", "gt", "ge", "copy_", "add_", "sub_", "mul_", "div_"):
        f.each(op, two, gradient=False)
    f.each("add_scaled_", two, gradient=False, s=-0.5)
    for s in (0.0, 0.25, 0.5, 1.0, 1.5):
        f.each("lerp_", two, gradient=False, s=s)
    f.each("mse_loss", two, reduction="none")
    f.each("addcmul_", lambda dtype: [*two(dtype), [1.5] * len(two(dtype)[0])], gradient=False, s=0.5)
    f.each("addcdiv_", lambda dtype: [*two(dtype), [1.5] * len(two(dtype)[0])], gradient=False, s=0.5)
    f.each("addcdiv_", lambda dtype: [[1.0] * len(two(dtype)[0]), *two(dtype)], gradient=False, s=0.5)


def rows(f):
    def around(dtype):
        """Rows with each special number at one place, at the first two and everywhere."""
        return [[[x, 1, 2, -3] for x in specials(dtype)] + [[1, x, x, 2] for x in specials(dtype) if dtype != "float64" or not 1e300 < abs(x) < math.inf] + [[x] * 4 for x in specials(dtype) if dtype != "float64" or not 1e300 < abs(x) < math.inf]]

    def moderate(dtype):
        """Rows far from zero and close to each other, of several magnitudes, of one number alone."""
        near = [[256, 258, 256, 258], [1, 1.25, 1, 1.5], [3, 3, 3, 3], [-1e4, -1.1e4, -1e4, -1e4]]
        return [near + [[0.1 * m, -0.2 * m, 0.7 * m, 0.9 * m] for m in (1e-4, 1e-2, 1, 30, 200, 3000)]]
    for make_rows in (around, moderate):
        for op in ("sum", "mean", "max", "min", "var"):
            f.each(op, make_rows, axes=[1], keepdim=False)
        f.each("sum", lambda dtype: [torch.tensor(make_rows(dtype)[0], dtype=torch.float64).t().contiguous()], axes=[0], keepdim=True)
        f.each("argmax", make_rows, gradient=False, dim=1, keepdim=False)
        for op in ("softmax", "log_softmax"):
            f.each(op, make_rows, dim=1)
        f.each("layer_norm", make_rows, normalized=[4], eps=1e-5)
        f.each("layer_norm", lambda dtype: [*make_rows(dtype), [1.0, 2.0, -0.5, 3.0], [0.0, 1.0, -1.0, 0.5]], normalized=[4], eps=1e-5)
        columns = lambda dtype: torch.tensor(make_rows(dtype)[0], dtype=torch.float64).t().contiguous()
        channels = lambda dtype: len(make_rows(dtype)[0])
        for op in ("batch_norm", "batch_norm_relu", "batch_norm_running"):
            for training in (True, False):
                if op == "batch_norm_running" and not training:
                    continue
                for dtype in ALL:
                    n = channels(dtype)
                    running = {"mean": [0.5] * n, "variance": [2.0] * n}
                    f.each(op, lambda dtype: [columns(dtype)], gradient=op != "batch_norm_running", dtypes=(dtype,), training=training,
                           momentum=0.25, eps=1e-5, **running)
        for op in ("nll_loss", "cross_entropy"):
            for reduction in ("none", "mean", "sum"):
                if make_rows is around and reduction != "none":
                    continue
                labels = lambda dtype: torch.arange(len(make_rows(dtype)[0])) % 4
                f.each(op, lambda dtype: [*make_rows(dtype), labels(dtype)], reduction=reduction)
    f.each("var", lambda dtype: [[[1.0], [math.nan], [math.inf]]], axes=[1], keepdim=False)
    for reduction in ("mean", "sum"):
        f.each("mse_loss", lambda dtype: [[1.0, 300.0, -0.25], [0.5, -20.0, -0.5]], reduction=reduction)
        f.each("mse_loss", lambda dtype: [[math.inf, 1.0], [0.5, 2.0]], reduction=reduction)


def products(f):
    column = lambda dtype: torch.tensor([[x, 1.5] for x in specials(dtype) + magnitudes(dtype, 5)], dtype=torch.float64)
    weight = [[1.0, 0.0, 2.0], [0.5, 1.0, -1.0]]
    f.each("matmul", lambda dtype: [column(dtype), weight])
    f.each("matmul", lambda dtype: [weight[0], (column(dtype)[:3].repeat(1, 2), [["narrow", 1, 0, 2]])])
    f.each("linear", lambda dtype: [column(dtype), [[1.0, 0.5], [0.0, 1.0], [2.0, -1.0]], [0.25, -0.5, 1.0]])
    images = lambda dtype: torch.tensor([[[[x, 1.5, -0.5], [0.25, 2.0, 1.0]]] for x in specials(dtype)], dtype=torch.float64)
    plain = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    kernel = [[[[1.0, 0.5], [-2.0, 0.25]]], [[[-1.0, 0.5], [2.0, -0.25]]]]
    for op in ("conv2d", "conv2d_relu"):
        # Here NaN and infinities of a pixel reach the gradients of more of the kernel's weights than they must.
        f.each(op, lambda dtype: [images(dtype), kernel, [0.5, -0.25]], gradient=False, **plain)
        f.each(op, lambda dtype: [images(dtype)[5:], kernel, [0.5, -0.25]], **plain)
    planes = lambda dtype: torch.tensor([[[[x, 1.5, -0.5, x], [0.25, 2.0, x, x]]] for x in specials(dtype)], dtype=torch.float64)
    for op in ("max_pool2d", "avg_pool2d"):
        f.each(op, lambda dtype: [planes(dtype)], kernel=(2, 2), stride=(2, 2), padding=(0, 0))
        f.each(op, lambda dtype: [planes(dtype)], kernel=(2, 3), stride=(1, 1), padding=(1, 1))
    f.each("adaptive_avg_pool2d", lambda dtype: [planes(dtype)], size=(1, 3))


def moved(f):
    """What only moves numbers must keep them, NaN and the signs of zeros too."""
    grid = lambda dtype: torch.tensor(specials(dtype)[:12], dtype=torch.float64).reshape(3, 4)
    x = lambda dtype: [grid(dtype)]
    for op, args in [("reshape", {"shape": [2, 6]}), ("view", {"shape": [12]}), ("permute", {"dims": [1, 0]}), ("t", {}), ("contiguous", {}),
                     ("transpose", {"dims": [0, 1]}), ("narrow", {"dim": 1, "start": 1, "len": 2}), ("unsqueeze", {"dim": 1}),
                     ("slice", {"dim": 1, "start": 0, "end": 4, "step": 2}), ("select", {"dim": 0, "index": 1}),
                     ("flatten", {"start": 0, "end": 1}), ("expand", {"shape": [2, 3, 4]})]:
        f.each(op, x, **args)
    f.each("squeeze", lambda dtype: [grid(dtype).unsqueeze(1)], dim=1)
    for op in ("cat", "stack"):
        f.each(op, lambda dtype: [grid(dtype), (grid(dtype), [["slice", 0, 0, 3, 1]])], dim=1)
    f.each("index_select", lambda dtype: [grid(dtype), torch.tensor([2, 0, 2])], dim=0)
    f.each("gather", lambda dtype: [grid(dtype), torch.tensor([[0, 3], [1, 1], [2, 0]])], dim=1)


def ranges():
    """[type, start, end, step, how many numbers, the last of them] of random decimals and of those that go up evenly."""
    random, cases = torch.Generator().manual_seed(7), []
    def number(digits, high):
        return round(torch.rand((), generator=random, dtype=torch.float64).item() * high, digits)
    for dtype in ALL:
        digits = 1 if dtype in ("float16", "bfloat16") else 3
        for i in range(160):
            start = (-1) ** i * number(1, 5) if i % 3 else 0.0
            step = (number(digits, 1) + 10 ** -digits) * (1 if i % 4 else -1)
            n = int(number(0, 30))
            # Every second range would end with `end` itself, if it were not left out.
            end = round(start + step * n, digits + 1) if i % 2 else round(start + step * (n + 0.4), digits + 1)
            if digits == 1 and abs(end) >= 9.95:
                continue  # more decimals than a half tells apart
            end = round(end, digits) if digits == 1 else end
            if (end - start) * step < 0:
                continue
            start, step = round(start, digits), round(step, digits)
            found = torch.arange(start, end, step, dtype=DTYPES[dtype])
            cases.append([dtype, repr(start), repr(end), repr(step), len(found), found[-1].item() if len(found) else 0.0])
    cases.append(["float32", "0.0", "0.3", "0.1", 3, torch.arange(0, 0.3, 0.1)[-1].item()])
    lines = ",\n".join(json.dumps(case) for case in cases)
    with open(os.path.join(make.HERE, "arange.json"), "w") as file:
        file.write(f"[\n{lines}\n]\n")
    print(f"arange: {len(cases)} cases")


if __name__ == "__main__":
    ranges()
    file = Special("special", 100)
    for fill in (elements, pairs, rows, products, moved):
        fill(file)
    file.save()
