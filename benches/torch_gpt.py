"""PyTorch's half of `cargo bench --bench gpt`: training steps of GPT models, attention written out or (`--fused`) by
`F.scaled_dot_product_attention`, autocast to bfloat16.

Prints one JSON list of rows: model, way (eager, compiled), milliseconds of a step, the most memory that tensors held.

    python benches/torch_gpt.py [--fused] > torch.json
"""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE, WARM, STEPS = "cuda", 8, 20
# vocabulary, context, layers, heads, width, bias, dropout, batch
MODELS = {"character": (65, 256, 6, 6, 384, False, 0.2, 64), "gpt2": (50304, 1024, 12, 12, 768, True, 0.0, 16)}


class Block(nn.Module):
    def __init__(self, width, heads, bias, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def attention(self, x, mask):
        batch, context, width = x.shape
        shape = (batch, context, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        if "--fused" in sys.argv:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        scores = (q * shape[-1] ** -0.5) @ k.transpose(-2, -1) + mask.to(q.dtype)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)

    def forward(self, x, mask):
        x = x + F.dropout(self.proj(self.attention(self.ln1(x), mask)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh")), self.dropout)


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width, bias, dropout):
        super().__init__()
        self.dropout = dropout
        self.te, self.pe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width, bias=bias)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = F.dropout(self.te(tokens) + self.pe.weight, self.dropout)
        for block in self.blocks:
            x = block(x, self.mask)
        scores = F.linear(self.ln(x), self.te.weight)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def measure(name, way):
    torch.manual_seed(0)
    *sizes, batch = MODELS[name]
    model = Gpt(*sizes).to(DEVICE)
    forward = torch.compile(model) if way == "compiled" else model
    opt = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    tokens, targets = (torch.randint(0, sizes[0], (batch, sizes[1]), device=DEVICE) for _ in range(2))

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = forward(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - start) / STEPS * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"{name} {way}: {ms:.2f} ms, {peak:.2f} GiB", file=sys.stderr)
    return {"model": name, "way": way, "ms_per_step": ms, "peak_gib": peak}


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    print(json.dumps([measure(name, way) for name in MODELS for way in ("eager", "compiled")]))
