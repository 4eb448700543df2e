"""PyTorch's half of `cargo bench --bench ops`, which starts it: answers each line of JSON with another.

{"torch", "dtype", "pass", "sample"} makes ready: {"lacks": why PyTorch cannot do it, or null}
{"turn": milliseconds} calls as often as fits: {"least": milliseconds of the fastest call}
"""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent.parent / "crates/tensor/operations"))
import in_torch


def prepared(question):
    """A function without arguments, to be timed."""
    dtype, sample = getattr(torch, question["dtype"]), question["sample"]
    bases = [in_torch.base(spec, dtype, seed) for seed, spec in enumerate(sample["inputs"])]
    inputs = [in_torch.view_of(x, spec["view"]) for x, spec in zip(bases, sample["inputs"])]
    run = in_torch.function(question["torch"], sample["args"], dtype)
    if question["pass"] == "forward":
        call = lambda: run(inputs)
        with torch.no_grad():
            call()
        return call
    inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    of = [x for x in inputs if x.requires_grad]
    output = run(inputs)
    gradient = torch.ones_like(output)
    call = lambda: torch.autograd.grad(output, of, gradient, retain_graph=True, allow_unused=True)
    call()
    return call


def least(call, milliseconds, backward):
    is_cpu = torch.get_default_device().type == "cpu"
    wait, queued = (lambda: None, 1) if is_cpu else (torch.cuda.synchronize, 5)  # as in `ops.rs`
    best, calls, began = float("inf"), 0, time.perf_counter()
    with torch.set_grad_enabled(backward):
        call()
        wait()
        while calls < 3 or time.perf_counter() - began < 1e-3 * milliseconds:
            before = time.perf_counter()
            for _ in range(queued):
                call()
            wait()
            best = min(best, (time.perf_counter() - before) / queued)
            calls += 1
    return 1e3 * best


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_default_device(sys.argv[2])
    if sys.argv[2] != "cpu":
        torch.set_float32_matmul_precision("high")  # as its convolutions are
    call, backward = None, False
    for line in sys.stdin:
        question = json.loads(line)
        if "turn" in question:
            answer = {"least": least(call, question["turn"], backward)}
        else:
            backward = question["pass"] == "backward"
            try:
                call, answer = prepared(question), {"lacks": None}
            except Exception as lacks:  # whatever PyTorch says, its half of the row is missing
                call, answer = None, {"lacks": str(lacks).splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
