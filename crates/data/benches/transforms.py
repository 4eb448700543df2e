#!/usr/bin/env python3
"""How long torchvision's transforms of a photo take on one core: the other half of `transforms.rs`."""

import time

import torch
from torchvision.transforms import v2

torch.set_num_threads(1)
photo = torch.randint(0, 256, (3, 375, 500), dtype=torch.uint8)
for name, transform in [
    ("Resize 224 bilinear", v2.Resize([224, 224])),
    ("RandomResizedCrop 224", v2.RandomResizedCrop([224, 224])),
]:
    times = []
    for _round in range(300):
        start = time.perf_counter()
        transform(photo)
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    print(f"{name:<24}{times[0]:>8.3f} ms least {times[150]:>8.3f} ms median")
