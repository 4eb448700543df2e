"""Writes printing.json: tensors, and how PyTorch prints them. Run it where PyTorch is installed, with no arguments.

Two things differ from PyTorch on purpose and are changed here: `dtype=torch.float64` is `dtype=float64`, and
`grad_fn=<MulBackward0>` is `grad_fn=<mul>`.
"""

import json
import math
import pathlib
import random
import re

import torch

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
cases = []


def as_we_print(text):
    text = text.replace("dtype=torch.", "dtype=")
    return re.sub(r"grad_fn=<(\w+)Backward\d>", lambda name: f"grad_fn=<{name[1].lower()}>", text)


def case(name, tensor, **how):
    """`how` says how a test makes the tensor; without it, from its values."""
    made = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if not how:
        values = tensor.detach().flatten().tolist()
        how = {"values": [v if math.isfinite(v) else str(v) for v in values]}
    cases.append({**made, **how, "text": as_we_print(str(tensor))})


def of(values, dtype="float32"):
    return torch.tensor(values, dtype=getattr(torch, dtype))


nan, inf = math.nan, math.inf
case("whole floats", of([[1, 2], [3, 4]]))
case("fractions", of([[1, -2.5], [3, 4]]))
case("halves round to even", of([0.03125, 0.09375, 1.03125]))
case("a scalar", of(3.14159265))
case("a whole scalar", of(3))
case("zeros", of([0, 0]))
case("minus zero", of([-0.0, 1.0]))
case("a large and a small number", of([1e-3, 10.0]))
case("just not scientific", of([0.0999, 99.9]))
case("a tiny number", of([9e-5]))
case("a huge whole number", of([2e8]))
case("a large whole number", of([1e8]))
case("scientific whole numbers", of([1.0, 2000.0, -30000.0]))
case("exponents of three digits", of([1e-200, 1e200, 0.0], "float64"))
case("infinities", of([inf, -inf, nan]))
case("infinities among whole numbers", of([1, inf, -20, nan]))
case("infinities among fractions", of([1.5, inf, nan, -inf]))
case("infinities among scientific numbers", of([1.5e9, inf, nan, 0.0]))
case("booleans", of([[True, False], [False, False]], "bool"))
case("a boolean", of(True, "bool"))
for dtype in DTYPES:
    case(f"numbers of {dtype}", of([[0, 1, 1], [1, 0, 1]], dtype))
    case(f"a scalar of {dtype}", of(1, dtype))
    case(f"nothing of {dtype}", of([], dtype))
    case(f"no rows of {dtype}", torch.zeros(0, 3, dtype=getattr(torch, dtype)))
case("no columns", torch.zeros(3, 0))
case("nothing in three dimensions", torch.zeros(2, 0, 3))
case("integers of different lengths", of([-5, 1234, 7], "int64"))
case("three dimensions", torch.arange(24.0).reshape(2, 3, 4))
case("four dimensions", torch.arange(16).reshape(2, 2, 2, 2))
case("a row of 1000", torch.arange(1000), arange=1000)
case("a row of 1001", torch.arange(1001), arange=1001)
case("a long row of floats", torch.arange(100.0) / 8)
case("a matrix wider than a line", (torch.arange(60.0) / 7).reshape(2, 30))
case("an abbreviated row", torch.arange(5000.0), arange=5000)
case("an abbreviated matrix", torch.arange(10000.0).reshape(100, 100), arange=10000)
case("an abbreviated wide matrix", torch.arange(2000.0).reshape(2, 1000), arange=2000)
case("an abbreviated tall matrix", torch.arange(2000).reshape(1000, 2), arange=2000)
case("an abbreviated tensor", torch.arange(8000, dtype=torch.float64).reshape(10, 20, 40), arange=8000)
case("six of a dimension are not abbreviated", torch.arange(1200).reshape(6, 200), arange=1200)
case("five dimensions", torch.arange(1080, dtype=torch.int32).reshape(2, 3, 4, 5, 9), arange=1080)

case("a leaf", of([1.0, 2.5]).requires_grad_(), values=[1.0, 2.5], grad="leaf")
product = of([1.0, 2.5]).requires_grad_() * of([1.0, 1.0])
case("a product", product, values=[1.0, 2.5], grad="product")
for n, dtype in [(4, "float32"), (5, "float32"), (6, "float32"), (7, "float32"), (5, "float64"), (9, "float64")]:
    row = of([i + 0.25 for i in range(n)], dtype)  # around the width at which a suffix goes to a line of its own
    case(f"a {dtype} leaf of {n}", row.requires_grad_(), values=row.tolist(), grad="leaf")

random.seed(0)
for i in range(40):
    shape = [random.randint(1, 5) for _ in range(random.randint(0, 3))]
    spread = random.choice([1.0, 1.0, 30.0, 1e5])
    low = random.choice([0.0, -1.0])
    numbers = torch.rand(shape, dtype=torch.float64, generator=torch.manual_seed(i)) * (1 - low) + low
    numbers = numbers * spread if i % 3 else (numbers * spread).round()
    if random.random() < 0.2 and numbers.dim() > 0:
        numbers[0] = random.choice([nan, inf, 0.0])
    dtype = random.choice(DTYPES[:4])
    case(f"random {i}", numbers.to(getattr(torch, dtype)))

path = pathlib.Path(__file__).with_suffix(".json")
lines = ",\n".join(json.dumps(case) for case in cases)
path.write_text(f"[\n{lines}\n]\n")
print(f"{len(cases)} cases in {path}")
