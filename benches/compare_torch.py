#!/usr/bin/env python3
"""Pagelock beside PyTorch, in one run on one machine.

    PYTHON=path/to/python/with/torch benches/compare_torch.py epochs --data DIR --threads 1 2
    PYTHON=path/to/python/with/torch benches/compare_torch.py loaders --workers 0 2 4 8 [--pin]
    PYTHON=path/to/python/with/torch benches/compare_torch.py pictures
    PYTHON=path/to/python/with/torch benches/compare_torch.py gpu --data DIR

Builds the Rust half (`mnist_epoch.rs`, `loaders.rs`, `pictures.rs` of pagelock-data), then runs it and the
PyTorch half (`torch_mnist.py`, `torch_loader.py`, `torch_pictures.py`) in turns, a process for each, so
that noise from other programs hits both. Prints Markdown tables with ratios: epoch times, the time from process start
to the first finished step and peak memory; samples per second of loaders; decoded pictures
per second; or epochs on a GPU, in all ways to feed it.
`--json FILE` keeps every figure. Needs cargo, or the Rust half as `--program FILE` where there is none, and PyTorch and
numpy (for `pictures` torchvision and pillow, too) in $PYTHON; itself only the standard library.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCHES = Path(__file__).resolve().parent
ROOT = BENCHES.parent
PYTHON = os.environ.get("PYTHON", sys.executable)
MODELS = ["logistic", "cnn"]
TORCH_MODES = ["loader", "gathered", "slices"]
GPU_WAYS = ["eager", "captured", "resident"]
TORCH_GPU_MODES = ["tutorial", "pinned", "workers", "resident", "compile", "graph"]


def build(bench, *options):
    """Builds a benchmark and returns the path of its program."""
    command = ["cargo", "bench", "--bench", bench, "--no-run", "--message-format=json-render-diagnostics", *options]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    messages = [json.loads(line) for line in printed.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    return programs[-1]


def measure(command):
    """Runs `command` and returns its report, with the peak memory of its process in MiB."""
    environment = os.environ | {"BENCH_STARTED_NS": str(time.time_ns())}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {child.returncode}")
    return json.loads(printed) | {"peak_memory_mib": usage.ru_maxrss / 1024}


def measure_epochs(args):
    """Every variant once per round, in the same order; returns `{(model, threads, variant): [report]}`."""
    program, torch = build("mnist_epoch"), [PYTHON, str(BENCHES / "torch_mnist.py")]
    reports = {}
    for round_idx in range(args.rounds):
        for model in args.models:
            for threads in args.threads:
                common = ["--data", args.data, "--model", model, "--threads", str(threads), "--epochs", str(args.epochs)]
                variants = {mode: [*torch, "--mode", mode, *common] for mode in TORCH_MODES}
                variants["pagelock"] = [program, "--json", *common]
                for variant, command in variants.items():
                    print(f"round {round_idx + 1}: {model}, {threads} thread(s), {variant}", file=sys.stderr)
                    report = measure(command)
                    for run in report.pop("runs", [{}]):
                        reports.setdefault((model, threads, variant), []).append(report | run)
    return reports


def measure_gpu(args):
    """Every way once per round; returns `{(model, way): [report]}`."""
    program = args.program or build("mnist_epoch")
    reports = {}
    for round_idx in range(args.rounds):
        for model in args.models:
            common = ["--data", args.data, "--model", model, "--epochs", str(args.epochs)]
            ours = {way: [program, "--json", "--device", "cuda", "--way", way, *common] for way in GPU_WAYS}
            torch = [PYTHON, str(BENCHES / "torch_mnist_gpu.py")]
            theirs = {f"PyTorch, {mode}": [*torch, "--mode", mode, *common] for mode in TORCH_GPU_MODES}
            for way, command in (ours | theirs).items():
                print(f"round {round_idx + 1}: {model} on a GPU, {way}", file=sys.stderr)
                report = measure(command)
                for run in report.pop("runs", [{}]):
                    reports.setdefault((model, way), []).append(report | run)
    return reports


def print_gpu(args, reports):
    """Milliseconds; the ratio is an epoch's share of PyTorch's fastest."""
    print("\nMilliseconds per training epoch (50,000 images, batches of 64), least and median of all but each first.\n")
    print("| model | way | least | median | ratio to PyTorch's fastest | first step, s | val loss |")
    print("|---|---|---|---|---|---|---|")
    for model in args.models:
        later = {
            way: [seconds for report in many for seconds in report["train_seconds"][1:]]
            for (of, way), many in reports.items()
            if of == model
        }
        fastest = min(min(seconds) for way, seconds in later.items() if way.startswith("PyTorch"))
        for way, seconds in later.items():
            many = reports[model, way]
            print(
                f"| {model} | {way} | {1e3 * min(seconds):.1f} | {1e3 * statistics.median(seconds):.1f} "
                f"| {min(seconds) / fastest:.2f} | {least(many, 'seconds_to_first_step'):.2f} "
                f"| {least(many, 'val_loss'):.3f} |"
            )


def measure_loaders(args):
    """Both programs once per round, without page-locking and, if wanted, with it; returns `{(variant,): [report]}`."""
    workers = ["--workers", *map(str, args.workers)]
    ours = [args.program or build("loaders"), "--json", *workers]
    torch = [PYTHON, str(BENCHES / "torch_loader.py"), "--epochs", str(args.epochs), *workers]
    variants = {"pagelock": ours, "torch": torch}
    if args.pin:
        variants |= {"pagelock, page-locked": [*ours, "--pin"], "torch, pin_memory": [*torch, "--pin"]}
    reports = {}
    for round_idx in range(args.rounds):
        for name, command in variants.items():
            print(f"round {round_idx + 1}: loaders, {name}", file=sys.stderr)
            reports.setdefault((name,), []).append(measure(command))
    return reports


def print_loaders(args, reports):
    """The most of each; ratios are ours over PyTorch's loader with as many workers, and over its best."""
    def most(variant, row):
        return max(max(report["samples_per_second"][row]) for report in reports[variant,])

    variants = [variant for variant, in reports]
    best = max(most(variant, str(n)) for n in args.workers for variant in variants if variant.startswith("torch"))
    kinds = [variant.removeprefix("pagelock") for variant in variants if variant.startswith("pagelock")]
    print("\nSamples per second, the best epoch of all; shuffled batches of 64 MNIST-shaped samples.\n")
    print("| workers, memory | Pagelock | PyTorch, DataLoader | ratio | ratio to PyTorch's best |")
    print("|---|---:|---:|---:|---:|")
    for kind in kinds:
        theirs = "torch, pin_memory" if kind else "torch"
        for n in map(str, args.workers):
            ours, torch = most(f"pagelock{kind}", n), most(theirs, n)
            print(f"| {n}{kind} | {ours:,.0f} | {torch:,.0f} | {ours / torch:.1f} | {ours / best:.1f} |")
    print(f"\nPyTorch's index_select without a loader: {most('torch', 'index_select'):,.0f} samples/s.")


