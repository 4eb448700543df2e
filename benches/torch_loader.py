"""PyTorch's half of `compare_torch.py loaders`: shuffled batches of MNIST-shaped samples, and nothing done with them.

Prints one JSON object. Needs `torch`.

    python benches/torch_loader.py --workers 0 2 4 --epochs 3 [--pin]
"""

import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

N_SAMPLES = 50_000
BATCH_SIZE = 64


def epochs_of(dataset, num_workers, pin, n_epochs):
    """Samples per second in each of `n_epochs` epochs after a first one."""
    loader = DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        pin_memory=pin,
        persistent_workers=num_workers > 0,
    )
    figures = []
    for _ in range(n_epochs + 1):
        start = time.perf_counter()
        for _batch in loader:
            pass
        figures.append(N_SAMPLES / (time.perf_counter() - start))
    return figures[1:]


def index_select(dataset, n_epochs):
    """The same without a loader: one index_select per tensor and batch, the least that PyTorch can be asked to do."""
    images, labels = dataset.tensors
    figures = []
    for _ in range(n_epochs + 1):
        start = time.perf_counter()
        for indices in torch.randperm(N_SAMPLES).split(BATCH_SIZE):
            _batch = images.index_select(0, indices), labels.index_select(0, indices)
        figures.append(N_SAMPLES / (time.perf_counter() - start))
    return figures[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2, 4, 8])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pin", action="store_true", help="page-lock every batch; needs a GPU")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = TensorDataset(torch.rand(N_SAMPLES, 784), torch.zeros(N_SAMPLES, dtype=torch.int64))
    figures = {"index_select": index_select(dataset, args.epochs)}
    for num_workers in args.workers:
        figures[str(num_workers)] = epochs_of(dataset, num_workers, args.pin, args.epochs)
    print(json.dumps({"program": f"PyTorch {torch.__version__}", "samples_per_second": figures}))


if __name__ == "__main__":
    main()
