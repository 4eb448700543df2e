#!/usr/bin/env python3
"""Mixed-precision training beside PyTorch's autocast: the same operations in the same precision, and losses as close to
PyTorch's as PyTorch's own are to each other when it sums in another order.

    cargo bench -p pagelock-tensor --bench autocast --no-run        # prints the path of PROGRAM
    python autocast.py PROGRAM                                      # on the CPU, in bfloat16
    python autocast.py PROGRAM --device cuda --half bfloat16 float16

Makes weights and batches from a seed, trains a small CNN and an MLP for 200 steps with PROGRAM (`autocast.rs`, which has
the same models) and with PyTorch, once as it is and RUNS times with the samples of every batch, the inputs and the hidden
units in another order, which changes nothing but the order of sums. Fails if an operation or a precision differs, or if our
losses are farther from PyTorch's, at the worst of the steps, than two of PyTorch's own runs are from each other. (In the first
steps PyTorch's runs are the same to a few bits: its kernels do not depend on the order of samples and units.)

PyTorch's lists for the CPU are shorter than those for CUDA: there a layer norm stays half. Ours are CUDA's on every device,
so the MLP asks PyTorch's CPU for a layer norm of `float32`, as CUDA's autocast computes it. And PyTorch's cross_entropy asks
log_softmax for the precision of the logits, which autocast leaves alone: the losses of rows are rounded to half. Ours are
`float32`, as autocast's list has it for losses, so PyTorch gets logits of `float32` here.

PyTorch's operations are seen by a TorchDispatchMode, which has them below autocast: with the casts made. Needs torch,
numpy and safetensors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

STEPS, BATCH, LEARNING_RATE, SCALE, CLASSES, RUNS = 200, 64, 0.05, 1024.0, 10, 8

# What an operation of PyTorch's is called here; all others move, convert or make numbers.
NAMES = {
    "addmm": "linear", "mm": "linear", "linear": "linear", "convolution": "conv2d", "mkldnn_convolution": "conv2d",
    "cudnn_convolution": "conv2d", "relu": "relu", "tanh": "tanh", "native_layer_norm": "layer_norm",
    "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "batch_norm_impl_index": "batch_norm", "miopen_batch_norm": "batch_norm", "max_pool2d_with_indices": "max_pool2d",
    "avg_pool2d": "avg_pool2d", "nll_loss_forward": "cross_entropy",
}


class Operations(TorchDispatchMode):
    """[name, precision of the result] of the operations that compute."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        first = result[0] if isinstance(result, (tuple, list)) else result
        if name in NAMES:
            self.seen.append([NAMES[name], str(first.dtype).removeprefix("torch.")])
        return result


def mlp(x, p, note):
    h = note(F.linear(x, p[0], p[1]))
    h = note(torch.tanh(h))
    h = note(F.layer_norm(h if h.is_cuda else h.float(), h.shape[1:], p[2], p[3]))
    h = note(F.linear(h, p[4], p[5]))
    h = note(torch.relu(h))
    return note(F.linear(h, p[6], p[7]))


def cnn(x, p, note):
    h = note(F.conv2d(x, p[0], p[1], padding=1))
    h = note(torch.relu(h))
    h = note(F.max_pool2d(h, 2))
    h = note(F.conv2d(h, p[2], p[3], padding=1))
    h = note(F.batch_norm(h, None, None, p[4], p[5], training=True))
    h = note(torch.relu(h))
    h = note(F.avg_pool2d(h, 2))
    h = note(h.flatten(1), moves=True)
    return note(F.linear(h, p[6], p[7]))


def weight(random, *shape):
    fan_in = torch.Size(shape[1:]).numel()
    return (torch.rand(shape, generator=random) * 2 - 1) / fan_in**0.5


def made(seed):
    """For each model: samples, which are noise around the center of their class, labels and parameters."""
    random = torch.Generator().manual_seed(seed)
    models = {}
    for name, shape in {"mlp": (32,), "cnn": (3, 12, 12)}.items():
        labels = torch.randint(CLASSES, (16 * BATCH,), generator=random)
        centers = torch.randn(CLASSES, *shape, generator=random)
        x = 0.4 * centers[labels] + torch.randn(len(labels), *shape, generator=random)
        w = lambda *shape: weight(random, *shape)
        if name == "mlp":
            parameters = [w(64, 32), w(64, 32)[:, 0], torch.ones(64), torch.zeros(64), w(48, 64), w(48, 64)[:, 0],
                          w(CLASSES, 48), w(CLASSES, 48)[:, 0]]
        else:
            parameters = [w(8, 3, 3, 3), w(8, 27)[:, 0], w(16, 8, 3, 3), w(16, 72)[:, 0], torch.ones(16), torch.zeros(16),
                          w(CLASSES, 16 * 9), w(CLASSES, 144)[:, 0]]
        models[name] = (x, labels, [parameter.contiguous() for parameter in parameters])
    return models


