"""The figures that PyTorch prints at each stage of "What is torch.nn really?", for the table in main.rs.

Usage: python reference.py FOLDER_WITH_MNIST (needs torch and numpy). Seed 0 before each stage.
"""
import gzip, math, sys
import numpy as np, torch, torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def idx(name, header):
    return np.frombuffer(gzip.open(f"{sys.argv[1]}/{name}-ubyte.gz").read(), np.uint8, offset=header)


images = torch.from_numpy(idx("train-images-idx3", 16).reshape(-1, 784).astype(np.float32) / 256)
labels = torch.from_numpy(idx("train-labels-idx1", 8).astype(np.int64))
x_train, y_train, x_valid, y_valid = images[:50000], labels[:50000], images[50000:], labels[50000:]
bs, epochs = 64, 2
starts = range(0, len(x_train), bs)
accuracy = lambda out, yb: (out.argmax(1) == yb).float().mean().item()
train_ds, valid_ds = TensorDataset(x_train, y_train), TensorDataset(x_valid, y_valid)
last = x_train[starts[-1]:], y_train[starts[-1]:]


def say(stage, *numbers):
    print(f"{stage}: " + ", ".join(f"{number:.4f}" for number in numbers))


def train(model, opt, batches):
    for _ in range(epochs):
        for xb, yb in batches():
            F.cross_entropy(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()


def fit(model, opt, wrap=lambda x, y: (x, y)):
    out = []
    for _ in range(epochs):
        for xb, yb in DataLoader(train_ds, bs, shuffle=True):
            xb, yb = wrap(xb, yb)
            F.cross_entropy(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            out.append(F.cross_entropy(model(wrap(x_valid, y_valid)[0]), y_valid).item())
    return out


torch.manual_seed(0)
weights = (torch.randn(784, 10) / math.sqrt(784)).requires_grad_()
bias = torch.zeros(10, requires_grad=True)
log_softmax = lambda x: x - x.exp().sum(-1).log().unsqueeze(-1)
bare = lambda xb: log_softmax(xb @ weights + bias)
nll = lambda input, target: -input[range(target.shape[0]), target].mean()
first = bare(x_train[:bs])
say("bare tensors, before", nll(first, y_train[:bs]), accuracy(first, y_train[:bs]))
for _ in range(epochs):
    for i in starts:
        nll(bare(x_train[i:i + bs]), y_train[i:i + bs]).backward()
        with torch.no_grad():
            for p in (weights, bias):
                p -= p.grad * 0.5
                p.grad.zero_()
say("bare tensors, after", nll(bare(last[0]), last[1]), accuracy(bare(last[0]), last[1]))
say("F.cross_entropy", F.cross_entropy(last[0] @ weights + bias, last[1]), accuracy(last[0] @ weights + bias, last[1]))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.bias = nn.Parameter(torch.randn(784, 10) / math.sqrt(784)), nn.Parameter(torch.zeros(10))

    def forward(self, xb):
        return xb @ self.weights + self.bias


in_order = lambda: ((x_train[i:i + bs], y_train[i:i + bs]) for i in starts)
for stage, make, batches in [
    ("nn.Module", Own, in_order),
    ("nn.Linear", lambda: nn.Linear(784, 10), in_order),
    ("optim.SGD", lambda: nn.Linear(784, 10), in_order),
    ("Dataset", lambda: nn.Linear(784, 10), lambda: (train_ds[i:i + bs] for i in starts)),
    ("DataLoader", lambda: nn.Linear(784, 10), lambda: DataLoader(train_ds, bs)),
]:
    torch.manual_seed(0)
    model = make()
    before = F.cross_entropy(model(last[0]), last[1])
    train(model, optim.SGD(model.parameters(), lr=0.5), batches)
    say(stage, before, F.cross_entropy(model(last[0]), last[1]))
for stage in ("validation", "fit"):
    torch.manual_seed(0)
    model = nn.Linear(784, 10)
    say(stage, *fit(model, optim.SGD(model.parameters(), lr=0.5)))


def cnn(head):
    convs = [nn.Conv2d(i, o, 3, stride=2, padding=1) for i, o in ((1, 16), (16, 16), (16, 10))]
    layers = [layer for conv in convs for layer in (conv, nn.ReLU())]
    return nn.Sequential(*layers, head, nn.Flatten())


image = lambda x, y: (x.view(-1, 1, 28, 28), y)
for stage, head in (("CNN", nn.AvgPool2d(4)), ("Sequential", nn.AvgPool2d(4)), ("wrapped", nn.AdaptiveAvgPool2d(1)), ("device", nn.AdaptiveAvgPool2d(1))):
    torch.manual_seed(0)
    model = cnn(head)
    say(stage, *fit(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), image))
