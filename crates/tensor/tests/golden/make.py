"""Writes the golden files that `tests/golden.rs` compares with: PyTorch's values and gradients for every op.

    python make.py            # needs torch and safetensors, nothing else; seeds are fixed

Each file is a safetensors file. Its metadata has one key, `cases`, a JSON list of objects:

    op           the name of the operation; golden.rs has a closure for each
    args         its arguments
    dtype        the element type of its floating-point inputs
    inputs       [{"tensor": stored base, "view": [[step, arguments..]..]}..]; a view with steps is not contiguous
    output       the stored result
    grad_output  the stored upstream gradient (absent: values only)
    grads        per input, the stored gradient of its *base*, or null
    seeds        (cases of second derivatives only) per input, a direction v_i
    seconds      (these only) per input, the gradient of sum_i <grads_i, v_i>;
                 their grads and seconds are those of output * output
"""

import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool}
FULL = ("float32", "float64")
ALL = ("float32", "float64", "float16", "bfloat16")


# ---- what an op means in PyTorch --------------------------------------------------------------------------------

def reduce(kind):
    def run(x, args):
        axes, keep = args["axes"], args["keepdim"]
        axes = list(range(x[0].dim())) if axes is None else axes
        return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "var": torch.var}[kind](x[0], dim=axes, keepdim=keep)
    return run


def pool(function):
    return lambda x, a: function(x[0], a["kernel"], a["stride"], a["padding"])


def batch_norm(x, a):
    running = [torch.tensor(a[name], dtype=x[0].dtype) if a[name] else None for name in ("mean", "variance")]
    weight, bias = x[1:] if len(x) == 3 else (None, None)
    return F.batch_norm(x[0], *running, weight, bias, a["training"], a["momentum"], a["eps"]), running


def unary(function):
    return lambda x, a: function(x[0])


OPS = {
    "add": lambda x, a: x[0] + x[1], "sub": lambda x, a: x[0] - x[1],
    "mul": lambda x, a: x[0] * x[1], "div": lambda x, a: x[0] / x[1],
    "maximum": lambda x, a: torch.maximum(x[0], x[1]),
    "add_scalar": lambda x, a: x[0] + a["s"], "sub_scalar": lambda x, a: x[0] - a["s"],
    "mul_scalar": lambda x, a: x[0] * a["s"], "div_scalar": lambda x, a: x[0] / a["s"],
    "pow": lambda x, a: x[0] ** a["s"],
    "exp": unary(torch.exp), "log": unary(torch.log), "sqrt": unary(torch.sqrt), "abs": unary(torch.abs),
    "neg": unary(torch.neg), "tanh": unary(torch.tanh), "sigmoid": unary(torch.sigmoid), "relu": unary(torch.relu),
    "sign": unary(torch.sign), "t": unary(torch.t),
    **{kind: reduce(kind) for kind in ("sum", "mean", "max", "min", "var")},
    "matmul": lambda x, a: x[0] @ x[1],
    "conv2d": lambda x, a: F.conv2d(x[0], x[1], x[2] if len(x) == 3 else None, a["stride"], a["padding"], a["dilation"], a["groups"]),
    "max_pool2d": pool(F.max_pool2d), "avg_pool2d": pool(F.avg_pool2d),
    "adaptive_avg_pool2d": lambda x, a: F.adaptive_avg_pool2d(x[0], a["size"]),
    "softmax": lambda x, a: F.softmax(x[0], a["dim"]), "log_softmax": lambda x, a: F.log_softmax(x[0], a["dim"]),
    "layer_norm": lambda x, a: F.layer_norm(x[0], a["normalized"], *(x[1:] + [None, None])[:2], a["eps"]),
    "batch_norm": lambda x, a: batch_norm(x, a)[0], "batch_norm_relu": lambda x, a: torch.relu(batch_norm(x, a)[0]),
    "batch_norm_running": lambda x, a: torch.stack(batch_norm(x, a)[1]),
    "nll_loss": lambda x, a: F.nll_loss(x[0], x[1], reduction=a["reduction"]),
    "cross_entropy": lambda x, a: F.cross_entropy(x[0], x[1], reduction=a["reduction"]),
    "mse_loss": lambda x, a: F.mse_loss(x[0], x[1], reduction=a["reduction"]),
    "reshape": lambda x, a: x[0].reshape(a["shape"]), "view": lambda x, a: x[0].view(a["shape"]),
    "permute": lambda x, a: x[0].permute(a["dims"]),
    "transpose": lambda x, a: x[0].transpose(*a["dims"]), "narrow": lambda x, a: x[0].narrow(a["dim"], a["start"], a["len"]),
    "slice": lambda x, a: strided(x[0], a["dim"], a["start"], a["end"], a["step"]),
    "select": lambda x, a: x[0].select(a["dim"], a["index"]),
    "squeeze": lambda x, a: x[0].squeeze(a["dim"]), "unsqueeze": lambda x, a: x[0].unsqueeze(a["dim"]),
    "expand": lambda x, a: x[0].expand(a["shape"]), "flatten": lambda x, a: x[0].flatten(a["start"], a["end"]),
    "contiguous": lambda x, a: x[0].contiguous(),
    "cat": lambda x, a: torch.cat(x, a["dim"]), "stack": lambda x, a: torch.stack(x, a["dim"]),
    "index_select": lambda x, a: x[0].index_select(a["dim"], x[1]), "gather": lambda x, a: x[0].gather(a["dim"], x[1]),
    "argmax": lambda x, a: x[0].argmax(a["dim"], keepdim=a["keepdim"]),
    "eq": lambda x, a: x[0] == x[1], "ne": lambda x, a: x[0] != x[1], "lt": lambda x, a: x[0] < x[1],
    "le": lambda x, a: x[0] <= x[1], "gt": lambda x, a: x[0] > x[1], "ge": lambda x, a: x[0] >= x[1],
    "cast": lambda x, a: x[0].to(DTYPES[a["to"]]),
    "cast_there_and_back": lambda x, a: x[0].to(DTYPES[a["to"]]).to(x[0].dtype),
}