def reordered(name, x, labels, p, seed):
    """The same model and batches with samples, inputs and hidden units in another order."""
    random = torch.Generator().manual_seed(seed)
    order = lambda n: torch.randperm(n, generator=random)
    samples = torch.cat([start + order(BATCH) for start in range(0, len(x), BATCH)])
    x, labels = x[samples], labels[samples]
    inputs, first, second = order(p[0].shape[1]), order(p[0].shape[0]), order(p[4 if name == "mlp" else 2].shape[0])
    x = x[:, inputs]
    if name == "mlp":
        p = [p[0][first][:, inputs], p[1][first], p[2][first], p[3][first], p[4][second][:, first], p[5][second],
             p[6][:, second], p[7]]
    else:
        last = p[6].reshape(CLASSES, len(second), -1)[:, second].flatten(1)
        p = [p[0][first][:, inputs], p[1][first], p[2][second][:, first], p[3][second], p[4][second], p[5][second], last, p[7]]
    return x, labels, [parameter.contiguous() for parameter in p]


def train(model, x, labels, parameters, device, half):
    x, labels = x.to(device), labels.to(device)
    p = [parameter.to(device).clone().requires_grad_() for parameter in parameters]
    losses, found = [], None
    for step in range(STEPS):
        start = step % (len(x) // BATCH) * BATCH
        results, watch = [], Operations()

        def note(result, moves=False):
            result.retain_grad()
            results.append((result, moves))
            return result

        with watch, torch.autocast(device, dtype=half):
            logits = model(x[start:start + BATCH], p, note)
            loss = note(F.cross_entropy(logits.float(), labels[start:start + BATCH]))
        (loss * SCALE).backward()
        if step == 0:
            found = named(watch.seen, results)
        with torch.no_grad():
            for parameter in p:
                assert parameter.grad.dtype == parameter.dtype
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE / SCALE)
                parameter.grad = None
        losses.append(loss.item())
    return losses, found


def named(seen, results):
    """[name, precision of the result, precision of its gradient] of every result; views are no operations below autocast."""
    seen, name = list(seen), lambda dtype: str(dtype).removeprefix("torch.")
    operations = []
    for result, moves in results:
        operation, computed = ["flatten", name(result.dtype)] if moves else seen.pop(0)
        if computed != name(result.dtype):
            sys.exit(f"{operation} was computed in {computed}, but gave {result.dtype}")
        operations.append([operation, computed, name(result.grad.dtype)])
    if seen:
        sys.exit(f"operations without a result of the model: {seen}")
    return operations


def distance(left, right):
    return [abs(a - b) for a, b in zip(left, right)]


def compared(name, ours, theirs, others):
    """Prints one model's figures; whether all holds. `others` are the losses of PyTorch's other runs."""
    losses, operations = theirs
    same = ours["operations"] == operations
    for mine, other in zip(ours["operations"], operations):
        print(f"  {'  ' if mine == other else '! '}{mine[0]:14} {mine[1]:9} gradient {mine[2]:9}"
              + ("" if mine == other else f" PyTorch: {other}"))
    off, runs = distance(ours["losses"], losses), [losses, *others]
    spread = [max(step) - min(step) for step in zip(*runs)]  # of the two runs that are farthest apart
    apart = [sum(distance(a, b)) / STEPS for i, a in enumerate(runs) for b in runs[:i]]
    print(f"  {name}: loss {losses[0]:.4f} to {losses[-1]:.4f} (ours {ours['losses'][-1]:.4f}); at most apart: ours and "
          f"PyTorch's {max(off):.2e}, two of its runs {max(spread):.2e}; on average {sum(off) / STEPS:.2e} and "
          f"{sum(apart) / len(apart):.2e}")
    return same and max(off) <= max(spread)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="autocast.rs, built")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--half", nargs="+", choices=["bfloat16", "float16"], default=["bfloat16"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(2)
    models, good = made(args.seed), True
    with tempfile.TemporaryDirectory() as folder:
        inputs, output = Path(folder) / "inputs.safetensors", Path(folder) / "output.json"
        tensors = {}
        for name, (x, labels, parameters) in models.items():
            tensors |= {f"{name}.x": x, f"{name}.labels": labels}
            tensors |= {f"{name}.parameter.{i}": parameter for i, parameter in enumerate(parameters)}
        save_file(tensors, inputs)
        for half in args.half:
            print(f"{args.device}, {half}, PyTorch {torch.__version__}")
            subprocess.run([args.program, inputs, output, args.device, half], check=True)
            ours, dtype = json.loads(output.read_text()), getattr(torch, half)
            for name, (x, labels, parameters) in models.items():
                model = {"mlp": mlp, "cnn": cnn}[name]
                theirs = train(model, x, labels, parameters, args.device, dtype)
                others = [train(model, *reordered(name, x, labels, parameters, seed), args.device, dtype)[0]
                          for seed in range(1, RUNS + 1)]
                good &= compared(name, ours[name], theirs, others)
    sys.exit(0 if good else "operations, precisions or losses differ")


if __name__ == "__main__":
    main()
