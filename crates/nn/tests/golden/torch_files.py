"""Files of PyTorch beside what they hold, for `suite/torch_files.rs`.

    python torch_files.py make torch_files     # writes NAME.pt and NAME.json into the folder; needs torch
    python torch_files.py check FOLDER         # compares FOLDER/NAME.pt with FOLDER/NAME.json
    python torch_files.py train FOLDER         # checkpoints after three steps, and the losses of three more
    python torch_files.py continue FOLDER      # goes on from FOLDER/NAME.rust.pt, and compares the losses
"""

import io
import json
import os
import pickle
import struct
import sys
import tarfile
from collections import OrderedDict

import torch
from torch import nn, optim

torch.manual_seed(1)


def describe(value, storages):
    """What `describe` of the test makes of it."""
    again = lambda item: describe(item, storages)
    if isinstance(value, torch.Tensor):
        value = value.detach()
        flat = value.contiguous().reshape(-1).view(torch.uint8) if value.numel() else torch.empty(0, dtype=torch.uint8)
        shared = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        return {"tensor": str(value.dtype)[6:], "shape": list(value.shape), "hex": bytes(flat.tolist()).hex(), "shared": shared}
    if isinstance(value, dict):
        return {"dict": [[again(key), again(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [again(item) for item in value]}
    if isinstance(value, (list, set)):
        return {"list": [again(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)[6:]}
    if isinstance(value, float):
        return {"float": struct.pack(">d", value).hex()}
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def stepped(make, n_steps=3):
    """An optimizer's state after some steps."""
    parameters = [nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(3))]
    optimizer = make([{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0}])
    for _ in range(n_steps):
        optimizer.zero_grad()
        sum((parameter**2).sum() for parameter in parameters).backward()
        optimizer.step()
    return optimizer.state_dict()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def cases():
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
    base = torch.arange(24.0)
    shared = [1, 2]
    yield "dtypes", OrderedDict((str(dtype)[6:], torch.tensor([[1.5, 0, 3], [4, 5, 250]]).to(dtype)) for dtype in dtypes)
    yield "linear", nn.Linear(3, 2).state_dict()
    yield "mlp", nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).state_dict()
    yield "conv", nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).state_dict()
    yield "batch_norm", nn.BatchNorm1d(3).state_dict()
    yield "layer_norm", nn.LayerNorm(4).state_dict()
    yield "lstm", nn.LSTM(2, 2, 2).state_dict()
    yield "attention", nn.TransformerEncoderLayer(4, 2, 4).state_dict()
    yield "half", nn.Linear(3, 2).half().state_dict()
    yield "tied", Tied().state_dict()
    yield "views", {"t": base.reshape(4, 6).t(), "step": base[1::5], "tail": base[20:], "expanded": base[:1].expand(3), "all": base}
    yield "channels_last", {"weight": torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)}
    yield "empty", {"none": torch.empty(0, 3), "scalar": torch.tensor(3.5), "count": torch.tensor(7)}
    yield "nothing", OrderedDict()
    yield "parameters", {"w": nn.Parameter(torch.randn(2)), "frozen": nn.Parameter(torch.ones(2), requires_grad=False)}
    yield "sgd", stepped(lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9))
    yield "adam", stepped(lambda groups: optim.Adam(groups, lr=0.1, amsgrad=True))
    yield "adamw", stepped(lambda groups: optim.AdamW(groups, lr=0.1))
    yield "rmsprop", stepped(lambda groups: optim.RMSprop(groups, lr=0.1, centered=True, momentum=0.5))
    yield "adagrad", stepped(lambda groups: optim.Adagrad(groups, lr=0.1))
    yield "checkpoint", {"model": nn.Linear(2, 2).state_dict(), "epoch": 3, "loss": 0.25, "best": None, "done": True, "name": "größe",
                         "optimizer": stepped(lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9))}
    yield "values", {"ints": [0, -1, 255, 256, 65_536, -(2**31), 2**40, -(2**62)], "tuple": (1, (2, ()), []), "bytes": b"\x00\xff",
                     "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:0"), "shared": [shared, shared],
                     "nan": float("nan"), 7: "seven"}