def strided(x, dim, start, end, step):
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def view(x, steps):
    """Applies the steps that turn a stored base into the input proper."""
    for name, *arguments in steps:
        x = strided(x, *arguments) if name == "slice" else getattr(x, name)(*arguments)
    return x


# ---- writing a case ---------------------------------------------------------------------------------------------

class File:
    def __init__(self, name, seed):
        self.name, self.cases, self.tensors = name, [], {}
        self.random = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def positive(self, *shape):
        return torch.rand(shape, generator=self.random, dtype=torch.float64) * 2 + 0.3

    def labels(self, high, *shape):
        return torch.randint(high, shape, generator=self.random)

    def put(self, tensor):
        key = f"{len(self.tensors)}"
        self.tensors[key] = tensor.detach().clone().contiguous()
        return key

    def case(self, op, inputs, dtypes=FULL, gradient=True, second=False, **args):
        """`inputs`: tensors, or pairs (base, steps). f64 numbers are rounded to each of `dtypes`."""
        pairs = [x if isinstance(x, tuple) else (x, []) for x in inputs]
        for dtype in dtypes:
            self.one(op, pairs, dtype, gradient, second, args)

    def one(self, op, pairs, dtype, gradient, second, args):
        bases = [(b.to(DTYPES[dtype]) if b.is_floating_point() else b).clone() for b, _ in pairs]
        wanted = [i for i, b in enumerate(bases) if gradient and b.is_floating_point()]
        for i in wanted:
            bases[i].requires_grad_()
        inputs = [view(b, steps) for b, (_, steps) in zip(bases, pairs)]
        output = OPS[op](inputs, args)
        case = {"op": op, "args": args, "dtype": dtype, "output": self.put(output),
                "inputs": [{"tensor": self.put(b), "view": steps} for b, (_, steps) in zip(bases, pairs)]}
        if wanted:
            upstream = self.normal(*output.shape).to(output.dtype)
            target = output * output if second else output  # squared: also a linear op has second derivatives
            grads = torch.autograd.grad(target, [bases[i] for i in wanted], upstream, create_graph=second)
            case["grad_output"] = self.put(upstream)
            case["grads"] = self.per_input(len(bases), wanted, grads)
            if second:
                self.second(case, bases, wanted, grads)
        self.cases.append(case)

    def second(self, case, bases, wanted, grads):
        seeds = [self.normal(*g.shape).to(g.dtype) for g in grads]
        total = sum((g * v).sum() for g, v in zip(grads, seeds))
        seconds = torch.autograd.grad(total, [bases[i] for i in wanted])
        case["seeds"] = self.per_input(len(bases), wanted, seeds)
        case["seconds"] = self.per_input(len(bases), wanted, seconds)

    def per_input(self, count, wanted, tensors):
        keys = [None] * count
        for i, tensor in zip(wanted, tensors):
            keys[i] = self.put(tensor)
        return keys

    def save(self):
        path = os.path.join(HERE, f"{self.name}.safetensors")
        save_file(self.tensors, path, metadata={"cases": json.dumps(self.cases, separators=(",", ":"))})
        print(f"{self.name}: {len(self.cases)} cases, {os.path.getsize(path):,} bytes")


