"""PyTorch's half of `compare_torch.py gpu`: one model, one way to feed and run it, some epochs on a GPU.

Prints one JSON object. Needs `torch` and `numpy`, and the four MNIST files in --data.

    python benches/torch_mnist_gpu.py --data DIR --model cnn --mode tutorial --epochs 4

Modes, as people write them:
    tutorial   DataLoader, `.to(device)` for each batch
    pinned     DataLoader(pin_memory=True), `.to(device, non_blocking=True)`
    workers    the same with four workers that stay
    resident   all images on the GPU, which shuffles them
    compile    the same, the loss by torch.compile(mode="reduce-overhead")
    graph      the same, the whole step in a CUDA graph made by hand, with the fused optimizer
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, TensorDataset

from torch_mnist import BATCH_SIZE, SETTINGS, build, eager, load, print_report, train, validate

DEVICE = torch.device("cuda")
MODES = ["tutorial", "pinned", "workers", "resident", "compile", "graph"]


def from_loader(mode, images, labels):
    """A function that starts one epoch of batches on the GPU, fed by a DataLoader."""
    n_workers = 4 if mode == "workers" else 0
    pinned = mode != "tutorial"
    loader = DataLoader(
        TensorDataset(images, labels),
        BATCH_SIZE,
        shuffle=True,
        pin_memory=pinned,
        num_workers=n_workers,
        persistent_workers=n_workers > 0,
    )
    return lambda: ((x.to(DEVICE, non_blocking=pinned), y.to(DEVICE, non_blocking=pinned)) for x, y in loader)


def resident(images, labels):
    """The same from tensors on the GPU."""
    images, labels = images.to(DEVICE), labels.to(DEVICE)

    def epoch():
        order = torch.randperm(len(images), device=DEVICE)
        for rows in order.split(BATCH_SIZE):
            yield images[rows], labels[rows]

    return epoch


def compiled(net, optimizer):
    loss = torch.compile(lambda x, y: F.cross_entropy(net(x), y), mode="reduce-overhead")

    def step(x, y):
        loss(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def captured(net, optimizer, image_shape):
    """A step recorded after three that do not count; it writes gradients anew. The last batch, smaller, runs eagerly."""
    x = torch.zeros(BATCH_SIZE, *image_shape, device=DEVICE)
    y = torch.zeros(BATCH_SIZE, dtype=torch.int64, device=DEVICE)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    one_step = eager(net, optimizer)
    with torch.cuda.stream(beside):
        for _ in range(3):
            one_step(x, y)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.load_state_dict(before)
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].zero_()

    def step(images, labels):
        if len(images) < BATCH_SIZE:
            one_step(images, labels)
            return
        x.copy_(images)
        y.copy_(labels)
        graph.replay()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=SETTINGS, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    image_shape, lr, momentum = SETTINGS[args.model]
    x_train, y_train, x_valid, y_valid = load(args.data, image_shape)
    net = build(args.model).to(DEVICE)
    optimizer = optim.SGD(net.parameters(), lr=lr, momentum=momentum, fused=args.mode == "graph")
    in_memory = args.mode in ("resident", "compile", "graph")
    epoch = resident(x_train, y_train) if in_memory else from_loader(args.mode, x_train, y_train)
    if args.mode == "graph":
        step = captured(net, optimizer, image_shape)
    else:
        step = (compiled if args.mode == "compile" else eager)(net, optimizer)

    train_seconds, first_step = train(args.epochs, epoch, step, torch.cuda.synchronize)
    validated = validate(net, x_valid.to(DEVICE), y_valid.to(DEVICE))
    print_report(args, train_seconds, first_step, validated)


if __name__ == "__main__":
    main()
