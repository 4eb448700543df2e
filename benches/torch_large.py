"""PyTorch's half of `cargo bench --bench large`: large work on one GPU, milliseconds of a call.

Prints one JSON object; the names are those of `benches/large`. Convolutions are timed in PyTorch's own layout (NCHW), as
the tensors of the other half are, with `cudnn.benchmark` on; rows that end in `channels_last` are extra.

    python benches/torch_large.py > torch.json
    python benches/torch_large.py --limits    # the convolutions of `--bench large -- --limits`, with a fixed order of sums
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


# Batch, channels in and out, side, kernel; stride, dilation, groups.
LIMITS = [
    ((64, 1, 16, 28, 3), 2, 1, 1),
    ((64, 16, 16, 14, 3), 2, 1, 1),
    ((64, 6, 16, 14, 5), 1, 1, 1),
    ((128, 3, 64, 32, 3), 1, 1, 1),
    ((128, 16, 16, 32, 3), 1, 1, 1),
    ((128, 32, 64, 16, 3), 2, 1, 1),
    ((128, 64, 64, 8, 3), 1, 1, 1),
    ((64, 24, 144, 28, 1), 1, 1, 1),
    ((32, 3, 64, 224, 7), 2, 1, 1),
    ((32, 3, 64, 224, 3), 1, 1, 1),
    ((64, 64, 128, 32, 4), 2, 1, 1),
    ((4, 16, 32, 128, 3), 1, 1, 1),
    ((32, 32, 32, 14, 3), 1, 2, 1),
    ((1, 16, 16, 64, 3), 1, 1, 1),
    ((1, 64, 64, 56, 3), 1, 1, 1),
    ((1, 512, 512, 7, 3), 1, 1, 1),
    ((1, 256, 64, 56, 1), 1, 1, 1),
    ((32, 144, 144, 56, 3), 1, 1, 144),
    ((32, 960, 960, 7, 3), 1, 1, 960),
    ((4, 8, 8, 14, 3), 1, 1, 8),
    ((32, 256, 256, 28, 3), 1, 1, 32),
]


def limits():
    torch.backends.cudnn.deterministic = True
    for (batch, ins, outs, side, kernel), stride, dilation, groups in LIMITS:
        for name in ("float32", "bfloat16"):
            dtype, tf32 = NUMBERS[name]
            precision(tf32)
            image = torch.randn(batch, ins, side, side, device="cuda", dtype=dtype)
            weight = torch.randn(outs, ins // groups, kernel, kernel, device="cuda", dtype=dtype)
            sizes = ([stride] * 2, [kernel // 2] * 2, [dilation] * 2)
            forward = lambda: F.conv2d(image, weight, None, *sizes, groups)
            gradient = torch.randn_like(forward())
            backward = lambda mask: torch.ops.aten.convolution_backward(
                gradient, image, weight, None, *sizes, False, [0, 0], groups, mask
            )
            calls = [forward, lambda: backward([True, False, False]), lambda: backward([False, True, False])]
            times = "".join(f"{milliseconds(call) * 1e3:10.1f}" for call in calls)
            print(f"{batch} of {ins} to {outs}, {side}², {kernel}×{kernel}, {stride} {dilation} {groups} {name:9}{times}")


if __name__ == "__main__":
    if "--limits" in sys.argv:
        limits()
        sys.exit()
    times = {}
    for measure in (products, convolutions):
        measure(times)
    json.dump(times, sys.stdout, indent=1)