def save_tar(path):
    """As PyTorch before 0.1.12 wrote, which no PyTorch writes any more."""
    dump = lambda value: pickle.dumps(value, protocol=2)
    numbers = torch.arange(6.0)
    count = lambda value: struct.pack("<q", value)

    class Number:
        def __init__(self, number):
            self.number = number

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return value.number if isinstance(value, Number) else None

    storages = dump(2) + dump((11, "cpu", torch.FloatStorage)) + count(6) + numbers.numpy().tobytes()
    storages += dump((12, "cpu", torch.LongStorage)) + count(2) + struct.pack("<qq", 5, -6)
    storages += dump([(13, 11, 2, 3)])
    tensor = lambda key, storage, kind, sizes, strides, offset: (
        dump((key, storage, kind)) + struct.pack(f"<ii{2 * len(sizes) + 1}q", len(sizes), 0, *sizes, *strides, offset))
    tensors = dump(3) + tensor(21, 11, torch.FloatTensor, (2, 3), (3, 1), 0)
    tensors += tensor(22, 12, torch.LongTensor, (2,), (1,), 0) + tensor(23, 13, torch.FloatTensor, (2,), (1,), 1)
    out = io.BytesIO()
    Pickler(out, protocol=2).dump(OrderedDict([("a", Number(21)), ("b", Number(22)), ("part", Number(23))]))
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in [("storages", storages), ("tensors", tensors), ("pickle", out.getvalue())]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return OrderedDict([("a", numbers.reshape(2, 3)), ("b", torch.tensor([5, -6])), ("part", numbers[3:5])])


def write_json(folder, name, value):
    with open(os.path.join(folder, name + ".json"), "w") as file:
        json.dump(describe(value, {}), file)
        file.write("\n")


def make(folder):
    os.makedirs(folder, exist_ok=True)
    for name, value in cases():
        torch.save(value, os.path.join(folder, name + ".pt"))
        write_json(folder, name, value)
        if name in ["dtypes", "tied", "views", "checkpoint", "values"]:
            torch.save(value, os.path.join(folder, name + "_legacy.pt"), _use_new_zipfile_serialization=False)
            write_json(folder, name + "_legacy", value)
    write_json(folder, "tar", save_tar(os.path.join(folder, "tar.pt")))


def check(folder):
    names = [name[:-3] for name in sorted(os.listdir(folder)) if name.endswith(".pt")]
    for name in names:
        value = torch.load(os.path.join(folder, name + ".pt"), weights_only=True)
        with open(os.path.join(folder, name + ".json")) as file:
            wanted = json.load(file)
        assert describe(value, {}) == wanted, f"{name} is not what was saved"
    assert names, "there are no files"


OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: optim.Adam(parameters, lr=0.05),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=0.05, amsgrad=True),
    "rmsprop": lambda parameters: optim.RMSprop(parameters, lr=0.02, momentum=0.5),
    "adagrad": lambda parameters: optim.Adagrad(parameters, lr=0.05),
}


def setting(name):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, OPTIMIZERS[name](model.parameters())


def train_steps(model, optimizer):
    x = torch.arange(24.0).reshape(8, 3) / 12 - 1
    y = x.sum(1, keepdim=True).sin()
    losses = []
    for _ in range(3):
        loss = ((model(x) - y) ** 2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def save(model, optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)


def train(folder):
    for name in OPTIMIZERS:
        model, optimizer = setting(name)
        train_steps(model, optimizer)
        save(model, optimizer, os.path.join(folder, name + ".pt"))
        with open(os.path.join(folder, name + ".losses"), "w") as file:
            json.dump([train_steps(model, optimizer), train_steps(model, optimizer)], file)


def go_on(folder):
    for name in OPTIMIZERS:
        model, optimizer = setting(name)
        checkpoint = torch.load(os.path.join(folder, name + ".rust.pt"), weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        with open(os.path.join(folder, name + ".losses")) as file:
            wanted = json.load(file)[1]
        found = train_steps(model, optimizer)
        assert all(abs(a - b) < 1e-6 for a, b in zip(wanted, found)), f"{name}: {found}, and not {wanted}"


if __name__ == "__main__":
    {"make": make, "check": check, "train": train, "continue": go_on}[sys.argv[1]](sys.argv[2])