# ---- the cases --------------------------------------------------------------------------------------------------

SHAPES = [  # broadcasting pairs
    ((), ()), ((5,), (5,)), ((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)),
    ((1,), (2, 3)), ((), (2, 3)), ((2, 1, 3, 1), (4, 1, 5)), ((0, 3), (3,)),
]


def binary(f):
    for op in ("add", "sub", "mul", "div", "maximum"):
        for left, right in SHAPES:
            b = f.positive(*right) * (1 if op == "maximum" else torch.where(f.normal(*right) < 0, -1.0, 1.0))
            f.case(op, [f.normal(*left), b])
        transposed = (f.normal(4, 3), [["permute", [1, 0]]])
        f.case(op, [transposed, f.positive(3, 4)], dtypes=ALL)
        f.case(op, [f.normal(3, 4), (f.positive(3, 9), [["slice", 1, 1, 9, 2]])])
        f.case(op, [(f.normal(3, 1), [["expand", [2, 3, 4]]]), (f.positive(4, 3, 2), [["permute", [2, 1, 0]]])])
    f.case("maximum", [torch.tensor([1.0, 2.0, -3.0, 0.0]), torch.tensor([1.0, 1.0, -3.0, 5.0])])  # ties share
    f.case("maximum", [torch.tensor([math.nan, 1.0, -math.inf]), torch.tensor([0.0, math.nan, 2.0])], gradient=False)
    f.case("div", [torch.tensor([1.0, -1.0, 0.0]), torch.zeros(3)], gradient=False)
    for op in ("add_scalar", "sub_scalar", "mul_scalar", "div_scalar"):
        for s in (2.5, -0.125):
            f.case(op, [f.normal(3, 4)], dtypes=ALL, s=s)
        f.case(op, [(f.normal(2, 3, 4), [["permute", [2, 0, 1]]])], s=3.0)


def unaries(f):
    edge = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, 90.0, -90.0, 800.0, -800.0, 1.0, -1.0])
    for op in ("exp", "log", "sqrt", "abs", "neg", "tanh", "sigmoid", "relu"):
        make = f.positive if op in ("log", "sqrt") else f.normal
        f.case(op, [make()])
        f.case(op, [make(37)], dtypes=ALL)
        f.case(op, [make(0, 2)])
        f.case(op, [(make(3, 5), [["transpose", 0, 1]])])
        f.case(op, [(make(4, 9), [["slice", 0, 1, 4, 2], ["narrow", 1, 2, 5]])])
        f.case(op, [(make(2, 1, 3), [["expand", [2, 4, 3]]])])
        f.case(op, [edge], gradient=False)
    for op in ("abs", "relu"):
        f.case(op, [torch.tensor([-1.0, 0.0, 2.0])])  # the kink
    for s in (2.0, 3.0, 1.0, 0.0, -1.0):
        f.case("pow", [torch.where(f.normal(3, 4) < 0, -1.0, 1.0) * f.positive(3, 4)], s=s)
    for s in (0.5, -0.5, 2.7):
        f.case("pow", [f.positive(7)], dtypes=ALL, s=s)
        f.case("pow", [(f.positive(3, 4), [["permute", [1, 0]]])], s=s)
    f.case("pow", [torch.tensor([0.0, 1.0, 2.0])], s=2.0)
    f.case("pow", [torch.tensor([0.0, 1.0, -2.0])], s=0.0)
    f.case("pow", [torch.tensor([-2.0, 0.0, math.inf])], gradient=False, s=0.5)
    f.case("sign", [f.normal(3, 4)], dtypes=ALL)
    f.case("sign", [(f.normal(4, 3), [["transpose", 0, 1]])])
    f.case("sign", [edge], gradient=False)