def measure_pictures(args):
    """Every program once per round, on the same pictures; returns `{(program,): [report]}`."""
    torch = [PYTHON, str(BENCHES / "torch_pictures.py")]
    programs = {feature: [build("pictures", "--package", "pagelock-data", "--features", feature)]
                for feature in ["images"]} if args.program is None else {"images": [args.program]}
    reports = {}
    with tempfile.TemporaryDirectory() as folder:
        measure([*torch, folder, "--make", "64", "--rounds", "1"])
        for round_idx in range(args.rounds):
            for name, command in (programs | {"torch": torch}).items():
                print(f"round {round_idx + 1}: pictures, {name}", file=sys.stderr)
                reports.setdefault((name,), []).append(measure([*command, folder]))
    return reports


def print_pictures(reports):
    """The most of each; the ratio is to torchvision's decoder."""
    torch = reports["torch",]
    most = {"torchvision, decode_jpeg": max(max(report["per_second"]["decode_jpeg"]) for report in torch),
            "Pillow, as torchvision's ImageFolder": max(max(report["per_second"]["pillow"]) for report in torch)}
    most |= {f"Pagelock, feature `{name}`": max(max(report["per_second"]) for report in many)
             for (name,), many in reports.items() if name != "torch"}
    print("\nJPEG pictures per second on one core, the best round of all.\n")
    print("| decoder | pictures/s | ratio |")
    print("|---|---:|---:|")
    for name, figure in most.items():
        print(f"| {name} | {figure:,.0f} | {figure / most['torchvision, decode_jpeg']:.2f} |")
    sums = {name: many[0]["sum"] for (name,), many in reports.items()}
    print(f"\nSums of all pixels: {sums}.")


