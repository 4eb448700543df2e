"""The entries of the table in PyTorch: the inputs that `input.rs` makes, and the expressions of them."""

import torch
import torch.nn.functional as F

GOLDEN = 0.618033988749895


def spread(n, seed):
    x = GOLDEN * torch.arange(1, n + 1, dtype=torch.float64) + 0.37 * seed
    return ((0.2 + 1.6 * (x - x.floor())) * 2**20).floor() / 2**20


def base(spec, dtype, seed):
    """The tensor of an input without its view; `seed` is its position among the inputs."""
    shape, fill = spec["shape"], spec["fill"]
    n = 1
    for size in shape:
        n *= size
    i = torch.arange(n)
    plain = fill == "ones"
    if fill == "positive":
        x = spread(n, seed)
    elif fill == "signed":
        x = torch.where((i * 7 + seed) % 5 < 2, -spread(n, seed), spread(n, seed))
    elif plain:
        x = torch.ones(n, dtype=torch.float64)
    elif "below" in fill:
        return ((i * 5 + i // fill["below"] + 3 * seed) % fill["below"]).reshape(shape)
    else:
        x = torch.tensor([float(value) for value in fill["values"]], dtype=torch.float64)
    return converted(x, dtype, plain).reshape(shape)


def converted(x, dtype, plain):
    if dtype == torch.bool:
        return x > 1
    if dtype.is_floating_point:
        return x.to(dtype)
    whole = (x if plain else x * 10).long()
    return (whole.abs() if dtype == torch.uint8 else whole).to(dtype)


def strided(x, dim, start, end, step):
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def view_of(x, steps):
    """Applies the steps that turn a tensor into the input proper."""
    for name, *arguments in steps:
        x = strided(x, *arguments) if name == "slice" else getattr(x, name)(*arguments)
    return x


def running_of(x, wanted):
    channels = x.shape[1]
    full = lambda value: torch.full([channels], value, dtype=x.dtype)
    return (full(0.5), full(2.0)) if wanted else (None, None)


def running_after(x, training, momentum, eps):
    running = running_of(x, True)
    F.batch_norm(x, *running, None, None, training, momentum, eps)
    return torch.stack(running)


def wide(x):
    """For what PyTorch does not compute in half types."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def recurrent(layer, inputs, steps, reverse):
    """The states of all rows, as `recurrent.rs` gives them."""
    x, weight_ih, weight_hh, *rest = inputs
    x = x.unflatten(0, (steps, -1))
    biases, first = rest[:2], [state[None] for state in rest[2:]]
    zeros = torch.zeros(1, x.shape[1], weight_hh.shape[1], dtype=x.dtype)
    is_lstm = layer is torch.lstm
    first = first or [zeros] * (2 if is_lstm else 1)
    first = tuple(first) if is_lstm else first[0]
    weights = [weight_ih, weight_hh, *biases]
    y = layer(x.flip(0) if reverse else x, first, weights, bool(biases), 1, 0.0, False, False, False)[0]
    return (y.flip(0) if reverse else y).flatten(0, 1)


def put(x, where, value):
    x[where] = value
    return x


def function(expression, args, dtype):
    """The expression as a function of its inputs."""
    names = {"torch": torch, "F": F, "strided": strided, "put": put, "wide": wide, "running_of": running_of, "running_after": running_after, "recurrent": recurrent, "dtype": dtype, **args}
    call = eval(f"lambda inputs, x, y, z: {expression}", names)
    return lambda inputs: call(inputs, *(list(inputs) + [None] * 3)[:3])