def reductions(f):
    for op in ("sum", "mean", "max", "min", "var"):
        for shape, axes in [((6,), None), ((3, 4), None), ((3, 4), [0]), ((3, 4), [1]), ((3, 4), [-1]), ((2, 3, 4), [0, 2]),
                            ((2, 3, 4), [1]), ((2, 3, 4, 2), [1, 3]), ((2, 3, 4, 2), [-1, 0]), ((2, 3, 4, 2), [2, 3])]:
            for keepdim in (False, True):
                f.case(op, [f.normal(*shape)], axes=axes, keepdim=keepdim)
        for axes in (None, [0], [1, 2], [2]):
            f.case(op, [(f.normal(4, 3, 2), [["permute", [2, 0, 1]]])], axes=axes, keepdim=False)
        f.case(op, [(f.normal(6, 7), [["slice", 0, 0, 6, 2], ["slice", 1, 1, 7, 3]])], axes=[0], keepdim=False)
        f.case(op, [(f.normal(3, 1), [["expand", [3, 5]]])], axes=[1] if op == "var" else [0], keepdim=True)
        f.case(op, [f.normal(4, 33)], dtypes=("float16", "bfloat16"), axes=[1], keepdim=False)
    for op in ("sum", "mean", "max", "min"):
        f.case(op, [f.normal()], axes=None, keepdim=False)
    f.case("sum", [f.normal(0, 3)], axes=[0], keepdim=False)
    f.case("sum", [f.normal(1000)], axes=None, keepdim=False)
    for op in ("max", "min"):
        f.case(op, [torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])], axes=[1], keepdim=False)  # ties share
        f.case(op, [torch.tensor([[1.0, math.nan], [-math.inf, math.inf]])], gradient=False, axes=[1], keepdim=False)
    for shape, dim in [((5,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), -2), ((2, 3, 4), 2)]:
        for keepdim in (False, True):
            f.case("argmax", [f.normal(*shape)], gradient=False, dim=dim, keepdim=keepdim)
    f.case("argmax", [(f.normal(4, 3), [["permute", [1, 0]]])], gradient=False, dim=1, keepdim=False)
    f.case("argmax", [torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])], gradient=False, dim=1, keepdim=False)
    f.case("argmax", [torch.tensor([[1.0, math.nan, 3.0]])], gradient=False, dim=1, keepdim=False)


def matmuls(f):
    for left, right in [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((1, 1), (1, 1)), ((17, 19), (19, 13)),
                        ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
                        ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((0, 4), (4, 3)), ((3, 0), (0, 2))]:
        f.case("matmul", [f.normal(*left), f.normal(*right)])
    turned = [["transpose", -1, -2]]
    f.case("matmul", [(f.normal(4, 3), turned), f.normal(4, 5)], dtypes=ALL)
    f.case("matmul", [f.normal(3, 4), (f.normal(5, 4), turned)], dtypes=ALL)
    f.case("matmul", [(f.normal(4, 3), turned), (f.normal(5, 4), turned)])
    f.case("matmul", [(f.normal(2, 4, 3), turned), (f.normal(5, 4), turned)])
    f.case("matmul", [(f.normal(3, 9), [["slice", 1, 0, 8, 2]]), (f.normal(4, 7), [["slice", 1, 1, 7, 3]])])
    f.case("matmul", [(f.normal(1, 3, 4), [["expand", [3, 3, 4]]]), f.normal(3, 4, 2)])
    f.case("matmul", [(f.normal(3, 2, 4), [["permute", [1, 0, 2]]]), f.normal(2, 4, 2)])
    f.case("matmul", [(f.normal(4, 2), [["select", 1, 1]]), f.normal(4, 3)])
    f.case("matmul", [(f.normal(1), [["expand", [4]]]), f.normal(4, 3)])


def conv(f, x, weight, bias=False, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, dtypes=FULL, **more):
    out = (weight[0] if isinstance(weight, tuple) else weight).shape[0]
    inputs = [x, weight] + ([f.normal(out)] if bias else [])
    f.case("conv2d", inputs, dtypes=dtypes, stride=stride, padding=padding, dilation=dilation, groups=groups, **more)


