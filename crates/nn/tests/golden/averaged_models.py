"""Writes `averaged_models.json`: a weight and a buffer of PyTorch's `AveragedModel` after each of six updates.

    python averaged_models.py      # needs torch
"""

import json
import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Weights(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
        self.register_buffer("running", torch.zeros(2, dtype=dtype))


AVERAGES = {
    "swa": lambda model: AveragedModel(model),
    "ema": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "swa_buffers": lambda model: AveragedModel(model, use_buffers=True),
    "ema_buffers": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.6), use_buffers=True),
}


def updates(make, dtype):
    model, history = Weights(dtype), []
    averaged = make(model)
    for step in range(6):
        with torch.no_grad():
            for tensor in (model.weight, model.running):
                values = [(3 * i + 5 * step) % 7 / 4 for i in range(tensor.numel())]
                tensor.copy_(torch.tensor(values, dtype=dtype).reshape(tensor.shape))
        averaged.update_parameters(model)
        history.append(averaged.module.weight.flatten().tolist() + averaged.module.running.tolist())
    return history


if __name__ == "__main__":
    written = {name: {"f32": updates(make, torch.float32), "f64": updates(make, torch.float64)} for name, make in AVERAGES.items()}
    lines = [f' "{name}": {json.dumps(found)}' for name, found in written.items()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "averaged_models.json"), "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
