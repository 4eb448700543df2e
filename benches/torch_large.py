"""PyTorch's half of `cargo bench --bench large`: large work on one GPU, milliseconds of a call.

Prints one JSON object; the names are those of `benches/large`. Convolutions are timed in PyTorch's own layout (NCHW), as
the tensors of the other half are, with `cudnn.benchmark` on; rows that end in `channels_last` are extra.

    python benches/torch_large.py > torch.json
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F

ROUNDS, CALLS = 12, 5


def milliseconds(call):
    """The median of rounds, by the device's clock."""
    rounds = []
    for round in range(ROUNDS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        if round >= 3:
            rounds.append(start.elapsed_time(end) / CALLS)
    return statistics.median(rounds)


def precision(tf32):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


NUMBERS = {
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
}


def products(times):
    for n in (4096, 8192):
        for name, (dtype, tf32) in NUMBERS.items():
            precision(tf32)
            a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in "ab")
            times[f"gemm {n} {name}"] = milliseconds(lambda: a @ b)
    x, weight = (torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16) for n in (8192, 4096))
    bias = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    times["linear 8192x4096 to 4096 bfloat16"] = milliseconds(lambda: F.linear(x, weight, bias))
    a, b = (torch.randn(64, 1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    times["64 products of 1024 bfloat16"] = milliseconds(lambda: a @ b)


def convolutions(times):
    torch.backends.cudnn.benchmark = True
    for channels, side in ((64, 32), (128, 16), (256, 8), (512, 4)):
        for name in ("float32", "tf32", "bfloat16"):
            dtype, tf32 = NUMBERS[name]
            precision(tf32)
            for suffix, layout in (("", torch.contiguous_format), (" channels_last", torch.channels_last)):
                image = torch.randn(256, channels, side, side, device="cuda", dtype=dtype)
                weight = torch.randn(channels, channels, 3, 3, device="cuda", dtype=dtype)
                image, weight = (x.to(memory_format=layout).requires_grad_() for x in (image, weight))
                result = F.conv2d(image, weight, padding=1)
                gradient = torch.randn_like(result)
                row = f"conv3x3 {channels} {name} "
                with torch.no_grad():
                    times[row + "forward" + suffix] = milliseconds(lambda: F.conv2d(image, weight, padding=1))
                for what, wanted in (("image grad", image), ("weight grad", weight)):
                    mask = [wanted is image, wanted is weight, False]
                    backward = lambda: torch.ops.aten.convolution_backward(
                        gradient, image.detach(), weight.detach(), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
                    )
                    times[row + what + suffix] = milliseconds(backward)


if __name__ == "__main__":
    times = {}
    for measure in (products, convolutions):
        measure(times)
    json.dump(times, sys.stdout, indent=1)