def convolutions(f):
    n = f.normal
    conv(f, n(1, 1, 5, 5), n(1, 1, 3, 3))
    conv(f, n(2, 3, 6, 5), n(4, 3, 3, 2), bias=True)
    conv(f, n(2, 2, 7, 6), n(3, 2, 3, 3), bias=True, stride=(2, 1), padding=(1, 2), dtypes=ALL)
    conv(f, n(2, 1, 8, 8), n(4, 1, 3, 3), bias=True, stride=(2, 2), padding=(1, 1))
    conv(f, n(1, 2, 8, 9), n(2, 2, 3, 3), dilation=(2, 3), padding=(1, 0))
    conv(f, n(2, 4, 5, 5), n(6, 2, 3, 3), bias=True, groups=2, padding=(1, 1))
    conv(f, n(2, 3, 5, 5), n(6, 1, 3, 3), groups=3, stride=(2, 2))
    conv(f, n(1, 4, 9, 7), n(4, 2, 2, 3), bias=True, stride=(3, 2), padding=(2, 1), dilation=(2, 2), groups=2)
    conv(f, n(2, 3, 4, 4), n(5, 3, 1, 1), bias=True)
    conv(f, n(1, 2, 4, 5), n(3, 2, 4, 5))
    conv(f, n(1, 2, 7, 7), n(3, 2, 1, 1), stride=(3, 3))
    conv(f, (n(2, 6, 5, 3), [["permute", [0, 3, 1, 2]]]), n(4, 3, 3, 3), bias=True, padding=(1, 1))
    conv(f, (n(2, 2, 5, 9), [["slice", 3, 0, 9, 2]]), (n(3, 3, 2, 4), [["permute", [3, 2, 1, 0]]]))
    conv(f, (n(1, 2, 1, 5), [["expand", [2, 2, 4, 5]]]), n(2, 2, 2, 2), bias=True)


def pools(f):
    def distinct(*shape):  # no ties, and apart far enough for half precision
        count = math.prod(shape)
        return (torch.randperm(count, generator=f.random).double() / count * 8 - 4).reshape(shape)
    for kernel, stride, padding, size in [((2, 2), (2, 2), (0, 0), (6, 6)), ((3, 2), (1, 2), (1, 0), (5, 7)), ((3, 3), (2, 2), (1, 1), (7, 6)), ((4, 5), (1, 1), (0, 0), (4, 5)), ((1, 1), (2, 3), (0, 0), (5, 5))]:
        f.case("max_pool2d", [distinct(2, 3, *size)], kernel=kernel, stride=stride, padding=padding)
        f.case("avg_pool2d", [f.normal(2, 3, *size)], kernel=kernel, stride=stride, padding=padding)
    turned = [["permute", [0, 3, 1, 2]]]
    f.case("max_pool2d", [(distinct(2, 5, 6, 3), turned)], dtypes=ALL, kernel=(2, 3), stride=(2, 1), padding=(1, 1))
    f.case("avg_pool2d", [(f.normal(2, 5, 6, 3), turned)], dtypes=ALL, kernel=(2, 3), stride=(2, 1), padding=(1, 1))
    f.case("max_pool2d", [torch.zeros(1, 1, 4, 4)], kernel=(2, 2), stride=(2, 2), padding=(0, 0))  # ties: the first
    f.case("max_pool2d", [-1 - f.positive(1, 2, 3, 3)], kernel=(2, 2), stride=(2, 2), padding=(1, 1))  # padding is not 0
    for size, out in [((4, 4), (1, 1)), ((7, 5), (3, 2)), ((5, 6), (5, 6)), ((6, 4), (2, 2)), ((3, 2), (4, 5)), ((5, 7), (1, 3))]:
        f.case("adaptive_avg_pool2d", [f.normal(2, 3, *size)], size=out)
    f.case("adaptive_avg_pool2d", [(f.normal(2, 5, 6, 3), turned)], dtypes=ALL, size=(2, 4))


