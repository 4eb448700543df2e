"""What PyTorch makes of one step of each model here, from weights that a formula gives: writes golden.json beside this file.

Usage: python reference.py (needs torch and numpy). The programs compare themselves with it when they start.
"""
import json, math, os
import numpy as np, torch, torch.nn.functional as F
from torch import nn, optim

torch.set_num_threads(1)


def numbers(shape, stream):
    """Multiples of 2^-23 from -1 to 1: the same as `beside::numbers`."""
    i = np.arange(math.prod(shape), dtype=np.uint64)
    bits = ((i * 2654435761 + stream * 40503) % 2**32).astype(np.uint32) >> 8
    return torch.from_numpy((bits.astype(np.float32) / np.float32(2**23) - np.float32(1)).reshape(shape))


def fill(model):
    with torch.no_grad():
        for position, (name, p) in enumerate(model.named_parameters()):
            u = numbers(p.shape, position)
            if p.dim() < 2:
                p.copy_(u * 0.1 + 1 if name.endswith("weight") else u * 0.1)
            else:
                p.copy_(u * math.sqrt(3 / math.prod(p.shape[1:])))


def one_step(model, opt, loss):
    before = loss()
    before.backward()
    gradients = {name: [p.grad.double().norm().item(), (p.grad.double() * numbers(p.shape, 7)).sum().item()]
                 for name, p in model.named_parameters() if p.requires_grad}
    opt.step()
    return {"loss": before.item(), "loss_after": loss().item(), "gradients": gradients}


class BasicBlock(nn.Module):
    def __init__(self, start, end, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(start, end, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(end)
        self.conv2 = nn.Conv2d(end, end, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(end)
        self.shortcut = nn.Sequential() if start == end else nn.Sequential(
            nn.Conv2d(start, end, 1, stride=stride, bias=False), nn.BatchNorm2d(end))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        stage = lambda start, end, stride: nn.ModuleList(
            [BasicBlock(start, end, stride)] + [BasicBlock(end, end, 1) for _ in range(n - 1)])
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = stage(16, 16, 1), stage(16, 32, 2), stage(32, 64, 2)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for block in [*self.layer1, *self.layer2, *self.layer3]:
            x = block(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x, eps):
        h1 = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + eps * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def vae_loss(recon, mu, logvar, x):
    bce = F.binary_cross_entropy(recon, x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(128, 5)

    def forward(self, x):
        return self.fc(self.features(x))


def double_conv(start, end):
    layers = []
    for channels in (start, end):
        layers += [nn.Conv2d(channels, end, 3, padding=1, bias=False), nn.BatchNorm2d(end), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2 = double_conv(3, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.conv2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2), double_conv(4 * width, 2 * width)
        self.up1, self.conv1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2), double_conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(self.pool(d1))
        x = self.bottom(self.pool(d2))
        x = self.conv2(torch.cat([self.up2(x), d2], 1))
        x = self.conv1(torch.cat([self.up1(x), d1], 1))
        return self.out(x)


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.district, self.kind = nn.Embedding(12, 4), nn.Embedding(4, 2)
        self.layers = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers, categories):
        district, kind = self.district(categories[:, 0]), self.kind(categories[:, 1])
        return self.layers(torch.cat([numbers, district, kind], 1)).squeeze(1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0])


golden = {}
pictures = numbers((8, 3, 32, 32), 1000)

model = ResNet(1)
fill(model)
opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
golden["resnet"] = one_step(model, opt, lambda: F.cross_entropy(model(pictures), torch.arange(8)))

vae = VAE()
fill(vae)
images, eps = numbers((8, 1, 28, 28), 1000).abs(), numbers((8, 20), 1001)
golden["vae"] = one_step(vae, optim.Adam(vae.parameters(), lr=1e-3), lambda: vae_loss(*vae(images, eps), images))

net = Net()
fill(net)
for name, p in net.named_parameters():
    p.requires_grad_(not name.startswith("features.0."))
groups = [{"params": [p for p in net.features.parameters() if p.requires_grad]}, {"params": net.fc.parameters(), "lr": 0.05}]
classes = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
golden["finetune"] = one_step(net, optim.SGD(groups, lr=0.01, momentum=0.9), lambda: F.cross_entropy(net(pictures), classes))

unet = UNet(4)
fill(unet)
images, masks = numbers((2, 3, 32, 32), 1000), (numbers((2, 1, 32, 32), 1001) > 0).float()
opt = optim.Adam(unet.parameters(), lr=1e-3)
golden["unet"] = one_step(unet, opt, lambda: F.binary_cross_entropy_with_logits(unet(images), masks))

tabular = Tabular()
fill(tabular)
rows, target = numbers((8, 3), 1000), numbers((8,), 1001)
categories = torch.tensor([[0, 0], [11, 1], [3, 2], [3, 3], [5, 0], [6, 1], [10, 2], [1, 3]])
opt = optim.AdamW(tabular.parameters(), lr=1e-3, weight_decay=1e-4)
golden["tabular"] = one_step(tabular, opt, lambda: F.mse_loss(tabular(rows, categories), target))

model = Forecaster()
fill(model)
x, target = numbers((8, 20, 1), 1000), numbers((8, 20, 1), 1001)
golden["gru"] = one_step(model, optim.Adam(model.parameters(), lr=1e-3), lambda: F.mse_loss(model(x), target))

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden.json"), "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
