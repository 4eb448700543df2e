"""PyTorch's half of `compare_torch.py`: one model, one way to feed it, some epochs on the CPU.

Prints one JSON object. Needs `torch` and `numpy`, and the four MNIST files in --data.

    python benches/torch_mnist.py --data DIR --model cnn --mode loader --threads 1 --epochs 3

Modes, from what the tutorial does to the least that PyTorch can be asked to do for an epoch:
    loader    DataLoader over a TensorDataset, shuffled
    gathered  preloaded tensors, rows picked by a random permutation
    slices    preloaded tensors, consecutive slices, not shuffled
"""

import argparse
import gzip
import json
import os
import time
from pathlib import Path

# Set by the caller just before it starts this process; without it, importing torch is not counted.
STARTED_NS = int(os.environ.get("BENCH_STARTED_NS", time.time_ns()))

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 64
N_TRAIN = 50_000

# model: image shape, learning rate, momentum
SETTINGS = {"logistic": ((784,), 0.5, 0.0), "cnn": ((1, 28, 28), 0.1, 0.9)}


def read_idx(folder, name, header_bytes):
    """The bytes after the header of an IDX file, gzipped or not."""
    plain, packed = folder / name, folder / f"{name}.gz"
    data = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    return np.frombuffer(data, np.uint8, offset=header_bytes)


def load(folder, image_shape):
    """Training and validation images `[n, *image_shape]` in 0..1 and labels `[n]`."""
    images = read_idx(folder, "train-images-idx3-ubyte", 16).reshape(-1, *image_shape)
    images = torch.from_numpy(images.astype(np.float32) / 255)
    labels = torch.from_numpy(read_idx(folder, "train-labels-idx1-ubyte", 8).astype(np.int64))
    return images[:N_TRAIN], labels[:N_TRAIN], images[N_TRAIN:], labels[N_TRAIN:]


def build(model):
    """The tutorial's logistic regression, or its CNN."""
    if model == "logistic":
        return nn.Linear(784, 10)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 10, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def batches(mode, images, labels):
    """A function that starts one epoch of `(images, labels)` batches."""
    n = len(images)
    if mode == "loader":
        loader = DataLoader(TensorDataset(images, labels), BATCH_SIZE, shuffle=True)
        return lambda: iter(loader)
    if mode == "gathered":

        def gathered():
            order = torch.randperm(n)
            for start in range(0, n, BATCH_SIZE):
                rows = order[start : start + BATCH_SIZE]
                yield images[rows], labels[rows]

        return gathered

    def slices():
        for start in range(0, n, BATCH_SIZE):
            yield images[start : start + BATCH_SIZE], labels[start : start + BATCH_SIZE]

    return slices


def validate(net, images, labels):
    """Mean loss and accuracy over all of `images`."""
    loss, n_right = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(images), 2 * BATCH_SIZE):
            output, y = net(images[start : start + 2 * BATCH_SIZE]), labels[start : start + 2 * BATCH_SIZE]
            loss += F.cross_entropy(output, y, reduction="sum").item()
            n_right += (output.argmax(1) == y).sum().item()
    return loss / len(images), n_right / len(images)


def eager(net, optimizer):
    """A step as the tutorial writes it."""

    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(n_epochs, epoch, step, synchronize=lambda: None):
    """Seconds of every epoch, and from the start of the process to the end of the first step."""
    seconds_to_first_step = None
    train_seconds = []
    for _ in range(n_epochs):
        synchronize()
        began = time.perf_counter()
        for x, y in epoch():
            step(x, y)
            if seconds_to_first_step is None:
                synchronize()
                seconds_to_first_step = (time.time_ns() - STARTED_NS) / 1e9
        synchronize()
        train_seconds.append(time.perf_counter() - began)
    return train_seconds, seconds_to_first_step


def print_report(args, train_seconds, seconds_to_first_step, validated, **more):
    """What `compare_torch.py` reads."""
    val_loss, val_accuracy = validated
    report = {
        "program": f"PyTorch {torch.__version__}",
        "model": args.model,
        "mode": args.mode,
        "train_seconds": train_seconds,
        "seconds_to_first_step": seconds_to_first_step,
        "val_loss": val_loss,
        "val_accuracy": val_accuracy,
    }
    print(json.dumps(report | more))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=SETTINGS, required=True)
    parser.add_argument("--mode", choices=["loader", "gathered", "slices"], required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    image_shape, lr, momentum = SETTINGS[args.model]
    x_train, y_train, x_valid, y_valid = load(args.data, image_shape)
    net = build(args.model)
    optimizer = optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    epoch = batches(args.mode, x_train, y_train)

    train_seconds, first_step = train(args.epochs, epoch, eager(net, optimizer))
    print_report(args, train_seconds, first_step, validate(net, x_valid, y_valid), threads=args.threads)


if __name__ == "__main__":
    main()