def losses(f):
    for op in ("softmax", "log_softmax"):
        for shape, dim in [((5,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -1), ((2, 3, 4), 1), ((4, 1), 1)]:
            f.case(op, [f.normal(*shape) * 3], dim=dim)
        f.case(op, [(f.normal(4, 3), [["permute", [1, 0]]])], dtypes=ALL, dim=1)
        f.case(op, [(f.normal(3, 8), [["slice", 1, 0, 8, 2]])], dim=1)
        f.case(op, [torch.tensor([[1000.0, 999.0, -1000.0], [-500.0, -500.0, -500.0]])], dim=1)
    for op in ("nll_loss", "cross_entropy"):
        make = (lambda *s: F.log_softmax(f.normal(*s), 1)) if op == "nll_loss" else f.normal
        for reduction in ("mean", "sum", "none"):
            f.case(op, [make(5, 4), f.labels(4, 5)], dtypes=ALL, reduction=reduction)
            f.case(op, [make(1, 10), f.labels(10, 1)], reduction=reduction)
            f.case(op, [(make(10, 6), [["permute", [1, 0]]]), f.labels(6, 6)], reduction=reduction)
            f.case(op, [(make(6, 4), [["slice", 0, 0, 6, 2]]), (f.labels(4, 6), [["slice", 0, 1, 6, 2]])], reduction=reduction)
    f.case("cross_entropy", [torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]), torch.tensor([1, 1])], reduction="mean")
    for reduction in ("mean", "sum", "none"):
        f.case("mse_loss", [f.normal(6), f.normal(6)], dtypes=ALL, reduction=reduction)
        f.case("mse_loss", [f.normal(3, 4), f.normal(3, 4)], reduction=reduction)
        f.case("mse_loss", [(f.normal(4, 3), [["permute", [1, 0]]]), (f.normal(3, 1), [["expand", [3, 4]]])], reduction=reduction)


def views(f):
    turned = (f.normal(4, 3, 2), [["permute", [2, 0, 1]]])
    for shape in ([6, 4], [-1], [2, -1, 3], [1, 24, 1]):
        f.case("reshape", [f.normal(2, 3, 4)], shape=shape)
        f.case("reshape", [turned], shape=shape)
    f.case("reshape", [f.normal()], shape=[1, 1])
    for shape, dims in [((2, 3), [1, 0]), ((2, 3, 4), [2, 0, 1]), ((2, 3, 4), [0, -1, 1]), ((2, 3, 4, 2), [3, 1, 0, 2])]:
        f.case("permute", [f.normal(*shape)], dims=dims)
    f.case("permute", [turned], dims=[1, 2, 0])
    for dims in ([0, 1], [-1, 0], [1, 1]):
        f.case("transpose", [f.normal(2, 3, 4)], dims=dims)
        f.case("transpose", [turned], dims=dims)
    for dim, start, length in [(0, 0, 1), (1, 1, 2), (-1, 2, 2), (2, 0, 4), (1, 3, 0)]:
        f.case("narrow", [f.normal(2, 3, 4)], dim=dim, start=start, len=length)
    f.case("narrow", [turned], dim=1, start=1, len=2)
    for dim, start, end, step in [(0, 0, 7, 2), (0, 1, 7, 3), (1, 0, 5, 1), (1, 2, 5, 2), (-1, 1, 4, 2), (0, 6, 7, 5)]:
        f.case("slice", [f.normal(7, 5)], dim=dim, start=start, end=end, step=step)
        f.case("slice", [(f.normal(5, 7), [["permute", [1, 0]]])], dim=dim, start=start, end=end, step=step)
    for dim, index in [(0, 0), (1, 2), (-1, 3), (2, -1)]:
        f.case("select", [f.normal(2, 3, 4)], dim=dim, index=index)
    f.case("select", [turned], dim=1, index=2)
    for shape, dim in [((1, 3), 0), ((3, 1, 2), 1), ((3, 2, 1), -1)]:
        f.case("squeeze", [f.normal(*shape)], dim=dim)
        f.case("unsqueeze", [f.normal(*shape)], dim=dim)
    f.case("squeeze", [(f.normal(4, 1, 3), [["permute", [2, 1, 0]]])], dim=1)
    f.case("unsqueeze", [turned], dim=-1)
    for shape, target in [((3, 1), [3, 4]), ((4,), [2, 3, 4]), ((1, 3, 1), [2, 3, 5]), ((), [2, 2]), ((2, 3), [2, 3])]:
        f.case("expand", [f.normal(*shape)], shape=target)
    f.case("expand", [(f.normal(3, 2, 1), [["permute", [1, 2, 0]]])], shape=[2, 4, 3])
    for start, end in [(0, -1), (1, 2), (0, 1), (1, -1), (2, 2)]:
        f.case("flatten", [f.normal(2, 3, 4)], start=start, end=end)
        f.case("flatten", [turned], start=start, end=end)
    for steps in ([["permute", [2, 0, 1]]], [["slice", 2, 0, 2, 2]], []):
        f.case("contiguous", [(f.normal(4, 3, 2), steps)], dtypes=ALL)
    f.case("view", [f.normal(2, 3, 4)], shape=[6, 4])
    f.case("view", [f.normal(2, 3, 4)], shape=[-1])
    f.case("view", [(f.normal(6, 4), [["slice", 0, 0, 6, 2]])], shape=[3, 2, 2])
    f.case("t", [f.normal(3, 4)])
    f.case("t", [(f.normal(3, 8), [["slice", 1, 0, 8, 3]])])


