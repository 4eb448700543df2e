"""Writes the golden files that `tests/golden.rs` compares with: PyTorch's results for the table of operations.

    cargo test -p pagelock-tensor --test table      # writes target/tmp/operations.json
    python make.py ../../../../target/tmp/operations.json [--all]

Entries that are as they were are kept, because PyTorch's versions differ in a few results; `--all` computes them anew. Needs torch
and safetensors, nothing else. A file's metadata has for every operation the hash of the entry
that it was made from, and what PyTorch lacks. `NAME/SAMPLE/DTYPE/` begins the names of a sample's tensors:

    output    the result
    grad.I    the gradient of the I-th input (of its base, if it is a view), for an upstream gradient of `spread`
              (in `special`: of few bits, see `pattern_like`)
    second.I  (float64) the derivative of the derivative: the gradient of sum_i <g_i, v_i>, where g_i are the gradients of
              output * output and v_i are `spread`

`special.safetensors` has inputs at the edges of each type, and the same computed in float64, as `exact.output` and
`exact.grad.I`. `arange.json` has the lengths of ranges.
"""

import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "operations"))
from in_torch import base, function, spread, view_of

torch.set_num_threads(1)
UPSTREAM, DIRECTION = 10, 20  # seeds


def numbers_like(x, seed):
    return spread(x.numel(), seed).reshape(x.shape).to(x.dtype)


def pattern_like(x):
    """Numbers of few bits, which products with them keep exact."""
    pattern = torch.tensor([1.0, -0.5, 3.0, 2.0, -1.5, 0.25, -4.0], dtype=torch.float64)
    return pattern.repeat(x.numel() // 7 + 1)[:x.numel()].reshape(x.shape).to(x.dtype)


class File:
    def __init__(self, name, entries, keeps):
        """`entries`: what the file will have. Of the file that is there, those that did not change are kept."""
        self.name, self.tensors, self.lacks = name, {}, []
        self.path = os.path.join(HERE, f"{name}.safetensors")
        self.new = entries
        if keeps and os.path.exists(self.path):
            with safe_open(self.path, "pt") as old:
                metadata = old.metadata()
                kept = {entry["name"] for entry in entries if metadata.get(entry["name"]) == entry["hash"]}
                self.tensors = {key: old.get_tensor(key) for key in old.keys() if key.split("/")[0] in kept}
            self.lacks = [key for key in json.loads(metadata["lacks"]) if key.split("/")[0] in kept]
            self.new = [entry for entry in entries if entry["name"] not in kept]

    def put(self, key, tensor):
        self.tensors[key] = tensor.detach().clone().contiguous()

    def case(self, key, entry, sample, dtype, compute=None):
        """`compute`: the type to compute in, if it is another one."""
        bases = [base(spec, dtype, seed) for seed, spec in enumerate(sample["inputs"])]
        bases = [x.to(compute) if compute and x.is_floating_point() else x for x in bases]
        wanted = [i for i, x in enumerate(bases) if sample["gradients"] and x.is_floating_point()]
        for i in wanted:
            bases[i].requires_grad_()
        inputs = [view_of(x, spec["view"]) for x, spec in zip(bases, sample["inputs"])]
        output = function(entry["torch"], sample["args"], compute or dtype)(inputs)
        if output.is_floating_point():
            output = output.to(compute) if compute else output
        self.put(f"{key}output", output)
        targets = [bases[i] for i in wanted]
        if not wanted or not output.requires_grad:
            return
        upstream = numbers_like(output, UPSTREAM) if self.name == "values" else pattern_like(output)
        grads = torch.autograd.grad(output, targets, upstream, retain_graph=True, allow_unused=True)
        for i, x, grad in zip(wanted, targets, grads):
            self.put(f"{key}grad.{i}", torch.zeros_like(x) if grad is None else grad)
        if dtype == torch.float64 and compute is None and self.name == "values":
            self.seconds(key, wanted, targets, output, upstream)

    def seconds(self, key, wanted, targets, output, upstream):
        grads = torch.autograd.grad(output * output, targets, upstream, create_graph=True)
        if not any(grad.requires_grad for grad in grads):
            return
        total = sum((g * numbers_like(g, DIRECTION)).sum() for g in grads)
        seconds = torch.autograd.grad(total, targets, allow_unused=True)
        for i, x, second in zip(wanted, targets, seconds):
            self.put(f"{key}second.{i}", torch.zeros_like(x) if second is None else second)

    def save(self, entries):
        metadata = {entry["name"]: entry["hash"] for entry in entries}
        save_file(self.tensors, self.path, metadata=metadata | {"lacks": json.dumps(self.lacks)})
        names = [entry["name"] for entry in self.new]
        print(f"{self.name}: {len(self.tensors)} tensors, {os.path.getsize(self.path):,} bytes; new: {names}; lacks {self.lacks}")


def values(entries, keeps):
    file = File("values", entries, keeps)
    for entry in file.new:
        for number, sample in enumerate(entry["samples"]):
            for name in sample["dtypes"]:
                key = f"{entry['name']}/{number}/{name}/"
                try:
                    file.case(key, entry, sample, getattr(torch, name))
                except (NotImplementedError, RuntimeError) as lacks:
                    print(key, str(lacks).splitlines()[0])
                    file.lacks.append(key)
    return file


def special(entries, keeps):
    file = File("special", entries, keeps)
    for entry in file.new:
        for number, sample in enumerate(entry["special"]):
            [name] = sample["dtypes"]
            key = f"{entry['name']}/{number}/{name}/"
            file.case(key, entry, sample, getattr(torch, name))
            # A conversion to a narrower type has no other result in float64.
            file.case(f"{key}exact.", entry, sample, getattr(torch, name), torch.float64)
    return file


def ranges():
    """[type, start, end, step, how many numbers, the last of them] of random decimals and of those that go up evenly."""
    random, cases = torch.Generator().manual_seed(7), []
    def number(digits, high):
        return round(torch.rand((), generator=random, dtype=torch.float64).item() * high, digits)
    for dtype in ("float32", "float64", "float16", "bfloat16"):
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
            found = torch.arange(start, end, step, dtype=getattr(torch, dtype))
            cases.append([dtype, repr(start), repr(end), repr(step), len(found), found[-1].item() if len(found) else 0.0])
    cases.append(["float32", "0.0", "0.3", "0.1", 3, torch.arange(0, 0.3, 0.1)[-1].item()])
    lines = ",\n".join(json.dumps(case) for case in cases)
    with open(os.path.join(HERE, "arange.json"), "w") as file:
        file.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    with open(sys.argv[1]) as table:
        entries = json.load(table)
    for write in (values, special):
        write(entries, "--all" not in sys.argv).save(entries)
    ranges()