def epochs(reports):
    """Seconds of every epoch of every round."""
    return [seconds for report in reports for seconds in report["train_seconds"]]


def least(reports, key):
    return min(report[key] for report in reports)


def print_epochs(args, reports):
    """Least and median epoch, then first step and memory; ratios are Pagelock's share of PyTorch's."""
    rows = [(model, threads) for model in args.models for threads in args.threads]
    print("\nSeconds per training epoch (50,000 images, batches of 64): least (median) of all epochs.\n")
    print("| work | threads | Pagelock, loader | PyTorch, DataLoader | PyTorch, fastest | ratio to fastest |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        ours, loader = epochs(reports[*row, "pagelock"]), epochs(reports[*row, "loader"])
        fastest_mode = min(TORCH_MODES, key=lambda mode: min(epochs(reports[*row, mode])))
        fastest = epochs(reports[*row, fastest_mode])
        median = statistics.median
        print(
            f"| {row[0]} | {row[1]} | {min(ours):.3f} ({median(ours):.3f}) | {min(loader):.3f} ({median(loader):.3f}) "
            f"| {min(fastest):.3f} ({median(fastest):.3f}), {fastest_mode} "
            f"| {min(ours) / min(fastest):.2f} ({median(ours) / median(fastest):.2f}) |"
        )

    print("\nThe whole process, fed by the loader: least of all rounds.\n")
    print("| work | threads | first step, s: Pagelock | PyTorch | peak memory, MiB: Pagelock | PyTorch | memory ratio | val loss: Pagelock | PyTorch |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ours, loader = reports[*row, "pagelock"], reports[*row, "loader"]
        memory = least(ours, "peak_memory_mib"), least(loader, "peak_memory_mib")
        print(
            f"| {row[0]} | {row[1]} | {least(ours, 'seconds_to_first_step'):.2f} | {least(loader, 'seconds_to_first_step'):.2f} "
            f"| {memory[0]:.0f} | {memory[1]:.0f} | {memory[0] / memory[1]:.2f} "
            f"| {least(ours, 'val_loss'):.3f} | {least(loader, 'val_loss'):.3f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_data = Path(os.environ["PAGELOCK_DATA"]) / "mnist" if "PAGELOCK_DATA" in os.environ else None
    parser.add_argument("work", choices=["epochs", "loaders", "pictures", "gpu"])
    parser.add_argument("--data", type=Path, default=default_data, help="folder of the MNIST files")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2, 4, 8], help="of loaders")
    parser.add_argument("--pin", action="store_true", help="loaders also with page-locked batches; PyTorch needs a GPU")
    parser.add_argument("--program", help="the Rust half, already built")
    parser.add_argument("--epochs", type=int, default=3, help="epochs in each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each variant")
    parser.add_argument("--json", type=Path, help="also write every report to this file")
    args = parser.parse_args()
    if args.work in ("epochs", "gpu") and args.data is None:
        parser.error("give --data, the folder of the MNIST files, or set PAGELOCK_DATA to the folder above it")

    if args.work == "epochs":
        args.data = str(args.data.resolve())
        reports = measure_epochs(args)
        print_epochs(args, reports)
    elif args.work == "gpu":
        args.data = str(args.data.resolve())
        reports = measure_gpu(args)
        print_gpu(args, reports)
    elif args.work == "pictures":
        reports = measure_pictures(args)
        print_pictures(reports)
    else:
        reports = measure_loaders(args)
        print_loaders(args, reports)
    if args.json:
        named = [{"variant": key[-1]} | report for key, many in reports.items() for report in many]
        args.json.write_text(json.dumps(named, indent=1))


if __name__ == "__main__":
    main()