def joins(f):
    for dim in (0, 1, -1):
        parts = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
        f.case("stack", [f.normal(*s) for s in parts[:2]], dim=dim)
        for i, s in enumerate(parts):
            s[dim] = i + 1
        f.case("cat", [f.normal(*s) for s in parts], dim=dim)
    f.case("stack", [f.normal(), f.normal(), f.normal()], dim=0)
    f.case("cat", [f.normal(3)], dim=0)
    f.case("cat", [f.normal(0, 2), f.normal(3, 2)], dim=0)
    f.case("cat", [(f.normal(4, 2), [["permute", [1, 0]]]), f.normal(2, 3)], dtypes=ALL, dim=1)
    f.case("stack", [(f.normal(4, 2), [["permute", [1, 0]]]), (f.normal(2, 1), [["expand", [2, 4]]])], dtypes=ALL, dim=1)
    for dim, index in [(0, [1, 0, 1]), (1, [2, 2]), (-1, [3, 0, 1, 2, 0]), (0, [])]:
        f.case("index_select", [f.normal(2, 3, 4), torch.tensor(index, dtype=torch.int64)], dim=dim)
    f.case("index_select", [(f.normal(4, 3), [["permute", [1, 0]]]), (torch.tensor([2, 0, 1, 1]), [["slice", 0, 0, 4, 2]])], dtypes=ALL, dim=0)
    for dim, shape in [(0, (4, 3)), (1, (2, 5)), (-1, (2, 1))]:
        f.case("gather", [f.normal(2, 3), f.labels(2 if dim == 0 else 3, *shape)], dim=dim)
    f.case("gather", [f.normal(2, 3, 4), f.labels(3, 1, 2, 4)], dim=1)
    f.case("gather", [(f.normal(4, 3), [["permute", [1, 0]]]), (f.labels(4, 2, 3), [["permute", [1, 0]]])], dtypes=ALL, dim=1)
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        few = lambda *s: f.labels(3, *s).double()
        for left, right in [((6,), (6,)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 2))]:
            f.case(op, [few(*left), few(*right)], gradient=False)
        f.case(op, [(few(4, 3), [["permute", [1, 0]]]), few(3, 4)], dtypes=ALL, gradient=False)
        f.case(op, [torch.tensor([math.nan, 1.0, math.inf]), torch.tensor([math.nan, math.nan, math.inf])], gradient=False)
    for to in DTYPES:
        f.case("cast", [torch.tensor([0.0, 1.0, 2.6, 3.0, 100.0, 0.1])], dtypes=ALL, gradient=False, to=to)
        if to not in ("uint8", "bool"):
            f.case("cast", [(f.normal(3, 4) * 5, [["permute", [1, 0]]])], gradient=False, to=to)
    for to in ALL:
        f.case("cast_there_and_back", [f.normal(3, 4)], to=to)
        f.case("cast_there_and_back", [(f.normal(3, 4), [["permute", [1, 0]]])], to=to)


