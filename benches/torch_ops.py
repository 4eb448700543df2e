"""PyTorch's half of `compare_torch.py ops`: single operations on the CPU, seconds per call.

Prints one JSON object. The operations and their names are those of `ops.rs`.

    python benches/torch_ops.py --threads 1 --repeats 20
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

N = 10_000_000


def operations():
    """`{name: function without arguments}`; inputs are made here, outside the time."""
    torch.manual_seed(0)
    a, b, out = torch.randn(N), torch.randn(N), torch.zeros(N)
    rows = a.view(1000, 10_000)
    small, large = torch.randn(512, 512), torch.randn(1024, 1024)
    batch, classes = torch.randn(64, 784), torch.randn(10, 784)
    image, kernel = torch.randn(64, 16, 14, 14), torch.randn(16, 16, 3, 3)
    return {
        "matmul 512": lambda: small @ small,
        "matmul 1024": lambda: large @ large,
        "linear 64x784 to 10": lambda: batch @ classes.T,
        "conv2d 16 to 16, 14x14, stride 2, batch 64": lambda: F.conv2d(image, kernel, stride=2, padding=1),
        "add 10 M": lambda: a + b,
        "relu 10 M": lambda: a.relu(),
        "exp 10 M": lambda: a.exp(),
        "sum 10 M": lambda: a.sum(),
        "sum of 1000 rows of 10,000": lambda: rows.sum(-1),
        "sum of 10,000 columns of 1000": lambda: rows.sum(0),
        "copy 10 M": lambda: out.copy_(a),
    }


def seconds_of(operation, repeats):
    """Seconds of each call, after some that warm up."""
    for _ in range(3):
        operation()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        operation()
        seconds.append(time.perf_counter() - began)
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    with torch.no_grad():
        seconds = {name: seconds_of(operation, args.repeats) for name, operation in operations().items()}
    print(json.dumps({"program": f"PyTorch {torch.__version__}", "threads": args.threads, "seconds": seconds}))


if __name__ == "__main__":
    main()
