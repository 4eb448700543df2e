"""The tutorials that train, in PyTorch, timed: the code of the pages, on MNIST's files and on random color pictures.

Usage: python reference.py FOLDER_WITH_MNIST (needs torch and numpy). docs/tutorials.md has the times; how long a step takes
does not depend on the pictures.
"""
import gzip, sys, time
import numpy as np, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def idx(name, header):
    return np.frombuffer(gzip.open(f"{sys.argv[1]}/{name}-ubyte.gz").read(), np.uint8, offset=header)


def digits(name, count):
    images = torch.from_numpy(idx(f"{name}-images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 256)
    return TensorDataset(images[:count], torch.from_numpy(idx(f"{name}-labels-idx1", 8).astype(np.int64))[:count])


def train(name, model, train_ds, test_ds, batch_size, epochs, **sgd):
    begin, worked = time.perf_counter(), time.process_time()
    opt = torch.optim.SGD(model.parameters(), **sgd)
    for _ in range(epochs):
        for xb, yb in DataLoader(train_ds, batch_size, shuffle=True):
            F.cross_entropy(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            out = torch.cat([model(xb) for xb, _ in DataLoader(test_ds, 64)])
        right = (out.argmax(1) == test_ds.tensors[1]).float().mean()
        print(f"  loss {F.cross_entropy(out, test_ds.tensors[1]):.4f}, {100 * right:.1f} %", flush=True)
    begin, worked = time.perf_counter() - begin, time.process_time() - worked
    print(f"{name}: {begin:.1f} s, {worked:.1f} s of the processor", flush=True)


torch.manual_seed(0)
torch.set_num_threads(1)
mlp = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
train("basics quickstart", mlp, digits("train", 50_000), digits("t10k", 10_000), 64, 5, lr=1e-3)
net = nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
pictures = lambda count: TensorDataset(torch.rand(count, 3, 32, 32), torch.randint(10, (count,)))
train("blitz cifar10", net, pictures(50_000), pictures(10_000), 4, 2, lr=1e-3, momentum=0.9)