def normalizations(f):
    n, turned = f.normal, [["permute", [0, 3, 1, 2]]]
    for shape, normalized in [((3, 4), [4]), ((2, 3, 4), [3, 4]), ((5,), [5]), ((20, 17), [17]), ((2, 1), [1])]:
        for count in range(3):  # input, weight, bias
            f.case("layer_norm", [n(*shape) * 2 + 1] + [n(*normalized) for _ in range(count)], normalized=normalized, eps=1e-5)
    f.case("layer_norm", [n(2, 300) * 2 + 1, n(300), n(300)], normalized=[300], eps=1e-5)
    f.case("layer_norm", [(n(6, 3), [["permute", [1, 0]]]), n(6), n(6)], dtypes=ALL, normalized=[6], eps=1e-2)
    f.case("layer_norm", [(n(3, 16), [["slice", 1, 0, 16, 2]]), n(8), n(8)], dtypes=ALL, normalized=[8], eps=1e-5)
    f.case("layer_norm", [n(2, 3, 2), n(3, 2), n(3, 2)], second=True, normalized=[3, 2], eps=1e-3)
    f.case("layer_norm", [n(3, 4)], second=True, normalized=[4], eps=1e-3)

    def case(op, x, affine=True, training=True, running=False, momentum=0.1, **more):
        base, steps = x if isinstance(x, tuple) else (x, [])
        channels = view(base, steps).shape[1]
        running = running or not training
        mean, variance = (n(channels).tolist(), f.positive(channels).tolist()) if running else (None, None)
        f.case(op, [x] + ([n(channels), n(channels)] if affine else []), training=training, momentum=momentum, eps=1e-5,
               mean=mean, variance=variance, **more)
    for op in ("batch_norm", "batch_norm_relu"):
        for training in (True, False):
            for shape in ((2, 3, 4, 5), (6, 4), (3, 2, 7), (40, 9), (2, 2, 2, 3, 2)):
                case(op, n(*shape) * 2 + 1, training=training)
            case(op, n(3, 2, 3, 3), affine=False, training=training)
            case(op, (n(2, 4, 3, 8), turned), training=training, dtypes=ALL)  # channels last
            case(op, (n(2, 3, 4, 9), [["slice", 3, 0, 9, 2]]), training=training)
            case(op, n(2, 2, 2, 3), training=training, second=True)
        case(op, n(5, 3), affine=False, second=True)
        case(op, (n(2, 2, 3, 4), turned), second=True)
    for momentum in (0.1, 1.0):
        case("batch_norm_running", n(3, 4, 2, 2) * 3 + 2, running=True, gradient=False, momentum=momentum)
    case("batch_norm_running", (n(3, 2, 2, 4), turned), running=True, gradient=False)


def seconds(f):
    def case(op, *inputs, **args):
        f.case(op, list(inputs), second=True, **args)
    turned = [["permute", [1, 0]]]
    case("mul", f.normal(3, 4), f.normal(4))
    case("div", f.normal(3, 1), (f.positive(4, 3), turned))
    case("maximum", f.normal(3, 4), f.normal(3, 4))
    for op in ("exp", "tanh", "sigmoid", "relu", "abs"):
        case(op, (f.normal(4, 3), turned))
    for op in ("log", "sqrt"):
        case(op, f.positive(3, 4))
    for s in (3.0, -1.0, 0.5):
        case("pow", f.positive(5), s=s)
    for op in ("mean", "max", "var"):
        case(op, f.normal(2, 3, 4), axes=[0, 2], keepdim=False)
    case("matmul", f.normal(3, 4), f.normal(4, 2))
    case("matmul", f.normal(2, 3, 4), (f.normal(2, 4), turned))
    conv(f, f.normal(2, 2, 5, 6), f.normal(3, 2, 3, 2), bias=True, stride=(2, 1), padding=(1, 1), second=True)
    conv(f, f.normal(1, 4, 6, 5), f.normal(4, 2, 2, 2), dilation=(2, 1), groups=2, second=True)
    case("max_pool2d", f.normal(1, 2, 5, 5), kernel=(2, 2), stride=(2, 2), padding=(1, 1))
    case("avg_pool2d", f.normal(1, 2, 5, 5), kernel=(2, 2), stride=(2, 2), padding=(1, 1))
    case("adaptive_avg_pool2d", f.normal(1, 2, 5, 7), size=(2, 3))
    for op in ("softmax", "log_softmax"):
        case(op, (f.normal(4, 3), turned), dim=1)
        case(op, f.normal(2, 3, 4), dim=1)
    for reduction in ("mean", "none"):
        case("cross_entropy", f.normal(4, 3), f.labels(3, 4), reduction=reduction)
        case("nll_loss", f.normal(4, 3), f.labels(3, 4), reduction=reduction)
        case("mse_loss", f.normal(4, 3), f.normal(4, 3), reduction=reduction)
    case("gather", f.normal(2, 3), f.labels(3, 2, 4), dim=1)
    case("index_select", f.normal(3, 2), torch.tensor([2, 0, 2]), dim=0)


FILES = [binary, unaries, reductions, matmuls, convolutions, pools, losses, views, joins, seconds, normalizations]

if __name__ == "__main__":
    for seed, fill in enumerate(FILES):
        file = File(fill.__name__, seed)
        fill(file)
        file.save()
